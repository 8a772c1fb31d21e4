// Package quota enforces ResourceQuotas. It contains the plug-in ResourceQuota and the controller
// that writes status.used.
//
//	held, err := quotas.Charge(ctx, quota.Write{Resource: pods, Object: pod}) // 403 "exceeded quota: …"
//	defer held.Release()
//	rec, err := commit(pod)
//
// A ledger is created for each namespace that has a quota. For each quota, the ledger records the
// usage of the stored objects and the amounts promised to pending writes. The ledger is the only
// source of the usage: the status of the quotas is derived from it, and it is not stored on disk.
// The ledger is computed from the objects of the namespace when it is first needed. After that it
// follows the store's log, which has the old and the new version of each changed object. Completed
// pods, objects deleted by the garbage collector, failed writes and a killed server therefore need
// no special code.
//
// A write is charged immediately before its commit. The charge first reads the log to its end. It
// then decides while holding the lock:
//
//	used + new > hard               reject, because the stored objects leave no room
//	used + promised + new > hard    wait for a promise to be released, because that write may fail
//	otherwise                       promised += new
//
// A promise is released after the commit, when the log has been read again and the written amount
// is part of the usage. Therefore a write succeeds if and only if there is room for it. Writes are
// not rejected because of other writes that fail later. For example, if 64 creates arrive at the
// same time for a quota of 50, then 50 get a promise and 14 wait. After the group commit, 50 are
// used and the 14 are rejected.
//
// If several servers share the objects, a charged write also writes the new status of the quotas
// ([Reservation.StatusChanges]). shared.go explains why.
//
// For a namespace without a quota, a write only needs a single map look-up. The ledger is removed
// when the last quota of the namespace is deleted.
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
	// chargeTimeout is the maximum time that a write waits for other writes, as in kube-apiserver.
	chargeTimeout = 10 * time.Second
	// pollInterval is the poll interval while waiting for another server to make room.
	pollInterval = 200 * time.Millisecond
)

// Quotas enforces the ResourceQuotas of a server. A nil *Quotas enforces nothing.
type Quotas struct {
	store *store.Store
	types *scheme.Registry

	shared     bool          // several servers share the objects; see shared.go
	namespaces atomic.Int64  // number of namespaces with a ledger
	changed    chan struct{} // capacity 1; holds a token if a status may have to be written

	// index guards ledgers. Writers also hold mu, so readers need only one of the two.
	index   sync.RWMutex
	ledgers map[string]*ledger

	mu      sync.Mutex      // guards the following fields and the contents of the ledgers
	log     *store.Follower // only has a valid position if there are ledgers
	catalog *scheme.Catalog // the types for which the ledgers were built
	// countable contains the types that can be counted, by resource name.
	countable map[corev1.ResourceName]*scheme.Resource
}

// New finds the namespaces that have quotas. Their usage is computed later. If an error is
// returned, some quotas could not be read; the others are still enforced.
func New(st *store.Store, types *scheme.Registry) (*Quotas, error) {
	q := &Quotas{store: st, log: st.Follow(store.Everything), types: types, shared: st.Shared(),
		changed: make(chan struct{}, 1), ledgers: map[string]*ledger{}}
	q.refreshLocked()
	q.mu.Lock()
	defer q.mu.Unlock()
	for rec, err := range st.All(store.Span{Prefix: quotaBase, SkipDamaged: true}) {
		if err != nil {
			return q, err
		}
		if namespace, _ := scheme.NamespacedName(rec.Key); q.ledgers[namespace] == nil {
			// An error would also be returned by the iteration.
			_ = q.reloadLocked(strings.Clone(namespace))
		}
	}
	return q, nil
}

// A Write is a write to be charged: a create if Old is nil, or the update of an object or a
// subresource. Objects are in the storage version.
type Write struct {
	Resource    *scheme.Resource // the type, at the version of the request
	Subresource string           // "" for the object itself
	Object, Old scheme.Object    // the new and the stored object; Old is nil for a create
	DryRun      bool             // check only, without a promise
}

