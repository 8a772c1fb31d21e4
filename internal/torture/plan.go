package torture

// This file derives plans from the plain runs. A plan describes a single fault and the point at
// which it happens. Points are defined such that they can be found in another run: either as the
// nth time that the controller performs a certain write, or as the nth change to a certain object.
//
//	rank  plan                                     points
//	   1  crashed                                  each write that changed something
//	      sees the past                            each write: after it, the controller restarts and sees the state before it
//	      paused past its lease, and continued     each write, if there are two replicas
//	   2  its write succeeded with an error        each write: 504
//	      another client edits what it writes      each write to an object that a user has created
//	      did not see a change                     each change that is followed by another of the same object
//	      another client deletes its object        each object that only the controller has written, and that remains
//	   3  was rejected: 409, 500                   each write
//	      sees the past, further back              each change by a user
//	      was slow                                 each type that it watches; each response
//	      the namespace is deleted                 each namespace of the workload
//	   4  429, 503; its watch ended                each write; each change
//	      only bookmarks for some time             each type that it watches
//	      a webhook is down, a policy forbids      each kind of write, the first time
//	      a quota is full                          each kind of object that it creates, the first time
//	      a user's object is deleted and recreated each watched object of a user: at the first write after its creation, and at the last
//	      another client's finalizer holds it      each deletion by the controller; each object that only the controller has written, and that remains
//	   5  its labels are removed for some time     each of these objects that has labels
//
// Lower ranks run first. Within a rank the seed determines the order, so that a run with little
// time is a random sample of the most productive plans.

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"

	"github.com/tidwall/gjson"

	"apilet/internal/history"
)

// Kinds of plans.
const (
	died    = "died"    // the controller is killed after a write was committed, and then restarted
	past    = "past"    // killed in the same way; after the restart, it lists an earlier revision
	refused = "refused" // a write is answered with an error
	// The controller does not see a change, because the watch is terminated before it, and the next
	// list is delayed.
	unseen  = "unseen"
	cut     = "cut"     // the watch is terminated before a change and cannot be resumed (410)
	slow    = "slow"    // the events of one type arrive late
	late    = "late"    // a response arrives late
	edited  = "edited"  // another client edits an object before the controller
	deleted = "deleted" // another client deletes an object created by the controller
	ending  = "ending"  // the namespace is deleted
	held    = "held"    // a deleted object is held by another client's finalizer for some time
	remade  = "remade"  // another client deletes a user's object and creates it again
	// A replica is paused after a write was committed. It is resumed when there is a new leader.
	zombie = "zombie"
)

const (
	bookmarks  = "bookmarks"  // a watch sends only bookmarks before it is terminated
	unlabelled = "unlabelled" // another client temporarily removes all labels from an object
)

var kinds = []string{died, past, refused, unseen, cut, slow, late, edited, deleted, ending, held, remade, bookmarks, unlabelled, zombie}

// carriedOut is the detail of a write that succeeds although it is answered with an error.
const carriedOut = "504, carried out"

// A Plan describes a single fault and the point at which it happens. The kind determines which
// fields are used.
type Plan struct {
	Kind string `json:"kind"`
	// refused: the error; died: "answered" if the controller received the response
	Detail   string `json:"detail,omitempty"`
	Write    string `json:"write,omitempty"`    // the controller's write at which it happens
	Nth      int    `json:"nth,omitempty"`      // number of that write, starting at 1
	Object   string `json:"object,omitempty"`   // the changed or deleted object
	Change   int    `json:"change,omitempty"`   // number of that object's change, starting at 1
	Resource string `json:"resource,omitempty"` // slow, bookmarks: the type
	rank     int
}

// at returns the name of the write.
func (p Plan) at() string {
	if p.Nth > 1 {
		return fmt.Sprintf("%s (time %d)", p.Write, p.Nth)
	}
	return p.Write
}

