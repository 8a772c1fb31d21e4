package main

// This file tests that the soak detects errors.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func TestGrowthIsSeen(t *testing.T) {
	for _, c := range []struct {
		title string
		at    func(minute int) float64 // MiB
		grown bool
	}{
		{"a level", func(int) float64 { return 30 }, false},
		{"a saw", func(minute int) float64 { return 20 + float64(minute%5)*5 }, false},
		{"a start that levels off", func(minute int) float64 { return 30 - 15/float64(minute+1) }, false},
		{"a leak of a third of a megabyte a minute", func(minute int) float64 { return 30 + float64(minute)/3 }, true},
		{"a leap in the second half", func(minute int) float64 { return 30 + float64(minute/30)*20 }, true},
	} {
		var samples []sample
		for minute := range 60 {
			samples = append(samples, sample{memory: c.at(minute) * (1 << 20)})
		}
		if before, after, grown := growth(samples, bounds[0]); grown != c.grown {
			t.Errorf("%s: %.0f and then %.0f: grown is %t", c.title, before, after, grown)
		}
	}
}

// seen sends an event of the object o to a watcher.
func seen(w *watcher, kind string, n int, rev string) {
	var o object
	o.Metadata.Name, o.Metadata.ResourceVersion, o.Metadata.Annotations = "o", rev, map[string]string{"soak/n": fmt.Sprint(n)}
	w.event(kind, &o)
}

func TestGapsAndRepetitionsAreSeen(t *testing.T) {
	for _, c := range []struct {
		title  string
		kind   string
		n      int
		rev    string
		faults int
	}{
		{"the next write", "MODIFIED", 3, "12", 0}, {"the end", "DELETED", 2, "12", 0},
		{"a gap", "MODIFIED", 4, "12", 1}, {"a repetition", "MODIFIED", 2, "11", 2}, {"the past", "MODIFIED", 3, "9", 1},
		{"an end after a gap", "DELETED", 3, "12", 1}, {"a birth of what lives", "ADDED", 3, "12", 1},
	} {
		s := newSubject("s", t.TempDir(), "")
		w := &watcher{s: s, k: kinds[0], known: map[string]entry{}, rev: "1"}
		seen(w, "ADDED", 1, "10")
		seen(w, "MODIFIED", 2, "11")
		if s.faults() > 0 {
			t.Fatal(s.said)
		}
		seen(w, c.kind, c.n, c.rev)
		if s.faults() != c.faults {
			t.Errorf("%s: %d faults %v, want %d", c.title, s.faults(), s.said, c.faults)
		}
	}
}

// TestSamplesWaitForTheServer checks that a sample can be taken before the server is started.
func TestSamplesWaitForTheServer(t *testing.T) {
	if now, ok := newSubject("s", t.TempDir(), "").sample(); ok {
		t.Errorf("a server that has not started holds %+v", now)
	}
}

// TestLostWritesAreSeen compares the ledger with a server that returns a single object.
func TestLostWritesAreSeen(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == kinds[0].path {
			fmt.Fprint(w, `{"metadata":{"resourceVersion":"9"},"items":[{"metadata":{"name":"o","resourceVersion":"7","annotations":{"soak/n":"2"}}}]}`)
			return
		}
		fmt.Fprint(w, `{"metadata":{"resourceVersion":"9"},"items":[]}`)
	}))
	defer server.Close()
	for _, c := range []struct {
		title   string
		entries map[string]entry
		faults  int
	}{
		{"as it was written", map[string]entry{"o": {2, true, "7"}}, 0},
		{"an update is lost", map[string]entry{"o": {3, true, "8"}}, 1},
		{"a delete is lost", map[string]entry{"o": {2, false, ""}}, 1},
		{"a create is lost", map[string]entry{"o": {2, true, "7"}, "p": {1, true, "5"}}, 1},
		{"nobody has made it", map[string]entry{}, 1},
	} {
		s := newSubject("s", t.TempDir(), "")
		s.servers[0].url.Store(&server.URL)
		s.ledger.entries[kinds[0]] = c.entries
		if s.compareAll(); s.faults() != c.faults {
			t.Errorf("%s: %d faults %v, want %d", c.title, s.faults(), s.said, c.faults)
		}
	}
}

