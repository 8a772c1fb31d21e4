package quota

// This file contains the ledger of a namespace. The ledger has a sum for each limited name. It
// does not keep track of individual objects, except for pods that are being deleted. Such a pod is
// no longer counted when its grace period has ended. There is no event at that time.

import (
	"errors"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"apilet/internal/scheme"
	"apilet/internal/store"
)

// errReserved rejects a write temporarily: the room is promised to other writes.
var errReserved = errors.New("there is room that is promised to others")

// ledger keeps track of the limits and the usage for all quotas in a namespace. It is guarded by
// Quotas.mu.
type ledger struct {
	namespace    string
	limits       []*limit                // sorted by name; never modified in place
	tracked      map[string]*trackedType // the types that the limits apply to, by key prefix
	stale        bool                    // limits may differ from the stored quotas
	counted      bool                    // the usage is known at the revision of Quotas.log
	counting     chan struct{}           // closed when a running count ends; nil if none is running
	reservations int                     // number of unreleased promises
	released     chan struct{}           // closed when a promise is released; nil if no write waits
	// turn contains a token while a write charges the quotas on behalf of all servers. It is unused
	// if there are no other servers.
	turn      chan struct{}
	changedAt int64 // revision of the last change to a counted object

	// deleting maps the keys of pods that are being deleted to the time when they cease to count.
	deleting    map[string]time.Time
	expiredPods map[string]bool // pods that have ceased to count
}

// trackedType represents a type that is limited by a quota.
type trackedType struct {
	*measure
	res    *scheme.Resource
	count  []corev1.ResourceName
	limits []*trackedLimit
	deep   bool // objects must be decoded, because more than their number is needed
}

// trackedLimit is a limit that applies to a type, with the names it applies to.
type trackedLimit struct {
	*limit
	names []corev1.ResourceName
}

// replaceLocked replaces the quotas by their stored versions. The usage is recomputed only if they
// limit other resources than before.
func (l *ledger) replaceLocked(q *Quotas, limits []*limit) {
	if slices.EqualFunc(l.limits, limits, (*limit).counts) {
		for i, lim := range l.limits {
			lim.copyFrom(limits[i])
		}
	} else {
		l.limits = limits
		l.trackLocked(q.trackedBy(limits))
	}
	l.announceLocked() // there may be more room
}

// trackLocked replaces the tracked types. The usage has to be computed again.
func (l *ledger) trackLocked(all map[string]*trackedType) {
	l.tracked, l.counted = all, false
	for _, lim := range l.limits {
		lim.used = usage{}
	}
	for _, t := range all {
		t.zero()
	}
}

// zero sets the usage of the type to zero in all its limits.
func (t *trackedType) zero() {
	for _, c := range t.limits {
		for _, name := range c.names {
			c.used[name] = resource.Quantity{Format: resource.DecimalSI}
		}
	}
}

// track returns the entry of a type, and adds it if necessary.
func track(all map[string]*trackedType, res *scheme.Resource) *trackedType {
	t := all[res.Base]
	if t == nil {
		t = &trackedType{measure: measures[res.Base], res: res, count: []corev1.ResourceName{countName(res.Group, res.Plural)}}
		if t.measure == nil {
			t.measure = &measure{}
		}
		if t.alias != "" {
			t.count = append(t.count, t.alias)
		}
		all[res.Base] = t
	}
	return t
}

// addLimit adds a limit of the type by name. deep means that the limit needs more than the number
// of objects.
func (t *trackedType) addLimit(lim *limit, name corev1.ResourceName, deep bool) {
	if last := len(t.limits) - 1; last >= 0 && t.limits[last].limit == lim {
		t.limits[last].names = append(t.limits[last].names, name)
	} else {
		t.limits = append(t.limits, &trackedLimit{lim, []corev1.ResourceName{name}})
	}
	t.deep = t.deep || deep || len(lim.requirements) > 0 && t.inScope != nil
}

// equal reports whether t and other have the same type and the same number of limits.
func (t *trackedType) equal(other *trackedType) bool {
	return len(t.limits) == len(other.limits) && t.res.Base == other.res.Base
}

// announceLocked wakes the writes that wait for a promise to be released.
func (l *ledger) announceLocked() {
	if l.released != nil {
		close(l.released)
		l.released = nil
	}
}

// releasedLocked returns a channel that is closed when a promise is released or a limit may have
// been raised. It returns nil if wanted is false.
func (l *ledger) releasedLocked(wanted bool) <-chan struct{} {
	if !wanted {
		return nil
	}
	if l.released == nil {
		l.released = make(chan struct{})
	}
	return l.released
}

// ---- Measuring ----

// usageUnder returns the usage of an object under a limit, or nil if the object is not in scope.
// obj may be nil if it does not have to be decoded or cannot be decoded.
func (t *trackedType) usageUnder(c *trackedLimit, obj scheme.Object, now time.Time) usage {
	if !t.covers(c.limit, obj, now) {
		return nil
	}
	u := usage{}
	if obj != nil && t.usage != nil {
		u = t.usage(obj, now)
	}
	for _, name := range t.count {
		u.count(name, 1)
	}
	return u.of(c.names)
}

