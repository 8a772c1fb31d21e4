package quota

// This file: a namespace's ledger. It holds a sum for each name that a quota limits, and of single objects nothing, but for the few pods
// that are being deleted: a pod that should be gone and is not ceases to count when its time is over, which no event tells.

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

// errPromised refuses a write for the time being: there is room, but it has been promised to others.
var errPromised = errors.New("there is room that is promised to others")

// A ledger is what the quotas of a namespace limit, and how much of it is used. Quotas.mu guards it.
type ledger struct {
	namespace string
	limits    []*limit            // by name; replaced as a whole
	tracked   map[string]*tracked // the types that they speak of, by what the keys start with
	stale     bool                // limits are not those that are stored
	counted   bool                // what is used is known, as of where Quotas.log is
	counting  chan struct{}       // closed when somebody has counted; nil while nobody does
	promises  int                 // that have not been released
	ended     chan struct{}       // closed when one is; nil while nobody waits
	turn      chan struct{}       // capacity 1: holds a token while a promise has its turn, where other servers write, too
	changedAt int64               // the revision of the last change to an object that is counted

	leaving map[string]time.Time // pods that are being deleted, by key, and when they cease to count
	lapsed  map[string]bool      // pods that have ceased to
}

// tracked is a type that quotas speak of.
type tracked struct {
	*measure
	res    *scheme.Resource
	count  []corev1.ResourceName
	limits []*concern
	deep   bool // objects have to be decoded: their number is not enough
}

// A concern is a limit that speaks of a type, and the names by which it does.
type concern struct {
	*limit
	names []corev1.ResourceName
}

// replaceLocked puts the quotas as they are stored in force. While they speak of what they spoke of before, nothing has to be counted.
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

// trackLocked has other types counted.
func (l *ledger) trackLocked(all map[string]*tracked) {
	l.tracked, l.counted = all, false
	for _, lim := range l.limits {
		lim.used = usage{}
	}
	for _, t := range all {
		t.zero()
	}
}

// zero gives all limits of the type nothing of each name.
func (t *tracked) zero() {
	for _, c := range t.limits {
		for _, name := range c.names {
			c.used[name] = resource.Quantity{Format: resource.DecimalSI}
		}
	}
}

// track finds or adds a type.
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

// concern notes that a limit speaks of the type by a name. deep: more than the number of objects is needed.
func (t *tracked) concern(lim *limit, name corev1.ResourceName, deep bool) {
	if last := len(t.limits) - 1; last >= 0 && t.limits[last].limit == lim {
		t.limits[last].names = append(t.limits[last].names, name)
	} else {
		t.limits = append(t.limits, &concern{lim, []corev1.ResourceName{name}})
	}
	t.deep = t.deep || deep || len(lim.requirements) > 0 && t.inScope != nil
}

// same says that two views of a type lead to the same sums.
func (t *tracked) same(other *tracked) bool {
	return len(t.limits) == len(other.limits) && t.res.Base == other.res.Base
}

// announceLocked tells those who wait for a promise to end.
func (l *ledger) announceLocked() {
	if l.ended != nil {
		close(l.ended)
		l.ended = nil
	}
}

// endedLocked is closed when a promise ends, or more is allowed; nil for those who do not want to wait.
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

// takes is what an object uses of a limit, nothing when its scopes leave the object out. obj is nil where nobody can, or has to, decode it.
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

// covers says that an object is in all scopes of a limit.
func (t *tracked) covers(lim *limit, obj scheme.Object, now time.Time) bool {
	for i := range lim.requirements {
		if obj == nil || t.inScope == nil || !t.inScope(obj, &lim.requirements[i], now) {
			return false
		}
	}
	return true
}

// decode reads a stored object as far as it has to be read.
func (t *tracked) decode(json []byte) scheme.Object {
	if !t.deep || json == nil {
		return nil
	}
	obj, err := t.res.DecodeStored(json)
	if err != nil {
		return nil // it is counted
	}
	return obj
}

// A state is one side of an event: an object that is there, decoded as far as it has to be, and the time at which it is counted.
type state struct {
	there bool
	obj   scheme.Object
	now   time.Time
}

// taken is what an object takes in a state.
func (t *tracked) taken(c *concern, in state) usage {
	if !in.there {
		return nil
	}
	return t.takes(c, in.obj, in.now)
}

// changeLocked replaces what an object took by what it takes.
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

// By never no pod's time is over, by ever each one's.
var never, ever = time.Time{}, time.Unix(1<<40, 0)

// applyLocked counts what an event changes.
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

// leaves notes when a pod that is being deleted ceases to count, and returns the time at which it is counted.
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

// lapseLocked ceases to count pods whose time is over, and what was reserved for too long.
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
			continue // the log will tell
		}
		obj := t.decode(rec.JSON)
		delete(l.leaving, key)
		l.lapsed[key] = true
		t.changeLocked(state{true, obj, never}, state{true, obj, ever})
	}
}

// nextLapseLocked is when the next pod ceases to count, or what is reserved; zero when none will.
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

// sooner is the earlier of two times; the zero time is none.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// ---- Counting from nothing ----

// A count adds up what is stored. Its limits are shadows of the ledger's, which are in use meanwhile.
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

// settleLocked takes over what was counted.
func (c *count) settleLocked(l *ledger) {
	for lim, shadow := range c.shadows {
		lim.used, lim.unsaved = shadow.used, true
	}
	l.leaving, l.lapsed = c.shadow.leaving, c.shadow.lapsed
}

// ---- Weighing a write ----

// weighLocked promises a write what it takes of each limit, or of none: then it says why.
func (l *ledger) weighLocked(q *Quotas, w *Write) (*Promise, error) {
	t := l.tracked[w.Resource.Base]
	if t == nil {
		return nil, nil
	}
	now := time.Now()
	if err := t.checkLimits(w, now); err != nil {
		return nil, err
	}
	p := &Promise{quotas: q, ledger: l}
	for _, c := range t.limits {
		if taken := t.grows(c, w, now); len(taken) > 0 {
			p.parts = append(p.parts, part{c.limit, taken})
		}
	}
	for _, part := range p.parts { // a refusal that stays one comes before one that may not
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

// checkLimits refuses an object that cannot be counted against the limits that cover it.
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

// grows is what a write takes of a limit. An object that comes into its scopes takes all that it has.
func (t *tracked) grows(c *concern, w *Write, now time.Time) usage {
	after := t.takes(c, w.Object, now)
	if w.Old == nil {
		return after.growth(nil)
	}
	return after.growth(t.takes(c, w.Old, now))
}

// refuse says why a limit has no room. With what others are about to take, which they perhaps will not, it says errPromised.
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

// reserveLocked counts as reserved what the statuses have beyond what has just been counted.
func (l *ledger) reserveLocked(now time.Time) {
	for _, lim := range l.limits {
		lim.reserved = usage(lim.status.Used).growth(lim.used).of(sortedNames(lim.spec.Hard))
		lim.reservedUntil = now.Add(reservedFor)
	}
}
