package main

// This file contains the watchers. A watcher remembers the last event of each object to check the
// next event. The number of writes must increase by one. Only new objects may be added, and only
// existing objects may be deleted. A watcher continues at the last revision, even if the server was
// restarted. It only lists the objects again if the watch returns 410.

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

// A manner describes how fast a watcher reads.
type manner int

const (
	steady manner = iota // reads all events immediately
	slow                 // pauses, sometimes long enough to fall behind
	fickle               // disconnects and returns later, sometimes too late
)

// A watcher watches all objects of a kind.
type watcher struct {
	s     *subject
	k     *kind
	how   manner
	known map[string]entry
	rev   string // current revision; "" before a list

	lineage, rewound int64 // values of the subject at the time of the list
	// the data was replaced between the list and this request, so that the server must reject it
	stale bool
}

func (s *subject) startWatchers(running *sync.WaitGroup) {
	for _, k := range kinds {
		for _, how := range []manner{steady, steady, slow, fickle} {
			w := &watcher{s: s, k: k, how: how}
			running.Go(w.run)
		}
	}
}

// run watches the objects until the ledger is complete and all writes have been received.
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

// complete reports whether the watcher has received all acknowledged writes.
func (w *watcher) complete() bool {
	for name, e := range w.s.ledger.copy(w.k) {
		if was := w.known[name]; was.there != e.there || was.there && (was.n != e.n || e.rev != "" && was.rev != e.rev) {
			return false
		}
	}
	return true
}

// list starts again with a list. The list must not be older than the received events.
func (w *watcher) list() {
	lineage, rewound := w.s.lineage.Load(), w.s.rewound.Load()
	items, rev, ok := w.s.listAll(w.k.path)
	if !ok {
		time.Sleep(time.Second)
		return
	}
	// the data was replaced meanwhile
	if lineage != w.s.lineage.Load() || rewound != w.s.rewound.Load() {
		return
	}
	if rewound != w.rewound {
		w.known = nil // the received events are no longer valid
	}
	w.lineage, w.rewound = lineage, rewound
	known := map[string]entry{}
	for name, o := range items {
		known[name] = entry{n: o.n(), there: true, rev: o.Metadata.ResourceVersion}
		if was := w.known[name]; was.n > o.n() {
			w.s.fault("LIST %s: %s is at write %d, a watch had %d", w.k.path, name, o.n(), was.n)
		}
	}
	// missing objects were deleted; the number of writes is a lower bound
	for name, was := range w.known {
		if !known[name].there {
			known[name] = entry{n: -max(was.n, -was.n)}
		}
	}
	w.known, w.rev = known, rev
}

// follow starts a watch and reads the events.
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

// unanswered checks the error response of a watch request.
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

// cancelLater cancels the watch after two seconds, in which it can receive the last events.
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

// sleep pauses. It returns early when the subject is draining.
func (w *watcher) sleep(pause time.Duration) {
	select {
	case <-time.After(pause):
	case <-w.s.draining:
	}
}

// refused handles an ERROR event. Only a 410, for a compacted revision, is generally allowed.
func (w *watcher) refused(status json.RawMessage) {
	var doc struct{ Code int }
	_ = json.Unmarshal(status, &doc)
	// from a server that is behind
	if doc.Code == http.StatusGatewayTimeout && w.s.leave.Load().latest && !w.stale {
		time.Sleep(blink)
		return
	}
	if doc.Code != http.StatusGone {
		w.s.fault("WATCH %s at %s: %.300s", w.k.path, w.rev, status)
	}
	w.s.counts.expired.Add(1)
	w.rev = ""
}

// event compares the event with the last event of the same object.
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
		// the deletion timestamp of a Pod is set before it is deleted
		fits = was.there && (now.n == was.n+1 || now.n == was.n && o.Metadata.Deleted != "")
	case "DELETED":
		fits = was.there && now.n == was.n
	}
	if !fits {
		w.s.fault("WATCH %s: %s %s with write %d at %s; before it was at write %d (there: %t)", w.k.path, kind, o.Metadata.Name, now.n, rev, was.n, was.there)
	}
	w.known[o.Metadata.Name] = now
}

// seen reports whether the watcher knows an object. For new objects the number of writes is
// unknown.
func (w *watcher) seen(name string) bool {
	_, ok := w.known[name]
	return ok
}
