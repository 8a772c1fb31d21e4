// Package strategy holds what single built-in types do differently from all others: what a new object's status is, which fields an update
// may not touch, who may be created by a PUT, which fields the rarer subresources write, whose deletion waits.
//
//	strategy.PrepareForCreate(obj)              // a Job's selector, a Pod's QoS class, the initial status
//	strategy.PrepareForUpdate(obj, old)         // status stays, and what else is not the client's
//	err := strategy.ValidateDelete(res, "kube-system")
//
// These are the RESTStrategies of Kubernetes (pkg/registry/GROUP/RESOURCE/strategy.go, and k8s.io/apiserver/pkg/registry/rest for what they
// have in common), as functions that switch over the Go type. The walk that every write takes is in package registry, which names no type:
// it asks here, in this order: defaults, prepare (prepare.go), validate (package validation).
//
// Invariants: an object comes with its defaults (package defaults) and leaves with what a validator may rely on; old is never changed;
// nothing is read but the objects, and of the outside only the time.
package strategy

// This file holds what single built-in types do differently from all others: who may be created by a PUT, which fields the rarer
// subresources write, whose deletion waits. The walk that every write takes is in package registry; it asks here where the types part ways.

import (
	"errors"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"apilet/internal/request"
	"apilet/internal/scheme"
)

// ---- Tables ----

// upsertable types are created by a PUT to a name that does not exist; the others answer 404.
var upsertable = map[string]bool{
	"/events": true, "/endpoints": true, "/limitranges": true, "/services": true, "coordination.k8s.io/leases": true,
	"node.k8s.io/runtimeclasses": true, "rbac.authorization.k8s.io/roles": true, "rbac.authorization.k8s.io/rolebindings": true,
	"rbac.authorization.k8s.io/clusterroles": true, "rbac.authorization.k8s.io/clusterrolebindings": true,
}

// AllowCreateOnUpdate says that a PUT or an apply may create objects of a type.
func AllowCreateOnUpdate(res *scheme.Resource) bool {
	return upsertable[res.StorageGroup+"/"+res.Plural]
}

// conditionalOnly types refuse an update that names no resourceVersion; so does every custom resource.
var conditionalOnly = map[string]bool{
	"node.k8s.io/runtimeclasses": true, "policy/poddisruptionbudgets": true, "storage.k8s.io/csidrivers": true,
	"storage.k8s.io/csistoragecapacities": true, "storage.k8s.io/volumeattachments": true, "storage.k8s.io/csinodes": true,
	"coordination.k8s.io/leases": true, "coordination.k8s.io/leasecandidates": true,
	"apiextensions.k8s.io/customresourcedefinitions":                 true,
	"apiregistration.k8s.io/apiservices":                             true,
	"admissionregistration.k8s.io/validatingadmissionpolicies":       true,
	"admissionregistration.k8s.io/validatingadmissionpolicybindings": true,
	"admissionregistration.k8s.io/mutatingadmissionpolicies":         true,
	"admissionregistration.k8s.io/mutatingadmissionpolicybindings":   true,
	"admissionregistration.k8s.io/validatingwebhookconfigurations":   true,
	"admissionregistration.k8s.io/mutatingwebhookconfigurations":     true,
}

// AllowUnconditionalUpdate says that an update may leave out the resourceVersion that it means.
func AllowUnconditionalUpdate(res *scheme.Resource) bool {
	return res.GoType != nil && !conditionalOnly[res.StorageGroup+"/"+res.Plural]
}

// returningDeleted types answer a DELETE with the object that is gone; the others with a Status.
var returningDeleted = map[string]bool{
	"/pods": true, "/services": true, "/serviceaccounts": true, "/persistentvolumes": true, "/persistentvolumeclaims": true,
	"/podtemplates": true, "/resourcequotas": true, "/namespaces": true, "storage.k8s.io/csidrivers": true,
	"storage.k8s.io/storageclasses": true, "storage.k8s.io/volumeattachments": true, "storage.k8s.io/csinodes": true,
	"storage.k8s.io/volumeattributesclasses": true, "resource.k8s.io/resourceclaims": true, "resource.k8s.io/deviceclasses": true,
	"resource.k8s.io/resourceclaimtemplates": true, "resource.k8s.io/resourceslices": true,
}

// ReturnsDeleted says that a DELETE is answered with the object that is gone, and not with a Status.
func ReturnsDeleted(res *scheme.Resource) bool {
	return returningDeleted[res.StorageGroup+"/"+res.Plural]
}

