package discovery

import (
	"net/http/httptest"
	"strings"
	"testing"

	"apilet/internal/apitest"
	"apilet/internal/scheme"
)

func TestMain(m *testing.M) { apitest.Main(m) }

// askDiscovery sends a GET to the discovery or OpenAPI handler. headers are name, value, ...
func askDiscovery(t testing.TB, reg *scheme.Registry, target string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest("GET", target, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	switch {
	case strings.HasPrefix(target, "/openapi/v2"):
		ServeSwagger(reg, nil, w, r)
	case strings.HasPrefix(target, "/openapi/"):
		ServeOpenAPI(reg, "", w, r)
	default:
		ServeDiscovery(reg, w, r)
	}
	return w
}
