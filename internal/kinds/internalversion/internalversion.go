// Package internalversion converts built-in objects between the versions that are served (k8s.io/api)
// and the internal types of k8s.io/kubernetes, on which Kubernetes' rules are written.
//
//	pod := internalversion.From(&corev1.Pod{...}).(*core.Pod) // shares memory with its argument
//
// The scheme is legacyscheme.Scheme, which kube-apiserver uses. The install packages that this package
// imports register the types, their conversions and their defaults there.
package internalversion

import (
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/install"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/authentication/install"
	_ "k8s.io/kubernetes/pkg/apis/authorization/install"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	_ "k8s.io/kubernetes/pkg/apis/certificates/install"
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/discovery/install"
	_ "k8s.io/kubernetes/pkg/apis/events/install"
	_ "k8s.io/kubernetes/pkg/apis/flowcontrol/install"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	_ "k8s.io/kubernetes/pkg/apis/node/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install"
	_ "k8s.io/kubernetes/pkg/apis/storage/install"
	_ "k8s.io/kubernetes/pkg/apis/storagemigration/install"
	"k8s.io/kubernetes/pkg/capabilities"
)

// From converts obj to the internal type of its group. Both share memory. An object whose type has no
// internal type is returned as it is.
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

// To converts an object to the type of the version gv. Both share memory. An object that is of that
// version is returned as it is.
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
	if err := scheme().Convert(internal, obj, nil); err != nil {
		panic(err) // see From
	}
	obj.GetObjectKind().SetGroupVersionKind(kind)
}

// Default sets the default values of obj.
func Default(obj runtime.Object) { scheme().Default(obj) }

// scheme returns legacyscheme.Scheme. The first call also registers the types of kube-aggregator and
// allows privileged Pods in the process, as kube-apiserver's --allow-privileged does.
var scheme = sync.OnceValue(func() *runtime.Scheme {
	apiregistration.Install(legacyscheme.Scheme)
	capabilities.Setup(true, 0)
	return legacyscheme.Scheme
})
