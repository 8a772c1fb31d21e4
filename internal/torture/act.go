package torture

// This file implements the faults. Each of them can be caused by a correct API server, by the
// machine or by another user at any time. They are hard to test, because each is rare and cannot be
// provoked at a certain moment. Here, the fault occurs exactly once at the point specified by the
// plan.
//
//	           a write ──▶ committed                      a change ──▶ the watch
//	died       ............. ✕ killed, no answer          unseen  ... ✕ cut; 410; the list waits for the next change
//	past       ............. ✕ killed; then lists of      cut     ... ✕ cut; 410
//	                           before, events held back   slow    ... each 300 ms later
//	                                                  bookmarks . a bookmark; then nothing; then the watch ends
//	refused    ✕ 409 429 500 503                       (refuse.go)
//	refused    ............. ✕ 504, although it is done
//	late       ............. 300 ms ──▶ answer
//	edited     another client's edit ──▶ the write     (somebody.go)
//	zombie     ............. paused; continued with the answer when another replica leads
//
// A controller that sees the past is served as by a server with an outdated cache. Lists and gets
// at resourceVersion=0 return the state of that time (below /at/), and events are delayed. Reads of
// the most recent state return it, and writes apply to the current objects.

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidwall/gjson"

	"apilet/internal/history"
)

const (
	lateness   = 300 * time.Millisecond // delay of responses and of events
	staleMost  = 3 * time.Second        // maximum duration of stale reads
	staleWrite = 200 * time.Millisecond // duration of stale reads after a write
	unseenMost = 2 * time.Second        // maximum time that a list waits for the next change
	lasting    = time.Second            // duration of conditions that are fixed or undone by another client
)

// tricks returns the functions for the door that implement the plan of the run.
func (r *run) tricks() *tricks {
	if r.plan == nil {
		return &tricks{}
	}
	switch r.plan.Kind {
	case died:
		return r.dies()
	case past:
		return r.seesThePast()
	case refused:
		return r.isRefused()
	case unseen, cut:
		return r.losesItsWatch()
	case slow:
		return r.isSlow()
	case late:
		return &tricks{after: func(p *passed) *refusal {
			if r.at(p) {
				time.Sleep(lateness)
			}
			return nil
		}}
	case bookmarks:
		return r.seesBookmarksAlone()
	case zombie:
		return r.isPaused()
	case edited:
		return r.isEdited()
	case remade:
		return r.isRemade()
	case held:
		return r.isHeld()
	case unlabelled:
		r.afterward = r.takesLabelsOff
		return &tricks{}
	}
	r.afterward = r.deletes
	return &tricks{}
}

// at reports whether the request is the point specified by the plan. It returns true at most once.
// If the response is already known, the write must have succeeded.
func (r *run) at(p *passed) bool {
	return p.writes && p.code < 300 && p.what == r.plan.Write && p.nth == r.plan.Nth && r.point()
}

// point must be called when the point of the plan is reached. It returns false if this is not the
// first time. With --wait it blocks the server there.
func (r *run) point() bool {
	if !r.reached.CompareAndSwap(false, true) {
		return false
	}
	r.pointAt.Store(time.Now().UnixNano())
	if r.cfg.Wait != nil {
		r.pending.Add(1)
		r.cfg.Wait(r.plan.String())
		r.pending.Add(-1)
	}
	return true
}

// bounce kills a replica and then restarts it. After it has returned, the door does not receive any
// more requests from the old process.
func (r *run) bounce(n int) {
	r.pending.Add(1)
	rep := r.replicas[n]
	rep.setShut(true)
	rep.kill()
	rep.setShut(false)
	if err := rep.start(); err != nil {
		rep.noteExit(err.Error())
	}
	r.pending.Add(-1)
}

func (r *run) dies() *tricks {
	if r.plan.Detail == "answered" {
		return &tricks{answered: func(p *passed) {
			if r.at(p) {
				r.bounce(p.replica)
			}
		}}
	}
	return &tricks{after: func(p *passed) *refusal {
		if !r.at(p) {
			return nil
		}
		r.bounce(p.replica)
		return &refusal{drop: true}
	}}
}

// A stale simulates a server with an outdated cache. The cache catches up some time after the
// controller has listed all of the resources that it had been watching. It catches up earlier if
// the controller writes, because by then the controller has acted on the outdated state.
type stale struct {
	run *run

	mu     sync.Mutex      // guards the fields below
	rev    int64           // the revision for reads, or zero for the latest
	unseen map[string]bool // resources that have not been listed yet
	caught chan struct{}   // closed when the cache has caught up
}

