package clients

// This file tests all ways of controller-runtime's client to write typed and unstructured objects.

import (
	"maps"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

func TestControllerRuntimeClientWrites(t *testing.T) {
	t.Parallel()
	c := must(client.New(startEphemeral(t).config(""), client.Options{FieldOwner: "tester", FieldValidation: "Strict"}))
	t.Run("every patch", func(t *testing.T) { everyPatch(t, c) })
	t.Run("apply", func(t *testing.T) { applyAll(t, c) })
	t.Run("status and scale", func(t *testing.T) { statusAndScale(t, c) })
	t.Run("unstructured", func(t *testing.T) { writeUnstructured(t, c) })
	t.Run("delete all of", func(t *testing.T) { deleteByLabel(t, c) })
	t.Run("token", func(t *testing.T) { requestToken(t, c) })
}

func everyPatch(t *testing.T, c client.Client) {
	ctx, m := t.Context(), configMap("patched")
	check(t, "create", c.Create(ctx, m))
	change := func(what string, patch func(before *corev1.ConfigMap) client.Patch) {
		before := m.DeepCopy()
		m.Data[what] = "x"
		check(t, what, c.Patch(ctx, m, patch(before)))
	}
	change("merge", func(before *corev1.ConfigMap) client.Patch { return client.MergeFrom(before) })
	change("strategic", func(before *corev1.ConfigMap) client.Patch { return client.StrategicMergeFrom(before) })
	change("locked", func(before *corev1.ConfigMap) client.Patch {
		return client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	})
	raw := client.RawPatch(types.JSONPatchType, []byte(`[{"op":"add","path":"/data/json","value":"x"}]`))
	check(t, "json", c.Patch(ctx, m, raw))
	if want := map[string]string{"k": "v", "merge": "x", "strategic": "x", "locked": "x", "json": "x"}; !maps.Equal(m.Data, want) {
		t.Errorf("data %v, want %v", m.Data, want)
	}
	stale := m.DeepCopy()
	stale.ResourceVersion = "1"
	patch := client.MergeFromWithOptions(stale.DeepCopy(), client.MergeFromWithOptimisticLock{})
	stale.Data["late"] = "x"
	if err := c.Patch(ctx, stale, patch); !apierrors.IsConflict(err) {
		t.Errorf("patch of the past: %v, want Conflict", err)
	}
}

// applyAll uses Apply, and the older form by Patch, on one object.
func applyAll(t *testing.T, c client.Client) {
	ctx := t.Context()
	check(t, "apply", c.Apply(ctx, applycorev1.ConfigMap("applied", ns).WithData(map[string]string{"a": "1"})))
	m := &corev1.ConfigMap{ObjectMeta: named("applied"), Data: map[string]string{"a": "2"}}
	gvk := must(apiutil.GVKForObject(m, c.Scheme()))
	m.SetGroupVersionKind(gvk)
	if err := c.Patch(ctx, m.DeepCopy(), client.Apply, client.FieldOwner("other")); !apierrors.IsConflict(err) { //nolint:staticcheck
		t.Errorf("apply to another's field: %v, want Conflict", err)
	}
	check(t, "apply with force", c.Patch(ctx, m, client.Apply, client.FieldOwner("other"), client.ForceOwnership)) //nolint:staticcheck
	if len(m.ManagedFields) != 1 || m.ManagedFields[0].Manager != "other" {
		t.Errorf("managed by %+v", m.ManagedFields)
	}
}

func statusAndScale(t *testing.T, c client.Client) {
	ctx, d := t.Context(), deployment("web")
	check(t, "create", c.Create(ctx, d))
	d.Status.Replicas, d.Status.ObservedGeneration = 1, d.Generation
	check(t, "update status", c.Status().Update(ctx, d))
	before := d.DeepCopy()
	d.Status.Replicas = 2
	check(t, "patch status", c.Status().Patch(ctx, d, client.MergeFrom(before)))
	check(t, "apply status", c.Status().Apply(ctx, applyappsv1.Deployment("web", ns).WithStatus(applyappsv1.DeploymentStatus().WithReadyReplicas(1))))
	check(t, "get", c.Get(ctx, client.ObjectKeyFromObject(d), d))
	if d.Status.Replicas != 2 || d.Status.ReadyReplicas != 1 {
		t.Errorf("status %+v", d.Status)
	}
	var scale autoscalingv1.Scale
	check(t, "get scale", c.SubResource("scale").Get(ctx, d, &scale))
	scale.Spec.Replicas = 7
	check(t, "update scale", c.SubResource("scale").Update(ctx, d, client.WithSubResourceBody(&scale)))
	check(t, "get", c.Get(ctx, client.ObjectKeyFromObject(d), d))
	if *d.Spec.Replicas != 7 || d.Generation != 2 {
		t.Errorf("%d replicas, generation %d; want 7, 2", *d.Spec.Replicas, d.Generation)
	}
}

func writeUnstructured(t *testing.T, c client.Client) {
	ctx, d := t.Context(), &unstructured.Unstructured{}
	d.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("Deployment"))
	check(t, "get", c.Get(ctx, client.ObjectKey{Namespace: ns, Name: "web"}, d))
	check(t, "set", unstructured.SetNestedField(d.Object, int64(3), "spec", "replicas"))
	check(t, "update", c.Update(ctx, d))
	check(t, "set", unstructured.SetNestedField(d.Object, "x", "spec", "bogus"))
	if err := c.Update(ctx, d); !apierrors.IsBadRequest(err) {
		t.Errorf("update with an unknown field: %v, want BadRequest", err)
	}
	var list unstructured.UnstructuredList
	list.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("DeploymentList"))
	check(t, "list", c.List(ctx, &list, client.InNamespace(ns), client.Limit(1)))
	if len(list.Items) != 1 {
		t.Errorf("%d items", len(list.Items))
	}
}

func deleteByLabel(t *testing.T, c client.Client) {
	ctx := t.Context()
	for _, name := range []string{"a", "b", "c"} {
		m := configMap(name)
		m.Labels = map[string]string{"group": "doomed"}
		check(t, "create", c.Create(ctx, m))
	}
	check(t, "delete all of", c.DeleteAllOf(ctx, &corev1.ConfigMap{}, client.InNamespace(ns), client.MatchingLabels{"group": "doomed"}))
	var left corev1.ConfigMapList
	check(t, "list", c.List(ctx, &left, client.InNamespace(ns)))
	if len(left.Items) != 2 {
		t.Errorf("%d are left, want the other two", len(left.Items))
	}
}

func requestToken(t *testing.T, c client.Client) {
	ctx, account := t.Context(), &corev1.ServiceAccount{ObjectMeta: named("robot")}
	check(t, "create", c.Create(ctx, account))
	request := &authenticationv1.TokenRequest{}
	check(t, "token", c.SubResource("token").Create(ctx, account, request))
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: request.Status.Token}}
	check(t, "review", c.Create(ctx, review))
	if want := "system:serviceaccount:default:robot"; !review.Status.Authenticated || review.Status.User.Username != want {
		t.Errorf("the token is of %+v, want %s", review.Status, want)
	}
}
