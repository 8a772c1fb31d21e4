package e2e

// This file tests many open connections. There are thousands of idle connections, slow or
// incomplete bodies, lists and watches without a reader, and HTTP/2 streams that are reset
// immediately. A cheap request must not be expensive for the server, and other clients must still
// be served.

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"apilet/internal/apitest"
)

// collectOften makes the server run the garbage collector more often, because heldMemory waits for
// it.
const collectOften = "GOGC=50"

// heldMemory returns the bytes of the server's heap and stacks after a garbage collection. Its own
// requests cause the collection.
func (s *testServer) heldMemory() int64 {
	s.t.Helper()
	collections := func() float64 { return s.wantMetric("go_gc_duration_seconds_count") }
	before := collections()
	apitest.WaitFor(s.t, "a collection of garbage", func() bool { return collections() > before })
	return s.usedMemory()
}

// usedMemory returns the bytes of the server's heap and stacks, including garbage.
func (s *testServer) usedMemory() int64 {
	s.t.Helper()
	return int64(s.wantMetric("go_memstats_heap_alloc_bytes") + s.wantMetric("go_memstats_stack_inuse_bytes"))
}

// goroutines returns the number of the server's goroutines.
func (s *testServer) goroutines() int {
	s.t.Helper()
	return int(s.wantMetric("go_goroutines"))
}

// wantMetric is like metricValue, but fails the test if the series does not exist.
func (s *testServer) wantMetric(series string) float64 {
	s.t.Helper()
	value := metricValue(s, series)
	if value < 0 {
		s.t.Fatalf("/metrics has no %s", series)
	}
	return value
}

// expectMemory waits until the memory of the server has not grown by more than limit bytes.
// Requests free some memory once they are blocked.
func (s *testServer) expectMemory(before, limit int64) {
	s.t.Helper()
	var grown int64
	apitest.WaitFor(s.t, fmt.Sprintf("the server to hold at most %d KiB more", limit>>10), func() bool {
		grown = s.usedMemory() - before
		return grown <= limit
	})
	s.t.Logf("held: %d KiB more", grown>>10)
}

// crowd opens n connections and sends the same request on each. It closes them at the end of the
// test.
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

// readHead reads a response's header, but not its body.
func readHead(t *testing.T, conn net.Conn) *http.Response {
	t.Helper()
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	return response
}

func TestIdleConnectionsCostLittle(t *testing.T) {
	t.Parallel()
	n := apitest.Rounds(5000)
	apitest.Descriptors(t, uint64(2*n+500))
	s := startTest(t, collectOften)
	before := s.heldMemory()
	conns := s.crowd(n, "GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
	answer := make([]byte, 4096)
	for _, conn := range conns {
		if _, err := conn.Read(answer); err != nil {
			t.Fatal(err)
		}
	}
	s.expectServed("idle connections")
	s.expectMemory(before, int64(n)*40<<10)
}

// TestPromisedBodiesCostLittle checks that the server does not allocate memory for the length that
// a request announces.
func TestPromisedBodiesCostLittle(t *testing.T) {
	t.Parallel()
	const n = 300
	s := startTest(t, collectOften)
	before := s.heldMemory()
	s.crowd(n, "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3145728\r\n\r\n{")
	apitest.WaitFor(t, "the requests to begin", func() bool {
		return metricValue(s, `apiserver_current_inflight_requests{request_kind="mutating"}`) >= n
	})
	s.expectServed("300 bodies that do not come")
	s.expectMemory(before, n*128<<10)
}

const trickling = "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: 127.0.0.1\r\nImpersonate-User: bob\r\nContent-Length: 999\r\n\r\n{"

// TestTricklingBodiesHoldNoSeats sends more slow bodies than the server has seats. Another request
// of the same user must still be served.
func TestTricklingBodiesHoldNoSeats(t *testing.T) {
	t.Parallel()
	s := startTest(t, "--max-requests-inflight=4", "--max-mutating-requests-inflight=4")
	s.trickle(s.crowd(40, trickling))
	apitest.WaitFor(t, "the requests to begin", func() bool {
		return metricValue(s, `apiserver_current_inflight_requests{request_kind="mutating"}`) >= 40
	})
	if a := s.send("GET", "/api/v1/namespaces/default/configmaps", "", "Impersonate-User: bob"); a.code != 200 {
		// It would get a 429 if the slow requests kept their seats.
		t.Errorf("beside 40 bodies that trickle, a request gets %d", a.code)
	}
}

// TestTricklingBodiesEnd checks that such requests end at the request timeout.
func TestTricklingBodiesEnd(t *testing.T) {
	t.Parallel()
	s := startTest(t, "--request-timeout=3s")
	conns := s.crowd(40, trickling)
	s.trickle(conns)
	for _, conn := range conns {
		if _, err := io.ReadAll(conn); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Fatal(err)
		}
	}
}

