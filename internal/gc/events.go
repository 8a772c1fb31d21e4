package gc

// This file writes the Warning event OwnerRefInvalidNamespace, by which Kubernetes' documentation
// tells users to find owner references across namespaces:
//
//	ownerRef [v1/Pod, namespace: a, name: p, uid: 1234] does not exist in namespace "a"
//
// The collector writes it if the owner exists in a namespace other than the dependent's, before it
// deletes the dependent. The event for a cluster-scoped dependent is in namespace default.

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"apilet/internal/registry"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

const (
	invalidNamespace = "OwnerRefInvalidNamespace"
	eventSource      = "garbage-collector-controller"
	reportedMax      = 1024 // maximum number of remembered reports
	searchBurst      = 100  // maximum burst of searches for owners in all namespaces
	searchRate       = 10   // sustained number of searches per second
)

// A report identifies a reference that has been processed. If the dependent is empty, the owner
// does not exist in any namespace.
type report struct{ dependent, owner types.UID }

// reports remembers which references need no further search, and limits the searches. It is safe
// for concurrent use.
type reports struct {
	mu      sync.Mutex          // guards the fields below
	done    map[report]struct{} // at most reportedMax
	budget  float64             // number of searches that may begin now
	counted time.Time           // when budget was computed
}

func (rs *reports) has(r report) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	_, found := rs.done[r]
	return found
}

func (rs *reports) add(r report) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.done == nil || len(rs.done) >= reportedMax {
		rs.done = map[report]struct{}{}
	}
	rs.done[r] = struct{}{}
}

// allowSearch reports whether a search may begin. A search reads one key per namespace. Without a
// limit, a user could slow down the collector by creating many objects with invalid owners.
func (rs *reports) allowSearch(now time.Time) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.budget = min(searchBurst, rs.budget+now.Sub(rs.counted).Seconds()*searchRate)
	rs.counted = now
	if rs.budget < 1 {
		return false
	}
	rs.budget--
	return true
}

// reportInvalidNamespace writes an event for the first reference whose owner exists in another
// namespace. If an event cannot be written, for example because the namespace is being deleted, the
// collector ignores the error.
func (rp *reaper) reportInvalidNamespace(ctx context.Context, it *item, references []metav1.OwnerReference) {
	for i := range references {
		ref := &references[i]
		owner := rp.kinds.byKind[kindName{ref.APIVersion, ref.Kind}]
		if owner == nil || !owner.Namespaced || rp.reports.has(report{it.uid, ref.UID}) || rp.reports.has(report{owner: ref.UID}) {
			continue
		}
		if !rp.reports.allowSearch(time.Now()) {
			return
		}
		switch found, err := rp.ownerElsewhere(owner, it.namespace, ref); {
		case err != nil:
			return
		case found:
			rp.reports.add(report{it.uid, ref.UID})
			_ = rp.writeEvent(ctx, it, ref)
			return
		}
		rp.reports.add(report{owner: ref.UID}) // no other object ever gets this uid
	}
}

// ownerElsewhere reports whether the owner that a reference names exists in any namespace but one.
func (rp *reaper) ownerElsewhere(owner *scheme.Resource, except string, ref *metav1.OwnerReference) (bool, error) {
	for rec, err := range rp.gc.Store.All(store.Span{Prefix: NamespacePrefix, SkipDamaged: true}) {
		if err != nil {
			return false, err
		}
		_, namespace := scheme.NamespacedName(rec.Key)
		if namespace == except {
			continue
		}
		found, err := rp.gc.Store.Get(owner.Key(namespace, ref.Name))
		if err == nil && uidOf(found.JSON) == string(ref.UID) {
			return true, nil
		}
	}
	return false, nil
}

// writeEvent creates the event, or counts one more occurrence if an earlier run of the collector
// created it.
func (rp *reaper) writeEvent(ctx context.Context, it *item, ref *metav1.OwnerReference) error {
	event := newEvent(it, ref, metav1.NewTime(rp.gc.Store.Now()))
	events := rp.gc.Types.Lookup("", "v1", "events")
	t := registry.Target{Resource: events, Namespace: event.Namespace, Name: event.Name}
	creating, done := rp.gc.begin(ctx, garbageCollector, "create", t)
	_, err := rp.gc.Writer.Insert(creating, events, event, registry.Options{Manager: CollectorName})
	done(err)
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	patching, done := rp.gc.begin(ctx, garbageCollector, "patch", t)
	_, _, err = rp.gc.Writer.Modify(patching, t, registry.Options{Manager: CollectorName}, func(old scheme.Object, _ *store.Record) (scheme.Object, error) {
		again := old.DeepCopyObject().(*corev1.Event)
		again.Count, again.LastTimestamp = again.Count+1, event.LastTimestamp
		return again, nil
	})
	done(err)
	return err
}

// newEvent returns the event of a reference. The name is derived from the two uids, so the same
// event is used after a restart of the server.
func newEvent(it *item, ref *metav1.OwnerReference, now metav1.Time) *corev1.Event {
	id := fnv.New64a()
	_, _ = fmt.Fprintf(id, "%s/%s", it.uid, ref.UID) // never fails
	suffix := fmt.Sprintf("%016x", id.Sum64())
	name := it.name + "." + suffix
	if len(apivalidation.NameIsDNSSubdomain(name, false)) > 0 { // the name is too long, or is not a DNS subdomain
		name = suffix
	}
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: cmp.Or(it.namespace, metav1.NamespaceDefault)},
		InvolvedObject: corev1.ObjectReference{Kind: it.res.Kind, APIVersion: it.res.APIVersion(), Namespace: it.namespace, Name: it.name,
			UID: it.uid},
		Reason: invalidNamespace,
		Message: fmt.Sprintf("ownerRef [%s/%s, namespace: %s, name: %s, uid: %s] does not exist in namespace %q",
			ref.APIVersion, ref.Kind, it.namespace, ref.Name, ref.UID, it.namespace),
		Type: corev1.EventTypeWarning, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source: corev1.EventSource{Component: eventSource}, ReportingController: eventSource,
	}
}
