package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// scripted returns a client of a server that answers requests with the given texts in turn. It
// writes them in pieces of the given size. Instead of "" it closes the connection.
func scripted(t *testing.T, piece int, answers ...string) *client {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	var turn atomic.Int64
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for in := bufio.NewReader(conn); ; {
					req, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, req.Body)
					text := answers[min(int(turn.Add(1)), len(answers))-1]
					if text == "" {
						return
					}
					for len(text) > 0 {
						n := min(piece, len(text))
						if _, err := io.WriteString(conn, text[:n]); err != nil {
							return
						}
						text = text[n:]
					}
					if strings.HasPrefix(answers[min(int(turn.Load()), len(answers))-1], "HTTP/1.1 200 Last") {
						return
					}
				}
			}()
		}
	}()
	s, err := newServer("scripted=http://" + listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := s.newClient(t.Context(), 0)
	t.Cleanup(c.close)
	return c
}

const (
	withLength = "HTTP/1.1 200 OK\r\ncontent-length: 11\r\nX-Other: 1\r\n\r\nhello world"
	inChunks   = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhell\r\n7;extension\r\no world\r\n0\r\nTrailer: x\r\n\r\n"
)

// TestBodyIsReadHoweverItComes checks that the body is correct, and that the next response is
// found, for every fragmentation of the stream.
func TestBodyIsReadHoweverItComes(t *testing.T) {
	for _, piece := range []int{1, 2, 3, 5, 7, 1000} {
		c := scripted(t, piece, withLength, inChunks, withLength, inChunks)
		for i := range 4 {
			if body, err := c.do("GET", "/x", nil); err != nil || string(body) != "hello world" {
				t.Fatalf("in pieces of %d, answer %d: %q, %v", piece, i, body, err)
			}
		}
	}
}

func TestLongBodyPassesThroughTheBuffer(t *testing.T) {
	long := strings.Repeat("0123456789", 10_000)
	text := fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(long), long)
	c := scripted(t, 1<<20, text)
	if err := c.ask(request{path: "/x", least: len(long), keep: 25}); err != nil || string(c.kept) != long[:25] {
		t.Errorf("%q, %v", c.kept, err)
	}
	if body, err := c.do("GET", "/x", nil); err != nil || string(body) != long {
		t.Errorf("%d bytes, %v", len(body), err)
	}
}

func TestWrongAnswersAreTold(t *testing.T) {
	c := scripted(t, 1000, "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 4\r\n\r\nwait", withLength)
	var wrong *wrongAnswer
	if err := c.ask(request{path: "/x"}); !errors.As(err, &wrong) || !strings.Contains(err.Error(), "429: wait") {
		t.Errorf("a status: %v", err)
	}
	if err := c.ask(request{path: "/x", least: 12}); !errors.As(err, &wrong) || !strings.Contains(err.Error(), "11 bytes") {
		t.Errorf("a short body: %v", err)
	}
	if err := c.ask(request{path: "/x", status: 201}); !errors.As(err, &wrong) {
		t.Errorf("another success: %v", err)
	}
	if err := c.ask(request{path: "/x", least: 11}); err != nil {
		t.Errorf("after wrong ones: %v", err)
	}
}

func TestWrongAnswersAreNotCounted(t *testing.T) {
	var asked int64
	c, err := repeat(1, 1<<62, func(int, int64) error {
		switch asked++; {
		case asked == 100:
			return errors.New("broken")
		case asked%2 == 0:
			return &wrongAnswer{fmt.Sprint("answer ", asked)}
		}
		return nil
	})
	if c.done != 50 || c.wrong != 49 || c.first.Error() != "answer 2" || err == nil {
		t.Errorf("%+v, %v", c, err)
	}
	if (&server{}).note(tally{wrong: 1, first: io.EOF}) != io.EOF || (&server{}).note(tally{done: 1}) != nil {
		t.Error("nothing but wrong answers is an error, and nothing else")
	}
}

func TestBrokenAnswersAreErrors(t *testing.T) {
	for _, text := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\n", "HTTP/1.1 200 OK\r\n\r\nabc", "nonsense\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("f", 30) + "\r\n",
		"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 20_000) + "\r\n\r\n",
		"HTTP/1.1 200 Last\r\nContent-Length: 20\r\n\r\nshort", "HTTP/1.1 200 Last\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
	} {
		c := scripted(t, 1<<20, text)
		var wrong *wrongAnswer
		if err := c.ask(request{path: "/x"}); err == nil || errors.As(err, &wrong) || c.conn != nil {
			t.Errorf("%.60q: %v", text, err)
		}
	}
}

