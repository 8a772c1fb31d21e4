package quota

// This file writes what is used into the status of the quotas, as kube-controller-manager's quota controller does: a moment after the
// change, once for all changes of that moment. Where that controller runs as well both write the same; who is slower finds it written.

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
	statusPause = 100 * time.Millisecond // between two rounds: changes meanwhile are written together
	statusRetry = time.Second            // after one that failed
)

// Save changes a stored quota: it reads it, lets change have it, and writes it if it became another.
type Save func(ctx context.Context, namespace, name string, change func(*corev1.ResourceQuota)) error

// Run keeps status.hard and status.used of all quotas what they are, until ctx ends. report is told what came of each round.
func (q *Quotas) Run(ctx context.Context, save Save, report func(error)) {
	for ctx.Err() == nil {
		var wake <-chan struct{}
		if q.namespaces.Load() > 0 {
			wake = q.store.Wake(store.Everything)
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

// sleep waits for something to do: a commit, another quota, a pod whose time is over.
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

// An account is what the status of a quota is to say.
type account struct {
	namespace, name string
	uid             types.UID
	rev             string // of the quota of which that is so, where another server may have charged a later one; "": of any
	used            corev1.ResourceList
}

func (q *Quotas) accountLocked(l *ledger, lim *limit) account {
	a := account{namespace: l.namespace, name: lim.name, uid: lim.uid, used: lim.told().list()}
	if q.shared {
		a.rev = strconv.FormatInt(lim.rev, 10)
	}
	return a
}

// round writes what has changed, and returns when the next pod ceases to count.
func (q *Quotas) round(ctx context.Context, save Save) (next time.Time, err error) {
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

// unsaved collects what is to be written, of all namespaces that can be counted.
func (q *Quotas) unsaved(ctx context.Context) (accounts []account, next time.Time, err error) {
	var errs []error
	for _, namespace := range q.limited() {
		l, err := q.open(ctx, namespace)
		if err != nil {
			errs = append(errs, fmt.Errorf("counting what is used in namespace %s: %w", namespace, err))
		}
		if l == nil || err != nil {
			continue
		}
		for _, lim := range l.limits {
			if lim.unsaved && !lim.tells() {
				accounts = append(accounts, q.accountLocked(l, lim))
			}
			lim.unsaved = false
		}
		next = sooner(next, l.nextLapseLocked())
		q.mu.Unlock()
	}
	return accounts, next, errors.Join(errs...)
}

// limited are the namespaces that have something to write, or to count.
func (q *Quotas) limited() (namespaces []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.refreshLocked()
	q.drainLocked()
	for namespace, l := range q.ledgers {
		if l.concernsWriterLocked() {
			namespaces = append(namespaces, namespace)
		}
	}
	return namespaces
}

func (l *ledger) concernsWriterLocked() bool {
	if !l.counted || len(l.leaving) > 0 {
		return true
	}
	for _, lim := range l.limits {
		if lim.unsaved || len(lim.reserved) > 0 {
			return true
		}
	}
	return false
}

// write brings the status of the stored quota up to date. Quantities that are equal stay as they are written.
func (a *account) write(stored *corev1.ResourceQuota) {
	if stored.UID != a.uid || a.rev != "" && a.rev != stored.ResourceVersion {
		return // the log tells of the later one
	}
	if hard := usage(stored.Spec.Hard); !usage(stored.Status.Hard).equal(hard) {
		stored.Status.Hard = hard.list()
	}
	if !usage(stored.Status.Used).equal(usage(a.used)) {
		stored.Status.Used = a.used
	}
}

// markUnsaved has an account written again.
func (q *Quotas) markUnsaved(a *account) {
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
