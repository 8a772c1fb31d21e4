package clients

// This file tests the typed clientset. It uses all verbs and subresources and checks the errors
// with apierrors.

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	applyautoscalingv1 "k8s.io/client-go/applyconfigurations/autoscaling/v1"
	"k8s.io/utils/ptr"
)

// ---- Objects ----

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name, Namespace: ns} }

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: named(name), Data: map[string]string{"k": "v"}, BinaryData: map[string][]byte{"b": {0, 255}}}
}

func podTemplate(app string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "image:1"}}}}
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: named(name), Spec: podTemplate(name).Spec}
}

func deployment(name string) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: named(name), Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(2)),
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}, Template: podTemplate(name)}}
}

func lease(name string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: named(name), Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("me"),
		LeaseDurationSeconds: ptr.To(int32(15)), RenewTime: ptr.To(metav1.NewMicroTime(time.Now().Truncate(time.Microsecond)))}}
}

// ---- Every verb ----

type object interface {
	metav1.Object
	runtime.Object
}

// A resourceClient contains the methods that all typed clients have.
type resourceClient[T object, L runtime.Object] interface {
	Create(context.Context, T, metav1.CreateOptions) (T, error)
	Update(context.Context, T, metav1.UpdateOptions) (T, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
	DeleteCollection(context.Context, metav1.DeleteOptions, metav1.ListOptions) error
	Get(context.Context, string, metav1.GetOptions) (T, error)
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
	Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (T, error)
}

func TestTypedClientUsesEveryVerb(t *testing.T) {
	t.Parallel()
	cs := startEphemeral(t).typed()
	t.Run("configmaps", func(t *testing.T) { everyVerb(t, cs.CoreV1().ConfigMaps(ns), configMap("one")) })
	t.Run("secrets", func(t *testing.T) {
		everyVerb(t, cs.CoreV1().Secrets(ns), &corev1.Secret{ObjectMeta: named("one"), Data: map[string][]byte{"b": {0, 255}}})
	})
	t.Run("deployments", func(t *testing.T) { everyVerb(t, cs.AppsV1().Deployments(ns), deployment("one")) })
	t.Run("leases", func(t *testing.T) { everyVerb(t, cs.CoordinationV1().Leases(ns), lease("one")) })
	t.Run("pods", func(t *testing.T) { everyVerb(t, cs.CoreV1().Pods(ns), pod("one")) })
}

// everyVerb creates, changes and deletes one object during a watch, and then deletes a collection.
func everyVerb[T object, L runtime.Object](t *testing.T, c resourceClient[T, L], obj T) {
	ctx := t.Context()
	w, err := c.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + obj.GetName()})
	check(t, "watch", err)
	defer w.Stop()
	made, err := c.Create(ctx, obj.DeepCopyObject().(T), metav1.CreateOptions{FieldValidation: "Strict"})
	check(t, "create", err)
	got, err := c.Get(ctx, obj.GetName(), metav1.GetOptions{})
	check(t, "get", err)
	if made.GetUID() == "" || !equality.Semantic.DeepEqual(made, got) {
		t.Errorf("created %+v\ngot %+v", made, got)
	}
	if _, err := c.Create(ctx, obj.DeepCopyObject().(T), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("second create: %v, want AlreadyExists", err)
	}
	changeInTurn(t, c, got)
	check(t, "delete", c.Delete(ctx, obj.GetName(), metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(made.GetUID()))}))
	if _, err := c.Get(ctx, obj.GetName(), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get after delete: %v, want NotFound", err)
	}
	if events, want := watched(t, w), []watch.EventType{watch.Added, watch.Modified, watch.Deleted}; !slices.Equal(slices.Compact(slices.Clone(events)), want) || len(events) < 6 {
		t.Errorf("watched %v, want one ADDED, four or more MODIFIED (pods are marked before they go), one DELETED", events)
	}
	deleteCollection(t, c, obj)
}

// watched returns the events of the watch until an object is deleted.
func watched(t *testing.T, w watch.Interface) (events []watch.EventType) {
	t.Helper()
	for !slices.Contains(events, watch.Deleted) {
		select {
		case ev := <-w.ResultChan():
			events = append(events, ev.Type)
		case <-time.After(patience):
			t.Fatalf("watched %v", events)
		}
	}
	return events
}

