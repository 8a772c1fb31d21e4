package e2e

// These tests run extension API servers behind the server under test, and check the requests and
// responses on both sides. The expected responses come from a kube-apiserver with the same
// extension servers. The flags -oracle URL -token TOKEN -update write testdata/aggregation.txt
// again.

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
)

// ---- An extension API server ----

// An extension is an API server for one group version. It serves the resource things and only
// stores their names.
type extension struct {
	*httptest.Server
	bundle string // base64 of the CA certificate
	port   int

	mu     sync.Mutex // guards the fields below
	things map[string][]string
	asked  []*http.Request                                          // all requests except for discovery
	answer func(w http.ResponseWriter, r *http.Request) (done bool) // called first; may be nil
	held   chan struct{}                                            // closed at the end of the test

	shared []byte // its OpenAPI schema of DeleteOptions
}

const extPath = "/apis/ext.example.com/v1"

// startExtension starts an extension server. It requests client certificates and verifies them
// itself.
func startExtension(t *testing.T) *extension {
	t.Helper()
	ca, file := apitest.NewCA(t)
	certFile, keyFile := ca.IssuePair(t, &x509.Certificate{SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: "ext"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"ext.infra.svc"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	e := &extension{bundle: base64.StdEncoding.EncodeToString(apitest.ReadFile(t, file)), things: map[string][]string{}, held: make(chan struct{}), shared: []byte("{}")}
	e.Server = httptest.NewUnstartedServer(e)
	e.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert}
	e.EnableHTTP2 = true
	e.Config.ErrorLog = nil
	e.StartTLS()
	e.port = e.Listener.Addr().(*net.TCPAddr).Port
	t.Cleanup(func() { close(e.held); e.CloseClientConnections(); e.Close() })
	return e
}

func (e *extension) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	answer := e.answer
	e.mu.Unlock()
	if answer != nil && answer(w, r) {
		return
	}
	send := func(code int, format string, args ...any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprintf(w, format, args...)
	}
	switch {
	case r.URL.Path == extPath:
		send(200, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"ext.example.com/v1","resources":[
			{"name":"things","singularName":"thing","namespaced":true,"kind":"Thing","verbs":["create","delete","deletecollection","get","list","watch"],"shortNames":["th"]},
			{"name":"things/echo","singularName":"","namespaced":true,"kind":"Thing","verbs":["get"]}]}`)
	case r.URL.Path == "/openapi/v3":
		send(200, `{"paths":{"apis/ext.example.com/v1":{"serverRelativeURL":"/openapi/v3/apis/ext.example.com/v1?hash=ABC"}}}`)
	case r.URL.Path == "/openapi/v3"+extPath:
		send(200, `{"openapi":"3.0.0","info":{"title":"ext","version":"1"},"paths":{}}`)
	case r.URL.Path == "/openapi/v2":
		w.Header().Set("ETag", `"e1"`)
		send(200, `{"swagger":"2.0","info":{"title":"ext","version":"1"},"parameters":{"p":{"name":"pretty","in":"query","type":"string"}},
			"paths":{"/apis/ext.example.com/v1/things":{"get":{"operationId":"listThings","parameters":[{"$ref":"#/parameters/p"}],
				"responses":{"200":{"description":"OK","schema":{"$ref":"#/definitions/com.example.ext.v1.Thing"}}}}},"/apis/other.example.com/v1/things":{}},
			"definitions":{"com.example.ext.v1.Thing":{"type":"object","properties":{"metadata":{"$ref":"#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"},
					"options":{"$ref":"#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"},
					"next":{"type":"array","items":{"$ref":"#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta_v2"}},
					"set":{"$ref":"#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.Preconditions"}}},
				"io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta":{"type":"object","description":"another's"},
				"io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta_v2":{"type":"object","description":"theirs alone","x-kubernetes-group-version-kind":[
					{"group":"ext.example.com","kind":"Thing","version":"v1"}]},
				"io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions":%s,
				"io.k8s.apimachinery.pkg.apis.meta.v1.Preconditions":{"type":"string"},"com.example.Unused":{"type":"object"}}}`, e.shared)
	case strings.HasSuffix(r.URL.Path, "/things/x/echo"):
		e.remember(r)
		body, _ := io.ReadAll(r.Body)
		doc, _ := json.Marshal(map[string]any{"method": r.Method, "uri": r.RequestURI, "header": r.Header, "body": string(body)})
		send(200, "%s", doc)
	case strings.Contains(r.URL.Path, "/things"):
		e.remember(r)
		e.serveThings(w, r, send)
	default:
		send(404, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
	}
}

func (e *extension) remember(r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked = append(e.asked, r)
}

func (e *extension) serveThings(w http.ResponseWriter, r *http.Request, send func(int, string, ...any)) {
	_, rest, _ := strings.Cut(r.URL.Path, "/namespaces/")
	namespace, _, _ := strings.Cut(rest, "/")
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case r.URL.Query().Get("watch") != "":
		w.Header().Set("Content-Type", "application/json")
		for _, name := range e.things[namespace] {
			fmt.Fprintf(w, `{"type":"ADDED","object":{"apiVersion":"ext.example.com/v1","kind":"Thing","metadata":{"name":%q}}}`+"\n", name)
		}
		w.(http.Flusher).Flush()
		e.mu.Unlock()
		select {
		case <-r.Context().Done():
		case <-e.held:
		}
		e.mu.Lock()
	case r.Method == "POST":
		body, _ := io.ReadAll(r.Body)
		name := gjson.GetBytes(body, "metadata.name").String()
		e.things[namespace] = append(e.things[namespace], name)
		send(201, `{"apiVersion":"ext.example.com/v1","kind":"Thing","metadata":{"name":%q,"namespace":%q}}`, name, namespace)
	case r.Method == "DELETE":
		delete(e.things, namespace)
		send(200, `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
	default:
		var items []string
		for _, name := range e.things[namespace] {
			items = append(items, fmt.Sprintf(`{"metadata":{"name":%q}}`, name))
		}
		send(200, `{"apiVersion":"ext.example.com/v1","kind":"ThingList","metadata":{"resourceVersion":"1"},"items":[%s]}`, strings.Join(items, ","))
	}
}

