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
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/tidwall/gjson"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
	"apilet/internal/clock"
	"apilet/internal/corrupt"
	"apilet/internal/drain"
	"apilet/internal/health"
	"apilet/internal/registry"
	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/store"
	"apilet/internal/store/storetest"
)

func TestMain(m *testing.M) {
	if os.Getenv("APILET_RUN_MAIN") != "" {
		main()
	}
	apitest.Main(m)
}

const (
	definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	asMergePatch    = "Content-Type: application/merge-patch+json"
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
	rd     *readHandler
	wt     *watchHandler
	wr     *registry.Writer
	lost   *corrupt.Objects
	fc     *flowControl
	http   *http.Server
	url    string
}

func lookInto(s *server) inside {
	return inside{st: s.storage.st, upkeep: s.storage.upkeep, reg: s.api.types, rd: s.api.rd, wt: s.api.wt, wr: s.api.wr, lost: s.api.rd.Corrupt, fc: s.api.fc,
		http: s.frontend.http, url: s.frontend.url}
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

// rest ends what the server does beside requests, until it is started again. What is written from now on is what requests write: a test may
// hold the store's revision against that.
func (s *testServer) rest() {
	s.cancelWork()
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

// deaf is a connection that takes hardly anything from the network before it is read.
func (s *testServer) deaf(request string) net.Conn {
	s.t.Helper()
	conn := s.dial()
	s.t.Cleanup(func() { conn.Close() })
	conn.(*net.TCPConn).SetReadBuffer(4096)
	fmt.Fprint(conn, request)
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

// runCommandTo runs apilet as the command line does. Its error is the text on standard error.
func runCommandTo(out io.Writer, args ...string) error {
	var told bytes.Buffer
	if code := program().Run(args, out, &told); code != 0 {
		return fmt.Errorf("exit code %d: %s", code, &told)
	}
	return nil
}

// ---- Stopping ----

// stopInTime stops a server. Nothing of it may wait without a bound.
func (s *testServer) stopInTime(t *testing.T) (err error) {
	t.Helper()
	s.stopped = true
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	select {
	case err := <-stopped:
		return err
	case <-apitest.Timeout(t):
		t.Fatal("the server does not stop")
		return nil
	}
}

// startHasty starts a server that waits for little when it stops, and tells warnings.
func startHasty(t *testing.T, edit ...func(*config)) (s *testServer, log *apitest.Log) {
	log = &apitest.Log{}
	return startTest(t, append(edit, func(c *config) {
		c.grace = 200 * time.Millisecond
		c.log = zerolog.New(log)
	})...), log
}

// A handler that does not look at its context, and a reader that does not read, have their connections cut.
func TestStoppingCutsRequestsThatDoNotEnd(t *testing.T) {
	t.Parallel()
	s, log := startHasty(t)
	begun, released := make(chan struct{}), make(chan struct{})
	defer close(released)
	served := s.http.Handler
	s.http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/computes" {
			close(begun)
			<-released
		}
		served.ServeHTTP(w, r)
	})
	cut := make(chan error, 1)
	go func() {
		_, err := s.try("GET", "/computes", "")
		cut <- err
	}()
	<-begun
	s.fill(20, 400<<10) // more than the kernel takes for a reader
	deaf := s.deaf("GET /api/v1/configmaps HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
	defer deaf.Close()
	apitest.WaitFor(t, "both requests to be served", func() bool { return s.frontend.conns.Busy() == 2 })
	if err := s.stopInTime(t); err != nil {
		t.Error(err)
	}
	if err := <-cut; err == nil {
		t.Error("the request was answered")
	}
	if text := log.String(); !strings.Contains(text, `"connections":2`) || !strings.Contains(text, "shutdown: closing the connections of unfinished requests") {
		t.Errorf("the log says\n%s", text)
	}
}

// Background work that hangs is named, and the file is closed without it.
func TestStoppingGivesUpWork(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "data.db")
	s, log := startHasty(t, onFile(path))
	s.want(201, "POST", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"kept"}}`)
	released := make(chan struct{})
	defer close(released)
	s.work.Go("a piece that hangs", func() { <-released })
	if err := s.stopInTime(t); err != nil {
		t.Error(err)
	}
	if text := log.String(); !strings.Contains(text, "a piece that hangs") || !strings.Contains(text, "did not end within 40ms") {
		t.Errorf("the log says\n%s", text)
	}
	s.start()
	s.stopped = false
	s.want(200, "GET", "/api/v1/namespaces/default/configmaps/kept", "")
}

// A disk that takes a commit and never says that it has it: the file is left as it is, with all that was answered in it.
func TestStoppingGivesUpTheDisk(t *testing.T) {
	t.Parallel()
	path, commits, released := filepath.Join(t.TempDir(), "data.db"), make(chan struct{}, 1), make(chan struct{})
	hangs := make(chan struct{})
	s, _ := startHasty(t, onFile(path), func(c *config) {
		c.clock = func() time.Time { // a commit asks when it is
			select {
			case <-hangs:
				select {
				case commits <- struct{}{}:
				default:
				}
				<-released
			default:
			}
			return time.Now()
		}
	})
	const maps = "/api/v1/namespaces/default/configmaps"
	s.want(201, "POST", maps, `{"metadata":{"name":"answered"}}`)
	close(hangs)
	cut := make(chan error, 1)
	go func() {
		_, err := s.try("PATCH", maps+"/answered", `{"data":{"un":"answered"}}`, "Content-Type: application/merge-patch+json") // the commit alone asks
		cut <- err
	}()
	<-commits
	err := s.stopInTime(t)
	if !errors.Is(err, drain.ErrUnfinished) || !strings.Contains(err.Error(), "closing the data file") {
		t.Errorf("got %v", err)
	}
	if err := <-cut; err == nil {
		t.Error("the write was answered")
	}
	close(released)
	_ = s.st.Close() // waits for the one that was not waited for
	s.start()
	s.stopped = false
	s.want(200, "GET", maps+"/answered", "")
}

// A server that leaves serves on for its delay, watches among it, and has each client connect anew; a failure ends the delay.
func TestServerThatLeavesServesOn(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			s, _ := startTLS(t)
			transport, root := s.client.Transport.(*http.Transport), "Authorization: Bearer root-token"
			if transport.ForceAttemptHTTP2 = protocol == "HTTP/2.0"; !transport.ForceAttemptHTTP2 {
				transport.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
			}
			const maps = "/api/v1/namespaces/default/configmaps"
			anew := func(method, path, body string, code int) (connected bool) { // whether it had to connect
				t.Helper()
				request, _ := http.NewRequest(method, s.url+path, strings.NewReader(body))
				request.Header.Set("Authorization", "Bearer root-token")
				answer, err := s.client.Do(request.WithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
					GotConn: func(c httptrace.GotConnInfo) { connected = !c.Reused }})))
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, answer.Body)
				answer.Body.Close()
				if answer.StatusCode != code || answer.Proto != protocol {
					t.Errorf("%s %s: %s over %s, want %d", method, path, answer.Status, answer.Proto, code)
				}
				return connected
			}
			watch := s.watch(maps+"?watch=1", root)
			anew("GET", "/readyz", "", 200)
			if anew("GET", "/readyz", "", 200) {
				t.Error("before it leaves, a connection ends with its answer")
			}
			left := make(chan struct{})
			go func() {
				s.announceShutdown(time.Hour)
				close(left)
			}()
			<-s.shutdown.announced
			anew("GET", "/readyz", "", 500)
			apitest.WaitFor(t, "the answer to end the connection", func() bool { return anew("GET", "/livez", "", 200) })
			anew("POST", maps, `{"metadata":{"name":"late"}}`, 201)
			for told := ""; told != "ADDED late"; {
				f := watch.next()
				if told = f.String(); f.kind == "" || f.kind == "ERROR" {
					t.Fatalf("the watch ends: %s", told)
				}
			}
			if why := string(s.send("GET", "/readyz?verbose", "", root).body); !strings.Contains(why, "[-]shutdown failed: process is shutting down") {
				t.Error(why)
			}
			select {
			case <-left:
				t.Error("it has left")
			default:
			}
			cause := errors.New("of the test")
			s.failed <- cause
			<-left
			if err := <-s.failed; err != cause {
				t.Error(err)
			}
			if err := s.stopInTime(t); err != nil {
				t.Error(err)
			}
		})
	}
}

// A server that serves proves its life, on each kind of address; one whose listener is closed does not.
func TestProofOfLife(t *testing.T) {
	t.Parallel()
	for _, listen := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::1]:0"} {
		if probe, err := net.Listen("tcp", listen); err != nil {
			t.Log(err)
			continue
		} else {
			probe.Close()
		}
		s := startTest(t, func(c *config) {
			c.Listen, c.CertDir = listen, filepath.Join(t.TempDir(), "certs")
			c.Auth.Anonymous = false // a 401 is an answer
		})
		for range 2 {
			if err := s.alive(t.Context()); err != nil {
				t.Error(listen, err)
			}
		}
		s.halt()
		if err := s.alive(t.Context()); err == nil {
			t.Error(listen, "a server that has stopped proves its life")
		}
	}
	mute, err := net.Listen("tcp", "127.0.0.1:0") // accepts in the kernel, and answers nothing
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := health.NewProbe(mute.Addr().(*net.TCPAddr).AddrPort(), false).Get(ctx, "/livez"); err == nil {
		t.Error("a server that answers nothing proves its life")
	}
}

// ---- The clock ----

// A board without a battery starts in 1970 on a file that was written today: it goes on from the newest write, and loses no history.
func TestStartIn1970GoesOnFromTheNewestWrite(t *testing.T) {
	t.Parallel()
	var machine atomic.Int64 // ahead of the machine's clock
	var log apitest.Log
	s := startTest(t, loud(&log), func(c *config) {
		kept := time.Hour
		c.Ephemeral, c.Data, c.History, c.CompactionInterval = false, filepath.Join(t.TempDir(), "board.db"), &kept, time.Hour
		c.clock = func() time.Time { return time.Now().Add(time.Duration(machine.Load())) }
	})
	maps := s.namespace("board")
	before := time.Now().Add(-time.Second)
	rev := s.want(201, "POST", maps, configMap("m", "k", "old")).rev()
	s.want(200, "PUT", maps+"/m", configMap("m", "k", "new"))
	s.halt()

	machine.Store(-int64(time.Since(time.Unix(0, 0))))
	s.start()
	tick := func() { // what compacts every five minutes
		if _, err := s.upkeep.Compact(t.Context(), s.upkeep.RevisionBefore(s.st.Now().Add(-time.Hour))); err != nil {
			t.Fatal(err)
		}
	}
	tick()
	if behind := s.clock.Lag(); behind < 50*365*24*time.Hour {
		t.Errorf("behind by %s", behind)
	}
	clockCheck := func(want string, begun, over int) {
		t.Helper()
		if text := string(s.want(200, "GET", "/readyz?verbose", "").body); !strings.Contains(text, want) {
			t.Errorf("/readyz, want %q: %s", want, text)
		}
		if said := log.String(); strings.Count(said, `"what":"/readyz/clock","message":"failing`) != begun || strings.Count(said, `"what":"/readyz/clock","message":"recovered`) != over {
			t.Errorf("begun and over, want %d, %d times:\n%s", begun, over, said)
		}
	}
	clockCheck("[!]clock warns: the machine's clock is behind", 1, 0)
	made := s.want(201, "POST", maps, configMap("after", "k", "v"))
	if at, err := time.Parse(time.RFC3339, made.get("metadata.creationTimestamp").String()); err != nil || at.Before(before.Truncate(time.Second)) {
		t.Errorf("created at %s: %v", at, err)
	}
	s.want(201, "POST", "/api/v1/namespaces/board/serviceaccounts", `{"metadata":{"name":"robot"}}`)
	token := s.want(201, "POST", "/api/v1/namespaces/board/serviceaccounts/robot/token", `{}`)
	if ends, err := time.Parse(time.RFC3339, token.get("status.expirationTimestamp").String()); err != nil || ends.Before(before) {
		t.Errorf("the token ends at %s: %v", ends, err)
	}
	s.want(200, "GET", "/api/v1/namespaces/board/configmaps/m", "", "Authorization: Bearer "+token.get("status.token").String())
	if old := s.want(200, "GET", fmt.Sprintf("/at/%d%s/m", rev, maps), "").get("data.k").String(); old != "old" {
		t.Errorf("at revision %d the object was %q", rev, old)
	}
	if s.st.Compacted() >= rev {
		t.Errorf("compacted to %d, beyond revision %d of this hour", s.st.Compacted(), rev)
	}
	if text := string(s.want(200, "GET", "/metrics", "").body); !strings.Contains(text, "\napilet_clock_behind_seconds ") || strings.Contains(text, "\napilet_clock_behind_seconds 0\n") {
		t.Error("the metric does not say that the clock is behind")
	}
	machine.Store(0)
	if behind := s.clock.Lag(); behind != 0 || s.clock.Now().Before(clock.Earliest) {
		t.Errorf("put right, and behind by %s", behind)
	}
	clockCheck("[+]clock ok", 1, 1)
}

// TestAuthorityThatEndsIsReported: a server warns of the end of the authority that it made, which only a restart renews.
func TestAuthorityThatEndsIsReported(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var ahead atomic.Int64
	s := startTest(t, func(c *config) {
		c.CertDir = filepath.Join(dir, "certs")
		c.clock = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	ahead.Store(int64(10*365*24*time.Hour - 10*24*time.Hour))
	if err := s.frontend.endpoint.CheckCertificates(); err == nil || !strings.Contains(err.Error(), "the authority certificate ends soon") || !strings.Contains(err.Error(), "restart the server") {
		t.Errorf("ten days before the authority's end: %v", err)
	}
}

// Ages in tables are those of then: of a time, of a revision, of built-in types, custom columns and scales.
func TestAgesAreThoseOfThen(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64 // of the machine's clock
	s := startTest(t, func(c *config) { c.clock = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) } })
	s.want(201, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", kubetest.FromFlow(t, `{metadata: {name: kites.example.com}, spec: {group: example.com, scope: Namespaced,
		names: {plural: kites, kind: Kite}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}},
		additionalPrinterColumns: [{name: Flown, type: date, jsonPath: .spec.flown}]}]}}`))
	born := time.Now()
	kites := "/apis/example.com/v1/namespaces/default/kites"
	s.want(201, "POST", kites, fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Kite","metadata":{"name":"red"},"spec":{"flown":%q}}`, born.Add(-time.Hour).Format(time.RFC3339)))
	s.want(201, "POST", "/api/v1/namespaces/default/configmaps", configMap("c", "a", "b"))
	ahead.Store(int64(3 * time.Hour))
	rev := s.want(201, "POST", "/api/v1/namespaces/default/configmaps", configMap("later", "a", "b")).get("metadata.resourceVersion").String()
	cell := func(at, path, want string) {
		t.Helper()
		rows := s.want(200, "GET", at+path, "", "Accept: application/json;as=Table;g=meta.k8s.io;v=v1").get("rows.0.cells")
		cells := rows.Array()
		if got := cells[len(cells)-1].String(); !strings.HasPrefix(got, want) {
			t.Errorf("%s%s: %s, want %s", at, path, rows, want)
		}
	}
	then := "/at/" + rev
	cell(then, "/api/v1/namespaces/default/configmaps/c", "3h")
	cell(then, "/api/v1/namespaces/default/configmaps?fieldSelector=metadata.name=c", "3h")
	cell(then, kites, "4h")
	cell("/at/"+time.Now().Add(time.Second).UTC().Format(time.RFC3339), kites, "6") // minutes, and some more on a machine that is slow
	if now := s.want(200, "GET", kites, "", "Accept: application/json;as=Table;g=meta.k8s.io;v=v1").get("rows.0.cells.1").String(); !strings.HasPrefix(now, "6") {
		t.Errorf("now: %s", now)
	}
}

