package etcd

// This file tests that a restarted server reads only the missed changes from etcd.

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// sent returns the number of bytes sent to clients by the member and the number of range requests.
func (c *cluster) sent() (bytes, ranges int) {
	c.t.Helper()
	answer, err := http.Get(c.urls[0] + "/metrics")
	if err != nil {
		c.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	value := func(series string) int {
		for line := range strings.Lines(string(text)) {
			if name, number, _ := strings.Cut(strings.TrimSpace(line), " "); name == series {
				v, err := strconv.ParseFloat(number, 64)
				if err != nil {
					c.t.Fatal(err)
				}
				return int(v)
			}
		}
		c.t.Fatalf("etcd's metrics have no %s", series)
		return 0
	}
	return value("etcd_network_client_grpc_sent_bytes_total"), value("etcd_mvcc_range_total")
}

// TestRestartListsNothing checks that the cost of a restart does not depend on the number of
// objects.
func TestRestartListsNothing(t *testing.T) {
	t.Parallel()
	const objects, missed = 1000, 20
	c := startCluster(t, 1)
	a, b := c.startServer(), c.startServer()
	padding := strings.Repeat("x", 2000)
	var writing sync.WaitGroup
	for first := range 10 {
		writing.Go(func() {
			for i := first; i < objects; i += 10 {
				if code, text, err := b.try("POST", maps, aMap(fmt.Sprint("o-", i), padding, ""), patience); err != nil || code != 201 {
					t.Errorf("got %d %s %v", code, text, err)
					return
				}
			}
		})
	}
	writing.Wait()
	filling, _ := c.sent()
	fresh := c.startServer()
	filled, _ := c.sent()
	if filled-filling < objects*len(padding) {
		t.Errorf("an empty replica was filled with %d bytes from etcd: are they counted?", filled-filling)
	}
	fresh.Kill()
	for _, how := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		a.signal(how)
		for i := range missed {
			b.do(200, "PATCH", fmt.Sprint(maps, "/o-", i), fmt.Sprintf(`{"data":{"how":%q}}`, how.String()))
		}
		bytes, ranges := c.sent()
		a.Launch()
		a.ready()
		for i := range missed {
			if o := read(t, a.do(200, "GET", fmt.Sprint(maps, "/o-", i), "")); o.Data["how"] != how.String() {
				t.Errorf("%v: the restarted server shows %q", how, o.Data["how"])
			}
		}
		bytesThen, rangesThen := c.sent()
		// The watch sends the missed changes. Requests for the current revision are small. This
		// includes the requests of both servers, which keep running.
		if got, most := bytesThen-bytes, objects*len(padding)/4; got > most {
			t.Errorf("%v: etcd sent %d bytes, of which %d may be; all objects have %d", how, got, most, objects*len(padding))
		}
		if got := rangesThen - ranges; got > objects/2 {
			t.Errorf("%v: etcd carried out %d reads", how, got)
		}
		if o := read(t, a.do(200, "GET", maps+"?limit=1", "")); o.Metadata.RemainingItemCount < objects-1 {
			t.Errorf("%v: %d objects remain behind the first", how, o.Metadata.RemainingItemCount)
		}
	}
	if n := a.filled(); n != 1 {
		t.Errorf("the replica was filled %d times in three lives", n)
	}
}
