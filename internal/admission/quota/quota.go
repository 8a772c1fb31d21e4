// Package quota holds what ResourceQuotas say: the plug-in ResourceQuota, and the controller that writes status.used.
//
//	held, err := quotas.Charge(ctx, quota.Write{Resource: pods, Object: pod}) // 403 "exceeded quota: …"
//	defer held.Release()
//	rec, err := commit(pod)
//
// A namespace that has a quota has a ledger: for each quota what the stored objects use, and what is promised to writes that are on their
// way. Nothing else knows what is used, neither the status of the quotas, which is written after it, nor the disk: the
// ledger is counted from the namespace's objects when it is first needed, and from then on follows the store's log, where every change
// stands with the object before and after it, whoever made it. So a pod that ends, an object that the collector deletes, a write that
// fails and a server that was killed need no code of their own.
//
// A write is charged at the last moment, when nothing but its commit is left. Its charge looks at the log first, and then, under one lock:
//
//	used + new > hard               refused: so many objects are stored at this revision
//	used + promised + new > hard    waits for a promise to end, and looks again: the other write may fail
//	otherwise                       promised += new
//
// The promise ends after the commit, when the log has been read once more: what was written has become used. So of any number of writes
// exactly those get through for whom there is room, and none is refused for the sake of one that failed. Example: 64 creates at once,
// a quota of 50. 50 have a promise, 14 wait; the group commit ends, 50 are used, and the 14 are refused.
//
// Where several servers share the objects, a charged write takes the quotas' new status along ([Promise.With]): shared.go tells how that makes
// them one.
//
// Who writes into a namespace without quota pays for looking that up. With the last quota of a namespace its ledger goes.
package quota

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"apilet/internal/scheme"
	"apilet/internal/store"
)

const (
	patience  = 10 * time.Second       // that a write waits for others: kube-apiserver's
	lookAgain = 200 * time.Millisecond // who waits for room that another server may make
)

// Quotas are the ResourceQuotas of a server. The nil Quotas limit nothing.
type Quotas struct {
	store *store.Store
	types *scheme.Registry

	shared     bool          // with other servers: see shared.go
	namespaces atomic.Int64  // that have a ledger
	changed    chan struct{} // holds a token when there may be a status to write: one is enough to look at all

	index   sync.RWMutex // guards ledgers, for those who only look; they are changed under both locks
	ledgers map[string]*ledger

	mu        sync.Mutex                               // guards what follows, and all that is in the ledgers
	log       *store.Follower                          // where it is means nothing without a ledger
	catalog   *scheme.Catalog                          // the types as the ledgers know them
	countable map[corev1.ResourceName]*scheme.Resource // the types that are counted by a name
}

// New reads which namespaces have quotas. What is used there is counted later. An error says that not all could be read; those that were hold.
func New(st *store.Store, types *scheme.Registry) (*Quotas, error) {
	q := &Quotas{store: st, log: st.Follow(store.Everything), types: types, shared: st.Shared(),
		changed: make(chan struct{}, 1), ledgers: map[string]*ledger{}}
	q.refreshLocked()
	q.mu.Lock()
	defer q.mu.Unlock()
	for rec, err := range st.All(store.Span{Prefix: quotaBase, Sound: true}) {
		if err != nil {
			return q, err
		}
		if namespace, _ := scheme.NamespacedName(rec.Key); q.ledgers[namespace] == nil {
			_ = q.reloadLocked(strings.Clone(namespace)) // what it cannot read this walk cannot, either
		}
	}
	return q, nil
}

// A Write is what is to be charged: a create, or with Old the update of an object or of a part of it. Objects are in the storage version.
type Write struct {
	Resource    *scheme.Resource // the type, at the version of the request
	Subresource string           // "" for the object itself
	Object, Old scheme.Object    // as it is to be stored, and as it is; Old is nil for a create
	DryRun      bool             // is only looked at
}

// handled says that the write may take something. What else changes how much an object takes (its phase, its status) is only counted.
func (w *Write) handled() bool {
	create := w.Old == nil
	if w.Subresource != "" || create {
		return w.Subresource == "" || w.Subresource == "resize" && w.Resource.Base == podBase
	}
	switch o := w.Object.(type) {
	case *corev1.Pod:
		return isTerminating(o) != isTerminating(w.Old.(*corev1.Pod))
	default:
		m := measures[w.Resource.Base]
		return m != nil && m.usage != nil
	}
}