// TestEventsAreLimited has the answers that a kube-apiserver 1.36 gave under the same configuration, while no second passes.
func TestEventsAreLimited(t *testing.T) {
	t.Parallel()
	file := apitest.TempFile(t, "admission.yaml", `
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: EventRateLimit
  configuration:
    apiVersion: eventratelimit.admission.k8s.io/v1alpha1
    kind: Configuration
    limits:
    - {type: Namespace, qps: 1, burst: 3, cacheSize: 2}
    - {type: User, qps: 1, burst: 8}
    - {type: SourceAndObject, qps: 1, burst: 2}
`)
	var passed atomic.Int64 // seconds
	s := startTest(t, func(c *config) {
		c.AdmissionConfig, c.EnabledPlugins = file, []string{"EventRateLimit"}
		c.clock = func() time.Time { return time.Unix(1_900_000_000+passed.Load(), 0) }
	})
	const events, one = "/api/v1/namespaces/default/events", "limit reached on type SourceAndObject for key khPoddefaultouv1"
	n := 0
	event := func(query, want string) {
		t.Helper()
		n++
		a := s.send("POST", events+query, fmt.Sprintf(`{"metadata":{"name":"e%d","namespace":"default"},"source":{"component":"k","host":"h"},"reason":"r",
			"involvedObject":{"kind":"Pod","namespace":"default","name":"o","uid":"u","apiVersion":"v1"}}`, n))
		if got := a.get("message"); a.code != 201 && a.code != 429 || (a.code == 201) != (want == "") || want != "" && got.String() != "Too many requests: "+want {
			t.Errorf("event %d: %d %s, want %q", n, a.code, a.body, want)
		}
		if want != "" && (a.get("reason").String() != "TooManyRequests" || a.header.Get("Retry-After") != "") {
			t.Errorf("event %d: %s %s", n, a.header, a.body)
		}
	}
	event("", "")
	event("", "")
	event("", one)
	for range 5 {
		event("", "[limit reached on type Namespace for key default, "+one+"]")
	}
	all := "[limit reached on type Namespace for key default, limit reached on type User for key system:unsecured, " + one + "]"
	event("", all)
	event("?dryRun=All", "")
	s.want(429, "PATCH", events+"/e1", `{"count":2}`, asMergePatch)
	for i := range 12 { // which are not limited there, either
		s.want(201, "POST", "/apis/events.k8s.io/v1/namespaces/default/events", fmt.Sprintf(`{"metadata":{"name":"n%d"},"eventTime":"2026-01-01T00:00:00.000000Z",
			"reportingController":"a.b/c","reportingInstance":"i","action":"a","reason":"r","type":"Normal"}`, i))
	}
	passed.Add(1)
	event("", "")
	event("", all)
}