// changeInTurn changes an object by update and by three kinds of patches. An old resourceVersion
// must be rejected.
func changeInTurn[T object, L runtime.Object](t *testing.T, c resourceClient[T, L], old T) {
	ctx, name := t.Context(), old.GetName()
	changed := old.DeepCopyObject().(T)
	changed.SetLabels(map[string]string{"by": "update"})
	_, err := c.Update(ctx, changed, metav1.UpdateOptions{})
	check(t, "update", err)
	if _, err := c.Update(ctx, changed, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("update of the past: %v, want Conflict", err)
	}
	for kind, body := range map[types.PatchType]string{
		types.JSONPatchType:           `[{"op":"test","path":"/metadata/labels/by","value":"update"},{"op":"add","path":"/metadata/labels/json","value":"x"}]`,
		types.MergePatchType:          `{"metadata":{"labels":{"merge":"x"}}}`,
		types.StrategicMergePatchType: `{"metadata":{"labels":{"strategic":"x"},"finalizers":null}}`,
	} {
		_, err := c.Patch(ctx, name, kind, []byte(body), metav1.PatchOptions{})
		check(t, string(kind), err)
	}
	list, err := c.List(ctx, metav1.ListOptions{LabelSelector: "by=update,json,merge=x,strategic in (x,y),!missing"})
	check(t, "list", err)
	if n := meta.LenList(list); n != 1 {
		t.Errorf("list by labels has %d objects, want 1", n)
	}
}

func deleteCollection[T object, L runtime.Object](t *testing.T, c resourceClient[T, L], obj T) {
	ctx, group := t.Context(), metav1.ListOptions{LabelSelector: "group=three"}
	for range 3 {
		another := obj.DeepCopyObject().(T)
		another.SetName("")
		another.SetGenerateName("some-")
		another.SetLabels(map[string]string{"group": "three"})
		made, err := c.Create(ctx, another, metav1.CreateOptions{})
		check(t, "create by generateName", err)
		if !strings.HasPrefix(made.GetName(), "some-") {
			t.Errorf("generated name %q", made.GetName())
		}
	}
	before, err := c.List(ctx, group)
	check(t, "list", err)
	check(t, "deletecollection", c.DeleteCollection(ctx, metav1.DeleteOptions{}, group))
	after, err := c.List(ctx, group)
	check(t, "list", err)
	if meta.LenList(before) != 3 || meta.LenList(after) != 0 {
		t.Errorf("%d objects before deletecollection, %d after; want 3, 0", meta.LenList(before), meta.LenList(after))
	}
}

// ---- Subresources ----

func TestStatusAndSpecAreWrittenApart(t *testing.T) {
	t.Parallel()
	ctx, c := t.Context(), startEphemeral(t).typed().AppsV1().Deployments(ns)
	d, err := c.Create(ctx, deployment("web"), metav1.CreateOptions{})
	check(t, "create", err)
	d.Spec.Replicas, d.Status.Replicas, d.Status.ObservedGeneration = ptr.To(int32(9)), 2, 1
	d, err = c.UpdateStatus(ctx, d, metav1.UpdateOptions{})
	check(t, "update status", err)
	if *d.Spec.Replicas != 2 || d.Status.Replicas != 2 || d.Generation != 1 {
		t.Errorf("after the status: spec %d, status %d, generation %d; want 2, 2, 1", *d.Spec.Replicas, d.Status.Replicas, d.Generation)
	}
	d.Spec.Replicas, d.Status.Replicas = ptr.To(int32(3)), 7
	d, err = c.Update(ctx, d, metav1.UpdateOptions{})
	check(t, "update", err)
	if *d.Spec.Replicas != 3 || d.Status.Replicas != 2 || d.Generation != 2 {
		t.Errorf("after the spec: spec %d, status %d, generation %d; want 3, 2, 2", *d.Spec.Replicas, d.Status.Replicas, d.Generation)
	}
	d, err = c.Patch(ctx, "web", types.StrategicMergePatchType, []byte(`{"status":{"conditions":[{"type":"Available","status":"True"}]}}`),
		metav1.PatchOptions{}, "status")
	check(t, "patch status", err)
	if len(d.Status.Conditions) != 1 || d.Status.Replicas != 2 {
		t.Errorf("after the patch: %+v", d.Status)
	}
}

