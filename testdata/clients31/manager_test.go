package clients31

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"apilet/apilettest"
)

// TestManagerUnderEnvtest runs a controller with owned objects and leader election on a control
// plane that envtest starts through links to apilet.
func TestManagerUnderEnvtest(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, program := range []string{"kube-apiserver", "etcd"} {
		check(t, "link", os.Symlink(apilettest.Program(t), filepath.Join(dir, program)))
	}
	env := &envtest.Environment{BinaryAssetsDirectory: dir, CRDDirectoryPaths: []string{filepath.Join("..", "crds")}, ErrorIfCRDPathMissing: true,
		ControlPlaneStartTimeout: patience, ControlPlaneStopTimeout: patience, CRDInstallOptions: envtest.CRDInstallOptions{MaxTime: patience}}
	config, err := env.Start()
	check(t, "start", err)
	t.Cleanup(func() { check(t, "stop", env.Stop()) })
	ctx, cancel := context.WithCancel(t.Context())
	mgr, err := ctrl.NewManager(config, ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}, LeaderElection: true,
		LeaderElectionID: "tester.example.com", LeaderElectionNamespace: ns, LeaderElectionReleaseOnCancel: true,
		LeaseDuration: new(2 * patience), RenewDeadline: new(patience)})
	check(t, "manager", err)
	c := mgr.GetClient()
	check(t, "controller", ctrl.NewControllerManagedBy(mgr).For(&appsv1.Deployment{}).Owns(&corev1.ConfigMap{}).
		WithOptions(controller.Options{SkipNameValidation: new(true)}).Complete(
		reconcile.AsReconciler(c, reconcile.ObjectReconciler[*appsv1.Deployment](ownership{c}))))
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		check(t, "manager", <-done)
	})
	d := deployment("web")
	check(t, "create", c.Create(ctx, d))
	key, owned := client.ObjectKeyFromObject(d), &corev1.ConfigMap{}
	eventually(t, "the owned object comes, and the status", func() bool {
		return c.Get(ctx, key, owned) == nil && c.Get(ctx, key, d) == nil && d.Status.ObservedGeneration == d.Generation
	})
	check(t, "delete", c.Delete(ctx, d, client.PropagationPolicy(metav1.DeletePropagationForeground)))
	eventually(t, "both are gone", func() bool {
		return client.IgnoreNotFound(mgr.GetAPIReader().Get(ctx, key, d)) == nil && mgr.GetAPIReader().Get(ctx, key, d) != nil &&
			mgr.GetAPIReader().Get(ctx, key, owned) != nil
	})
}

// ownership creates a ConfigMap for every Deployment and sets a finalizer and a status.
type ownership struct{ client.Client }

func (o ownership) Reconcile(ctx context.Context, d *appsv1.Deployment) (ctrl.Result, error) {
	const finalizer = "example.com/tester"
	if !d.DeletionTimestamp.IsZero() {
		if controllerutil.RemoveFinalizer(d, finalizer) {
			return ctrl.Result{}, client.IgnoreNotFound(o.Update(ctx, d))
		}
		return ctrl.Result{}, nil
	}
	if controllerutil.AddFinalizer(d, finalizer) {
		return ctrl.Result{}, o.Update(ctx, d)
	}
	owned := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: d.Name, Namespace: d.Namespace}}
	if _, err := controllerutil.CreateOrUpdate(ctx, o, owned, func() error { return controllerutil.SetControllerReference(d, owned, o.Scheme()) }); err != nil {
		return ctrl.Result{}, err
	}
	d.Status.ObservedGeneration = d.Generation
	return ctrl.Result{}, client.IgnoreNotFound(o.Status().Update(ctx, d))
}