// seesThePast kills the controller at a write, and shows an earlier state to the new process.
func (r *run) seesThePast() *tricks {
	st := &stale{run: r, caught: make(chan struct{})}
	return &tricks{
		after: func(p *passed) *refusal {
			if !r.at(p) {
				return nil
			}
			rev := p.rev - 1
			if r.plan.Object != "" {
				rev = r.revisionBefore(r.plan.Object, r.plan.Change)
			}
			st.begin(rev, r.replicas[p.replica].watched())
			r.bounce(p.replica)
			return &refusal{drop: true}
		},
		before: func(p *passed) *refusal {
			switch {
			case st.now() == 0:
			case p.writes:
				time.AfterFunc(staleWrite, st.end)
			// pretend that this feature is not supported, so the client falls back to a list
			case p.info.Verb == "watch" && strings.Contains(p.query, "sendInitialEvents=true"):
				return &refusal{code: 422, reason: "Invalid", message: "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"}
			}
			return nil
		},
		past: func(p *passed) int64 {
			values, _ := url.ParseQuery(p.query)
			if (p.info.Verb != "list" && p.info.Verb != "get") || values.Get("resourceVersion") != "0" || !p.info.ResourceRequest {
				return 0
			}
			return st.show(p)
		},
		frame: func(*passed, frame) hold {
			if st.now() == 0 {
				return hold{}
			}
			return hold{wait: st.caught}
		},
	}
}

func (st *stale) begin(rev int64, watched map[string]bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.rev, st.unseen = rev, watched
	st.run.pending.Add(1)
	time.AfterFunc(staleMost, st.end)
}

func (st *stale) now() int64 {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.rev
}

// show returns the revision to be used for the given request.
func (st *stale) show(p *passed) int64 {
	st.mu.Lock()
	defer st.mu.Unlock()
	if delete(st.unseen, resourceOf(p)); st.rev != 0 && len(st.unseen) == 0 {
		time.AfterFunc(st.run.cfg.Stale, st.end)
	}
	return st.rev
}

func (st *stale) end() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.rev != 0 {
		st.rev = 0
		close(st.caught)
		st.run.pending.Add(-1)
	}
}

// revisionBefore returns the last revision before the given change to an object.
func (r *run) revisionBefore(alias string, change int) int64 {
	for _, line := range r.record.all() {
		line := line
		if aliasOf(&line) == alias {
			if change--; change == 0 {
				return line.Revision - 1
			}
		}
	}
	return r.record.all()[0].Revision - 1
}

// losesItsWatch terminates a watch before a change is delivered, and prevents the watch from being
// resumed. If the controller must not see the change at all, the next list is delayed until the
// object has been changed again.
func (r *run) losesItsWatch() *tricks {
	var mu sync.Mutex // guards the variables below
	var lost *passed  // the watch that was cut
	var missed int64  // revision of the change that was not delivered
	relisted := false // the controller has listed since then
	return &tricks{
		frame: func(p *passed, f frame) hold {
			rev := gjson.GetBytes(f.raw, "object.metadata.resourceVersion").Int()
			if r.reached.Load() || gjson.GetBytes(f.raw, "type").String() == "BOOKMARK" || !r.isChange(rev) || !r.point() {
				return hold{}
			}
			mu.Lock()
			defer mu.Unlock()
			lost, missed = p, rev
			if r.plan.Kind == unseen {
				r.gap.begin()
				time.AfterFunc(r.cfg.Patience, r.gap.end) // the controller may never list again
			}
			return hold{cut: true}
		},
		before: func(p *passed) *refusal {
			mu.Lock()
			asked := lost != nil && !relisted && p.info.Resource == lost.info.Resource && p.info.Group == lost.info.Group
			listed := asked && (p.info.Verb == "list" || p.info.Verb == "watch" && strings.Contains(p.query, "sendInitialEvents=true"))
			relisted = relisted || listed
			oldest := missed
			mu.Unlock()
			switch {
			case listed && r.plan.Kind == unseen:
				r.record.wait(context.Background(), unseenMost, func(lines []history.Line) bool {
					n := 0
					for i := range lines {
						if aliasOf(&lines[i]) == r.plan.Object {
							n++
						}
					}
					return n > r.plan.Change
				})
				r.gap.end()
			case asked && !listed && p.info.Verb == "watch":
				values, _ := url.ParseQuery(p.query)
				return &refusal{code: 410, reason: "Expired", message: fmt.Sprintf("too old resource version: %s (%d)", values.Get("resourceVersion"), oldest)}
			}
			return nil
		},
	}
}

