// Package findings detects controllers that work in circles: two clients that undo each other's
// changes, and a client that repeats the same read, write or failure.
//
//	d := findings.New(func(f findings.Finding) { log(f) }) // called when a finding begins and when it ends
//	d.Notice(rec, code, now) // for each request, at its end
//	go d.Run(ctx)            // sweeps periodically: a finding not seen for a minute has ended
//
//	kind      clients   activity                                          detected after
//	--------  --------  ------------------------------------------------  -----------------------------------------------------------
//	fight     two       set the same path of an object back and forth     6 times, with at most a minute between two of them;
//	                                                                      20 if the two differ only in their address
//	recreate  two       one creates the object that the other deletes     5 times, with at most a minute between two of them
//	no-op     one       writes without a change to objects where it       10 in 10 seconds, three times in a row
//	                    did so within the last minute
//	conflict  one       receives a 409 for the same object                10 in 10 seconds, three times in a row
//	read      one       gets the same object, or lists with the same      50 (a list: 20) in 10 seconds, three times in a row
//	                    selectors
//	watch     one       opens the same watch, which ends within 5         10 in 10 seconds, three times in a row
//	                    seconds
//
// A client is identified by user, user agent and field manager together. In fights the address
// counts as well. Requests are counted (loops.go) in tables of fixed size (table.go), where
// frequent events replace rare ones. Strings are stored only for activities that are close to a
// finding. To detect a fight (fight.go), whole objects must be compared. This is done only for
// objects that two clients have written in turns, and only for a limited number of bytes per
// second.
//
// Invariants: memory and the time of each call are bounded for any input. Notice is safe for
// concurrent use. The package reads no clock except for the ticks of Run; all other times come from
// its callers.
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

// kinds lists all kinds.
var kinds = []string{Fight, Recreate, NoOp, Conflict, Read, Watch}

const (
	window     = 10 // length of a counting window in seconds
	hotWindows = 3  // consecutive windows that make a finding
	shortWatch = 5 * time.Second
	calm       = time.Minute // after this time a finding has ended, and earlier events are unrelated

	activeMax   = 64  // maximum number of current findings
	pastMax     = 64  // maximum number of ended findings that are still shown
	examplesMax = 3   // maximum number of revisions, and of objects
	textMax     = 160 // maximum length in bytes of a stored string

	sweepEvery = 10 * time.Second
)

// Who identifies a client by its user, its user agent, and the manager of the fields that it
// writes.
type Who struct {
	User  string `json:"user"`
	Agent string `json:"agent,omitempty"`
	// Manager is empty unless the request named it. Otherwise it follows from the agent.
	Manager string `json:"manager,omitempty"`
}

// An outcome describes a finished request.
type outcome struct {
	at   time.Time
	took time.Duration
	who  Who
	from string // address of the client; "" if unknown

	// get, list, watch, create, update, patch or delete; other verbs are ignored
	verb                                          string
	group, resource, subresource, namespace, name string
	// distinguishes a list or watch from others of the same resource
	selector string
	// status code of the response
	code int
	sent int64 // the revision that the client sent as the newest; 0 if it sent none

	// wrote is set if the request reached the store and was not a dry run.
	wrote bool
	// The revisions before and after the write. They are equal if the write changed nothing. old is
	// 0 for a create, and new is 0 after a deletion.
	old, new int64
	was, is  []byte // the stored object before and after an update; must not be modified
}

// A Finding describes one circle and its evidence.
type Finding struct {
	Kind  string     `json:"kind"`
	Since time.Time  `json:"since"`
	Last  time.Time  `json:"last"`
	Ended *time.Time `json:"ended,omitempty"`
	Times int64      `json:"times"`
	Who   []Who      `json:"who"`
	// From holds the two addresses if the clients differ only in them.
	From  []string `json:"from,omitempty"`
	Verb  string   `json:"verb"`
	Group string   `json:"group"`
	// Namespace is "" if the objects are in several namespaces or in none.
	Namespace   string   `json:"namespace,omitempty"`
	Resource    string   `json:"resource"`
	Subresource string   `json:"subresource,omitempty"`
	Selector    string   `json:"selector,omitempty"`
	Objects     []string `json:"objects,omitempty"` // NAMESPACE/NAME, at most three
	Paths       []string `json:"paths,omitempty"`   // the paths that are set back and forth
	// Values are the two values of the first path, in the order of Who and From. Each client sets
	// its own value.
	Values    []json.RawMessage `json:"values,omitempty"`
	Revisions []int64           `json:"revisions,omitempty"`

	revs revisions // the source of Revisions
}

