package examples

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"apilet/apilettest"
)

// TestReconcile runs a controller that creates a ConfigMap in each namespace.
func TestReconcile(t *testing.T) {
	t.Parallel()
	s := apilettest.Start(t)
	config, err := clientcmd.RESTConfigFromKubeConfig(s.Kubeconfig())
	check(t, err)
	m, err := ctrl.NewManager(config, ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}, Logger: klog.Logger{}})
	check(t, err)
	check(t, ctrl.NewControllerManagedBy(m).For(&corev1.Namespace{}).Complete(reconcile.Func(
		func(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
			err := m.GetClient().Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: r.Name, Name: "welcome"}})
			return reconcile.Result{}, client.IgnoreAlreadyExists(err)
		})))
	run(t, m.Start)

	check(t, m.GetClient().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}))
	apilettest.Until(t, "the namespace has its ConfigMap", func() error {
		return m.GetAPIReader().Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "welcome"}, &corev1.ConfigMap{})
	})
}

// run calls the function in a new goroutine and waits for it at the end of the test.
func run(t *testing.T, f func(context.Context) error) {
	done := make(chan error, 1) // of one result
	go func() { done <- f(t.Context()) }()
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Error(fmt.Errorf("it ended: %w", err))
		}
	})
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