// isCounted reports whether the write is checked against quotas. Other changes to the usage of an
// object, such as its phase or status, are only counted.
func (w *Write) isCounted() bool {
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

// forbidden returns a 403 for the write.
func (w *Write) forbidden(format string, args ...any) error {
	return apierrors.NewForbidden(w.Resource.GroupResource(), w.Object.GetName(), fmt.Errorf(format, args...))
}

// ledgerOf returns the ledger of a namespace, or nil if it has no quota.
func (q *Quotas) ledgerOf(namespace string) *ledger {
	q.index.RLock()
	defer q.index.RUnlock()
	return q.ledgers[namespace]
}

// Charge reserves the usage of a write, or rejects the write. The caller must release the promise
// after the write has been committed or has failed. A nil promise needs no release.
func (q *Quotas) Charge(ctx context.Context, w Write) (*Reservation, error) {
	if q == nil || q.namespaces.Load() == 0 || !w.Resource.Namespaced || q.ledgerOf(w.Object.GetNamespace()) == nil {
		return nil, nil
	}
	charged := w
	p, err := q.charge(ctx, &charged)
	if p != nil && q.shared {
		kept := w // allocated here, so that other writes do not escape to the heap
		p.write = &kept
	}
	return p, err
}

func (q *Quotas) charge(ctx context.Context, w *Write) (*Reservation, error) {
	if !w.isCounted() {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, chargeTimeout)
	defer cancel()
	for confirmed := !q.shared; ; {
		l, err := q.openLedger(ctx, w.Object.GetNamespace())
		if l == nil || err != nil {
			return nil, timeoutError(ctx, err)
		}
		promise, err := l.chargeLocked(q, w)
		wait := l.releasedLocked(errors.Is(err, errReserved))
		q.mu.Unlock()
		switch {
		case wait == nil && (err == nil || confirmed):
			return promise, err
		case wait == nil: // another server may have made room
			confirmed = true
			if _, err := q.store.Current(ctx); err != nil {
				return nil, timeoutError(ctx, err)
			}
			continue
		}
		select {
		case <-wait:
		case <-q.pollTimer():
		case <-ctx.Done():
			return nil, timeoutError(ctx, ctx.Err())
		}
	}
}

// pollTimer returns a channel that fires after pollInterval, because other servers do not announce
// released promises. It returns nil if no other server shares the objects.
func (q *Quotas) pollTimer() <-chan time.Time {
	if !q.shared {
		return nil
	}
	return time.After(pollInterval)
}

// timeoutError converts an error caused by the deadline of ctx to the error for the client.
func timeoutError(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return apierrors.NewInternalError(errors.New("resource quota evaluation timed out"))
	}
	return err
}

// ---- Promises ----

// A Reservation reserves the usage of a pending write.
type Reservation struct {
	quotas *Quotas
	ledger *ledger // nil after Release
	parts  []part
	write  *Write // nil unless other servers share the objects
	turn   bool   // this promise holds the token of ledger.turn
}

type part struct {
	limit *limit
	usage usage
}

// Release ends a promise. The usage of a committed write is now counted, and the amount for a
// failed write is available again. Release of a nil promise does nothing.
func (p *Reservation) Release() {
	if p == nil || p.ledger == nil {
		return
	}
	p.quotas.mu.Lock()
	defer p.quotas.mu.Unlock()
	p.quotas.drainLocked()
	for _, part := range p.parts {
		part.limit.pending.subtract(part.usage)
	}
	p.ledger.reservations--
	p.ledger.announceLocked()
	if p.turn {
		<-p.ledger.turn
	}
	p.ledger, p.parts, p.turn = nil, nil, false
}

// ---- Which namespaces have quotas ----

// OnCommit processes a write to a quota before the write is answered, so that a client that has
// created a quota can rely on it.
func (q *Quotas) OnCommit(res *scheme.Resource, rec *store.Record) {
	if q == nil || res.Base != quotaBase {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.shared {
		q.drainLocked() // process the log in order, because reservations depend on the order
		if rec.Rev > q.store.Revision() {
			return // this write will follow in the log
		}
	}
	if !q.renewLocked(rec) {
		namespace, _ := scheme.NamespacedName(rec.Key)
		_ = q.reloadLocked(strings.Clone(namespace)) // if this fails, the next charge will retry
	}
}

// renewLocked applies a new version of a quota, if the version limits the same resources in the
// same scopes as before. It reports whether it did. Most writes to quotas only change their
// status.
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
	lim.copyFrom(renewed)
	l.announceLocked() // there may be more room
	q.announce()
	return true
}

