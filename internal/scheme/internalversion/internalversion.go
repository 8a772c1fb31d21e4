// Package internalversion converts built-in objects between the versions that are served (k8s.io/api)
// and the internal types of k8s.io/kubernetes, on which Kubernetes' rules are written.
//
//	pod := internalversion.From(&corev1.Pod{...}).(*core.Pod) // shares memory with its argument
//
// It uses legacyscheme.Scheme, as kube-apiserver does.
package internalversion

import (
	"net/url"
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	admissionregistrationv1 "k8s.io/kubernetes/pkg/apis/admissionregistration/v1"
	admissionregistrationv1alpha1 "k8s.io/kubernetes/pkg/apis/admissionregistration/v1alpha1"
	admissionregistrationv1beta1 "k8s.io/kubernetes/pkg/apis/admissionregistration/v1beta1"
	"k8s.io/kubernetes/pkg/apis/apps"
	appsv1 "k8s.io/kubernetes/pkg/apis/apps/v1"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	autoscalingv1 "k8s.io/kubernetes/pkg/apis/autoscaling/v1"
	autoscalingv2 "k8s.io/kubernetes/pkg/apis/autoscaling/v2"
	"k8s.io/kubernetes/pkg/apis/batch"
	batchv1 "k8s.io/kubernetes/pkg/apis/batch/v1"
	batchv1beta1 "k8s.io/kubernetes/pkg/apis/batch/v1beta1"
	"k8s.io/kubernetes/pkg/apis/certificates"
	certificatesv1 "k8s.io/kubernetes/pkg/apis/certificates/v1"
	certificatesv1beta1 "k8s.io/kubernetes/pkg/apis/certificates/v1beta1"
	"k8s.io/kubernetes/pkg/apis/coordination"
	coordinationv1 "k8s.io/kubernetes/pkg/apis/coordination/v1"
	"k8s.io/kubernetes/pkg/apis/core"
	corev1 "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/apis/discovery"
	discoveryv1 "k8s.io/kubernetes/pkg/apis/discovery/v1"
	"k8s.io/kubernetes/pkg/apis/events"
	eventsv1 "k8s.io/kubernetes/pkg/apis/events/v1"
	"k8s.io/kubernetes/pkg/apis/flowcontrol"
	flowcontrolv1 "k8s.io/kubernetes/pkg/apis/flowcontrol/v1"
	flowcontrolv1beta3 "k8s.io/kubernetes/pkg/apis/flowcontrol/v1beta3"
	"k8s.io/kubernetes/pkg/apis/networking"
	networkingv1 "k8s.io/kubernetes/pkg/apis/networking/v1"
	"k8s.io/kubernetes/pkg/apis/node"
	nodev1 "k8s.io/kubernetes/pkg/apis/node/v1"
	"k8s.io/kubernetes/pkg/apis/policy"
	policyv1 "k8s.io/kubernetes/pkg/apis/policy/v1"
	policyv1beta1 "k8s.io/kubernetes/pkg/apis/policy/v1beta1"
	"k8s.io/kubernetes/pkg/apis/rbac"
	rbacv1 "k8s.io/kubernetes/pkg/apis/rbac/v1"
	"k8s.io/kubernetes/pkg/apis/resource"
	resourcev1 "k8s.io/kubernetes/pkg/apis/resource/v1"
	resourcev1alpha3 "k8s.io/kubernetes/pkg/apis/resource/v1alpha3"
	resourcev1beta2 "k8s.io/kubernetes/pkg/apis/resource/v1beta2"
	"k8s.io/kubernetes/pkg/apis/scheduling"
	schedulingv1 "k8s.io/kubernetes/pkg/apis/scheduling/v1"
	"k8s.io/kubernetes/pkg/apis/storage"
	storagev1 "k8s.io/kubernetes/pkg/apis/storage/v1"
	"k8s.io/kubernetes/pkg/apis/storagemigration"
	storagemigrationv1 "k8s.io/kubernetes/pkg/apis/storagemigration/v1"
	storagemigrationv1beta1 "k8s.io/kubernetes/pkg/apis/storagemigration/v1beta1"
	"k8s.io/kubernetes/pkg/capabilities"
)

