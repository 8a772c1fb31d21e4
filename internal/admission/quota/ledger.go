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

// errPromised rejects a write temporarily: the room is promised to other writes.
var errPromised = errors.New("there is room that is promised to others")

// ledger keeps track of the limits and the usage for all quotas in a namespace. It is guarded by
// Quotas.mu.
type ledger struct {
	namespace string
	limits    []*limit            // sorted by name; never modified in place
	tracked   map[string]*tracked // the types that the limits apply to, by key prefix
	stale     bool                // limits may differ from the stored quotas
	counted   bool                // the usage is known at the revision of Quotas.log
	counting  chan struct{}       // closed when a running count ends; nil if none is running
	promises  int                 // number of unreleased promises
	ended     chan struct{}       // closed when a promise is released; nil if no write waits
	// turn is used if there are other servers. It holds a token while a promise has its turn. It
	// is only used if there are other servers.
	turn      chan struct{}
	changedAt int64 // revision of the last change to a counted object

	// leaving maps the keys of pods that are being deleted to the time when they cease to count.
	leaving map[string]time.Time
	lapsed  map[string]bool // pods that have ceased to count
}

// tracked represents a type that is limited by a quota.
type tracked struct {
	*measure
	res    *scheme.Resource
	count  []corev1.ResourceName
	limits []*concern
	deep   bool // objects must be decoded, because more than their number is needed
}

// concern is a limit that applies to a type, with the names it applies to.
type concern struct {
	*limit
	names []corev1.ResourceName
}

// replaceLocked replaces the quotas by their stored versions. The usage is recomputed only if they
// limit other resources than before.
func (l *ledger) replaceLocked(q *Quotas, limits []*limit) {
	if slices.EqualFunc(l.limits, limits, (*limit).counts) {
		for i, lim := range l.limits {
			lim.renew(limits[i])
		}
	} else {
		l.limits = limits
		l.trackLocked(q.trackedBy(limits))
	}
	l.announceLocked() // there may be more room
}

// trackLocked replaces the tracked types. The usage has to be computed again.
func (l *ledger) trackLocked(all map[string]*tracked) {
	l.tracked, l.counted = all, false
	for _, lim := range l.limits {
		lim.used = usage{}
	}
	for _, t := range all {
		t.zero()
	}
}

// zero sets the usage of the type to zero in all its limits.
func (t *tracked) zero() {
	for _, c := range t.limits {
		for _, name := range c.names {
			c.used[name] = resource.Quantity{Format: resource.DecimalSI}
		}
	}
}

