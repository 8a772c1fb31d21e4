package quota

// This file implements a quota with the limits in its spec, its stored status, and the amounts
// reserved by a kube-apiserver through the status (see shared.go).

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
)

// reservedFor is the maximum life of a reservation. kube-apiserver writes the object some
// milliseconds after the status.
const reservedFor = 5 * time.Second

// limit contains the limits of a quota and the current usage.
type limit struct {
	name          string
	uid           types.UID
	rev           int64 // revision of the known version
	spec          corev1.ResourceQuotaSpec
	status        corev1.ResourceQuotaStatus // as stored
	requirements  []requirement
	used, pending usage // for the names in spec.hard
	unsaved       bool  // the stored status may be outdated

	reserved      usage     // by a kube-apiserver, for expected objects
	reservedUntil time.Time // expiry of the reservation
	consumed      usage     // the part of the reservation used by the last object
	consumedAt    int64     // revision of that object
}

func newLimit(q *corev1.ResourceQuota, rev int64) *limit {
	return &limit{name: q.Name, uid: q.UID, rev: rev, spec: q.Spec, status: q.Status, requirements: requirementsOf(&q.Spec), pending: usage{}, reserved: usage{}, unsaved: true}
}

// counts reports whether both versions limit the same resources in the same scopes, which means
// that the usage is the same. The amounts may differ.
func (lim *limit) counts(other *limit) bool {
	return lim.name == other.name && lim.uid == other.uid && slices.Equal(sortedNames(lim.spec.Hard), sortedNames(other.spec.Hard)) &&
		slices.Equal(lim.spec.Scopes, other.spec.Scopes) && equality.Semantic.DeepEqual(lim.spec.ScopeSelector, other.spec.ScopeSelector)
}

func sortedNames(list corev1.ResourceList) []corev1.ResourceName {
	return slices.Sorted(maps.Keys(list))
}

// copyFrom copies the spec, the status and the revision from other, which is another version of the
// quota.
func (lim *limit) copyFrom(other *limit) {
	lim.rev, lim.spec, lim.status, lim.unsaved = other.rev, other.spec, other.status, true
}

// isStatusCurrent reports whether the stored status is correct.
func (lim *limit) isStatusCurrent() bool {
	return usage(lim.status.Hard).equal(usage(lim.spec.Hard)) && usage(lim.status.Used).equal(lim.statusUsage())
}

// isStatusComplete reports whether the stored status has all limited names and the current limits.
func (lim *limit) isStatusComplete() bool {
	for name := range lim.used {
		if _, ok := lim.status.Used[name]; !ok {
			return false
		}
	}
	return usage(lim.status.Hard).equal(usage(lim.spec.Hard))
}

// statusUsage returns the used amounts that the status should have: the usage plus the
// reservations. The caller owns the result.
func (lim *limit) statusUsage() usage {
	told := usage{}
	told.add(lim.used)
	told.add(lim.reserved)
	return told
}

// reserve updates the reservations for a new version of the quota. together means that the version
// was written in the same revision as a counted object.
func (lim *limit) reserve(next *limit, together bool, now time.Time) {
	if together {
		if lim.consumedAt == next.rev { // the reservation is for another object
			lim.reserved.add(lim.consumed)
			lim.consumed = nil
		}
		return
	}
	if raised := usage(next.status.Used).growth(usage(lim.status.Used)).of(sortedNames(lim.spec.Hard)); len(raised) > 0 {
		lim.reserved.add(raised)
		lim.reservedUntil = now.Add(reservedFor)
	}
	lim.cover(next)
}

// cover reduces the reservations to the excess of the status over the usage.
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

// addUsage records an increase of the usage, which may use up reservations.
func (lim *limit) addUsage(grown usage, rev int64) {
	lim.consumedAt, lim.consumed = rev, usage{}
	for name, q := range grown {
		rest, ok := lim.reserved[name]
		if !ok {
			continue
		}
		if rest.Cmp(q) <= 0 {
			lim.consumed[name] = rest
			delete(lim.reserved, name)
			continue
		}
		lim.consumed[name] = q
		rest = rest.DeepCopy()
		rest.Sub(q)
		lim.reserved[name] = rest
	}
	lim.unsaved = lim.unsaved || len(lim.consumed) > 0
}

// expire drops reservations that are too old.
func (lim *limit) expire(now time.Time) {
	if len(lim.reserved) > 0 && now.After(lim.reservedUntil) {
		clear(lim.reserved)
		lim.unsaved = true
	}
}