// ---- Every door: who may what ----

// These tests try every door: each path that can be made of what discovery names, in each spelling, with each method, by users with
// different rights. What has to come of it is worked out from the rights alone, by a reading of them that is as simple as can be and knows
// nothing of the server's: who may not gets a 403; who may gets what the path names, and nothing else is shown or changed.

// A right is one rule of a role. Its namespace is "" for everywhere; of resources and names none means all.
type right struct {
	namespace        string
	verbs            []string
	resources, names []string
}

// A tenant is a user with some rights.
type tenant struct {
	name   string
	master bool
	rights []right
}

// A deed is what a role is asked about.
type deed struct{ verb, resource, sub, namespace, name string }

func (u *tenant) may(d deed) bool {
	return u.master || slices.ContainsFunc(u.rights, func(r right) bool { return r.covers(d) })
}

func (r *right) covers(d deed) bool {
	resource := d.resource
	if d.sub != "" {
		resource += "/" + d.sub
	}
	return (r.namespace == "" || r.namespace == d.namespace) &&
		(slices.Contains(r.verbs, "*") || slices.Contains(r.verbs, d.verb)) &&
		(len(r.resources) == 0 || slices.Contains(r.resources, resource) || d.sub != "" && slices.Contains(r.resources, "*/"+d.sub)) &&
		(len(r.names) == 0 || slices.Contains(r.names, d.name))
}

