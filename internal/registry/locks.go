package registry

// This file says who works at the same time and who waits. A write is computed outside of any lock and committed if nobody was faster; so
// fifty writers of one object would cost fifty rounds each. Who has lost once waits here for the key's lock, and computes again when it has
// it. Writers of other keys, and those that come first, never wait.

import (
	"context"
	"sync"
)

// keyLocks are the queues of keys that somebody waits for or works on.
type keyLocks struct {
	mu     sync.Mutex // guards queues and their lengths
	queues map[string]*keyLock
}

type keyLock struct {
	turn   chan struct{} // holds one token while somebody has the turn
	length int
}

// lock waits for the key's turn, no longer than ctx lasts, and returns what ends the turn. Who has it may be waiting for a webhook.
func (q *keyLocks) lock(ctx context.Context, key string) (leave func(), err error) {
	queue := q.join(key)
	select {
	case queue.turn <- struct{}{}:
		return func() {
			<-queue.turn
			q.leave(key, queue)
		}, nil
	case <-ctx.Done():
		q.leave(key, queue)
		return nil, ctx.Err()
	}
}

func (q *keyLocks) join(key string) *keyLock {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.queues == nil {
		q.queues = map[string]*keyLock{}
	}
	queue := q.queues[key]
	if queue == nil {
		queue = &keyLock{turn: make(chan struct{}, 1)}
		q.queues[key] = queue
	}
	queue.length++
	return queue
}

func (q *keyLocks) leave(key string, queue *keyLock) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if queue.length--; queue.length == 0 {
		delete(q.queues, key)
	}
}

// reserveStack grows the stack of a new goroutine to the size that a write needs. Without it the runtime
// doubles the stack four times in the middle of the write, and copies more frames each time.
//
//go:noinline
func reserveStack() {
	var space [16 << 10]byte
	touch(&space)
}

//go:noinline
func touch(space *[16 << 10]byte) { space[0] = 1 }

// Parallel runs do for every item, as many at once as there are seats, so that their commits share an fsync, and returns the error of
// the first in order.
func Parallel[T any](items []T, seats int, do func(T) error) error {
	var group sync.WaitGroup
	failed := make([]error, len(items))
	free := make(chan struct{}, seats)
	for i, item := range items {
		free <- struct{}{}
		group.Go(func() {
			reserveStack()
			defer func() { <-free }()
			failed[i] = do(item)
		})
	}
	group.Wait()
	for _, err := range failed {
		if err != nil {
			return err
		}
	}
	return nil
}