func (q *Quotas) quotas() *scheme.Resource { return q.types.Lookup("", "v1", "resourcequotas") }

// refreshLocked updates the set of types. A quota may name a type that was created after the
// quota.
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
		if !maps.EqualFunc(l.tracked, fresh, (*trackedType).equal) {
			// A count that is already running uses the previous types. The clone makes it discard
			// its result.
			l.limits = slices.Clone(l.limits)
			l.trackLocked(fresh)
		}
	}
	q.announce()
}

// trackedBy returns the types that are subject to the limits, by key prefix.
func (q *Quotas) trackedBy(limits []*limit) map[string]*trackedType {
	all := map[string]*trackedType{}
	for _, lim := range limits {
		for _, name := range sortedNames(lim.spec.Hard) {
			if res := q.countable[name]; res != nil {
				track(all, res).addLimit(lim, name, false)
				continue
			}
			for base, m := range measures {
				if m.names != nil && m.names(name) {
					group, plural, _ := strings.Cut(strings.Trim(base, "/"), "/")
					if plural == "" {
						group, plural = "", group
					}
					track(all, q.types.Lookup(group, "v1", plural)).addLimit(lim, name, true)
				}
			}
		}
	}
	return all
}

// reloadLocked reads the quotas of a namespace. If it fails, the known quotas remain, and charges
// fail until the quotas can be read.
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

// announce wakes the status writer.
func (q *Quotas) announce() {
	select {
	case q.changed <- struct{}{}:
	default:
	}
}

// limitsOf reads the quotas of a namespace, ordered by name. Quotas that cannot be decoded are
// skipped.
func (q *Quotas) limitsOf(namespace string) (limits []*limit, err error) {
	res := q.quotas()
	err = q.each(context.Background(), store.Span{Prefix: res.KeyPrefix(namespace), SkipDamaged: true}, func(rec *store.Record) {
		if obj, err := res.DecodeStored(rec.JSON); err == nil {
			limits = append(limits, newLimit(obj.(*corev1.ResourceQuota), rec.Rev))
		}
	})
	return limits, err
}

// each calls visit for all objects in a span at the revision of the span.
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

// drainLocked reads the log to its end. If the log has been compacted, the ledgers are recomputed.
func (q *Quotas) drainLocked() {
	if len(q.ledgers) == 0 || !q.log.HasNext() {
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
		_ = q.reloadLocked(namespace) // if this fails, the next charge will retry
	}
}

// openLedger returns the up-to-date ledger of a namespace with q.mu held. If the namespace has no
// quota, or on error, it returns nil without the lock.
func (q *Quotas) openLedger(ctx context.Context, namespace string) (*ledger, error) {
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
			l.expirePodsLocked(q, time.Now())
			return l, nil
		case l.counting != nil:
			wait = l.counting
		case l.reservations > 0: // the count must include pending writes
			wait = l.releasedLocked(true)
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

// countLocked computes the usage of a namespace. The caller must hold q.mu. countLocked releases
// it, also while it counts.
func (q *Quotas) countLocked(ctx context.Context, l *ledger) error {
	counting, at := make(chan struct{}), q.log.Rev()
	l.counting = counting
	tracked, limits := l.tracked, l.limits
	q.mu.Unlock()

	count := newCount(limits, tracked)
	var err error
	for base := range tracked {
		if err = q.each(ctx, store.Span{Prefix: base + l.namespace + "/", Rev: at, SkipDamaged: true}, count.add); err != nil {
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
		return nil // the caller counts again if necessary
	}
	count.applyLocked(l)
	l.counted = true
	if q.shared {
		l.reserveLocked(time.Now())
	}
	since := q.store.Follow(store.Everything)
	since.From(at)
	// Restart at the current revision, because older parts of the log have been compacted.
	recount := func() { since.From(q.store.Revision()); l.counted = false }
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
