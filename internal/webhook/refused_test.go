package webhook

import (
	"errors"
	"net/http"
	"testing"

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
