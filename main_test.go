package main

// This file starts whole servers, in this process and on a loopback port, and talks HTTP to them, for tests that look inside. They stand on the few
// helpers at its top: startTest, send, and want. Every test that uses them also fails if its server logged a panic. What needs no look inside
// is tested from outside, in internal/e2e, whose helpers have the same names.

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
	"apilet/internal/registry"
	"apilet/internal/scheme"
	"apilet/internal/store"
	"apilet/internal/unreadable"
)

func TestMain(m *testing.M) { apitest.Main(m) }

const (
	definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	asMergePatch    = "Content-Type: application/merge-patch+json"
	asJSONPatch     = "Content-Type: application/json-patch+json"
	asStrategic     = "Content-Type: application/strategic-merge-patch+json"
	asApply         = "Content-Type: application/apply-patch+yaml"
	asTable         = "Accept: application/json;as=Table;v=v1;g=meta.k8s.io"
	masterToken     = "Authorization: Bearer root-token" // of startTLS
)

// ---- A server under test ----

// A testServer is a running server and a client of it.
type testServer struct {
	*server
	inside
	t       testing.TB
	conf    config // as given to startServer, which completes its copy
	client  *http.Client
	log     *apitest.Log
	headers []string // of every request
	last    *apitest.Last
	stopped bool
}

// inside are the parts of a running server that tests look into.
type inside struct {
	st     *store.Store
	upkeep *store.Maintenance
	reg    *scheme.Registry
	rd     *reads
	wt     *watching
	wr     *registry.Writer
	lost   *unreadable.Unreadables
	fc     *flowControl
	http   *http.Server
	url    string
}

func lookInto(s *server) inside {
	return inside{st: s.storage.st, upkeep: s.storage.upkeep, reg: s.api.types, rd: s.api.rd, wt: s.api.wt, wr: s.api.wr, lost: s.api.rd.lost, fc: s.api.fc,
		http: s.entrance.http, url: s.entrance.url}
}

// startTest starts a server on a free loopback port, on a temporary file without fsync. edit changes its flags.
func startTest(t testing.TB, edit ...func(*config)) *testServer {
	t.Helper()
	c, _ := newConfig(io.Discard)
	c.Listen, c.Ephemeral, c.CompactionInterval, c.namespaceGrace = "127.0.0.1:0", true, 0, 0
	c.DisabledPlugins = []string{"ServiceAccount"} // whose tokens and accounts most tests would have to look past
	c.RequestTimeout = 10 * time.Minute            // on a busy machine, with the race detector on it, a request may take more than the usual minute
	s := &testServer{t: t, log: &apitest.Log{}, last: apitest.PrintLast(t)}
	c.log = zerolog.New(s.log).Level(zerolog.ErrorLevel)
	for _, e := range edit {
		e(c)
	}
	onEtcd(c)
	s.conf = *c
	s.start()
	t.Cleanup(func() {
		s.halt()
		if log := s.log.String(); strings.Contains(log, "panic") {
			t.Errorf("the server panicked:\n%s", log)
		}
	})
	return s
}

// onEtcd gives a server a prefix of its own in the etcd cluster that ETCD_SERVERS names, if it does: testdata/on-etcd.sh runs tests so.
func onEtcd(c *config) {
	if urls := os.Getenv("ETCD_SERVERS"); urls != "" && len(c.Etcd.Servers) == 0 {
		c.Etcd.Servers, c.Etcd.Prefix = strings.Split(urls, ","), "/"+rand.Text()
	}
}

// onFile is an edit: the data lies in a file that a restart finds again.
func onFile(path string) func(*config) {
	return func(c *config) { c.Ephemeral, c.Data = false, path }
}

func (s *testServer) start() {
	s.t.Helper()
	conf := s.conf
	running, err := startServer(&conf)
	if err != nil {
		s.t.Fatal(err)
	}
	s.server, s.inside, s.stopped = running, lookInto(running), false
	s.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}
}

