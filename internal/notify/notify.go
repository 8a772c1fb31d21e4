// Package notify wakes the followers of the store's log. A follower is only woken up by events that
// may match its interest.
//
//	n := notify.New(st)
//	go n.Run(stopping)
//	defer n.Close()
//
//	sub := n.Subscribe(notify.Interest{Resource: "//pods/", Span: "//pods/default/"})
//	defer sub.Close()
//	for {
//		pos = readTheLogFrom(pos) // everything up to now
//		sub.MarkIdle(pos)
//		<-sub.C
//		pos = max(pos, sub.QuietRevision()) // earlier events do not match
//	}
//
// It has the same purpose for watches as the watcher index of kube-apiserver's cacher
// (k8s.io/apiserver/pkg/storage/cacher: scopes and trigger values). The cacher puts each event into
// the queues of all matching watchers. This package does not queue events. One goroutine follows
// the log for all subscriptions, looks up the matching subscriptions in an index, and wakes them.
// The woken follower then reads the log. For example, assume three followers of pods:
//
//	interest                           index term
//	all of namespace a                 span //pods/a/
//	the pod x of namespace a           span //pods/a/x
//	all pods with spec.nodeName n1     field spec.nodeName = n1
//
//	event: //pods/a/y, spec.nodeName from "" to n1, revision 90
//	wakes: //pods/, //pods/a/, //pods/a/y, spec.nodeName = "", spec.nodeName = n1: the first and the third
//
// Assume that the second follower has been asleep since revision 40. It is not woken. If an event
// of revision 95 wakes it later, it need not read the log from 40, because QuietRevision returns
// 94. If it has to report its progress after a minute, QuietRevision returns 90 or the current
// revision of the log, because no event up to there matches. Therefore, a watch without any events
// is not affected by other traffic or by compaction.
//
// An interest is indexed only by its most specific term. A wakeup does not guarantee a matching
// event, so followers have to match the events themselves.
//
// The package maintains these invariants:
//
//   - A matching event with a revision above the last QuietRevision wakes the subscription.
//   - Below or at the revision that QuietRevision returns, there is no matching event without an earlier
//     wakeup.
//   - A slow follower never blocks the notifier or other followers.
package notify

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tidwall/gjson"

	"apilet/internal/store"
)

// A Notifier follows the log for all subscriptions.
type Notifier struct {
	st    *store.Store
	log   *store.Follower // used by Run
	upTo  atomic.Int64    // revision up to which all subscriptions have been notified
	over  chan struct{}   // closed to stop Run
	ended chan struct{}   // closed when Run has returned

	mu     sync.Mutex // guards the following fields; never held while blocking
	spans  map[string]group
	facets map[string]*facets // indexed by resource
}

// A group contains the subscriptions with the same index term.
type group map[*Subscription]struct{}

// facets contains the subscriptions for a resource that select a label or a field.
type facets struct {
	labels map[[2]string]group         // indexed by label and value
	fields map[string]map[string]group // indexed by path and value
}

// An Interest selects the events that may concern a subscription.
type Interest struct {
	Resource string // prefix of the resource's keys
	// prefix of the selected keys, which may be a complete key
	Span string
	// Label selects objects that have this label with Value before or after the event. It is empty
	// for all objects.
	Label string
	// Field selects objects by a field instead, as a gjson path. It is empty for all objects.
	Field string
	Value string // value of the label or field
}

// A Subscription belongs to one follower. Its methods, except for Progress and Wake, must be called
// by a single goroutine.
type Subscription struct {
	C    chan struct{} // contains a token after a wakeup
	n    *Notifier
	want Interest
	// revision of the first event that caused a wakeup since the last QuietRevision, or 0
	due  atomic.Int64
	at   atomic.Int64 // the last revision that has been read
	busy atomic.Bool  // the follower is awake
}

// New returns a notifier that starts at the current revision.
func New(st *store.Store) *Notifier {
	n := &Notifier{st: st, log: st.Follow(store.Everything), over: make(chan struct{}), ended: make(chan struct{}),
		spans: map[string]group{}, facets: map[string]*facets{}}
	n.upTo.Store(st.Revision())
	n.log.From(n.upTo.Load())
	return n
}

// ---- The log's side

// Run follows the log until Close is called. It wakes all subscriptions when stopping is closed.
func (n *Notifier) Run(stopping <-chan struct{}) {
	defer close(n.ended)
	for {
		// must be called before reading the log, because a commit in between closes it
		wake := n.st.WakeChannel(store.Everything)
		n.catchUp()
		select {
		case <-wake:
		case <-stopping:
			n.each((*Subscription).Wake)
			stopping = nil
		case <-n.over:
			return
		}
	}
}

// Close stops Run and waits for it. It must be called before the store is closed.
func (n *Notifier) Close() {
	close(n.over)
	<-n.ended
}

// catchUp notifies subscriptions of all new events. If the log cannot be read, it wakes all
// subscriptions.
func (n *Notifier) catchUp() {
	for {
		newest := n.st.Revision()
		events, reset, err := n.log.Next(context.Background())
		if reset || err != nil {
			n.each((*Subscription).wakeAlways)
			n.log.From(newest)
		}
		if len(events) > 0 {
			n.notify(events)
		}
		if n.upTo.Store(n.log.Rev()); len(events) == 0 && !reset {
			return
		}
	}
}

func (n *Notifier) notify(events []store.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range events {
		n.notifyLocked(&events[i])
	}
}

