package webhook

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
)

// Each failure that a manager beside the server meets is told what is missing, and others are told nothing. The error keeps kube-apiserver's words.
func TestHints(t *testing.T) {
	t.Parallel()
	cl := newCluster(t)
	hook := httptest.NewTLSServer(nil)
	defer hook.Close()
	_, text, _ := net.SplitHostPort(hook.Listener.Addr().String())
	port, _ := strconv.Atoi(text)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free.Close() // nobody listens there now
	cl.put("v1", "Service", "services", `"metadata":{"name":"empty"},"spec":{"ports":[{"port":443}]}`)
	cl.put("v1", "Service", "services", `"metadata":{"name":"local"},"spec":{"type":"ExternalName","externalName":"127.0.0.1"}`)
	for _, c := range []struct {
		service        string
		port           int32
		words, missing string
	}{
		{"gone", 0, `service "gone" not found`, "there is no Service default/gone. A manager that runs beside this server is reached by `kubectl -n default create service externalname gone --external-name=localhost`"},
		{"empty", 0, `no endpoints available for service "empty"`, "Service default/empty has no endpoints, and no pods run here"},
		{"local", int32(port), "certificate is valid for example.com, *.example.com, not local.default.svc", ""}, // which says all
	} {
		s := &admissionv1.ServiceReference{Namespace: "default", Name: c.service}
		if c.port > 0 {
			s.Port = &c.port
		}
		config := &admissionv1.WebhookClientConfig{Service: s}
		client, err := NewClient(config, cl.ServiceResolver)
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.Post(t.Context(), []byte("{}"), 100)
		client.Close()
		if err == nil || !strings.Contains(err.Error(), c.words) || strings.Contains(err.Error(), "docs/") {
			t.Errorf("%s: %v", c.service, err)
		}
		if hint := Hint(err, config); !strings.HasPrefix(hint, c.missing) || c.missing == "" && hint != "" {
			t.Errorf("%s: %q", c.service, hint)
		}
	}
	usual, byURL := int32(443), "https://127.0.0.1:9443"
	local := &admissionv1.ServiceReference{Namespace: "default", Name: "local", Port: &usual} // as the server fills it in
	refused := func() error { _, err := net.Dial("tcp", free.Addr().String()); return fmt.Errorf("call: %w", err) }()
	given := int32(9443)
	stranger := &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}
	for _, c := range []struct {
		what   string
		err    error
		config admissionv1.WebhookClientConfig
		want   string
	}{
		{"nobody listens at the port that nobody has chosen", refused, admissionv1.WebhookClientConfig{Service: local}, "nobody listens at port 443 of Service default/local"},
		{"a port was chosen", refused, admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: "default", Name: "local", Port: &given}}, ""},
		{"there is a bundle, and it is another's", stranger, admissionv1.WebhookClientConfig{Service: local, CABundle: []byte("x")}, ""},
		{"no bundle", stranger, admissionv1.WebhookClientConfig{Service: local}, "clientConfig.caBundle is empty"},
		{"by URL", refused, admissionv1.WebhookClientConfig{URL: &byURL}, ""},
		{"anything else", errors.New("EOF"), admissionv1.WebhookClientConfig{Service: local}, ""},
	} {
		if got := Hint(c.err, &c.config); c.want == "" && got != "" || !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %q", c.what, got)
		}
	}
}
