package main

// This file watches. A watcher keeps what it has been told of each object and holds every event against it: the count of writes goes up
// by one, an object is ADDED when it was not there and DELETED when it was. It resumes where it was, also on a restarted server, and
// begins anew with a list only when it is told that its revision is compacted.

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// A manner is how a watcher treats its connection.
type manner int

const (
	steady manner = iota // reads what comes
	slow                 // takes naps, and long ones at times, so that it is behind
	fickle               // hangs up, and comes back later, at times too late
)

// A watcher is a client of one kind's changes.
type watcher struct {
	s     *subject
	k     *kind
	how   manner
	known map[string]entry
	rev   string // where it is; "" before a list

	lineage, rewound int64 // the subject's, when it listed
	stale            bool  // the request of now was made after the data had become others than were listed: it has to be refused
}

func (s *subject) startWatchers(running *sync.WaitGroup) {
	for _, k := range kinds {
		for _, how := range []manner{steady, steady, slow, fickle} {
			w := &watcher{s: s, k: k, how: how}
			running.Go(w.run)
		}
	}
}

// run watches until the ledger is drained and the watcher knows all of it.
func (w *watcher) run() {
	begin := time.Time{}
	for w.s.over.Err() == nil {
		if w.rev == "" {
			w.list()
		}
		w.follow()
		select {
		case <-w.s.draining:
			if begin.IsZero() {
				begin = time.Now()
			}
			if w.complete() {
				return
			}
			if time.Since(begin) > patience {
				w.s.fault("a watch of %s did not catch up with the ledger", w.k.path)
				return
			}
		default:
		}
	}
}

// complete compares what the watcher was told with what was acknowledged.
func (w *watcher) complete() bool {
	for name, e := range w.s.ledger.copy(w.k) {
		if was := w.known[name]; was.there != e.there || was.there && (was.n != e.n || e.rev != "" && was.rev != e.rev) {
			return false
		}
	}
	return true
}

// list begins anew. Nothing may be older than what the watcher knows.
func (w *watcher) list() {
	lineage, rewound := w.s.lineage.Load(), w.s.rewound.Load()
	items, rev, ok := w.s.listAll(w.k.path)
	if !ok {
		time.Sleep(time.Second)
		return
	}
	if lineage != w.s.lineage.Load() || rewound != w.s.rewound.Load() { // it may be of before or after
		return
	}
	if rewound != w.rewound {
		w.known = nil // what it was told has never been
	}
	w.lineage, w.rewound = lineage, rewound
	known := map[string]entry{}
	for name, o := range items {
		known[name] = entry{n: o.n(), there: true, rev: o.Metadata.ResourceVersion}
		if was := w.known[name]; was.n > o.n() {
			w.s.fault("LIST %s: %s is at write %d, a watch had %d", w.k.path, name, o.n(), was.n)
		}
	}
	for name, was := range w.known { // what is gone was deleted, after that many writes or more
		if !known[name].there {
			known[name] = entry{n: -max(was.n, -was.n)}
		}
	}
	w.known, w.rev = known, rev
}

// follow is one watch request.
func (w *watcher) follow() {
	if w.rev == "" {
		return
	}
	ctx, cancel := context.WithCancel(w.s.over)
	defer cancel()
	go func() { // ends with the request
		select {
		case <-w.s.draining:
			cancelLater(ctx, cancel)
		case <-ctx.Done():
		}
	}()
	if w.how == fickle {
		time.AfterFunc(time.Duration(rand.IntN(20_000))*time.Millisecond, cancel)
	}
	w.stale = w.lineage != w.s.lineage.Load()
	before := w.s.leave.Load()
	r, err := w.s.request(ctx, "GET", w.s.address()+w.k.path+"?watch=1&allowWatchBookmarks=true&resourceVersion="+w.rev, "", "")
	if err != nil {
		w.s.fault("%v", err)
		return
	}
	response, err := w.s.client.Do(r)
	if err != nil {
		time.Sleep(blink)
		return
	}
	defer response.Body.Close()
	if response.StatusCode != 200 {
		w.unanswered(before, response)
		return
	}
	w.take(json.NewDecoder(bufio.NewReader(response.Body)))
	if w.how == fickle {
		w.sleep(time.Duration(rand.IntN(25_000)) * time.Millisecond)
	}
}

