package torture

// This file is what plans do. Each is a thing that a correct API server, the machine, or another user may do to a controller at any time. What makes
// them hard is that each is rare, and that nobody can have it come at a certain moment: here it comes at the point of the plan, once.
//
//	           a write ──▶ committed                      a change ──▶ the watch
//	died       ............. ✕ killed, no answer          unseen  ... ✕ cut; 410; the list waits for the next change
//	past       ............. ✕ killed; then lists of      cut     ... ✕ cut; 410
//	                           before, events held back   slow    ... each 300 ms later
//	                                                  bookmarks . a bookmark; then nothing; then the watch ends
//	refused    ✕ 409 429 500 503                       (refuse.go)
//	refused    ............. ✕ 504, though it is done
//	late       ............. 300 ms ──▶ answer
//	edited     somebody else's edit ──▶ the write      (somebody.go)
//	zombie     ............. paused; woken with the answer when another replica leads
//
// Who sees the past is served as by a server whose cache is behind: lists and gets at resourceVersion=0 are answered as of then (below /at/), events
// are held back for a while. What asks for the newest gets the newest, and a write meets what there is.

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
	lateness   = 300 * time.Millisecond // of answers, and of events
	staleMost  = 3 * time.Second        // that the past waits for lists to be shown in
	staleWrite = 200 * time.Millisecond // that it is shown after a write
	unseenMost = 2 * time.Second        // that a list waits for the next change
	lasting    = time.Second            // what somebody else mends, or undoes, is so for so long
)

// tricks are what the run's plan does at the door.
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

// at tells whether a request is the plan's point, once. Behind the server's back that is one that it has carried out.
func (r *run) at(p *passed) bool {
	return p.writes && p.code < 300 && p.what == r.plan.Write && p.nth == r.plan.Nth && r.point()
}

// point notes that the plan's point is reached. With --wait it holds the server there.
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

// bounce kills a replica, and starts it again. Nothing of it comes through the door any more when this returns.
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

// A stale is how far behind a server's cache is. It catches up some time after the controller has listed all that it watched before, and earlier when
// it writes: by then it has believed what it saw.
type stale struct {
	run *run

	mu     sync.Mutex      // guards what follows
	rev    int64           // what is shown; 0: the newest
	unseen map[string]bool // resources that are still to be listed
	caught chan struct{}   // closed when it has caught up
}

// seesThePast kills the controller at a write, and shows it what was before.
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
			case p.info.Verb == "watch" && strings.Contains(p.query, "sendInitialEvents=true"): // a server that does not have this; a client then lists
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

// show is the revision that is shown.
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

// revisionBefore is the one before a change of an object.
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

// losesItsWatch cuts the watch before a change is seen. It cannot be resumed; and where the change is to be unseen, the list that is made then waits
// for the next change of the same object.
func (r *run) losesItsWatch() *tricks {
	var mu sync.Mutex // guards what follows
	var lost *passed  // the watch that was cut
	var missed int64  // revision of the change it did not receive
	relisted := false // since then
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

// isChange tells whether a revision is that of the change which the plan is about.
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

// isPaused stops a replica when it has written, before it has the answer. It wakes it when another one leads and has caught up, while the workload continues.
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

// awaitLeader waits until another replica has taken the Lease since a revision, and has finished its first work. Without Leases it waits for a second.
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

// seesBookmarksAlone has one type's watch say, by a bookmark, that it is alive, and nothing more for a while. Then it ends, as any watch does, and goes on
// where it was.
func (r *run) seesBookmarksAlone() *tricks {
	var mu sync.Mutex             // guards what follows
	shown := map[*passed]string{} // the newest revision that a watch has shown; none: its first objects are still on their way
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

// later is closed after a time. Nothing is quiet before, and no patience is lost.
func (r *run) later(most time.Duration) <-chan struct{} { return after(most, &r.pending) }

// after is closed after a time, in which it is counted.
func after(most time.Duration, count *atomic.Int32) <-chan struct{} {
	count.Add(1)
	later := make(chan struct{})
	time.AfterFunc(most, func() {
		close(later)
		count.Add(-1)
	})
	return later
}
