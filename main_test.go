package main

// This file starts whole servers, in this process and on a loopback port, and talks HTTP to them. The other end-to-end tests stand on
// the few helpers at its top: startTest, send, and want. Every test that uses them also fails if its server logged a panic.

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/tidwall/gjson"
	"golang.org/x/tools/txtar"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
)

func TestMain(m *testing.M) { apitest.Main(m) }

var update = flag.Bool("update", false, "rewrite the answers in testdata/conversations")

// ---- A server under test ----

// A testServer is a running server and a client of it.
type testServer struct {
	*server
	t       testing.TB
	conf    config // as given to startServer, which completes its copy
	client  *http.Client
	log     *apitest.Log
	headers []string // of every request
	stopped bool
}

// startTest starts a server on a free loopback port, on a temporary file without fsync. edit changes its flags.
func startTest(t testing.TB, edit ...func(*config)) *testServer {
	t.Helper()
	c, _ := newConfig(io.Discard)
	c.Listen, c.Ephemeral, c.CompactionInterval, c.namespaceGrace = "127.0.0.1:0", true, 0, 0
	c.DisabledPlugins = []string{"ServiceAccount"} // whose tokens and accounts most tests would have to look past
	c.RequestTimeout = 10 * time.Minute            // on a busy machine, with the race detector on it, a request may take more than the usual minute
	s := &testServer{t: t, log: &apitest.Log{}}
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
	s.server, s.stopped = running, false
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
	_ = s.work.Wait(time.Minute)
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
	conn.SetDeadline(time.Now().Add(apitest.Patience))
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

// ---- Conversations ----

// TestConversations replays testdata/conversations/*.txtar. A file is a row of "request" and "response" sections. A request is its
// line, headers, an empty line and the body; a response the status, the headers that do not go without saying, and the body, indented.
// What differs from run to run has names that are given in the order of appearance and may be used in later requests: rev1 is
// the first resourceVersion seen, uid1 and token1 the first uid and continue token.
//
// The answers are kube-apiserver's own, recorded with -update -oracle URL -token TOKEN from an empty one of version 1.36. Those in
// differences.txtar are apilet's: what it answers differently, and means to. A file's first lines may say with which flags both are started
// ("plugins: A,B" is --enable-admission-plugins, "authorization: RBAC" --authorization-mode), and a section "configuration" may hold the
// file of --admission-control-config-file.
func TestConversations(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/conversations/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no conversations", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) { replayFile(t, file) })
	}
}

func replayFile(t *testing.T, file string) {
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	talk := &conversation{s: interlocutor(t, file, archive), names: map[string]string{}, values: map[string]string{}, counts: map[string]int{}}
	var out []txtar.File
	for _, section := range archive.Files {
		if section.Name == "configuration" {
			out = append(out, section)
		}
		if section.Name != "request" {
			continue
		}
		got := talk.exchange(string(section.Data))
		out = append(out, section, txtar.File{Name: "response", Data: []byte(got)})
	}
	got := txtar.Format(&txtar.Archive{Comment: archive.Comment, Files: out})
	want, _ := os.ReadFile(file)
	switch {
	case bytes.Equal(got, want):
	case *update:
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s differs (-update rewrites it); got:\n%s", file, apitest.FirstDifference(string(got), string(want)))
	}
}

