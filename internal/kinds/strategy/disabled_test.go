package strategy

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"apilet/internal/kinds/defaults"
)

// TestWhatIsOffIsForgottenByWritesAlone: reading an object (which fills in defaults) leaves what a server with the feature has stored, a create forgets it,
// and an update does unless the old object has it.
func TestWhatIsOffIsForgottenByWritesAlone(t *testing.T) {
	t.Parallel()
	signal := corev1.SIGTERM
	with := func() *appsv1.Deployment {
		d := &appsv1.Deployment{}
		d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "a", Lifecycle: &corev1.Lifecycle{StopSignal: &signal}},
			{Name: "b", Lifecycle: &corev1.Lifecycle{StopSignal: &signal, PreStop: &corev1.LifecycleHandler{}}}}
		defaults.Set(d)
		return d
	}
	has := func(d *appsv1.Deployment) bool { return hasStopSignal(&d.Spec.Template.Spec) }
	if !has(with()) {
		t.Error("defaults have forgotten it")
	}
	created := with()
	if PrepareForCreate(created); has(created) {
		t.Error("a create has kept it")
	}
	if c := created.Spec.Template.Spec.Containers; c[0].Lifecycle != nil || c[1].Lifecycle == nil {
		t.Errorf("left are %v and %v", c[0].Lifecycle, c[1].Lifecycle)
	}
	updated := with()
	if PrepareForUpdate(updated, with()); !has(updated) {
		t.Error("an update has forgotten what was there")
	}
	if PrepareForUpdate(updated, created); has(updated) {
		t.Error("an update has brought it")
	}
}