func (e *extension) answers(by func(w http.ResponseWriter, r *http.Request) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answer = by
}

func (e *extension) left(namespace string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.things[namespace])
}

// apiServiceOf returns the JSON of an APIService for a Service in namespace infra.
func apiServiceOf(group, service, more string) string {
	return `{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1.` + group + `"},"spec":{"group":"` + group +
		`","version":"v1","groupPriorityMinimum":17450,"versionPriority":15,"service":{"namespace":"infra","name":"` + service + `","port":` + more + `}}`
}

// register creates an APIService for the extension, and waits until the group is served.
func (s *testServer) register(e *extension) {
	s.t.Helper()
	s.want(201, "POST", "/api/v1/namespaces", `{"metadata":{"name":"infra"}}`)
	s.want(201, "POST", "/api/v1/namespaces/infra/services", `{"metadata":{"name":"ext"},"spec":{"type":"ExternalName","externalName":"localhost"}}`)
	s.want(201, "POST", apiServices, apiServiceOf("ext.example.com", "ext", strconv.Itoa(e.port)+`},"caBundle":"`+e.bundle+`"`))
	s.awaitAvailable("ext.example.com", "Passed")
	apitest.WaitFor(s.t, "the types to be known", func() bool {
		return strings.Contains(string(s.want(200, "GET", "/apis", "", acceptAggregated).body), `"thing"`)
	})
}

const acceptAggregated = "Accept: application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// awaitAvailable waits until the condition Available has the reason, and returns the condition.
func (s *testServer) awaitAvailable(group, reason string) (condition gjson.Result) {
	s.t.Helper()
	return s.awaitCondition("v1."+group, reason)
}

func (s *testServer) awaitCondition(name, reason string) (condition gjson.Result) {
	s.t.Helper()
	apitest.WaitFor(s.t, name+" to be "+reason, func() bool {
		condition = s.want(200, "GET", apiServices+"/"+name, "").get(`status.conditions.#(type=="Available")`)
		return condition.Get("reason").String() == reason
	})
	return condition
}

// startKnown starts a server with the user admin in group system:masters, like the kube-apiserver
// of the oracle. With -oracle it returns a client of that kube-apiserver.
func startKnown(t *testing.T, flags ...string) *testServer {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	if *kubetest.OracleURL != "" {
		return &testServer{t: t, url: *kubetest.OracleURL, client: client, headers: []string{"Authorization: Bearer " + *kubetest.OracleToken}}
	}
	users := apitest.TempFile(t, "tokens.csv", "admin-token,admin,1,\"system:masters\"\nalice-token,alice,2,\"dev\"\n")
	s := startTest(t, append(flags, "--token-auth-file="+users, "--cert-dir="+filepath.Join(t.TempDir(), "certs"))...)
	s.client, s.headers = client, []string{"Authorization: Bearer admin-token"}
	return s
}

// ---- Comparison with kube-apiserver ----

const metaTypes = "io.k8s.apimachinery.pkg.apis.meta.v1."