// A Detector detects findings. Create it with New.
type Detector struct {
	told func(Finding)
	seed maphash.Seed

	mu       sync.Mutex // guards the fields below; not held while objects are compared or told is called
	loops    table[loop]
	objects  table[object]
	suspects map[uint64]*suspect // objects that two clients write in turns, by hash
	allowed  float64             // number of bytes that may be compared now
	refilled time.Time
	active   []*Finding
	past     []Finding // newest first
}

// New returns a detector that calls told for each finding when it begins, and again, with Ended
// set, when it ends.
func New(told func(Finding)) *Detector {
	return &Detector{told: told, seed: maphash.MakeSeed(), loops: newTable[loop](loopSets), objects: newTable[object](objectSets), suspects: map[uint64]*suspect{}}
}

// hash returns a hash of the strings that depends on where each of them ends.
func (d *Detector) hash(parts ...string) uint64 {
	var h maphash.Hash
	h.SetSeed(d.seed)
	for _, part := range parts {
		h.WriteString(part)
		h.WriteByte(0xff) // does not occur in UTF-8
	}
	return h.Sum64()
}

// ---- The begin and end of findings

// Evidence is the data collected before a finding begins.
type evidence struct {
	since time.Time
	times int64
	revs  revisions
}

// Revisions are the latest revisions, oldest first. 0 means none.
type revisions [examplesMax]int64

// add adds the revision that the request wrote, or otherwise the revision that it referred to.
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

// beginLocked starts a finding with a request. It returns nil if there are too many findings. The
// caller must hold mu.
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

// add adds the evidence of a request.
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

// kept returns a copy of the string, cut to textMax. Without a copy, the string would keep all
// headers of its request in memory.
func kept(text string) string {
	if len(text) > textMax {
		return strings.ToValidUTF8(text[:textMax], "") + "…"
	}
	return strings.Clone(text)
}

func keptWho(w Who) Who { return Who{kept(w.User), kept(w.Agent), kept(w.Manager)} }

// tell calls told for each finding. The caller must not hold mu.
func (d *Detector) tell(news ...Finding) {
	for _, f := range news {
		d.told(f)
	}
}

// Sweep ends findings that have not been seen for a while, and removes old suspects.
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

// Run calls Sweep periodically until ctx is done.
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

// list returns the current findings, followed by the ended ones. Each part is in order from newest
// to oldest.
func (d *Detector) list() []Finding {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := make([]Finding, 0, len(d.active)+len(d.past))
	for i := len(d.active) - 1; i >= 0; i-- {
		list = append(list, d.active[i].copy())
	}
	return append(list, d.past...)
}

// counts returns the number of current findings by kind.
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

// copy returns a copy that shares no data that may change.
func (f *Finding) copy() Finding {
	c := *f
	c.Objects, c.Paths = slices.Clone(f.Objects), slices.Clone(f.Paths)
	c.Revisions = slices.DeleteFunc(slices.Clone(f.revs[:]), func(rev int64) bool { return rev == 0 })
	c.Values, c.Who, c.From = slices.Clone(f.Values), slices.Clone(f.Who), slices.Clone(f.From)
	return c
}

// A suspect is an object that two clients write in turns.
type suspect struct {
	last  time.Time
	paths map[string]*path
	found *Finding
}

// A path records the last change of one path of an object.
type path struct {
	who      uint64
	from     uint64 // who and address of the last change
	before   uint64 // who and address of the change before it
	address  string
	old, new uint64 // hashes of the old and new value
	by       Who
	flips    int64
	alike    bool // the authors of the last two changes differ only in their address
	revs     revisions
	flipped  time.Time
	since    time.Time
}

// A loop counts one repeated activity of one client.
type loop struct {
	window second // number of the window that count belongs to
	count  uint32
	streak uint32 // consecutive hot windows before this one
	total  uint32 // number of requests in the streak
	revs   revisions
	found  *Finding
}

// An object records the recent writes of an object. Clients are represented by shortened hashes.
type object struct {
	// The client that last changed the object, that last wrote it without a change, and that
	// deleted it.
	writer, idler, deleter uint32
	// The address of the last writer, and how often it differed from the one before.
	from, turns uint32
	// How often the writer changed, and how often a client created the object after another had
	// deleted it.
	switches, returned uint32
	switched, turned   second
	idled              second
	gone, came         second
	recreated          *pair // nil until the object is created again
}

// A pair is an object that one client deletes and another creates.
type pair struct {
	deleter Who
	since   time.Time
	revs    revisions
	found   *Finding
}
