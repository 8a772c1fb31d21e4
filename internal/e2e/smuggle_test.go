package e2e

// This file sends requests whose end is ambiguous, and requests to switch the connection to another
// protocol. A proxy may have forwarded them. The server must not process hidden data as another
// request.

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"apilet/internal/apitest"
)

func TestSmuggledRequestsAreNotServed(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	hidden := configMap("hidden")
	hiddenRequest := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%s", s.p1, len(hidden), hidden)
	visible := configMap("visible")
	for _, c := range []struct {
		title, head, body string
		code              int // expected status code, or 0 if there must be no response
	}{
		{"a length that ends before the chunks do", "Content-Length: 4\r\nTransfer-Encoding: chunked", "", 400},
		{"a length that ends after the chunks do", fmt.Sprintf("Content-Length: %d\r\nTransfer-Encoding: chunked", 5+len(hiddenRequest)), "0\r\n\r\n", 400},
		{"two lengths", fmt.Sprintf("Content-Length: 0\r\nContent-Length: %d", len(hiddenRequest)), "", 400},
		{"two lengths in one", fmt.Sprintf("Content-Length: 0, %d", len(hiddenRequest)), "", 400},
		{"a length with a sign", fmt.Sprintf("Content-Length: +%d", len(hiddenRequest)), "", 400},
		{"a length below zero", "Content-Length: -1", "", 400},
		{"a length in hexadecimal", "Content-Length: 0x10", "", 400},
		{"a length that overflows", "Content-Length: 18446744073709551616", "", 400},
		{"a length with a space before its colon", fmt.Sprintf("Content-Length : %d", len(hiddenRequest)), "", 400},
		{"chunks with a space before their colon", "Transfer-Encoding : chunked", "0\r\n\r\n", 400},
		{"chunks by another name", "Transfer-Encoding: xchunked", "0\r\n\r\n", 501},
		{"chunks twice", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "0\r\n\r\n", 501},
		{"chunks and more", "Transfer-Encoding: chunked, identity", "0\r\n\r\n", 501},
		{"compressed chunks", "Transfer-Encoding: gzip, chunked", "0\r\n\r\n", 501},
		{"chunks in a line of its own ending", "X: y\nTransfer-Encoding: xchunked", "", 501},
		{"a chunk of negative size", "Transfer-Encoding: chunked", "-1\r\n", 400},
		{"a chunk of a size that overflows", "Transfer-Encoding: chunked", "10000000000000001\r\n", 400},
		{"a chunk that is longer than it says", "Transfer-Encoding: chunked", "1\r\n" + visible + "\r\n0\r\n\r\n", 400},
		{"a name with a zero byte", "X\x00: y", "", 400},
		{"a value with a carriage return", "X: y\rTransfer-Encoding: chunked", "", 400},
	} {
		t.Run(c.title, func(t *testing.T) {
			codes := s.answers(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n\r\n%s%s", s.p1, c.head, c.body, hiddenRequest))
			if len(codes) != 1 || codes[0] != c.code {
				t.Errorf("got the answers %v, want %d alone", codes, c.code)
			}
		})
	}
	s.want(404, "GET", s.p1+"/hidden", "")
	apitest.Expect(t, s.list(""), "a b c d e @now")
}

// answers sends the bytes and returns the status codes of all responses until the server closes the
// connection.
func (s *testServer) answers(request string) (codes []int) {
	s.t.Helper()
	conn := s.dial()
	defer conn.Close()
	fmt.Fprint(conn, request)
	for lines := bufio.NewReader(conn); ; {
		response, err := http.ReadResponse(lines, nil)
		if err != nil {
			return codes
		}
		_, err = io.Copy(io.Discard, response.Body)
		codes = append(codes, response.StatusCode)
		if err != nil || response.Close {
			return codes
		}
	}
}

// TestNoConnectionIsTakenOver checks that the server only uses HTTP. A request for another protocol
// gets an HTTP response.
func TestNoConnectionIsTakenOver(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	const webSocket = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
	for _, c := range []struct{ request, extra, want string }{
		{"GET " + s.p1 + "?watch=1&timeoutSeconds=1", webSocket, "200"},
		{"GET " + s.p1, webSocket, "200"},
		{"GET /api/v1/namespaces/p1/pods/x/exec", webSocket, "404"},
		{"POST /api/v1/namespaces/p1/pods/x/portforward", "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n", "404"},
		{"GET /livez", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n", "200"},
		{"CONNECT 127.0.0.1:1", "", "404"},
		{"GET http://127.0.0.1:1/api/v1/pods", "", "200"},
		{"PRI *", "", "400 404 405"},
		{"OPTIONS *", "", "200 404"},
	} {
		method, target, _ := strings.Cut(c.request, " ")
		code, _ := s.raw(fmt.Sprintf("%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n", method, target, c.extra))
		if !strings.Contains(c.want, fmt.Sprint(code)) {
			t.Errorf("%s: %d, want %s", c.request, code, c.want)
		}
	}
	s.expectServed("them all")
}
