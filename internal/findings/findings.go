// Package findings detects misbehaving controllers, such as two clients that keep undoing each
// other's changes, or a client that keeps repeating the same read, write or failure.
//
//	d := findings.New(func(f findings.Finding) { log(f) }) // called when a finding begins and when it ends
//	d.RecordRequest(rec, code, now) // for each request, at its end
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
// Invariants: each call uses a limited amount of memory and time. RecordRequest is safe for
// concurrent use. Apart from the ticker in Run, all times are passed in by the caller.
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
	examplesMax = 3   // maximum number of example revisions and objects
	textMax     = 160 // maximum length in bytes of a stored string

	sweepEvery = 10 * time.Second
)

// A Client identifies a client by its user name, its user agent and its field manager.
type Client struct {
	User  string `json:"user"`
	Agent string `json:"agent,omitempty"`
	// Manager is empty unless the request named it. Otherwise it follows from the agent.
	Manager string `json:"manager,omitempty"`
}

// An outcome describes a finished request.
type outcome struct {
	at     time.Time
	took   time.Duration
	client Client
	from   string // address of the client; "" if unknown

	// get, list, watch, create, update, patch or delete; other verbs are ignored
	verb                                          string
	group, resource, subresource, namespace, name string
	// The selectors of a list or watch.
	selector string
	// status code of the response
	code int
	sent int64 // the resource version sent by the client, or zero

	// wrote is set if the request reached the store and was not a dry run.
	wrote bool
	// The revisions before and after the write. They are equal if the write changed nothing. old is
	// 0 for a create, and new is 0 after a deletion.
	old, new int64
	was, is  []byte // the stored object before and after an update; must not be modified
}

// A Finding describes detected misbehavior and contains the evidence for it.
type Finding struct {
	Kind  string     `json:"kind"`
	Since time.Time  `json:"since"`
	Last  time.Time  `json:"last"`
	Ended *time.Time `json:"ended,omitempty"`
	Times int64      `json:"times"`
	Who   []Client   `json:"who"`
	// From holds the two addresses if the clients differ only in them.
	From  []string `json:"from,omitempty"`
	Verb  string   `json:"verb"`
	Group string   `json:"group"`
	// Namespace is empty if the objects are not all in the same namespace, or if they are
	// cluster-scoped.
	Namespace   string   `json:"namespace,omitempty"`
	Resource    string   `json:"resource"`
	Subresource string   `json:"subresource,omitempty"`
	Selector    string   `json:"selector,omitempty"`
	Objects     []string `json:"objects,omitempty"` // NAMESPACE/NAME, at most three
	Paths       []string `json:"paths,omitempty"`   // paths that are repeatedly changed back and forth
	// Values contains the two values of the first path in the same order as Who and From. Each
	// client sets its own value.
	Values    []json.RawMessage `json:"values,omitempty"`
	Revisions []int64           `json:"revisions,omitempty"`

	revs revisions // the source of Revisions
}

// A Detector detects findings. Create it with New.
type Detector struct {
	report func(Finding)
	seed   maphash.Seed

	// Protects the following fields. It must not be held while comparing objects or calling told.
	mu       sync.Mutex
	loops    table[loop]
	objects  table[object]
	suspects map[uint64]*suspect // objects with alternating writes by two clients, indexed by hash
	allowed  float64             // remaining number of bytes that may be compared
	refilled time.Time
	active   []*Finding
	past     []Finding // newest first
}

// New returns a detector that calls told when a finding begins. It calls told again when the
// finding has ended, with the field Ended set.
func New(report func(Finding)) *Detector {
	return &Detector{report: report, seed: maphash.MakeSeed(), loops: newTable[loop](loopSets), objects: newTable[object](objectSets), suspects: map[uint64]*suspect{}}
}

// hash returns a hash of the given list of strings.
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

// Revisions contains the latest revisions in ascending order, with zeros for unused elements.
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
func (d *Detector) beginLocked(kind string, r *outcome, e evidence, others ...Client) *Finding {
	if len(d.active) >= activeMax {
		return nil
	}
	f := &Finding{Kind: kind, Since: e.since.UTC(), Last: r.at.UTC(), Times: e.times, Who: append([]Client{boundedClient(r.client)}, others...), Verb: r.verb, Group: boundedCopy(r.group), Namespace: boundedCopy(r.namespace),
		Resource: boundedCopy(r.resource), Subresource: boundedCopy(r.subresource), Selector: boundedCopy(r.selector), revs: e.revs}
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
	if name = boundedCopy(name); !slices.Contains(f.Objects, name) {
		f.Objects = append(f.Objects, name)
	}
}

// boundedCopy returns a copy of the string, cut to textMax. A copy is necessary because a substring
// would prevent the headers of the request from being freed.
func boundedCopy(text string) string {
	if len(text) > textMax {
		return strings.ToValidUTF8(text[:textMax], "") + "…"
	}
	return strings.Clone(text)
}

func boundedClient(w Client) Client {
	return Client{boundedCopy(w.User), boundedCopy(w.Agent), boundedCopy(w.Manager)}
}

// reportAll calls told for each finding. The caller must not hold mu.
func (d *Detector) reportAll(news ...Finding) {
	for _, f := range news {
		d.report(f)
	}
}

// Sweep ends all findings that have not been observed for a while. It also removes old suspects.
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
	d.reportAll(over...)
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

// copy returns a deep copy of all data that may be modified.
func (f *Finding) copy() Finding {
	c := *f
	c.Objects, c.Paths = slices.Clone(f.Objects), slices.Clone(f.Paths)
	c.Revisions = slices.DeleteFunc(slices.Clone(f.revs[:]), func(rev int64) bool { return rev == 0 })
	c.Values, c.Who, c.From = slices.Clone(f.Values), slices.Clone(f.Who), slices.Clone(f.From)
	return c
}

// A suspect is an object with alternating writes by two clients.
type suspect struct {
	last  time.Time
	paths map[string]*path
	found *Finding
}

// A path stores the last change to a single path within an object.
type path struct {
	who      uint64
	from     uint64 // client and address of the last change
	before   uint64 // client and address of the previous change
	address  string
	old, new uint64 // hashes of the old and new value
	by       Client
	flips    int64
	alike    bool // set if the last two clients only differ in their address
	revs     revisions
	flipped  time.Time
	since    time.Time
}

// A loop counts how often a client repeats a request.
type loop struct {
	window second // number of the window that count belongs to
	count  uint32
	streak uint32 // consecutive hot windows before this one
	total  uint32 // number of requests in the streak
	revs   revisions
	found  *Finding
}

// An object keeps track of the recent writes to a single object. Clients are represented by
// shortened hashes.
type object struct {
	// writer is the last client that changed the object. idler is the last client that wrote it
	// without a change. deleter is the last client that deleted it.
	writer, idler, deleter uint32
	// from is the address of the last writer. turns is the number of times that the address has
	// changed.
	from, turns uint32
	// switches is the number of times that the writer has changed. returned is the number of times
	// that the object was deleted by one client and then created by another.
	switches, returned uint32
	switched, turned   second
	idled              second
	gone, came         second
	recreated          *pair // nil until the object is created again
}

// A pair represents a client that deletes an object and another client that creates it again.
type pair struct {
	deleter Client
	since   time.Time
	revs    revisions
	found   *Finding
}
