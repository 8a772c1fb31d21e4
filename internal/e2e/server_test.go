package e2e

// This file builds the program, starts it as a server, and sends HTTP requests to it. The helpers
// startTest, send and want are used by all other tests.

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

var update = flag.Bool("update", false, "rewrite the answers in testdata")

// ---- The program ----

// folder is the directory in which the program is built. It is removed after the tests.
var folder string

func TestMain(m *testing.M) {
	apitest.Main(m, func() (done func()) {
		dir, err := os.MkdirTemp("", "apilet-e2e-")
		if err != nil {
			panic(err)
		}
		folder = dir
		return func() { os.RemoveAll(dir) }
	})
}

// readSources opens the directories of the program's sources. go test logs the files that a running
// test opens, so it does not reuse the result if any of the sources has changed.
func readSources(root string) error {
	if _, err := os.ReadDir(root); err != nil {
		return err
	}
	for _, dir := range []string{"internal", "testdata"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(_ string, _ os.DirEntry, err error) error { return err })
		if err != nil {
			return err
		}
	}
	return nil
}

// build compiles the program under test from the current sources, or returns the program that
// APILET_PROGRAM names.
var build = sync.OnceValues(func() (path string, err error) {
	if given := os.Getenv("APILET_PROGRAM"); given != "" {
		return given, nil
	}
	if err := readSources("../.."); err != nil {
		return "", err
	}
	path = filepath.Join(folder, "apilet")
	args := []string{"build", "-ldflags=-s -w", "-o", path}
	if apitest.Race {
		args = append(args, "-race")
	}
	if os.Getenv("GOCOVERDIR") != "" {
		args = append(args, "-cover", "-coverpkg=apilet/...")
	}
	if out, err := exec.Command("go", append(args, "apilet")...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("go %q: %w\n%s", args, err, out)
	}
	return path, nil
})

func builtProgram(t testing.TB) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// A run is the result of a command.
type run struct {
	out, errs string
	code      int
}

