package quota

// This file is one quota: what its spec limits, what its stored status says, and what a kube-apiserver has reserved by that (shared.go tells why).

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
)

const reservedFor = 5 * time.Second // kube-apiserver writes the object some milliseconds later

// A limit is one quota.
type limit struct {
	name           string
	uid            types.UID
	rev            int64 // that it is known at
	spec           corev1.ResourceQuotaSpec
	status         corev1.ResourceQuotaStatus // as it is stored
	requirements   []requirement
	used, promised usage // of the names in spec.hard
	unsaved        bool  // the stored status may say something else

	reserved      usage     // by a kube-apiserver, for objects that are to come
	reservedUntil time.Time // at most
	landed        usage     // of what was reserved, by the last object that came
	landedAt      int64     // its revision
}

func newLimit(q *corev1.ResourceQuota, rev int64) *limit {
	return &limit{name: q.Name, uid: q.UID, rev: rev, spec: q.Spec, status: q.Status, requirements: requirementsOf(&q.Spec), promised: usage{}, reserved: usage{}, unsaved: true}
}

// counts says that what is used by one limit is used by the other: they speak of the same, whatever they allow.
func (lim *limit) counts(other *limit) bool {
	return lim.name == other.name && lim.uid == other.uid && slices.Equal(sortedNames(lim.spec.Hard), sortedNames(other.spec.Hard)) &&
		slices.Equal(lim.spec.Scopes, other.spec.Scopes) && equality.Semantic.DeepEqual(lim.spec.ScopeSelector, other.spec.ScopeSelector)
}

func sortedNames(list corev1.ResourceList) []corev1.ResourceName {
	return slices.Sorted(maps.Keys(list))
}

// renew takes over what another version of the quota says.
func (lim *limit) renew(other *limit) {
	lim.rev, lim.spec, lim.status, lim.unsaved = other.rev, other.spec, other.status, true
}

// tells says that the stored status is right.
func (lim *limit) tells() bool {
	return usage(lim.status.Hard).equal(usage(lim.spec.Hard)) && usage(lim.status.Used).equal(lim.told())
}

// whole says that the stored status speaks of all that it should.
func (lim *limit) whole() bool {
	for name := range lim.used {
		if _, ok := lim.status.Used[name]; !ok {
			return false
		}
	}
	return usage(lim.status.Hard).equal(usage(lim.spec.Hard))
}

// told is what the status has to say: what is used, and what is reserved. It is the caller's.
func (lim *limit) told() usage {
	told := usage{}
	told.add(lim.used)
	told.add(lim.reserved)
	return told
}

// reserve learns from a new version of the quota what a kube-apiserver has reserved. together: it came with the object that it speaks of.
func (lim *limit) reserve(next *limit, together bool, now time.Time) {
	if together {
		if lim.landedAt == next.rev { // it was another one that was reserved
			lim.reserved.add(lim.landed)
			lim.landed = nil
		}
		return
	}
	if raised := usage(next.status.Used).growth(usage(lim.status.Used)).of(sortedNames(lim.spec.Hard)); len(raised) > 0 {
		lim.reserved.add(raised)
		lim.reservedUntil = now.Add(reservedFor)
	}
	lim.cover(next)
}

// cover sees to it that no more is reserved than what a status has beyond what is used.
func (lim *limit) cover(told *limit) {
	surplus := usage(told.status.Used).growth(lim.used)
	for name, q := range lim.reserved {
		switch most, ok := surplus[name]; {
		case !ok:
			delete(lim.reserved, name)
		case q.Cmp(most) > 0:
			lim.reserved[name] = most
		}
	}
}

// land notes that something has come which was perhaps reserved.
func (lim *limit) land(grown usage, rev int64) {
	lim.landedAt, lim.landed = rev, usage{}
	for name, q := range grown {
		rest, ok := lim.reserved[name]
		if !ok {
			continue
		}
		if rest.Cmp(q) <= 0 {
			lim.landed[name] = rest
			delete(lim.reserved, name)
			continue
		}
		lim.landed[name] = q
		rest = rest.DeepCopy()
		rest.Sub(q)
		lim.reserved[name] = rest
	}
	lim.unsaved = lim.unsaved || len(lim.landed) > 0
}

// expire ends what has been reserved for too long.
func (lim *limit) expire(now time.Time) {
	if len(lim.reserved) > 0 && now.After(lim.reservedUntil) {
		clear(lim.reserved)
		lim.unsaved = true
	}
}
