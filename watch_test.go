package main

// This file tests of WATCH what only somebody inside can bring about: bookmarks and compactions at a given moment. A watcher reads frames in the
// background; want compares the next ones with lines like "ADDED a". What else a watch shows is tested from outside, in internal/e2e.

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
)

// A frame is one event of a stream.
type frame struct {
	kind   string
	object gjson.Result
}

func (f frame) rev() int64 { return f.object.Get("metadata.resourceVersion").Int() }

func (f frame) String() string {
	switch f.kind {
	case "ERROR":
		return fmt.Sprintf("ERROR %s %s", f.object.Get("code"), f.object.Get("reason"))
	case "BOOKMARK":
		if f.object.Get(`metadata.annotations.k8s\.io/initial-events-end`).String() == "true" {
			return "BOOKMARK end"
		}
		return "BOOKMARK"
	}
	if name := f.object.Get("rows.0.object.metadata.name"); name.Exists() {
		return f.kind + " " + name.String()
	}
	return f.kind + " " + f.object.Get("metadata.name").String()
}

// A watcher is a client of one stream.
type watcher struct {
	t      testing.TB
	code   int
	header http.Header
	frames chan frame // closed by the reading goroutine at the end of the stream
	cancel context.CancelFunc
}

// watch opens a stream and returns when its headers are there.
func (s *testServer) watch(path string, headers ...string) *watcher {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, err := http.NewRequestWithContext(ctx, "GET", s.url+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	kubetest.SetHeaders(r, headers)
	response, err := s.client.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	w := &watcher{t: s.t, code: response.StatusCode, header: response.Header, frames: make(chan frame, 100_000), cancel: cancel}
	s.t.Cleanup(cancel)
	go func() { // until the stream ends or is cancelled
		defer close(w.frames)
		defer response.Body.Close()
		lines := bufio.NewReader(response.Body)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			doc := gjson.Parse(line)
			w.frames <- frame{doc.Get("type").String(), doc.Get("object")}
		}
	}()
	return w
}

func (w *watcher) close() { w.cancel() }

// next waits for a frame; a zero frame is the end of the stream.
func (w *watcher) next() frame {
	w.t.Helper()
	select {
	case f := <-w.frames:
		return f
	case <-apitest.Timeout(w.t):
		w.t.Fatalf("no event")
		return frame{}
	}
}

// want compares the next frames and returns the last.
func (w *watcher) want(lines ...string) (last frame) {
	w.t.Helper()
	for i, line := range lines {
		if last = w.next(); last.String() != line {
			w.t.Fatalf("event %d: got %v, want %s", i, last, line)
		}
	}
	return last
}

// end expects the end of the stream.
func (w *watcher) end() {
	w.t.Helper()
	if f := w.next(); f.kind != "" {
		w.t.Fatalf("got %v, want the end of the stream", f)
	}
}

// marker writes an object and deletes it, which the watchers have to see next.
func (s *testServer) marker(path string, watchers ...*watcher) {
	s.t.Helper()
	name := "m" + strconv.FormatInt(s.st.Revision(), 10)
	s.want(201, "POST", path, configMap(name))
	for _, w := range watchers {
		w.want("ADDED " + name)
	}
	s.want(200, "DELETE", path+"/"+name, "")
	for _, w := range watchers {
		w.want("DELETED " + name)
	}
}

func TestBookmarksFollowOtherResources(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.wt.bookmarks = 30 * time.Millisecond
	path := s.namespace("p1")
	from := fmt.Sprintf("%s?watch=1&resourceVersion=%d", path, s.st.Revision())
	plain, marked := s.watch(from), s.watch(from+"&allowWatchBookmarks=true")
	rev := s.want(201, "POST", "/api/v1/namespaces/p1/secrets", `{"metadata":{"name":"s"}}`).rev()
	for {
		mark := marked.want("BOOKMARK")
		if extra := mark.object.Get("metadata.@keys").Raw; extra != `["resourceVersion"]` {
			t.Errorf("a bookmark's metadata has %s", extra)
		}
		if mark.rev() >= rev {
			break
		}
	}
	s.want(201, "POST", path, configMap("x"))
	plain.want("ADDED x")
}

func TestStoppingServerTakesNoWatch(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	stopping := make(chan struct{})
	close(stopping)
	s.wt.shuttingDown = stopping
	a := s.want(429, "GET", "/api/v1/configmaps?watch=1", "")
	if got := a.header.Get("Retry-After"); got != "1" {
		t.Errorf("Retry-After is %q", got)
	}
}

func TestCompactionOvertakesAWatch(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	path := s.namespace("p1")
	s.rest()
	from := fmt.Sprintf("%s?watch=1&resourceVersion=%d", path, s.st.Revision())
	awake := s.watch(from)
	for range 3 {
		s.marker(path, awake)
		s.compactNow(s.st.Revision())
	}
	s.marker(path, awake)
	w := s.watch(from)
	w.want("ERROR 410 Expired")
	w.end()
}

func TestWatcherThatGoesAwayIsLetGo(t *testing.T) {
	s := startTest(t)
	running := func() float64 { return metricSum(s, "apiserver_longrunning_requests{") }
	before := runtime.NumGoroutine()
	var watchers []*watcher
	for range 20 {
		watchers = append(watchers, s.watch("/api/v1/configmaps?watch=1"))
	}
	apitest.Expect(t, running(), 20)
	for _, w := range watchers {
		w.close()
	}
	apitest.WaitFor(t, "the watches to end", func() bool { return running() == 0 && runtime.NumGoroutine() < before+20 })
}

// metricSum adds up the series of /metrics that begin so.
func metricSum(s *testServer, prefix string) (sum float64) {
	a, _ := s.try("GET", "/metrics", "")
	for line := range strings.Lines(string(a.body)) {
		if strings.HasPrefix(line, prefix) {
			value, _ := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64)
			sum += value
		}
	}
	return sum
}

func TestBookmarkBeforeTheDeadline(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	const query = "?watch=1&resourceVersion=%d&allowWatchBookmarks=true&timeoutSeconds=8" // of which a busy machine may take most to begin
	w := s.watch(fmt.Sprintf("/api/v1/secrets"+query, s.st.Revision()))
	w.want("BOOKMARK")
	w.end()
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
