package aggregation

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/discovery"
)

// TestNamespacesNameTheAPIServiceTheyWaitFor, and quote no more than a part of its server's words.
func TestNamespacesNameTheAPIServiceTheyWaitFor(t *testing.T) {
	for body, want := range map[string]string{
		`{}`: "things.g of APIService v1.g: the response to a list is not a list",
		fmt.Sprintf(`{"message":%q}`, strings.Repeat("é", 1<<20)): "things.g of APIService v1.g: éé",
	} {
		back := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if len(body) > 2 {
				w.WriteHeader(http.StatusForbidden)
			}
			_, _ = w.Write([]byte(body))
		}))
		defer back.Close()
		transport := back.Client().Transport.(*http.Transport)
		at := &route{host: back.Listener.Addr().String(), plain: transport, upgrades: transport}
		things := []apidiscoveryv2.APIResourceDiscovery{{Resource: "things", Scope: apidiscoveryv2.ScopeNamespace, Verbs: []string{"list", "delete"}}}
		tab := &table{
			servers: map[metav1.GroupVersion]*server{{Group: "g", Version: "v1"}: {name: "v1.g", route: at, available: true}, {Group: "away", Version: "v2"}: {name: "v2.away", route: at}},
			others: &discovery.RemoteVersions{All: []discovery.RemoteVersion{{Group: "g", Version: "v1", Resources: things},
				{Group: "away", Version: "v2", Stale: true}}},
		}
		rest := tab.emptyNamespace(t.Context(), "n")
		if len(rest.Errors) != 1 || !strings.HasPrefix(rest.Errors[0].Error(), want) || len(rest.Errors[0].Error()) > 2*maxText {
			t.Errorf("%.80s: failed %.300v", body, rest.Errors)
		}
		if rest.Err == nil || !strings.Contains(rest.Err.Error(), "away/v2 (APIService v2.away)") {
			t.Errorf("unknown %v", rest.Err)
		}
	}
}
