package clients

// This file tests a manager with webhooks, as in kubebuilder: envtest installs the webhook
// configurations with the address and the authority of this process, the manager serves the
// webhooks, and the API server calls them for every write.

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

// A guard sets defaults in ConfigMaps and validates them.
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

// markers is the directory with the webhook configurations that controller-gen generates from
// kubebuilder's markers. The paths start with a slash, and envtest appends them to a URL that ends
// with a slash.
const markers = "webhooks"

// heard receives the warnings of a client.
type heard struct{ texts chan string }

func (h heard) HandleWarningHeader(_ int, _, text string) { h.texts <- text }

func TestManagerServesWebhooks(t *testing.T) {
	t.Parallel()
	env, config, _ := begin(t, func() *envtest.Environment {
		return &envtest.Environment{BinaryAssetsDirectory: assets(t), WebhookInstallOptions: envtest.WebhookInstallOptions{Paths: []string{markers}}}
	})
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
	if got := receive(t, "a warning", warnings.texts); got != "seen m" {
		t.Errorf("warned %q", got)
	}
	bad := configMap("bad")
	bad.Data["k"] = "forbidden"
	err := c.Create(ctx, bad)
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `admission webhook "vconfigmap-v1.kb.io" denied the request: k is forbidden`) {
		t.Errorf("create: %v, want Forbidden by the webhook", err)
	}
	if got := receive(t, "a warning", warnings.texts); got != "think again" {
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

// serveGuard runs a manager with the webhooks until the test ends. It returns when they respond.
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

// A denier denies all requests.
type denier struct{}

func (denier) Handle(context.Context, admission.Request) admission.Response {
	return admission.Denied("Always denied")
}

// TestWebhookServersReject checks a webhook that denies all requests. It can be served in three
// ways. Before the webhook is available, requests are rejected because of failurePolicy Fail, so a
// Deployment is never created.
func TestWebhookServersReject(t *testing.T) {
	t.Parallel()
	fail, none, path := admissionregistrationv1.Fail, admissionregistrationv1.SideEffectClassNone, "/failing"
	rule := admissionregistrationv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments"}}
	installed := envtest.WebhookInstallOptions{
		ValidatingWebhooks: []*admissionregistrationv1.ValidatingWebhookConfiguration{{ObjectMeta: named("deployment-validation-webhook-config"),
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{Name: "deployment-validation.kubebuilder.io", FailurePolicy: &fail, SideEffects: &none,
				Rules: []admissionregistrationv1.RuleWithOperations{{Operations: []admissionregistrationv1.OperationType{"CREATE", "UPDATE"}, Rule: rule}},
				ClientConfig: admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Name: "deployment-validation-service",
					Namespace: "default", Path: &path}}, AdmissionReviewVersions: []string{"v1"}}}}}}
	env, config, _ := begin(t, func() *envtest.Environment {
		return &envtest.Environment{BinaryAssetsDirectory: assets(t), WebhookInstallOptions: installed}
	})
	t.Cleanup(func() { check(t, "stop", env.Stop()) })
	c := must(client.New(config, client.Options{}))
	options := webhook.Options{Host: env.WebhookInstallOptions.LocalServingHost, Port: env.WebhookInstallOptions.LocalServingPort,
		CertDir: env.WebhookInstallOptions.LocalServingCertDir}
	for _, way := range []struct {
		title   string
		managed bool
		handler admission.Handler
	}{{"with a manager", true, denier{}}, {"several in one", true, admission.MultiValidatingHandler(denier{})}, {"without a manager", false, denier{}}} {
		t.Run(way.title, func(t *testing.T) {
			server := webhook.NewServer(options)
			if way.managed {
				mgr, err := ctrl.NewManager(config, ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}, WebhookServer: server})
				check(t, "new manager", err)
				server = mgr.GetWebhookServer()
			}
			server.Register(path, &webhook.Admission{Handler: way.handler})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- server.Start(ctx) }()
			defer func() {
				cancel()
				check(t, "webhook server", <-done)
			}()
			eventually(t, "the webhook rejects", func() bool {
				err := c.Create(ctx, deployment("rejected"))
				if err == nil {
					t.Fatal("created")
				}
				return apierrors.IsForbidden(err) && strings.HasSuffix(err.Error(), "Always denied")
			})
		})
	}
}
