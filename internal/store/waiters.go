package store

// This file implements waiting for a revision, and waiting for room after a compaction.

import "sync"

// revisionWaiters are the waiters for revisions. They are guarded by Store.mu.
type revisionWaiters struct{ waiting []revisionWaiter }

type revisionWaiter struct {
	rev     int64
	reached chan struct{}
}

// add returns a channel that is closed when the store reaches rev. The caller must hold Store.mu.
func (w *revisionWaiters) add(rev int64) chan struct{} {
	reached := make(chan struct{})
	w.waiting = append(w.waiting, revisionWaiter{rev, reached})
	return reached
}

// forget removes a waiter. The caller must hold Store.mu.
func (w *revisionWaiters) forget(reached chan struct{}) {
	for i := range w.waiting {
		if w.waiting[i].reached == reached {
			last := len(w.waiting) - 1
			w.waiting[i], w.waiting[last] = w.waiting[last], revisionWaiter{}
			w.waiting = w.waiting[:last]
			return
		}
	}
}

// release wakes the waiters for revisions up to rev. The caller must hold Store.mu.
func (w *revisionWaiters) release(rev int64) {
	left := w.waiting[:0]
	for _, waiter := range w.waiting {
		if waiter.rev <= rev {
			close(waiter.reached)
		} else {
			left = append(left, waiter)
		}
	}
	clear(w.waiting[len(left):])
	w.waiting = left
}

// A roomMaker connects deletes that lack room with the goroutine that compacts.
type roomMaker struct {
	// short is used to request a compaction. It has a capacity of 1, so that the writer does not
	// block.
	short chan struct{}

	mu     sync.Mutex    // guards the fields below
	active bool          // a goroutine reads short
	made   chan struct{} // closed after the next compaction for lack of space
}

func newRoomMaker() roomMaker {
	return roomMaker{short: make(chan struct{}, 1), made: make(chan struct{})}
}

// begin announces that the caller reads short until it calls end.
func (m *roomMaker) begin() (end func()) {
	m.set(true)
	return func() { m.set(false) }
}

// set sets active and wakes the waiting deletes.
func (m *roomMaker) set(active bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.active = active
	close(m.made)
	m.made = make(chan struct{})
}

// next returns a channel that is closed after the next compaction for lack of space, or nil if
// there will be none.
func (m *roomMaker) next() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.active {
		return nil
	}
	return m.made
}

// call requests a compaction.
func (m *roomMaker) call() {
	select {
	case m.short <- struct{}{}:
	default: // already requested
	}
}
