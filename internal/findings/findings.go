// Package findings notices controllers that go in circles: two that undo each other's work, and one that asks, writes or fails the same thing
// again and again.
//
//	d := findings.New(func(f findings.Finding) { log(f) }) // told when one begins, and when it is over
//	d.Notice(rec, code, now) // of each request, at its end
//	go d.Run(ctx)            // sweeps now and then: what has not happened for a minute is over
//
//	kind      who       what                                              told from
//	--------  --------  ------------------------------------------------  -----------------------------------------------------------
//	fight     two       set the same path of an object back and forth     6 times, none more than a minute after the one before;
//	                                                                      20 if only their addresses tell them apart
//	recreate  two       one creates what the other deletes                5 times, likewise
//	no-op     one       writes what is there, to objects where it         10 in 10 seconds, three times in a row
//	                    did so within the last minute
//	conflict  one       is answered 409 for the same object               10 in 10 seconds, three times in a row
//	read      one       gets the same object, or lists with the same      50 (a list: 20) in 10 seconds, three times in a row
//	                    selectors
//	watch     one       opens the same watch, which ends within 5         10 in 10 seconds, three times in a row
//	                    seconds
//
// Who is a user, a user agent and a field manager together; in fights the address counts, too. What is counted (loops.go) lives in tables of a fixed
// size (table.go), where what happens seldom gives way to what happens often; strings are kept of what is close to a finding, and of nothing else.
// Whether two writers set a path back and forth (fight.go) takes a comparison of whole objects: it is made of those alone that two have written in
// turns, and of so many bytes a second at most.
//
// Invariants: memory and the time of each call are bounded, whatever comes; Notice is safe for concurrent use; there is no clock here but the
// times of the requests and of Sweep.
package findings

import (
	"context"
	"encoding/json"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"time"
)

// Kinds of findings.
const (
	Fight    = "fight"
	Recreate = "recreate"
	NoOp     = "no-op"
	Conflict = "conflict"
	Read     = "read"
	Watch    = "watch"
)

// kinds is all of them.
var kinds = []string{Fight, Recreate, NoOp, Conflict, Read, Watch}

const (
	window     = 10 // seconds in which a loop is counted
	hotWindows = 3  // in a row make a finding
	shortWatch = 5 * time.Second
	calm       = time.Minute // after which something is over, or not connected with what was before

	activeMax   = 64  // findings at a time
	pastMax     = 64  // that are over and still shown
	examplesMax = 3   // of revisions, and of objects
	textMax     = 160 // bytes of a string that is kept

	sweepEvery = 10 * time.Second
)

// Who asks: a user, the program as it calls itself, and the manager of the fields that it writes.
type Who struct {
	User    string `json:"user"`
	Agent   string `json:"agent,omitempty"`
	Manager string `json:"manager,omitempty"` // where a request says; else it follows from the agent
}

// An outcome is what there is to know of one that is over.
type outcome struct {
	at   time.Time
	took time.Duration
	who  Who
	from string // the address that it came from; "": unknown

	verb                                          string // get list watch create update patch delete; others are not looked at
	group, resource, subresource, namespace, name string
	selector                                      string // what tells a list or watch from others of the same resource
	code                                          int    // of the answer
	sent                                          int64  // the revision that a client believed to be the newest; 0 when it did not say

	wrote    bool   // it came as far as the store, and was no dry run
	old, new int64  // revisions before and after; equal when the write changed nothing; 0 before a create, and after a deletion
	was, is  []byte // the stored object before and after an update; nobody changes them
}

// A Finding is one circle, with its evidence.
type Finding struct {
	Kind        string            `json:"kind"`
	Since       time.Time         `json:"since"`
	Last        time.Time         `json:"last"`
	Ended       *time.Time        `json:"ended,omitempty"`
	Times       int64             `json:"times"`
	Who         []Who             `json:"who"`
	From        []string          `json:"from,omitempty"` // the addresses of two that are one but for these
	Verb        string            `json:"verb"`
	Group       string            `json:"group"`
	Namespace   string            `json:"namespace,omitempty"` // "" for several, all or none
	Resource    string            `json:"resource"`
	Subresource string            `json:"subresource,omitempty"`
	Selector    string            `json:"selector,omitempty"`
	Objects     []string          `json:"objects,omitempty"` // NAMESPACE/NAME, at most three
	Paths       []string          `json:"paths,omitempty"`   // that are set back and forth
	Values      []json.RawMessage `json:"values,omitempty"`  // the two values of the first of them, in the order of Who and From: each sets its own
	Revisions   []int64           `json:"revisions,omitempty"`

	revs revisions // what becomes Revisions
}

// A Detector finds. Make it with New.
type Detector struct {
	told func(Finding)
	seed maphash.Seed

	mu       sync.Mutex // guards what follows; never held while objects are compared, or while told is called
	loops    table[loop]
	objects  table[object]
	suspects map[uint64]*suspect // objects that two write in turns, by their hash
	allowed  float64             // bytes that may be compared now
	refilled time.Time
	active   []*Finding
	past     []Finding // the last one first
}

// New returns a detector that tells of each finding when it begins, and again, with Ended set, when it is over.
func New(told func(Finding)) *Detector {
	return &Detector{told: told, seed: maphash.MakeSeed(), loops: newTable[loop](loopSets), objects: newTable[object](objectSets), suspects: map[uint64]*suspect{}}
}

// hash tells strings apart, also from others that read the same when they are put together.
func (d *Detector) hash(parts ...string) uint64 {
	var h maphash.Hash
	h.SetSeed(d.seed)
	for _, part := range parts {
		h.WriteString(part)
		h.WriteByte(0xff) // in no UTF-8
	}
	return h.Sum64()
}

