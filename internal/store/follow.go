package store

// This file defines the Follower, which delivers the current objects to a reader and then each
// change.
//
//	log := st.Follow("//pods/", "//nodes/")
//	for ctx.Err() == nil {
//		err := log.CatchUp(ctx, func() { clear(pods) }, func(ev *store.Event) { pods[ev.Key] = ev.Rev })
//		...
//		log.Wait(ctx, time.Time{}, nil)
//	}
//
// The first result is a reset, and the reader must then discard its state. After the reset, the
// reader receives all live objects in chunks. All objects are read at a single revision. Then the
// reader receives all events after that revision. If the reader is slow, the log may be compacted
// before it has been read. The log may also be damaged. In both cases Next does not return an
// error, but another reset. In this example a reader of pods is at revision 5 when the log is
// compacted at 8:
//
//	Next   reset
//	Next   //pods/a/x of revision 2, //pods/a/z of revision 7     live at 9, the newest revision
//	Next   -                                                     caught up; the reset removed //pods/a/y, deleted at 6
//	Next   //pods/a/x of revision 10, which replaced 2
//
// Reading all objects is expensive. If a reader does not need them, it can call From after a reset
// to continue at any revision.
//
// Watches (watch.go) and streamed logs (package history) do not use a Follower. They start at a
// revision given by the client. If the log no longer reaches back to it, the client receives an
// error and has to start again.

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"
)

const (
	// followMax is the maximum number of resources that can be followed. The select statement in
	// Wait has this many cases.
	followMax    = 5
	eventsAtOnce = 256 // maximum number of events that are read from the log at a time
)

// A Follower reads some resources and then their changes. It must be used by one goroutine at a
// time, but several goroutines may call HasNext and Rev concurrently.
type Follower struct {
	st        *Store
	resources []string
	// at contains the last delivered revision for each resource, or -1 if nothing has been
	// delivered.
	at []int64
	// walking is the index of the resource that is being listed. It is -1 if a reset is next, and
	// len(resources) if the log is being read.
	walking int
	walk    Span // remaining live objects
	// chunk is used to read live objects. It contains the JSON of the events.
	chunk  *Chunk
	events []Event
}

// Follow returns a Follower for at most five resources (`/group/resource/`) or for Everything. It
// does not read anything yet.
func (st *Store) Follow(resources ...string) *Follower {
	if len(resources) > followMax {
		panic("too many resources for one Follower")
	}
	f := &Follower{st: st, resources: resources, at: make([]int64, len(resources))}
	f.From(-1)
	return f
}

// From makes Next continue after rev, or with a reset if rev is negative.
func (f *Follower) From(rev int64) {
	f.walking, f.walk, f.chunk = len(f.resources), Span{}, nil
	if rev < 0 {
		f.walking = -1
	}
	for i := range f.at {
		f.at[i] = rev
	}
}

// Rev returns the last revision for which all events have been delivered. It is -1 from a reset
// until all live objects have been delivered.
func (f *Follower) Rev() int64 {
	rev := f.at[0]
	for _, at := range f.at {
		rev = min(rev, at)
	}
	return rev
}

// Next returns the next events. If reset is true, the reader must discard its state. After a reset,
// Next returns the live objects first and then the events from the log. The log events of a
// resource are sorted by revision. If the end of the log has been reached, Next returns no events.
// The events are only valid until the next call, but their keys can be used after that. After an
// error Next tries the same step again.
func (f *Follower) Next(ctx context.Context) (events []Event, reset bool, err error) {
	clear(f.events) // release the documents
	f.events = f.events[:0]
	if f.walking < 0 {
		f.walking, f.chunk = 0, ChunkPool.Get().(*Chunk)
		return nil, true, nil
	}
	for f.walking < len(f.resources) && len(f.events) == 0 && err == nil {
		if err = ctx.Err(); err == nil {
			err = f.readObjects()
		}
	}
	if f.walking == len(f.resources) && len(f.events) == 0 && f.chunk != nil {
		ChunkPool.Put(f.chunk)
		f.chunk, f.events = nil, nil // this buffer is usually larger than needed for log events
	}
	for i := 0; i < len(f.resources) && len(f.events) == 0 && err == nil; i++ {
		err = f.readLog(i)
	}
	if errors.Is(err, ErrCompacted) || errors.Is(err, ErrDamaged) && f.walking == len(f.resources) {
		f.From(-1)
		return f.Next(ctx)
	}
	return f.events, false, err
}

// readObjects reads the next chunk of live objects and skips damaged ones.
func (f *Follower) readObjects() error {
	f.walk.Prefix, f.walk.SkipDamaged = cmp.Or(f.resources[f.walking], "/"), true
	if err := f.st.Chunk(f.walk, f.chunk); err != nil {
		return err
	}
	f.walk.Rev, f.walk.Start = f.chunk.Rev, f.chunk.Next
	for i := range f.chunk.Records {
		ev := Event{Record: f.chunk.Records[i]}
		ev.Key = strings.Clone(ev.Key) // do not retain all keys of the chunk
		f.events = append(f.events, ev)
	}
	if f.walk.Start == "" {
		f.at[f.walking] = f.chunk.Rev
		f.walking++
	}
	return nil
}

// readLog reads the next events for the resource with the given index.
func (f *Follower) readLog(i int) error {
	for len(f.events) == 0 {
		now := f.st.Revision() // first, so that later events have higher revisions
		if f.at[i] >= f.newest(i) {
			f.at[i] = max(f.at[i], now) // there are no events up to now
			return nil
		}
		events, upTo, err := f.st.Events(f.resources[i], f.at[i], eventsAtOnce, f.events)
		if err != nil {
			return err
		}
		f.events, f.at[i] = events, upTo
	}
	return nil
}

func (f *Follower) newest(i int) int64 {
	if f.resources[i] == Everything {
		return f.st.Revision()
	}
	return f.st.NewestEvent(f.resources[i])
}

// CatchUp delivers the results of Next up to the end of the log. It calls forget for each reset.
// The forget function can call From.
func (f *Follower) CatchUp(ctx context.Context, forget func(), see func(*Event)) error {
	for {
		events, reset, err := f.Next(ctx)
		if reset {
			forget()
		} else if err != nil || len(events) == 0 {
			return err
		}
		for i := range events {
			see(&events[i])
		}
	}
}

// HasNext reports whether Next has something to deliver.
func (f *Follower) HasNext() bool {
	for i := range f.resources {
		if f.walking < len(f.resources) || f.at[i] < f.newest(i) {
			return true
		}
	}
	return false
}

// Wait blocks until there is a new event or ctx is done. If until is not zero, Wait also returns at
// that time. If also is not nil, Wait also returns when that channel is ready. Wait returns
// immediately if there were writes since the last read, so it can be called after the log is read.
func (f *Follower) Wait(ctx context.Context, until time.Time, also <-chan struct{}) {
	var wake [followMax]<-chan struct{}
	for i, resource := range f.resources {
		wake[i] = f.st.WakeChannel(resource)
	}
	if f.HasNext() {
		return
	}
	var due <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-wake[0]:
	case <-wake[1]:
	case <-wake[2]:
	case <-wake[3]:
	case <-wake[4]:
	case <-due:
	case <-also:
	case <-ctx.Done():
	}
}