// String describes the plan in one line.
func (p Plan) String() string {
	change := fmt.Sprintf("change %d of %s", p.Change, p.Object)
	switch p.Kind {
	case died:
		if p.Detail == "answered" {
			return "died after " + p.at() + ", answered"
		}
		return "died after " + p.at() + ", without the answer"
	case past:
		if p.Object != "" {
			return "started again after " + p.at() + ", saw what was before " + change
		}
		return "started again after " + p.at() + ", saw what was before it"
	case refused:
		return "was told " + p.Detail + " to " + p.at()
	case unseen:
		return "did not see " + change
	case cut:
		return "lost its watch before " + change
	case slow:
		return "saw " + p.Resource + " late"
	case late:
		return "got the answer to " + p.at() + " late"
	case edited:
		return "somebody edited it before " + p.at()
	case deleted:
		return "somebody deleted " + p.Object
	case ending:
		return "somebody deleted " + p.Object + ", with all that is in it"
	case held:
		if p.Write != "" {
			return "a finalizer of somebody else's held for a while what it deletes by " + p.at()
		}
		return "somebody deleted " + p.Object + ", which a finalizer held for a while"
	case remade:
		return "somebody deleted " + p.Object + " after " + p.at() + ", and made it again"
	case bookmarks:
		return "saw bookmarks alone of " + p.Resource + " for a while"
	case unlabelled:
		return "somebody took the labels off " + p.Object + " for a while"
	}
	return "a replica was paused after " + p.at() + ", and woken when another led"
}

// makePlans returns the plans that can be derived from a plain run, with the most productive ones
// first.
func makePlans(o *outcome, replicas int, without []string, seed uint64) []Plan {
	plans := slices.DeleteFunc(collectPlans(o, replicas), func(p Plan) bool { return slices.Contains(without, p.Kind) })
	random := rand.New(rand.NewPCG(seed, seed))
	random.Shuffle(len(plans), func(i, j int) { plans[i], plans[j] = plans[j], plans[i] })
	sort.SliceStable(plans, func(i, j int) bool { return plans[i].rank < plans[j].rank })
	return plans
}

// collectPlans returns all plans in the order in which their points occur.
func collectPlans(o *outcome, replicas int) []Plan {
	m := &planner{outcome: o, byRevision: map[int64]*history.Line{}, kinds: map[string]bool{}}
	for i := range o.lines {
		m.byRevision[o.lines[i].Revision] = &o.lines[i]
	}
	for i := range o.requests {
		if p := &o.requests[i]; p.writes && p.code < 300 {
			m.write(p, replicas)
		}
	}
	m.changes()
	m.watched()
	m.made()
	m.remade()
	return m.plans
}

// A planner collects plans.
type planner struct {
	*outcome
	byRevision map[int64]*history.Line
	kinds      map[string]bool // kinds of writes seen so far
	plans      []Plan
}

func (m *planner) add(rank int, p Plan) {
	p.rank = rank
	m.plans = append(m.plans, p)
}

// at adds a plan at a write.
func (m *planner) at(rank int, p *passed, kind, detail string) {
	m.add(rank, Plan{Kind: kind, Detail: detail, Write: p.what, Nth: p.nth})
}

// write adds plans for a single write by the controller. A write that changed nothing is only
// suitable for rejection.
func (m *planner) write(p *passed, replicas int) {
	line := m.byRevision[p.rev]
	if line != nil || deletes(p.info.Verb) {
		m.at(1, p, died, "")
		m.at(2, p, refused, carriedOut)
		m.at(3, p, died, "answered")
		m.at(3, p, late, "")
		if replicas > 1 && canPause {
			m.at(1, p, zombie, "")
		}
	}
	if line != nil {
		m.at(1, p, past, "")
		m.further(p)
	}
	m.at(3, p, refused, "500")
	m.at(4, p, refused, "429")
	m.at(4, p, refused, "503")
	if p.info.Verb == "delete" {
		m.at(4, p, held, "")
	}
	if of := p.info.Verb + " " + resourceOf(p) + "/" + p.info.Subresource; !m.kinds[of] {
		m.kinds[of] = true
		m.at(4, p, refused, webhookDown)
		m.at(4, p, refused, policySays)
		if p.info.Verb == "create" && p.info.Namespace != "" && p.info.Subresource == "" {
			m.at(4, p, refused, quotaFull)
		}
	}
	if p.info.Verb == "update" || p.info.Verb == "patch" {
		m.at(3, p, refused, "409")
		if m.makerOf(keyOf(p.info.Group, p.info.Resource, p.info.Namespace, p.info.Name)) == byUser {
			m.at(2, p, edited, "")
		}
	}
}

// further adds plans for the user's changes since the controller's previous write. They show the
// state before these changes.
func (m *planner) further(p *passed) {
	count, since := map[string]int{}, []Plan(nil)
	for i := range m.lines {
		line := &m.lines[i]
		key := aliasOf(line)
		count[key]++
		switch {
		case line.Revision >= p.rev:
			m.plans = append(m.plans, since...)
			return
		case whoWrote(line) == byController:
			since = nil
		case whoWrote(line) == byUser && m.counts(line):
			since = append(since, Plan{Kind: past, Write: p.what, Nth: p.nth, Object: key, Change: count[key], rank: 3})
		}
	}
}