// ---- Which fields a request may write ----

// PrepareForSubresource takes from obj the fields that an update of a rarer subresource writes, and the others from old. What an update of the object
// or of its status may write is in prepare.go.
func PrepareForSubresource(sub string, obj, old scheme.Object) scheme.Object {
	switch sub {
	case "ephemeralcontainers":
		pod, sent := old.DeepCopyObject().(*corev1.Pod), obj.(*corev1.Pod)
		pod.ResourceVersion, pod.Spec.EphemeralContainers = sent.ResourceVersion, sent.Spec.EphemeralContainers
		return pod
	case "resize":
		return restrictResize(obj.(*corev1.Pod), old.DeepCopyObject().(*corev1.Pod))
	case "approval":
		csr, sent := old.DeepCopyObject().(*certificatesv1.CertificateSigningRequest), obj.(*certificatesv1.CertificateSigningRequest)
		stampConditions(sent, csr)
		csr.ResourceVersion, csr.Status.Conditions = sent.ResourceVersion, sent.Status.Conditions
		return csr
	case "finalize":
		ns, sent := old.DeepCopyObject().(*corev1.Namespace), obj.(*corev1.Namespace)
		ns.ResourceVersion, ns.Spec.Finalizers = sent.ResourceVersion, sent.Spec.Finalizers
		return ns
	}
	return obj
}

// NameRequester writes into a request for a certificate who makes it, whatever the request says.
func NameRequester(obj scheme.Object, by *request.User) {
	csr, ok := obj.(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return
	}
	csr.Spec.Username, csr.Spec.UID, csr.Spec.Groups, csr.Spec.Extra = by.Name, by.UID, by.Groups, nil
	for key, values := range by.Extra {
		if csr.Spec.Extra == nil {
			csr.Spec.Extra = map[string]certificatesv1.ExtraValue{}
		}
		csr.Spec.Extra[key] = values
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

// restrictResize lets pods/resize change the resources of containers. Containers that do not match are left for validation to refuse.
func restrictResize(sent, pod *corev1.Pod) scheme.Object {
	pod.ResourceVersion = sent.ResourceVersion
	pod.Spec.Containers = resized(sent.Spec.Containers, pod.Spec.Containers)
	pod.Spec.InitContainers = resized(sent.Spec.InitContainers, pod.Spec.InitContainers)
	return pod
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
	why := ""
	switch res.Base + name {
	case "//namespaces/default", "//namespaces/kube-system", "//namespaces/kube-public":
		why = "this namespace may not be deleted"
	case PriorityClasses + SystemNodeCritical, PriorityClasses + SystemClusterCritical:
		why = "this is a system priority class and cannot be deleted"
	default:
		return nil
	}
	return apierrors.NewForbidden(res.GroupResource(), name, errors.New(why))
}

// GracePeriod is how many seconds a deletion waits. Only a Pod on a node does: its kubelet is to stop it and delete it again, with 0.
func GracePeriod(obj scheme.Object, options *metav1.DeleteOptions) int64 {
	pod, ok := obj.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
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
func Graceful(obj scheme.Object) bool {
	_, ok := obj.(*corev1.Pod)
	return ok
}

// OrphansByDefault types keep their dependents when a DELETE does not say what shall become of them.
func OrphansByDefault(res *scheme.Resource) bool {
	return res.StorageGroup == "batch" && res.Plural == "jobs" || res.StorageGroup == "" && res.Plural == "replicationcontrollers"
}

// SetTerminating marks a namespace, whose deletion has a phase instead of a grace period.
func SetTerminating(obj scheme.Object) bool {
	ns, ok := obj.(*corev1.Namespace)
	if ok {
		ns.Status.Phase = corev1.NamespaceTerminating
	}
	return ok
}

// NamespaceFinalizers are those of a namespace's spec, which say what has to be emptied.
func NamespaceFinalizers(obj scheme.Object) (names []string) {
	for _, name := range obj.(*corev1.Namespace).Spec.Finalizers {
		names = append(names, string(name))
	}
	return names
}

// HoldsContent says that a namespace has not been emptied: spec.finalizers is removed when it is.
func HoldsContent(obj scheme.Object) bool {
	ns, ok := obj.(*corev1.Namespace)
	return ok && len(ns.Spec.Finalizers) > 0
}

const PriorityClasses = "/scheduling.k8s.io/priorityclasses/" // a class's key is its prefix, an empty namespace and the name

const SystemNodeCritical = "system-node-critical"

const SystemClusterCritical = "system-cluster-critical"