// forbidden is the 403 of a write.
func (w *Write) forbidden(format string, args ...any) error {
	return apierrors.NewForbidden(w.Resource.GroupResource(), w.Object.GetName(), fmt.Errorf(format, args...))
}

// ledgerOf finds a namespace's ledger; nil without quota.
func (q *Quotas) ledgerOf(namespace string) *ledger {
	q.index.RLock()
	defer q.index.RUnlock()
	return q.ledgers[namespace]
}

// Charge promises a write what it takes, or refuses it. The promise is the caller's to release, when the write has been committed or has
// failed; it is nil where there is nothing to release.
func (q *Quotas) Charge(ctx context.Context, w Write) (*Promise, error) {
	if q == nil || q.namespaces.Load() == 0 || !w.Resource.Namespaced || q.ledgerOf(w.Object.GetNamespace()) == nil {
		return nil, nil
	}
	charged := w
	p, err := q.charge(ctx, &charged)
	if p != nil && q.shared {
		kept := w // on the heap: the others must not be
		p.write = &kept
	}
	return p, err
}

func (q *Quotas) charge(ctx context.Context, w *Write) (*Promise, error) {
	if !w.handled() {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for confirmed := !q.shared; ; {
		l, err := q.open(ctx, w.Object.GetNamespace())
		if l == nil || err != nil {
			return nil, outOfTime(ctx, err)
		}
		promise, err := l.weighLocked(q, w)
		wait := l.endedLocked(errors.Is(err, errPromised))
		q.mu.Unlock()
		switch {
		case wait == nil && (err == nil || confirmed):
			return promise, err
		case wait == nil: // another server may have made room
			confirmed = true
			if _, err := q.store.Current(ctx); err != nil {
				return nil, outOfTime(ctx, err)
			}
			continue
		}
		select {
		case <-wait:
		case <-q.elsewhere():
		case <-ctx.Done():
			return nil, outOfTime(ctx, ctx.Err())
		}
	}
}

// elsewhere wakes who waits for what no promise of this server's announces. It never does where there is no other server.
func (q *Quotas) elsewhere() <-chan time.Time {
	if !q.shared {
		return nil
	}
	return time.After(lookAgain)
}

// outOfTime words the end of patience.
func outOfTime(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return apierrors.NewInternalError(errors.New("resource quota evaluation timed out"))
	}
	return err
}

// ---- Promises ----

// A Promise is what a write that is on its way will use.
type Promise struct {
	quotas *Quotas
	ledger *ledger // nil once it is released
	parts  []part
	write  *Write // nil where no other server shares the objects
	turn   bool   // it is this one's, among the promises of the ledger
}

type part struct {
	limit *limit
	taken usage
}

// Release ends a promise: what has been committed is used, what has failed is free. The nil promise has no end.
func (p *Promise) Release() {
	if p == nil || p.ledger == nil {
		return
	}
	p.quotas.mu.Lock()
	defer p.quotas.mu.Unlock()
	p.quotas.drainLocked()
	for _, part := range p.parts {
		part.limit.promised.subtract(part.taken)
	}
	p.ledger.promises--
	p.ledger.announceLocked()
	if p.turn {
		<-p.ledger.turn
	}
	p.ledger, p.parts, p.turn = nil, nil, false
}

// ---- Which namespaces have quotas ----

