package crd

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"apilet/internal/webhook"
)

// TestReviewEndsAfterItsTime: a webhook that never answers is waited for as long as in kube-apiserver, and then it is the webhook's failure, not
// that of a request whose own time was longer.
func TestReviewEndsAfterItsTime(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	hook := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-over }))
	t.Cleanup(hook.Close)
	t.Cleanup(func() { close(over) })
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})
	var crd apiextensionsv1.CustomResourceDefinition
	text := `{"spec":{"group":"example.com","names":{"kind":"Widget"},"versions":[{"name":"v1"},{"name":"v2"}],"conversion":{"strategy":"Webhook","webhook":
		{"conversionReviewVersions":["v1"],"clientConfig":{"url":"` + hook.URL + `","caBundle":"` + base64.StdEncoding.EncodeToString(authority) + `"}}}}}`
	if err := json.Unmarshal([]byte(text), &crd); err != nil {
		t.Fatal(err)
	}
	cv := newConverter(&crd, nil, &webhook.ServiceResolver{}, nil)
	if cv.timeout != 30*time.Second {
		t.Errorf("a review may take %v, want 30 s as in kube-apiserver", cv.timeout)
	}
	cv.timeout = 50 * time.Millisecond
	widget := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget"}}
	_, err := cv.review(context.Background(), []*unstructured.Unstructured{widget}, "example.com/v2")
	if err == nil || !strings.HasPrefix(err.Error(), "conversion webhook for example.com/v1, Kind=Widget failed: ") || !strings.Contains(err.Error(), "deadline exceeded") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, err := cv.review(ctx, []*unstructured.Unstructured{widget}, "example.com/v2"); err != context.DeadlineExceeded {
		t.Errorf("a request that ended itself: got %v", err)
	}
}
