package main

// This file holds on to connections: thousands that are idle, bodies that trickle or never come, watchers and lists that nobody reads,
// HTTP/2 streams that are reset as soon as they are made. What one client can have for nothing may not cost the server much, and the
// others are served meanwhile.

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"apilet/internal/apitest"
)

// heldMemory is what this process, its servers among it, holds in heap and stacks.
func heldMemory() int64 {
	runtime.GC()
	runtime.GC() // pools give way at the second
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc + stats.StackInuse)
}

// expectMemory waits until at most limit has been added since before. Requests that are held up release the memory that they needed on their
// way, but not at a known time.
func expectMemory(t *testing.T, before, limit int64) {
	t.Helper()
	var grown int64
	apitest.WaitFor(t, fmt.Sprintf("at most %d KiB more to be held", limit>>10), func() bool {
		grown = heldMemory() - before
		return grown <= limit
	}, func() any { return fmt.Sprintf("%d KiB", grown>>10) })
	t.Logf("held: %d KiB more", grown>>10)
}

// expectServed makes a request beside the crowd. A server that is blocked by it never answers.
func (s *testServer) expectServed(what string) {
	s.t.Helper()
	if a := s.send("GET", "/api/v1/namespaces/default/configmaps?limit=1", ""); a.code != 200 {
		s.t.Errorf("beside %s, a request gets %d %s", what, a.code, a.body)
	}
}

// crowd opens connections, sends the same on each, and closes them at the test's end.
func (s *testServer) crowd(n int, request string) []net.Conn {
	s.t.Helper()
	conns := make([]net.Conn, n)
	for i := range conns {
		conns[i] = s.dial()
		fmt.Fprint(conns[i], request)
	}
	s.t.Cleanup(func() {
		for _, conn := range conns {
			conn.Close()
		}
	})
	return conns
}

// readHead reads an answer's head and leaves its body.
func readHead(t *testing.T, conn net.Conn) *http.Response {
	t.Helper()
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	return response
}

func TestIdleConnectionsCostLittle(t *testing.T) {
	const n = 5000
	apitest.Descriptors(t, 2*n+500)
	s := startTest(t)
	before := heldMemory()
	conns := s.crowd(n, "GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
	answer := make([]byte, 4096)
	for _, conn := range conns {
		if _, err := conn.Read(answer); err != nil {
			t.Fatal(err)
		}
	}
	s.expectServed("5,000 idle connections")
	expectMemory(t, before, n*40<<10)
}

// TestPromisedBodiesCostLittle: the length of a body is a claim, and no reason to make room.
func TestPromisedBodiesCostLittle(t *testing.T) {
	const n = 300
	s := startTest(t)
	before := heldMemory()
	s.crowd(n, "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3145728\r\n\r\n{")
	apitest.WaitFor(t, "the requests to begin", func() bool {
		return metricValue(s, `apiserver_current_inflight_requests{request_kind="mutating"}`) >= n
	})
	s.expectServed("300 bodies that do not come")
	expectMemory(t, before, n*128<<10)
}

const trickling = "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: 127.0.0.1\r\nImpersonate-User: bob\r\nContent-Length: 999\r\n\r\n{"

// TestTricklingBodiesHoldNoSeats: a user whose bodies trickle has more requests than the server has seats, and still none of them is
// taken from another.
func TestTricklingBodiesHoldNoSeats(t *testing.T) {
	t.Parallel() // with what else waits
	s := startTest(t, func(c *config) { c.MaxReadonly, c.MaxMutating = 4, 4 })
	s.trickle(s.crowd(40, trickling))
	apitest.WaitFor(t, "the requests to begin", func() bool {
		return metricValue(s, `apiserver_current_inflight_requests{request_kind="mutating"}`) >= 40
	})
	if a := s.send("GET", "/api/v1/namespaces/default/configmaps", "", "Impersonate-User: bob"); a.code != 200 {
		t.Errorf("beside 40 bodies that trickle, a request gets %d", a.code) // 429, were their seats not lent
	}
}

// TestTricklingBodiesEnd with the time that a request has.
func TestTricklingBodiesEnd(t *testing.T) {
	t.Parallel()
	s := startTest(t, func(c *config) { c.RequestTimeout = 3 * time.Second })
	conns := s.crowd(40, trickling)
	s.trickle(conns)
	for _, conn := range conns {
		if _, err := io.ReadAll(conn); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Fatal(err)
		}
	}
}