// unsteady matches the text that differs between runs.
var unsteady = regexp.MustCompile(`localhost:\d+|127\.0\.0\.1:\d+|ext\.infra\.svc:\d+|[0-9a-f]{8}-[0-9a-f-]{27}|Go-http-client/\d\.\d|system:masters|1\.1 apilet-\S+"`)

// TestAggregationIsKubeAPIServers compares the requests to an extension server, and the responses
// to the client, with those of kube-apiserver.
func TestAggregationIsKubeAPIServers(t *testing.T) {
	if *kubetest.OracleURL == "" {
		t.Parallel()
	}
	s, e := startKnown(t), startExtension(t)
	var shared map[string]any // both servers define this type
	_ = json.Unmarshal([]byte(s.want(200, "GET", "/openapi/v2", "").get("definitions."+strings.ReplaceAll(metaTypes, ".", `\.`)+"DeleteOptions").Raw), &shared)
	shared["x-kubernetes-group-version-kind"] = []any{map[string]string{"group": "ext.example.com", "kind": "DeleteOptions", "version": "v1"}}
	e.shared, _ = json.Marshal(shared)
	s.register(e)
	var out strings.Builder
	show := func(what string, lines ...any) {
		text := strings.TrimSpace(fmt.Sprintln(lines...))
		fmt.Fprintf(&out, "## %s\n%s\n", what, unsteady.ReplaceAllString(text, "…"))
	}
	apitest.WaitFor(t, "its description to be known", func() bool {
		return strings.Contains(string(s.want(200, "GET", "/openapi/v3", "").body), "ext.example.com/v1?hash=ABC")
	})
	const echo = extPath + "/namespaces/a/things/x/echo"
	for _, asked := range [][]string{
		{"GET", echo + "?b=2&a=%20x", ""},
		{"GET", echo, "", "X-Remote-User: root", "X-Remote-Group: system:masters", "X-Remote-Extra-Team: red", "X-Forwarded-For: 192.0.2.1"},
		{"GET", echo, "", "Impersonate-User: bob", "Impersonate-Uid: u1", "Impersonate-Group: g1", "Impersonate-Group: system:masters", "Impersonate-Extra-Example.com%2fteam: red"},
		{"POST", echo, `{"a":1}`, "Content-Type: application/json"},
	} {
		a := s.send(asked[0], asked[1], asked[2], asked[3:]...)
		show(strings.Join(asked, " "), a.code, a.header["Content-Type"], a.get("method"), a.get("uri"), a.get("body"))
		header := a.get("header").Map()
		for _, name := range slices.Sorted(maps.Keys(header)) {
			if name != "Via" && !strings.HasPrefix(name, "User-Agent") && name != "Accept-Encoding" && name != "Traceparent" {
				fmt.Fprintf(&out, "%s: %s\n", name, unsteady.ReplaceAllString(header[name].Raw, "…"))
			}
		}
	}
	for _, by := range []func(w http.ResponseWriter){
		func(w http.ResponseWriter) { w.Header().Set("Location", "http://192.0.2.1/"); w.WriteHeader(302) },
		func(w http.ResponseWriter) { w.Header().Set("Retry-After", "7"); http.Error(w, "teapot", 418) },
	} {
		e.answers(func(w http.ResponseWriter, r *http.Request) bool {
			if strings.HasSuffix(r.URL.Path, "/things") {
				by(w)
				return true
			}
			return false
		})
		a := s.send("GET", extPath+"/namespaces/a/things", "")
		show("an answer", a.code, a.header["Location"], a.header["Retry-After"], string(a.body))
		e.answers(nil)
	}
	s.want(201, "POST", "/api/v1/namespaces/infra/services", `{"metadata":{"name":"bare"},"spec":{"ports":[{"port":443,"name":"https"}]}}`)
	s.want(201, "POST", "/api/v1/namespaces/infra/services", `{"metadata":{"name":"slow"},"spec":{"ports":[{"port":443,"name":"https"}]}}`)
	s.want(201, "POST", "/apis/discovery.k8s.io/v1/namespaces/infra/endpointslices", `{"metadata":{"name":"slow","labels":{"kubernetes.io/service-name":"slow"}},
		"addressType":"IPv4","ports":[{"name":"https","port":443}],"endpoints":[{"addresses":["192.0.2.7"],"conditions":{"ready":false}}]}`)
	for _, away := range [][3]string{{"gone.example.com", "nobody", "ServiceNotFound"}, {"port.example.com", "bare", "ServicePortError"},
		{"bare.example.com", "bare", "EndpointsNotFound"}, {"slow.example.com", "slow", "MissingEndpoints"}, {"ca.example.com", "ext", "FailedDiscoveryCheck"}} {
		port := "443"
		switch away[0] {
		case "port.example.com":
			port = "444"
		case "ca.example.com":
			port = strconv.Itoa(e.port)
		}
		created := s.want(201, "POST", apiServices, apiServiceOf(away[0], away[1], port+"}"))
		condition := s.awaitAvailable(away[0], away[2])
		show(away[0], created.get("status"), condition.Get("status"), condition.Get("message"))
	}
	for _, path := range []string{"/apis/gone.example.com/v1", "/apis/gone.example.com/v1/things", "/apis/gone.example.com", "/apis/gone.example.com/v2", "/apis/ext.example.com",
		"/apis/ext.example.com/v1/", "/openapi/v3/apis/ext.example.com/v1?hash=ABC"} {
		a := s.send("GET", path, "")
		show("GET "+path, a.code, a.header["Content-Type"], string(a.body))
	}
	var groups, legacy []string
	for _, g := range s.want(200, "GET", "/apis", "").get("groups").Array() {
		legacy = append(legacy, g.Get("name").String())
	}
	for _, g := range s.want(200, "GET", "/apis", "", acceptAggregated).get("items").Array() {
		groups = append(groups, g.Get("metadata.name").String())
		if strings.HasSuffix(g.Get("metadata.name").String(), "example.com") {
			show("aggregated "+g.Get("metadata.name").String(), g.Get("versions"))
		}
	}
	show("groups", legacy, slices.Equal(legacy, groups))
	var swagger answer
	apitest.WaitFor(t, "its description of version 2 to be known", func() bool {
		swagger = s.want(200, "GET", "/openapi/v2", "")
		return strings.Contains(string(swagger.body), "com.example.ext.v1.Thing")
	})
	for _, name := range []string{"com.example.ext.v1.Thing", metaTypes + "ObjectMeta_v2", metaTypes + "ObjectMeta_v3", metaTypes + "ObjectMeta_v4", metaTypes + "Preconditions_v2",
		metaTypes + "DeleteOptions_v2"} {
		var doc any
		_ = json.Unmarshal([]byte(swagger.get("definitions."+strings.ReplaceAll(name, ".", "\\.")).Raw), &doc)
		sorted, _ := json.Marshal(doc)
		show("OpenAPI v2 "+name, string(sorted))
	}
	show("OpenAPI v2", swagger.get("definitions."+strings.ReplaceAll(metaTypes, ".", `\.`)+`DeleteOptions.x-kubernetes-group-version-kind.#(group=="ext.example.com")`),
		swagger.get("paths./apis/ext\\.example\\.com/v1/things.get.responses.200.schema.$ref"))
	show("OpenAPI", s.want(200, "GET", "/openapi/v3", "").get(`paths.apis/ext\.example\.com/v1`))
	const file = "testdata/aggregation.txt"
	if *update {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want := string(apitest.ReadFile(t, file)); out.String() != want {
		t.Errorf("%s", apitest.FirstDifference(out.String(), want))
	}
}

// ---- Security ----

// An extension server trusts the user in the headers because of the proxy's client certificate,
// which it verifies with the published CA. It does not receive the client's credentials.
func TestServersBehindKnowWhoSpeaks(t *testing.T) {
	t.Parallel()
	s, e := startKnown(t, onFile(filepath.Join(t.TempDir(), "a.db"))), startExtension(t)
	s.register(e)
	const echo = extPath + "/namespaces/a/things/x/echo"
	s.want(403, "GET", echo, "", "Authorization: Bearer alice-token")
	s.namespace("a")
	s.grant("alice", "a", "{apiGroups: [ext.example.com], resources: [things/echo], verbs: [get]}")
	believed := func() {
		t.Helper()
		a := s.want(200, "GET", echo, "", "Authorization: Bearer alice-token", "X-Remote-User: root", "x-remote-extra-a: b", "Cookie: a=b",
			"Sec-Websocket-Protocol: base64url.bearer.authorization.k8s.io.YWxpY2UtdG9rZW4, v4.channel.k8s.io")
		header := a.get("header").Raw
		if strings.Contains(header, "alice-token") || strings.Contains(header, "YWxpY2U") || strings.Contains(header, "root") || strings.Contains(header, "Cookie") ||
			a.get("header.X-Remote-User").Raw != `["alice"]` || a.get("header.X-Remote-Group").Raw != `["dev","system:authenticated"]` ||
			a.get("header.Sec-Websocket-Protocol").Raw != `["v4.channel.k8s.io"]` {
			t.Errorf("it was shown %s", header)
		}
		published := s.want(200, "GET", "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication", "").get("data")
		for key, want := range map[string]string{"username-headers": `["X-Remote-User"]`, "uid-headers": `["X-Remote-Uid"]`, "group-headers": `["X-Remote-Group"]`,
			"extra-headers-prefix": `["X-Remote-Extra-"]`, "allowed-names": `["front-proxy-client"]`} {
			apitest.Expect(t, published.Get("requestheader-"+key), want)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM([]byte(published.Get("requestheader-client-ca-file").String())) {
			t.Fatalf("no authority is published: %s", published)
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		shown := e.asked[len(e.asked)-1].TLS.PeerCertificates
		if len(shown) == 0 || shown[0].Subject.CommonName != "front-proxy-client" {
			t.Fatalf("it was shown %d certificates", len(shown))
		}
		if _, err := shown[0].Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
			t.Error(err)
		}
		if strings.Contains(published.Get("client-ca-file").String(), strings.TrimSpace(published.Get("requestheader-client-ca-file").String())) {
			t.Error("clients' authority is the proxy's: any client's certificate would pass for this server's")
		}
	}
	believed()
	before := s.want(200, "GET", "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication", "").rev()
	client := s.client
	s.restart()
	s.client = client
	apitest.WaitFor(t, "it to be served again", func() bool { return s.send("GET", echo, "").code == 200 })
	believed()
	if now := s.want(200, "GET", "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication", "").rev(); now != before {
		t.Error("the authority is another after a restart")
	}
}

// A path is rejected if the extension server could interpret it differently from the server that
// authorized it. A request that has already passed through this server is also rejected.
func TestAmbiguousPathsAreNotPassedOn(t *testing.T) {
	t.Parallel()
	s, e := startTest(t), startExtension(t)
	s.register(e)
	for _, path := range []string{"/namespaces/a%2Fb/things", "/namespaces/a/things/../../b/things", "/namespaces/a/things/%2e%2e/x", "/namespaces//things", "/namespaces/a/things/x%5cy"} {
		if code, rest := s.raw("GET " + extPath + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"); code != 400 && code != 404 {
			t.Errorf("%s: %d %s", path, code, rest)
		}
	}
	e.mu.Lock()
	asked, via := len(e.asked), ""
	e.mu.Unlock()
	if asked > 0 {
		t.Errorf("%d of them were passed on", asked)
	}
	if via = s.want(200, "GET", extPath+"/namespaces/a/things/x/echo", "").get("header.Via.0").String(); via == "" {
		t.Fatal("it does not say through whom")
	}
	if a := s.send("GET", extPath+"/namespaces/a/things/x/echo", "", "Via: "+via); a.code != http.StatusLoopDetected {
		t.Errorf("a loop: %d %s", a.code, a.body)
	}
}

// As in kube-apiserver, the audit events of forwarded requests never contain bodies, regardless of
// the policy's level. If this server responds itself, the event contains them.
func TestAuditTellsNoBodiesOfServersBehind(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "audit.log")
	policy := apitest.TempFile(t, "policy.yaml", "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- level: RequestResponse\n  resources:\n"+
		"  - {group: ext.example.com}\n  - {group: '', resources: [configmaps]}\n- level: None\n")
	s, e := startTest(t, "--audit-policy-file="+policy, "--audit-log-path="+log), startExtension(t)
	s.register(e)
	s.want(201, "POST", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"own"}}`)
	s.want(201, "POST", extPath+"/namespaces/a/things", `{"metadata":{"name":"one"}}`)
	s.want(200, "GET", extPath+"/namespaces/a/things", "")
	s.want(400, "GET", extPath+"/namespaces/a//things/x", "")
	var told []string
	apitest.WaitFor(t, "the events", func() bool {
		told = nil
		for line := range strings.Lines(string(apitest.ReadFile(t, log))) {
			told = append(told, fmt.Sprint(gjson.Get(line, "verb"), " ", gjson.Get(line, "requestObject.kind"), " ", gjson.Get(line, "responseObject.kind"), " ",
				gjson.Get(line, "responseStatus.code")))
		}
		return len(told) >= 4
	})
	if want := []string{"create ConfigMap ConfigMap 201", "create   201", "list   200", "get  Status 400"}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}

// If an extension server misbehaves, only its own clients may be affected.
func TestHostileServersBehind(t *testing.T) {
	t.Parallel()
	s, e := startTest(t, "--request-timeout=6s"), startExtension(t)
	s.register(e)
	hold := func(http.ResponseWriter, *http.Request) bool { <-e.held; return true }
	endless := func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Content-Type", "application/json")
		for r.Context().Err() == nil {
			if _, err := w.Write([]byte(strings.Repeat("[", 64<<10))); err != nil {
				break
			}
		}
		return true
	}
	for what, c := range map[string]struct {
		answer func(w http.ResponseWriter, r *http.Request) bool
		codes  []int
	}{
		"nothing comes": {hold, []int{503, 504}},
		"a header without end": {func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("X-Long", strings.Repeat("x", 1<<20))
			return true
		}, []int{503}},
		"the connection is cut": {func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }, []int{503}},
		"an early hint, then the answer": {func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Set-Cookie", "a=b")
			w.WriteHeader(http.StatusEarlyHints)
			return true
		}, []int{200}},
		"it says who it would like to be": {func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Access-Control-Allow-Origin", "*")
			w.Header().Set("Set-Cookie", "a=b")
			w.Header().Set("Audit-Id", "forged")
			return true
		}, []int{200}},
	} {
		e.answers(func(w http.ResponseWriter, r *http.Request) bool {
			return strings.HasSuffix(r.URL.Path, "/things") && c.answer(w, r)
		})
		a := s.send("GET", extPath+"/namespaces/a/things", "")
		if !slices.Contains(c.codes, a.code) || a.header.Get("Audit-Id") == "" && a.code == 200 || a.header.Get("Set-Cookie") != "" || a.header.Get("Access-Control-Allow-Origin") != "" || a.header.Get("Audit-Id") == "forged" {
			t.Errorf("%s: %d %v %.200s", what, a.code, a.header, a.body)
		}
	}
	if text := string(s.want(200, "GET", "/metrics", "").body); strings.Contains(text, `code="103"`) {
		t.Error("an interim response is counted as the outcome")
	}
	// The extension server now blocks, or sends endless data, for all requests including discovery.
	// Only its own group is affected.
	for _, answer := range []func(http.ResponseWriter, *http.Request) bool{endless, hold} {
		e.answers(answer)
		s.want(200, "PATCH", apiServices+"/v1.ext.example.com", fmt.Sprintf(`{"spec":{"versionPriority":%d}}`, time.Now().UnixNano()%900+16), asMergePatch)
		s.want(200, "PATCH", "/api/v1/namespaces/infra/services/ext", fmt.Sprintf(`{"metadata":{"labels":{"a":"x%d"}}}`, time.Now().UnixNano()), asMergePatch)
		for _, path := range []string{"/apis", "/openapi/v3", "/apis/apps/v1", "/apis/ext.example.com", "/openapi/v2"} {
			// Retry, because a request on a busy machine may exceed its six seconds.
			apitest.WaitFor(t, path, func() bool {
				a, err := s.try("GET", path, "")
				return err == nil && a.code == 200
			})
		}
		apitest.WaitFor(t, "the server's own types", func() bool { return s.send("GET", "/api/v1/namespaces/default/configmaps", "").code == 200 })
	}
	s.awaitAvailable("ext.example.com", "FailedDiscoveryCheck")
	// The router notices the condition shortly after it is stored.
	apitest.WaitFor(t, "requests to be refused at once", func() bool {
		a := s.send("GET", extPath+"/namespaces/a/things", "")
		return a.code == 503 && string(a.body) == "service unavailable\n"
	})
	if !strings.Contains(string(s.want(200, "GET", "/apis", "", acceptAggregated).body), `"freshness":"Stale"`) {
		t.Error("discovery does not tell")
	}
	if got := metricValue(s, `aggregator_unavailable_apiservice{name="v1.ext.example.com"}`); got != 1 {
		t.Errorf("the gauge is %v", got)
	}
	if got := metricValue(s, `aggregator_unavailable_apiservice_total{name="v1.ext.example.com",reason="FailedDiscoveryCheck"}`); got != 1 {
		t.Errorf("the counter is %v", got)
	}
	e.answers(nil)
	s.want(200, "PATCH", "/api/v1/namespaces/infra/services/ext", `{"metadata":{"labels":{"a":"y"}}}`, asMergePatch)
	s.awaitAvailable("ext.example.com", "Passed")
	s.want(200, "GET", extPath+"/namespaces/a/things", "")
}

// ---- Streams ----

// Forwarded watches are not limited by the request timeout. They end when this server stops.
// Upgraded connections forward data in both directions.
func TestStreamsPassThrough(t *testing.T) {
	t.Parallel()
	s, e := startTest(t, onSomeFile(t)), startExtension(t)
	s.register(e)
	s.want(201, "POST", extPath+"/namespaces/a/things", `{"metadata":{"name":"one"}}`)
	if names := s.want(200, "GET", extPath+"/namespaces/a/things", "").names(); names != "one" {
		t.Errorf("got %q", names)
	}
	// Set only now, because a busy machine may need longer for the requests above.
	s.flags = append(s.flags, "--request-timeout=2s")
	s.restart()
	apitest.WaitFor(t, "the extension to be served again", func() bool {
		return s.send("GET", extPath+"/namespaces/a/things", "").code == 200
	})
	w := s.watch(extPath + "/namespaces/a/things?watch=1")
	w.want("ADDED one")
	e.answers(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/echo") {
			return false
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err, r.Proto)
			return true
		}
		defer conn.Close()
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n%s\n", r.Header.Get("Upgrade"), r.Header.Get("X-Remote-User"))
		rw.Flush()
		for line, err := rw.ReadString('\n'); err == nil; line, err = rw.ReadString('\n') {
			fmt.Fprintf(rw, "again %s", line)
			rw.Flush()
		}
		return true
	})
	conn := s.dial()
	defer conn.Close()
	fmt.Fprintf(conn, "GET %s/namespaces/a/things/x/echo HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n", extPath)
	_ = conn.SetDeadline(apitest.Deadline(t))
	in := bufio.NewReader(conn)
	answer, err := http.ReadResponse(in, nil)
	if err != nil || answer.StatusCode != 101 || answer.Header.Get("Upgrade") != "SPDY/3.1" {
		t.Fatalf("%v %v", answer, err)
	}
	expect := func(want string) {
		t.Helper()
		if line, err := in.ReadString('\n'); err != nil || line != want+"\n" {
			t.Fatalf("got %q, %v; want %q", line, err, want)
		}
	}
	expect("system:unsecured")
	fmt.Fprintln(conn, "a")
	expect("again a")
	time.Sleep(2500 * time.Millisecond) // longer than the request timeout
	fmt.Fprintln(conn, "b")
	expect("again b")
	select {
	case f, open := <-w.frames:
		t.Errorf("the watch got %v, %v", f, open)
	default:
	}
	s.halt()
	if _, open := <-w.frames; open {
		t.Error("the watch goes on")
	}
}

// Deleting a namespace also deletes its objects on extension servers. The deletion waits while such
// a server is unavailable, but not after its APIService is deleted.
func TestNamespacesEmptyOnServersBehind(t *testing.T) {
	t.Parallel()
	s, e := startTest(t), startExtension(t)
	s.register(e)
	for _, name := range []string{"first", "second", "third"} {
		s.namespace(name)
		s.want(201, "POST", extPath+"/namespaces/"+name+"/things", `{"metadata":{"name":"one"}}`)
	}
	gone := func(name string) func() bool {
		return func() bool { return s.send("GET", "/api/v1/namespaces/"+name, "").code == 404 }
	}
	s.want(200, "DELETE", "/api/v1/namespaces/first", "")
	apitest.WaitFor(t, "the namespace to go", gone("first"))
	if n := e.left("first"); n != 0 {
		t.Errorf("%d things are left of it", n)
	}
	e.mu.Lock()
	for _, r := range e.asked {
		if r.Method == "DELETE" && r.Header.Get("X-Remote-User") != "system:serviceaccount:kube-system:namespace-controller" {
			t.Errorf("%s was sent by %v", r.URL, r.Header)
		}
	}
	e.mu.Unlock()
	e.answers(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(500); return true })
	s.want(200, "PATCH", "/api/v1/namespaces/infra/services/ext", `{"metadata":{"labels":{"a":"b"}}}`, asMergePatch)
	s.awaitAvailable("ext.example.com", "FailedDiscoveryCheck")
	s.want(200, "DELETE", "/api/v1/namespaces/second", "")
	apitest.WaitFor(t, "the namespace to say what it waits for", func() bool {
		c := s.send("GET", "/api/v1/namespaces/second", "").get(`status.conditions.#(type=="NamespaceDeletionDiscoveryFailure")`)
		return c.Get("status").String() == "True" && c.Get("message").String() == "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: "+
			"ext.example.com/v1: stale GroupVersion discovery: ext.example.com/v1 (APIService v1.ext.example.com)"
	})
	apitest.WaitFor(t, "the log to say it", func() bool {
		return strings.Contains(s.log.String(), "emptying namespace second") && strings.Contains(s.log.String(), "(APIService v1.ext.example.com)")
	})
	e.answers(nil)
	s.want(200, "PATCH", "/api/v1/namespaces/infra/services/ext", `{"metadata":{"labels":{"a":"c"}}}`, asMergePatch)
	apitest.WaitFor(t, "the namespace to go when the server is back", gone("second"))
	if n := e.left("second"); n != 0 {
		t.Errorf("%d things are left of it", n)
	}
	e.answers(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(500); return true })
	s.want(200, "PATCH", "/api/v1/namespaces/infra/services/ext", `{"metadata":{"labels":{"a":"d"}}}`, asMergePatch)
	s.awaitAvailable("ext.example.com", "FailedDiscoveryCheck")
	s.want(200, "DELETE", "/api/v1/namespaces/third", "")
	s.want(200, "DELETE", apiServices+"/v1.ext.example.com", "")
	apitest.WaitFor(t, "the namespace to go without it", gone("third"))
	s.want(404, "GET", "/apis/apps/v1/nothing", "")
	if a := s.send("GET", extPath+"/namespaces/a/things", ""); a.code != 404 {
		t.Errorf("nobody's any more: %d", a.code)
	}
}

