package plugins

// This file implements OwnerReferencesPermissionEnforcement. An owner reference lets the garbage
// collector delete the object, so changing the references requires permission to delete the
// object. A reference with blockOwnerDeletion delays the deletion of the owner, so it requires
// permission to update the owner's finalizers.

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"apilet/internal/admission"
	"apilet/internal/request"
	"apilet/internal/scheme"
)

// ownership implements the plug-in.
type ownership struct {
	authorize func(request.User, request.Info) (bool, string)
	types     *scheme.Registry
}

func (o ownership) validate(_ context.Context, a *admission.Attributes) error {
	if a.Request == nil || a.Object == nil || a.Resource.Plural == "pods" && a.Resource.Group == "" && a.Subresource == "status" {
		return nil
	}
	owners := a.Object.GetOwnerReferences()
	var before []metav1.OwnerReference
	if a.Old != nil {
		before = a.Old.GetOwnerReferences()
	}
	if slices.EqualFunc(owners, before, func(x, y metav1.OwnerReference) bool { return equality.Semantic.DeepEqual(x, y) }) {
		return nil
	}
	if a.Operation != admission.OpCreate {
		asked := request.Info{ResourceRequest: true, Verb: "delete", Group: a.Resource.Group, Version: a.Resource.Version, Resource: a.Resource.Plural,
			Subresource: a.Subresource, Namespace: a.Namespace(), Name: a.Name()}
		if allowed, reason := o.authorize(a.Request.User, asked); !allowed {
			return a.Forbidden(fmt.Errorf("cannot set an ownerRef on a resource you can't delete: %s, <nil>", reason))
		}
	}
	return o.authorizeBlocking(a, newlyBlocking(owners, before))
}

// newlyBlocking returns the references that block the deletion of their owner and did not do so
// before.
func newlyBlocking(owners, before []metav1.OwnerReference) (added []metav1.OwnerReference) {
	for _, owner := range owners {
		if !blocks(&owner) || slices.ContainsFunc(before, func(old metav1.OwnerReference) bool { return old.UID == owner.UID && blocks(&old) }) {
			continue
		}
		added = append(added, owner)
	}
	return added
}

func blocks(owner *metav1.OwnerReference) bool {
	return owner.BlockOwnerDeletion != nil && *owner.BlockOwnerDeletion
}

func (o ownership) authorizeBlocking(a *admission.Attributes, owners []metav1.OwnerReference) error {
	if len(owners) == 0 {
		return nil
	}
	asked := request.Info{ResourceRequest: true, Verb: "update", Group: "*", Version: "*", Resource: "*", Subresource: "finalizers", Name: "*"}
	if allowed, _ := o.authorize(a.Request.User, asked); allowed {
		return nil
	}
	for _, owner := range owners {
		rows, err := o.rowsOf(&owner)
		if err != nil {
			return a.Forbidden(fmt.Errorf("cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion %s Kind %s: %w",
				owner.APIVersion, owner.Kind, err))
		}
		for _, row := range rows {
			asked.Group, asked.Version, asked.Resource, asked.Name, asked.Namespace = row.Group, row.Version, row.Plural, owner.Name, ""
			if row.Namespaced {
				asked.Namespace = a.Namespace()
			}
			if allowed, reason := o.authorize(a.Request.User, asked); !allowed {
				return a.Forbidden(fmt.Errorf("cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: %s, <nil>", reason))
			}
		}
	}
	return nil
}

// rowsOf returns the resources of an owner's kind.
func (o ownership) rowsOf(owner *metav1.OwnerReference) (rows []*scheme.Resource, err error) {
	gv, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil {
		return nil, err
	}
	for _, row := range o.types.All() {
		if row.Kind == owner.Kind && row.Group == gv.Group && row.Version == gv.Version {
			rows = append(rows, row)
		}
	}
	if len(rows) == 0 {
		err = &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: gv.Group, Kind: owner.Kind}, SearchedVersions: []string{gv.Version}}
	}
	return rows, err
}