// TestClosedConnectionIsOpenedAnew checks that the client reconnects after the server has closed
// the connection, with or without announcement.
func TestClosedConnectionIsOpenedAnew(t *testing.T) {
	said := strings.Replace(withLength, "X-Other: 1", "Connection: close", 1)
	c := scripted(t, 1000, said, withLength, "", withLength)
	for i := range 3 {
		if body, err := c.do("GET", "/x", nil); err != nil || string(body) != "hello world" {
			t.Errorf("answer %d: %q, %v", i, body, err)
		}
	}
	if err := scripted(t, 1000, "").ask(request{path: "/x"}); !errors.Is(err, errHungUp) {
		t.Errorf("a new connection that is closed: %v", err)
	}
}

func TestContextEndsTheConnection(t *testing.T) {
	c := scripted(t, 1000, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nevent\n\r\n")
	ctx, cancel := context.WithCancel(t.Context())
	c.ctx = ctx
	if err := c.open(request{path: "/x"}); err != nil {
		t.Fatal(err)
	}
	if piece, err := c.next(); err != nil || string(piece) != "event\n" {
		t.Errorf("%q, %v", piece, err)
	}
	cancel()
	if _, err := c.next(); err == nil {
		t.Error("more came")
	}
	if err := c.ask(request{path: "/x"}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestRequestsAreUnderstood checks that net/http understands the requests, also over TLS, and that
// an object is valid JSON of the promised size.
func TestRequestsAreUnderstood(t *testing.T) {
	var got string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = fmt.Sprint(r.Method, " ", r.URL, " ", r.Header.Get("Authorization"), " ", r.Header.Get("Accept-Encoding"), " ", len(body) == int(r.ContentLength))
		w.WriteHeader(201)
		_, _ = w.Write(body)
	}))
	defer server.Close()
	s, err := newServer("x=" + server.URL + "/behind,token=secret")
	if err != nil {
		t.Fatal(err)
	}
	c := s.newClient(t.Context(), 0)
	defer c.close()
	c.body = appendConfigMap(nil, []byte("a"), 7)
	err = c.ask(request{method: "POST", path: "/maps", name: []byte("/a"), query: "?q=1", header: "Accept-Encoding: gzip\r\n", body: c.body, status: 201, least: bodyBytes})
	if want := "POST /behind/maps/a?q=1 Bearer secret gzip true"; err != nil || got != want {
		t.Errorf("%q, %v", got, err)
	}
}

func TestItemsAreNamedAsTheyWereMade(t *testing.T) {
	for _, number := range []int64{1, 9, 10, 99_999, 100_000, 999_999, 1_000_000} {
		if got, want := string(appendItem(nil, number)), fmt.Sprintf("/item-%06d", number); got != want {
			t.Errorf("%s, not %s", got, want)
		}
	}
}

// TestRequestAllocatesNothing checks that requests do not allocate memory, because a garbage
// collection would affect the measurements.
func TestRequestAllocatesNothing(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		answer := []byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1024\r\n\r\n" + strings.Repeat("x", 1024))
		for in := make([]byte, 4096); ; { // the requests are smaller than this and are not split
			if _, err := conn.Read(in); err != nil {
				return
			}
			if _, err := conn.Write(answer); err != nil {
				return
			}
		}
	}()
	s, err := newServer("x=http://" + listener.Addr().String() + ",token=secret")
	if err != nil {
		t.Fatal(err)
	}
	s.objects = 1000
	c := s.newClient(t.Context(), 3)
	defer c.close()
	if err := errors.Join(get(c, 0), update(c, 0)); err != nil {
		t.Fatal(err)
	}
	for name, once := range map[string]func(*client, int64) error{"get": get, "get at 0": getCached, "update": update} {
		if n := testing.AllocsPerRun(200, func() { err = errors.Join(err, once(c, 5)) }); n > 0 || err != nil {
			t.Errorf("%s: %v allocations, %v", name, n, err)
		}
	}
}

// TestChunksGoOnToTheEnd checks that a chunked list continues while there are tokens, even if the
// server has additional objects, and that it must contain all objects.
func TestChunksGoOnToTheEnd(t *testing.T) {
	chunk := func(token string, objects int) string {
		body := fmt.Sprintf(`{"metadata":{"continue":%q},"items":[]}`, token) + strings.Repeat(" ", objects*bodyBytes)
		return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	for _, c := range []struct {
		title   string
		answers []string
		good    bool
	}{
		{"as many as there are", []string{chunk("a&b", 500), chunk("", 100)}, true},
		{"and one more chunk", []string{chunk("a", 500), chunk("b", 100), chunk("", 0)}, true},
		{"an early end", []string{chunk("", 500)}, false},
		{"too little", []string{chunk("a", 500), chunk("", 99)}, false},
	} {
		asker := scripted(t, 1<<20, c.answers...)
		asker.objects = 600
		if err := chunked(asker); (err == nil) != c.good {
			t.Errorf("%s: %v", c.title, err)
		}
	}
}