// covers reports whether an object is in all scopes of a limit.
func (t *trackedType) covers(lim *limit, obj scheme.Object, now time.Time) bool {
	for i := range lim.requirements {
		if obj == nil || t.inScope == nil || !t.inScope(obj, &lim.requirements[i], now) {
			return false
		}
	}
	return true
}

// decode decodes a stored object, or returns nil if only the number of objects matters.
func (t *trackedType) decode(json []byte) scheme.Object {
	if !t.deep || json == nil {
		return nil
	}
	obj, err := t.res.DecodeStored(json)
	if err != nil {
		return nil // still counted as an object
	}
	return obj
}

// A state describes an object before or after an event: whether it exists, its decoded form if
// needed, and the time at which to measure it.
type state struct {
	exists bool
	obj    scheme.Object
	now    time.Time
}

// usageOf returns the usage of an object in the given state.
func (t *trackedType) usageOf(c *trackedLimit, in state) usage {
	if !in.exists {
		return nil
	}
	return t.usageUnder(c, in.obj, in.now)
}

// changeLocked replaces the usage of state before by the usage of state after.
func (t *trackedType) changeLocked(before, after state) {
	for _, c := range t.limits {
		was, is := t.usageOf(c, before), t.usageOf(c, after)
		if !was.equal(is) {
			c.used.subtract(was)
			c.used.add(is)
			c.unsaved = true
		}
	}
}

// At time never, the grace period has not ended for any pod. At time ever, the grace period has
// ended for every pod that is being deleted.
var never, ever = time.Time{}, time.Unix(1<<40, 0)

// applyLocked updates the usage for an event.
func (l *ledger) applyLocked(ev *store.Event) {
	t := l.tracked[baseOf(ev.Key)]
	if t == nil {
		return
	}
	created, deleted := ev.PrevRev == 0 && !ev.Deleted, ev.Deleted
	if !t.deep && !created && !deleted {
		return
	}
	before, after := state{exists: !created, now: never}, state{exists: !deleted, now: never}
	if before.exists {
		before.obj = t.decode(ev.Prev)
	}
	if after.exists {
		after.obj = t.decode(ev.JSON)
	}
	if l.expiredPods[ev.Key] {
		before.now = ever
	}
	after.now = l.noteDeletion(ev.Key, after.obj, time.Now())
	t.changeLocked(before, after)
	l.changedAt = ev.Rev
	for _, c := range t.limits {
		if len(c.reserved) > 0 {
			c.addUsage(t.usageOf(c, after).growth(t.usageOf(c, before)), ev.Rev)
		}
	}
}

// noteDeletion records when a pod that is being deleted ceases to count. It returns the time at
// which to measure the pod.
func (l *ledger) noteDeletion(key string, obj scheme.Object, now time.Time) time.Time {
	delete(l.deleting, key)
	delete(l.expiredPods, key)
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return never
	}
	lapse := graceEnd(pod)
	switch {
	case lapse.IsZero():
		return never
	case now.After(lapse):
		l.expiredPods[strings.Clone(key)] = true
		return ever
	}
	l.deleting[strings.Clone(key)] = lapse
	return never
}

// expirePodsLocked stops counting pods that have exceeded their grace period, and drops expired
// reservations.
func (l *ledger) expirePodsLocked(q *Quotas, now time.Time) {
	for _, lim := range l.limits {
		lim.expire(now)
	}
	for key, lapse := range l.deleting {
		if !now.After(lapse) {
			continue
		}
		rec, err := q.store.Get(key)
		t := l.tracked[podBase]
		if err != nil || rec.Rev > q.log.Rev() || t == nil {
			continue // a later event in the log will handle it
		}
		obj := t.decode(rec.JSON)
		delete(l.deleting, key)
		l.expiredPods[key] = true
		t.changeLocked(state{true, obj, never}, state{true, obj, ever})
	}
}

// nextExpiryLocked returns the time when the next pod ceases to count or a reservation expires, or
// the zero time if there is none.
func (l *ledger) nextExpiryLocked() (next time.Time) {
	for _, lapse := range l.deleting {
		next = earlier(next, lapse)
	}
	for _, lim := range l.limits {
		if len(lim.reserved) > 0 {
			next = earlier(next, lim.reservedUntil)
		}
	}
	return next
}

// earlier returns the earlier time. It ignores zero times.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// ---- Counting all objects ----

// A count computes the usage of the stored objects. It uses copies of the limits, because the
// originals are still in use.
type count struct {
	shadow  ledger
	shadows map[*limit]*limit
}

