package store

// This file is about who waits: for a revision, and for room that compaction makes.

import "sync"

// revisionWaiters wait for revisions; Store.mu guards them.
type revisionWaiters struct{ waiting []revisionWaiter }

type revisionWaiter struct {
	rev     int64
	reached chan struct{}
}

// add returns what is closed once the store has reached a revision. The caller holds Store.mu.
func (w *revisionWaiters) add(rev int64) chan struct{} {
	reached := make(chan struct{})
	w.waiting = append(w.waiting, revisionWaiter{rev, reached})
	return reached
}

// forget is for who waits no longer. The caller holds Store.mu.
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

// release lets go who waits for what has been reached. The caller holds Store.mu.
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

// A roomMaker is who compacts when deletes are short of room.
type roomMaker struct {
	short chan struct{} // a token once they are; capacity 1, so that the writer never waits

	mu     sync.Mutex    // guards what follows
	active bool          // somebody reads short
	made   chan struct{} // closed after the next compaction for want of room
}

func newRoomMaker() roomMaker {
	return roomMaker{short: make(chan struct{}, 1), made: make(chan struct{})}
}

// begin says that short is read until end is called.
func (m *roomMaker) begin() (end func()) {
	m.set(true)
	return func() { m.set(false) }
}

// set says whether short is read, and releases the deletes that wait.
func (m *roomMaker) set(active bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.active = active
	close(m.made)
	m.made = make(chan struct{})
}

// next is closed after the next compaction for want of room; nil where nobody makes any.
func (m *roomMaker) next() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.active {
		return nil
	}
	return m.made
}

// call asks for a compaction.
func (m *roomMaker) call() {
	select {
	case m.short <- struct{}{}:
	default: // it is asked for already
	}
}
