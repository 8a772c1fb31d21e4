package store

// This file is the one way to keep up with what is stored: a Follower tells a reader what there is, and then each change of it.
//
//	log := st.Follow("//pods/", "//nodes/")
//	for ctx.Err() == nil {
//		err := log.CatchUp(ctx, func() { clear(pods) }, func(ev *store.Event) { pods[ev.Key] = ev.Rev })
//		...
//		log.Wait(ctx, time.Time{}, nil)
//	}
//
// A reader starts with a reset: it knows nothing. The live objects follow, chunk by chunk, all as of one revision, and after them the log from
// that revision on. The log may be compacted under a slow reader, or be damaged where it would read on: that is one more reset, and no
// error. An example, with a reader of pods that stands at 5 while the log is compacted at 8:
//
//	Next   reset
//	Next   //pods/a/x of revision 2, //pods/a/z of revision 7     live at 9, the newest revision
//	Next   -                                                     it has caught up; //pods/a/y, deleted at 6, went with the reset
//	Next   //pods/a/x of revision 10, which replaced 2
//
// What all objects are is much to read. A reader that can do without it answers a reset with From, and goes on at a revision of its choice.
//
// Two readers do without a Follower. A watch (watch.go) and a log that is streamed (package history) stand where a client says, and when the log no
// longer reaches back to that the client is told: the reset is the client's.

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"
)

const (
	followMax    = 5   // resources of a Follower, since Wait waits for each
	eventsAtOnce = 256 // taken from the log
)

// A Follower reads some resources, and keeps up with them. It is for one goroutine at a time; Behind and Rev may be called by several.
type Follower struct {
	st        *Store
	resources []string
	at        []int64 // the log of each resource has been shown up to here; -1: nothing of it
	walking   int     // the resource whose live objects are being shown; len(resources): the log is read; -1: the next is a reset
	walk      Span    // what is left of them
	chunk     *Chunk  // holds the JSON of events while objects are shown
	events    []Event
}

// Follow follows up to five resources (`/group/resource/`), or Everything. Nothing is read yet.
func (st *Store) Follow(resources ...string) *Follower {
	if len(resources) > followMax {
		panic("too many resources for one Follower")
	}
	f := &Follower{st: st, resources: resources, at: make([]int64, len(resources))}
	f.From(-1)
	return f
}

// From has Next go on after a revision; after -1 with a reset.
func (f *Follower) From(rev int64) {
	f.walking, f.walk, f.chunk = len(f.resources), Span{}, nil
	if rev < 0 {
		f.walking = -1
	}
	for i := range f.at {
		f.at[i] = rev
	}
}

// Rev is the revision up to which everything has been shown; -1 from a reset until all live objects have been.
func (f *Follower) Rev() int64 {
	rev := f.at[0]
	for _, at := range f.at {
		rev = min(rev, at)
	}
	return rev
}

// Next returns what comes next: a reset (forget everything), live objects after a reset, or events; nothing when the end of the log is reached.
// Events are in the order of their revisions within a resource. They are good until the next call, their keys for ever. After an error Next
// tries the same again.
func (f *Follower) Next(ctx context.Context) (events []Event, reset bool, err error) {
	clear(f.events) // they hold on to documents
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
		f.chunk, f.events = nil, nil // a chunk has more than the log most times
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

// readObjects reads the next chunk of live objects. What is damaged is left out.
func (f *Follower) readObjects() error {
	f.walk.Prefix, f.walk.Sound = cmp.Or(f.resources[f.walking], "/"), true
	if err := f.st.Chunk(f.walk, f.chunk); err != nil {
		return err
	}
	f.walk.Rev, f.walk.Start = f.chunk.Rev, f.chunk.Next
	for i := range f.chunk.Records {
		ev := Event{Record: f.chunk.Records[i]}
		ev.Key = strings.Clone(ev.Key) // not all the keys of the chunk with it
		f.events = append(f.events, ev)
	}
	if f.walk.Start == "" {
		f.at[f.walking] = f.chunk.Rev
		f.walking++
	}
	return nil
}

// readLog reads on in the log of one resource.
func (f *Follower) readLog(i int) error {
	for len(f.events) == 0 {
		now := f.st.Revision() // first: what comes after it is above
		if f.at[i] >= f.newest(i) {
			f.at[i] = max(f.at[i], now) // nothing has happened up to there
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
	return f.st.Newest(f.resources[i])
}

// CatchUp shows all that Next has, up to the end of the log. forget is called at each reset, and may call From.
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

// Behind says that Next has something.
func (f *Follower) Behind() bool {
	for i := range f.resources {
		if f.walking < len(f.resources) || f.at[i] < f.newest(i) {
			return true
		}
	}
	return false
}

// Wait returns when Next has something, or ctx ends, or the time until has come (zero: it never does), or also is closed or sent to (nil: it is
// neither). It need not be called before the log is read: what was written meanwhile ends it at once.
func (f *Follower) Wait(ctx context.Context, until time.Time, also <-chan struct{}) {
	var wake [followMax]<-chan struct{}
	for i, resource := range f.resources {
		wake[i] = f.st.Wake(resource)
	}
	if f.Behind() {
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
