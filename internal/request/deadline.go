package request

// This file is the context of a request that may take so long and no longer. Most are over before anybody waits for that, so nothing is set up
// until somebody does: no timer, no place among those that the end of the connection ends.

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// A deadline is what context.WithDeadline returns, made by the first who asks whether it is over, or when.
type deadline struct {
	context.Context // the parent
	at              time.Time

	mu     sync.Mutex // guards what follows; made is read without
	made   atomic.Pointer[context.Context]
	cancel context.CancelFunc // of what is made
	over   bool               // cancelled before it was made
}

// WithDeadline is context.WithDeadline for what is likely to end before anybody waits for it. cancel is to be called when it does.
func WithDeadline(parent context.Context, at time.Time) (ctx context.Context, cancel context.CancelFunc) {
	if sooner, ok := parent.Deadline(); ok && sooner.Before(at) {
		at = sooner
	}
	d := &deadline{Context: parent, at: at}
	return d, d.end
}

func (d *deadline) Deadline() (time.Time, bool) { return d.at, true }

func (d *deadline) Done() <-chan struct{} { return d.make().Done() }

// Err makes the context only where it is over: so what it says stays true, and is what all others say.
func (d *deadline) Err() error {
	if d.made.Load() == nil && d.Context.Err() == nil && time.Now().Before(d.at) && !d.isOver() {
		return nil
	}
	return d.make().Err()
}

// Value leads those who look for the nearest context that can be cancelled to this one, once there is one: Done comes before.
func (d *deadline) Value(key any) any {
	if made := d.made.Load(); made != nil {
		return (*made).Value(key)
	}
	return d.Context.Value(key)
}

func (d *deadline) isOver() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.over
}

func (d *deadline) make() context.Context {
	if made := d.made.Load(); made != nil {
		return *made
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if made := d.made.Load(); made != nil {
		return *made
	}
	made, cancel := context.WithDeadline(d.Context, d.at)
	if d.over {
		cancel()
	}
	d.cancel = cancel
	d.made.Store(&made)
	return made
}

func (d *deadline) end() {
	d.mu.Lock()
	d.over = true
	cancel := d.cancel
	d.mu.Unlock()
	if cancel != nil {
		cancel() // without the lock: it calls others
	}
}