// notifyLocked wakes all subscriptions that may be interested in the event.
func (n *Notifier) notifyLocked(ev *store.Event) {
	resource, namespace := prefixes(ev.Key)
	for _, span := range [...]string{resource, namespace, ev.Key} {
		n.spans[span].wake(ev)
	}
	f := n.facets[resource]
	if f == nil {
		return
	}
	f.wake(ev, ev.JSON)
	if ev.Prev != nil {
		f.wake(ev, ev.Prev)
	}
}

// wake wakes the subscriptions whose label or field matches a version of the object.
func (f *facets) wake(ev *store.Event, json []byte) {
	if len(f.labels) > 0 {
		gjson.GetBytes(json, "metadata.labels").ForEach(func(label, value gjson.Result) bool {
			f.labels[[2]string{label.String(), value.String()}].wake(ev)
			return true
		})
	}
	for path, values := range f.fields {
		values[gjson.GetBytes(json, path).String()].wake(ev)
	}
}

func (g group) wake(ev *store.Event) {
	for s := range g {
		if s.at.Load() < ev.Rev && strings.HasPrefix(ev.Key, s.want.Span) {
			s.due.CompareAndSwap(0, ev.Rev)
			s.Wake()
		}
	}
}

// each calls do for all subscriptions.
func (n *Notifier) each(do func(*Subscription)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, g := range n.spans {
		g.each(do)
	}
	for _, f := range n.facets {
		for _, g := range f.labels {
			g.each(do)
		}
		for _, values := range f.fields {
			for _, g := range values {
				g.each(do)
			}
		}
	}
}

func (g group) each(do func(*Subscription)) {
	for s := range g {
		do(s)
	}
}

// prefixes returns the parts of a key /group/resource/namespace/name that identify the resource and
// the namespace.
func prefixes(key string) (resource, namespace string) {
	end := 0
	for range 3 {
		end += strings.IndexByte(key[end:], '/') + 1
	}
	return key[:end], key[:end+strings.IndexByte(key[end:], '/')+1]
}

// ---- The followers' side

// Subscribe returns a subscription for all events from now on.
func (n *Notifier) Subscribe(want Interest) *Subscription {
	s := &Subscription{C: make(chan struct{}, 1), n: n, want: want}
	s.busy.Store(true)
	n.mu.Lock()
	defer n.mu.Unlock()
	f := n.facets[want.Resource]
	if f == nil && (want.Label != "" || want.Field != "") {
		f = &facets{labels: map[[2]string]group{}, fields: map[string]map[string]group{}}
		n.facets[want.Resource] = f
	}
	switch {
	case want.Label != "":
		join(f.labels, [2]string{want.Label, want.Value}, s)
	case want.Field != "":
		if f.fields[want.Field] == nil {
			f.fields[want.Field] = map[string]group{}
		}
		join(f.fields[want.Field], want.Value, s)
	default:
		join(n.spans, want.Span, s)
	}
	return s
}

// Close removes the subscription.
func (s *Subscription) Close() {
	n, want := s.n, &s.want
	n.mu.Lock()
	defer n.mu.Unlock()
	f := n.facets[want.Resource]
	switch {
	case want.Label != "":
		leave(f.labels, [2]string{want.Label, want.Value}, s)
	case want.Field != "":
		if leave(f.fields[want.Field], want.Value, s); len(f.fields[want.Field]) == 0 {
			delete(f.fields, want.Field)
		}
	default:
		leave(n.spans, want.Span, s)
	}
	if f != nil && len(f.labels) == 0 && len(f.fields) == 0 {
		delete(n.facets, want.Resource)
	}
}

func join[K comparable](groups map[K]group, key K, s *Subscription) {
	if groups[key] == nil {
		groups[key] = group{}
	}
	groups[key][s] = struct{}{}
}

// leave removes a subscription from its group, and removes the group if it is empty.
func leave[K comparable](groups map[K]group, key K, s *Subscription) {
	if delete(groups[key], s); len(groups[key]) == 0 {
		delete(groups, key)
	}
}

// Wake wakes the subscription.
func (s *Subscription) Wake() {
	select {
	case s.C <- struct{}{}:
	default: // it is already awake
	}
}

// wakeAlways wakes a subscription without a known event.
func (s *Subscription) wakeAlways() {
	s.due.Store(1)
	s.Wake()
}

// QuietRevision returns the revision up to which there is no matching event without an earlier
// wakeup. It must be called after a wakeup if the follower had read all events before. The follower
// has to read the log afterwards.
func (s *Subscription) QuietRevision() int64 {
	// must be loaded first, because later notifications set due or wake again
	upTo := s.n.upTo.Load()
	s.busy.Store(true)
	if first := s.due.Swap(0); first != 0 {
		return first - 1
	}
	return upTo
}

// MarkRead records that the follower has read all events up to rev.
func (s *Subscription) MarkRead(rev int64) { s.at.Store(rev) }

// MarkIdle is like MarkRead, and also records that the follower goes to sleep.
func (s *Subscription) MarkIdle(rev int64) {
	s.at.Store(rev)
	s.busy.Store(false)
}

// Progress returns the follower's progress. It may be called by other goroutines. A sleeping
// follower without a pending wakeup has the progress of the log.
func (s *Subscription) Progress() int64 {
	upTo, at := s.n.upTo.Load(), s.at.Load()
	if s.due.Load() == 0 && !s.busy.Load() {
		return max(upTo, at)
	}
	return at
}
