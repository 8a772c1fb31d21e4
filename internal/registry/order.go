package registry

// This file has the objects of a collection go in the order of their keys, although several are deleted at once: each commit takes its place in the
// store's queue behind that of the object before, and none waits for another to be durable, so that they still share an fsync.
//
//	a: read, ask, ─┐ commit 1 ─┐         ┌─ commit 2 ─┐
//	b: read, ask,  └─ ─ ─ ─ ─ ─┴ commit 1  ─ ─ ─ ─ ─ ─┴ commit 2
//
// Where the objects lie in an etcd cluster, which orders what several ask for at once, only the asking has this order.

import (
	"context"

	"apilet/internal/store"
)

// stepsInOrder are the commits of one deletion: the mark, the tombstone. What is tried again goes as it comes.
const stepsInOrder = 2

// A turn is one object's place among those that are written at once.
type turn struct {
	before *turn                       // the object before; nil: there is none, or this one is done
	queued [stepsInOrder]chan struct{} // each closed when that commit has its place, or will not come
	next   int                         // the step that is to come
}

type turnKey struct{}

// inOrder is Parallel whose commits, made with the context that do is given, go in the order of the items.
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

// takeTurn waits until the same step of the object before has its place, and has the change tell when it has its own.
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
	c.Queued = func() { t.passed(step) }
	return nil
}

// passed lets the next object's step follow. A change that is put into the queue again tells once more.
func (t *turn) passed(step int) {
	if t.next == step {
		close(t.queued[step])
		t.next++
	}
}

// end lets those behind go on, whatever has become of this one.
func (t *turn) end() {
	for t.next < stepsInOrder {
		t.passed(t.next)
	}
	t.before = nil
}
