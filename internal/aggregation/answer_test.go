package aggregation

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"apilet/internal/apitest"
	"apilet/internal/limits"
	"apilet/internal/request"
)

// A pair is an Aggregator that listens, and a server behind it that answers with raw bytes.
type pair struct {
	t     *testing.T
	g     *Aggregator
	front *httptest.Server
	route *route // to the server behind

	mu     sync.Mutex // guards answer, seen and logged
	answer string
	holds  chan struct{} // the server behind keeps upgraded connections until it is closed; nil: until the other side ends
	seen   *http.Request
	logged bytes.Buffer
}

func (p *pair) Write(line []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.logged.Write(line)
}

func (p *pair) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.logged.String()
}

func startPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{t: t, g: &Aggregator{ResponseHeaderTimeout: time.Hour, RejectRedirects: true, Upgrades: limits.NewUpgradeSlots(), self: "apilet-test",
		OnLongRunning: func(context.Context) {}, Stopping: make(chan struct{}), WriteError: func(w http.ResponseWriter, _ *http.Request, err error) {
			code := http.StatusGatewayTimeout
			if status, ok := err.(apierrors.APIStatus); ok {
				code = int(status.Status().Code)
			}
			http.Error(w, err.Error(), code)
		}}}
	back := httptest.NewUnstartedServer(http.HandlerFunc(p.respond))
	back.Config.ErrorLog = log.New(io.Discard, "", 0)
	back.StartTLS()
	transport := func() *http.Transport {
		return &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableCompression: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", back.Listener.Addr().String())
		}}
	}
	p.route = &route{host: "back.svc:443", plain: transport(), upgrades: transport()}
	s := &server{name: "v1.g", available: true, route: p.route}
	p.front = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := &request.Request{Info: request.Parse(r), User: request.User{Name: "alice"}, ID: "own-id"}
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Audit-Id", "own-id")
		w.Header().Set("Cache-Control", "no-cache, private")
		p.g.proxy(s, w, r.WithContext(context.WithValue(r.Context(), request.Key{}, rec)))
	}))
	p.front.Config.ErrorLog = log.New(p, "", 0)
	p.front.Start()
	t.Cleanup(func() { back.CloseClientConnections(); p.front.CloseClientConnections(); p.front.Close(); back.Close() })
	return p
}

// respond writes the raw answer and closes the connection when the other side does, or at once if the answer is not that of an upgrade.
func (p *pair) respond(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	p.mu.Lock()
	answer, holds := p.answer, p.holds
	p.seen = r
	p.mu.Unlock()
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		p.t.Error(err)
		return
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, strings.ReplaceAll(answer, "\n", "\r\n"))
	if strings.Contains(answer, " 101 ") {
		_, _ = io.Copy(io.Discard, rw)
		if holds != nil {
			<-holds
		}
	}
}

// ask sends a raw request and returns the first response, whatever its code.
func (p *pair) ask(raw string) (*http.Response, string, net.Conn) {
	p.t.Helper()
	conn, err := net.Dial("tcp", p.front.Listener.Addr().String())
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(apitest.Deadline(p.t))
	_, _ = io.WriteString(conn, strings.ReplaceAll(raw, "\n", "\r\n"))
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: "GET"})
	if err != nil {
		p.t.Fatalf("%s: %v", raw, err)
	}
	body := []byte(nil)
	if response.StatusCode >= 200 {
		body, _ = io.ReadAll(response.Body)
	}
	return response, string(body), conn
}

func (p *pair) answers(raw string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = raw
}

const getThings = "GET /apis/g/v1/things HTTP/1.1\nHost: a\n\n"

