package e2e

// This file builds the program, starts it as a server, and talks HTTP to it. All other tests stand on the few helpers at its top: startTest,
// send, and want.

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

// folder is where the program is built; it goes with the tests.
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

// build makes the program under test of the sources of today, unless APILET_PROGRAM names one.
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

// A run is what came of a command.
type run struct {
	out, errs string
	code      int
}

// runAs runs the program to its end, called by a name.
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

// command runs a command as from a shell, and returns what it prints.
func command(t testing.TB, args ...string) string {
	t.Helper()
	r := runAs(t, "apilet", args...)
	if r.code != 0 {
		t.Errorf("apilet %q: %d %s", args, r.code, r.errs)
	}
	return r.out
}

// ---- A server under test ----

// A testServer is a server in a process of its own, and a client of it.
type testServer struct {
	t       testing.TB
	program string // "" is the program that build makes
	flags   []string
	env     []string // beside that of the tests
	url     string
	client  *http.Client
	log     *serverLog
	headers []string // of every request
	last    *apitest.Last
	process *exec.Cmd
	ended   chan error // what Wait came to
	stopped bool
}

// everyTest are the flags that a server under test has unless it is given them otherwise: a free loopback port, a temporary file without fsync.
var everyTest = []string{"--listen=127.0.0.1:0", "--ephemeral", "--log-format=json", "--compaction-interval=0",
	"--disable-admission-plugins=ServiceAccount", // whose tokens and accounts most tests would have to look past
	"--request-timeout=10m",                      // on a busy machine, with the race detector on it, a request may take more than the usual minute
}

// startTest starts a server with these flags, written --name=value, and the flags of every test. An
// argument in capitals, NAME=value, is a variable of the server's environment.
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

// serverFlags are those of every test, but for those that a test gives, and the test's.
func serverFlags(given []string) []string {
	flags := slices.DeleteFunc(slices.Clone(everyTest), func(flag string) bool {
		name, _, _ := strings.Cut(flag, "=")
		return slices.ContainsFunc(given, func(g string) bool {
			return strings.HasPrefix(g, name+"=") || name == "--ephemeral" && strings.HasPrefix(g, "--data=")
		})
	})
	return onEtcd(append(flags, given...))
}

// onEtcd gives a server a prefix of its own in the etcd cluster that ETCD_SERVERS names, if it does: testdata/on-etcd.sh runs tests so.
func onEtcd(flags []string) []string {
	if urls := os.Getenv("ETCD_SERVERS"); urls != "" && !slices.ContainsFunc(flags, func(f string) bool { return strings.HasPrefix(f, "--etcd-servers=") }) {
		flags = append(flags, "--etcd-servers="+urls, "--etcd-prefix=/"+rand.Text())
	}
	return flags
}

// onFile is a flag: the data lies in a file that a restart finds again.
func onFile(path string) string { return "--data=" + path }

// onSomeFile is the same for a file of the test's.
func onSomeFile(t testing.TB) string { return onFile(filepath.Join(t.TempDir(), "data.db")) }

// start starts a process, and returns when it serves.
func (s *testServer) start() {
	s.t.Helper()
	if why, ok := s.tryStart(); !ok {
		s.t.Fatalf("the server did not start: %s", why)
	}
}

// tryStart is start for a server that may refuse to.
func (s *testServer) tryStart() (why string, ok bool) {
	s.t.Helper()
	begun := make(chan string, 1)
	s.log = &serverLog{serving: begun}
	if s.program == "" {
		s.program = builtProgram(s.t)
	}
	cmd := exec.Command(s.program, s.flags...)
	cmd.Stderr, cmd.Env = s.log, os.Environ()
	if os.Getenv("GOGC") == "" { // what a server makes in a test is garbage at once; apitest.Main has it so for those in process
		cmd.Env = append(cmd.Env, "GOGC=400", "GOMEMLIMIT=1GiB")
	}
	cmd.Env = append(cmd.Env, s.env...)
	endWithTests(cmd)
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.process, s.ended, s.stopped = cmd, make(chan error, 1), false
	go func(ended chan error) { ended <- cmd.Wait() }(s.ended) // the process's end is its end
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
	if s.client != nil { // of the process before
		transport.TLSClientConfig = s.client.Transport.(*http.Transport).TLSClientConfig
	}
	s.client = &http.Client{Transport: transport}
	return "", true
}