// trickle sends a byte on each connection at intervals until the test ends.
func (s *testServer) trickle(conns []net.Conn) {
	done := make(chan struct{})
	s.t.Cleanup(func() { close(done) })
	go func() {
		for {
			for _, conn := range conns {
				_, _ = conn.Write([]byte(" ")) // the connection may already be closed
			}
			select {
			case <-done:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
}

func TestWatchStorm(t *testing.T) {
	t.Parallel()
	const n = 1000
	apitest.Descriptors(t, 2*n+500)
	s := startTest(t, collectOften)
	before := s.heldMemory()
	rev := fmt.Sprint(s.revision())
	conns := s.crowd(n, "GET /api/v1/configmaps?watch=1&resourceVersion="+rev+" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
	bodies := make([]*bufio.Reader, n)
	for i, conn := range conns {
		bodies[i] = bufio.NewReader(readHead(t, conn).Body)
	}
	s.expectMemory(before, n*64<<10)
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

// An h2Conn sends individual HTTP/2 frames and ignores the responses. Libraries do not support
// this.
type h2Conn struct {
	net.Conn
	batch []byte
	next  uint32 // number of the next stream
	token string
}

const (
	h2Headers, h2Reset, h2Settings, h2Ping, h2WindowUpdate, h2Continuation = 1, 3, 4, 6, 8, 9
	h2EndStream, h2EndHeaders                                              = 1, 4
)

func dialH2(t *testing.T, s *testServer) *h2Conn {
	t.Helper()
	c := dialDeafH2(t, s)
	go io.Copy(io.Discard, c.Conn)
	return c
}

// dialDeafH2 is like dialH2, but never reads from the connection.
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

// get sends a request on a new stream. The header uses the simplest form of HPACK: two indexed
// fields, then literals with indexed names.
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

// TestStreamsThatAreReset opens streams and resets them immediately, as fast as the network
// permits.
func TestStreamsThatAreReset(t *testing.T) {
	t.Parallel()
	s, _ := startTLS(t, collectOften)
	s.headers = []string{"Authorization: Bearer root-token"}
	s.expectServed("nothing")
	before := s.goroutines()
	most, sent, streams := 0, 0, 2*apitest.Rounds(10_000)
	for sent < streams {
		c := dialH2(t, s)
		for err := error(nil); err == nil && sent < streams; sent += 100 { // the server closes the connection if it exceeds a limit
			for range 100 {
				stream := c.get("/api/v1/configmaps?watch=1", h2EndStream|h2EndHeaders)
				c.frame(h2Reset, 0, stream, []byte{0, 0, 0, 8})
			}
			err = c.send()
			most = max(most, s.goroutines()-before)
		}
		s.expectServed("streams that are reset")
	}
	t.Logf("%d streams, at most %d goroutines more", sent, most)
	if most > 3000 {
		t.Errorf("%d goroutines more", most)
	}
	apitest.WaitFor(t, "the requests to end", func() bool {
		return s.goroutines() < before+50 && metricSum(s, "apiserver_longrunning_requests{") == 0
	})
}

// TestEndlessHTTP2 sends an endless header, and pings without a pause. The server must close the
// connection or remain unaffected.
func TestEndlessHTTP2(t *testing.T) {
	t.Parallel()
	s, _ := startTLS(t, collectOften)
	s.headers = []string{"Authorization: Bearer root-token"}
	before := s.heldMemory()
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
	s.expectMemory(before, 8<<20)
}

// TestStreamsThatNobodyReads checks that each HTTP/2 stream is counted as a separate request. If a
// connection is blocked, the server must close it.
func TestStreamsThatNobodyReads(t *testing.T) {
	t.Parallel()
	const n, size = 40, 2 << 20
	for _, deaf := range []bool{false, true} {
		s, _ := startTLS(t, collectOften, onSomeFile(t), "--request-timeout=10s", "--max-requests-inflight=2", "--max-mutating-requests-inflight=1")
		s.headers = []string{"Authorization: Bearer root-token"}
		s.storeLarge("big", size)
		s.want(201, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", `{"metadata":{"name":"all"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io",
			"kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"Group","apiGroup":"rbac.authorization.k8s.io","name":"system:authenticated"}]}`)
		before := s.heldMemory()
		c := dialDeafH2(t, s)
		if !deaf { // the client reads, but does not extend the flow-control window
			go io.Copy(io.Discard, c.Conn)
		} else { // the client opens the window, but does not read
			c.frame(h2Settings, 0, 0, []byte{0, 4, 0x7f, 0xff, 0xff, 0xff})
			c.frame(h2WindowUpdate, 0, 0, []byte{0x7f, 0xff, 0, 0})
		}
		c.token = "bob-token"
		for i := range n {
			c.get([]string{"/api/v1/podtemplates?watch=1", "/api/v1/podtemplates", "/api/v1/namespaces/default/podtemplates/big"}[i%3], h2EndStream|h2EndHeaders)
		}
		if err := c.send(); err != nil {
			t.Fatal(err)
		}
		apitest.WaitFor(t, "the requests to lend their seats", func() bool {
			executing, decided := s.seatsHeld()
			return executing == 0 && decided >= n
		})
		s.expectServed("streams that nobody reads")
		s.expectMemory(before, 48<<20)
		if !deaf {
			c.Close()
		}
		apitest.WaitFor(t, "the requests to end", func() bool {
			return metricValue(s, `apiserver_current_inflight_requests{request_kind="readOnly"}`) <= 1 && metricSum(s, "apiserver_longrunning_requests{") == 0
		})
	}
}

// storeLarge creates a PodTemplate with size bytes of text, which may be more than a request can
// have. It restarts the server.
func (s *testServer) storeLarge(name string, size int) {
	s.t.Helper()
	s.want(201, "POST", "/api/v1/namespaces/default/podtemplates", `{"metadata":{"name":"`+name+`"},"template":{"spec":{"containers":[{"name":"c","image":"i"}]}}}`)
	s.spoil("//podtemplates/default/"+name, `"image":"i"`, `"image":"`+strings.Repeat("i", size)+`"`)
}

// seatsHeld returns the number of requests with seats, and the number of requests that were started
// or rejected so far. It does not count exempt requests. On a busy machine some requests wait in a
// queue until they are rejected.
func (s *testServer) seatsHeld() (executing, decided float64) {
	s.t.Helper()
	for line := range s.scrape() {
		if strings.Contains(line, `priority_level="exempt"`) {
			continue
		}
		value, _ := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		switch name, _, _ := strings.Cut(line, "{"); name {
		case "apiserver_flowcontrol_current_executing_requests":
			executing += value
		case "apiserver_flowcontrol_dispatched_requests_total", "apiserver_flowcontrol_rejected_requests_total":
			decided += value
		}
	}
	return executing, decided
}

// metricSum returns the sum of the series of /metrics that begin with prefix.
func metricSum(s *testServer, prefix string) (sum float64) {
	for line := range s.scrape() {
		if strings.HasPrefix(line, prefix) {
			value, _ := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
			sum += value
		}
	}
	return sum
}