// interlocutor is who answers: a new server, or the kube-apiserver to record from.
func interlocutor(t *testing.T, file string, archive *txtar.Archive) *testServer {
	if *kubetest.OracleURL == "" {
		s := startTest(t, func(c *config) {
			for _, flag := range conversationFlag.FindAllStringSubmatch(string(archive.Comment), -1) {
				switch flag[1] {
				case "plugins":
					c.EnabledPlugins = strings.Split(flag[2], ",")
				case "authorization":
					c.Authorization = flag[2]
				}
			}
			for _, section := range archive.Files {
				if section.Name == "configuration" {
					c.AdmissionConfig = apitest.TempFile(t, "admission.yaml", string(section.Data))
				}
			}
			if strings.Contains(file, "plugin-") && c.EnabledPlugins == nil {
				c.EnabledPlugins = []string{"StorageObjectInUseProtection"}
			}
			if strings.Contains(file, "plugin-serviceaccount") { // recorded where nobody else makes accounts
				c.DisabledPlugins, c.NamespaceDefaults = nil, false
			}
		})
		if strings.Contains(file, "validation") && !s.validates() {
			t.Skip("the validation of built-in types is missing")
		}
		return s
	}
	if strings.Contains(file, "differences") {
		t.Skip("has answers of apilet's own")
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	return &testServer{t: t, server: &server{url: *kubetest.OracleURL}, client: client, headers: []string{"Authorization: Bearer " + *kubetest.OracleToken}}
}

// validates says whether built-in types are held against their rules.
func (s *testServer) validates() bool {
	return s.send("POST", "/api/v1/namespaces/default/pods?dryRun=All", `{"metadata":{"name":"l"}}`).code != 201
}

// A conversation remembers the names of volatile values.
type conversation struct {
	s      *testServer
	names  map[string]string // by value
	values map[string]string // by name
	counts map[string]int    // of names, by kind
}

var (
	conversationFlag = regexp.MustCompile(`(?m)^(\w+): (\S+)$`)

	placeholder = regexp.MustCompile(`\$\{(\w+)\}`)
	volatile    = regexp.MustCompile(`"(uid|resourceVersion|continue)": "([^"R][^"]*)"`)
	timestamp   = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	currentRev  = regexp.MustCompile(`(current: |in record \(|resourceVersion\\+":\\+")\d+`)
	listRev     = regexp.MustCompile(`(?s)^(\{\n  "kind": "(?:\w+List|Table)",.*?\n    "resourceVersion": )"\d+"`)
	tokenVolume = regexp.MustCompile(`kube-api-access-[bcdfghjklmnpqrstvwxz2456789]{5}`)
	generated   = regexp.MustCompile(`gen-[bcdfghjklmnpqrstvwxz2456789]{5}`)
	ageCell     = regexp.MustCompile(`"\d+m?s"`)
)

// exchange sends a request section and returns the response section.
func (talk *conversation) exchange(section string) string {
	section = placeholder.ReplaceAllStringFunc(section, func(name string) string { return talk.values[name[2:len(name)-1]] })
	head, body, _ := strings.Cut(section, "\n\n")
	lines := strings.Split(strings.TrimSpace(head), "\n")
	method, path, _ := strings.Cut(lines[0], " ")
	a := talk.s.send(method, path, strings.TrimSpace(body), lines[1:]...)
	out := fmt.Sprintln(a.code)
	for _, key := range []string{"Content-Type", "Warning", "Retry-After"} {
		for _, value := range a.header[key] {
			if value != "application/json" {
				out += key + ": " + value + "\n"
			}
		}
	}
	return out + "\n" + talk.normal(a.body) + "\n"
}

// normal is a body with its volatile values replaced by their names.
func (talk *conversation) normal(body []byte) string {
	var indented bytes.Buffer
	text := strings.TrimSpace(string(body))
	if json.Indent(&indented, body, "", "  ") == nil {
		text = withoutManagedFields(strings.TrimSpace(indented.String()))
	}
	text = generated.ReplaceAllString(text, "gen-XXXXX")
	text = tokenVolume.ReplaceAllString(text, "kube-api-access-XXXXX")
	text = listRev.ReplaceAllString(text, `$1"LISTREV"`)
	text = volatile.ReplaceAllStringFunc(text, func(pair string) string {
		m := volatile.FindStringSubmatch(pair)
		kind := map[string]string{"uid": "uid", "resourceVersion": "rev", "continue": "token"}[m[1]]
		return `"` + m[1] + `": "` + talk.nameOf(kind, m[2]) + `"`
	})
	for value, name := range talk.names {
		if len(value) > 20 {
			text = strings.ReplaceAll(text, value, name)
		}
	}
	text = currentRev.ReplaceAllString(timestamp.ReplaceAllString(text, "TIME"), "${1}REV")
	return ageCell.ReplaceAllString(text, `"AGE"`)
}

// withoutManagedFields drops what field ownership adds to indented objects: it has tests of its own, and would drown everything else.
func withoutManagedFields(text string) string {
	var out []string
	end := ""
	for line := range strings.SplitSeq(text, "\n") {
		indent := line[:len(line)-len(strings.TrimLeft(line, " "))]
		switch closing := strings.TrimSuffix(line, ","); {
		case end != "" && closing == end:
			if n := len(out) - 1; closing == line {
				out[n] = strings.TrimSuffix(out[n], ",")
			}
			end = ""
		case end == "" && strings.HasPrefix(line, indent+`"managedFields": [`):
			end = indent + "]"
		case end == "":
			out = append(out, line)
		}
	}
	return strings.ReplaceAll(strings.Join(out, "\n"), "{\n  }", "{}")
}

func (talk *conversation) nameOf(kind, value string) string {
	if talk.names[value] == "" {
		talk.counts[kind]++
		name := kind + strconv.Itoa(talk.counts[kind])
		talk.names[value], talk.values[name] = name, value
	}
	return talk.names[value]
}

// ---- Ports, credentials, shutdown ----

// serverCertificate writes a certificate for 127.0.0.1 and its key, and returns the pool that trusts it.
func serverCertificate(t *testing.T) (certFile, keyFile string, pool *x509.CertPool) {
	t.Helper()
	ca, _ := apitest.NewCA(t)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: "apilet"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	certFile, keyFile = issuePair(t, ca, tmpl)
	pool = x509.NewCertPool()
	pool.AddCert(ca.Cert)
	return certFile, keyFile, pool
}

// issuePair signs a certificate over the authority's own key and writes both as PEM.
func issuePair(t *testing.T, ca apitest.CA, tmpl *x509.Certificate) (certFile, keyFile string) {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, tmpl, ca.Cert, ca.Key.Public(), ca.Key)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(ca.Key)
	if err != nil {
		t.Fatal(err)
	}
	return apitest.TempFile(t, "cert.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))),
		apitest.TempFile(t, "key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})))
}

// startTLS starts a server that knows three tokens and one authority of client certificates.
func startTLS(t *testing.T, edit ...func(*config)) (s *testServer, clients apitest.CA) {
	t.Helper()
	certFile, keyFile, pool := serverCertificate(t)
	clients, caFile := apitest.NewCA(t)
	tokens := apitest.TempFile(t, "tokens.csv", "root-token,root,1,system:masters\nbob-token,bob,2,\"dev,ops\"\n")
	s = startTest(t, append([]func(*config){func(c *config) {
		c.TLSCert, c.TLSKey, c.Auth.TokenFile, c.Auth.ClientCAFile = certFile, keyFile, tokens, caFile
	}}, edit...)...)
	s.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool}
	return s, clients
}

// TestTLSSpeaksHTTP2: client-go multiplexes its watches over one connection.
func TestTLSSpeaksHTTP2(t *testing.T) {
	t.Parallel()
	s, _ := startTLS(t)
	s.client.Transport.(*http.Transport).ForceAttemptHTTP2 = true
	request, _ := http.NewRequest("GET", s.url+"/api/v1/namespaces?watch=1", nil)
	request.Header.Set("Authorization", "Bearer root-token")
	answer, err := s.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	frames := bufio.NewReader(answer.Body)
	for _, name := range []string{"default", "kube-node-lease", "kube-public", "kube-system"} {
		if line, err := frames.ReadString('\n'); answer.ProtoMajor != 2 || !strings.Contains(line, "ADDED") || !strings.Contains(line, name) {
			t.Errorf("%s %s: %s, %v", answer.Proto, answer.Status, line, err)
		}
	}
}

func TestCredentialsOverTLS(t *testing.T) {
	t.Parallel()
	s, clients := startTLS(t)
	root, bob := "Authorization: Bearer root-token", "Authorization: Bearer bob-token"
	pods := "/api/v1/namespaces/default/pods"
	for _, c := range []struct {
		title, method, path string
		headers             []string
		want                string
	}{
		{"a master may", "GET", pods, []string{root}, "200"},
		{"a known user without a role may not", "GET", pods, []string{bob},
			`403 Forbidden pods is forbidden: User "bob" cannot list resource "pods" in API group "" in the namespace "default"`},
		{"nobody in particular may not", "GET", pods, nil,
			`403 Forbidden pods is forbidden: User "system:anonymous" cannot list resource "pods" in API group "" in the namespace "default"`},
		{"140 a bad token is 401", "GET", pods, []string{"Authorization: Bearer nope"}, "401 Unauthorized Unauthorized"},
		{"the version is for everybody", "GET", "/version", nil, "200"},
		{"health is for everybody", "GET", "/readyz", nil, "200"},
		{"metrics are not", "GET", "/metrics", nil, `403 Forbidden forbidden: User "system:anonymous" cannot get path "/metrics"`},
		{"a master may be another", "GET", pods, []string{root, "Impersonate-User: bob"},
			`403 Forbidden pods is forbidden: User "bob" cannot list resource "pods" in API group "" in the namespace "default"`},
		{"others may not", "GET", pods, []string{bob, "Impersonate-User: root"},
			`403 Forbidden pods is forbidden: User "bob" cannot impersonate-on:user-info:list resource "pods" in API group "" in the namespace "default"`},
		{"a refused write changes nothing", "POST", pods, []string{bob},
			`403 Forbidden pods is forbidden: User "bob" cannot create resource "pods" in API group "" in the namespace "default"`},
	} {
		t.Run(c.title, func(t *testing.T) {
			a := s.send(c.method, c.path, "", c.headers...)
			got := a.failure()
			if a.code == 200 {
				got = "200"
			}
			if got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
	t.Run("a client certificate is its user", func(t *testing.T) { checkClientCertificate(t, s, clients) })
	t.Run("two spaces before the token are warned of", func(t *testing.T) {
		a := s.send("GET", "/version", "", "Authorization: Bearer  root-token")
		want := `299 - "the provided Authorization header contains extra space before the bearer token, and is ignored"`
		if got := a.header.Get("Warning"); a.code != 200 || got != want {
			t.Errorf("got %d with warning %s", a.code, got)
		}
	})
}

// checkClientCertificate asks with a certificate that the server's authority has signed, and with one of another authority.
func checkClientCertificate(t *testing.T, s *testServer, clients apitest.CA) {
	strangers, _ := apitest.NewCA(t)
	for want, ca := range map[int]apitest.CA{200: clients, 401: strangers} {
		subject := pkix.Name{CommonName: "carol", Organization: []string{"system:masters"}}
		cert := ca.Issue(t, subject, time.Hour, x509.ExtKeyUsageClientAuth)
		config := s.client.Transport.(*http.Transport).TLSClientConfig.Clone()
		config.Certificates = []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: ca.Key}}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
		response, err := client.Get(s.url + "/api/v1/pods")
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("got %d, want %d", response.StatusCode, want)
		}
	}
}

func TestAnonymousCanBeRefused(t *testing.T) {
	t.Parallel()
	s, _ := startTLS(t, func(c *config) { c.Auth.Anonymous = false })
	if got := s.want(401, "GET", "/version", "").failure(); got != "401 Unauthorized Unauthorized" {
		t.Error(got)
	}
}

func TestPlainPortRefusesOtherSites(t *testing.T) {
	t.Parallel()
	s := startTest(t, func(c *config) { c.CORSOrigins = `^https://good\.example$` })
	for _, c := range []struct {
		header string
		code   int
	}{
		{"Host: evil.example", 403}, {"Host: localhost:1234", 200}, {"Host: [::1]:80", 200},
		{"Origin: https://evil.example", 403}, {"Origin: https://good.example", 200}, {"Origin: null", 403},
	} {
		s.want(c.code, "GET", "/api/v1/pods", "", c.header)
	}
	a := s.send("OPTIONS", "/api/v1/pods", "", "Origin: https://good.example", "Access-Control-Request-Method: GET")
	if a.code != 204 || a.header.Get("Access-Control-Allow-Origin") != "https://good.example" {
		t.Errorf("a preflight got %d %v", a.code, a.header)
	}
}

// A browser shows its user's certificate to whatever page asks, and reaches the plain port from any. What such a page can make it send does nothing:
// a simple request without Content-Type is taken for JSON.
func TestOtherSitesPagesDoNothing(t *testing.T) {
	t.Parallel()
	kubeconfig := filepath.Join(t.TempDir(), "config")
	secured := startTest(t, func(c *config) {
		c.CertDir, c.Kubeconfig, c.CORSOrigins = filepath.Join(t.TempDir(), "certs"), kubeconfig, `^https://good\.example$`
	})
	secured.client, _ = kubeconfigClient(t, kubeconfig)
	t.Cleanup(secured.client.CloseIdleConnections)
	plain := startTest(t)
	binding := `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"generateName":"csrf-"},
		"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"system:anonymous"}]}`
	bindings := "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
	evil, cross, same := "Origin: https://evil.example", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site"
	for _, s := range []*testServer{secured, plain} {
		for _, headers := range [][]string{{evil, cross}, {evil}, {"Origin: null"}, {same}, {cross}} {
			a := s.want(403, "POST", bindings, binding, headers...)
			if a.header.Get("X-Content-Type-Options") != "nosniff" || a.header.Get("Cross-Origin-Resource-Policy") != "same-origin" {
				t.Errorf("the answer's headers are %v", a.header)
			}
		}
		for _, path := range []string{"/api/v1/secrets", "/debug/backup", "/debug/history?follow=true", "/api/v1/pods?watch=true", "/debug/ui/data", "/metrics", "/readyz"} {
			s.want(403, "GET", path, "", cross)
			s.want(403, "GET", path, "", same, "Sec-Fetch-Mode: navigate")
			if a := s.send("HEAD", path, "", cross); a.code != 403 {
				t.Errorf("HEAD %s: %d", path, a.code)
			}
		}
		s.want(200, "GET", "/debug/ui/", "", cross, "Sec-Fetch-Mode: navigate") // a link
		s.want(403, "GET", "/debug/ui/", "", cross, "Sec-Fetch-Mode: no-cors")
		s.want(200, "GET", "/api/v1/pods", "", "Sec-Fetch-Site: same-origin")
		s.want(200, "GET", "/api/v1/pods", "", "Sec-Fetch-Site: none", "Sec-Fetch-Mode: navigate")
		s.want(201, "POST", bindings, binding)
	}
	secured.want(201, "POST", bindings, binding, "Origin: https://good.example", cross)
	secured.want(201, "POST", bindings, binding, "Origin: http://127.0.0.1:8001", "Sec-Fetch-Site: same-origin") // a page behind kubectl proxy

	tokens, _ := startTLS(t)
	tokens.want(201, "POST", bindings, binding, evil, cross, "Authorization: Bearer root-token") // which no browser adds by itself
	tokens.want(403, "GET", "/version", "", cross)
}

func TestKubeconfigIsWritten(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config")
	s := startTest(t, func(c *config) { c.Kubeconfig = path })
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := gjson.GetBytes(text, "clusters.0.cluster.server").String(); got != s.url {
		t.Errorf("the kubeconfig leads to %q instead of %q", got, s.url)
	}
	if !gjson.GetBytes(text, "clusters.0.cluster.insecure-skip-tls-verify").Bool() {
		t.Error("the JavaScript client refuses a plain port without insecure-skip-tls-verify")
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("the kubeconfig has mode %v", info.Mode())
	}
}

func TestHealthVersionMetrics(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	for _, path := range []string{"/healthz", "/livez", "/readyz", "/readyz/ping", "/livez/etcd", "/healthz/etcd", "/readyz/etcd-readiness", "/readyz/informer-sync",
		"/readyz/poststarthook/crd-informer-synced", "/livez/poststarthook/scheduling/bootstrap-system-priority-classes", "/healthz/autoregister-completion"} {
		if a := s.send("GET", path, ""); a.code != 200 || string(a.body) != "ok" {
			t.Errorf("%s: %d %s", path, a.code, a.body)
		}
		if a := s.send("GET", path+"?verbose", ""); a.code != 200 || !strings.Contains(string(a.body), "ok") {
			t.Errorf("%s?verbose: %d %s", path, a.code, a.body)
		}
	}
	if a := s.send("GET", "/readyz?verbose", ""); !strings.Contains(string(a.body), "[+]store ok") {
		t.Errorf("readyz?verbose does not name the store: %s", a.body)
	}
	const roles = "/readyz/poststarthook/rbac/bootstrap-roles" // there are roles where they count
	if a := s.send("GET", roles, ""); a.code != 404 {
		t.Errorf("roles where none count: %d %s", a.code, a.body)
	}
	ruled, _ := startTLS(t, func(c *config) { c.Authorization = "RBAC" })
	if a := ruled.send("GET", roles, "", "Authorization: Bearer root-token"); a.code != 200 {
		t.Errorf("roles where they count: %d %s", a.code, a.body)
	}
	if a := s.want(200, "GET", "/version", ""); a.get("gitVersion").String() != gitVersion || a.get("minor").String() != minorVersion {
		t.Errorf("version: %s", a.body)
	}
	s.want(404, "GET", "/api/v1/namespaces/default/pods/none", "")
	metrics := string(s.send("GET", "/metrics", "").body)
	for _, want := range []string{"apiserver_request_total{", `resource="pods"`, `code="404"`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s in /metrics", want)
		}
	}
}

