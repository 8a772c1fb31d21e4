package quota

// This file writes the usage to the status of the quotas, like the quota controller of
// kube-controller-manager. Changes within a short time are written together. If that controller is
// also running, it writes the same status, so it does not matter which of them is faster.

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"apilet/internal/store"
)

const (
	statusPause = 100 * time.Millisecond // time between two rounds, so that changes can be batched
	statusRetry = time.Second            // after a failed round
)

// SaveFunc updates a stored quota. It reads the quota, calls change, and writes the quota if it has
// changed.
type SaveFunc func(ctx context.Context, namespace, name string, change func(*corev1.ResourceQuota)) error

// Run updates the fields status.hard and status.used of all quotas until ctx is done. It calls
// report with the result of each round.
func (q *Quotas) Run(ctx context.Context, save SaveFunc, report func(error)) {
	for ctx.Err() == nil {
		var wake <-chan struct{}
		if q.namespaces.Load() > 0 {
			wake = q.store.WakeChannel(store.Everything)
		}
		pause := statusPause
		next, err := q.round(ctx, save)
		if ctx.Err() == nil {
			report(err)
		}
		if err != nil {
			wake, pause = nil, statusRetry
			q.announce()
		}
		q.sleep(ctx, wake, next)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// sleep waits for a commit, a changed quota, or the time at which a pod ceases to count.
func (q *Quotas) sleep(ctx context.Context, wake <-chan struct{}, next time.Time) {
	var lapse <-chan time.Time
	if !next.IsZero() {
		timer := time.NewTimer(time.Until(next))
		defer timer.Stop()
		lapse = timer.C
	}
	select {
	case <-ctx.Done():
	case <-wake:
	case <-q.changed:
	case <-lapse:
	}
}

// An account is the status to be written to a quota.
type statusUpdate struct {
	namespace, name string
	uid             types.UID
	// Resource version of the quota that the account is for. It is set if another server may have
	// charged a later version; "" means any version.
	rev  string
	used corev1.ResourceList
}

func (q *Quotas) statusUpdateLocked(l *ledger, lim *limit) statusUpdate {
	a := statusUpdate{namespace: l.namespace, name: lim.name, uid: lim.uid, used: lim.statusUsage().list()}
	if q.shared {
		a.rev = strconv.FormatInt(lim.rev, 10)
	}
	return a
}

// round writes the changed statuses. It returns the time at which the next pod ceases to count.
func (q *Quotas) round(ctx context.Context, save SaveFunc) (next time.Time, err error) {
	accounts, next, err := q.unsaved(ctx)
	errs := []error{err}
	for i := range accounts {
		a := &accounts[i]
		err := save(ctx, a.namespace, a.name, a.write)
		if err == nil || apierrors.IsNotFound(err) {
			continue
		}
		errs = append(errs, fmt.Errorf("writing the status of quota %s/%s: %w", a.namespace, a.name, err))
		q.markUnsaved(a)
	}
	return next, errors.Join(errs...)
}

// unsaved returns the statuses to be written in all namespaces whose usage can be computed.
func (q *Quotas) unsaved(ctx context.Context) (accounts []statusUpdate, next time.Time, err error) {
	var errs []error
	for _, namespace := range q.limited() {
		l, err := q.openLedger(ctx, namespace)
		if err != nil {
			errs = append(errs, fmt.Errorf("counting what is used in namespace %s: %w", namespace, err))
		}
		if l == nil || err != nil {
			continue
		}
		for _, lim := range l.limits {
			if lim.unsaved && !lim.isStatusCurrent() {
				accounts = append(accounts, q.statusUpdateLocked(l, lim))
			}
			lim.unsaved = false
		}
		next = earlier(next, l.nextExpiryLocked())
		q.mu.Unlock()
	}
	return accounts, next, errors.Join(errs...)
}

// limited returns the namespaces with a status to write or with usage to compute.
func (q *Quotas) limited() (namespaces []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.refreshLocked()
	q.drainLocked()
	for namespace, l := range q.ledgers {
		if l.needsStatusWriteLocked() {
			namespaces = append(namespaces, namespace)
		}
	}
	return namespaces
}

func (l *ledger) needsStatusWriteLocked() bool {
	if !l.counted || len(l.deleting) > 0 {
		return true
	}
	for _, lim := range l.limits {
		if lim.unsaved || len(lim.reserved) > 0 {
			return true
		}
	}
	return false
}

// write updates the status of the stored quota. Equal quantities keep their notation.
func (a *statusUpdate) write(stored *corev1.ResourceQuota) {
	if stored.UID != a.uid || a.rev != "" && a.rev != stored.ResourceVersion {
		return // a later version will follow in the log
	}
	if hard := usage(stored.Spec.Hard); !usage(stored.Status.Hard).equal(hard) {
		stored.Status.Hard = hard.list()
	}
	if !usage(stored.Status.Used).equal(usage(a.used)) {
		stored.Status.Used = a.used
	}
}

// markUnsaved marks the status of an account to be written again.
func (q *Quotas) markUnsaved(a *statusUpdate) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.ledgers[a.namespace]
	if l == nil {
		return
	}
	for _, lim := range l.limits {
		if lim.name == a.name {
			lim.unsaved = true
		}
	}
}
