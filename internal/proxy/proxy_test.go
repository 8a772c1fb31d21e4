package proxy

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
)

// net/http logs two lines for each error that is written to a hijacked connection.
func TestHijackedConnectionsAreNotWrittenTo(t *testing.T) {
	t.Parallel()
	for _, hijacked := range []bool{false, true} {
		w, failed := httptest.NewRecorder(), false
		hop := &Hop{ErrorHandler: func(http.ResponseWriter, *http.Request, error) { failed = true }}
		hop.fail(&deadlineWriter{ResponseWriter: w, hijacked: hijacked}, httptest.NewRequest("GET", "/", nil), errors.New("broken"))
		if failed == hijacked {
			t.Errorf("hijacked %v, written %v", hijacked, failed)
		}
	}
}

func TestCredentialsAreHidden(t *testing.T) {
	t.Parallel()
	h := http.Header{"Accept": {"a"}}
	for _, key := range []string{"Authorization", "x-ReMote-extra-a", "X-Remote-User", "X_Remote_User", "Impersonate-Foo", "X-Forwarded-For"} {
		h[key] = []string{"x"}
	}
	if RemoveCredentials(h); len(h) != 1 {
		t.Errorf("got %q", h)
	}
}