// track returns the entry of a type, and adds it if necessary.
func track(all map[string]*tracked, res *scheme.Resource) *tracked {
	t := all[res.Base]
	if t == nil {
		t = &tracked{measure: measures[res.Base], res: res, count: []corev1.ResourceName{countName(res.Group, res.Plural)}}
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

// concern adds a limit of the type by name. deep means that the limit needs more than the number
// of objects.
func (t *tracked) concern(lim *limit, name corev1.ResourceName, deep bool) {
	if last := len(t.limits) - 1; last >= 0 && t.limits[last].limit == lim {
		t.limits[last].names = append(t.limits[last].names, name)
	} else {
		t.limits = append(t.limits, &concern{lim, []corev1.ResourceName{name}})
	}
	t.deep = t.deep || deep || len(lim.requirements) > 0 && t.inScope != nil
}

// same reports whether t and other have the same type and the same number of limits.
func (t *tracked) same(other *tracked) bool {
	return len(t.limits) == len(other.limits) && t.res.Base == other.res.Base
}

// announceLocked wakes the writes that wait for a promise to be released.
func (l *ledger) announceLocked() {
	if l.ended != nil {
		close(l.ended)
		l.ended = nil
	}
}

// endedLocked returns a channel that is closed when a promise is released or a limit may have been
// raised. It returns nil if wanted is false.
func (l *ledger) endedLocked(wanted bool) <-chan struct{} {
	if !wanted {
		return nil
	}
	if l.ended == nil {
		l.ended = make(chan struct{})
	}
	return l.ended
}

// ---- Measuring ----

// takes returns the usage of an object under a limit, or nil if the object is not in scope. obj
// may be nil if it does not have to be decoded or cannot be decoded.
func (t *tracked) takes(c *concern, obj scheme.Object, now time.Time) usage {
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
func (t *tracked) covers(lim *limit, obj scheme.Object, now time.Time) bool {
	for i := range lim.requirements {
		if obj == nil || t.inScope == nil || !t.inScope(obj, &lim.requirements[i], now) {
			return false
		}
	}
	return true
}

// decode decodes a stored object, or returns nil if only the number of objects matters.
func (t *tracked) decode(json []byte) scheme.Object {
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
	there bool
	obj   scheme.Object
	now   time.Time
}

// taken returns the usage of an object in the given state.
func (t *tracked) taken(c *concern, in state) usage {
	if !in.there {
		return nil
	}
	return t.takes(c, in.obj, in.now)
}

// changeLocked replaces the usage of state before by the usage of state after.
func (t *tracked) changeLocked(before, after state) {
	for _, c := range t.limits {
		was, is := t.taken(c, before), t.taken(c, after)
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
	before, after := state{there: !created, now: never}, state{there: !deleted, now: never}
	if before.there {
		before.obj = t.decode(ev.Prev)
	}
	if after.there {
		after.obj = t.decode(ev.JSON)
	}
	if l.lapsed[ev.Key] {
		before.now = ever
	}
	after.now = l.leaves(ev.Key, after.obj, time.Now())
	t.changeLocked(before, after)
	l.changedAt = ev.Rev
	for _, c := range t.limits {
		if len(c.reserved) > 0 {
			c.land(t.taken(c, after).growth(t.taken(c, before)), ev.Rev)
		}
	}
}

// leaves records when a pod that is being deleted ceases to count. It returns the time at which to
// measure the pod.
func (l *ledger) leaves(key string, obj scheme.Object, now time.Time) time.Time {
	delete(l.leaving, key)
	delete(l.lapsed, key)
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return never
	}
	lapse := lapseOf(pod)
	switch {
	case lapse.IsZero():
		return never
	case now.After(lapse):
		l.lapsed[strings.Clone(key)] = true
		return ever
	}
	l.leaving[strings.Clone(key)] = lapse
	return never
}

// lapseLocked stops counting pods that have exceeded their grace period, and drops expired
// reservations.
func (l *ledger) lapseLocked(q *Quotas, now time.Time) {
	for _, lim := range l.limits {
		lim.expire(now)
	}
	for key, lapse := range l.leaving {
		if !now.After(lapse) {
			continue
		}
		rec, err := q.store.Get(key)
		t := l.tracked[podBase]
		if err != nil || rec.Rev > q.log.Rev() || t == nil {
			continue // a later event in the log will handle it
		}
		obj := t.decode(rec.JSON)
		delete(l.leaving, key)
		l.lapsed[key] = true
		t.changeLocked(state{true, obj, never}, state{true, obj, ever})
	}
}

// nextLapseLocked returns the time when the next pod ceases to count or a reservation expires, or
// the zero time if there is none.
func (l *ledger) nextLapseLocked() (next time.Time) {
	for _, lapse := range l.leaving {
		next = sooner(next, lapse)
	}
	for _, lim := range l.limits {
		if len(lim.reserved) > 0 {
			next = sooner(next, lim.reservedUntil)
		}
	}
	return next
}

// sooner returns the earlier time. It ignores zero times.
func sooner(a, b time.Time) time.Time {
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

func newCount(limits []*limit, all map[string]*tracked) *count {
	c := &count{shadow: ledger{tracked: map[string]*tracked{}, leaving: map[string]time.Time{}, lapsed: map[string]bool{}}, shadows: map[*limit]*limit{}}
	for _, lim := range limits {
		c.shadows[lim] = &limit{requirements: lim.requirements, used: usage{}}
	}
	for base, t := range all {
		own := *t
		own.limits = make([]*concern, len(t.limits))
		for i, concerned := range t.limits {
			own.limits[i] = &concern{c.shadows[concerned.limit], concerned.names}
		}
		own.zero()
		c.shadow.tracked[base] = &own
	}
	return c
}

// see counts one object.
func (c *count) see(rec *store.Record) {
	t := c.shadow.tracked[baseOf(rec.Key)]
	obj := t.decode(rec.JSON)
	t.changeLocked(state{}, state{true, obj, c.shadow.leaves(rec.Key, obj, time.Now())})
}

// settleLocked copies the result to the ledger.
func (c *count) settleLocked(l *ledger) {
	for lim, shadow := range c.shadows {
		lim.used, lim.unsaved = shadow.used, true
	}
	l.leaving, l.lapsed = c.shadow.leaving, c.shadow.lapsed
}

// ---- Charging a write ----

// weighLocked promises a write its usage under all limits, or returns the reason for the
// rejection.
func (l *ledger) weighLocked(q *Quotas, w *Write) (*Reservation, error) {
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
		if taken := t.grows(c, w, now); len(taken) > 0 {
			p.parts = append(p.parts, part{c.limit, taken})
		}
	}
	for _, part := range p.parts { // prefer a final rejection to a temporary one
		if err := part.limit.refuse(w, part.taken); err != nil {
			return nil, err
		}
	}
	for _, part := range p.parts {
		if err := part.limit.refuse(w, part.taken, part.limit.promised, part.limit.reserved); err != nil {
			return nil, err
		}
	}
	if len(p.parts) == 0 || w.DryRun {
		return nil, nil
	}
	for _, part := range p.parts {
		part.limit.promised.add(part.taken)
	}
	l.promises++
	return p, nil
}

// checkLimits returns an error if the object cannot be measured against the limits that apply to
// it.
func (t *tracked) checkLimits(w *Write, now time.Time) error {
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

// grows returns the additional usage caused by a write under a limit. An object that enters the
// scopes of the limit counts in full.
func (t *tracked) grows(c *concern, w *Write, now time.Time) usage {
	after := t.takes(c, w.Object, now)
	if w.Old == nil {
		return after.growth(nil)
	}
	return after.growth(t.takes(c, w.Old, now))
}

// refuse returns an error if the limit has no room. With others, the amounts promised to other
// writes, it returns errPromised, because those writes may fail.
func (lim *limit) refuse(w *Write, taken usage, others ...usage) error {
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
		return errPromised
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