func TestDeadlineIsKept(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	if got := s.want(400, "GET", "/api/v1/pods?timeout=abc", "").failure(); !strings.Contains(got,
		`invalid timeout specified in the request URL - time: invalid duration "abc"`) {
		t.Error(got)
	}
	a := s.send("GET", "/api/v1/pods?timeout=1ns", "")
	if a.code != 504 || a.get("reason").String() != "Timeout" {
		t.Errorf("a list that ran out of time got %d %s", a.code, a.body)
	}
}

// TestStopLetsRequestsEnd stops a server while a body is half sent: that request ends well, /readyz fails, and nobody else gets in.
func TestStopLetsRequestsEnd(t *testing.T) {
	t.Parallel()
	s := startTest(t, onFile(filepath.Join(t.TempDir(), "a.db")))
	body := configMap("late")
	conn := s.dial()
	defer conn.Close()
	fmt.Fprintf(conn, "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%s", len(body), body[:9])
	apitest.WaitFor(t, "the request to arrive", func() bool {
		return metricValue(s, `apiserver_current_inflight_requests{request_kind="mutating"}`) >= 1
	})
	done := make(chan struct{})
	go func() { defer close(done); s.halt() }()
	apitest.WaitFor(t, "the listener to close", func() bool { _, err := s.try("GET", "/readyz", ""); return err != nil })
	fmt.Fprint(conn, body[9:])
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || response.StatusCode != 201 {
		t.Errorf("the running request got %v, %v", response, err)
	}
	<-done
	s.start()
	s.want(200, "GET", "/api/v1/namespaces/default/configmaps/late", "")
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

// TestKilledServerKeepsWhatItAcknowledged kills a server (-9) in the middle of writes, a few times over one file, and looks for every
// object whose create was answered with 201.
func TestKilledServerKeepsWhatItAcknowledged(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	acked := map[string]int64{}
	for round := range 3 {
		child := startChild(t, path)
		writeUntilKilled(child, round, acked)
		child.kill()
	}
	s := startTest(t, onFile(path))
	for name, rev := range acked {
		if a := s.send("GET", "/api/v1/namespaces/default/configmaps/"+name, ""); a.code != 200 || a.rev() != rev {
			t.Errorf("%s was acknowledged at %d; now: %d %s", name, rev, a.code, a.body)
		}
	}
}

// writeUntilKilled has four clients write, and kills the server once twenty writes are acknowledged and others are under way.
func writeUntilKilled(child *serverChild, round int, acked map[string]int64) {
	s := &testServer{server: &server{url: child.url}, client: &http.Client{Timeout: apitest.Patience}}
	enough := len(acked) + 20
	var mu sync.Mutex // guards acked
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := 0; ; i++ {
				name := fmt.Sprintf("r%d-w%d-%d", round, w, i)
				a, err := s.try("POST", "/api/v1/namespaces/default/configmaps", configMap(name))
				if err != nil {
					return
				}
				mu.Lock()
				if acked[name] = a.rev(); len(acked) == enough {
					child.cmd.Process.Kill()
				}
				mu.Unlock()
			}
		})
	}
	writers.Wait()
}
