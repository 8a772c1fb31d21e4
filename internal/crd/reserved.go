package crd

// This file: what belongs to the built-in types, so that no definition of custom resources comes by it. An object's key begins with its
// type's group and plural name, whatever the version, and that is all that tells types apart in the store. So these two would be one:
//
//	/rbac.authorization.k8s.io/clusterrolebindings//cluster-admin     the built-in type, in v1
//	/rbac.authorization.k8s.io/clusterrolebindings//cluster-admin     a definition of the same group and plural, in v9
//
// and a definition that goes takes its objects along. kube-apiserver keeps the two apart in its store, accepts the definition, and never
// gets to serve it. Here its names are not accepted: nothing is served, and there is nothing to delete. Three places see to it, each for
// itself: the one who accepts names (acceptNames), the maker of rows (define), and who empties a definition (deleteObjects).
//
// A definition of an earlier server may be established already. It loses that, and what lies under its keys is the built-in type's.

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"apilet/internal/scheme"
)

// reservations are the names of the built-in types. Immutable.
type reservations struct {
	stored           map[schema.GroupResource]bool // what their keys begin with
	resources, kinds map[string]map[string]bool    // their other names, by group
}

// reserve takes the names of rows: keys, resources and short names, kinds.
func reserve(rows []*scheme.Resource) reservations {
	r := reservations{stored: map[schema.GroupResource]bool{}, resources: map[string]map[string]bool{}, kinds: map[string]map[string]bool{}}
	enter := func(into map[string]map[string]bool, group string, names ...string) {
		if into[group] == nil {
			into[group] = map[string]bool{}
		}
		for _, name := range names {
			into[group][name] = true
		}
	}
	for _, res := range rows {
		r.stored[schema.GroupResource{Group: res.StorageGroup, Resource: res.Plural}] = true
		enter(r.resources, res.Group, slices.Concat([]string{res.Plural, res.Singular}, res.ShortNames)...)
		enter(r.kinds, res.Group, res.Kind, res.ListKind)
	}
	return r
}

// holds says that the objects of a definition would have the keys of a built-in type's.
func (r reservations) holds(group, plural string) bool {
	return r.stored[schema.GroupResource{Group: group, Resource: plural}]
}
