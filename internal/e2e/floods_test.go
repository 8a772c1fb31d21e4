package e2e

// This file sends floods of HTTP/2 frames to a server. Each flood has a limited number of frames.
// To be independent of timing, the tests check the number of concurrent requests, the number of
// goroutines and the memory afterwards. Other clients must be served at the same time.

import (
	"encoding/binary"
	"strings"
	"testing"

	"apilet/internal/apitest"
)

const h2Data, h2Priority, h2Unknown = 0, 2, 77

// TestHTTP2Floods checks that the server closes the connection or still serves other clients.
func TestHTTP2Floods(t *testing.T) {
	t.Parallel()
	const batch = 100
	frames := apitest.Rounds(20_000)
	watch := func(c *h2Conn) uint32 { return c.get("/api/v1/configmaps?watch=1", h2EndStream|h2EndHeaders) }
	number := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	for _, flood := range []struct {
		title string
		deaf  bool          // whether the client does not read responses
		begin func(*h2Conn) // called once per connection
		next  func(*h2Conn) // sends one or two frames
	}{
		{"streams that a window update of nothing makes the server reset", false, nil, func(c *h2Conn) { c.frame(h2WindowUpdate, 0, watch(c), number(0)) }},
		{"streams that a window beyond its limit makes the server reset", false, nil, func(c *h2Conn) { c.frame(h2WindowUpdate, 0, watch(c), number(1<<31-1)) }},
		{"streams that data behind their end make the server reset", false, nil, func(c *h2Conn) { c.frame(h2Data, 0, watch(c), []byte("x")) }},
		{"streams that depend on themselves", false, nil, func(c *h2Conn) { s := watch(c); c.frame(h2Priority, 0, s, append(number(s), 1)) }},
		{"streams above the limit", true, nil, func(c *h2Conn) { watch(c) }},
		{"resets of streams that nobody reads", true, nil, func(c *h2Conn) { c.frame(h2Reset, 0, watch(c), number(8)) }},
		{"empty data", false, func(c *h2Conn) { c.get("/api/v1/configmaps", h2EndHeaders) }, func(c *h2Conn) { c.frame(h2Data, 0, 1, nil) }},
		{"empty continuations", false, func(c *h2Conn) { c.get("/api", h2EndStream) }, func(c *h2Conn) { c.frame(h2Continuation, 0, 1, nil) }},
		{"window updates", false, nil, func(c *h2Conn) { c.frame(h2WindowUpdate, 0, 0, number(1)) }},
		{"priorities of streams that do not exist", false, nil, func(c *h2Conn) { c.frame(h2Priority, 0, 2*c.next+1, append(number(0), 1)); c.next += 2 }},
		{"settings that change a table", false, nil, func(c *h2Conn) { c.frame(h2Settings, 0, 0, []byte{0, 1, 0, 0, byte(c.next), 0}); c.next += 2 }},
		{"settings whose answers nobody reads", true, nil, func(c *h2Conn) { c.frame(h2Settings, 0, 0, nil) }},
		{"pings whose answers nobody reads", true, nil, func(c *h2Conn) { c.frame(h2Ping, 0, 0, make([]byte, 8)) }},
		{"unknown frames", false, nil, func(c *h2Conn) { c.frame(h2Unknown, 0xff, 1, make([]byte, 100)) }},
		{"heads that name one large field 4,000 times", false, func(c *h2Conn) {
			// A literal with incremental indexing becomes field 62.
			c.frame(h2Headers, h2EndStream|h2EndHeaders, 1, []byte("\x82\x87\x84\x41\x09127.0.0.1\x40\x01x\x7f\xa1\x1e"+strings.Repeat("x", 4000)))
			c.next = 3
		}, func(c *h2Conn) {
			c.frame(h2Headers, h2EndStream|h2EndHeaders, c.next, []byte("\x82\x87\x84\x41\x09127.0.0.1"+strings.Repeat("\xbe", 4000)))
			c.next += 2
		}},
	} {
		t.Run(flood.title, func(t *testing.T) {
			s, _ := startTLS(t, collectOften)
			s.headers = []string{"Authorization: Bearer root-token"}
			s.expectServed("nothing")
			memory, goroutines := s.heldMemory(), s.goroutines()
			dial := dialH2
			if flood.deaf {
				dial = dialDeafH2
			}
			c := dial(t, s)
			if flood.begin != nil {
				flood.begin(c)
			}
			most, sent := 0, 0
			for err := error(nil); err == nil && sent < frames && len(c.batch) < 1<<20; sent += batch {
				for range batch {
					flood.next(c)
				}
				if flood.deaf { // the server stops reading when it cannot write
					continue
				}
				err = c.send()
				if sent%(10*batch) == 0 {
					most = max(most, s.goroutines()-goroutines)
				}
			}
			written := make(chan error, 1)
			go func() { written <- c.send() }()
			s.expectServed(flood.title)
			most = max(most, s.goroutines()-goroutines)
			c.Close()
			<-written
			t.Logf("%d frames, at most %d goroutines more", sent, most)
			if most > 600 {
				t.Errorf("%d goroutines more", most)
			}
			apitest.WaitFor(t, "the requests to end", func() bool {
				return s.goroutines() < goroutines+50 && metricSum(s, "apiserver_longrunning_requests{") == 0
			})
			s.expectMemory(memory, 16<<20)
		})
	}
}
