package crd

// This file prevents CRDs from using the names of built-in types. The
// key of an object begins with the group and plural name of its type. The version is not included
// in the key, so these types would use the same keys:
//
//	/rbac.authorization.k8s.io/clusterrolebindings//cluster-admin     the built-in type, in v1
//	/rbac.authorization.k8s.io/clusterrolebindings//cluster-admin     a CRD with the same group and plural, in v9
//
// If the CRD is deleted, all objects with these keys are deleted. In kube-apiserver the keys are
// different, so the CRD is accepted, but it is never served. In apilet the names are not
// accepted, so the CRD is not served and no objects are deleted. Three functions check this
// independently: acceptNames, define and deleteObjects.
//
// An earlier version of apilet may have established such a CRD. It loses that condition, and the
// objects under its keys belong to the built-in type.

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"apilet/internal/scheme"
)

// reservations contains the names of the built-in types. They are immutable.
type reservations struct {
	stored           map[schema.GroupResource]bool // group and plural name, which are the prefix of the key
	resources, kinds map[string]map[string]bool    // their other names, by group
}

// reserve returns the reservations for the given rows.
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

// holds reports whether the keys are used by a built-in type.
func (r reservations) holds(group, plural string) bool {
	return r.stored[schema.GroupResource{Group: group, Resource: plural}]
}