// The OpenAPI v2 document includes the extension's paths and types. If both servers define a type,
// this server's definition is used.
func TestOpenAPIHasServersBehind(t *testing.T) {
	t.Parallel()
	s, e := startTest(t), startExtension(t)
	s.register(e)
	a := s.want(200, "GET", "/openapi/v2", "")
	for path, want := range map[string]string{
		`paths./apis/ext\.example\.com/v1/things.get.parameters.0.name`: "pretty", `paths./apis/other\.example\.com/v1/things`: "",
		`definitions.com\.example\.ext\.v1\.Thing.type`: "object", `definitions.com\.example\.Unused`: "",
	} {
		apitest.Expect(t, a.get(path), want)
	}
	if code := s.send("GET", "/openapi/v2", "", "If-None-Match: "+a.header.Get("ETag")).code; code != 304 {
		t.Errorf("asked again: %d", code)
	}
	if own := a.get("definitions." + strings.ReplaceAll(metaTypes, ".", `\.`) + "ObjectMeta.description").String(); own == "another's" {
		t.Error("its ObjectMeta is in place of ours")
	}
	if wire := s.want(200, "GET", "/openapi/v2", "", "Accept: application/com.github.proto-openapi.spec.v2@v1.0+protobuf"); !strings.Contains(string(wire.body), "com.example.ext.v1.Thing") {
		t.Error("protobuf has none of it")
	}
}

