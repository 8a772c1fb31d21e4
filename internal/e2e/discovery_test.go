package e2e

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/discovery"
	"apilet/internal/scheme"
)

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
		discovery.ServeSwagger(reg, nil, w, r)
	case strings.HasPrefix(target, "/openapi/"):
		discovery.ServeOpenAPI(reg, "", w, r)
	default:
		discovery.ServeDiscovery(reg, w, r)
	}
	return w
}

func TestAggregatedDiscoveryOnlyForThoseWhoKnowIt(t *testing.T) {
	t.Parallel()
	const sealed = "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	const v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	const v2beta1 = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
	cases := []struct{ name, accept, contentType, kind string }{
		{"kubectl 1.33", v2 + "," + v2beta1 + ",application/json", v2, "APIGroupDiscoveryList"},
		{"kubectl 1.27", v2beta1 + ",application/json", "application/json", "APIGroupList"},
		{"spaces and another order", "application/json; as=APIGroupDiscoveryList; v=v2; g=apidiscovery.k8s.io", v2, "APIGroupDiscoveryList"},
		{"protobuf first", sealed + "," + v2, sealed, "APIGroupDiscoveryList"},
		{"protobuf second", v2 + "," + sealed, v2, "APIGroupDiscoveryList"},
		{"legacy protobuf", "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf", "APIGroupList"},
		{"plain first", "application/json," + v2 + ";q=0.9", "application/json", "APIGroupList"},
		{"nothing", "", "application/json", "APIGroupList"},
		{"only v2beta1", v2beta1, "application/json", "Status"},
	}
	reg := scheme.NewRegistry()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := askDiscovery(t, reg, "/apis", "Accept", c.accept)
			var got metav1.TypeMeta
			body, err := readable(w.Header(), w.Body.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			json.Unmarshal(body, &got)
			if got.Kind != c.kind || w.Header().Get("Content-Type") != c.contentType {
				t.Errorf("got %s as %s, want %s as %s", got.Kind, w.Header().Get("Content-Type"), c.kind, c.contentType)
			}
		})
	}
}
