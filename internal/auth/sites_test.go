package auth

import (
	"net/http/httptest"
	"strings"
	"testing"
)

// TestHandshakesOfProgramsMayHaveAnOrigin has the headers of real clients. Each browser's handshake stays refused, and so does every
// other request with a foreign Origin.
func TestHandshakesOfProgramsMayHaveAnOrigin(t *testing.T) {
	const (
		upgrade = "Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\nSec-WebSocket-Version: 13\n"
		evil    = "Origin: https://evil.example\n"
		local   = "Origin: http://localhost\n"
		chrome  = "User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/148.0.0.0 Safari/537.36\n"
		english = "Accept-Language: en-US,en;q=0.9\n"
	)
	for _, c := range []struct {
		name, headers string
		code          int
	}{
		{"golang.org/x/net/websocket", upgrade + local, 200},
		{"websocket-client of Python", upgrade + "Origin: http://127.0.0.1:6443\n", 200},
		{"gorilla in a program with a name", upgrade + local + "User-Agent: kubectl/v1.37.2\nSec-WebSocket-Protocol: v5.channel.k8s.io\nSec-WebSocket-Extensions: permessage-deflate\n", 200},
		{"Java with OkHttp", upgrade + local + "User-Agent: okhttp/4.12.0\nAccept-Encoding: gzip\n", 200},
		{"the protocol's name in capitals", strings.Replace(upgrade, "websocket", "WebSocket", 1) + local, 200},
		{"Node, which names a mode", upgrade + "User-Agent: node\nSec-Fetch-Mode: websocket\nAccept-Language: *\n", 200},

		{"Chrome 148, which sends no Sec-Fetch-Site", upgrade + evil + chrome + english + "Cache-Control: no-cache\nPragma: no-cache\n", 403},
		{"Chrome in a frame without an origin", upgrade + "Origin: null\n" + chrome + english, 403},
		{"Firefox 90", upgrade + evil + "User-Agent: Mozilla/5.0 (X11; rv:90.0) Gecko/20100101 Firefox/90.0\n" + english + "Sec-Fetch-Dest: websocket\nSec-Fetch-Mode: websocket\nSec-Fetch-Site: cross-site\n", 403},
		{"Safari 12", upgrade + evil + "User-Agent: Mozilla/5.0 (Macintosh) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/12.0 Safari/605.1.15\nPragma: no-cache\n", 403},
		{"a browser with another name", upgrade + evil + "User-Agent: curl/8\n" + english, 403},
		{"a browser without a name", upgrade + evil + english, 403},
		{"a browser without a language", upgrade + evil + chrome, 403},
		{"a browser with an empty language", upgrade + evil + "Accept-Language: \n", 403},
		{"a browser without name and language, with Sec-Fetch-Mode", upgrade + evil + "Sec-Fetch-Mode: websocket\n", 403},
		{"a browser without name and language, with Sec-GPC", upgrade + evil + "Sec-GPC: 1\n", 403},
		{"no name, no language, no origin", upgrade + "Origin: null\n", 403},
		{"two origins, one of them null", upgrade + local + "Origin: null\n", 403},
		{"an extension's page", upgrade + "Origin: chrome-extension://abcdef\n" + chrome + english, 403},
		{"a page of another site that says so itself", upgrade + "Sec-Fetch-Site: cross-site\n", 403},

		{"a request without a handshake", evil, 403},
		{"another protocol", strings.Replace(upgrade, "websocket", "SPDY/3.1", 1) + local, 403},
		{"h2c", strings.Replace(upgrade, "websocket", "h2c", 1) + local, 403},
	} {
		for _, cfg := range []Config{{Insecure: true, AlwaysAllow: true}, {Anonymous: true}} {
			a, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			r := httptest.NewRequest("GET", "/api/v1/namespaces/default/pods/p/exec", nil)
			r.Host = "127.0.0.1:6443"
			for line := range strings.Lines(c.headers) {
				name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
				r.Header.Add(name, value)
			}
			_, err = a.identify(r)
			if code, message := status(t, err); code != c.code {
				t.Errorf("%s: got %d %s, want %d", c.name, code, message, c.code)
			}
			r.Method = "POST"
			if _, err = a.identify(r); len(r.Header["Origin"]) > 0 && err == nil {
				t.Errorf("%s: a POST with an Origin was accepted", c.name)
			}
		}
	}
}
