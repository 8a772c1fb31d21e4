package strategy

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"apilet/internal/kinds/defaults"
)

// TestDisabledFieldsAreDroppedByWrites checks the field of a disabled feature. A create drops it. An update
// drops it unless the old object has it.
func TestDisabledFieldsAreDroppedByWrites(t *testing.T) {
	t.Parallel()
	signal := corev1.SIGTERM
	with := func() *appsv1.Deployment {
		d := &appsv1.Deployment{}
		d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "a", Lifecycle: &corev1.Lifecycle{StopSignal: &signal}},
			{Name: "b", Lifecycle: &corev1.Lifecycle{StopSignal: &signal, PreStop: &corev1.LifecycleHandler{}}}}
		defaults.Set(d)
		return d
	}
	has := func(d *appsv1.Deployment) bool {
		lifecycle := d.Spec.Template.Spec.Containers[1].Lifecycle
		return lifecycle != nil && lifecycle.StopSignal != nil
	}
	if !has(with()) {
		t.Error("defaults have dropped it")
	}
	created := with()
	if PrepareForCreate(t.Context(), created); has(created) {
		t.Error("a create has kept it")
	}
	if c := created.Spec.Template.Spec.Containers; c[0].Lifecycle != nil || c[1].Lifecycle == nil {
		t.Errorf("left are %v and %v", c[0].Lifecycle, c[1].Lifecycle)
	}
	updated := with()
	if PrepareForUpdate(t.Context(), "", updated, with()); !has(updated) {
		t.Error("an update has dropped the field of the old object")
	}
	if PrepareForUpdate(t.Context(), "", updated, created); has(updated) {
		t.Error("an update has added it")
	}
}