// trickle sends a byte on each connection now and then, until the test ends.
func (s *testServer) trickle(conns []net.Conn) {
	done := make(chan struct{})
	s.t.Cleanup(func() { close(done) })
	go func() {
		for {
			for _, conn := range conns {
				_, _ = conn.Write([]byte(" ")) // it may have ended
			}
			select {
			case <-done:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
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

func TestWatchersThatNeverReadAreLetGo(t *testing.T) {
	s := startTest(t)
	s.wt.patience = 4 * time.Second // as if that were the time of a request: those that write may take as long as they like
	const watchers, writes = 15, 100
	for range watchers {
		s.deaf("GET /api/v1/configmaps?watch=1&resourceVersion=" + fmt.Sprint(s.st.Revision()) + " HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
	}
	apitest.WaitFor(t, "the watches to begin", func() bool { return metricSum(s, "apiserver_longrunning_requests{") == watchers })
	before := heldMemory()
	payload := strings.Repeat("x", 100_000)
	for i := range writes { // 10 MB: more than the sockets take
		s.want(201, "POST", "/api/v1/namespaces/default/configmaps", configMap(fmt.Sprint("big", i), "k", payload))
	}
	expectMemory(t, before, 16<<20+watchers*256<<10) // the newest events, which all watchers share, and what is each one's
	apitest.WaitFor(t, "the watches to end", func() bool { return metricSum(s, "apiserver_longrunning_requests{") == 0 })
}

func TestListsThatNobodyReadHoldNothing(t *testing.T) {
	s := startTest(t)
	payload := strings.Repeat("x", 200_000)
	for i := range 50 { // 10 MB: more than a socket takes
		s.want(201, "POST", "/api/v1/namespaces/default/configmaps", configMap(fmt.Sprint("big", i), "k", payload))
	}
	before := heldMemory()
	const lists = 20
	for range lists {
		s.deaf("GET /api/v1/configmaps HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
	}
	stuck := func() bool {
		return metricValue(s, `apiserver_current_inflight_requests{request_kind="readOnly"}`) >= lists && s.st.File.Db.Stats().OpenTxN == 0
	}
	apitest.WaitFor(t, "the lists to be stuck", stuck)
	expectMemory(t, before, lists*2<<20)
	s.compactNow(s.st.Revision())
	s.expectServed("lists that nobody reads")
	apitest.WaitFor(t, "every read transaction to end", stuck)
}

func TestWatchStorm(t *testing.T) {
	const n = 1000
	apitest.Descriptors(t, 2*n+500)
	s := startTest(t)
	before := heldMemory()
	rev := fmt.Sprint(s.st.Revision())
	conns := s.crowd(n, "GET /api/v1/configmaps?watch=1&resourceVersion="+rev+" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
	bodies := make([]*bufio.Reader, n)
	for i, conn := range conns {
		bodies[i] = bufio.NewReader(readHead(t, conn).Body)
	}
	expectMemory(t, before, n*64<<10) // both ends
	s.want(201, "POST", "/api/v1/namespaces/default/configmaps", configMap("news"))
	var readers sync.WaitGroup
	for i := range bodies {
		readers.Go(func() {
			line, err := bodies[i].ReadString('\n')
			if err != nil || !strings.Contains(line, `"name":"news"`) {
				t.Errorf("watch %d got %q, %v", i, line, err)
			}
		})
	}
	readers.Wait()
}

// ---- HTTP/2 ----

// A h2Conn speaks HTTP/2 as no library does: it sends frames and takes no notice of the answers.
type h2Conn struct {
	net.Conn
	batch []byte
	next  uint32 // stream
	token string
}

const (
	h2Headers, h2Reset, h2Settings, h2Ping, h2WindowUpdate, h2Continuation = 1, 3, 4, 6, 8, 9
	h2EndStream, h2EndHeaders                                              = 1, 4
)

func dialH2(t *testing.T, s *testServer) *h2Conn {
	t.Helper()
	c := dialDeafH2(t, s)
	go io.Copy(io.Discard, c.Conn) // until it is closed
	return c
}

// dialDeafH2 is dialH2 without reading anything from the network.
func dialDeafH2(t *testing.T, s *testServer) *h2Conn {
	t.Helper()
	config := s.client.Transport.(*http.Transport).TLSClientConfig.Clone()
	config.NextProtos = []string{"h2"}
	conn, err := tls.Dial("tcp", strings.TrimPrefix(s.url, "https://"), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(apitest.Deadline(t))
	c := &h2Conn{Conn: conn, next: 1, token: "root-token", batch: []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")}
	c.frame(h2Settings, 0, 0, nil)
	return c
}

func (c *h2Conn) frame(kind, flags byte, stream uint32, payload []byte) {
	c.batch = append(c.batch, byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload)), kind, flags)
	c.batch = append(binary.BigEndian.AppendUint32(c.batch, stream), payload...)
}

// get begins a request on a new stream. The head is in HPACK's plainest form: two indexed fields, then literals under indexed names.
func (c *h2Conn) get(path string, flags byte) (stream uint32) {
	head := []byte{0x82, 0x87}
	for _, field := range []struct{ name, value string }{{"\x04", path}, {"\x01", "127.0.0.1"}, {"\x0f\x08", "Bearer " + c.token}} {
		head = append(append(append(head, field.name...), byte(len(field.value))), field.value...)
	}
	stream, c.next = c.next, c.next+2
	c.frame(h2Headers, flags, stream, head)
	return stream
}

func (c *h2Conn) send() error {
	_, err := c.Write(c.batch)
	c.batch = c.batch[:0]
	return err
}

// TestStreamsThatAreReset makes streams and resets them at once, as fast as the network takes them.
func TestStreamsThatAreReset(t *testing.T) {
	s, _ := startTLS(t)
	s.headers = []string{"Authorization: Bearer root-token"}
	s.expectServed("nothing")
	before := runtime.NumGoroutine()
	most, sent := 0, 0
	for sent < 10_000 {
		c := dialH2(t, s)
		for err := error(nil); err == nil && sent < 10_000; sent += 100 { // the server hangs up on those that go too far
			for range 100 {
				stream := c.get("/api/v1/configmaps?watch=1", h2EndStream|h2EndHeaders)
				c.frame(h2Reset, 0, stream, []byte{0, 0, 0, 8})
			}
			err = c.send()
			most = max(most, runtime.NumGoroutine()-before)
		}
		s.expectServed("streams that are reset")
	}
	t.Logf("%d streams, at most %d goroutines more", sent, most)
	if most > 3000 {
		t.Errorf("%d goroutines more", most)
	}
	apitest.WaitFor(t, "the requests to end", func() bool {
		return runtime.NumGoroutine() < before+50 && metricSum(s, "apiserver_longrunning_requests{") == 0
	})
}

// TestEndlessHTTP2: a head that never ends, and pings without a pause, end with the connection, or harm nobody.
func TestEndlessHTTP2(t *testing.T) {
	s, _ := startTLS(t)
	s.headers = []string{"Authorization: Bearer root-token"}
	before := heldMemory()
	c := dialH2(t, s)
	stream := c.get("/api", h2EndStream)
	err, sent := c.send(), 0
	for ; err == nil && sent < 64<<20; sent += 16_000 {
		c.frame(h2Continuation, 0, stream, []byte("\x00\x01x\x7f\x80\xfc\x00"+strings.Repeat("x", 15_993)))
		err = c.send()
	}
	if err == nil {
		t.Errorf("a head of %d bytes is still being read", sent)
	}
	c = dialH2(t, s)
	for i := 0; i < 5000 && c.send() == nil; i++ {
		c.frame(h2Ping, 0, 0, make([]byte, 8))
		c.frame(h2Settings, 0, 0, nil)
	}
	s.expectServed("pings")
	expectMemory(t, before, 8<<20)
}
