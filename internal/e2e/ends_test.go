package e2e

// This file stops and kills servers, and looks for the acknowledged writes.

import (
	"bufio"
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"testing"

	"apilet/internal/apitest"
)

// TestStopLetsRequestsEnd stops a server while it receives a request body. The server must close
// its listener, but this request must still succeed.
func TestStopLetsRequestsEnd(t *testing.T) {
	t.Parallel()
	s := startTest(t, onSomeFile(t))
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

// TestKilledServerKeepsWhatItAcknowledged kills a server several times during writes and checks
// that every acknowledged object exists.
func TestKilledServerKeepsWhatItAcknowledged(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	acked := map[string]int64{}
	for round := range 3 {
		writeUntilKilled(startTest(t, onFile(path)), round, acked)
	}
	s := startTest(t, onFile(path))
	for name, rev := range acked {
		if a := s.send("GET", "/api/v1/namespaces/default/configmaps/"+name, ""); a.code != 200 || a.rev() != rev {
			t.Errorf("%s was acknowledged at %d; now: %d %s", name, rev, a.code, a.body)
		}
	}
}

// writeUntilKilled runs four writing clients. It kills the server after twenty acknowledged writes,
// while others are in progress.
func writeUntilKilled(s *testServer, round int, acked map[string]int64) {
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
					s.process.Process.Kill()
				}
				mu.Unlock()
			}
		})
	}
	writers.Wait()
	s.kill()
}