var allVerbs = []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}

// tenants are who tries. Everybody may ask about themselves.
func tenants(mains []string) []*tenant {
	all := []string{"*"}
	users := []*tenant{
		{name: "root", master: true}, {name: "nobody"},
		{name: "resident", rights: []right{{namespace: "a", verbs: all}}},
		{name: "visitor", rights: []right{{namespace: "a", verbs: []string{"get", "list", "watch"}}}},
		{name: "namesake", rights: []right{{namespace: "a", verbs: all, names: []string{"one"}}}},
		{name: "everynamesake", rights: []right{{verbs: all, names: []string{"one"}}}},
		{name: "mains", rights: []right{{namespace: "a", verbs: all, resources: mains}}},
		{name: "parts", rights: []right{{verbs: all, resources: []string{"*/status", "*/scale", "*/eviction"}}}},
	}
	for _, verb := range allVerbs {
		users = append(users, &tenant{name: "only-" + verb, rights: []right{{verbs: []string{verb}}}})
	}
	for _, u := range users {
		u.rights = append(u.rights, right{verbs: []string{"create"},
			resources: []string{"selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"}})
	}
	return users
}

// ---- What there is ----

// A servedType is a resource as discovery tells of it.
type servedType struct {
	root, apiVersion, kind, plural string
	namespaced, builtin            bool
	verbs                          []string
	subs                           map[string][]string // the verbs of each
	base                           string              // of its keys
	careful                        bool                // writes are dry runs: a real one would change the rules of the test, or start something
}

func (s *doorScene) discover(t *testing.T) {
	roots := []string{"/api/v1"}
	for _, v := range gjson.Get(s.try("root", "GET", "/apis", "", "").body.String(), "groups.#.versions.#.groupVersion|@flatten").Array() {
		roots = append(roots, "/apis/"+v.String())
	}
	for _, root := range roots {
		byName := map[string]*servedType{}
		list := gjson.Parse(s.try("root", "GET", root, "", "").body.String())
		for _, row := range list.Get("resources").Array() {
			var verbs []string
			for _, verb := range row.Get("verbs").Array() {
				verbs = append(verbs, verb.String())
			}
			plural, sub, part := strings.Cut(row.Get("name").String(), "/")
			if part {
				byName[plural].subs[sub] = verbs
				continue
			}
			group, version, ok := strings.Cut(list.Get("groupVersion").String(), "/")
			if !ok {
				group, version = "", group
			}
			res := s.reg.Lookup(group, version, plural)
			typ := &servedType{root: root, apiVersion: list.Get("groupVersion").String(), kind: row.Get("kind").String(), plural: plural,
				namespaced: row.Get("namespaced").Bool(), builtin: res.GoType != nil, verbs: verbs, subs: map[string][]string{"": nil, "nosuch": nil}, base: res.Base,
				careful: strings.HasPrefix(group, "rbac.") || strings.HasPrefix(group, "apiext") || strings.HasPrefix(group, "apireg") || strings.HasPrefix(group, "flow") ||
					strings.HasPrefix(group, "admission") || plural == "namespaces" || plural == "priorityclasses"}
			byName[plural] = typ
			s.types = append(s.types, typ)
			s.seed(t, res, strings.HasPrefix(group, "apiext") || strings.HasPrefix(group, "flow"))
		}
	}
}

// seed stores objects of a type that say where they are: in two namespaces, under two names.
func (s *doorScene) seed(t *testing.T, res *scheme.Resource, delicate bool) {
	if res.Virtual || res.Conversion != nil || delicate {
		return
	}
	namespaces := []string{""}
	if res.Namespaced {
		namespaces = []string{"a", "b"}
	}
	names := []string{"one", "two"}
	if res.Plural == "namespaces" {
		names = []string{"one", "two", "a", "b"}
	}
	for _, ns := range namespaces {
		for _, name := range names {
			obj := res.NewObject()
			if u, ok := obj.(*unstructured.Unstructured); ok {
				u.Object["spec"] = map[string]any{"n": int64(1)}
			}
			obj.SetNamespace(ns)
			obj.SetName(name)
			obj.SetUID(types.UID("uid-" + ns + "-" + name))
			obj.SetCreationTimestamp(metav1.Now())
			key := res.Key(ns, name)
			obj.SetAnnotations(map[string]string{"mark": "<" + key + ">"})
			json, revAt, err := res.EncodeStored(obj)
			if err != nil {
				t.Fatal(err)
			}
			s.seeds[key] = store.Change{Op: store.OpCreate, Key: key, JSON: json, RevAt: revAt}
			s.put(t, s.seeds[key])
		}
	}
}

// ---- The server ----

