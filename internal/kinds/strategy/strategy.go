package strategy

// This file answers the walk's questions with what a type's row says, or what holds for all types without a word of their own: who may be
// created by a PUT, which fields the rarer subresources write, whose deletion waits.

import (
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
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

// ---- Which fields a request may write ----

// PrepareForSubresource takes from obj the fields that an update of a rarer subresource writes, and the others from old. What an update
// of the object or of its status may write is in prepare.go.
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

func addEphemeralContainers(sent, pod *corev1.Pod) {
	pod.ResourceVersion, pod.Spec.EphemeralContainers = sent.ResourceVersion, sent.Spec.EphemeralContainers
}

// finalize takes what metadata an update may change, too.
func finalize(sent, ns *corev1.Namespace) {
	ns.ObjectMeta, ns.Spec.Finalizers = sent.ObjectMeta, sent.Spec.Finalizers
}

// resize lets pods/resize change the resources of containers. Containers that do not match are left for validation to refuse.
func resize(sent, pod *corev1.Pod) {
	pod.ResourceVersion = sent.ResourceVersion
	pod.Spec.Containers = resized(sent.Spec.Containers, pod.Spec.Containers)
	pod.Spec.InitContainers = resized(sent.Spec.InitContainers, pod.Spec.InitContainers)
}

func resized(sent, containers []corev1.Container) []corev1.Container {
	sameName := func(a, b corev1.Container) bool { return a.Name == b.Name }
	if !slices.EqualFunc(sent, containers, sameName) {
		return sent
	}
	for i := range containers {
		containers[i].Resources, containers[i].ResizePolicy = sent[i].Resources, sent[i].ResizePolicy
	}
	return containers
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

// podGrace: only a Pod on a node waits: its kubelet is to stop it and delete it again, with 0.
func podGrace(obj runtime.Object, options *metav1.DeleteOptions) int64 {
	pod := obj.(*corev1.Pod)
	if pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return 0
	}
	grace := int64(0)
	switch {
	case options.GracePeriodSeconds != nil:
		grace = *options.GracePeriodSeconds
	case pod.DeletionGracePeriodSeconds != nil:
		grace = *pod.DeletionGracePeriodSeconds
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		grace = *pod.Spec.TerminationGracePeriodSeconds
	}
	if grace < 0 {
		return 1
	}
	return grace
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

func terminateNamespace(ns *corev1.Namespace) { ns.Status.Phase = corev1.NamespaceTerminating }

// NamespaceFinalizers are those of a namespace's spec, which say what has to be emptied.
func NamespaceFinalizers(obj scheme.Object) (names []string) {
	for _, name := range obj.(*corev1.Namespace).Spec.Finalizers {
		names = append(names, string(name))
	}
	return names
}

// HoldsContent says that what an object holds has to go before it.
func HoldsContent(obj scheme.Object) bool {
	full := of(obj).full
	return full != nil && full(obj)
}

// namespaceFull: spec.finalizers is removed when a namespace has been emptied.
func namespaceFull(obj runtime.Object) bool { return len(obj.(*corev1.Namespace).Spec.Finalizers) > 0 }

// PriorityClasses is what the keys of PriorityClasses start with; the name follows.
const PriorityClasses = "/scheduling.k8s.io/priorityclasses/"

// The PriorityClasses that every cluster has.
const (
	SystemNodeCritical    = "system-node-critical"
	SystemClusterCritical = "system-cluster-critical"
)