// worked returns a subject that sends its requests to the handler.
func worked(t *testing.T, handler http.HandlerFunc) *subject {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	s := newSubject("s", t.TempDir(), "")
	s.servers[0].url.Store(&server.URL)
	return s
}

// TestAnswersAreJudgedByTheTrouble checks that an error is only accepted if it is allowed by the
// fault.
func TestAnswersAreJudgedByTheTrouble(t *testing.T) {
	code, cut := atomic.Int64{}, atomic.Bool{}
	s := worked(t, func(w http.ResponseWriter, r *http.Request) {
		if cut.Load() {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(int(code.Load()))
	})
	full := func(method, _ string, a answer) bool { return method == "POST" && a.code == 500 }
	for _, c := range []struct {
		title  string
		leave  leave
		method string
		code   int // 0: the connection is closed
		faults int
		want   error
	}{
		{"due", leave{}, "GET", 200, 0, nil},
		{"to be judged by who asks", leave{}, "POST", 500, 0, nil},
		{"excused, and nothing has happened", leave{refuses: full, nothing: true}, "POST", 500, 0, refusedError{}},
		{"excused, and nobody knows", leave{refuses: full}, "POST", 500, 0, errDoubt},
		{"excused for others", leave{refuses: full}, "GET", 500, 0, nil},
		{"cut, as it may be", leave{cut: true}, "GET", 0, 0, errDoubt},
		{"cut", leave{refuses: full}, "GET", 0, 1, errDoubt},
	} {
		code.Store(int64(c.code))
		cut.Store(c.code == 0)
		s.leave.Store(&c.leave)
		faults := s.faults()
		a, err := s.call(c.method, "/x", "", "")
		_, refused := c.want.(refusedError)
		if s.faults()-faults != c.faults || a.code != c.code && err == nil || refused != errors.As(err, new(refusedError)) || !refused && !errors.Is(err, c.want) {
			t.Errorf("%s: %d %v and %d faults", c.title, a.code, err, s.faults()-faults)
		}
	}
}

// A tardy server answers the first write with 504 and executes it after another request.
type tardy struct {
	mu      sync.Mutex // guards the fields below
	n, rev  int        // state of the object, which does not exist if n is zero
	waiting func()
	seen    int
}

func (s *tardy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text, _ := io.ReadAll(r.Body)
	if s.seen++; s.seen == 4 && s.waiting != nil { // between the second read and the second attempt
		s.waiting()
	}
	n := number(regexp.MustCompile(`"soak/n":"(\d+)"`), text)
	rev := number(regexp.MustCompile(`"resourceVersion":"(\d+)"`), text)
	change := func(n int) {
		s.n, s.rev = n, s.rev+1
	}
	switch {
	case r.Method != "GET" && s.seen == 1:
		made := s.rev
		s.waiting = func() {
			if s.rev == made {
				change(int(n))
			}
		}
		w.WriteHeader(504)
		return
	case r.Method != "GET" && s.seen < 4: // still unavailable
		w.WriteHeader(504)
		return
	case r.Method == "PATCH" && int(rev) != s.rev || r.Method == "POST" && s.n > 0:
		w.WriteHeader(409)
		return
	case r.Method != "GET":
		change(int(n))
	case s.n == 0:
		w.WriteHeader(404)
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"metadata": map[string]any{"name": "o", "resourceVersion": fmt.Sprint(s.rev), "annotations": map[string]string{"soak/n": fmt.Sprint(s.n)}}})
}