// TestAnswersOfServersBehind: only final responses reach the client, with valid codes, listed headers and listed trailers.
func TestAnswersOfServersBehind(t *testing.T) {
	p := startPair(t)
	early := "HTTP/1.1 103 Early Hints\nSet-Cookie: evil=1\nLink: </x>; rel=preload\nAccess-Control-Allow-Origin: *\n\n"
	fine := "HTTP/1.1 200 OK\nContent-Type: text/html\nContent-Length: 2\n\nhi"
	for _, c := range []struct {
		title, answer string
		code          int
		body          string
	}{
		{"a plain answer", fine, 200, "hi"},
		{"an early hint first", early + fine, 200, "hi"},
		{"many interim responses", strings.Repeat("HTTP/1.1 102 Processing\n\n", 20) + "HTTP/1.1 100 Continue\n\nHTTP/1.1 199 X\n\n" + fine, 200, "hi"},
		{"a code below 100", "HTTP/1.1 099 X\nContent-Length: 2\n\nhi", 502, "the backend answered with the status code 099"},
		{"the code 0", "HTTP/1.1 000 X\nContent-Length: 2\n\nhi", 502, "status code 000"},
		{"a code above 599", "HTTP/1.1 600 X\nContent-Length: 2\n\nhi", 502, "status code 600"},
		{"the highest code", "HTTP/1.1 599 X\nContent-Length: 2\n\nhi", 599, "hi"},
		{"a redirect", "HTTP/1.1 302 Found\nLocation: https://evil.example/\n\n", 502, "attempted to redirect"},
		{"a switch that was not asked for", "HTTP/1.1 101 X\nConnection: Upgrade\nUpgrade: x\n\n", 503, "error trying to reach service"},
		{"a switch to nothing", "HTTP/1.1 101 X\n\n", 503, "error trying to reach service"},
		{"a refresh", "HTTP/1.1 300 X\nRefresh: 0; url=https://evil.example/\nContent-Length: 0\n\n", 300, ""},
	} {
		p.answers(c.answer)
		got, body, _ := p.ask(getThings)
		if got.StatusCode != c.code || !strings.Contains(body, c.body) {
			t.Errorf("%s: %d %q, want %d %q", c.title, got.StatusCode, body, c.code, c.body)
		}
		for key, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Audit-Id": "own-id", "Cache-Control": "no-cache, private",
			"Set-Cookie": "", "Link": "", "Access-Control-Allow-Origin": "", "Refresh": ""} {
			if value := strings.Join(got.Header.Values(key), "|"); value != want {
				t.Errorf("%s: %s: %q, want %q", c.title, key, value, want)
			}
		}
	}
	if text := p.log(); text != "" {
		t.Errorf("logged %s", text)
	}
}

func TestOnlyListedHeadersPass(t *testing.T) {
	p := startPair(t)
	dropped := []string{"Set-Cookie", "Set-Cookie2", "Refresh", "Strict-Transport-Security", "Alt-Svc", "Www-Authenticate", "Service-Worker-Allowed", "Report-To", "Nel",
		"Clear-Site-Data", "Link", "Sourcemap", "Location", "Server", "X-Kubernetes-Pf-Flowschema-Uid", "Access-Control-Allow-Origin", "Timing-Allow-Origin",
		"Permissions-Policy", "Document-Policy", "Speculation-Rules", "Origin-Agent-Cluster", "X-Anything", "Upgrade", "Set_cookie"}
	passed := []string{"Etag", "Retry-After", "Warning", "Vary", "Last-Modified", "Content-Language", "Cache-Control", "Grpc-Status", "Sec-Websocket-Protocol"}
	head := "HTTP/1.1 200 OK\nContent-Type: text/html\nTransfer-Encoding: chunked\nConnection: X-Content-Type-Options\n" +
		"Trailer: Set-Cookie, Digest, Audit-Id, Grpc-Message, Content-Type\n"
	for _, key := range slices.Concat(dropped, passed) {
		head += key + ": 1\n"
	}
	p.answers(head + "\n2\nhi\n0\nSet-Cookie: evil=1\nDigest: a\nAudit-Id: spoof\nGrpc-Message: ok\nContent-Type: text/plain\nX-Unannounced: 1\n\n")
	got, body, _ := p.ask(getThings)
	if got.StatusCode != 200 || body != "hi" {
		t.Fatalf("%d %q", got.StatusCode, body)
	}
	for _, key := range passed {
		if values := got.Header.Values(key); len(values) != 1 || values[0] != "1" {
			t.Errorf("%s: %q", key, values)
		}
	}
	for _, key := range dropped {
		if values := got.Header.Values(key); len(values) > 0 {
			t.Errorf("%s: %q", key, values)
		}
	}
	if policy := got.Header.Values("Content-Security-Policy"); !slices.Equal(policy, []string{"sandbox"}) || got.Header.Get("X-Content-Type-Options") != "nosniff" ||
		!slices.Equal(got.Header.Values("Audit-Id"), []string{"own-id"}) {
		t.Errorf("headers %v", got.Header)
	}
	if len(got.Trailer) != 2 || got.Trailer.Get("Digest") != "a" || got.Trailer.Get("Grpc-Message") != "ok" {
		t.Errorf("trailers %v", got.Trailer)
	}
	p.answers("HTTP/1.1 201 Created\nLocation: /apis/g/v1/things/a\nContent-Length: 0\n\n")
	if got, _, _ := p.ask(getThings); got.Header.Get("Location") != "/apis/g/v1/things/a" {
		t.Errorf("created: %v", got.Header)
	}
}