func TestScaleSubresource(t *testing.T) {
	t.Parallel()
	ctx, c := t.Context(), startEphemeral(t).typed().AppsV1().Deployments(ns)
	_, err := c.Create(ctx, deployment("web"), metav1.CreateOptions{})
	check(t, "create", err)
	scale, err := c.GetScale(ctx, "web", metav1.GetOptions{})
	check(t, "get scale", err)
	if scale.Spec.Replicas != 2 || scale.Status.Selector != "app=web" {
		t.Errorf("scale %+v", scale)
	}
	scale.Spec.Replicas = 5
	_, err = c.UpdateScale(ctx, "web", scale, metav1.UpdateOptions{})
	check(t, "update scale", err)
	if _, err = c.UpdateScale(ctx, "web", scale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("update of the past: %v, want Conflict", err)
	}
	want := applyautoscalingv1.Scale().WithSpec(applyautoscalingv1.ScaleSpec().WithReplicas(6))
	_, err = c.ApplyScale(ctx, "web", want, metav1.ApplyOptions{FieldManager: "scaler", Force: true})
	check(t, "apply scale", err)
	d, err := c.Get(ctx, "web", metav1.GetOptions{})
	check(t, "get", err)
	if *d.Spec.Replicas != 6 {
		t.Errorf("%d replicas, want 6", *d.Spec.Replicas)
	}
	_, err = c.UpdateScale(ctx, "web", &autoscalingv1.Scale{ObjectMeta: named("web"), Spec: autoscalingv1.ScaleSpec{Replicas: -1}}, metav1.UpdateOptions{})
	if !apierrors.IsInvalid(err) {
		t.Errorf("scale to -1: %v, want Invalid", err)
	}
}

func TestBindingHappensOnce(t *testing.T) {
	t.Parallel()
	ctx, c := t.Context(), startEphemeral(t).typed().CoreV1().Pods(ns)
	_, err := c.Create(ctx, pod("p"), metav1.CreateOptions{})
	check(t, "create", err)
	binding := &corev1.Binding{ObjectMeta: named("p"), Target: corev1.ObjectReference{Kind: "Node", Name: "node-1"}}
	check(t, "bind", c.Bind(ctx, binding, metav1.CreateOptions{}))
	p, err := c.Get(ctx, "p", metav1.GetOptions{})
	check(t, "get", err)
	if p.Spec.NodeName != "node-1" || len(p.Status.Conditions) != 1 || p.Status.Conditions[0].Type != corev1.PodScheduled {
		t.Errorf("bound pod: node %q, conditions %v", p.Spec.NodeName, p.Status.Conditions)
	}
	if err := c.Bind(ctx, binding, metav1.CreateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("second bind: %v, want Conflict", err)
	}
	onNode, err := c.List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=node-1"})
	check(t, "list", err)
	if len(onNode.Items) != 1 {
		t.Errorf("%d pods on the node, want 1", len(onNode.Items))
	}
	check(t, "delete", c.Delete(ctx, "p", metav1.DeleteOptions{}))
	p, err = c.Get(ctx, "p", metav1.GetOptions{})
	check(t, "get of a pod that its node still has", err)
	if p.DeletionTimestamp == nil || ptr.Deref(p.DeletionGracePeriodSeconds, 0) != 30 {
		t.Errorf("deletion at %v, grace %v", p.DeletionTimestamp, p.DeletionGracePeriodSeconds)
	}
	check(t, "delete at once", c.Delete(ctx, "p", *metav1.NewDeleteOptions(0)))
	if _, err = c.Get(ctx, "p", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get: %v, want NotFound", err)
	}
}

func TestEvictionAsksTheBudget(t *testing.T) {
	t.Parallel()
	ctx, cs := t.Context(), startEphemeral(t).typed()
	running := pod("p")
	running.Labels = map[string]string{"app": "p"}
	running, err := cs.CoreV1().Pods(ns).Create(ctx, running, metav1.CreateOptions{})
	check(t, "create", err)
	running.Status.Phase = corev1.PodRunning
	running.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	_, err = cs.CoreV1().Pods(ns).UpdateStatus(ctx, running, metav1.UpdateOptions{})
	check(t, "update status", err)
	budget, err := cs.PolicyV1().PodDisruptionBudgets(ns).Create(ctx, &policyv1.PodDisruptionBudget{ObjectMeta: named("b"),
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1)),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "p"}}}}, metav1.CreateOptions{})
	check(t, "create budget", err)
	budget.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: budget.Generation, CurrentHealthy: 1, DesiredHealthy: 1, ExpectedPods: 1}
	budget, err = cs.PolicyV1().PodDisruptionBudgets(ns).UpdateStatus(ctx, budget, metav1.UpdateOptions{})
	// otherwise the eviction is rejected, and client-go retries it for 100 seconds
	check(t, "update budget status", err)
	eviction := &policyv1.Eviction{ObjectMeta: named("p")}
	err = cs.PolicyV1().Evictions(ns).Evict(ctx, eviction)
	if !apierrors.IsTooManyRequests(err) || !apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) {
		t.Errorf("eviction against the budget: %v, %+v", err, cause(err))
	}
	budget.Status.DisruptionsAllowed, budget.Status.CurrentHealthy = 1, 2
	_, err = cs.PolicyV1().PodDisruptionBudgets(ns).UpdateStatus(ctx, budget, metav1.UpdateOptions{})
	check(t, "update budget status", err)
	check(t, "eviction within the budget", cs.PolicyV1().Evictions(ns).Evict(ctx, eviction))
	budget, err = cs.PolicyV1().PodDisruptionBudgets(ns).Get(ctx, "b", metav1.GetOptions{})
	check(t, "get budget", err)
	if budget.Status.DisruptionsAllowed != 0 {
		t.Errorf("%d disruptions left, want 0", budget.Status.DisruptionsAllowed)
	}
	if err := cs.PolicyV1().Evictions(ns).Evict(ctx, eviction); !apierrors.IsNotFound(err) {
		t.Errorf("second eviction: %v, want NotFound", err)
	}
}

