package clients

// This file tests a controller-runtime manager with one controller that follows the kubebuilder
// book. It creates a ConfigMap for each Deployment and sets a finalizer and the status. It does not
// depend on the kind of server. It runs before the parallel tests, because it measures times.

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const (
	finalizer  = "example.com/tester"
	ownerIndex = ".metadata.controller"
	owners     = 20
	// the value to which status.replicas of each Deployment is increased, one patch at a time
	statusGoal = 50
)

// A reconciler creates a ConfigMap for each Deployment and increases its status.
type reconciler struct {
	client.Client
	reconciles, patches, finalized atomic.Int64
}

func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	r.reconciles.Add(1)
	var owner appsv1.Deployment
	if err := r.Get(ctx, req.NamespacedName, &owner); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !owner.DeletionTimestamp.IsZero() {
		if controllerutil.RemoveFinalizer(&owner, finalizer) {
			r.finalized.Add(1)
			return ctrl.Result{}, client.IgnoreNotFound(r.Update(ctx, &owner))
		}
		return ctrl.Result{}, nil
	}
	if controllerutil.AddFinalizer(&owner, finalizer) {
		return ctrl.Result{}, r.Update(ctx, &owner)
	}
	owned := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: owner.Name, Namespace: owner.Namespace}}
	if _, err := controllerutil.CreateOrUpdate(ctx, r.Client, owned, func() error {
		owned.Data = map[string]string{"replicas": fmt.Sprint(*owner.Spec.Replicas)}
		return controllerutil.SetControllerReference(&owner, owned, r.Scheme())
	}); err != nil {
		return ctrl.Result{}, err
	}
	if owner.Status.Replicas >= statusGoal {
		return ctrl.Result{}, nil
	}
	before := owner.DeepCopy()
	owner.Status.Replicas++
	owner.Status.ObservedGeneration = owner.Generation
	r.patches.Add(1)
	return ctrl.Result{}, r.Status().Patch(ctx, &owner, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// startManager runs a manager with the controller until the test ends. It returns when the manager
// is the leader and the cache is synced.
func startManager(t *testing.T, s *server) (ctrl.Manager, *reconciler) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	mgr, err := ctrl.NewManager(s.config(""), ctrl.Options{Scheme: scheme.Scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		LeaderElection: true, LeaderElectionID: "tester.example.com", LeaderElectionNamespace: ns, LeaderElectionReleaseOnCancel: true,
		LeaseDuration: new(2 * patience), RenewDeadline: new(patience)})
	check(t, "new manager", err)
	check(t, "index", mgr.GetFieldIndexer().IndexField(ctx, &corev1.ConfigMap{}, ownerIndex, func(obj client.Object) []string {
		if owner := metav1.GetControllerOf(obj); owner != nil {
			return []string{owner.Name}
		}
		return nil
	}))
	r := &reconciler{Client: mgr.GetClient()}
	check(t, "build", ctrl.NewControllerManagedBy(mgr).For(&appsv1.Deployment{}).Owns(&corev1.ConfigMap{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: 10, SkipNameValidation: new(true)}).Complete(r))
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		check(t, "manager", <-done)
	})
	select {
	case <-mgr.Elected():
	case <-time.After(patience):
		t.Fatal("not elected")
	}
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		t.Fatal("the cache has not synced")
	}
	return mgr, r
}

// TestManagerStarts measures the time needed to start a server and a manager.
func TestManagerStarts(t *testing.T) {
	var took []time.Duration
	for range 5 {
		t.Run("once", func(t *testing.T) {
			started := time.Now()
			startManager(t, startEphemeral(t))
			took = append(took, time.Since(started).Round(time.Millisecond))
		})
	}
	slices.Sort(took)
	t.Logf("from exec of the server to a manager that leads and has synced, five times: %v", took)
}

