package quota

// This file coordinates several servers that share the objects. Each server has its own ledger,
// which may be outdated while another server is writing. Therefore the status of a quota is used
// as a lock. A charged write updates the status in the same revision as the object, provided that
// the version of the quota is still the one in the ledger.
//
//	log   ... quota q {used 4} at 17 | pod a, q {used 5} at 21 | pod b deleted at 22 | q {used 4} at 25 ...
//
//	server 1   ledger at 18: 4 of 5 used    pod a with q, if q is still at 17                 succeeds, at 21
//	server 2   ledger at 18: 4 of 5 used    pod c with q, if q is still at 17                 fails: reads to 21, 5 of 5 used: rejected
//
// Every write that increases the usage also changes the quota. If the quota is unchanged, the
// ledger's room is real. A write that decreases the usage (pod b) does not change the quota. The
// status is lowered later by the next charge, or by the status writer of any server. Both check
// that the version has not changed. As a result, status.used is never less than the actual usage,
// and there is nothing to clean up if a process is killed.
//
// A kube-apiserver that shares the store writes the status first and the object later, in a
// separate revision. If a status grows without an object, the increase is reserved. The
// reservation ends when the object arrives, or after reservedFor, since some objects never arrive.
//
//	log   ... q {used 5} at 31 | pod d at 33 ...        reserved: 0, 1 at 31, 0 again at 33
//
// A server only charges one write at a time in each namespace, since each charge needs the version
// created by the previous one.

import (
	"cmp"
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"apilet/internal/store"
)

// maxStatuses is the maximum number of statuses written in one revision, because etcd allows 128
// operations in a transaction. Quotas beyond it are enforced by each server separately.
const maxStatuses = 100

// Shared reports whether the promised write has to be committed together with the changes from
// StatusChanges. It returns false for a nil promise.
func (p *Reservation) Shared() bool { return p != nil && p.quotas.shared }

// StatusChanges returns the status changes that must be committed in the same revision as the
// promised write, or an error if there is no room any more. It may be called again. Until Release,
// this server charges no other write to the namespace.
func (p *Reservation) StatusChanges(ctx context.Context, save SaveFunc) ([]store.Change, error) {
	ctx, cancel := context.WithTimeout(ctx, chargeTimeout)
	defer cancel()
	for confirmed := false; p.ledger != nil; {
		if err := p.takeTurn(ctx); err != nil {
			return nil, timeoutError(ctx, err)
		}
		changes, bare, err := p.statuses()
		var wait time.Duration
		switch {
		case errors.Is(err, errOutdated):
			err = p.recharge(ctx)
		case errors.Is(err, errReserved):
			err, wait = nil, pollInterval
		case errors.Is(err, errBehind):
			err, wait = nil, time.Millisecond
		case err != nil && !confirmed:
			confirmed = true
			_, err = p.quotas.store.Current(ctx)
		case bare != nil:
			if err = save(ctx, bare.namespace, bare.name, bare.write); apierrors.IsNotFound(err) {
				err, wait = nil, time.Millisecond // the log will soon have the deletion
			}
		case err == nil:
			return changes, nil
		}
		if err == nil {
			err = pause(ctx, wait)
		}
		if err != nil {
			return nil, timeoutError(ctx, err)
		}
	}
	return nil, nil // no quota applies any more
}

var (
	errOutdated = errors.New("the quotas of the namespace are not those of which was promised")
	errBehind   = errors.New("the log is about to tell of a quota's change")
)

func pause(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return ctx.Err()
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// takeTurn waits until this server charges no other write to the namespace.
func (p *Reservation) takeTurn(ctx context.Context) error {
	if p.turn {
		return ctx.Err()
	}
	select {
	case p.ledger.turn <- struct{}{}:
		p.turn = true
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// recharge charges the write again after the quotas have changed. There may be none left.
func (p *Reservation) recharge(ctx context.Context) error {
	write := p.write
	p.Release()
	fresh, err := p.quotas.charge(ctx, write)
	if fresh != nil {
		*p = *fresh
		p.write = write
	}
	return err
}

// statuses computes the changes for StatusChanges. bare is a status that must be completed first.
func (p *Reservation) statuses() (changes []store.Change, bare *statusUpdate, err error) {
	q, l := p.quotas, p.ledger
	q.mu.Lock()
	defer q.mu.Unlock()
	q.refreshLocked()
	q.drainLocked()
	if q.ledgers[l.namespace] != l || l.stale || !l.counted {
		return nil, nil, errOutdated
	}
	l.expirePodsLocked(q, time.Now())
	for _, part := range p.parts {
		if err := cmp.Or(part.limit.checkRoom(p.write, part.usage), part.limit.checkRoom(p.write, part.usage, part.limit.reserved)); err != nil {
			return nil, nil, err
		}
	}
	for _, part := range p.parts[:min(len(p.parts), maxStatuses)] {
		if !part.limit.isStatusComplete() {
			a := q.statusUpdateLocked(l, part.limit)
			return nil, &a, nil
		}
		change, err := q.statusLocked(l, part)
		if err != nil {
			return nil, nil, err
		}
		changes = append(changes, change)
	}
	return changes, nil, nil
}

// statusLocked returns the change that adds the usage of a write to the status of a quota.
func (q *Quotas) statusLocked(l *ledger, part part) (store.Change, error) {
	res := q.quotas()
	rec, err := q.store.Get(res.Key(l.namespace, part.limit.name))
	if errors.Is(err, store.ErrNotFound) || err == nil && rec.Rev != part.limit.rev {
		return store.Change{}, errBehind
	}
	if err != nil {
		return store.Change{}, err
	}
	obj, err := res.DecodeStored(rec.JSON)
	if err != nil {
		return store.Change{}, err
	}
	used := part.limit.statusUsage()
	used.add(part.usage)
	obj.(*corev1.ResourceQuota).Status.Used = used.list()
	json, revAt, err := res.EncodeStored(obj)
	return store.Change{Op: store.OpUpdate, Key: rec.Key, Expect: rec.Rev, Deleting: rec.Deleting, JSON: json, RevAt: revAt}, err
}
