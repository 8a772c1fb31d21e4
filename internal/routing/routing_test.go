package routing

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/go-chi/chi/v5"

	"apilet/internal/apitest"
)

func TestMain(m *testing.M) { apitest.Main(m) }

// TestObjectsFirstChangesNoRoute: whoever answers does so with the router alone, too.
func TestObjectsFirstChangesNoRoute(t *testing.T) {
	says := func(what string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Who", what) }
	}
	router := chi.NewRouter()
	router.Handle("/api", says("roots"))
	router.Handle("/api/*", says("objects"))
	router.Handle("/apis", says("roots"))
	router.Handle("/apis/*", says("objects"))
	router.NotFound(says("nobody"))
	router.MethodNotAllowed(says("odd"))
	short := ObjectsFirst(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Who", "objects")
		w.Header().Set("Short", "yes")
	}, router)
	for _, c := range []struct {
		method, target, who, short string
	}{
		{"GET", "/api/v1/namespaces/a/pods/b?watch=1", "objects", "yes"},
		{"POST", "/apis/apps/v1/deployments", "objects", "yes"},
		{"DELETE", "/apis/", "objects", "yes"},
		{"GET", "/api", "roots", ""},
		{"GET", "/apis", "roots", ""},
		{"GET", "//api/v1/pods", "nobody", ""},
		{"GET", "/apiserver/v1/pods", "nobody", ""},
		{"GET", "/%61pi/v1/pods", "nobody", ""},
		{"GET", "/api%2Fv1/pods", "nobody", ""},
		{"GET", "/api/v1/pods/a%2Fb", "objects", ""},
		{"HEAD", "/api/v1/pods", "objects", ""},
		{"FOO", "/api/v1/pods", "odd", ""},
	} {
		for title, handler := range map[string]http.Handler{"router": router, "shortcut": short} {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(c.method, c.target, nil))
			if got := w.Header().Get("Who"); got != c.who {
				t.Errorf("%s: %s %s is answered by %q, want %q", title, c.method, c.target, got, c.who)
			}
			if got := w.Header().Get("Short"); title == "shortcut" && got != c.short {
				t.Errorf("%s %s: short %q, want %q", c.method, c.target, got, c.short)
			}
		}
	}
}
