package registry

// This file serializes competing writers of one object. A write is computed without holding a lock,
// and fails to commit if the object has been modified by another writer. For example, if there are
// fifty concurrent writers, up to fifty attempts would be needed for each of them. After its first
// conflict a writer waits for the lock of the key, and then computes the write again. The first
// attempt never waits. Writes to other keys are not affected.

import (
	"context"
	"sync"
)

// keyLocks contains the queues of keys that have a holder or waiting writers.
type keyLocks struct {
	mu     sync.Mutex // guards queues and their lengths
	queues map[string]*keyLock
}

type keyLock struct {
	turn   chan struct{} // full while the lock is held by a writer
	length int
}

// lock waits for the lock of the key until ctx is done. It returns the function that releases the
// lock. The holder of the lock may be waiting for a webhook.
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

// reserveStack grows the stack of a new goroutine to the size that a write needs. Without it the
// runtime doubles the stack four times in the middle of the write, and copies more frames each
// time.
//
//go:noinline
func reserveStack() {
	var space [16 << 10]byte
	touch(&space)
}

//go:noinline
func touch(space *[16 << 10]byte) { space[0] = 1 }

// Parallel calls do for every item, with at most the given number of concurrent calls, so their
// commits share an fsync. It returns the error of the first failed item in order.
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
