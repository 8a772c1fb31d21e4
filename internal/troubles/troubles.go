// Package troubles tells the log of what goes wrong again and again once, when it begins, and once more when it is over: a disk that is full
// makes every write fail, and a thousand equal lines would hide the one that says since when.
//
//	t := troubles.New(log)
//	t.Tell("audit log", err) // each time; the log hears of the first, and of nil after an error
//
// Each failed request is answered with its cause all the same, and counted in /metrics. TellWriting is for what the store's Commit returns,
// whose kinds of failure (a full disk, a quota, a file that is lost) take each other's place.
//
// Invariant: at most one line for a name until its state changes; safe for concurrent use.
package troubles

import (
	"fmt"
	"sync"

	"github.com/rs/zerolog"

	"apilet/internal/store"
)

const troublesMax = 1000 // webhooks may come and go under ever new names

// Log are what is wrong now, by name.
type Log struct {
	log zerolog.Logger

	mu  sync.Mutex // guards now
	now map[string]string
}

// New knows of no trouble; log hears of those that come.
func New(log zerolog.Logger) *Log {
	return &Log{log: log, now: map[string]string{}}
}

// Tell says how something stands: a nil error is that all is well. The log hears of it when that is news.
func (t *Log) Tell(what string, err error) {
	if t == nil {
		return
	}
	t.mu.Lock()
	_, known := t.now[what]
	switch {
	case err == nil:
		delete(t.now, what)
	case len(t.now) < troublesMax:
		t.now[what] = err.Error()
	}
	t.mu.Unlock()
	switch {
	case err != nil && !known:
		t.log.Error().Err(err).Str("what", what).Msg("this fails; the log says when it no longer does")
	case err == nil && known:
		t.log.Info().Str("what", what).Msg("this works again")
	}
}

// TellWriting is for the store: one trouble takes the place of another.
func (t *Log) TellWriting(err error) {
	for _, cause := range []error{store.ErrDiskFull, store.ErrFileLost, store.ErrQuota} {
		if err != cause {
			t.Tell(writing(cause), nil)
		}
	}
	if err != nil {
		t.Tell(writing(err), err)
	}
}

// writing names the trouble for the log.
func writing(cause error) string {
	return fmt.Sprintf("writing (%s)", map[error]string{store.ErrDiskFull: "full disk", store.ErrFileLost: "lost data file", store.ErrQuota: "quota"}[cause])
}
