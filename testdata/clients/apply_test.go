package clients

// This file tests server-side apply with the apply configurations of client-go.

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
)

func as(manager string) metav1.ApplyOptions { return metav1.ApplyOptions{FieldManager: manager} }

func TestApplyOwnsFields(t *testing.T) {
	t.Parallel()
	ctx, c := t.Context(), startEphemeral(t).typed().CoreV1().ConfigMaps(ns)
	with := func(data map[string]string) *applycorev1.ConfigMapApplyConfiguration {
		return applycorev1.ConfigMap("m", ns).WithData(data)
	}
	made, err := c.Apply(ctx, with(map[string]string{"a": "1", "shared": "1"}), as("alice"))
	check(t, "apply to nothing", err)
	same, err := c.Apply(ctx, with(map[string]string{"a": "1", "shared": "1"}), as("alice"))
	check(t, "apply again", err)
	if same.ResourceVersion != made.ResourceVersion {
		t.Error("applying the same wrote something")
	}
	_, err = c.Apply(ctx, with(map[string]string{"b": "1", "shared": "1"}), as("bob"))
	check(t, "apply with a field in common", err)

	_, err = c.Apply(ctx, with(map[string]string{"a": "2"}), as("bob"))
	if got := cause(err); !apierrors.IsConflict(err) || got.Type != metav1.CauseTypeFieldManagerConflict || got.Field != ".data.a" {
		t.Errorf("apply to another's field: %v, %+v; want Conflict at .data.a", err, got)
	}
	forced, err := c.Apply(ctx, with(map[string]string{"a": "2", "b": "1", "shared": "1"}), metav1.ApplyOptions{FieldManager: "bob", Force: true})
	check(t, "apply with force", err)
	if own := must(applycorev1.ExtractConfigMap(forced, "alice")); len(own.Data) != 1 || own.Data["shared"] != "1" {
		t.Errorf("alice owns %v, want shared alone", own.Data)
	}
	if own := must(applycorev1.ExtractConfigMap(forced, "bob")); len(own.Data) != 3 {
		t.Errorf("bob owns %v, want a, b, shared", own.Data)
	}

	given, err := c.Apply(ctx, with(map[string]string{"a": "2"}), as("bob"))
	check(t, "give up", err)
	if len(given.Data) != 2 || given.Data["a"] != "2" || given.Data["shared"] != "1" {
		t.Errorf("after bob gave up b and shared: %v, want a and shared", given.Data)
	}
	given, err = c.Apply(ctx, applycorev1.ConfigMap("m", ns), as("alice"))
	check(t, "give up the last", err)
	if len(given.Data) != 1 || given.Data["a"] != "2" {
		t.Errorf("after alice gave up shared: %v, want a", given.Data)
	}
}

func TestApplyMergesListsByTheirKeys(t *testing.T) {
	t.Parallel()
	ctx, c := t.Context(), startEphemeral(t).typed().AppsV1().Deployments(ns)
	web := func(containers ...*applycorev1.ContainerApplyConfiguration) *applyappsv1.DeploymentApplyConfiguration {
		return applyappsv1.Deployment("web", ns).WithSpec(applyappsv1.DeploymentSpec().
			WithTemplate(applycorev1.PodTemplateSpec().WithSpec(applycorev1.PodSpec().WithContainers(containers...))))
	}
	full := web(applycorev1.Container().WithName("main").WithImage("image:1"))
	full.Spec.WithSelector(applymetav1.LabelSelector().WithMatchLabels(map[string]string{"app": "web"}))
	full.Spec.Template.WithLabels(map[string]string{"app": "web"})
	_, err := c.Apply(ctx, full, as("author"))
	check(t, "apply", err)
	d, err := c.Apply(ctx, web(applycorev1.Container().WithName("side").WithImage("side:1"),
		applycorev1.Container().WithName("main").WithEnv(applycorev1.EnvVar().WithName("E").WithValue("1"))), as("injector"))
	check(t, "apply to a list", err)
	names := func(containers []corev1.Container) (names []string) {
		for _, c := range containers {
			names = append(names, c.Name+"="+c.Image)
		}
		slices.Sort(names)
		return names
	}
	if got, want := names(d.Spec.Template.Spec.Containers), []string{"main=image:1", "side=side:1"}; !slices.Equal(got, want) {
		t.Errorf("containers %v, want %v", got, want)
	}
	d, err = c.ApplyStatus(ctx, applyappsv1.Deployment("web", ns).WithStatus(applyappsv1.DeploymentStatus().WithReplicas(1).
		WithConditions(applyappsv1.DeploymentCondition().WithType("Available").WithStatus(corev1.ConditionTrue))), as("controller"))
	check(t, "apply status", err)
	if d.Status.Replicas != 1 || len(d.Status.Conditions) != 1 || len(d.Spec.Template.Spec.Containers) != 2 {
		t.Errorf("after the status: %+v", d.Status)
	}
	// Clients that do not apply, like kubectl scale or an autoscaler, become the owner of a field
	// by writing it.
	d.Spec.Replicas = new(int32(4))
	_, err = c.Update(ctx, d, metav1.UpdateOptions{FieldManager: "scaler"})
	check(t, "update", err)
	full.Spec.WithReplicas(2)
	if _, err = c.Apply(ctx, full, as("author")); !apierrors.IsConflict(err) || cause(err).Field != ".spec.replicas" {
		t.Errorf("apply to an updated field: %v, want Conflict at .spec.replicas", err)
	}
	full.Spec.Replicas = nil
	d, err = c.Apply(ctx, web(), as("injector"))
	check(t, "give up a list item", err)
	if got := names(d.Spec.Template.Spec.Containers); !slices.Equal(got, []string{"main=image:1"}) || len(d.Spec.Template.Spec.Containers[0].Env) != 0 {
		t.Errorf("containers %v, env %v", got, d.Spec.Template.Spec.Containers[0].Env)
	}
}
