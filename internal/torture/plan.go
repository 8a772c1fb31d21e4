package torture

// This file makes plans of what plain runs have shown. A plan is one perturbation at one point, and points are named so that they are found again
// in another run: the nth time that the controller makes a certain write, or the nth change of a certain object.
//
//	rank  plan                                     points
//	   1  died in the middle                       each write that changed something
//	      sees the past                            each write: after it, the controller starts again and sees what was before it
//	      paused past its lease, and woken         each write, where there are two replicas
//	   2  its write was carried out, it is told no each write: 504
//	      somebody else edits what it writes       each write to an object that a user has made
//	      did not see it                           each change that is followed by another of the same object
//	      somebody deletes what it has made        each object that it alone has written, and that stays
//	   3  was told no: 409, 500                    each write
//	      sees the past, further back              each change by a user
//	      was slow                                 each type that it watches; each answer
//	      the namespace goes                       each namespace of the workload
//	   4  429, 503; its watch ended                each write; each change
//	      bookmarks alone for a while               each type that it watches
//	      a webhook is down, a policy forbids       each kind of write, the first time
//	      a quota is full                           each kind of object that it makes, the first time
//	      somebody deletes it, and makes it again   each object of a user's that is watched: at the first write after it, and at the last
//	      a finalizer of somebody else's holds it   each deletion of the controller's; each object that it alone has written, and that stays
//	   5  its labels are off for a while            each of these that has labels
//
// Lower ranks come first, and within a rank the seed decides: who has little time gets a sample of what finds most.

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"

	"github.com/tidwall/gjson"

	"apilet/internal/history"
)

// What a plan does.
const (
	died    = "died"    // in the middle: killed when a write was committed, and started again
	past    = "past"    // killed likewise; what it lists then is of an earlier revision
	refused = "refused" // a write is answered with an error
	unseen  = "unseen"  // a change is not seen: the watch is cut before it, and goes on with a list after the next one
	cut     = "cut"     // the watch is cut before a change, and cannot be resumed: 410
	slow    = "slow"    // one type's events come later than those of others
	late    = "late"    // an answer comes late
	edited  = "edited"  // somebody else edits the object before the controller does
	deleted = "deleted" // somebody deletes what the controller has made
	ending  = "ending"  // the namespace goes
	held    = "held"    // what is deleted, by the controller or in the end, is held by somebody else's finalizer for a while
	remade  = "remade"  // somebody deletes a user's object in the middle, and makes it again
	zombie  = "zombie"  // a replica is paused when a write was committed, and woken when another one leads
)

const (
	bookmarks  = "bookmarks"  // a watch has nothing to say but bookmarks for a while, and ends
	unlabelled = "unlabelled" // somebody takes all labels off what the controller has made, and puts them back
)

var kinds = []string{died, past, refused, unseen, cut, slow, late, edited, deleted, ending, held, remade, bookmarks, unlabelled, zombie}

// carriedOut is the detail of a refusal of what was done nevertheless.
const carriedOut = "504, carried out"

// A Plan is one perturbation. Which fields count depends on its kind.
type Plan struct {
	Kind     string `json:"kind"`
	Detail   string `json:"detail,omitempty"`   // refused: with what; died: "answered" if the controller had the answer
	Write    string `json:"write,omitempty"`    // the controller's write at which it happens
	Nth      int    `json:"nth,omitempty"`      // time of that write, from 1
	Object   string `json:"object,omitempty"`   // of which a change is the point, or which is deleted
	Change   int    `json:"change,omitempty"`   // of that object, from 1
	Resource string `json:"resource,omitempty"` // slow: of which type
	rank     int
}

// at names the write.
func (p Plan) at() string {
	if p.Nth > 1 {
		return fmt.Sprintf("%s (time %d)", p.Write, p.Nth)
	}
	return p.Write
}

// String says what is done, in a line.
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

// makePlans makes all plans that a plain run gives reason for, the most telling first.
func makePlans(o *outcome, replicas int, without []string, seed uint64) []Plan {
	plans := slices.DeleteFunc(collectPlans(o, replicas), func(p Plan) bool { return slices.Contains(without, p.Kind) })
	random := rand.New(rand.NewPCG(seed, seed))
	random.Shuffle(len(plans), func(i, j int) { plans[i], plans[j] = plans[j], plans[i] })
	sort.SliceStable(plans, func(i, j int) bool { return plans[i].rank < plans[j].rank })
	return plans
}

// collectPlans makes them in the order of their points.
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
	kinds      map[string]bool // of writes that were seen
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

// write is for one write of the controller's. What changed nothing can be refused, and that is all.
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

// further is for the changes by users since the controller's write before: to see what was before these.
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

// changes is for what controllers see, or do not.
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

// watched is for types whose events come late.
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

// made is for what the controller has made, and for the workload's namespaces.
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

// remade is for what users have made, and the controller watches. Where users write to what it makes, as in a kubelet's place, they would have to do so
// again: there are no such plans then.
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
		var during []*passed // the controller's writes while it was there
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

// madeByUser is the line by which a user has made an object; nil when none has.
func (m *planner) madeByUser(key string) *history.Line {
	for i := range m.lines {
		if line := &m.lines[i]; keyOfLine(line) == key && line.Type == "ADDED" && whoWrote(line) == byUser {
			return line
		}
	}
	return nil
}

// alone tells whether no user has written to an object: what a user has, the controller cannot bring back.
func (m *planner) alone(key string) bool {
	return !slices.ContainsFunc(m.lines, func(line history.Line) bool { return keyOfLine(&line) == key && whoWrote(&line) == byUser })
}

func (m *planner) counts(line *history.Line) bool {
	return counts(m.ignored, line.Group, line.Resource)
}

// watches tells whether the controller watches what a line is about.
func (m *planner) watches(line *history.Line) bool {
	return slices.ContainsFunc(m.requests, func(p passed) bool {
		return p.info.Verb == "watch" && p.info.Resource == line.Resource && p.info.Group == line.Group
	})
}

// order is the objects that have changed, in the order of their first change.
func (m *planner) order() []string {
	var keys []string
	for i := range m.lines {
		if key := keyOfLine(&m.lines[i]); !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}
