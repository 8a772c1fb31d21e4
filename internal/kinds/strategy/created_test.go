package strategy

import (
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
)

// A new Pod keeps the QOS class that it names, although the rest of its status is dropped.
func TestNewPodNamesItsQOSClass(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{Status: corev1.PodStatus{QOSClass: corev1.PodQOSGuaranteed, Message: "m"}}
	PrepareForCreate(t.Context(), pod)
	if pod.Status.QOSClass != corev1.PodQOSGuaranteed || pod.Status.Message != "" {
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