// isChange reports whether the given revision belongs to the change specified by the plan.
func (r *run) isChange(rev int64) (is bool) {
	r.record.wait(context.Background(), unseenMost, func(lines []history.Line) bool {
		n := 0
		for i := range lines {
			if aliasOf(&lines[i]) == r.plan.Object {
				n++
			}
			if lines[i].Revision >= rev {
				is = lines[i].Revision == rev && n == r.plan.Change && aliasOf(&lines[i]) == r.plan.Object
				return true
			}
		}
		return false
	})
	return is
}

func (r *run) isSlow() *tricks {
	return &tricks{frame: func(p *passed, f frame) hold {
		if resourceOf(p) != r.plan.Resource {
			return hold{}
		}
		if r.reached.CompareAndSwap(false, true) {
			r.pointAt.Store(time.Now().UnixNano())
		}
		return hold{wait: after(time.Until(f.at.Add(lateness)), &r.lagging)}
	}}
}

// isPaused suspends a replica after a write has been committed, but before the response is sent.
// The replica is resumed when another replica has become the leader and has caught up. The workload
// continues in the meantime.
func (r *run) isPaused() *tricks {
	r.afterward = func(ctx context.Context) error {
		r.gap.wait(ctx)
		return nil
	}
	return &tricks{after: func(p *passed) *refusal {
		if r.at(p) {
			rep := r.replicas[p.replica]
			rep.pause()
			r.gap.begin()
			go func() { // until another replica leads, or the Lease should have expired long ago
				r.awaitLeader(p.rev)
				rep.wake()
				r.record.touch()
				r.gap.end()
			}()
		}
		return nil
	}}
}

// awaitLeader waits until another replica has acquired the Lease after the given revision and has
// become quiet. Without Leases it waits for a second.
func (r *run) awaitLeader(since int64) {
	most := lasting
	if lease := longestLease(r.record.all()); lease > 0 {
		most = lease + r.cfg.Patience
	}
	if !r.record.wait(context.Background(), most, func(lines []history.Line) bool { return elected(lines, since) }) {
		return
	}
	r.record.touch()
	for end := time.Now().Add(r.cfg.Patience); !r.isQuiet() && time.Now().Before(end); {
		time.Sleep(retryEvery)
	}
}

// seesBookmarksAlone sends a bookmark for a watch, and no events for some time. After that, the
// watch is terminated, and the client can resume it from the bookmark.
func (r *run) seesBookmarksAlone() *tricks {
	var mu sync.Mutex // guards shown
	// the latest revision delivered by each watch, unset during the initial list
	shown := map[*passed]string{}
	object := func(f frame, path string) string { return gjson.GetBytes(f.raw, "object."+path).String() }
	return &tricks{frame: func(p *passed, f frame) hold {
		values, _ := url.ParseQuery(p.query)
		if resourceOf(p) != r.plan.Resource || values.Get("allowWatchBookmarks") != "true" || r.reached.Load() {
			return hold{}
		}
		mu.Lock()
		defer mu.Unlock()
		last := shown[p]
		if asked := values.Get("resourceVersion"); last == "" && asked != "0" && values.Get("sendInitialEvents") != "true" {
			last = asked
		}
		if last != "" || gjson.GetBytes(f.raw, "type").String() == "BOOKMARK" {
			shown[p] = object(f, "metadata.resourceVersion")
		}
		if last == "" || gjson.GetBytes(f.raw, "type").String() == "BOOKMARK" || !r.point() {
			return hold{}
		}
		bookmark, _ := json.Marshal(map[string]any{"type": "BOOKMARK", "object": map[string]any{"apiVersion": object(f, "apiVersion"), "kind": object(f, "kind"),
			"metadata": map[string]any{"resourceVersion": last, "creationTimestamp": nil}}})
		return hold{first: bookmark, wait: r.later(lasting), cut: true}
	}}
}

// later returns a channel that is closed after the given duration. Until then, isQuiet returns
// false even if the controller does not write, and settle does not count the time (--patience).
func (r *run) later(most time.Duration) <-chan struct{} { return after(most, &r.pending) }

// after returns a channel that is closed after the given duration. The counter is incremented until
// then.
func after(most time.Duration, count *atomic.Int32) <-chan struct{} {
	count.Add(1)
	later := make(chan struct{})
	time.AfterFunc(most, func() {
		close(later)
		count.Add(-1)
	})
	return later
}