// A doorScene is a server whose handler is called without a network between: there are many doors.
type doorScene struct {
	*testServer
	doors http.Handler
	types []*servedType
	seeds map[string]store.Change // by key
}

// A reply keeps an answer, and ends a watch once that has shown what there is.
type reply struct {
	code   int
	header http.Header
	body   bytes.Buffer
	cancel context.CancelFunc
}

func (w *reply) Header() http.Header  { return w.header }
func (w *reply) WriteHeader(code int) { w.code = code }
func (w *reply) Flush()               {}
func (w *reply) Write(b []byte) (int, error) {
	if w.code == 0 {
		w.code = 200
	}
	w.body.Write(b)
	if bytes.Contains(b, []byte("initial-events-end")) {
		w.cancel()
	}
	return len(b), nil
}

func (s *doorScene) try(user, method, target, body, contentType string) *reply {
	return s.tryAt(s.doors, user, method, target, body, contentType)
}

func (s *doorScene) tryAt(doors http.Handler, user, method, target, body, contentType string) *reply {
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "https://127.0.0.1"+target, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+user)
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	if strings.Contains(target, "&table") {
		r.Header.Set("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1")
	}
	w := &reply{header: http.Header{}, cancel: cancel}
	doors.ServeHTTP(w, r)
	return w
}

func (s *doorScene) put(t *testing.T, c store.Change) {
	if _, err := s.st.Commit(context.Background(), c); err != nil && err != store.ErrExists {
		t.Fatal(c.Key, err)
	}
}

