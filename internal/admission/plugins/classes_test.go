package plugins

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/admission"
	"apilet/internal/kinds/strategy"
	"apilet/internal/scheme"
)

// TestWhatAnotherServerMadeIsThere: classes and nodes that this server has not heard of yet are looked for in the log before a write is refused, or
// goes on without them.
func TestWhatAnotherServerMadeIsThere(t *testing.T) {
	t.Parallel()
	log := newLateLog(t)
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	podOf := func(spec corev1.PodSpec) *admission.Attributes {
		return &admission.Attributes{Resource: &scheme.Resource{Plural: "pods", Version: "v1", Namespaced: true}, Operation: admission.OpCreate,
			Object: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"}, Spec: spec}}
	}
	specOf := func(a *admission.Attributes) *corev1.PodSpec { return &a.Object.(*corev1.Pod).Spec }

	urgent := podOf(corev1.PodSpec{PriorityClassName: "urgent"})
	log.write(strategy.PriorityClasses+"/urgent", &schedulingv1.PriorityClass{ObjectMeta: named("urgent"), Value: 7})
	if err := (classes{log.st}).admitPriority(t.Context(), urgent); err != nil || specOf(urgent).Priority == nil || *specOf(urgent).Priority != 7 {
		t.Errorf("priority: %v, %v", specOf(urgent).Priority, err)
	}
	boxed := podOf(corev1.PodSpec{RuntimeClassName: new("box")})
	log.write(runtimeClasses+"/box", &nodev1.RuntimeClass{ObjectMeta: named("box"), Handler: "box",
		Overhead: &nodev1.Overhead{PodFixed: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}})
	if err := (classes{log.st}).admitRuntime(t.Context(), boxed); err != nil || specOf(boxed).Overhead.Cpu().Value() != 1 {
		t.Errorf("runtime: %v, %v", specOf(boxed).Overhead, err)
	}
	grows := true
	log.write(storageClasses+"/fast", &storagev1.StorageClass{ObjectMeta: named("fast"), AllowVolumeExpansion: &grows})
	claim := func(size string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: named("c"), Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: new("fast"),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}}},
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}}
	}
	resize := &admission.Attributes{Resource: &scheme.Resource{Plural: "persistentvolumeclaims", Version: "v1", Namespaced: true},
		Operation: admission.OpUpdate, Object: claim("2Gi"), Old: claim("1Gi")}
	if err := (classes{log.st}).validateResize(t.Context(), resize); err != nil {
		t.Errorf("resize: %v", err)
	}
	placed := podOf(corev1.PodSpec{NodeName: "n1"})
	log.write("//nodes//n1", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{corev1.LabelTopologyZone: "z"}}})
	if err := (nodes{log.st}).labelPod(t.Context(), placed); err != nil || placed.Object.GetLabels()[corev1.LabelTopologyZone] != "z" {
		t.Errorf("topology: %v, %v", placed.Object.GetLabels(), err)
	}
	missing := podOf(corev1.PodSpec{PriorityClassName: "none"})
	if err := (classes{log.st}).admitPriority(t.Context(), missing); err == nil {
		t.Error("a class that nobody has made is there")
	}
}