// halt stops the server as a service manager does, and looks at how it went.
func (s *testServer) halt() {
	s.t.Helper()
	s.end(syscall.SIGTERM)
}

// kill ends the process at once: what it would still do at its end is not done.
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

// restart stops the server and starts another on the same file, on another port.
func (s *testServer) restart() {
	s.t.Helper()
	s.halt()
	s.start()
}

// servedAuthority is the last certificate of the chain that the server shows, as PEM.
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

// expectServed requests a list beside the load that the test puts on the server. A server that is blocked by it never answers.
func (s *testServer) expectServed(what string) {
	s.t.Helper()
	if a := s.send("GET", "/api/v1/namespaces/default/configmaps?limit=1", ""); a.code != 200 {
		s.t.Errorf("beside %s, a request gets %d %s", what, a.code, a.body)
	}
}

// compactNow forgets the history before rev, of a server on a file: it is stopped, and another started on what is left.
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

// spoil replaces a part of an object's document in the file of the server, which is stopped and started for it. No check looks at the
// result.
func (s *testServer) spoil(key, old, by string) {
	s.t.Helper()
	s.halt()
	openTestStore(s.t, s.flag("data"), func(st *store.Store) error {
		spoilStored(s.t, st, key, old, by)
		return nil
	})
	s.start()
}

// spoilStored is spoil for a store that is open.
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

// openTestStore returns what is seen in the data file of a server that has ended.
func openTestStore[T any](t testing.TB, path string, see func(*store.Store) T) T {
	t.Helper()
	st, err := store.Open(path, store.Options{Fatal: func(err error) { t.Errorf("fatal: %v", err) }})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	return see(st)
}

// startFails starts a server that does not come up, and returns why.
func startFails(t testing.TB, flags ...string) string {
	t.Helper()
	r := runAs(t, "apilet", serverFlags(flags)...)
	if r.code == 0 {
		t.Fatal("the server started, and ended well")
	}
	return r.errs
}

// A serverLog keeps a server's log, and hears from it when the server serves.
type serverLog struct {
	apitest.Log
	serving chan<- string // gets the URL, once; nil then
	rest    []byte        // the beginning of a line
}

// Write is called by the one goroutine that reads the process's standard error.
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

// errors are the lines of the log that say what went wrong.
func (l *serverLog) errors() string {
	var out strings.Builder
	for line := range strings.Lines(l.String()) {
		if level := gjson.Get(line, "level").String(); level != "info" && level != "warn" && level != "debug" {
			out.WriteString(line)
		}
	}
	return out.String()
}

// flag is the value of a flag that the server was given.
func (s *testServer) flag(name string) (value string) {
	for _, flag := range s.flags {
		if v, ok := strings.CutPrefix(flag, "--"+name+"="); ok {
			value = v // the last one counts
		}
	}
	return value
}

// revision is the newest.
func (s *testServer) revision(headers ...string) int64 {
	s.t.Helper()
	return s.want(200, "GET", "/api/v1/namespaces?limit=1", "", headers...).rev()
}

// An answer is an HTTP response, read to its end.
type answer struct {
	code   int
	header http.Header
	body   []byte
}

func (a answer) get(path string) gjson.Result { return gjson.GetBytes(a.body, path) }

func (a answer) rev() int64 { return a.get("metadata.resourceVersion").Int() }

func (a answer) token() string { return a.get("metadata.continue").String() }

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
	if a.body, err = io.ReadAll(response.Body); err != nil {
		return a, err
	}
	a.body, err = readable(a.header, a.body)
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

// raw sends bytes as they are and returns the status line's code and the rest of the answer; 0 when the connection was closed.
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

// startTLS starts a server that knows three tokens and one authority of client certificates.
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

// allocated returns the number of bytes that the server has allocated since its start, including those that it has freed.
func (s *testServer) allocated() float64 {
	s.t.Helper()
	bytes := metricValue(s, "go_memstats_alloc_bytes_total")
	if bytes <= 0 {
		s.t.Fatal("the server does not report the memory that it allocates")
	}
	return bytes
}

// scrape reads the lines of /metrics.
func (s *testServer) scrape() map[string]bool {
	s.t.Helper()
	lines := map[string]bool{}
	for line := range strings.Lines(string(s.want(200, "GET", "/metrics", "").body)) {
		lines[strings.TrimSuffix(line, "\n")] = true
	}
	return lines
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