// ---- Errors ----

func TestErrorsAreRecognised(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), startEphemeral(t, shortHistory)
	cs := s.typed()
	maps := cs.CoreV1().ConfigMaps(ns)
	first, err := maps.Create(ctx, configMap("one"), metav1.CreateOptions{})
	check(t, "create", err)
	_, err = maps.Patch(ctx, "one", types.MergePatchType, []byte(`{"data":{"k":"w"}}`), metav1.PatchOptions{})
	check(t, "patch", err)
	s.expire(ctx, first.ResourceVersion)

	mismatch := deployment("web")
	mismatch.Spec.Selector.MatchLabels["app"] = "other"
	for _, c := range []struct {
		name string
		is   func(error) bool
		do   func() error
	}{
		{"not found", apierrors.IsNotFound, func() error { return maps.Delete(ctx, "none", metav1.DeleteOptions{}) }},
		{"already exists", apierrors.IsAlreadyExists, func() error { return second(maps.Create(ctx, configMap("one"), metav1.CreateOptions{})) }},
		{"conflict", apierrors.IsConflict, func() error { return second(maps.Update(ctx, first, metav1.UpdateOptions{})) }},
		{"uid conflict", apierrors.IsConflict, func() error {
			return maps.Delete(ctx, "one", metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions("other")})
		}},
		{"invalid", apierrors.IsInvalid, func() error { return second(cs.AppsV1().Deployments(ns).Create(ctx, mismatch, metav1.CreateOptions{})) }},
		{"bad request", apierrors.IsBadRequest, func() error { return second(maps.List(ctx, metav1.ListOptions{LabelSelector: "a=b=c"})) }},
		{"bad patch", apierrors.IsBadRequest, func() error {
			return second(maps.Patch(ctx, "one", types.JSONPatchType, []byte(`{`), metav1.PatchOptions{}))
		}},
		{"forbidden", apierrors.IsForbidden, func() error { return cs.CoreV1().Namespaces().Delete(ctx, "default", metav1.DeleteOptions{}) }},
		{"no namespace", apierrors.IsNotFound, func() error {
			return second(cs.CoreV1().ConfigMaps("nowhere").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{}))
		}},
		{"resource expired", apierrors.IsResourceExpired, func() error {
			return second(maps.List(ctx, metav1.ListOptions{ResourceVersion: first.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchExact}))
		}},
		{"revision to come", tooLarge, func() error {
			return second(maps.List(ctx, metav1.ListOptions{ResourceVersion: "99999999", ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}))
		}},
		{"method not supported", apierrors.IsMethodNotSupported, func() error {
			return cs.CoreV1().RESTClient().Put().AbsPath("/api/v1/namespaces/default/configmaps").Body([]byte("{}")).Do(ctx).Error()
		}},
		{"unsupported media type", apierrors.IsUnsupportedMediaType, func() error {
			return cs.CoreV1().RESTClient().Post().AbsPath("/api/v1/namespaces/default/configmaps").SetHeader("Content-Type", "text/plain").Body([]byte("{}")).Do(ctx).Error()
		}},
		{"too large", apierrors.IsRequestEntityTooLargeError, func() error {
			big := configMap("big")
			big.Data["k"] = strings.Repeat("x", 4<<20)
			return second(maps.Create(ctx, big, metav1.CreateOptions{}))
		}},
	} {
		if err := c.do(); !c.is(err) {
			t.Errorf("%s: %v (%s)", c.name, err, apierrors.ReasonForError(err))
		}
	}
}

// tooLarge reports whether the error indicates that the server has not reached the revision yet. A
// reflector uses the same condition.
func tooLarge(err error) bool {
	return apierrors.IsTimeout(err) && apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

// second returns the error and drops the object.
func second[T any](_ T, err error) error { return err }
