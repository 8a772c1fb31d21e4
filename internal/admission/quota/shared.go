package quota

// This file: several servers share the objects, and each has its ledger. A ledger knows what the log had, and another server may be writing now.
// So the status of a quota is the token that they pass: a charged write changes it in the same revision as the object, from the version that the
// ledger knows.
//
//	log   ... quota q {used 4} at 17 | pod a, q {used 5} at 21 | pod b deleted at 22 | q {used 4} at 25 ...
//
//	server 1   ledger at 18: 4 of 5 used    pod a with q, if q is still of 17                 carried out, at 21
//	server 2   ledger at 18: 4 of 5 used    pod c with q, if q is still of 17                 lost: reads on to 21, 5 of 5 used: refused
//
// Whatever has made use grow since a quota's version has changed the quota: a write that finds it unchanged has room where the ledger says so. What
// frees something (pod b) does without; the status is lowered later, by the next charge or by the server that keeps it, from the version that its
// ledger knows, too. So status.used is never less than what is used, and a process that is killed leaves nothing behind.
//
// A kube-apiserver beside writes the status first, and the object then, in a revision of its own. What a status has grown by alone is therefore
// reserved: for the objects that come, and for reservedFor at most, since some never do.
//
//	log   ... q {used 5} at 31 | pod d at 33 ...        reserved: 0, 1 at 31, 0 again at 33
//
// A server's own charges of a namespace take turns, since each needs the version that the one before it has made.

import (
	"cmp"
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"apilet/internal/store"
)

const together = 100 // statuses in one revision: etcd takes 128 operations. Further quotas are held by each server by itself

// Shared says that what the promise is for has to be written together with With. A promise of nil is none.
func (p *Promise) Shared() bool { return p != nil && p.quotas.shared }

// With returns the statuses that have to be written in the revision of what was promised, or an error when there is no room any more. It may be asked
// again. Until Release no other write of this server's is charged to the namespace.
func (p *Promise) With(ctx context.Context, save Save) ([]store.Change, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for confirmed := false; p.ledger != nil; {
		if err := p.takeTurn(ctx); err != nil {
			return nil, outOfTime(ctx, err)
		}
		changes, bare, err := p.statuses()
		var wait time.Duration
		switch {
		case errors.Is(err, errOutdated):
			err = p.renew(ctx)
		case errors.Is(err, errPromised):
			err, wait = nil, lookAgain
		case errors.Is(err, errBehind):
			err, wait = nil, time.Millisecond
		case err != nil && !confirmed:
			confirmed = true
			_, err = p.quotas.store.Current(ctx)
		case bare != nil:
			if err = save(ctx, bare.namespace, bare.name, bare.write); apierrors.IsNotFound(err) {
				err, wait = nil, time.Millisecond // the log is about to tell that it is gone
			}
		case err == nil:
			return changes, nil
		}
		if err == nil {
			err = pause(ctx, wait)
		}
		if err != nil {
			return nil, outOfTime(ctx, err)
		}
	}
	return nil, nil // no quota is concerned any more
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

// takeTurn waits until no other write of this server's is being charged to the namespace.
func (p *Promise) takeTurn(ctx context.Context) error {
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

// renew begins again with what the quotas have become. There may be none left.
func (p *Promise) renew(ctx context.Context) error {
	write := p.write
	p.Release()
	fresh, err := p.quotas.charge(ctx, write)
	if fresh != nil {
		*p = *fresh
		p.write = write
	}
	return err
}

// statuses makes the changes of With. bare is a status that has to be made whole first.
func (p *Promise) statuses() (changes []store.Change, bare *account, err error) {
	q, l := p.quotas, p.ledger
	q.mu.Lock()
	defer q.mu.Unlock()
	q.refreshLocked()
	q.drainLocked()
	if q.ledgers[l.namespace] != l || l.stale || !l.counted {
		return nil, nil, errOutdated
	}
	l.lapseLocked(q, time.Now())
	for _, part := range p.parts {
		if err := cmp.Or(part.limit.refuse(p.write, part.taken), part.limit.refuse(p.write, part.taken, part.limit.reserved)); err != nil {
			return nil, nil, err
		}
	}
	for _, part := range p.parts[:min(len(p.parts), together)] {
		if !part.limit.whole() {
			a := q.accountLocked(l, part.limit)
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

// statusLocked is the status of a quota with what a write takes.
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
	used := part.limit.told()
	used.add(part.taken)
	obj.(*corev1.ResourceQuota).Status.Used = used.list()
	json, revAt, err := res.EncodeStored(obj)
	return store.Change{Op: store.OpUpdate, Key: rec.Key, Expect: rec.Rev, Deleting: rec.Deleting, JSON: json, RevAt: revAt}, err
}