// TestRequestsToServersBehind: hop-by-hop headers remove nothing of what this server says, and other spellings say nothing beside it.
func TestRequestsToServersBehind(t *testing.T) {
	p := startPair(t)
	p.answers("HTTP/1.1 200 OK\nContent-Length: 0\n\n")
	p.ask("POST /apis/g/v1/things HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\nTrailer: X-Remote-User, Authorization\n" +
		"Connection: X-Remote-User, X-Forwarded-For, Via, Audit-Id\nX-Remote-User: root\nX_Remote_User: root\nX.Remote-User: root\nX_Remote_Extra_Scopes: all\n" +
		"Impersonate_User: root\nX_Forwarded_Uri: /x\nX-Forwarded-Port: 1\nX-HTTP-Method-Override: DELETE\nX_HTTP_Method_Override: DELETE\nX-Original-URL: /x\n" +
		"Audit_Id: spoof\nProxy: http://evil.example\nAuthorization: Bearer x\nCookie: a=b\nKeep-Alive: 1\nX-Custom: 1\n\n1\na\n0\nX-Remote-User: root\nAuthorization: x\n\n")
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, want := range map[string]string{"X-Remote-User": "alice", "X-Forwarded-For": "127.0.0.1", "X-Forwarded-Uri": "/apis/g/v1/things", "Audit-Id": "own-id",
		"Via": "1.1 apilet-test", "X-Custom": "1"} {
		if got := strings.Join(p.seen.Header.Values(key), "|"); got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
	own := []string{"X-Remote-User", "X-Forwarded-For", "X-Forwarded-Uri", "X-Forwarded-Host", "X-Forwarded-Proto", "Audit-Id", "Via", "X-Custom", "Accept-Encoding", "User-Agent"}
	for key := range p.seen.Header {
		if !slices.Contains(own, key) {
			t.Errorf("the server behind got %s: %q", key, p.seen.Header[key])
		}
	}
	if len(p.seen.Trailer) > 0 {
		t.Errorf("the server behind got the trailers %v", p.seen.Trailer)
	}
}

const upgrade = "GET /apis/g/v1/things/x/exec HTTP/1.1\nHost: a\nConnection: Upgrade\nUpgrade: websocket\n\n"

func TestUpgradedConnectionsAreBounded(t *testing.T) {
	p := startPair(t)
	p.g.Upgrades = limits.NewSlots(8) // two of one user
	p.answers("HTTP/1.1 103 Early Hints\nSet-Cookie: a=b\n\nHTTP/1.1 101 Evil\nConnection: Upgrade, X-Content-Type-Options\nUpgrade: websocket\nSec-Websocket-Accept: x\nSet-Cookie: a=b\n\n")
	var open []net.Conn
	for range 2 {
		got, _, conn := p.ask(upgrade)
		if got.StatusCode != 101 || got.Header.Get("Set-Cookie") != "" || got.Header.Get("Sec-Websocket-Accept") != "x" || got.Header.Get("Audit-Id") != "own-id" ||
			got.Header.Get("Connection") != "Upgrade" || got.Header.Get("Upgrade") != "websocket" || strings.Contains(got.Status, "Evil") {
			t.Fatalf("%s %v", got.Status, got.Header)
		}
		open = append(open, conn)
	}
	if got, body, _ := p.ask(upgrade); got.StatusCode != 429 {
		t.Errorf("a third connection: %d %s", got.StatusCode, body)
	}
	_ = open[0].(*net.TCPConn).SetLinger(0) // it breaks off: an error of the copying, not its end
	_, _ = io.WriteString(open[0], "more")
	open[0].Close()
	apitest.WaitFor(t, "the place of a closed connection", func() bool {
		got, _, _ := p.ask(upgrade)
		return got.StatusCode == 101
	})
	p.answers("HTTP/1.1 403 Forbidden\nContent-Length: 0\n\n")
	open[1].Close()
	apitest.WaitFor(t, "the other one", func() bool {
		got, _, _ := p.ask(upgrade)
		return got.StatusCode == 403
	})
	if text := p.log(); text != "" {
		t.Errorf("logged %s", text)
	}
}

// TestServersBehindKeepNoPlaces: a client that has left has its place again, though the server behind keeps its end open.
func TestServersBehindKeepNoPlaces(t *testing.T) {
	p := startPair(t)
	p.holds = make(chan struct{})
	defer close(p.holds)
	p.g.Upgrades, p.g.ResponseHeaderTimeout = limits.NewSlots(4), time.Millisecond // one of one user
	p.answers("HTTP/1.1 101 Switching Protocols\nConnection: Upgrade\nUpgrade: websocket\n\n")
	for range 3 {
		apitest.WaitFor(t, "a place", func() bool {
			got, _, conn := p.ask(upgrade)
			conn.Close()
			return got.StatusCode == 101
		})
	}
}

// TestUnaskedSwitchIsAnError: the body of a 101 is the connection itself, and reading it would not end.
func TestUnaskedSwitchIsAnError(t *testing.T) {
	t.Parallel()
	p := startPair(t)
	p.holds = make(chan struct{})
	t.Cleanup(func() { close(p.holds) })
	p.answers("HTTP/1.1 101 X\nConnection: Upgrade\nUpgrade: x\n\n")
	if _, err := p.route.get(t.Context(), "/apis/g/v1", "", "", 100); err == nil || !strings.Contains(err.Error(), "101") {
		t.Errorf("got %v, want an error that names the 101", err)
	}
}
