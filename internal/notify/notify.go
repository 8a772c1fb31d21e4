// Package notify wakes those who follow the store's log: each for the events that may concern it, and nobody else.
//
//	n := notify.New(st)
//	go n.Run(stopping)
//	defer n.Close()
//
//	sub := n.Subscribe(notify.Interest{Resource: "//pods/", Span: "//pods/default/"})
//	defer sub.Close()
//	for {
//		pos = readTheLogFrom(pos) // everything up to now
//		sub.Rest(pos)
//		<-sub.C
//		pos = max(pos, sub.Quiet()) // what lies below concerned others
//	}
//
// It does for watches what the watchers' index of kube-apiserver's cacher does (k8s.io/apiserver/pkg/storage/cacher: scopes and trigger values).
// There an event is put into the queue of each watcher whom it concerns. Here nothing is queued: one goroutine follows the log for all, finds
// in an index who has asked for what an event is about, and rings; who is woken reads the log. An example, with three who follow pods:
//
//	asked for                          found under
//	all of namespace a                 span //pods/a/
//	the pod x of namespace a           span //pods/a/x
//	all pods with spec.nodeName n1     field spec.nodeName = n1
//
//	event: //pods/a/y, spec.nodeName from "" to n1, revision 90
//	rings: //pods/, //pods/a/, //pods/a/y, spec.nodeName = "", spec.nodeName = n1: the first and the third
//
// The second has slept since revision 40, say, and is not told. When it is woken at last, by an event of revision 95, it need not look for what
// it has missed since 40: Quiet says 94. And when a minute is over and it has to say how far it is, Quiet says 90, or whatever the log has come
// to: that it was not rung is knowledge, too. So a watch of a quiet place outlives any traffic elsewhere, and any compaction.
//
// An interest is found under its most special term alone, so that to be rung is no promise: events have to be matched by those who read them.
//
// Invariants: an event that concerns a subscription, of a revision above its last Quiet, rings it; what Quiet returns has no such event at or
// below it that was not rung for before; nobody waits for anybody, however slow.
package notify

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tidwall/gjson"

	"apilet/internal/store"
)

// A Notifier follows the log for all who have subscribed.
type Notifier struct {
	st    *store.Store
	log   *store.Follower // Run's
	upTo  atomic.Int64    // everybody has been rung for every event up to this revision
	over  chan struct{}   // closed when it is to end,
	ended chan struct{}   // and when Run has

	mu     sync.Mutex // guards what follows, and is never held while somebody is waited for
	spans  map[string]group
	facets map[string]*facets // by resource
}

// A group is those who are rung for the same.
type group map[*Subscription]struct{}

// Facets are the subscriptions of one resource that want a certain label or field.
type facets struct {
	labels map[[2]string]group         // by label and value
	fields map[string]map[string]group // by path and value
}

// An Interest says which events may concern a subscription.
type Interest struct {
	Resource string // the prefix of its keys
	Span     string // the prefix of the keys in question: the resource's, one of its namespaces', or one whole key
	Label    string // of those, what has this label with Value, before the event or after it; "" for all
	Field    string // or this field, a path of gjson; "" for all
	Value    string // of the label or field
}

// A Subscription is one who follows. Its methods are for one goroutine, but for At and Ring.
type Subscription struct {
	C    chan struct{} // has a token when there is something to look at
	n    *Notifier
	want Interest
	due  atomic.Int64 // the revision of the first event it was rung for since it asked last; 0: none
	at   atomic.Int64 // what it says it has seen
	busy atomic.Bool  // it has been woken, and is not back
}

// New is a notifier that knows nothing of what happened before.
func New(st *store.Store) *Notifier {
	n := &Notifier{st: st, log: st.Follow(store.Everything), over: make(chan struct{}), ended: make(chan struct{}),
		spans: map[string]group{}, facets: map[string]*facets{}}
	n.upTo.Store(st.Revision())
	n.log.From(n.upTo.Load())
	return n
}

// ---- The log's side

// Run follows the log until Close. When stopping is closed everybody is woken.
func (n *Notifier) Run(stopping <-chan struct{}) {
	defer close(n.ended)
	for {
		wake := n.st.Wake(store.Everything) // before the log is read: a commit in between closes it
		n.catchUp()
		select {
		case <-wake:
		case <-stopping:
			n.each((*Subscription).Ring)
			stopping = nil
		case <-n.over:
			return
		}
	}
}