// ---- Findings: they begin, go on and end

// Evidence is what was noted before it came to a finding.
type evidence struct {
	since time.Time
	times int64
	revs  revisions
}

// Revisions are the last ones, from the oldest; 0 is none.
type revisions [examplesMax]int64

// add adds the revision that a request wrote, or else spoke of.
func (rs *revisions) add(r *outcome) {
	rev := max(r.new, r.sent)
	if r.new == 0 && r.old != 0 {
		rev = r.old
	}
	if rev != 0 && rev != rs[examplesMax-1] {
		copy(rs[:], rs[1:])
		rs[examplesMax-1] = rev
	}
}

// beginLocked makes a finding of a request; nil when there are too many.
func (d *Detector) beginLocked(kind string, r *outcome, e evidence, others ...Who) *Finding {
	if len(d.active) >= activeMax {
		return nil
	}
	f := &Finding{Kind: kind, Since: e.since.UTC(), Last: r.at.UTC(), Times: e.times, Who: append([]Who{keptWho(r.who)}, others...), Verb: r.verb, Group: kept(r.group), Namespace: kept(r.namespace),
		Resource: kept(r.resource), Subresource: kept(r.subresource), Selector: kept(r.selector), revs: e.revs}
	f.add(r)
	d.active = append(d.active, f)
	return f
}

// add adds a request's evidence.
func (f *Finding) add(r *outcome) {
	f.revs.add(r)
	if f.Namespace != "" && f.Namespace != r.namespace {
		f.Namespace = ""
	}
	if len(f.Objects) == examplesMax || r.name == "" {
		return
	}
	name := r.name
	if r.namespace != "" {
		name = r.namespace + "/" + r.name
	}
	if name = kept(name); !slices.Contains(f.Objects, name) {
		f.Objects = append(f.Objects, name)
	}
}

// kept is a string of its own: one that came in a request would keep all of the request's head in memory.
func kept(text string) string {
	if len(text) > textMax {
		return strings.ToValidUTF8(text[:textMax], "") + "…"
	}
	return strings.Clone(text)
}

func keptWho(w Who) Who { return Who{kept(w.User), kept(w.Agent), kept(w.Manager)} }

// tell is called without the lock.
func (d *Detector) tell(news ...Finding) {
	for _, f := range news {
		d.told(f)
	}
}

// Sweep ends findings that have not been seen for a while, and forgets suspects.
func (d *Detector) Sweep(now time.Time) {
	d.mu.Lock()
	var over []Finding
	d.active = slices.DeleteFunc(d.active, func(f *Finding) bool {
		if now.Sub(f.Last) <= calm {
			return false
		}
		ended := now.UTC()
		f.Ended = &ended
		over = append(over, f.copy())
		return true
	})
	d.past = append(slices.Clone(over), d.past...)
	d.past = slices.Clip(d.past[:min(len(d.past), pastMax)])
	for key, s := range d.suspects {
		if now.Sub(s.last) > calm {
			delete(d.suspects, key)
		}
	}
	d.mu.Unlock()
	d.tell(over...)
}

// Run sweeps until ctx is done.
func (d *Detector) Run(ctx context.Context) {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			d.Sweep(now)
		}
	}
}

// list is what is found now, and after it what is over, the latest first.
func (d *Detector) list() []Finding {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := make([]Finding, 0, len(d.active)+len(d.past))
	for i := len(d.active) - 1; i >= 0; i-- {
		list = append(list, d.active[i].copy())
	}
	return append(list, d.past...)
}

// counts counts what is found now, by kind.
func (d *Detector) counts() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	counts := make(map[string]int, len(kinds))
	for _, kind := range kinds {
		counts[kind] = 0
	}
	for _, f := range d.active {
		counts[f.Kind]++
	}
	return counts
}

// copy shares nothing that changes.
func (f *Finding) copy() Finding {
	c := *f
	c.Objects, c.Paths = slices.Clone(f.Objects), slices.Clone(f.Paths)
	c.Revisions = slices.DeleteFunc(slices.Clone(f.revs[:]), func(rev int64) bool { return rev == 0 })
	c.Values, c.Who, c.From = slices.Clone(f.Values), slices.Clone(f.Who), slices.Clone(f.From)
	return c
}

// A suspect is an object that two write in turns.
type suspect struct {
	last  time.Time
	paths map[string]*path
	found *Finding
}

// A path is what became of one place in the object.
type path struct {
	who      uint64
	from     uint64 // who, and where from,
	before   uint64 // and the same of the change before
	address  string
	old, new uint64 // hashes of the values
	by       Who
	flips    int64
	alike    bool // the last two are one but for their addresses
	revs     revisions
	flipped  time.Time
	since    time.Time
}

// A loop is one who does one thing.
type loop struct {
	window second // number of the window that count is of
	count  uint32
	streak uint32 // hot windows in a row before it
	total  uint32 // in the streak
	revs   revisions
	found  *Finding
}

// An object is what is remembered of one that was written. Who is a hash, folded.
type object struct {
	writer, idler, deleter uint32 // who changed it last, wrote without changing it, deleted it
	from, turns            uint32 // where that one was, and how often it was elsewhere than before
	switches, returned     uint32 // how often it was another writer than before, and another who created it than had deleted it
	switched, turned       second
	idled                  second
	gone, came             second
	recreated              *pair // nil until it has come again
}

// A pair is an object that one deletes and another creates.
type pair struct {
	deleter Who
	since   time.Time
	revs    revisions
	found   *Finding
}
