// Package defaults sets the default values of built-in objects.
//
//	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "nginx"}}}}
//	defaults.Set(pod) // restartPolicy Always, dnsPolicy ClusterFirst, imagePullPolicy Always (no tag means latest), ...
//
// Kubernetes' own defaulting functions set the values. This package also makes other changes that
// kube-apiserver makes when it converts the object to its internal type and back and encodes it as
// protobuf.
package defaults

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"apilet/internal/scheme/internalversion"
)

// Set sets the default values of a built-in object and normalizes it in the same way as
// kube-apiserver. Setting them twice changes nothing.
func Set(obj runtime.Object) {
	internalversion.Default(obj)
	if Normalizes(obj) {
		internalversion.Normalize(obj)
	}
	switch o := obj.(type) {
	case *corev1.Secret:
		fillNulls(o.Data)
	case *corev1.ConfigMap:
		fillNulls(o.BinaryData)
	}
}

// Normalizes reports whether the conversion to the internal type and back can change obj. Examples
// are fields that other fields replace (a Secret's stringData).
func Normalizes(obj runtime.Object) bool {
	switch obj.(type) {
	case *corev1.Node, *corev1.Secret, *appsv1.Deployment, *appsv1.StatefulSet, *appsv1.DaemonSet:
		return true
	}
	return false
}

// fillNulls replaces nil values by empty ones. Nil values in maps cannot be represented in
// protobuf, in which kube-apiserver stores objects.
func fillNulls(data map[string][]byte) {
	for key, value := range data {
		if value == nil {
			data[key] = []byte{}
		}
	}
}