// Close ends Run, and returns when it has: before the store is closed.
func (n *Notifier) Close() {
	close(n.over)
	<-n.ended
}

// catchUp rings for everything that is new. Where the log cannot be read everybody has to look.
func (n *Notifier) catchUp() {
	for {
		newest := n.st.Revision()
		events, reset, err := n.log.Next(context.Background())
		if reset || err != nil {
			n.each((*Subscription).lookAnyway)
			n.log.From(newest)
		}
		if len(events) > 0 {
			n.tell(events)
		}
		if n.upTo.Store(n.log.Rev()); len(events) == 0 && !reset {
			return
		}
	}
}

func (n *Notifier) tell(events []store.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range events {
		n.tellLocked(&events[i])
	}
}

// tellLocked rings all whom an event may concern.
func (n *Notifier) tellLocked(ev *store.Event) {
	resource, namespace := prefixes(ev.Key)
	for _, span := range [...]string{resource, namespace, ev.Key} {
		n.spans[span].ring(ev)
	}
	f := n.facets[resource]
	if f == nil {
		return
	}
	f.ring(ev, ev.JSON)
	if ev.Prev != nil {
		f.ring(ev, ev.Prev)
	}
}

// ring finds those who want what a version of the object has.
func (f *facets) ring(ev *store.Event, json []byte) {
	if len(f.labels) > 0 {
		gjson.GetBytes(json, "metadata.labels").ForEach(func(label, value gjson.Result) bool {
			f.labels[[2]string{label.String(), value.String()}].ring(ev)
			return true
		})
	}
	for path, values := range f.fields {
		values[gjson.GetBytes(json, path).String()].ring(ev)
	}
}

func (g group) ring(ev *store.Event) {
	for s := range g {
		if s.at.Load() < ev.Rev && strings.HasPrefix(ev.Key, s.want.Span) {
			s.due.CompareAndSwap(0, ev.Rev)
			s.Ring()
		}
	}
}

// each is for everybody.
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

// prefixes cuts /group/resource/namespace/name into what all keys of the resource, and of the namespace in it, begin with.
func prefixes(key string) (resource, namespace string) {
	end := 0
	for range 3 {
		end += strings.IndexByte(key[end:], '/') + 1
	}
	return key[:end], key[:end+strings.IndexByte(key[end:], '/')+1]
}

// ---- The followers' side

// Subscribe has somebody rung from now on.
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

// Close ends a subscription.
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

// leave takes a subscription away, and its group if nobody is left.
func leave[K comparable](groups map[K]group, key K, s *Subscription) {
	if delete(groups[key], s); len(groups[key]) == 0 {
		delete(groups, key)
	}
}

// Ring wakes the subscription.
func (s *Subscription) Ring() {
	select {
	case s.C <- struct{}{}:
	default: // it is awake, or about to be
	}
}

// lookAnyway wakes one of whom nothing is known.
func (s *Subscription) lookAnyway() {
	s.due.Store(1)
	s.Ring()
}

// Quiet returns the revision up to which there is nothing that it was not rung for before. It is to be asked on waking, by one that had seen
// everything when it fell asleep, and is to be followed by a look at the log.
func (s *Subscription) Quiet() int64 {
	upTo := s.n.upTo.Load() // first: what is rung for after this is in due, or rings again
	s.busy.Store(true)
	if first := s.due.Swap(0); first != 0 {
		return first - 1
	}
	return upTo
}

// Saw says that everything up to a revision has been seen.
func (s *Subscription) Saw(rev int64) { s.at.Store(rev) }

// Rest says the same, and that it sleeps from now on.
func (s *Subscription) Rest(rev int64) {
	s.at.Store(rev)
	s.busy.Store(false)
}

// At is how far it is, for others to ask: as far as the log while it sleeps and nothing is due.
func (s *Subscription) At() int64 {
	upTo, at := s.n.upTo.Load(), s.at.Load()
	if s.due.Load() == 0 && !s.busy.Load() {
		return max(upTo, at)
	}
	return at
}