// changes adds plans that hide a change from the controller.
func (m *planner) changes() {
	count, total := map[string]int{}, map[string]int{}
	for i := range m.lines {
		total[aliasOf(&m.lines[i])]++
	}
	for i := range m.lines {
		line := &m.lines[i]
		key := aliasOf(line)
		if count[key]++; !m.counts(line) || !m.watches(line) {
			continue
		}
		at := Plan{Kind: unseen, Object: key, Change: count[key]}
		if count[key] < total[key] {
			rank := 2
			if whoWrote(line) == byController {
				rank = 4
			}
			m.add(rank, at)
		}
		at.Kind = cut
		m.add(4, at)
	}
}

// watched adds plans for each type that the controller watches. Either all events are delayed, or
// the watch only sends bookmarks for some time.
func (m *planner) watched() {
	var known, marked []string
	for i := range m.requests {
		p := &m.requests[i]
		resource := resourceOf(p)
		if p.info.Verb == "watch" && !slices.Contains(known, resource) {
			known = append(known, resource)
			m.add(3, Plan{Kind: slow, Resource: resource})
		}
		if p.info.Verb == "watch" && strings.Contains(p.query, "allowWatchBookmarks=true") && !slices.Contains(marked, resource) {
			marked = append(marked, resource)
			m.add(4, Plan{Kind: bookmarks, Resource: resource})
		}
	}
}

// made adds plans for objects created by the controller and for namespaces created by the workload.
func (m *planner) made() {
	for _, key := range m.order() {
		last := m.last(key)
		switch {
		case last.Type == "DELETED" || !m.counts(last):
		case last.Resource == "namespaces" && m.makerOf(key) == byUser:
			m.add(3, Plan{Kind: ending, Object: key})
		case m.makerOf(key) == byController && m.alone(key):
			m.add(2, Plan{Kind: deleted, Object: m.alias(key)})
			m.add(4, Plan{Kind: held, Object: m.alias(key)})
			if gjson.GetBytes(last.New, "metadata.labels").Exists() {
				m.add(5, Plan{Kind: unlabelled, Object: m.alias(key)})
			}
		}
	}
}

// remade adds the plans for objects that users have created and the controller watches. There are
// no such plans if users also write to objects created by the controller (for example, instead of a
// kubelet), because these writes would have to be repeated.
func (m *planner) remade() {
	for _, key := range m.order() {
		if m.makerOf(key) == byController && !m.alone(key) {
			return
		}
	}
	for _, key := range m.order() {
		last, made := m.last(key), m.madeByUser(key)
		if made == nil || !m.counts(last) || !m.watches(last) || last.Resource == "namespaces" {
			continue
		}
		var during []*passed // the controller's writes during the lifetime of the object
		for i := range m.requests {
			p := &m.requests[i]
			if p.writes && p.code < 300 && p.rev > made.Revision && (last.Type != "DELETED" || p.rev < last.Revision) {
				during = append(during, p)
			}
		}
		if len(during) > 0 {
			first, end := during[0], during[len(during)-1]
			for _, p := range slices.Compact([]*passed{first, end}) {
				m.add(4, Plan{Kind: remade, Write: p.what, Nth: p.nth, Object: m.alias(key)})
			}
		}
	}
}

// madeByUser returns the line by which a user created an object, or nil.
func (m *planner) madeByUser(key string) *history.Line {
	for i := range m.lines {
		if line := &m.lines[i]; keyOfLine(line) == key && line.Type == "ADDED" && whoWrote(line) == byUser {
			return line
		}
	}
	return nil
}

// alone reports whether there are no writes to the object by users. The controller would not be
// able to restore a user's changes.
func (m *planner) alone(key string) bool {
	return !slices.ContainsFunc(m.lines, func(line history.Line) bool { return keyOfLine(&line) == key && whoWrote(&line) == byUser })
}

func (m *planner) counts(line *history.Line) bool {
	return counts(m.ignored, line.Group, line.Resource)
}

// watches reports whether the controller watches the type of a line's object.
func (m *planner) watches(line *history.Line) bool {
	return slices.ContainsFunc(m.requests, func(p passed) bool {
		return p.info.Verb == "watch" && p.info.Resource == line.Resource && p.info.Group == line.Group
	})
}

// order returns the keys of the changed objects in the order of their first change.
func (m *planner) order() []string {
	var keys []string
	for i := range m.lines {
		if key := keyOfLine(&m.lines[i]); !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}
