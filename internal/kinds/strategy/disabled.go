package strategy

// This file forgets the fields of pods whose feature is off in the version that these rules are of, when they are written, as kube-apiserver does. Where the
// old object has one, somebody with the feature has let it in (a kube-apiserver on the same etcd): then the object keeps its own, and may change them.

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// dropDisabled forgets lifecycle.stopSignal unless old has one. old is nil for a create.
func dropDisabled(obj, old runtime.Object) {
	spec := podSpecOf(obj)
	if spec == nil || old != nil && hasStopSignal(podSpecOf(old)) {
		return
	}
	eachLifecycle(spec, func(at **corev1.Lifecycle) {
		if (*at).StopSignal == nil {
			return
		}
		if (*at).StopSignal = nil; **at == (corev1.Lifecycle{}) {
			*at = nil
		}
	})
}

func hasStopSignal(spec *corev1.PodSpec) (has bool) {
	if spec != nil {
		eachLifecycle(spec, func(at **corev1.Lifecycle) { has = has || (*at).StopSignal != nil })
	}
	return has
}

// eachLifecycle visits those that containers have.
func eachLifecycle(spec *corev1.PodSpec, visit func(at **corev1.Lifecycle)) {
	all := func(containers []corev1.Container) {
		for i := range containers {
			if at := &containers[i].Lifecycle; *at != nil {
				visit(at)
			}
		}
	}
	all(spec.InitContainers)
	all(spec.Containers)
	for i := range spec.EphemeralContainers {
		if at := &spec.EphemeralContainers[i].Lifecycle; *at != nil {
			visit(at)
		}
	}
}

// podSpecOf is that of a pod, or of what makes pods; nil for all else.
func podSpecOf(obj runtime.Object) *corev1.PodSpec {
	if pod, ok := obj.(*corev1.Pod); ok {
		return &pod.Spec
	}
	if template := PodTemplateOf(obj); template != nil {
		return &template.Spec
	}
	return nil
}

// PodTemplateOf finds the pods' template in what makes pods; nil when there is none.
func PodTemplateOf(obj runtime.Object) *corev1.PodTemplateSpec {
	switch o := obj.(type) {
	case *corev1.PodTemplate:
		return &o.Template
	case *corev1.ReplicationController:
		return o.Spec.Template
	case *appsv1.ReplicaSet:
		return &o.Spec.Template
	case *appsv1.Deployment:
		return &o.Spec.Template
	case *appsv1.DaemonSet:
		return &o.Spec.Template
	case *appsv1.StatefulSet:
		return &o.Spec.Template
	case *batchv1.Job:
		return &o.Spec.Template
	case *batchv1.CronJob:
		return &o.Spec.JobTemplate.Spec.Template
	}
	return nil
}
