package e2e

// These tests have servers behind the one under test, and look at what each side sees of the other. What the answers should be was asked of a
// kube-apiserver, with the same servers behind it (-oracle URL -token TOKEN -update writes testdata/aggregation.txt anew).

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

// ---- A server behind ----

// An extension is a server of one group version, whose objects are things: names by namespace.
type extension struct {
	*httptest.Server
	bundle string // base64 of the authority that vouches for it
	port   int

	mu     sync.Mutex // guards what follows
	things map[string][]string
	asked  []*http.Request                                          // each but discovery
	answer func(w http.ResponseWriter, r *http.Request) (done bool) // before anything else; may be nil
	held   chan struct{}                                            // closed at the end
}

const extPath = "/apis/ext.example.com/v1"

// startExtension starts one. clients are the authorities whose certificates it asks for; it verifies them itself.
func startExtension(t *testing.T) *extension {
	t.Helper()
	ca, file := apitest.NewCA(t)
	certFile, keyFile := ca.IssuePair(t, &x509.Certificate{SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: "ext"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"ext.infra.svc"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	e := &extension{bundle: base64.StdEncoding.EncodeToString(apitest.ReadFile(t, file)), things: map[string][]string{}, held: make(chan struct{})}
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
			"definitions":{"com.example.ext.v1.Thing":{"type":"object","properties":{"metadata":{"$ref":"#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}}},
				"io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta":{"type":"object","description":"another's"},"com.example.Unused":{"type":"object"}}}`)
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

// apiServiceOf is the body of an APIService of ext.infra, or of the Service that is named.
func apiServiceOf(group, service, more string) string {
	return `{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1.` + group + `"},"spec":{"group":"` + group +
		`","version":"v1","groupPriorityMinimum":17450,"versionPriority":15,"service":{"namespace":"infra","name":"` + service + `","port":` + more + `}}`
}

// register makes an extension that of its group, and waits until it is served.
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

// awaitAvailable waits for a reason, and returns the condition.
func (s *testServer) awaitAvailable(group, reason string) (condition gjson.Result) {
	s.t.Helper()
	apitest.WaitFor(s.t, group+" to be "+reason, func() bool {
		condition = s.want(200, "GET", apiServices+"/v1."+group, "").get(`status.conditions.#(type=="Available")`)
		return condition.Get("reason").String() == reason
	})
	return condition
}

// startKnown starts a server that knows admin, of system:masters, as kube-apiserver's oracle does, or is that oracle.
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

// ---- As kube-apiserver ----

// unsteady is what differs from run to run.
var unsteady = regexp.MustCompile(`localhost:\d+|127\.0\.0\.1:\d+|ext\.infra\.svc:\d+|[0-9a-f]{8}-[0-9a-f-]{27}|Go-http-client/\d\.\d|system:masters|1\.1 apilet-\S+"`)

// TestAggregationIsKubeAPIServers compares what a server behind is asked, and what comes back, with what kube-apiserver makes of the same.
func TestAggregationIsKubeAPIServers(t *testing.T) {
	if *kubetest.OracleURL == "" {
		t.Parallel()
	}
	s, e := startKnown(t), startExtension(t)
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

var _ = bufio.NewReader