func TestManagerReconciles(t *testing.T) {
	ctx, started := t.Context(), time.Now()
	s := startEphemeral(t)
	serving := time.Since(started)
	mgr, r := startManager(t, s)
	t.Logf("from exec to serving %v, to a manager that leads and has synced %v", serving.Round(time.Millisecond), time.Since(started).Round(time.Millisecond))
	c := mgr.GetClient()

	started = time.Now()
	for i := range owners {
		check(t, "create", c.Create(ctx, deployment(fmt.Sprintf("web-%02d", i))))
	}
	reached := func() bool {
		var list appsv1.DeploymentList
		check(t, "list", c.List(ctx, &list, client.InNamespace(ns)))
		done := 0
		for _, d := range list.Items {
			if d.Status.Replicas == statusGoal && d.Status.ObservedGeneration == d.Generation {
				done++
			}
		}
		return done == owners
	}
	eventually(t, "every status has reached its goal", reached)
	took := time.Since(started)
	t.Logf("%d reconciles with %d status patches in %v: %.0f patches a second", r.reconciles.Load(), r.patches.Load(), took.Round(time.Millisecond),
		float64(r.patches.Load())/took.Seconds())
	t.Run("owned objects come back", func(t *testing.T) { ownedComeBack(t, c) })
	t.Run("field index", func(t *testing.T) { fieldIndex(t, c) })
	t.Run("delete all of", func(t *testing.T) { deleteAllOf(t, mgr, r) })
}

// ownedComeBack deletes and changes owned objects. Both must trigger the controller.
func ownedComeBack(t *testing.T, c client.Client) {
	ctx, key := t.Context(), client.ObjectKey{Namespace: ns, Name: "web-00"}
	var m corev1.ConfigMap
	check(t, "get", c.Get(ctx, key, &m))
	uid := m.UID
	check(t, "delete", c.Delete(ctx, &m))
	eventually(t, "there is another one", func() bool { return c.Get(ctx, key, &m) == nil && m.UID != uid })
	want := maps.Clone(m.Data)
	patch := client.MergeFrom(m.DeepCopy())
	m.Data["replicas"] = "altered"
	check(t, "patch", c.Patch(ctx, &m, patch))
	rv := m.ResourceVersion
	eventually(t, "it is put right", func() bool {
		return c.Get(ctx, key, &m) == nil && m.ResourceVersion != rv && maps.Equal(m.Data, want)
	})
}

func fieldIndex(t *testing.T, c client.Client) {
	var list corev1.ConfigMapList
	check(t, "list by index", c.List(t.Context(), &list, client.InNamespace(ns), client.MatchingFields{ownerIndex: "web-07"}))
	if len(list.Items) != 1 || list.Items[0].Name != "web-07" {
		t.Errorf("%d objects by index, want web-07", len(list.Items))
	}
}

// deleteAllOf deletes all Deployments and waits until the ConfigMaps have been deleted.
func deleteAllOf(t *testing.T, mgr ctrl.Manager, r *reconciler) {
	ctx := t.Context()
	check(t, "delete all of", mgr.GetClient().DeleteAllOf(ctx, &appsv1.Deployment{}, client.InNamespace(ns),
		client.PropagationPolicy(metav1.DeletePropagationBackground)))
	eventually(t, "owners and owned are gone", func() bool {
		var deployments appsv1.DeploymentList
		var owned corev1.ConfigMapList
		check(t, "list", mgr.GetAPIReader().List(ctx, &deployments, client.InNamespace(ns)))
		check(t, "list", mgr.GetAPIReader().List(ctx, &owned, client.InNamespace(ns)))
		return len(deployments.Items)+len(owned.Items) == 0
	})
	if n := r.finalized.Load(); n < owners {
		t.Errorf("%d finalized, want %d", n, owners)
	}
	var gone appsv1.Deployment
	if err := mgr.GetAPIReader().Get(ctx, client.ObjectKey{Namespace: ns, Name: "web-00"}, &gone); !apierrors.IsNotFound(err) {
		t.Errorf("get: %v, want NotFound", err)
	}
}