// Committed is told of each write before it is answered: whoever was told that a quota is there has it hold.
func (q *Quotas) Committed(res *scheme.Resource, rec *store.Record) {
	if q == nil || res.Base != quotaBase {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.shared {
		q.drainLocked() // in the log's order, which says what is reserved
		if rec.Rev > q.store.Revision() {
			return // and the log will tell of this
		}
	}
	if !q.renewLocked(rec) {
		namespace, _ := scheme.NamespacedName(rec.Key)
		_ = q.reloadLocked(strings.Clone(namespace)) // the next charge tries again
	}
}

// renewLocked puts one quota in force as it was written, if it speaks of what it spoke of before: most writes are to its status.
func (q *Quotas) renewLocked(rec *store.Record) bool {
	namespace, name := scheme.NamespacedName(rec.Key)
	l := q.ledgers[namespace]
	if l == nil || rec.Deleted {
		return false
	}
	at, found := slices.BinarySearchFunc(l.limits, name, func(lim *limit, name string) int { return strings.Compare(lim.name, name) })
	if !found {
		return false
	}
	lim := l.limits[at]
	if rec.Rev <= lim.rev {
		return true
	}
	obj, err := q.quotas().DecodeStored(rec.JSON)
	if err != nil {
		return false
	}
	renewed := newLimit(obj.(*corev1.ResourceQuota), rec.Rev)
	if !lim.counts(renewed) {
		return false
	}
	if q.shared && l.counted {
		lim.reserve(renewed, l.changedAt == rec.Rev, time.Now())
	}
	lim.renew(renewed)
	l.announceLocked() // there may be more room
	q.announce()
	return true
}

func (q *Quotas) quotas() *scheme.Resource { return q.types.Lookup("", "v1", "resourcequotas") }

// refreshLocked learns which types there are. A quota may have spoken of one before it came.
func (q *Quotas) refreshLocked() {
	current := q.types.Current.Load()
	if q.catalog == current {
		return
	}
	q.catalog, q.countable = current, map[corev1.ResourceName]*scheme.Resource{}
	for _, res := range current.Sorted {
		if res.Namespaced && !res.Virtual && res.Base != eventBase {
			q.countable[countName(res.Group, res.Plural)] = res
		}
	}
	for base, m := range measures {
		if m.alias != "" {
			q.countable[m.alias] = q.types.Lookup("", "v1", strings.Trim(base, "/"))
		}
	}
	for _, l := range q.ledgers {
		fresh := q.trackedBy(l.limits)
		if !maps.EqualFunc(l.tracked, fresh, (*tracked).same) {
			l.limits = slices.Clone(l.limits) // who counts now counts the wrong types
			l.trackLocked(fresh)
		}
	}
	q.announce()
}

// trackedBy finds the types that quotas speak of, by what their keys start with.
func (q *Quotas) trackedBy(limits []*limit) map[string]*tracked {
	all := map[string]*tracked{}
	for _, lim := range limits {
		for _, name := range sortedNames(lim.spec.Hard) {
			if res := q.countable[name]; res != nil {
				track(all, res).concern(lim, name, false)
				continue
			}
			for base, m := range measures {
				if m.names != nil && m.names(name) {
					group, plural, _ := strings.Cut(strings.Trim(base, "/"), "/")
					if plural == "" {
						group, plural = "", group
					}
					track(all, q.types.Lookup(group, "v1", plural)).concern(lim, name, true)
				}
			}
		}
	}
	return all
}

// reloadLocked reads the quotas of a namespace. While it cannot, those hold that were known, and no charge succeeds.
func (q *Quotas) reloadLocked(namespace string) error {
	limits, err := q.limitsOf(namespace)
	l := q.ledgers[namespace]
	if l == nil && (err != nil || len(limits) > 0) {
		if len(q.ledgers) == 0 {
			q.log.From(q.store.Revision())
		}
		l = &ledger{namespace: namespace, turn: make(chan struct{}, 1)}
		q.setLedgerLocked(namespace, l)
	}
	switch {
	case err != nil:
		l.stale, l.counted = true, false
	case len(limits) > 0:
		l.stale = false
		l.replaceLocked(q, limits)
	case l != nil:
		q.setLedgerLocked(namespace, nil)
		l.announceLocked()
	}
	q.announce()
	return err
}

func (q *Quotas) setLedgerLocked(namespace string, l *ledger) {
	q.index.Lock()
	defer q.index.Unlock()
	if l == nil {
		delete(q.ledgers, namespace)
	} else {
		q.ledgers[namespace] = l
	}
	q.namespaces.Store(int64(len(q.ledgers)))
}

// announce wakes the writer of status.
func (q *Quotas) announce() {
	select {
	case q.changed <- struct{}{}:
	default:
	}
}

// limitsOf reads the quotas of a namespace, by name. One that cannot be read limits nothing.
func (q *Quotas) limitsOf(namespace string) (limits []*limit, err error) {
	res := q.quotas()
	err = q.each(context.Background(), store.Span{Prefix: res.KeyPrefix(namespace), Sound: true}, func(rec *store.Record) {
		if obj, err := res.DecodeStored(rec.JSON); err == nil {
			limits = append(limits, newLimit(obj.(*corev1.ResourceQuota), rec.Rev))
		}
	})
	return limits, err
}

// each visits the objects of a span, as they were at its revision.
func (q *Quotas) each(ctx context.Context, at store.Span, visit func(*store.Record)) error {
	for rec, err := range q.store.All(at) {
		if err := cmp.Or(err, ctx.Err()); err != nil {
			return err
		}
		visit(rec)
	}
	return nil
}

// ---- Following the log ----

// drainLocked reads the log to its end. What cannot be read any more is counted anew.
func (q *Quotas) drainLocked() {
	if len(q.ledgers) == 0 || !q.log.Behind() {
		return
	}
	var touched []string // namespaces whose quotas have changed
	recount := func() {
		q.log.From(q.store.Revision())
		for _, l := range q.ledgers {
			l.stale, l.counted = true, false
		}
	}
	if err := q.log.CatchUp(context.Background(), recount, func(ev *store.Event) {
		namespace, _ := scheme.NamespacedName(ev.Key)
		l := q.ledgers[namespace]
		if strings.HasPrefix(ev.Key, quotaBase) && !slices.Contains(touched, namespace) && !q.renewLocked(&ev.Record) {
			touched = append(touched, strings.Clone(namespace))
		}
		if l != nil && l.counted {
			l.applyLocked(ev)
		}
	}); err != nil {
		recount()
	}
	for _, namespace := range touched {
		_ = q.reloadLocked(namespace) // the next charge tries again
	}
}

// open returns the ledger of a namespace, counted and up to date, with q.mu held; or nil, without it, when there is no quota.
func (q *Quotas) open(ctx context.Context, namespace string) (*ledger, error) {
	for {
		q.mu.Lock()
		q.refreshLocked()
		q.drainLocked()
		l := q.ledgers[namespace]
		if l != nil && l.stale {
			if err := q.reloadLocked(namespace); err != nil {
				q.mu.Unlock()
				return nil, err
			}
			l = q.ledgers[namespace]
		}
		var wait <-chan struct{}
		switch {
		case l == nil:
			q.mu.Unlock()
			return nil, nil
		case l.counted:
			l.lapseLocked(q, time.Now())
			return l, nil
		case l.counting != nil:
			wait = l.counting
		case l.promises > 0: // writes that are on their way: they shall be among what is counted
			wait = l.endedLocked(true)
		default:
			if err := q.countLocked(ctx, l); err != nil {
				return nil, err
			}
			continue
		}
		q.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// countLocked counts what a namespace uses. It is called with q.mu held, and returns without it, having counted in between.
func (q *Quotas) countLocked(ctx context.Context, l *ledger) error {
	counting, at := make(chan struct{}), q.log.Rev()
	l.counting = counting
	tracked, limits := l.tracked, l.limits
	q.mu.Unlock()

	count := newCount(limits, tracked)
	var err error
	for base := range tracked {
		if err = q.each(ctx, store.Span{Prefix: base + l.namespace + "/", Rev: at, Sound: true}, count.see); err != nil {
			break
		}
	}

	q.mu.Lock()
	defer q.mu.Unlock()
	l.counting = nil
	close(counting)
	if err != nil && !errors.Is(err, store.ErrCompacted) {
		return err
	}
	if err != nil || q.ledgers[l.namespace] != l || !sameSlice(limits, l.limits) {
		return nil // once more, if need be
	}
	count.settleLocked(l)
	l.counted = true
	if q.shared {
		l.reserveLocked(time.Now())
	}
	since := q.store.Follow(store.Everything)
	since.From(at)
	recount := func() { since.From(q.store.Revision()); l.counted = false } // not from where the log can no longer be read
	if err := since.CatchUp(context.Background(), recount, func(ev *store.Event) {
		if namespace, _ := scheme.NamespacedName(ev.Key); namespace == l.namespace && ev.Rev <= q.log.Rev() {
			l.applyLocked(ev)
		}
	}); err != nil {
		recount()
	}
	return nil
}

func sameSlice(a, b []*limit) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }
