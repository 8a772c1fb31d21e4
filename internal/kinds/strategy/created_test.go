package strategy

import (
	"fmt"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
)

// The status of a new Pod is dropped, and its QOS class is computed.
func TestNewPodHasItsQOSClass(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{Status: corev1.PodStatus{QOSClass: corev1.PodQOSGuaranteed, Message: "m"}}
	PrepareForCreate(t.Context(), pod)
	if pod.Status.QOSClass != corev1.PodQOSBestEffort || pod.Status.Message != "" {
		t.Errorf("got %+v", pod.Status)
	}
}

// The generation of webhooks counts the change from no list to an empty one.
func TestEmptyWebhooksAreAChange(t *testing.T) {
	t.Parallel()
	old := &admissionv1.ValidatingWebhookConfiguration{}
	old.Generation = 1
	now := old.DeepCopy()
	now.Webhooks = []admissionv1.ValidatingWebhook{}
	PrepareForUpdate(t.Context(), "", now, old)
	same := old.DeepCopy()
	PrepareForUpdate(t.Context(), "", same, old)
	if now.Generation != 2 || same.Generation != 1 {
		t.Errorf("generations %d and %d, want 2 and 1", now.Generation, same.Generation)
	}
}

// Kubernetes' sums over init containers take time that grows with the square of their number.
func TestResourcesOfManyInitContainersAreNotAdded(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	for count, want := range map[int]int{100: 101, 20_000: 0} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Resources: &corev1.ResourceRequirements{
			Limits: corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse("1")}}}}
		for i := range count {
			name := corev1.ResourceName(fmt.Sprintf("hugepages-%dKi", i))
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, corev1.Container{RestartPolicy: &always,
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{name: apiresource.MustParse("1Ki")}}})
		}
		PrepareForCreate(t.Context(), pod)
		if got := len(pod.Spec.Resources.Requests); got != want {
			t.Errorf("%d init containers: %d requests of the Pod, want %d", count, got, want)
		}
	}
}
