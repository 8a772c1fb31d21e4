package e2e

// This file tests WATCH from outside. A watcher reads events in the background, and want compares
// the next ones with lines like "ADDED a". To check that there is no event, a test does not wait.
// It writes a marker object, which must be the next event.

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
	"apilet/internal/scheme"
)

// A frame is an event from a watch.
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

// A watcher is the client of a watch.
type watcher struct {
	t      testing.TB
	code   int
	header http.Header
	frames chan frame // closed by the reading goroutine at the end of the stream
	cancel context.CancelFunc
}

// watch opens a stream and returns once it has received the response header.
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
	go func() {
		defer close(w.frames)
		defer response.Body.Close()
		if strings.HasPrefix(w.header.Get("Content-Type"), string(scheme.ProtobufFormat)) {
			if err := readFrames(response.Body, func(f frame) { w.frames <- f }); err != io.EOF && ctx.Err() == nil {
				w.t.Error(err)
			}
			return
		}
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

// next returns the next event, or the zero frame at the end of the stream.
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

// want compares the next events with lines and returns the last event.
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

// follow opens a watch of p1's ConfigMaps.
func (s *listScene) follow(query string, headers ...string) *watcher {
	s.t.Helper()
	return s.watch(s.p1+"?watch=1&"+s.fillIn(query), headers...)
}

var initial = []string{"ADDED a", "ADDED b", "ADDED c", "ADDED d", "ADDED e"}

// marker writes an object, which must be the next event of each watcher. All earlier events must
// have been received before.
func (s *listScene) marker(t *testing.T, watchers ...*watcher) {
	t.Helper()
	name := "m" + strconv.FormatInt(s.revision(), 10)
	s.want(201, "POST", s.p1, labelled(name, "y"))
	for _, w := range watchers {
		w.want("ADDED " + name)
	}
	s.want(200, "DELETE", s.p1+"/"+name, "")
	for _, w := range watchers {
		w.want("DELETED " + name)
	}
}

// ---- Where a watch starts ----

func TestWatchStarts(t *testing.T) {
	t.Parallel()
	const sendInitial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&"
	all := append([]string{}, initial...)
	bookmarked := append(append([]string{}, initial...), "BOOKMARK end")
	for _, c := range []struct {
		title, query string
		want         []string
		ends         bool
	}{
		{"behind a revision", "resourceVersion=r(c)", []string{"ADDED d", "ADDED e"}, false},
		{"revision unset", "", all, false},
		{"revision 0", "resourceVersion=0", all, false},
		{"bookmarks", "allowWatchBookmarks=true", bookmarked, false},
		{"initial events", sendInitial + "allowWatchBookmarks=true", bookmarked, false},
		{"initial events, no bookmarks", sendInitial, all, false},
		{"initial events behind a revision", sendInitial + "allowWatchBookmarks=1&resourceVersion=r(c)", bookmarked, false},
		{"initial events behind a compacted revision", sendInitial + "allowWatchBookmarks=1&resourceVersion=1", bookmarked, false},
		{"no initial events", "sendInitialEvents=false&resourceVersionMatch=NotOlderThan", nil, false},
		{"no initial events behind a revision", "sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=r(d)", []string{"ADDED e"}, false},
		{"initial events of the future", sendInitial + "resourceVersion=F", []string{"ERROR 504 Timeout"}, true},
		{"too old", "resourceVersion=r(a)", []string{"ERROR 410 Expired"}, true},
		{"future (kube-apiserver is silent; we say so at once)", "resourceVersion=F", []string{"ERROR 504 Timeout"}, true},
		{"watch=foo", "watch=foo", all, false},
		{"a token is ignored", "continue=bogus&resourceVersion=r(d)", []string{"ADDED e"}, false},
	} {
		t.Run(c.title, func(t *testing.T) {
			t.Parallel()
			s := startScene(t, onSomeFile(t))
			s.compactNow(s.rev["b"])
			w := s.follow(c.query)
			apitest.Expect(t, w.code, 200)
			w.want(c.want...)
			if c.ends {
				w.end()
				return
			}
			s.marker(t, w)
		})
	}
	s := startScene(t)
	t.Run("the bookmark is as new as every write before it", func(t *testing.T) {
		rev := s.want(201, "POST", "/api/v1/namespaces/p2/configmaps", configMap("y")).rev()
		if mark := s.follow("allowWatchBookmarks=1").want(bookmarked...); mark.rev() < rev {
			t.Errorf("the bookmark is at %d, the last write at %d", mark.rev(), rev)
		}
	})
	t.Run("empty collection", func(t *testing.T) {
		w := s.watch("/api/v1/secrets?watch=1&allowWatchBookmarks=1&" + sendInitial)
		mark := w.want("BOOKMARK end")
		apitest.Expect(t, mark.object.Get("kind"), "Secret")
		apitest.Expect(t, mark.rev(), s.revision())
	})
}

// TestExpiredWatchMessage compares the error with that of kube-apiserver 1.36. It has two texts,
// because it serves Events without a watch cache.
func TestExpiredWatchMessage(t *testing.T) {
	t.Parallel()
	s := startScene(t, onSomeFile(t))
	s.want(201, "POST", "/api/v1/namespaces/p1/events", `{"metadata":{"name":"e"},"involvedObject":{"namespace":"p1"}}`)
	s.compactNow(s.rev["b"])
	old, oldest := strconv.FormatInt(s.rev["a"], 10), strconv.FormatInt(s.rev["b"], 10)
	for path, want := range map[string]string{
		s.p1 + "?watch=1&resourceVersion=" + old:                                "too old resource version: " + old + " (" + oldest + ")",
		"/api/v1/watch/namespaces/p1/configmaps?resourceVersion=" + old:         "too old resource version: " + old + " (" + oldest + ")",
		"/api/v1/namespaces/p1/events?watch=1&resourceVersion=1":                "The resourceVersion for the provided watch is too old.",
		"/apis/events.k8s.io/v1/namespaces/p1/events?watch=1&resourceVersion=1": "The resourceVersion for the provided watch is too old.",
	} {
		w := s.watch(path)
		f := w.want("ERROR 410 Expired")
		apitest.Expect(t, f.object.Get("message").String(), want)
		w.end()
	}
	revision := strconv.FormatInt(s.revision(), 10)
	s.want(201, "POST", s.p1, labelled("later", "y"))
	w := s.watch(s.p1 + "?watch=1&resourceVersion=" + oldest) // a watch can start at the revision in parentheses
	w.want("ADDED c")
	s.watch(s.p1 + "?watch=1&resourceVersion=" + revision).want("ADDED later")
}

func TestWatchRefusals(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	const invalid = `422 Invalid ListOptions.meta.k8s.io "" is invalid: `
	for _, c := range []briefCase{
		{"no match", "sendInitialEvents=true",
			invalid + "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"},
		{"match alone", "resourceVersionMatch=NotOlderThan",
			invalid + "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"},
		{"exact", "sendInitialEvents=true&resourceVersionMatch=Exact",
			invalid + `[resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan, ` +
				`resourceVersionMatch: Unsupported value: "Exact": supported values: "NotOlderThan"]`},
		{"no number", "resourceVersion=abc",
			`500  resourceVersion: Invalid value: "abc": strconv.ParseUint: parsing "abc": invalid syntax`},
		{"bad selector", "labelSelector=!!x", "400 BadRequest unable to parse requirement: found '!', expected: identifier"},
		{"bad timeout", "timeoutSeconds=abc", `400 BadRequest strconv.ParseInt: parsing "abc": invalid syntax`},
	} {
		t.Run(c.title, func(t *testing.T) { apitest.Expect(t, s.list("watch=1&"+c.query), c.want) })
	}
	apitest.Expect(t, s.send("GET", s.p1+"?watch=1", "", "Accept: application/yaml").code, 406)
	s.want(404, "GET", "/api/v1/namespaces/p1/bogus?watch=1", "")
}

// ---- Events ----

func TestWatchShowsWrites(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	w := s.follow("resourceVersion=r(z)")
	t.Run("create, update, delete", func(t *testing.T) {
		s.want(201, "POST", s.p1, configMap("f", "k", "1"))
		s.want(200, "PUT", s.p1+"/f", configMap("f", "k", "2"))
		s.want(200, "DELETE", s.p1+"/f", "")
		added, modified, deleted := w.want("ADDED f"), w.want("MODIFIED f"), w.want("DELETED f")
		if !(added.rev() < modified.rev() && modified.rev() < deleted.rev()) {
			t.Errorf("revisions %d, %d, %d do not rise", added.rev(), modified.rev(), deleted.rev())
		}
		apitest.Expect(t, deleted.object.Get("data.k"), "2")
		apitest.Expect(t, deleted.rev(), s.revision())
		apitest.Expect(t, added.object.Get("kind"), "ConfigMap")
	})
	t.Run("nothing changes", func(t *testing.T) {
		rev := s.revision()
		s.want(200, "PUT", s.p1+"/a", labelled("a", "y"))
		s.want(200, "PATCH", s.p1+"/a", "{}", "Content-Type: application/merge-patch+json")
		s.want(201, "POST", s.p1+"?dryRun=All", configMap("dry"))
		s.want(200, "PUT", s.p1+"/a?dryRun=All", configMap("a", "k", "dry"))
		s.want(200, "DELETE", s.p1+"/a?dryRun=All", "")
		apitest.Expect(t, s.revision(), rev)
		s.marker(t, w)
	})
	t.Run("finalizer", func(t *testing.T) {
		s.want(201, "POST", s.p1, `{"metadata":{"name":"fin","finalizers":["x.io/f"]}}`)
		s.want(200, "DELETE", s.p1+"/fin", "")
		s.want(200, "PATCH", s.p1+"/fin", `{"metadata":{"finalizers":null}}`, "Content-Type: application/merge-patch+json")
		w.want("ADDED fin")
		apitest.Expect(t, w.want("MODIFIED fin").object.Get("metadata.deletionTimestamp").Exists(), true)
		w.want("DELETED fin")
		s.marker(t, w)
	})
}

func TestWatchSelectors(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	t.Run("an object that stops matching is deleted, as it was", func(t *testing.T) {
		w := s.follow("resourceVersion=r(z)&labelSelector=odd%3Dy")
		s.want(201, "POST", s.p1, labelled("f", "n"))
		s.want(200, "PUT", s.p1+"/f", labelled("f", "y"))
		s.want(200, "PUT", s.p1+"/f", `{"metadata":{"name":"f","labels":{"odd":"y"}},"data":{"k":"2"}}`)
		rev := s.want(200, "PUT", s.p1+"/f", labelled("f", "n")).rev()
		gone := w.want("ADDED f", "MODIFIED f", "DELETED f")
		apitest.Expect(t, gone.object.Get("metadata.labels.odd"), "y")
		apitest.Expect(t, gone.object.Get("data.k"), "2")
		apitest.Expect(t, gone.rev(), rev)
		s.want(200, "DELETE", s.p1+"/f", "")
		s.marker(t, w)
	})
	t.Run("the same after a restart of the watch", func(t *testing.T) {
		w := s.follow("resourceVersion=r(z)&labelSelector=odd%3Dy")
		w.want("ADDED f", "MODIFIED f", "DELETED f")
	})
	t.Run("one name", func(t *testing.T) {
		w := s.follow("resourceVersion=r(z)&fieldSelector=metadata.name%3Db")
		s.want(200, "PUT", s.p1+"/a", configMap("a", "k", "x"))
		s.want(200, "PUT", s.p1+"/b", configMap("b", "k", "x"))
		w.want("MODIFIED b")
		s.want(200, "PUT", s.p1+"/c", configMap("c", "k", "x"))
		s.want(200, "DELETE", s.p1+"/b", "")
		w.want("DELETED b")
	})
	t.Run("another namespace", func(t *testing.T) {
		w := s.watch(fmt.Sprintf("/api/v1/configmaps?watch=1&resourceVersion=%d&fieldSelector=metadata.namespace%%3Dp2", s.revision()))
		s.want(201, "POST", s.p1, configMap("here"))
		s.want(201, "POST", "/api/v1/namespaces/p2/configmaps", configMap("there"))
		w.want("ADDED there")
	})
}

func TestWatchForms(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	t.Run("table", func(t *testing.T) {
		w := s.follow("resourceVersion=r(c)", asTable)
		first, second := w.want("ADDED d"), w.want("ADDED e")
		apitest.Expect(t, first.object.Get("kind"), "Table")
		apitest.Expect(t, first.object.Get("columnDefinitions.#"), 3)
		apitest.Expect(t, second.object.Get("columnDefinitions").Raw, "null")
		apitest.Expect(t, second.object.Get("rows.#"), 1)
	})
	t.Run("metadata alone", func(t *testing.T) {
		for _, form := range []string{asPartial, strings.Replace(asPartial, "List", "", 1)} {
			f := s.follow("resourceVersion=r(d)", form).want("ADDED e")
			apitest.Expect(t, f.object.Get("kind"), "PartialObjectMetadata")
			apitest.Expect(t, f.object.Get("data").Exists(), false)
		}
	})
	t.Run("an error is a Status in every form", func(t *testing.T) {
		apitest.Expect(t, s.follow("resourceVersion=F", asTable).want("ERROR 504 Timeout").object.Get("kind"), "Status")
	})
	t.Run("the old path", func(t *testing.T) {
		s.watch("/api/v1/watch/namespaces/p1/configmaps").want(initial...)
	})
	t.Run("bare watch", func(t *testing.T) { s.watch(s.p1 + "?watch").want(initial...) })
	t.Run("no watch", func(t *testing.T) {
		for _, query := range []string{"watch=0", "watch=false", "watch=FALSE"} {
			apitest.Expect(t, s.list(query), "a b c d e @now")
		}
	})
}

// ---- Bookmarks and the end ----

func TestWatchEnds(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	begin := time.Now()
	w := s.follow("resourceVersion=r(z)&timeoutSeconds=1")
	w.end()
	if took := time.Since(begin); took < 900*time.Millisecond {
		t.Errorf("timeoutSeconds=1 took %v", took)
	}
	s.follow("resourceVersion=r(z)&timeoutSeconds=-1").end()
	plain, marked := s.follow("resourceVersion=r(z)"), s.follow("resourceVersion=r(z)&allowWatchBookmarks=true")
	s.halt()
	plain.end()
	marked.want("BOOKMARK") // unlike kube-apiserver, so that clients can resume at the newest revision
	marked.end()
}

func TestWatchResumesAfterRestart(t *testing.T) {
	t.Parallel()
	s := startScene(t, onSomeFile(t))
	s.want(200, "PUT", s.p1+"/a", labelled("a", "n"))
	s.restart()
	s.follow("resourceVersion=r(c)").want("ADDED d", "ADDED e", "MODIFIED a")
	f := s.follow("resourceVersion=r(c)&labelSelector=odd%3Dy").want("ADDED e", "DELETED a")
	apitest.Expect(t, f.object.Get("metadata.labels.odd"), "y")
}

// TestSlowReaderLosesNothing checks that a slow client eventually receives all events. The server
// reads them from the disk, so it does not need to buffer them.
func TestSlowReaderLosesNothing(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	conn := s.dial()
	defer conn.Close()
	fmt.Fprintf(conn, "GET %s?watch=1&resourceVersion=%d HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", s.p1, s.rev["z"])
	const writes = 200
	// Together this is 20 MB, which is more than the socket buffers and the ring of recent events
	// can hold.
	payload := strings.Repeat("x", 100_000)
	for i := range writes {
		s.want(201, "POST", s.p1, configMap(fmt.Sprintf("big%03d", i), "k", payload))
	}
	conn.SetDeadline(apitest.Deadline(t))
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(response.Body)
	for i := range writes {
		line, err := lines.ReadString('\n')
		if name := gjson.Get(line, "object.metadata.name").String(); err != nil || name != fmt.Sprintf("big%03d", i) {
			t.Fatalf("event %d is %q, %v", i, name, err)
		}
	}
}

func TestTwoWatchersSeeEverythingOnce(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	one, two := s.follow("resourceVersion=r(z)"), s.follow("resourceVersion=r(z)")
	const writers, each = 5, 200
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			for i := range each {
				s.want(201, "POST", s.p1, configMap(fmt.Sprintf("w%d-%d", w, i)))
			}
		})
	}
	group.Wait()
	var revs []int64
	for i := range writers * each {
		a, b := one.next(), two.next()
		if a.rev() != b.rev() || a.kind != "ADDED" || i > 0 && a.rev() <= revs[i-1] {
			t.Fatalf("event %d: %v at %d, %v at %d", i, a, a.rev(), b, b.rev())
		}
		revs = append(revs, a.rev())
	}
	s.marker(t, one, two)
	for _, i := range []int{0, 1, 499, 998} { // a watch that resumes anywhere begins with the next event
		w := s.follow("resourceVersion=" + strconv.FormatInt(revs[i], 10))
		apitest.Expect(t, w.next().rev(), revs[i+1])
		w.close()
	}
}

func TestHeadersComeBeforeTheFirstEvent(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	w := s.follow("resourceVersion=r(z)") // returns after the response header
	apitest.Expect(t, w.header.Get("Content-Type"), "application/json")
	s.marker(t, w)
}
