// Package troubles tells the log of what goes wrong again and again once, when it begins, and once more when it is over: a disk that is full
// makes every write fail, and a thousand equal lines would hide the one that says since when.
//
//	t := troubles.New(log)
//	t.Tell("audit log", err) // each time; the log hears of the first, and of nil after an error
//
// Each failed request is answered with its cause all the same, and counted in /metrics. TellWriting is for what the store's Commit returns,
// whose kinds of failure (a full disk, a quota, a file that is lost) take each other's place.
//
// Invariant: at most one line for a name until its state changes, and one for all names beyond the first thousand; safe for concurrent use.
package troubles

import (
	"errors"
	"sync"

	"github.com/rs/zerolog"

	"apilet/internal/store"
)

const troublesMax = 1000 // webhooks may come and go under ever new names

// Log are what is wrong now, by name.
type Log struct {
	log zerolog.Logger

	mu      sync.Mutex // guards what follows
	now     map[string]struct{}
	crowded bool   // the log has heard that there are more than are kept apart
	writing string // what keeps the store from writing; "" while nothing does
}

// New knows of no trouble; log hears of those that come.
func New(log zerolog.Logger) *Log {
	return &Log{log: log, now: map[string]struct{}{}}
}

// Tell says how something stands: a nil error is that all is well. The log hears of it when that is news. Above troublesMax it hears once that
// there are more, and of those nothing, until there is room: what nobody remembers would be told each time.
func (t *Log) Tell(what string, err error) {
	if t == nil {
		return
	}
	switch t.note(what, err != nil) {
	case begins:
		t.begins(what, err)
	case beginsUnseen:
		t.log.Error().Err(err).Str("what", what).Int("failing", troublesMax).Msg("failing, as are many others; new failures are not logged until some recover")
	case ends:
		t.ends(what)
	}
}

// A turn is what is new about something.
type turn int

const (
	nothing turn = iota
	begins
	beginsUnseen // and is not remembered, being the first for which there was no room
	ends
)

// note remembers what fails and forgets what works.
func (t *Log) note(what string, fails bool) turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, known := t.now[what]
	switch {
	case known == fails:
		return nothing
	case !fails:
		delete(t.now, what)
		t.crowded = false
		return ends
	case len(t.now) < troublesMax:
		t.now[what] = struct{}{}
		return begins
	case t.crowded:
		return nothing
	}
	t.crowded = true
	return beginsUnseen
}

// TellWriting is for the store, which fails in one way at a time: one trouble takes the place of another. There is room for it always.
func (t *Log) TellWriting(err error) {
	what := ""
	switch {
	case errors.Is(err, store.ErrDiskFull):
		what = "writing (full disk)"
	case errors.Is(err, store.ErrFileLost):
		what = "writing (lost data file)"
	case errors.Is(err, store.ErrQuota):
		what = "writing (quota)"
	}
	t.mu.Lock()
	was := t.writing
	t.writing = what
	t.mu.Unlock()
	if was == what {
		return
	}
	if was != "" {
		t.ends(was)
	}
	if what != "" {
		t.begins(what, err)
	}
}

func (t *Log) begins(what string, err error) {
	t.log.Error().Err(err).Str("what", what).Msg("failing; the log will say when it recovers")
}

func (t *Log) ends(what string) {
	t.log.Info().Str("what", what).Msg("recovered")
}
