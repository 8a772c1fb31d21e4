package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
	"apilet/internal/bootstrap"
	"apilet/internal/store"
)

const (
	asApply    = "Content-Type: application/apply-patch+yaml"
	inFresh    = "/api/v1/namespaces/fresh/"
	ownRootCA  = inFresh + "configmaps/kube-root-ca.crt"
	ownAccount = inFresh + "serviceaccounts/default"
)

// startSecured starts a server with a new CA. Requests use the administrator's certificate.
func startSecured(t *testing.T, flags ...string) *testServer {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	s := startTest(t, append(flags, "--cert-dir="+filepath.Join(t.TempDir(), "certs"), "--kubeconfig="+file)...)
	s.client, _ = kubetest.KubeconfigClient(t, file)
	return s
}

// ownCA returns the CA certificate that the server has created.
func (s *testServer) ownCA() string {
	s.t.Helper()
	return string(apitest.ReadFile(s.t, filepath.Join(s.flag("cert-dir"), "ca.crt")))
}

// TestNamespaceHasItsFirstObjects checks that the default objects exist as soon as the namespace is
// created. It uses each kind of request that can create a namespace.
func TestNamespaceHasItsFirstObjects(t *testing.T) {
	t.Parallel()
	for title, start := range map[string]func(*testing.T, ...string) *testServer{
		"with an authority": startSecured, "plain": func(t *testing.T, flags ...string) *testServer { return startTest(t, flags...) },
	} {
		t.Run(title, func(t *testing.T) {
			s := start(t)
			s.want(201, "POST", "/api/v1/namespaces", `{"metadata":{"name":"fresh"}}`)
			s.want(201, "PATCH", "/api/v1/namespaces/applied?fieldManager=x", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"applied"}}`, asApply)
			generated := s.want(201, "POST", "/api/v1/namespaces", `{"metadata":{"generateName":"generated-"}}`).get("metadata.name").String()
			s.want(201, "POST", "/api/v1/namespaces?dryRun=All", `{"metadata":{"name":"dry"}}`)
			want := []string{"kube-root-ca.crt"}
			if title == "plain" {
				want = nil
			}
			for _, namespace := range append([]string{"fresh", "applied", generated}, bootstrap.FirstNamespaces...) {
				at := "/api/v1/namespaces/" + namespace
				s.want(201, "POST", at+"/serviceaccounts/default/token", `{"spec":{}}`)
				maps := s.want(200, "GET", at+"/configmaps?fieldSelector=metadata.name!=extension-apiserver-authentication", "")
				if got := namesOf(maps.get("items")); fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%s has the config maps %v, want %v", namespace, got, want)
				}
				if ca := maps.get(`items.0.data.ca\.crt`).String(); title != "plain" && ca != s.ownCA() {
					t.Errorf("%s publishes the authority %q", namespace, ca)
				}
			}
			s.want(404, "GET", "/api/v1/namespaces/dry/serviceaccounts/default", "")
		})
	}
}

func namesOf(items gjson.Result) (names []string) {
	for _, item := range items.Array() {
		names = append(names, item.Get("metadata.name").String())
	}
	return names
}

// TestNamespacesWithoutDefaults checks that a flag disables the default objects of new namespaces.
func TestNamespacesWithoutDefaults(t *testing.T) {
	t.Parallel()
	s := startSecured(t, "--namespace-defaults=false")
	s.want(201, "POST", "/api/v1/namespaces", `{"metadata":{"name":"fresh"}}`)
	for path, want := range map[string]string{"serviceaccounts": "[]", "configmaps": "[extension-apiserver-authentication]"} {
		if got := fmt.Sprint(namesOf(s.want(200, "GET", "/api/v1/"+path, "").get("items"))); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}

// TestClientAuthoritiesArePublished checks that the CAs of client certificates are published for
// other servers, and that the other data of the ConfigMap is kept.
func TestClientAuthoritiesArePublished(t *testing.T) {
	t.Parallel()
	const path = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
	s := startTest(t)
	s.want(404, "GET", path, "")
	data, authority := filepath.Join(t.TempDir(), "apilet.db"), filepath.Join(t.TempDir(), "ca.crt")
	s = startSecured(t, onFile(data))
	own := s.ownCA()
	apitest.Expect(t, s.want(200, "GET", path, "").get("data.client-ca-file"), own)
	s.want(200, "PATCH", path, `{"metadata":{"labels":{"a":"b"}},"data":{"requestheader-allowed-names":"[]"}}`, asMergePatch)
	if err := os.WriteFile(authority, []byte(own), 0o600); err != nil {
		t.Fatal(err)
	}
	client := s.client
	s.flags = append(s.flags, "--client-ca-file="+authority)
	s.restart()
	s.client = client
	a := s.want(200, "GET", path, "")
	apitest.Expect(t, a.get("data.client-ca-file"), own+own)
	apitest.Expect(t, a.get("data.requestheader-allowed-names"), "[]")
	apitest.Expect(t, a.get("metadata.labels.a"), "b")
}

// TestFirstObjectsComeBack checks that the server restores default objects after a delete or a
// change. It keeps metadata that clients have added.
func TestFirstObjectsComeBack(t *testing.T) {
	t.Parallel()
	s := startSecured(t)
	s.want(201, "POST", "/api/v1/namespaces", `{"metadata":{"name":"fresh"}}`)
	for _, path := range []string{ownAccount, ownRootCA} {
		uid := s.want(200, "GET", path, "").get("metadata.uid").String()
		s.want(200, "DELETE", path, "")
		apitest.WaitFor(t, path+" is back", func() bool {
			a := s.send("GET", path, "")
			return a.code == 200 && a.get("metadata.uid").String() != uid
		})
	}
	s.want(200, "DELETE", inFresh+"configmaps", "")
	apitest.WaitFor(t, "it is back", func() bool { return s.send("GET", ownRootCA, "").code == 200 })
	for _, change := range []string{`{"metadata":{"labels":{"a":"b"}},"data":{"ca.crt":"forged"}}`, `{"data":{"more":"x"}}`, `{"data":null}`} {
		s.want(200, "PATCH", ownRootCA, change, asMergePatch)
		apitest.WaitFor(t, "the authority is published again after "+change, func() bool {
			data := s.want(200, "GET", ownRootCA, "").get("data")
			return len(data.Map()) == 1 && data.Get(`ca\.crt`).String() == s.ownCA()
		})
	}
	apitest.Expect(t, s.want(200, "GET", ownRootCA, "").get("metadata.labels.a"), "b")
}

// TestFirstObjectsDoNotHoldTheirNamespace checks that the server does not restore default objects
// in a terminating namespace.
func TestFirstObjectsDoNotHoldTheirNamespace(t *testing.T) {
	t.Parallel()
	s := startSecured(t)
	s.want(201, "POST", "/api/v1/namespaces", `{"metadata":{"name":"fresh"}}`)
	s.want(201, "POST", inFresh+"configmaps", `{"metadata":{"name":"held","finalizers":["test/hold"]}}`)
	s.want(200, "DELETE", "/api/v1/namespaces/fresh", "")
	apitest.WaitFor(t, "only what is held is there", func() bool {
		return fmt.Sprint(namesOf(s.want(200, "GET", inFresh+"configmaps", "").get("items"))) == "[held]" && s.send("GET", ownAccount, "").code == 404
	})
	s.want(200, "PATCH", inFresh+"configmaps/held", `{"metadata":{"finalizers":null}}`, asMergePatch)
	apitest.WaitFor(t, "the namespace is gone", func() bool { return s.send("GET", "/api/v1/namespaces/fresh", "").code == 404 })
	s.want(404, "GET", ownRootCA, "")
}

// TestRefusedFirstObjectsAreTriedAgain checks that the server tries again if a quota rejects a
// default object. Other objects must not wait for it.
func TestRefusedFirstObjectsAreTriedAgain(t *testing.T) {
	t.Parallel()
	s := startSecured(t)
	s.want(201, "POST", "/api/v1/namespaces", `{"metadata":{"name":"fresh"}}`)
	quota := inFresh + "resourcequotas"
	s.want(201, "POST", quota, `{"metadata":{"name":"none"},"spec":{"hard":{"count/configmaps":"1"}}}`)
	s.want(200, "DELETE", ownRootCA, "")
	for s.send("POST", inFresh+"configmaps", configMap("squatter")).code != 201 { // the server may be faster
		s.want(200, "DELETE", ownRootCA, "")
	}
	s.want(200, "DELETE", ownAccount, "")
	apitest.WaitFor(t, "the account is back", func() bool { return s.send("GET", ownAccount, "").code == 200 })
	s.want(201, "POST", "/api/v1/namespaces", `{"metadata":{"name":"other"}}`)
	s.want(200, "GET", "/api/v1/namespaces/other/configmaps/kube-root-ca.crt", "")
	s.want(404, "GET", ownRootCA, "")
	s.want(200, "PATCH", quota+"/none", `{"spec":{"hard":{"count/configmaps":"2"}}}`, asMergePatch)
	apitest.WaitFor(t, "the authority is published", func() bool { return s.send("GET", ownRootCA, "").code == 200 })
}

// TestOlderNamespacesGetTheirFirstObjects checks that existing namespaces without default objects
// get them at the next start.
func TestOlderNamespacesGetTheirFirstObjects(t *testing.T) {
	t.Parallel()
	s := startTest(t, onSomeFile(t), "--namespace-defaults=false") // like an older version
	s.want(201, "POST", "/api/v1/namespaces", `{"metadata":{"name":"fresh"}}`)
	s.want(404, "GET", ownAccount, "")
	s.flags = append(s.flags, "--namespace-defaults=true")
	s.restart()
	apitest.WaitFor(t, "the account is there", func() bool { return s.send("GET", ownAccount, "").code == 200 })
	s.halt()
	rev := openTestStore(t, s.flag("data"), func(st *store.Store) int64 { return st.Revision() })
	s.start()
	s.want(200, "GET", ownAccount, "")
	s.halt()
	events := openTestStore(t, s.flag("data"), func(st *store.Store) []store.Event {
		events, _, err := st.Events(store.Everything, rev, 1<<20, nil)
		if err != nil {
			t.Error(err)
		}
		return events
	})
	for i, ev := range events {
		// The Endpoints and the EndpointSlice contain the new port.
		if i > 1 || !strings.HasSuffix(ev.Key, "/default/kubernetes") {
			t.Errorf("a start with nothing to do wrote %s", ev.Key)
		}
	}
}

// TestOwnEndpointsFollowTheListener checks that Endpoints and EndpointSlice have the address of the
// running server, also after a restart.
func TestOwnEndpointsFollowTheListener(t *testing.T) {
	t.Parallel()
	s := startTest(t, onSomeFile(t))
	const endpoints = "/api/v1/namespaces/default/endpoints/kubernetes"
	const slice = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes"
	for range 2 {
		port := s.url[strings.LastIndex(s.url, ":")+1:]
		a := s.want(200, "GET", endpoints, "")
		apitest.Expect(t, a.get("subsets").Raw, `[{"addresses":[{"ip":"127.0.0.1"}],"ports":[{"name":"https","port":`+port+`,"protocol":"TCP"}]}]`)
		apitest.Expect(t, a.get(`metadata.labels.endpointslice\.kubernetes\.io/skip-mirror`), "true")
		a = s.want(200, "GET", slice, "")
		apitest.Expect(t, a.get("addressType"), "IPv4")
		apitest.Expect(t, a.get("endpoints").Raw, `[{"addresses":["127.0.0.1"],"conditions":{"ready":true}}]`)
		apitest.Expect(t, a.get("ports").Raw, `[{"name":"https","protocol":"TCP","port":`+port+`}]`)
		apitest.Expect(t, a.get(`metadata.labels.kubernetes\.io/service-name`), "kubernetes")
		s.want(201, "POST", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", `{"metadata":{"name":"here"},"webhooks":[{"name":"here.example.com",
			"clientConfig":{"service":{"namespace":"default","name":"kubernetes"}},"sideEffects":"None","admissionReviewVersions":["v1"],
			"rules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["configmaps"]}]}]}`)
		if got := s.want(500, "POST", "/api/v1/namespaces/default/configmaps", configMap("a")).failure(); !strings.Contains(got, "server gave HTTP response to HTTPS client") {
			t.Errorf("the service does not lead to this server, which speaks plain HTTP: %s", got)
		}
		s.want(200, "DELETE", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/here", "")
		s.restart()
	}
}

func TestGeneratedNamespaceIsLabelledWithItsName(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	ns := s.want(201, "POST", "/api/v1/namespaces", `{"metadata":{"generateName":"g-"}}`)
	name, label := ns.get("metadata.name").String(), ns.get(`metadata.labels.kubernetes\.io/metadata\.name`).String()
	if name == "" || label != name {
		t.Errorf("namespace %q is labelled %q", name, label)
	}
}
