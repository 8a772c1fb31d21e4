package clients

// A manager with webhooks of its own, as kubebuilder lays it out: envtest installs their configurations with the address and the
// authority of this process, the manager serves them, and the API server asks them about every write.

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// A guard defaults ConfigMaps and judges them.
type guard struct{}

func (guard) Default(ctx context.Context, m *corev1.ConfigMap) error {
	request, err := admission.RequestFromContext(ctx)
	if m.Annotations == nil {
		m.Annotations = map[string]string{}
	}
	m.Annotations["example.com/"+strings.ToLower(string(request.Operation))] = request.UserInfo.Username
	return err
}

func (guard) ValidateCreate(_ context.Context, m *corev1.ConfigMap) (admission.Warnings, error) {
	if m.Data["k"] == "forbidden" {
		return admission.Warnings{"think again"}, errors.New("k is forbidden")
	}
	return admission.Warnings{"seen " + m.Name}, nil
}

func (guard) ValidateUpdate(_ context.Context, before, after *corev1.ConfigMap) (admission.Warnings, error) {
	if before.Data["k"] == "locked" && after.Data["k"] != "locked" {
		return nil, fmt.Errorf("%s is locked", before.Name)
	}
	return nil, nil
}

func (guard) ValidateDelete(_ context.Context, m *corev1.ConfigMap) (admission.Warnings, error) {
	if m.Data["k"] == "locked" {
		return nil, fmt.Errorf("%s is locked", m.Name)
	}
	return nil, nil
}

// hooks are the configurations that kubebuilder generates for a guard. envtest turns the service into an address.
func hooks() envtest.WebhookInstallOptions {
	none, fail := admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.Fail
	config := func(path string) admissionregistrationv1.WebhookClientConfig {
		return admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Name: "webhook-service", Namespace: "system", Path: &path}}
	}
	rules := func(ops ...admissionregistrationv1.OperationType) []admissionregistrationv1.RuleWithOperations {
		return []admissionregistrationv1.RuleWithOperations{{Operations: ops,
			Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}}}}
	}
	return envtest.WebhookInstallOptions{
		MutatingWebhooks: []*admissionregistrationv1.MutatingWebhookConfiguration{{ObjectMeta: named("defaults"),
			Webhooks: []admissionregistrationv1.MutatingWebhook{{Name: "defaults.example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: &none,
				FailurePolicy: &fail, ClientConfig: config("mutate--v1-configmap"), Rules: rules("CREATE", "UPDATE")}}}},
		ValidatingWebhooks: []*admissionregistrationv1.ValidatingWebhookConfiguration{{ObjectMeta: named("judges"),
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{Name: "judges.example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: &none,
				FailurePolicy: &fail, ClientConfig: config("validate--v1-configmap"), Rules: rules("CREATE", "UPDATE", "DELETE")}}}},
	}
}

// heard keeps the warnings of a client.
type heard struct{ texts chan string }

func (h heard) HandleWarningHeader(_ int, _, text string) { h.texts <- text }

func TestManagerServesWebhooks(t *testing.T) {
	t.Parallel()
	env := &envtest.Environment{BinaryAssetsDirectory: assets(t), WebhookInstallOptions: hooks()}
	config, err := env.Start()
	check(t, "start", err)
	t.Cleanup(func() { check(t, "stop", env.Stop()) })
	serveGuard(t, config, env.WebhookInstallOptions)

	ctx, warnings := t.Context(), heard{make(chan string, 100)}
	listening := rest.CopyConfig(config)
	listening.WarningHandler = warnings
	c := must(client.New(listening, client.Options{}))
	m := configMap("m")
	check(t, "create", c.Create(ctx, m))
	if m.Annotations["example.com/create"] != "admin" {
		t.Errorf("annotations %v", m.Annotations)
	}
	if got := <-warnings.texts; got != "seen m" {
		t.Errorf("warned %q", got)
	}
	bad := configMap("bad")
	bad.Data["k"] = "forbidden"
	err = c.Create(ctx, bad)
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `admission webhook "judges.example.com" denied the request: k is forbidden`) {
		t.Errorf("create: %v, want Forbidden by the webhook", err)
	}
	if got := <-warnings.texts; got != "think again" {
		t.Errorf("warned %q", got)
	}

	lock := client.MergeFrom(m.DeepCopy())
	m.Data["k"] = "locked"
	check(t, "lock", c.Patch(ctx, m, lock))
	if m.Annotations["example.com/update"] != "admin" {
		t.Errorf("annotations %v", m.Annotations)
	}
	m.Data["k"] = "else"
	if err := c.Update(ctx, m); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "m is locked") {
		t.Errorf("update: %v, want Forbidden by the webhook", err)
	}
	if err := c.Delete(ctx, m); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "m is locked") {
		t.Errorf("delete: %v, want Forbidden by the webhook", err)
	}
	check(t, "dry run", c.Create(ctx, configMap("dry"), client.DryRunAll))
	other := &corev1.Secret{ObjectMeta: named("other")}
	check(t, "create what no rule names", c.Create(ctx, other))
	if len(other.Annotations) != 0 {
		t.Errorf("annotations %v", other.Annotations)
	}
}

// serveGuard runs a manager with the webhooks until the test ends. It returns when they answer.
func serveGuard(t *testing.T, config *rest.Config, options envtest.WebhookInstallOptions) {
	ctx, cancel := context.WithCancel(t.Context())
	mgr, err := ctrl.NewManager(config, ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}, WebhookServer: webhook.NewServer(webhook.Options{
		Host: options.LocalServingHost, Port: options.LocalServingPort, CertDir: options.LocalServingCertDir})})
	check(t, "new manager", err)
	check(t, "webhook", ctrl.NewWebhookManagedBy(mgr, &corev1.ConfigMap{}).WithDefaulter(guard{}).WithValidator(guard{}).Complete())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		check(t, "manager", <-done)
	})
	eventually(t, "the webhook server has started", func() bool { return mgr.GetWebhookServer().StartedChecker()(nil) == nil })
}