// runAs runs the program under the given name (argv[0]) and waits until it exits.
func runAs(t testing.TB, name string, args ...string) run {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := &exec.Cmd{Path: builtProgram(t), Args: append([]string{name}, args...), Stdout: &out, Stderr: &errs}
	err := cmd.Run()
	if _, ended := err.(*exec.ExitError); err != nil && !ended {
		t.Fatal(err)
	}
	return run{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// command runs a subcommand of the program and returns its output. It fails the test if the exit
// code is not 0.
func command(t testing.TB, args ...string) string {
	t.Helper()
	r := runAs(t, "apilet", args...)
	if r.code != 0 {
		t.Errorf("apilet %q: %d %s", args, r.code, r.errs)
	}
	return r.out
}

// ---- A server under test ----

// A testServer is a server process and its HTTP client.
type testServer struct {
	t       testing.TB
	program string // "" means the program that build returns
	flags   []string
	env     []string // added to the environment of the tests
	url     string
	client  *http.Client
	log     *serverLog
	headers []string // sent with every request
	last    *apitest.Last
	process *exec.Cmd
	ended   chan error // receives the result of Wait
	stopped bool
}

// everyTest contains the default flags for servers under test. They use a free loopback port and a
// temporary file without fsync.
var everyTest = []string{"--listen=127.0.0.1:0", "--ephemeral", "--log-format=json", "--compaction-interval=0",
	// Most tests do not need ServiceAccounts and their tokens.
	"--disable-admission-plugins=ServiceAccount",
	// If the machine is busy and the race detector is enabled, a request can take longer than the
	// default of one minute.
	"--request-timeout=10m",
}

// startTest starts a server with the flags of everyTest and these flags, which are written as
// --name=value. An argument that begins with a capital letter, NAME=value, sets a variable of the
// server's environment.
func startTest(t testing.TB, flags ...string) *testServer {
	t.Helper()
	var env []string
	flags = slices.DeleteFunc(slices.Clone(flags), func(flag string) bool {
		isVariable := flag != "" && 'A' <= flag[0] && flag[0] <= 'Z'
		if isVariable {
			env = append(env, flag)
		}
		return isVariable
	})
	s := &testServer{t: t, flags: serverFlags(flags), env: env, last: apitest.PrintLast(t)}
	s.start()
	return s
}

// serverFlags returns the flags of everyTest, except for flags that the test overrides, followed by
// the test's own flags.
func serverFlags(given []string) []string {
	flags := slices.DeleteFunc(slices.Clone(everyTest), func(flag string) bool {
		name, _, _ := strings.Cut(flag, "=")
		return slices.ContainsFunc(given, func(g string) bool {
			return strings.HasPrefix(g, name+"=") || name == "--ephemeral" && strings.HasPrefix(g, "--data=")
		})
	})
	return onEtcd(append(flags, given...))
}

// onEtcd makes the server use the etcd cluster that ETCD_SERVERS names, if it is set, with a random
// prefix. testdata/on-etcd.sh runs tests in this way.
func onEtcd(flags []string) []string {
	if urls := os.Getenv("ETCD_SERVERS"); urls != "" && !slices.ContainsFunc(flags, func(f string) bool { return strings.HasPrefix(f, "--etcd-servers=") }) {
		flags = append(flags, "--etcd-servers="+urls, "--etcd-prefix=/"+rand.Text())
	}
	return flags
}

// onFile returns the flag for a persistent data file.
func onFile(path string) string { return "--data=" + path }

// onSomeFile is like onFile, with a file in the test's temporary directory.
func onSomeFile(t testing.TB) string { return onFile(filepath.Join(t.TempDir(), "data.db")) }

// start starts the process and waits until it serves.
func (s *testServer) start() {
	s.t.Helper()
	if why, ok := s.tryStart(); !ok {
		s.t.Fatalf("the server did not start: %s", why)
	}
}

// tryStart is like start, but returns an error text if the server exits instead of serving.
func (s *testServer) tryStart() (why string, ok bool) {
	s.t.Helper()
	begun := make(chan string, 1)
	s.log = &serverLog{serving: begun}
	if s.program == "" {
		s.program = builtProgram(s.t)
	}
	cmd := exec.Command(s.program, s.flags...)
	cmd.Stderr, cmd.Env = s.log, os.Environ()
	// The objects that a server allocates in a test become garbage soon. apitest.Main sets the same
	// values for servers in this process.
	if os.Getenv("GOGC") == "" {
		cmd.Env = append(cmd.Env, "GOGC=400", "GOMEMLIMIT=1GiB")
	}
	cmd.Env = append(cmd.Env, s.env...)
	endWithTests(cmd)
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.process, s.ended, s.stopped = cmd, make(chan error, 1), false
	go func(ended chan error) { ended <- cmd.Wait() }(s.ended)
	s.t.Cleanup(s.halt)
	select {
	case s.url = <-begun:
	case err := <-s.ended:
		s.stopped = true
		return fmt.Sprintf("%v\n%s", err, s.log), false
	case <-apitest.Timeout(s.t):
		s.t.Fatalf("the server does not serve\n%s", s.log)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 100}
	if s.client != nil { // keep the TLS configuration of the previous process
		transport.TLSClientConfig = s.client.Transport.(*http.Transport).TLSClientConfig
	}
	s.client = &http.Client{Transport: transport}
	return "", true
}

// halt stops the server with SIGTERM, as a service manager does, and checks that it exits cleanly.
func (s *testServer) halt() {
	s.t.Helper()
	s.end(syscall.SIGTERM)
}

// kill ends the process immediately, without the work of a clean shutdown.
func (s *testServer) kill() {
	s.t.Helper()
	s.end(syscall.SIGKILL)
}

func (s *testServer) end(how syscall.Signal) {
	s.t.Helper()
	if s.stopped {
		return
	}
	s.stopped = true
	s.client.CloseIdleConnections()
	if err := s.process.Process.Signal(how); err != nil && !errors.Is(err, os.ErrProcessDone) { // Windows has no SIGTERM
		_ = s.process.Process.Kill()
		how = syscall.SIGKILL
	}
	select {
	case err := <-s.ended:
		if err != nil && how != syscall.SIGKILL {
			s.t.Errorf("the server ended with %v\n%s", err, s.log)
		}
	case <-apitest.Timeout(s.t):
		_ = s.process.Process.Kill()
		s.t.Errorf("the server did not end\n%s", s.log)
	}
	if log := s.log.String(); strings.Contains(log, "panic") || strings.Contains(log, "DATA RACE") {
		s.t.Errorf("the server panicked, or has a race:\n%s", log)
	}
}

// restart calls halt and start. The port may change.
func (s *testServer) restart() {
	s.t.Helper()
	s.halt()
	s.start()
}

// servedAuthority returns the last certificate of the server's chain, as PEM.
func (s *testServer) servedAuthority() []byte {
	s.t.Helper()
	conn, err := tls.Dial("tcp", strings.TrimPrefix(s.url, "https://"), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	chain := conn.ConnectionState().PeerCertificates
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: chain[len(chain)-1].Raw})
}

// expectServed requests a list while the test puts load on the server. If the load blocks the
// server, the request never gets a response.
func (s *testServer) expectServed(what string) {
	s.t.Helper()
	if a := s.send("GET", "/api/v1/namespaces/default/configmaps?limit=1", ""); a.code != 200 {
		s.t.Errorf("beside %s, a request gets %d %s", what, a.code, a.body)
	}
}

// compactNow stops the server, removes the history before rev from its data file, and starts it
// again.
func (s *testServer) compactNow(rev int64) {
	s.t.Helper()
	s.halt()
	openTestStore(s.t, s.flag("data"), func(st *store.Store) error {
		upkeep, err := store.NewMaintenance(st)
		if err == nil {
			_, err = upkeep.Compact(context.Background(), rev)
		}
		if err != nil {
			s.t.Error(err)
		}
		return err
	})
	s.start()
}

// spoil restarts the server. While it is stopped, spoil replaces a part of an object in the data
// file without any validation.
func (s *testServer) spoil(key, old, by string) {
	s.t.Helper()
	s.halt()
	openTestStore(s.t, s.flag("data"), func(st *store.Store) error {
		spoilStored(s.t, st, key, old, by)
		return nil
	})
	s.start()
}

// spoilStored is like spoil, for an open store.
func spoilStored(t testing.TB, st *store.Store, key, old, by string) {
	t.Helper()
	rec, err := st.Get(key)
	if err != nil || !bytes.Contains(rec.JSON, []byte(old)) {
		t.Fatalf("%s: %v, %s", key, err, rec.JSON)
	}
	json, revAt := scheme.WithoutRevision(bytes.Replace(rec.JSON, []byte(old), []byte(by), 1))
	c := store.Change{Op: store.OpUpdate, Key: rec.Key, Expect: rec.Rev, JSON: json, RevAt: revAt, Deleting: rec.Deleting}
	if _, err := st.Commit(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

// openTestStore opens the data file of a stopped server and returns the result of see.
func openTestStore[T any](t testing.TB, path string, see func(*store.Store) T) T {
	t.Helper()
	st, err := store.Open(path, store.Options{Fatal: func(err error) { t.Errorf("fatal: %v", err) }})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	return see(st)
}

// startFails runs a server that is expected to fail at startup, and returns the text that it writes
// to standard error.
func startFails(t testing.TB, flags ...string) string {
	t.Helper()
	r := runAs(t, "apilet", serverFlags(flags)...)
	if r.code == 0 {
		t.Fatal("the server started, and ended well")
	}
	return r.errs
}

// A serverLog records a server's log and notices when the server starts to serve.
type serverLog struct {
	apitest.Log
	serving chan<- string // receives the URL once; nil afterwards
	rest    []byte        // an incomplete line
}

// Write is only called by the goroutine that reads the process's standard error.
func (l *serverLog) Write(p []byte) (int, error) {
	n, err := l.Log.Write(p)
	for l.rest = append(l.rest, p...); ; {
		line, rest, whole := bytes.Cut(l.rest, []byte("\n"))
		if !whole {
			return n, err
		}
		if l.rest = rest; l.serving != nil && gjson.GetBytes(line, "message").String() == "serving" {
			l.serving <- gjson.GetBytes(line, "url").String()
			l.serving = nil
		}
	}
}

// errors returns all lines of the log with a level above warn.
func (l *serverLog) errors() string {
	var out strings.Builder
	for line := range strings.Lines(l.String()) {
		if level := gjson.Get(line, "level").String(); level != "info" && level != "warn" && level != "debug" {
			out.WriteString(line)
		}
	}
	return out.String()
}

// flag returns the value of a flag of the server.
func (s *testServer) flag(name string) (value string) {
	for _, flag := range s.flags {
		if v, ok := strings.CutPrefix(flag, "--"+name+"="); ok {
			value = v // the last one wins
		}
	}
	return value
}

// revision returns the server's current revision.
func (s *testServer) revision(headers ...string) int64 {
	s.t.Helper()
	return s.want(200, "GET", "/api/v1/namespaces?limit=1", "", headers...).rev()
}

// An answer is an HTTP response with its complete body.
type answer struct {
	code   int
	header http.Header
	body   []byte
}

func (a answer) get(path string) gjson.Result { return gjson.GetBytes(a.body, path) }

func (a answer) rev() int64 { return a.get("metadata.resourceVersion").Int() }

func (a answer) token() string { return a.get("metadata.continue").String() }

// names returns the names of all items in a list or in a Table.
func (a answer) names() string {
	var names []string
	for _, path := range []string{"items.#.metadata.name", "rows.#.object.metadata.name"} {
		for _, name := range a.get(path).Array() {
			names = append(names, name.String())
		}
	}
	return strings.Join(names, " ")
}

// failure returns the code, the reason and the message of an error, separated by spaces.
func (a answer) failure() string {
	return fmt.Sprintf("%d %s %s", a.code, a.get("reason"), a.get("message"))
}

// send sends a request and returns the response. headers are lines like "Accept: text/html".
func (s *testServer) send(method, path, body string, headers ...string) answer {
	s.t.Helper()
	a, err := s.try(method, path, body, headers...)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

// try is like send, but returns an error instead of failing the test. It can be called by any
// goroutine, and when the server may have stopped.
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
	if a.body, err = io.ReadAll(response.Body); err != nil {
		return a, err
	}
	a.body, err = readable(a.header, a.body)
	return a, err
}

// want is like send, and fails the test if the response has another status code.
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

// checkStatus checks that the response contains a valid Status.
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

// raw sends the bytes unchanged. It returns the status code and the rest of the response, or 0 if
// the server closed the connection.
func (s *testServer) raw(request string) (int, string) {
	s.t.Helper()
	conn := s.dial()
	defer conn.Close()
	fmt.Fprint(conn, request)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(body)
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

// namespace creates a namespace and returns the path of its ConfigMaps.
func (s *testServer) namespace(name string) string {
	s.t.Helper()
	s.want(201, "POST", "/api/v1/namespaces", `{"metadata":{"name":"`+name+`"}}`)
	return "/api/v1/namespaces/" + name + "/configmaps"
}

// configMap returns the JSON of a ConfigMap.
func configMap(name string, keyValues ...string) string {
	data := map[string]string{}
	for i := 0; i+1 < len(keyValues); i += 2 {
		data[keyValues[i]] = keyValues[i+1]
	}
	text, _ := json.Marshal(map[string]any{"metadata": map[string]any{"name": name}, "data": data})
	return string(text)
}

// startTLS starts a server with three tokens and a CA for client certificates.
func startTLS(t *testing.T, flags ...string) (s *testServer, clients apitest.CA) {
	t.Helper()
	certFile, keyFile, pool := apitest.ServerCertificate(t)
	clients, caFile := apitest.NewCA(t)
	tokens := apitest.TempFile(t, "tokens.csv", "root-token,root,1,system:masters\nbob-token,bob,2,\"dev,ops\"\n")
	own := []string{"--tls-cert-file=" + certFile, "--tls-private-key-file=" + keyFile, "--token-auth-file=" + tokens, "--client-ca-file=" + caFile}
	s = startTest(t, append(own, flags...)...)
	s.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool}
	return s, clients
}

// allocated returns the total number of bytes that the server has allocated, including freed
// memory.
func (s *testServer) allocated() float64 {
	s.t.Helper()
	bytes := metricValue(s, "go_memstats_alloc_bytes_total")
	if bytes <= 0 {
		s.t.Fatal("the server does not report the memory that it allocates")
	}
	return bytes
}

// scrape returns the lines of /metrics.
func (s *testServer) scrape() map[string]bool {
	s.t.Helper()
	lines := map[string]bool{}
	for line := range strings.Lines(string(s.want(200, "GET", "/metrics", "").body)) {
		lines[strings.TrimSuffix(line, "\n")] = true
	}
	return lines
}

// metricValue returns the value of one series of /metrics, or -1 if it is missing.
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
