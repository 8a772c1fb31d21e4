package strategy

// This file answers the walk's questions with what a type's row says, or what holds for all types without a word of their own: who may be
// created by a PUT, what a write makes of an object, which fields the rarer subresources write, whose deletion waits.
//
//	write            function                 the status becomes         the rest
//	create           PrepareForCreate         the initial one            QoS class, selectors, ... are decided
//	update, patch    PrepareForUpdate         what it was                what an update may leave out is kept
//	.../status       PrepareForStatusUpdate   what the request says      what it was

import (
	"errors"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"apilet/internal/request"
	"apilet/internal/scheme"
)

// allowCreateOnUpdate says that a PUT to a name that does not exist creates the object; of the other types it answers 404.
func AllowCreateOnUpdate(res *scheme.Resource) bool { return strategyFor(res).allowCreateOnUpdate }

// AllowUnconditionalUpdate says that an update need not name a resourceVersion. That of a custom resource has to.
func AllowUnconditionalUpdate(res *scheme.Resource) bool {
	return res.GoType != nil && !strategyFor(res).conditionalUpdate
}

// returnsDeleted says that a DELETE is answered with the object that is gone, not with a Status.
func ReturnsDeleted(res *scheme.Resource) bool { return strategyFor(res).returnsDeleted }

// orphansByDefault says that dependents stay when a DELETE does not say what shall become of them.
func OrphansByDefault(res *scheme.Resource) bool { return strategyFor(res).orphansByDefault }

// ---- What a write makes of an object ----

// PrepareForCreate makes a defaulted object new: its status is the initial one and what the server decides is decided. The caller has
// set uid and name (a Job's selector needs them); it allocates cluster IPs and ports, looks up classes, and fills in who asks for a
// CertificateSigningRequest.
func PrepareForCreate(obj runtime.Object) {
	dropDisabled(obj, nil)
	if prepare := of(obj).create; prepare != nil {
		prepare(obj)
		return
	}
	if status := statusOf(obj); status.IsValid() {
		status.SetZero()
	}
}

// Canonicalize completes a new object that validation has nothing against.
func Canonicalize(obj runtime.Object) {
	if complete := of(obj).canonicalize; complete != nil {
		complete(obj)
	}
}

// PrepareForUpdate makes a defaulted object the successor of old: status, and what else an update may not touch, stays. It may change
// old where kube-apiserver does (a claim's two data sources).
func PrepareForUpdate(obj, old runtime.Object) {
	dropDisabled(obj, old)
	if status := statusOf(obj); status.IsValid() {
		status.Set(statusOf(old))
	}
	if prepare := of(obj).update; prepare != nil {
		prepare(obj, old)
	}
}

// PrepareForStatusUpdate puts back everything but metadata and status, and of metadata what a status writer may not touch.
func PrepareForStatusUpdate(obj, old runtime.Object) {
	to, from := reflect.ValueOf(obj).Elem(), reflect.ValueOf(old).Elem()
	for i := range to.NumField() {
		switch to.Type().Field(i).Name {
		case "TypeMeta", "ObjectMeta", "Status":
		default:
			to.Field(i).Set(from.Field(i))
		}
	}
	if prepare := of(obj).status; prepare != nil {
		prepare(obj, old)
	}
}

// statusOf is the status of an object, not valid when its type has none. It is always the last field.
func statusOf(obj runtime.Object) reflect.Value {
	v := reflect.ValueOf(obj).Elem()
	if last := v.NumField() - 1; v.Type().Field(last).Name == "Status" {
		return v.Field(last)
	}
	return reflect.Value{}
}

// NameNew gives a new object the name that its generateName asks for. A Namespace is labelled with it.
func NameNew(obj scheme.Object) {
	before := obj.GetName()
	obj.SetName(generateName(obj.GetGenerateName()))
	if follow := of(obj).named; follow != nil {
		follow(obj, before)
	}
}

// SameNotes says that nothing has changed of the metadata that the types with a generation count as well: Deployments their annotations,
// EndpointSlices their labels.
func SameNotes(obj, old scheme.Object) bool {
	counted := of(obj).counted
	return counted == nil || equality.Semantic.DeepEqual(counted(obj), counted(old))
}

// PrepareForSubresource takes from obj the fields that an update of a rarer subresource writes, and the others from old.
func PrepareForSubresource(sub string, obj, old scheme.Object) scheme.Object {
	restrict := of(obj).subresources[sub]
	if restrict == nil {
		return obj
	}
	out := old.DeepCopyObject().(scheme.Object)
	restrict(obj, out)
	return out
}

// NameRequester writes into an object who asks for it, if it is of a type that says so.
func NameRequester(obj scheme.Object, by *request.User) {
	if name := of(obj).requested; name != nil {
		name(obj, by)
	}
}

// RestrictCustomStatus takes only status (and what managed fields record of it) from a write to a custom resource's /status.
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

// ValidateDelete refuses to delete what every cluster has to keep.
func ValidateDelete(res *scheme.Resource, name string) error {
	if row := strategyFor(res); slices.Contains(row.undeletable, name) {
		return apierrors.NewForbidden(res.GroupResource(), name, errors.New(row.whyNot))
	}
	return nil
}

// GracePeriod is how many seconds a deletion waits.
func GracePeriod(obj scheme.Object, options *metav1.DeleteOptions) int64 {
	if grace := of(obj).grace; grace != nil {
		return grace(obj, options)
	}
	return 0
}

// Graceful says that a deletion is marked first even if nothing holds it back.
func Graceful(obj scheme.Object) bool { return of(obj).grace != nil }

// SetTerminating marks an object whose deletion has a phase instead of a grace period, and says whether it has.
func SetTerminating(obj scheme.Object) bool {
	mark := of(obj).terminating
	if mark != nil {
		mark(obj)
	}
	return mark != nil
}

// HoldsContent says that what an object holds has to go before it.
func HoldsContent(obj scheme.Object) bool {
	full := of(obj).full
	return full != nil && full(obj)
}
