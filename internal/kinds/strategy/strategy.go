package strategy

// This file contains the functions that are called by package registry. They look up the row in
// the table by resource or by the type of an object.

import (
	"context"
	"errors"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"apilet/internal/scheme"
)

// AllowCreateOnUpdate reports whether a PUT to a name that does not exist creates the object.
func AllowCreateOnUpdate(res *scheme.Resource) bool { return strategyFor(res).allowCreateOnUpdate }

// AllowUnconditionalUpdate reports whether an update may omit the resourceVersion. Updates of
// custom resources may not. An imported strategy decides it by the version of the request.
func AllowUnconditionalUpdate(res *scheme.Resource) bool {
	row := strategyFor(res)
	if row.imported != nil {
		return row.imported.Object.AllowUnconditionalUpdate(requestContext(res))
	}
	return res.GoType != nil && !row.conditionalUpdate
}

// requestContext returns a context with the group and version of a request.
func requestContext(res *scheme.Resource) context.Context {
	info := &request.RequestInfo{APIGroup: res.Group, APIVersion: res.Version}
	return request.WithRequestInfo(context.Background(), info)
}

// ReturnsDeleted reports whether the response to a DELETE is the deleted object instead of a
// Status.
func ReturnsDeleted(res *scheme.Resource) bool { return strategyFor(res).returnsDeleted }

// OrphansByDefault reports whether a DELETE without a propagation policy orphans the dependents.
// An imported strategy decides it by the version of the request.
func OrphansByDefault(res *scheme.Resource) bool {
	row := strategyFor(res)
	if row.imported == nil {
		return row.orphansByDefault
	}
	deletes, ok := row.imported.Object.(rest.GarbageCollectionDeleteStrategy)
	if !ok {
		return false
	}
	return deletes.DefaultGarbageCollectionPolicy(requestContext(res)) == rest.OrphanDependents
}

// ---- Preparation ----

// PrepareForCreate sets the initial status and generation of a new object with defaults, and the
// other fields that clients cannot set. The caller has set uid and name. The context must contain
// the request, and is used to send warnings.
func PrepareForCreate(ctx context.Context, obj runtime.Object) {
	if prepare := of(obj).create; prepare != nil {
		prepare(ctx, obj)
	}
}

// Canonicalize completes a new object after validation.
func Canonicalize(obj runtime.Object) {
	if complete := of(obj).canonicalize; complete != nil {
		complete(obj)
	}
}

// PrepareForUpdate restores the fields of obj that a write to a subresource of old cannot change.
// sub is empty for the object itself. The caller has set the generation to that of old, and
// PrepareForUpdate increments it if the change counts. In some cases it also modifies old, like
// kube-apiserver (for the data sources of a claim).
func PrepareForUpdate(ctx context.Context, sub string, obj, old runtime.Object) {
	if prepare := of(obj).updates[sub]; prepare != nil {
		prepare(ctx, obj, old)
	}
}

// SameSpec reports whether two objects of a type are equal except for metadata and status.
func SameSpec(a, b runtime.Object) bool {
	va, vb := reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem()
	for i := range va.NumField() {
		switch va.Type().Field(i).Name {
		case "TypeMeta", "ObjectMeta", "Status":
			continue
		}
		if !equality.Semantic.DeepEqual(va.Field(i).Interface(), vb.Field(i).Interface()) {
			return false
		}
	}
	return true
}

// RestrictCustomStatus returns old with the status of obj, for a write to the /status of a custom
// resource.
func RestrictCustomStatus(obj, old *unstructured.Unstructured) scheme.Object {
	out := old.DeepCopy()
	out.SetResourceVersion(obj.GetResourceVersion())
	out.SetManagedFields(obj.GetManagedFields())
	if status, ok := obj.Object["status"]; ok {
		out.Object["status"] = status
	} else {
		delete(out.Object, "status")
	}
	return out
}

// ---- Deletion ----

// ValidateDelete returns an error for the objects that every cluster must keep.
func ValidateDelete(res *scheme.Resource, name string) error {
	if row := strategyFor(res); slices.Contains(row.protected, name) {
		return apierrors.NewForbidden(res.GroupResource(), name, errors.New(row.protectedError))
	}
	return nil
}

// GracePeriod returns the grace period of a deletion in seconds.
func GracePeriod(obj scheme.Object, options *metav1.DeleteOptions) int64 {
	if grace := of(obj).grace; grace != nil {
		return grace(obj, options)
	}
	return 0
}

// IsGraceful reports whether the object is marked before it is deleted, even if there are no
// finalizers.
func IsGraceful(obj scheme.Object) bool { return of(obj).grace != nil }

// SetTerminating marks an object that has a phase for its deletion instead of a grace period. It
// reports whether obj is one.
func SetTerminating(obj scheme.Object) bool {
	mark := of(obj).terminating
	if mark != nil {
		mark(obj)
	}
	return mark != nil
}

// HasContent reports whether the contents of an object must be deleted before the object.
func HasContent(obj scheme.Object) bool {
	full := of(obj).hasContent
	return full != nil && full(obj)
}