// The server trusts the headers of an authenticating proxy if the proxy's certificate is valid. It
// ignores the same headers from other clients.
func TestProxiesInFrontSayWhoAsks(t *testing.T) {
	t.Parallel()
	ca, file := apitest.NewCA(t)
	s := startTest(t, "--requestheader-client-ca-file="+file, "--requestheader-allowed-names=proxy", "--requestheader-username-headers=X-Remote-User,X-Also",
		"--requestheader-group-headers=X-Remote-Group", "--requestheader-uid-headers=X-Remote-Uid", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--cert-dir="+filepath.Join(t.TempDir(), "certs"), "--authorization-mode=AlwaysAllow")
	const review = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
	for _, c := range []struct {
		name    string // common name, or "" if there is no certificate
		headers []string
		want    string
	}{
		{"proxy", []string{"X-Remote-User: alice", "X-Remote-Uid: 7", "X-Remote-Group: dev", "X-Remote-Extra-Example.com%2fTeam: red"},
			`201 {"username":"alice","uid":"7","groups":["dev","system:authenticated"],"extra":{"example.com/team":["red"]}}`},
		{"proxy", []string{"X-Also: bob"}, `201 {"username":"bob","groups":["system:authenticated"]}`},
		{"proxy", nil, "401 "}, // the certificate of a proxy is not sufficient to authenticate a client
		{"other", []string{"X-Remote-User: alice"}, "401 "},
		{"", []string{"X-Remote-User: alice"}, `201 {"username":"system:anonymous","groups":["system:unauthenticated"]}`},
	} {
		config := &tls.Config{InsecureSkipVerify: true}
		if c.name != "" {
			certFile, keyFile := ca.IssuePair(t, &x509.Certificate{SerialNumber: big.NewInt(9), Subject: pkix.Name{CommonName: c.name}, NotBefore: time.Now().Add(-time.Hour),
				NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
			pair, err := tls.LoadX509KeyPair(certFile, keyFile)
			if err != nil {
				t.Fatal(err)
			}
			config.Certificates = []tls.Certificate{pair}
		}
		s.client = &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
		a := s.send("POST", review, `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`, c.headers...)
		if got := strconv.Itoa(a.code) + " " + a.get("status.userInfo").Raw; got != c.want {
			t.Errorf("%q %q: got %s, want %s", c.name, c.headers, got, c.want)
		}
	}
}