// halt stops the server.
func (s *testServer) halt() {
	s.t.Helper()
	if s.stopped {
		return
	}
	s.stopped = true
	s.client.CloseIdleConnections()
	if err := s.stop(); err != nil {
		s.t.Error(err)
	}
}

// restart stops the server and starts another on the same file, on another port.
func (s *testServer) restart() {
	s.t.Helper()
	s.halt()
	s.start()
}

// rest ends what the server does beside requests, until it is started again. What is written from now on is what requests write: a test may
// hold the store's revision against that.
func (s *testServer) rest() {
	s.idle()
	if err := s.work.Wait(time.Hour); err != nil {
		s.t.Error(err)
	}
}

// compactNow forgets the history before rev.
func (s *testServer) compactNow(rev int64) {
	s.t.Helper()
	if _, err := s.upkeep.Compact(context.Background(), rev); err != nil {
		s.t.Fatal(err)
	}
}

// An answer is an HTTP response, read to its end.
type answer struct {
	code   int
	header http.Header
	body   []byte
}

func (a answer) get(path string) gjson.Result { return gjson.GetBytes(a.body, path) }

func (a answer) rev() int64 { return a.get("metadata.resourceVersion").Int() }

// names are those of a list's items, whatever form it has.
func (a answer) names() string {
	var names []string
	for _, path := range []string{"items.#.metadata.name", "rows.#.object.metadata.name"} {
		for _, name := range a.get(path).Array() {
			names = append(names, name.String())
		}
	}
	return strings.Join(names, " ")
}

// failure is an error's code, reason and message in one line.
func (a answer) failure() string {
	return fmt.Sprintf("%d %s %s", a.code, a.get("reason"), a.get("message"))
}

// send makes a request. headers are lines like "Accept: text/html".
func (s *testServer) send(method, path, body string, headers ...string) answer {
	s.t.Helper()
	a, err := s.try(method, path, body, headers...)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

// try is send for goroutines and for servers that may be gone.
func (s *testServer) try(method, path, body string, headers ...string) (answer, error) {
	r, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	kubetest.SetHeaders(r, s.headers)
	kubetest.SetHeaders(r, headers)
	response, err := s.client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	a := answer{code: response.StatusCode, header: response.Header}
	defer func() { s.last.Set(method, path, a.code, a.body) }()
	a.body, err = io.ReadAll(response.Body)
	return a, err
}

// want is send for a request whose status is known.
func (s *testServer) want(code int, method, path, body string, headers ...string) answer {
	s.t.Helper()
	a := s.send(method, path, body, headers...)
	if a.code != code {
		s.t.Fatalf("%s %s: got %d, want %d: %s", method, path, a.code, code, a.body)
	}
	if a.code >= 400 {
		s.checkStatus(a)
	}
	return a
}

// checkStatus holds an error's body against what every Status has in common.
func (s *testServer) checkStatus(a answer) {
	s.t.Helper()
	kind := fmt.Sprintf("%s %s %s %s", a.get("kind"), a.get("apiVersion"), a.get("status"), a.get("code"))
	if want := fmt.Sprintf("Status v1 Failure %d", a.code); kind != want {
		s.t.Errorf("an error's body is no Status: %s", a.body)
	}
	retry := a.get("details.retryAfterSeconds").Int()
	if header := a.header.Get("Retry-After"); (header != "") != (retry > 0) {
		s.t.Errorf("Retry-After is %q beside retryAfterSeconds %d", header, retry)
	}
}

func (s *testServer) dial() net.Conn {
	s.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		s.t.Fatal(err)
	}
	conn.SetDeadline(apitest.Deadline(s.t))
	return conn
}

// namespace makes one, and returns the path of its ConfigMaps.
func (s *testServer) namespace(name string) string {
	s.t.Helper()
	s.want(201, "POST", "/api/v1/namespaces", `{"metadata":{"name":"`+name+`"}}`)
	return "/api/v1/namespaces/" + name + "/configmaps"
}