func newCount(limits []*limit, all map[string]*trackedType) *count {
	c := &count{shadow: ledger{tracked: map[string]*trackedType{}, deleting: map[string]time.Time{}, expiredPods: map[string]bool{}}, shadows: map[*limit]*limit{}}
	for _, lim := range limits {
		c.shadows[lim] = &limit{requirements: lim.requirements, used: usage{}}
	}
	for base, t := range all {
		own := *t
		own.limits = make([]*trackedLimit, len(t.limits))
		for i, concerned := range t.limits {
			own.limits[i] = &trackedLimit{c.shadows[concerned.limit], concerned.names}
		}
		own.zero()
		c.shadow.tracked[base] = &own
	}
	return c
}

// add counts one object.
func (c *count) add(rec *store.Record) {
	t := c.shadow.tracked[baseOf(rec.Key)]
	obj := t.decode(rec.JSON)
	t.changeLocked(state{}, state{true, obj, c.shadow.noteDeletion(rec.Key, obj, time.Now())})
}

// applyLocked copies the result to the ledger.
func (c *count) applyLocked(l *ledger) {
	for lim, shadow := range c.shadows {
		lim.used, lim.unsaved = shadow.used, true
	}
	l.deleting, l.expiredPods = c.shadow.deleting, c.shadow.expiredPods
}

// ---- Charging a write ----

// chargeLocked promises a write its usage under all limits, or returns the reason for the
// rejection.
func (l *ledger) chargeLocked(q *Quotas, w *Write) (*Reservation, error) {
	t := l.tracked[w.Resource.Base]
	if t == nil {
		return nil, nil
	}
	now := time.Now()
	if err := t.checkLimits(w, now); err != nil {
		return nil, err
	}
	p := &Reservation{quotas: q, ledger: l}
	for _, c := range t.limits {
		if taken := t.growth(c, w, now); len(taken) > 0 {
			p.parts = append(p.parts, part{c.limit, taken})
		}
	}
	for _, part := range p.parts { // prefer a final rejection to a temporary one
		if err := part.limit.checkRoom(w, part.usage); err != nil {
			return nil, err
		}
	}
	for _, part := range p.parts {
		if err := part.limit.checkRoom(w, part.usage, part.limit.pending, part.limit.reserved); err != nil {
			return nil, err
		}
	}
	if len(p.parts) == 0 || w.DryRun {
		return nil, nil
	}
	for _, part := range p.parts {
		part.limit.pending.add(part.usage)
	}
	l.reservations++
	return p, nil
}

// checkLimits returns an error if the object cannot be measured against the limits that apply to
// it.
func (t *trackedType) checkLimits(w *Write, now time.Time) error {
	for _, c := range t.limits {
		if pod, ok := w.Object.(*corev1.Pod); ok && t.covers(c.limit, w.Object, now) {
			if lacks := missing(pod, c.names); lacks != "" {
				return w.forbidden("failed quota: %s: must specify %s", c.name, lacks)
			}
		}
	}
	if t.usage == nil {
		return nil
	}
	var negative []string
	for name, q := range t.usage(w.Object, now) {
		if q.Sign() < 0 {
			negative = append(negative, string(name))
		}
	}
	if len(negative) > 0 {
		slices.Sort(negative)
		return w.forbidden("quota usage is negative for resource(s): %s", strings.Join(negative, ","))
	}
	return nil
}

// growth returns the additional usage caused by a write under a limit. An object that enters the
// scopes of the limit counts in full.
func (t *trackedType) growth(c *trackedLimit, w *Write, now time.Time) usage {
	after := t.usageUnder(c, w.Object, now)
	if w.Old == nil {
		return after.growth(nil)
	}
	return after.growth(t.usageUnder(c, w.Old, now))
}

// checkRoom returns an error if the current usage, taken and others together exceed the limit.
// others are amounts that are reserved for other writes. If any are given, the error is
// errReserved, because the other writes may fail and release their amounts. Otherwise the error
// rejects the write. Reserved amounts never cause a dry run to fail.
func (lim *limit) checkRoom(w *Write, taken usage, others ...usage) error {
	var exceeded []corev1.ResourceName
	for name, q := range taken {
		sum := lim.used[name]
		sum = sum.DeepCopy()
		sum.Add(q)
		for _, other := range others {
			sum.Add(other[name])
		}
		if sum.Cmp(lim.spec.Hard[name]) > 0 {
			exceeded = append(exceeded, name)
		}
	}
	switch {
	case len(exceeded) == 0:
		return nil
	case len(others) > 0 && w.DryRun:
		return nil
	case len(others) > 0:
		return errReserved
	}
	return w.forbidden("exceeded quota: %s, requested: %s, used: %s, limited: %s", lim.name, taken.of(exceeded), lim.used.of(exceeded),
		usage(lim.spec.Hard).of(exceeded))
}

// reserveLocked reserves the excess of the stored statuses over the computed usage.
func (l *ledger) reserveLocked(now time.Time) {
	for _, lim := range l.limits {
		lim.reserved = usage(lim.status.Used).growth(lim.used).of(sortedNames(lim.spec.Hard))
		lim.reservedUntil = now.Add(reservedFor)
	}
}
