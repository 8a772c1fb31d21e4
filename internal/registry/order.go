package registry

// This file ensures that objects in a collection are deleted in the order of their keys, even if
// several objects are deleted concurrently. Each commit enters the store's queue after the commit
// of the previous object. It does not wait until that commit is durable, so the commits still share
// an fsync.
//
//	a: read, ask, ─┐ commit 1 ─┐         ┌─ commit 2 ─┐
//	b: read, ask,  └─ ─ ─ ─ ─ ─┴ commit 1  ─ ─ ─ ─ ─ ─┴ commit 2
//
// If the objects are stored in an etcd cluster, only the requests to etcd have this order, because
// etcd orders concurrent requests itself.

import (
	"context"

	"apilet/internal/store"
)

// stepsInOrder is the number of ordered commits per deletion: the mark and the tombstone. Retries
// are not ordered.
const stepsInOrder = 2

// A turn represents the position of an object in a list of objects that are deleted concurrently.
type turn struct {
	before *turn // turn of the previous object, or nil if there is none
	// each closed when that commit is in the queue, or will not happen
	queued [stepsInOrder]chan struct{}
	next   int // the next step
}

type turnKey struct{}

// inOrder is like Parallel, but commits with the context of do are in the order of the items.
func inOrder[T any](ctx context.Context, items []T, seats int, do func(context.Context, T) error) error {
	type placed struct {
		item T
		turn *turn
	}
	all := make([]placed, len(items))
	for i := range items {
		t := &turn{}
		for step := range t.queued {
			t.queued[step] = make(chan struct{})
		}
		if i > 0 {
			t.before = all[i-1].turn
		}
		all[i] = placed{items[i], t}
	}
	return Parallel(all, seats, func(p placed) error {
		defer p.turn.end()
		return do(context.WithValue(ctx, turnKey{}, p.turn), p.item)
	})
}

// takeTurn waits until the same step of the previous object is in the queue. The next object is
// notified when the change has been added to the queue.
func takeTurn(ctx context.Context, c *store.Change) error {
	t, _ := ctx.Value(turnKey{}).(*turn)
	if t == nil || t.next == stepsInOrder {
		return nil
	}
	step := t.next
	if t.before != nil {
		select {
		case <-t.before.queued[step]:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	c.Queued = func() { t.release(step) }
	return nil
}

// release releases the same step of the next object. It may be called again if a change is queued
// again.
func (t *turn) release(step int) {
	if t.next == step {
		close(t.queued[step])
		t.next++
	}
}

// end releases the remaining steps for the next object, regardless of the result of this object.
func (t *turn) end() {
	for t.next < stepsInOrder {
		t.release(t.next)
	}
	t.before = nil
}
