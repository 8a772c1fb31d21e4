// Package warnings returns the warnings for valid objects, such as a deprecated field, a node
// selector that uses a beta label, or two environment variables with the same name.
//
//	for _, text := range warnings.ForObject(ctx, obj, old) {
//		warning.AddWarning(ctx, "", text) // k8s.io/apiserver/pkg/warning: a Warning header of the response
//	}
//
// Most warnings come from k8s.io/kubernetes. strategies.go calls the strategies that are small
// enough to import and replaces the others by a few lines. KEP-1693 explains the purpose of
// warnings. warn.go in the main package writes the header and limits its length.
package warnings

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"

	"apilet/internal/apierror"
	"apilet/internal/scheme/internalversion"
)

// JobDeletionWarning is for the deletion of batch/v1 Jobs without a propagation policy. That API
// version keeps their Pods.
const JobDeletionWarning = "child pods are preserved by default when jobs are deleted; " +
	"set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning"

// ForObject returns the warnings about a create or an update of an object. obj must be valid and
// complete, as it will be stored. old is nil for a create.
func ForObject(ctx context.Context, obj, old runtime.Object) []string {
	switch o := obj.(type) {
	// Objects of these types are updated often and do not have any warnings.
	case *corev1.ConfigMap, *corev1.Event, *coordinationv1.Lease:
		return nil
	case *unstructured.Unstructured:
		return finalizers(o, old)
	}
	obj = internalversion.From(obj)
	if costly(obj) {
		return nil
	}
	var texts []string
	if old == nil {
		texts = onCreate(ctx, obj)
	} else {
		texts = onUpdate(ctx, obj, internalversion.From(old))
	}
	return texts[:min(len(texts), apierror.MaxErrors)]
}

// ForStatus returns the warnings for an update of the status of an object.
func ForStatus(ctx context.Context, obj, old runtime.Object) []string {
	switch obj.(type) {
	case *corev1.Pod, *corev1.Service, *networkingv1.Ingress:
		texts := onStatus(ctx, internalversion.From(obj), internalversion.From(old))
		return texts[:min(len(texts), apierror.MaxErrors)]
	}
	return nil
}

// DropDuplicateOwners removes duplicate ownerReferences from the object in a request. It returns a
// warning, or "" if there were none.
func DropDuplicateOwners(obj metav1.Object) string { return dropDuplicateOwners(obj, "") }

// DropAdmittedDuplicates is like DropDuplicateOwners, but for an object that was changed by a
// patch or a mutating plug-in. The warning says so.
func DropAdmittedDuplicates(obj metav1.Object) string {
	return dropDuplicateOwners(obj, " after mutating admission happens")
}

func dropDuplicateOwners(obj metav1.Object, when string) string {
	refs := obj.GetOwnerReferences()
	if len(refs) < 2 {
		return ""
	}
	var kept []metav1.OwnerReference
	var uids []string
	seen := make(map[ownerValue]bool, len(refs))
	for _, ref := range refs {
		value := valueOfOwner(ref)
		if seen[value] {
			uids = append(uids, string(ref.UID))
			continue
		}
		seen[value] = true
		kept = append(kept, ref)
	}
	if len(uids) == 0 {
		return ""
	}
	obj.SetOwnerReferences(kept)
	return fmt.Sprintf(".metadata.ownerReferences contains duplicate entries%s; API server dedups owner references in 1.20+, "+
		"and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: %s", when, strings.Join(uids, ", "))
}

// An ownerValue is a reference to an owner, to be compared.
type ownerValue struct {
	ref                metav1.OwnerReference // without its pointers
	controller, blocks string
}

func valueOfOwner(ref metav1.OwnerReference) ownerValue {
	text := func(b *bool) string {
		if b == nil {
			return ""
		}
		return strconv.FormatBool(*b)
	}
	value := ownerValue{ref, text(ref.Controller), text(ref.BlockOwnerDeletion)}
	value.ref.Controller, value.ref.BlockOwnerDeletion = nil, nil
	return value
}

// finalizers returns warnings about new finalizers of a custom resource. Validation rejects such
// names for built-in types.
func finalizers(obj metav1.Object, old runtime.Object) (texts []string) {
	known := sets.New(metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents, string(corev1.FinalizerKubernetes))
	if m, ok := old.(metav1.Object); ok {
		known.Insert(m.GetFinalizers()...)
	}
	names := slices.Clone(obj.GetFinalizers())
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if strings.Contains(name, "/") || known.Has(name) || len(texts) == apierror.MaxErrors {
			continue
		}
		path := ""
		if strings.Contains(name, ".") {
			path = " including a path (/)"
		}
		texts = append(texts, fmt.Sprintf("metadata.finalizers: %q: prefer a domain-qualified finalizer name%s "+
			"to avoid accidental conflicts with other finalizer writers", name, path))
	}
	return texts
}
