package discovery

import (
	"net/http/httptest"
	"os/exec"
	"path/filepath"
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
		ServeSwagger(reg, w, r)
	case strings.HasPrefix(target, "/openapi/"):
		ServeOpenAPI(reg, w, r)
	default:
		ServeDiscovery(reg, w, r)
	}
	return w
}

// kubectls finds the oldest and the newest of the versioned binaries beside the kubectl in PATH.
func kubectls(t *testing.T) []string {
	path, err := exec.LookPath("kubectl")
	if err != nil || testing.Short() {
		t.Skip("no kubectl")
	}
	real, _ := filepath.EvalSymlinks(path)
	found, _ := filepath.Glob(filepath.Join(filepath.Dir(real), "kubectl.1.*"))
	if len(found) < 2 {
		return []string{path}
	}
	return []string{found[0], found[len(found)-1]}
}

func customFoo() *scheme.Resource {
	return &scheme.Resource{Group: "x.io", Version: "v1", Kind: "Foo", Plural: "foos", Singular: "foo", StorageGroup: "x.io", Namespaced: true,
		Verbs: []string{"create", "get", "list"}}
}