// registrations add the internal types and the served versions of each group. The install packages of
// Kubernetes would also link the versions that are not served, which are 5 MB of the binary.
var registrations = runtime.NewSchemeBuilder(
	admissionregistration.AddToScheme, admissionregistrationv1.AddToScheme, admissionregistrationv1alpha1.AddToScheme, admissionregistrationv1beta1.AddToScheme,
	apps.AddToScheme, appsv1.AddToScheme,
	autoscaling.AddToScheme, autoscalingv1.AddToScheme, autoscalingv2.AddToScheme,
	batch.AddToScheme, batchv1.AddToScheme, batchv1beta1.AddToScheme,
	certificates.AddToScheme, certificatesv1.AddToScheme, certificatesv1beta1.AddToScheme,
	coordination.AddToScheme, coordinationv1.AddToScheme,
	core.AddToScheme, corev1.AddToScheme,
	discovery.AddToScheme, discoveryv1.AddToScheme,
	events.AddToScheme, eventsv1.AddToScheme,
	flowcontrol.AddToScheme, flowcontrolv1.AddToScheme, flowcontrolv1beta3.AddToScheme,
	networking.AddToScheme, networkingv1.AddToScheme,
	node.AddToScheme, nodev1.AddToScheme,
	policy.AddToScheme, policyv1.AddToScheme, policyv1beta1.AddToScheme,
	rbac.AddToScheme, rbacv1.AddToScheme,
	resource.AddToScheme, resourcev1.AddToScheme, resourcev1alpha3.AddToScheme, resourcev1beta2.AddToScheme,
	scheduling.AddToScheme, schedulingv1.AddToScheme,
	storage.AddToScheme, storagev1.AddToScheme,
	storagemigration.AddToScheme, storagemigrationv1.AddToScheme, storagemigrationv1beta1.AddToScheme,
	apiregistration.AddToScheme, apiregistrationv1.AddToScheme,
)

// From converts obj to the internal type of its group. Both share memory. If the type is not
// registered, obj is returned unchanged.
func From(obj runtime.Object) runtime.Object {
	internal, err := scheme().UnsafeConvertToVersion(obj, runtime.InternalGroupVersioner)
	switch {
	case runtime.IsNotRegisteredError(err):
		return obj
	case err != nil:
		panic(err) // the conversion of a decoded object cannot fail
	}
	return internal
}

// To converts an object to the type of the version gv. Both share memory. If the object is
// already of that version, it is returned unchanged.
func To(gv schema.GroupVersion, obj runtime.Object) runtime.Object {
	kinds, _, _ := scheme().ObjectKinds(obj)
	switch {
	case len(kinds) == 0 || kinds[0].GroupVersion() == gv:
		return obj
	case kinds[0].Version != runtime.APIVersionInternal:
		obj = From(obj)
	}
	served, err := scheme().UnsafeConvertToVersion(obj, gv)
	if err != nil {
		panic(err) // see From
	}
	return served
}

// Into converts an internal object to the type of obj and overwrites obj with it, except for its kind
// and apiVersion. Both share memory afterwards.
func Into(obj, internal runtime.Object) {
	if obj == internal {
		return
	}
	kind := obj.GetObjectKind().GroupVersionKind()
	// if the internal type does not have a field, the conversion does not set it
	reflect.ValueOf(obj).Elem().SetZero()
	if err := scheme().Convert(internal, obj, nil); err != nil {
		panic(err) // see From
	}
	obj.GetObjectKind().SetGroupVersionKind(kind)
}

// Normalize converts obj to the internal type and back. kube-apiserver does the same when it
// decodes an object. If the conversion fails, Normalize does not change obj.
func Normalize(obj runtime.Object) {
	if internal, err := scheme().UnsafeConvertToVersion(obj, runtime.InternalGroupVersioner); err == nil {
		Into(obj, internal)
	}
}

// PodSpecOf returns the spec of an internal Pod, or the spec in the template of a workload. It
// returns nil for other types.
func PodSpecOf(obj runtime.Object) *core.PodSpec {
	switch o := obj.(type) {
	case *core.Pod:
		return &o.Spec
	case *core.PodTemplate:
		return &o.Template.Spec
	case *core.ReplicationController:
		if o.Spec.Template != nil {
			return &o.Spec.Template.Spec
		}
	case *apps.DaemonSet:
		return &o.Spec.Template.Spec
	case *apps.Deployment:
		return &o.Spec.Template.Spec
	case *apps.ReplicaSet:
		return &o.Spec.Template.Spec
	case *apps.StatefulSet:
		return &o.Spec.Template.Spec
	case *batch.Job:
		return &o.Spec.Template.Spec
	case *batch.CronJob:
		return &o.Spec.JobTemplate.Spec.Template.Spec
	}
	return nil
}

// Default sets the default values of obj.
func Default(obj runtime.Object) { scheme().Default(obj) }

// Register registers the types if they are not registered yet. Otherwise the types are registered
// when another function is called for the first time, which takes milliseconds. If the server
// calls Register in the background, the first request does not have to wait.
func Register() { scheme() }

// scheme returns legacyscheme.Scheme. The first call registers the types. It also allows
// privileged Pods in the process, which is the same as --allow-privileged of kube-apiserver.
var scheme = sync.OnceValue(func() *runtime.Scheme {
	if err := registrations.AddToScheme(legacyscheme.Scheme); err != nil {
		panic(err) // two types of one name
	}
	capabilities.Setup(true, 0)
	return legacyscheme.Scheme
})

// DecodeParameters decodes query parameters into options of the core group and sets the default
// values.
func DecodeParameters(query url.Values, options runtime.Object) error {
	scheme()
	return legacyscheme.ParameterCodec.DecodeParameters(query, corev1.SchemeGroupVersion, options)
}