// TestWritesInDoubtAreFollowed checks that a write is counted correctly if it is executed long
// after the response.
func TestWritesInDoubtAreFollowed(t *testing.T) {
	for _, before := range []int{0, 6} {
		server := &tardy{n: before, rev: 10}
		s := worked(t, server.ServeHTTP)
		s.leave.Store(&leave{refuses: unanswered})
		e := entry{n: 5, there: false}
		if before > 0 {
			e = entry{n: before, there: true, rev: "10"}
		}
		w := attempt{before: e, after: entry{n: e.n + 1, there: true}, code: 201}
		if before > 0 {
			w.code = 200
		}
		s.ledger.set(kinds[0], "o", e)
		method, body := "POST", kinds[0].body("o", "", w.after.n)
		if before > 0 {
			method, body = "PATCH", fmt.Sprintf(`{"metadata":{"annotations":{"soak/n":"%d"}}}`, w.after.n)
		}
		a, err := s.call(method, kinds[0].path, body, jsonBody)
		s.settle(kinds[0], "o", w, a, err)
		if got := s.ledger.get(kinds[0], "o"); s.faults() > 0 || got != (entry{w.after.n, true, "11"}) || s.counts.written.Load() != 1 {
			t.Errorf("from %d: noted is %+v, %d writes, faults %v", before, got, s.counts.written.Load(), s.said)
		}
	}
}

// TestRefusedWritesMustNotHappen checks that the soak notices a refused write that the server has
// executed.
func TestRefusedWritesMustNotHappen(t *testing.T) {
	s := worked(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `{"metadata":{"name":"o","resourceVersion":"11","annotations":{"soak/n":"2"}}}`)
	})
	w := attempt{before: entry{1, true, "10"}, after: entry{2, true, ""}, code: 200}
	s.settle(kinds[0], "o", w, answer{}, refusedError{answer{code: 500}})
	if s.faults() != 1 || !strings.Contains(s.said[0], "was refused, and has happened") {
		t.Errorf("faults %v", s.said)
	}
}

// TestOtherDataAreToBeTold checks that a watch must not be continued after a restore and that it
// may return 410.
func TestOtherDataAreToBeTold(t *testing.T) {
	for frame, faults := range map[string]int{
		`{"type":"ERROR","object":{"code":410}}`: 0,
		`{"type":"ERROR","object":{"code":504}}`: 1,
		`{"type":"ADDED","object":{"metadata":{"name":"o","resourceVersion":"12","annotations":{"soak/n":"1"}}}}`: 1,
		`{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"12"}}}`:                                      1,
	} {
		s := worked(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, frame) })
		w := &watcher{s: s, k: kinds[0], known: map[string]entry{}, rev: "11"}
		s.standing.latest = true
		s.lineage.Add(1)
		if w.follow(); s.faults() != faults {
			t.Errorf("%s: faults %v, want %d", frame, s.said, faults)
		}
	}
}

// TestListsAcrossAMoveAreNotBelieved checks that a list is ignored if the data was replaced between
// the request and the response.
func TestListsAcrossAMoveAreNotBelieved(t *testing.T) {
	moves := 1
	var s *subject
	s = worked(t, func(w http.ResponseWriter, r *http.Request) {
		if moves--; moves >= 0 {
			s.lineage.Add(1)
		}
		fmt.Fprint(w, `{"metadata":{"resourceVersion":"9"},"items":[]}`)
	})
	w := &watcher{s: s, k: kinds[0]}
	for _, want := range []string{"", "9"} {
		if w.list(); w.rev != want || want != "" && w.lineage != 1 {
			t.Errorf("at %q of lineage %d, want %q", w.rev, w.lineage, want)
		}
	}
}