// configMap is the JSON of one.
func configMap(name string, keyValues ...string) string {
	data := map[string]string{}
	for i := 0; i+1 < len(keyValues); i += 2 {
		data[keyValues[i]] = keyValues[i+1]
	}
	text, _ := json.Marshal(map[string]any{"metadata": map[string]any{"name": name}, "data": data})
	return string(text)
}

// ---- Ports, credentials, shutdown ----

// startTLS starts a server that knows three tokens and one authority of client certificates.
func startTLS(t *testing.T, edit ...func(*config)) (s *testServer, clients apitest.CA) {
	t.Helper()
	certFile, keyFile, pool := apitest.ServerCertificate(t)
	clients, caFile := apitest.NewCA(t)
	tokens := apitest.TempFile(t, "tokens.csv", "root-token,root,1,system:masters\nbob-token,bob,2,\"dev,ops\"\n")
	s = startTest(t, append([]func(*config){func(c *config) {
		c.TLSCert, c.TLSKey, c.Auth.TokenFile, c.Auth.ClientCAFile = certFile, keyFile, tokens, caFile
	}}, edit...)...)
	s.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool}
	return s, clients
}

// metricValue reads one series of /metrics, -1 when it is not there.
func metricValue(s *testServer, series string) float64 {
	a, _ := s.try("GET", "/metrics", "")
	for line := range strings.Lines(string(a.body)) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			value, _ := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			return value
		}
	}
	return -1
}

// ---- A server in a process of its own ----

// TestServerChild is no test but a server for others: it serves APILET_SERVER_FILE until it is killed or its stdin ends.
func TestServerChild(t *testing.T) {
	path := os.Getenv("APILET_SERVER_FILE")
	if path == "" {
		t.Skip("for other tests")
	}
	begin := time.Now()
	s := startTest(t, onFile(path))
	fmt.Println("ready", s.url, time.Since(begin).Microseconds())
	io.Copy(io.Discard, os.Stdin)
}

// A serverChild is a server in another process.
type serverChild struct {
	cmd   *exec.Cmd
	url   string
	ready time.Duration // its own time from start to listening
	stdin io.Closer
}

func startChild(t testing.TB, path string) *serverChild {
	t.Helper()
	child := &serverChild{cmd: exec.Command(os.Args[0], "-test.run=^TestServerChild$")}
	child.cmd.Env = append(os.Environ(), "APILET_SERVER_FILE="+path)
	out, err := child.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if child.stdin, err = child.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := child.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(child.kill)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var micros int64
		if n, _ := fmt.Sscanf(lines.Text(), "ready %s %d", &child.url, &micros); n == 2 {
			child.ready = time.Duration(micros) * time.Microsecond
			go io.Copy(io.Discard, out) // until the child ends
			return child
		}
	}
	t.Fatal("the child said nothing")
	return nil
}

func (child *serverChild) kill() {
	child.cmd.Process.Kill()
	child.cmd.Wait()
}

