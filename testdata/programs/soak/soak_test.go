package main

// This file shows that the soak can fail: a program that never does proves nothing.

import (
	"fmt"
	"net/http"
	"net/http/httptest"
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

// seen is an event of the object o, for a watcher.
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
		s := newSubject("s", t.TempDir(), 0)
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

// TestSamplesWaitForTheServer: the table is begun before the servers have started.
func TestSamplesWaitForTheServer(t *testing.T) {
	if now, ok := newSubject("s", t.TempDir(), 0).sample(); ok {
		t.Errorf("a server that has not started holds %+v", now)
	}
}

// TestLostWritesAreSeen compares the ledger with a server that has one object.
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
		s := newSubject("s", t.TempDir(), 0)
		s.url.Store(&server.URL)
		s.ledger.entries[kinds[0]] = c.entries
		if s.compareAll(); s.faults() != c.faults {
			t.Errorf("%s: %d faults %v, want %d", c.title, s.faults(), s.said, c.faults)
		}
	}
}
