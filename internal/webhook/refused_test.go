package webhook

import (
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// TestRefusedCallsHaveCodesOfHTTP: a caller may answer a client with the error.
func TestRefusedCallsHaveCodesOfHTTP(t *testing.T) {
	t.Parallel()
	const status = `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","code":`
	for _, c := range []struct {
		code int
		body string
		want int32
	}{
		{99, "", 502}, {600, "", 502}, {999, "text", 502}, {302, "", 302}, {503, "", 503},
		{500, status + `99}`, 502}, {500, status + `1000000}`, 502}, {500, status + `-5}`, 502}, {500, status + `403}`, 403}, {503, status + `0}`, 503}, {99, status + `0}`, 502},
	} {
		err := refusedCall(&http.Response{StatusCode: c.code, Header: http.Header{}}, []byte(c.body))
		var refusal apierrors.APIStatus
		if !errors.As(err, &refusal) || refusal.Status().Code != c.want {
			t.Errorf("%d %s: %v, want the code %d", c.code, c.body, err, c.want)
		}
	}
}

// TestHeadersOfWebhooksAreBounded: net/http alone would keep ten megabytes for each call.
func TestHeadersOfWebhooksAreBounded(t *testing.T) {
	t.Parallel()
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.URL.Path[1:])
		w.Header().Set("X-Long", strings.Repeat("x", n))
		_, _ = w.Write([]byte("{}"))
	}))
	defer hook.Close()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})
	for size, refused := range map[int]bool{maxHeader / 2: false, 2 * maxHeader: true} {
		target := hook.URL + "/" + strconv.Itoa(size)
		c, err := NewClient(&admissionv1.WebhookClientConfig{CABundle: authority, URL: &target}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Post(t.Context(), []byte("{}"), 1<<20); (err != nil) != refused {
			t.Errorf("a header of %d bytes: %v", size, err)
		}
	}
}
