package crd

// This file prevents definitions of custom resources from using the names of built-in types. The
// key of an object begins with the group and plural name of its type. Keys do not contain the
// version, so these two types would share their objects:
//
//	/rbac.authorization.k8s.io/clusterrolebindings//cluster-admin     the built-in type, in v1
//	/rbac.authorization.k8s.io/clusterrolebindings//cluster-admin     a definition with the same group and plural, in v9
//
// The deletion of a definition also deletes its objects. kube-apiserver stores the two
// separately, accepts the definition, and never serves it. apilet does not accept its names, so
// nothing is served and nothing is deleted. Three functions check this independently:
// acceptNames, define and deleteObjects.
//
// An earlier version of apilet may have established such a definition. It loses that condition,
// and the objects under its keys belong to the built-in type.

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"apilet/internal/scheme"
)

// reservations are the names of the built-in types. They are immutable.
type reservations struct {
	stored           map[schema.GroupResource]bool // groups and plural names, which their keys begin with
	resources, kinds map[string]map[string]bool    // their other names, by group
}

// reserve returns the names of the rows: keys, resources and short names, kinds.
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

// holds reports whether the objects of a definition would have keys of a built-in type.
func (r reservations) holds(group, plural string) bool {
	return r.stored[schema.GroupResource{Group: group, Resource: plural}]
}