// FuzzRequest sends a request to the whole chain of handlers. Whatever it is, it may not break the server: no 5xx but the time-outs
// that the request asks for, no panic.
func FuzzRequest(f *testing.F) {
	s := startTest(f, func(c *config) { c.RequestTimeout = time.Second })
	handler := s.http.Handler
	const b = "/api/v1/namespaces/default/configmaps"
	for _, seed := range [][4]string{
		{"GET", b + "?limit=2&continue=x", "", ""}, {"GET", b + "/a?watch=1", "", ""}, {"GET", b + "?watch=1&timeoutSeconds=-1", "", ""},
		{"GET", b + "?resourceVersion=1&resourceVersionMatch=Exact", "", ""}, {"GET", b + "?labelSelector=a+in+(b,c),!d&fieldSelector=metadata.name!%3Dx", "", ""},
		{"POST", b, `{"metadata":{"name":"a"},"data":{"k":"v"}}`, "application/json"}, {"POST", b, "metadata: {generateName: x}", "application/yaml"},
		{"PUT", b + "/a", `{"metadata":{"name":"a","resourceVersion":"5","finalizers":["a.b/c"]}}`, ""}, {"DELETE", b + "?limit=1", `{"dryRun":["All"]}`, ""},
		{"PATCH", b + "/a", `{"data":{"k":null}}`, "application/merge-patch+json"}, {"DELETE", b + "/a?uid=x", "", ""},
		{"PATCH", b + "/a?fieldManager=m", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"k":"w"}}`, "application/apply-patch+yaml"},
		{"PATCH", b + "/a", `[{"op":"add","path":"/data/-","value":1}]`, "application/json-patch+json"},
		{"PATCH", b + "/a", `{"data":{"$patch":"replace"},"$setElementOrder/x":[1]}`, "application/strategic-merge-patch+json"},
		{"POST", "/api/v1/namespaces/default/pods", `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`, ""},
		{"POST", "/api/v1/namespaces/default/pods/p/binding", `{"metadata":{"name":"p"},"target":{"name":"n"}}`, ""},
		{"POST", "/api/v1/namespaces/default/pods/p/eviction", `{"metadata":{"name":"p"}}`, ""}, {"GET", "/api/v1/namespaces/default/pods/p/log", "", ""},
		{"PUT", "/apis/apps/v1/namespaces/default/deployments/d/scale", `{"metadata":{"name":"d"},"spec":{"replicas":-1}}`, ""},
		{"POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", `{"spec":{"resourceAttributes":{"verb":"get"}}}`, ""},
		{"PUT", "/api/v1/namespaces/default/events/e", `{"metadata":{"name":"e"},"involvedObject":{"namespace":"default"}}`, ""},
		{"POST", "/api/v1/namespaces", `{"metadata":{"name":"new"}}`, ""}, {"DELETE", "/api/v1/namespaces/new", "", ""},
		{"PUT", "/api/v1/namespaces/new/finalize", `{"metadata":{"name":"new"}}`, ""}, {"OPTIONS", "/api/v1/x%2f/..%00", "", ""},
		{"GET", "/readyz/x?verbose&exclude=store", "", ""}, {"GET", "/metrics", "", ""}, {"GET", "/version/x", "", ""}, {"TRACE", "//", "", ""},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3])
	}
	f.Fuzz(func(t *testing.T, method, path, body, contentType string) {
		r, err := http.NewRequest(method, path, strings.NewReader(body))
		if err != nil || !strings.HasPrefix(path, "/") || strings.HasPrefix(r.URL.Path, "/debug") {
			t.Skip()
		}
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		defer cancel()
		r.Host, r.RemoteAddr, r.RequestURI = "127.0.0.1", "127.0.0.1:1", path
		r.Header.Set("Content-Type", contentType)
		w := httptest.NewRecorder()
		serveAborting(t, handler, w, r.WithContext(ctx))
		reasonless := !strings.Contains(w.Body.String(), `"reason"`) // a strategic merge patch that the type cannot take, as in kube-apiserver
		if w.Code >= 500 && w.Code != http.StatusGatewayTimeout && !reasonless {
			t.Errorf("%s %q gets %d %s", method, path, w.Code, w.Body)
		}
	})
}

// serveAborting lets a handler end its connection in the middle, as net/http does.
func serveAborting(t *testing.T, handler http.Handler, w http.ResponseWriter, r *http.Request) {
	defer func() {
		if cause := recover(); cause != nil && cause != http.ErrAbortHandler {
			t.Errorf("panic: %v", cause)
		}
	}()
	handler.ServeHTTP(w, r)
}

// loud lets a server log all that it does.
func loud(log io.Writer) func(*config) {
	return func(c *config) { c.log = zerolog.New(log) }
}

// runCommand runs apilet as the command line does; its error is what it says on standard error.
func runCommand(args ...string) error { return runCommandTo(io.Discard, args...) }

func runCommandTo(out io.Writer, args ...string) error {
	var told bytes.Buffer
	if code := program().Run(args, out, &told); code != 0 {
		return fmt.Errorf("exit code %d: %s", code, &told)
	}
	return nil
}
