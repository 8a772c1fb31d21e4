package auth_test

// This file has webhooks that misbehave. They speak raw TCP, since an HTTP library would not let them.

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
	"apilet/internal/auth/callout"
	"apilet/internal/request"
)

const (
	letsIn   = `"status":{"authenticated":true,"allowed":true,"user":{"username":"root","groups":["system:masters"]}}`
	asReview = `{"kind":"%s",` + letsIn + `}`
)

// answered is a response whose body says yes.
func answered(status string, headers ...string) string {
	return "HTTP/1.1 " + status + "\r\nContent-Length: LENGTH\r\n" + strings.Join(append(headers, ""), "\r\n") + "\r\nREVIEW"
}

// TestWebhooksThatMisbehaveLetNobodyIn: whatever they answer, nobody gets in, the error is short, and the call ends.
func TestWebhooksThatMisbehaveLetNobodyIn(t *testing.T) {
	t.Parallel()
	for title, c := range map[string]struct {
		answer string // REVIEW is a good body, LENGTH its length
		then   func(net.Conn)
	}{
		"nothing":                 {"", hang},
		"half a line":             {"HTTP/1.1 20", hang},
		"a body that stops":       {"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\nREVIEW", hang},
		"a body that trickles":    {"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\nREVIEW", trickle},
		"hanging up":              {"", nil},
		"a body cut off":          {"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\nREVIEW", nil},
		"endless 1xx":             {"", repeat("HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n")},
		"100 without an end":      {"HTTP/1.1 100 Continue\r\n\r\n", hang},
		"101":                     {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nREVIEW", hang},
		"an endless header":       {"HTTP/1.1 200 OK\r\nX: ", repeat(strings.Repeat("x", 1000))},
		"endless headers":         {"HTTP/1.1 200 OK\r\n", repeat("X: " + strings.Repeat("x", 1000) + "\r\n")},
		"an endless body":         {"HTTP/1.1 200 OK\r\n\r\n{\"kind\":\"", repeat(strings.Repeat("x", 1000))},
		"a kind of a megabyte":    {"HTTP/1.1 200 OK\r\n\r\n{\"kind\":\"" + strings.Repeat("x", 1<<20-100) + "\"}", nil},
		"a status of a megabyte":  {"HTTP/1.1 " + strings.Repeat("x", 1<<20), nil},
		"another protocol":        {"SSH-2.0-OpenSSH_9.9\r\n" + strings.Repeat("x", 4000) + "\r\n", nil},
		"a redirect":              {answered("307 Temporary Redirect", "Location: http://127.0.0.1:1/"), nil},
		"a redirect of old":       {answered("302 Found", "Location: /"), nil},
		"not modified":            {"HTTP/1.1 304 Not Modified\r\n\r\n", nil},
		"no content":              {"HTTP/1.1 204 No Content\r\n\r\n", nil},
		"status 099":              {answered("099 X"), nil},
		"status 207":              {answered("207 Multi-Status"), nil},
		"status 401":              {answered("401 Unauthorized", `WWW-Authenticate: Basic realm="x"`), nil},
		"status 600":              {answered("600 X"), nil},
		"status 999":              {answered("999 X"), nil},
		"status 1000":             {answered("1000 X"), nil},
		"a list":                  {"HTTP/1.1 200 OK\r\n\r\n[" + letsIn[9:] + "]", nil},
		"HTML":                    {"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>REVIEW", nil},
		"JSON nested deep":        {"HTTP/1.1 200 OK\r\n\r\n" + strings.Repeat(`{"status":`, 100_000), nil},
		"another kind":            {"HTTP/1.1 200 OK\r\n\r\n{\"kind\":\"Status\"," + letsIn + "}", nil},
		"two documents":           {"HTTP/1.1 200 OK\r\n\r\nREVIEWREVIEW", nil},
		"text instead of a truth": {"HTTP/1.1 200 OK\r\n\r\n{\"kind\":\"TokenReview\",\"status\":{\"authenticated\":\"true\",\"allowed\":1}}", nil},
		"chunks and a length":     {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nREVIEW", nil},
		"zipped":                  {answered("200 OK", "Content-Encoding: gzip"), nil},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			file := startLiar(t, c.answer, c.then)
			tokens, err := callout.NewTokens(callout.TokensConfig{File: file, Version: "v1", TTL: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			u, _, ok, err := tokens.User(ctx, "x", []string{"us"}, []string{"us"})
			if ok || err == nil || u.Name != "" || len(err.Error()) > callout.MaxText+100 {
				t.Errorf("token: %v %v, an error of %d bytes", u, ok, len(fmt.Sprint(err)))
			}
			for policy, want := range map[string]callout.Verdict{"NoOpinion": callout.NoOpinion, "Deny": callout.Deny} {
				judge := planWith(t, file, policy, "200ms", "")
				got, reason, err := judge.Decide(request.User{Name: "jane"}, request.Info{ResourceRequest: true, Verb: "get", Resource: "secrets"})
				if got != want || reason != "" || err == nil || len(err.Error()) > callout.MaxText+100 {
					t.Errorf("failure policy %s: %v %q, an error of %d bytes", policy, got, reason, len(fmt.Sprint(err)))
				}
			}
		})
	}
}

// hang keeps the connection open until the client closes it.
func hang(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

// trickle sends a byte at a time until the client hangs up.
func trickle(conn net.Conn) {
	for {
		if _, err := conn.Write([]byte(" ")); err != nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// repeat sends the same until the client hangs up, 16 MiB at most.
func repeat(text string) func(net.Conn) {
	return func(conn net.Conn) {
		for sent := 0; sent < 16<<20; sent += len(text) {
			if _, err := io.WriteString(conn, text); err != nil {
				return
			}
		}
	}
}

// startLiar answers each request with the same bytes, and then does something else or hangs up.
func startLiar(t *testing.T, answer string, then func(net.Conn)) (kubeconfig string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				r, err := http.ReadRequest(bufio.NewReader(conn))
				if err != nil {
					return
				}
				asked, _ := io.ReadAll(r.Body)
				text := answer
				body := fmt.Sprintf(asReview, gjson.GetBytes(asked, "kind"))
				text = strings.NewReplacer("LENGTH", strconv.Itoa(len(body)), "REVIEW", body).Replace(text)
				_, _ = io.WriteString(conn, text)
				if then != nil {
					then(conn)
				}
			}()
		}
	}()
	return apitest.TempFile(t, "kubeconfig", fmt.Sprintf(`{"current-context":"w","contexts":[{"name":"w","context":{"cluster":"c","user":"u"}}],
		"clusters":[{"name":"c","cluster":{"server":"http://%s"}}],"users":[{"name":"u","user":{}}]}`, listener.Addr()))
}

// TestWebhooksThatLie: answers are HTTP and JSON, and yet nonsense, or too long to be kept.
func TestWebhooksThatLie(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 300_000)
	hook, file := startHook(t, func(asked string) (int, string) {
		switch gjson.Get(asked, "spec.token").String() + gjson.Get(asked, "spec.resourceAttributes.name").String() {
		case "nobody":
			return 200, `{"kind":"TokenReview","status":{"authenticated":true,"user":{"groups":["system:masters"]}}}`
		case "an error too":
			return 200, `{"kind":"TokenReview","status":{"authenticated":false,"error":"` + long + `","user":{"username":"root"}}}`
		case "many groups":
			return 200, `{"kind":"TokenReview","status":{"authenticated":true,"user":{"username":"jane","groups":["` + long + `"]}}}`
		case "a long reason":
			return 200, `{"kind":"SubjectAccessReview","status":{"allowed":false,"reason":"` + long + `","evaluationError":"` + long[:1000] + `"}}`
		}
		return 200, `{"kind":"TokenReview","status":{"authenticated":true,"audiences":["them"],"user":{"username":"root"}}}`
	})
	tokens, err := callout.NewTokens(callout.TokensConfig{File: file, Version: "v1", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for token, good := range map[string]bool{"nobody": false, "an error too": false, "many groups": true, "for others": false} {
		u, _, ok, err := tokens.User(t.Context(), token, []string{"us"}, []string{"us"})
		if ok != good || !good && u.Name != "" || err != nil && len(err.Error()) > callout.MaxText+100 {
			t.Errorf("%s: %q %v, an error of %d bytes", token, u.Name, ok, len(fmt.Sprint(err)))
		}
	}
	before := hook.asked.Load()
	if _, _, ok, _ := tokens.User(t.Context(), "many groups", []string{"us"}, []string{"us"}); !ok || hook.asked.Load() != before+1 {
		t.Error("an answer of 600 KB is kept")
	}
	judge := planWith(t, file, "NoOpinion", "3s", "")
	for range 2 {
		got, reason, err := judge.Decide(request.User{Name: "jane"}, request.Info{ResourceRequest: true, Verb: "get", Resource: "pods", Name: "a long reason"})
		if got != callout.NoOpinion || err != nil || len(reason) > callout.MaxText+10 || !strings.HasPrefix(reason, "éé") {
			t.Errorf("%v, a reason of %d bytes, %v", got, len(reason), err)
		}
	}
}

// TestHangingWebhooksTakeFewConnections: later calls wait for one of the earlier ones.
func TestHangingWebhooksTakeFewConnections(t *testing.T) {
	t.Parallel()
	const clients = 150
	var open, most atomic.Int64
	full := make(chan struct{})
	file := startLiar(t, "", func(conn net.Conn) {
		n := open.Add(1)
		for seen := most.Load(); n > seen && !most.CompareAndSwap(seen, n); seen = most.Load() {
		}
		if n == 100 {
			close(full)
		}
		hang(conn)
		open.Add(-1)
	})
	tokens, err := callout.NewTokens(callout.TokensConfig{File: file, Version: "v1", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	results := make(chan error, clients)
	for i := range clients {
		go func() {
			_, _, _, err := tokens.User(ctx, fmt.Sprint(i), []string{"us"}, []string{"us"})
			results <- err
		}()
	}
	<-full
	cancel()
	for range clients {
		if err := <-results; err == nil {
			t.Error("a token that nobody has answered for is good")
		}
	}
	if n := most.Load(); n > 100 {
		t.Errorf("%d connections", n)
	}
}