// unanswered is a watch that did not begin.
func (w *watcher) unanswered(before *leave, response *http.Response) {
	text, _ := io.ReadAll(response.Body)
	a, excused := answer{response.StatusCode, text}, false
	for _, leave := range []*leave{before, w.s.leave.Load()} {
		stopping := leave.cut && a.code == http.StatusTooManyRequests
		excused = excused || stopping || leave.refuses != nil && leave.refuses("GET", w.k.path, a)
	}
	if !excused {
		w.s.fault("WATCH %s at %s: %d %.200s", w.k.path, w.rev, a.code, a.body)
	}
	time.Sleep(blink)
}

// cancelLater gives a watch a moment to tell the last events.
func cancelLater(ctx context.Context, cancel func()) {
	select {
	case <-time.After(2 * time.Second):
	case <-ctx.Done():
	}
	cancel()
}

func (w *watcher) drained() bool {
	select {
	case <-w.s.draining:
		return true
	default:
		return false
	}
}

// take reads events until the stream ends.
func (w *watcher) take(events *json.Decoder) {
	for {
		var raw struct {
			Type   string
			Object json.RawMessage
		}
		if events.Decode(&raw) != nil {
			return
		}
		if raw.Type == "ERROR" {
			w.refused(raw.Object)
			return
		}
		var o object
		if err := json.Unmarshal(raw.Object, &o); err != nil {
			w.s.fault("WATCH %s: %v in %.200s", w.k.path, err, raw.Object)
			return
		}
		w.event(raw.Type, &o)
		if w.how == slow && !w.drained() {
			w.nap()
		}
	}
}

func (w *watcher) nap() {
	pause := time.Duration(rand.IntN(300)) * time.Millisecond
	if rand.IntN(200) == 0 {
		pause = 40 * time.Second
	}
	w.sleep(pause)
}

// sleep ends when the watchers are to catch up.
func (w *watcher) sleep(pause time.Duration) {
	select {
	case <-time.After(pause):
	case <-w.s.draining:
	}
}

// refused is an ERROR event: the revision is compacted, or the watch is at fault.
func (w *watcher) refused(status json.RawMessage) {
	var doc struct{ Code int }
	_ = json.Unmarshal(status, &doc)
	if doc.Code == http.StatusGatewayTimeout && w.s.leave.Load().latest && !w.stale { // of a server that is behind
		time.Sleep(blink)
		return
	}
	if doc.Code != http.StatusGone {
		w.s.fault("WATCH %s at %s: %.300s", w.k.path, w.rev, status)
	}
	w.s.counts.expired.Add(1)
	w.rev = ""
}

// event holds one event against what is known.
func (w *watcher) event(kind string, o *object) {
	rev := o.Metadata.ResourceVersion
	if w.stale {
		w.s.fault("WATCH %s at %s: the data are others than a moment ago, and it is told %s %s at %s", w.k.path, w.rev, kind, o.Metadata.Name, rev)
	}
	if revisionOf(rev) < revisionOf(w.rev) || revisionOf(rev) == revisionOf(w.rev) && kind != "BOOKMARK" {
		w.s.fault("WATCH %s: %s %s at %s after %s", w.k.path, kind, o.Metadata.Name, rev, w.rev)
	}
	w.rev = rev
	if kind == "BOOKMARK" || o.Metadata.Name == serversOwn {
		return
	}
	w.s.counts.events.Add(1)
	was, now := w.known[o.Metadata.Name], entry{n: o.n(), there: kind != "DELETED", rev: rev}
	fits := false
	switch kind {
	case "ADDED":
		fits = !was.there && (now.n == was.n+1 || was.n < 0 && now.n > -was.n || !w.seen(o.Metadata.Name))
	case "MODIFIED":
		fits = was.there && (now.n == was.n+1 || now.n == was.n && o.Metadata.Deleted != "") // a Pod is marked, and then goes
	case "DELETED":
		fits = was.there && now.n == was.n
	}
	if !fits {
		w.s.fault("WATCH %s: %s %s with write %d at %s; before it was at write %d (there: %t)", w.k.path, kind, o.Metadata.Name, now.n, rev, was.n, was.there)
	}
	w.known[o.Metadata.Name] = now
}

// seen says that the watcher has heard of an object before: of another it cannot know how often it was written.
func (w *watcher) seen(name string) bool {
	_, ok := w.known[name]
	return ok
}