// TestTimetable checks that each fault occurs once before any is repeated, that unavailable faults
// are skipped, and that the seed determines the order.
func TestTimetable(t *testing.T) {
	var orders []string
	for _, seed := range []uint64{1, 1, 2} {
		s := worked(t, func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, `{"metadata":{"resourceVersion":"9"},"items":[]}`)
		})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var had []string
		var all []*trouble
		for _, name := range []string{"a", "b", "c", "d", "e", "not here"} {
			all = append(all, &trouble{name: name, brief: true, mend: func() error { return nil }, plant: func() (string, error) {
				if name == "not here" {
					return "", errLeftOut
				}
				if had = append(had, name); len(had) == 10 {
					stop()
				}
				return "", nil
			}})
		}
		out := &strings.Builder{}
		if err := s.suffer(ctx, &table{out: out}, all, rand.New(rand.NewPCG(seed, 0))); err != nil || s.faults() > 0 {
			t.Fatal(err, s.said)
		}
		for round := range 2 {
			for _, name := range []string{"a", "b", "c", "d", "e"} {
				if strings.Count(strings.Join(had[5*round:5*round+5], ""), name) != 1 {
					t.Errorf("round %d is %v", round, had)
				}
			}
		}
		if s.had["a"] != 2 || strings.Count(out.String(), "left out") != 1 {
			t.Errorf("had %v, said %s", s.had, out)
		}
		orders = append(orders, strings.Join(had, ""))
	}
	if orders[0] != orders[1] || orders[0] == orders[2] {
		t.Errorf("seeds 1, 1 and 2 give %v", orders)
	}
}

// TestBitFlipsBack checks that all occurrences in a file are replaced.
func TestBitFlipsBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	whole := strings.Repeat("before "+markerText+" after ", 3)
	if err := os.WriteFile(path, []byte(whole), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{false, true} {
		is, becomes := flipped(markerText), markerText
		if !want {
			is, becomes = becomes, is
		}
		n, err := replaceInFile(path, is, becomes)
		now, _ := os.ReadFile(path)
		if err != nil || n != 3 || len(now) != len(whole) || (string(now) == whole) != want {
			t.Errorf("%d places, %v: %s", n, err, now)
		}
	}
}

// TestTimeOfThisGoCanBeShifted checks that the source of time.Now has the expected line.
func TestTimeOfThisGoCanBeShifted(t *testing.T) {
	source, err := os.ReadFile(filepath.Join(runtime.GOROOT(), "src", "time", "time.go"))
	if err != nil {
		t.Skip(err)
	}
	if shifted, err := withShift(string(source)); err != nil || !strings.Contains(shifted, "sec, nsec = shifted(sec, nsec)") {
		t.Error(err)
	}
	if _, err := withShift("package time"); err == nil {
		t.Error("a time package of another kind is shifted")
	}
}

// TestBalancerGoesToWhoIsReady checks that connections go to ready servers, or to any reachable
// server if none is ready.
func TestBalancerGoesToWhoIsReady(t *testing.T) {
	b, err := newBalancer()
	if err != nil {
		t.Fatal(err)
	}
	b.client = http.DefaultClient
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	defer func() { stop(); <-ended }()
	go func() {
		defer close(ended)
		b.run(ctx)
	}()
	var ready [2]atomic.Bool
	var behind [2]*httptest.Server
	var servers []*server
	for i := range behind {
		behind[i] = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/readyz" && !ready[i].Load() {
				w.WriteHeader(503)
			}
			fmt.Fprint(w, i)
		}))
		defer behind[i].Close()
		one := &server{}
		one.url.Store(&behind[i].URL)
		one.pid.Store(1)
		servers = append(servers, one)
	}
	ready[1].Store(true)
	b.serve(servers...)
	if who := askThrough(t, b); who != [2]int{0, 6} {
		t.Errorf("one is ready: %v", who)
	}
	ready[0].Store(true)
	b.serve(servers...)
	if who := askThrough(t, b); who != [2]int{3, 3} {
		t.Errorf("both are ready: %v", who)
	}
	ready[0].Store(false)
	behind[1].Close()
	b.serve(servers...)
	if who := askThrough(t, b); who != [2]int{6, 0} {
		t.Errorf("nobody is ready, and one is gone: %v", who)
	}
}

// askThrough sends six requests and returns the number of requests that each server received.
func askThrough(t *testing.T, b *balancer) (who [2]int) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for range 6 {
		response, err := client.Get("http://" + b.listener.Addr().String() + "/")
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(response.Body)
		response.Body.Close()
		who[text[0]-'0']++
	}
	return who
}