// mend puts back what was changed since a revision, and returns the changes.
func (s *doorScene) mend(t *testing.T, since int64) []store.Event {
	changed, _, err := s.st.Events(store.Everything, since, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, ev := range changed {
		seed, seeded := s.seeds[ev.Key]
		now, err := s.st.Get(ev.Key)
		switch {
		case err == nil && seeded:
			seed.Op, seed.Expect = store.OpUpdate, now.Rev
			s.put(t, seed)
		case err == nil:
			s.put(t, registry.Tombstone(&now))
		case seeded:
			s.put(t, seed)
		}
	}
	return changed
}

func openDoors(t *testing.T) (*doorScene, []*tenant) {
	mains := []string{"configmaps", "pods", "deployments", "serviceaccounts", "namespaces", "nodes", "widgets", "replicationcontrollers"}
	users := tenants(mains)
	var tokens strings.Builder
	for _, u := range users {
		fmt.Fprintf(&tokens, "%s,%s,,%s\n", u.name, u.name, map[bool]string{true: request.GroupMasters, false: ""}[u.master])
	}
	file := apitest.TempFile(t, "tokens.csv", tokens.String())
	server, _ := startTLS(t, func(c *config) { c.Auth.TokenFile, c.Validate, c.NamespaceDefaults = file, false, false })
	s := &doorScene{testServer: server, doors: server.http.Handler, seeds: map[string]store.Change{}}
	for _, plural := range []string{"widgets", "gadgets"} {
		s.make(t, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", fmt.Sprintf(`{"metadata":{"name":"%[1]s.doors.io"},"spec":{"group":"doors.io",
			"scope":"%[3]s","names":{"plural":"%[1]s","singular":"%[2]s","kind":"%[2]s","listKind":"%[2]slist"},"versions":[{"name":"v1","served":true,"storage":true,
			"subresources":{"status":{},"scale":{"specReplicasPath":".spec.n","statusReplicasPath":".status.n"}},
			"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`,
			plural, strings.TrimSuffix(plural, "s"), map[bool]string{true: "Namespaced", false: "Cluster"}[plural == "widgets"]))
	}
	s.discover(t)
	for _, u := range users {
		for i, r := range u.rights {
			s.grant(t, fmt.Sprint(u.name, i), u.name, r)
		}
	}
	apitest.WaitFor(t, "the rights", func() bool {
		allowed, _ := s.auth.Decide(request.User{Name: users[len(users)-1].name}, request.Info{ResourceRequest: true, Verb: "deletecollection", Resource: "pods"})
		return allowed
	})
	apitest.WaitFor(t, "the APIService, which the server writes by itself", func() bool {
		return s.try("root", "GET", "/apis/apiregistration.k8s.io/v1/apiservices/v1.doors.io", "", "").code == 200
	})
	s.rest() // what changes from now on a request has changed
	return s, users
}

func (s *doorScene) make(t *testing.T, path, body string) {
	t.Helper()
	if a := s.try("root", "POST", path, body, "application/json"); a.code != 201 {
		t.Fatalf("%s: %d %s", path, a.code, a.body.String())
	}
}

// grant writes a right as a role and its binding.
func (s *doorScene) grant(t *testing.T, name, user string, r right) {
	quoted := func(list []string) string { return strings.ReplaceAll(fmt.Sprintf("%q", list), `" "`, `","`) }
	path, kind := "/apis/rbac.authorization.k8s.io/v1/", "ClusterRole"
	if r.namespace != "" {
		path, kind = path+"namespaces/"+r.namespace+"/", "Role"
	}
	resources := r.resources
	if resources == nil {
		resources = []string{"*"}
	}
	s.make(t, path+strings.ToLower(kind)+"s", fmt.Sprintf(`{"metadata":{"name":%q},"rules":[{"apiGroups":["*"],"verbs":%s,"resources":%s,"resourceNames":%s}]}`,
		name, quoted(r.verbs), quoted(resources), quoted(r.names)))
	s.make(t, path+strings.ToLower(kind)+"bindings", fmt.Sprintf(`{"metadata":{"name":%q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":%q,"name":%q},
		"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":%q}]}`, name, kind, name, user))
}

// ---- Every door ----

// A door is a path: of one type, one part of it, with or without a namespace and a name.
type door struct {
	typ                   *servedType
	watching              bool // by the deprecated path
	namespace, name, part string
}

func (d *door) path() string {
	path := d.typ.root
	if d.watching {
		path += "/watch"
	}
	if d.namespace != "" {
		path += "/namespaces/" + d.namespace
	}
	path += "/" + d.typ.plural
	for _, more := range []string{d.name, d.part} {
		if more != "" {
			path += "/" + more
		}
	}
	return path
}

// doorsOf lists the paths of a type.
func doorsOf(typ *servedType) (doors []*door) {
	for part := range typ.subs {
		for _, watching := range []bool{false, true} {
			for _, namespace := range []string{"", "a", "b"} {
				for _, name := range []string{"", "one", "two", "fresh", "a"} {
					own := typ.plural == "namespaces"
					if part != "" && name != "one" || name == "a" && !own || part == "nosuch" && own || namespace == "b" && (name == "two" || watching && !own) {
						continue
					}
					doors = append(doors, &door{typ, watching, namespace, name, part})
				}
			}
		}
	}
	return doors
}

// leads says whether kube-apiserver has such a path.
func (d *door) leads() bool {
	typ, question := d.typ, !slices.Contains(d.typ.verbs, "get")
	_, known := typ.subs[d.part]
	switch {
	case d.part == "nosuch" || !known || d.namespace != "" && !typ.namespaced:
		return false
	case d.watching:
		return slices.Contains(typ.verbs, "watch") && d.part == "" && (d.name == "" || !typ.namespaced || d.namespace != "" || !typ.builtin)
	case question:
		return d.name == "" && typ.namespaced == (d.namespace != "")
	}
	return !typ.namespaced || d.namespace != "" || d.name == ""
}

// A knock is a request at a door.
type knock struct {
	door
	method, query, body, contentType string
	asks                             deed
	selected                         string // the name that the field selector demands
	want                             int    // 0: what the door is for
	applies                          bool
}

func (d *door) knocks() (all []*knock) {
	const first = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=100"
	add := func(k knock) {
		k.door = *d
		k.judge()
		all = append(all, &k)
	}
	meta := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%%q,"annotations":{"touched":"yes"}}}`, d.typ.apiVersion, d.typ.kind)
	reads := []knock{{query: "pretty=false"}, {query: "fieldSelector=metadata.name%3Done", selected: "one"}, {query: "fieldSelector=metadata.name!%3Done&table"}, {query: first},
		{query: first + "&fieldSelector=metadata.name%3Dtwo", selected: "two"}}
	if d.part != "" {
		reads = reads[:1]
	}
	for _, k := range reads {
		if k.method = "GET"; d.watching {
			k.query += "&" + first
		}
		add(k)
	}
	dry := ""
	if d.typ.careful {
		dry = "&dryRun=All"
	}
	fresh := fmt.Sprintf(meta, "fresh")
	if d.part != "" {
		fresh = `{"metadata":{"name":"one"}}`
	}
	own := fmt.Sprintf(meta, d.name)
	add(knock{method: "POST", query: dry, body: fresh, contentType: "application/json"})
	add(knock{method: "PUT", query: dry, body: own, contentType: "application/json"})
	add(knock{method: "PATCH", query: dry, body: `{"metadata":{"annotations":{"touched":"yes"}}}`, contentType: "application/merge-patch+json"})
	add(knock{method: "PATCH", query: "fieldManager=m&force=true" + dry, body: own, contentType: "application/apply-patch+yaml", applies: true})
	add(knock{method: "DELETE", query: "propagationPolicy=Background" + dry})
	add(knock{method: "DELETE", query: "propagationPolicy=Background&fieldSelector=metadata.name%3Done" + dry, selected: "one"})
	add(knock{method: "HEAD"})
	add(knock{method: "OPTIONS"})
	return all
}

// judge says what the request asks for, and what is due to whoever may have it.
func (k *knock) judge() {
	listing := k.name == "" && (k.method == "GET" || k.method == "HEAD")
	verb := map[string]string{"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[k.method]
	k.asks = deed{verb, k.typ.plural, k.part, k.namespace, k.name}
	switch {
	case k.watching:
		k.asks.verb = "watch"
	case listing:
		if k.asks.verb, k.asks.name = "list", k.selected; strings.Contains(k.query, "watch=1") {
			k.asks.verb = "watch"
		}
	case verb == "delete" && k.name == "":
		k.asks.verb = "deletecollection"
	}
	if k.typ.plural == "namespaces" && k.namespace == "" {
		k.asks.namespace = k.name // a Namespace lies in itself
	}
	k.want = k.due()
}

func (k *knock) due() int {
	verbs, everywhere := k.typ.verbs, k.typ.namespaced && k.namespace == ""
	if k.part != "" {
		verbs = k.typ.subs[k.part]
	}
	proxied := k.part == "proxy" // which takes all methods
	served := slices.Contains(verbs, k.asks.verb) || proxied && k.method == "OPTIONS"
	switch {
	case !k.leads() || everywhere && !k.typ.builtin && k.asks.verb != "list" && k.asks.verb != "watch":
		return 404
	case k.method == "HEAD" && k.typ.builtin && !proxied, k.method == "OPTIONS" && !proxied, k.watching && k.method != "GET", everywhere && k.method != "GET" && k.method != "HEAD", !served:
		return 405
	case k.part == "" && (k.method == "POST") != (k.name == "") && (k.method == "POST" || k.method == "PUT" || k.method == "PATCH"):
		return 405
	case k.watching && k.name != "" && k.selected != "" && k.selected != k.name, k.watching && k.name != "" && strings.Contains(k.query, "!"):
		return 400
	}
	return 0
}

// spellings are other ways to write the same path.
func (k *knock) spellings() []string {
	path := k.path()
	return []string{path + "/", strings.Replace(path, "/"+k.typ.plural, fmt.Sprintf("/%%%02X%s", k.typ.plural[0], k.typ.plural[1:]), 1),
		strings.Replace(strings.Replace(path, "/one", "/%6Fne", 1), "/a/", "/%61/", 1)}
}

// misspellings look like the path, and lead nowhere.
func (k *knock) misspellings() []string {
	path, at := k.path(), "/"+k.typ.plural+"/"
	return []string{"/" + path, strings.Replace(path, at, at+"/", 1), strings.Replace(path, at, "/"+at, 1), path + "//status", path + "///one", path + "%2F", path + "%2Fstatus",
		path + "/status/one", strings.Replace(path, at, "%2F"+k.typ.plural+"/", 1), strings.Replace(path, k.typ.root, k.typ.root+"/proxy", 1),
		strings.Replace(path, at, "/../b"+at, 1), strings.Replace(path, k.typ.root, k.typ.root+"/", 1), strings.Replace(path, "/a/", "//", 1)}
}

var marks = regexp.MustCompile(`"mark":"(?:<|\\u003c)([^>\\]*)`)

// reaches says that the request is about the object with this key.
func (k *knock) reaches(key string) bool {
	base, namespace, name, _ := scheme.SplitKey(key)
	wanted := k.name
	if wanted == "" {
		wanted = k.selected
	}
	if k.method == "POST" && wanted == "" {
		wanted = "fresh"
	}
	return base == k.typ.base && (k.namespace == "" || namespace == k.namespace) && (wanted == "" || name == wanted)
}

// outcome counts what happened, so that a test in which nothing does is seen.
type outcome map[string]int

// check makes the request and holds what comes of it against what is due.
func (s *doorScene) check(t *testing.T, u *tenant, k *knock, path string, did outcome) {
	did["requests"]++
	before := s.st.Revision()
	a := s.try(u.name, k.method, path+"?"+k.query, k.body, k.contentType)
	text := a.body.String()
	changed := s.mendIf(t, before)
	denied := a.code == 403 && strings.Contains(text, "User \\\""+u.name+"\\\" cannot ")
	wrong := func(format string, args ...any) {
		did["wrong"]++
		t.Errorf("%s %s %s?%s: %s\n%d %.300s", u.name, k.method, path, k.query, fmt.Sprintf(format, args...), a.code, text)
	}
	create := k.asks
	create.verb = "create"
	nowhere := strings.Contains(text, "could not find the requested resource") || strings.HasPrefix(text, "404 page")
	connects := k.part == "exec" || k.part == "attach" || k.part == "portforward" // a GET takes the right to create besides
	switch may := u.may(k.asks); {
	case a.code >= 500 && !strings.Contains(text, "target.name: Required value") && // which kube-apiserver answers, too
		!strings.Contains(text, "no preferred addresses found") && !strings.Contains(text, "no endpoints available for service"):
		wrong("a failure")
	case !may && !denied, may && denied && (s.seeded(k) && !connects || u.may(create)):
		wrong("may is %v", may)
	case may && k.want != 0 && a.code != k.want:
		wrong("want %d", k.want)
	case may && k.want == 0 && (a.code == 405 || nowhere):
		wrong("want it served")
	case may && k.want == 0 && k.applies && !s.seeded(k) && k.part == "" && denied == u.may(create):
		wrong("may create is %v", u.may(create))
	}
	for _, ev := range changed {
		if strings.HasPrefix(ev.Key, "/networking.k8s.io/ipaddresses/") && strings.HasPrefix(k.typ.base, "//services/") {
			continue // what the Service has its address by
		}
		if did[k.method]++; a.code >= 400 || !k.reaches(ev.Key) || ev.PrevRev == 0 && !u.may(create) {
			wrong("it changed %s", ev.Key)
		}
	}
	var shown []string
	for _, found := range marks.FindAllStringSubmatch(text, -1) {
		if shown = append(shown, found[1]); a.code >= 400 || !k.reaches(found[1]) {
			wrong("it shows %s", found[1])
		}
	}
	if k.method == "GET" && a.code == 200 && k.part == "" {
		did["shown"] += len(shown)
		if want := s.reach(k); len(shown) != want {
			wrong("it shows %d of %d", len(shown), want)
		}
	}
}

func (s *doorScene) seeded(k *knock) bool {
	_, ok := s.seeds[k.typ.base+k.namespace+"/"+k.name]
	return ok
}

// reach counts the objects that a read is to show.
func (s *doorScene) reach(k *knock) (n int) {
	other := strings.Contains(k.query, "!") && k.name == ""
	for key := range s.seeds {
		if k.reaches(key) && !(other && strings.HasSuffix(key, "/one")) {
			n++
		}
	}
	return n
}

func (s *doorScene) mendIf(t *testing.T, before int64) []store.Event {
	if s.st.Revision() == before {
		return nil
	}
	return s.mend(t, before)
}

// checkAstray makes a request that must come to nothing.
func (s *doorScene) checkAstray(t *testing.T, u *tenant, k *knock, path string, did outcome) {
	did["requests"]++
	before := s.st.Revision()
	a := s.try(u.name, k.method, path+"?"+k.query, k.body, k.contentType)
	changed := s.mendIf(t, before)
	if ok := a.code >= 400 && a.code <= 415; !ok || len(changed) > 0 || marks.Match(a.body.Bytes()) {
		t.Errorf("%s %s %s?%s: %d, %d changes: %.300s", u.name, k.method, path, k.query, a.code, len(changed), a.body.String())
	}
}

// checkThen makes a request that would change something to what was: by the path of a moment, and to the API of a revision itself, as if nobody stood
// before it. That has no writer.
func (s *doorScene) checkThen(t *testing.T, u *tenant, k *knock, did outcome) {
	if k.method == "GET" || k.method == "HEAD" || k.method == "OPTIONS" {
		return
	}
	before := s.st.Revision()
	then := s.api.asOf(s.reg, before)
	for _, way := range []struct {
		doors http.Handler
		root  string
	}{
		{s.doors, fmt.Sprintf("/at/%d", before)},
		{s.api.instruments.Record(s.auth.Authenticate(http.HandlerFunc(then.serveAPI))), ""},
	} {
		did["then"]++
		a := s.tryAt(way.doors, u.name, k.method, way.root+k.path()+"?"+k.query, k.body, k.contentType)
		changed := s.mendIf(t, before)
		if a.code < 400 || a.code > 415 || way.root != "" && a.code != 405 || len(changed) > 0 || marks.Match(a.body.Bytes()) {
			did["wrong"]++
			t.Errorf("%s %s %s%s?%s: %d, %d changes: %.300s", u.name, k.method, way.root, k.path(), k.query, a.code, len(changed), a.body.String())
		}
	}
}

// TestEveryDoor: what a user may do by the rules, and nothing else, whatever way the request is written. A master comes to every door, the
// others to every sixteenth, in turn; with APILET_DOORS=all everybody tries everything. What was is behind none of them to be changed.
func TestEveryDoor(t *testing.T) {
	t.Parallel()
	s, users := openDoors(t)
	did, turn, all := outcome{}, 0, os.Getenv("APILET_DOORS") == "all"
	knocks, every := 0, apitest.Every(3)
	for _, typ := range s.types {
		for _, d := range doorsOf(typ) {
			for _, k := range d.knocks() {
				if knocks++; knocks%every != 0 {
					continue
				}
				turn++
				for i, u := range users {
					if all || i == 0 || (turn+i)%16 == 0 {
						s.check(t, u, k, k.path(), did)
					}
					if i == 0 {
						s.checkThen(t, u, k, did)
					}
					if all && i < 5 || i == turn%40 {
						s.respell(t, u, k, did)
					}
				}
				if did["wrong"] > 20 {
					t.Fatal("and so on")
				}
			}
		}
	}
	t.Logf("%d types: %v", len(s.types), did)
	for _, deed := range []string{"shown", "POST", "PUT", "PATCH", "DELETE", "then"} {
		if did[deed] < 50/every {
			t.Errorf("%s: %d objects only", deed, did[deed])
		}
	}
}

// respell tries the other ways to write a path.
func (s *doorScene) respell(t *testing.T, u *tenant, k *knock, did outcome) {
	if k.name != "one" || k.part != "" || k.watching || k.namespace == "b" {
		return
	}
	for _, path := range k.spellings() {
		s.check(t, u, k, path, did)
	}
	for _, path := range k.misspellings() {
		if path != k.path() {
			s.checkAstray(t, u, k, path, did)
		}
	}
}

// A lookupCounter counts the lookups of the request's record in a context.
type lookupCounter struct {
	context.Context
	lookups *int
}

func (c lookupCounter) Value(key any) any {
	if key == (request.Key{}) {
		*c.lookups++
	}
	return c.Context.Value(key)
}

// TestRecordIsLookedUpOnce checks that each step of the chain looks the record of a request up at most once, and passes it on as a parameter.
func TestRecordIsLookedUpOnce(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	const maps = "/api/v1/namespaces/default/configmaps"
	for _, c := range []struct{ method, path, body string }{
		{"POST", maps, `{"metadata":{"name":"a"}}`},
		{"PUT", maps + "/a", `{"metadata":{"name":"a"},"data":{"b":"c"}}`},
		{"GET", maps + "/a", ""},
		{"GET", maps, ""},
	} {
		lookups := 0
		steps := s.auth.Authenticate(s.auth.Impersonate(s.api.limitConcurrency(s.api.withPast(s.api.routes()))))
		counted := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			steps.ServeHTTP(w, r.WithContext(lookupCounter{r.Context(), &lookups}))
		})
		r := httptest.NewRequest(c.method, "http://127.0.0.1"+c.path, strings.NewReader(c.body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		s.api.instruments.Record(counted).ServeHTTP(w, r)
		if w.Code >= 300 || lookups > 4 {
			t.Errorf("%s %s: %d, %d lookups, want at most 4", c.method, c.path, w.Code, lookups)
		}
	}
}

// TestNamespaceIsLeftAloneAtFirst: who finalizes a namespace after deleting it, as envtest's users do, finds it as it was. One that is
// finalized already, and has a finalizer of its own, is emptied without delay, which also shows that the emptier had seen the others.
func TestNamespaceIsLeftAloneAtFirst(t *testing.T) {
	t.Parallel()
	s := startTest(t, func(c *config) { c.namespaceGrace = time.Hour })
	const finalized = `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q,"resourceVersion":%q%s},"spec":{"finalizers":[]}}`
	const held = `,"finalizers":["test/hold"]`
	deleted := map[string]string{} // resourceVersion by name
	for name, finalizers := range map[string]string{"mine": "", "slow": "", "held": held} {
		s.want(201, "POST", "/api/v1/namespaces", `{"metadata":{"name":"`+name+`"`+finalizers+`}}`)
		s.want(201, "POST", "/api/v1/namespaces/"+name+"/configmaps", configMap("a"))
		deleted[name] = s.want(200, "DELETE", "/api/v1/namespaces/"+name, "").get("metadata.resourceVersion").String()
	}
	s.want(200, "PUT", "/api/v1/namespaces/held/finalize", fmt.Sprintf(finalized, "held", deleted["held"], held))
	apitest.WaitFor(t, "the finalized one is emptied", func() bool { return s.send("GET", "/api/v1/namespaces/held/configmaps/a", "").code == 404 })
	for _, name := range []string{"mine", "slow"} {
		a := s.want(200, "GET", "/api/v1/namespaces/"+name, "")
		apitest.Expect(t, a.get("metadata.resourceVersion"), deleted[name])
		s.want(200, "GET", "/api/v1/namespaces/"+name+"/configmaps/a", "")
	}
	s.want(200, "PUT", "/api/v1/namespaces/mine/finalize", fmt.Sprintf(finalized, "mine", deleted["mine"], ""))
	s.want(404, "GET", "/api/v1/namespaces/mine", "")
}

// TestDamageIsForgottenAfterASoundScrub checks that /readyz and the log stop to report damage that a scrub no longer finds.
func TestDamageIsForgottenAfterASoundScrub(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("a file in use cannot be written")
	}
	path := filepath.Join(t.TempDir(), "a.db")
	var log apitest.Log
	s := startTest(t, onFile(path), loud(&log))
	maps := s.namespace("broken")
	for i := range 30 {
		s.want(201, "POST", maps, configMap(fmt.Sprintf("m%02d", i), "pad", strings.Repeat("x", 900)))
	}
	s.rest()
	storetest.ZeroPages(t, path, `"name":"m10"`)
	s.want(500, "GET", maps+"/m10", "")
	for _, c := range []struct {
		code        int
		begun, over int
	}{{500, 1, 0}, {200, 1, 1}} {
		if a := s.send("GET", "/readyz", ""); a.code != c.code {
			t.Errorf("/readyz: %d, want %d: %s", a.code, c.code, a.body)
		}
		if said := log.String(); strings.Count(said, `"what":"/readyz/damage","message":"failing`) != c.begun || strings.Count(said, `"what":"/readyz/damage","message":"recovered`) != c.over {
			t.Errorf("begun and over, want %d, %d times:\n%s", c.begun, c.over, said)
		}
		s.st.File.Damage.Clear() // as a scrub does that finds nothing
	}
}
