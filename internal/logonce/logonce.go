// Package logonce logs a repeated failure only twice: when it begins and when it ends. For
// example, a full disk makes every write fail. Thousands of equal lines would hide the line that
// shows when the failure began.
//
//	t := logonce.New(log)
//	t.Report("audit log", err) // called each time; logs the first error, and the first nil after an error
//
// Each failed request still returns its error and is counted in /metrics. ReportWrite is used for
// the errors of Store.Commit. Only one kind of these failures (full disk, quota, lost file) is
// current at a time.
//
// Invariant: until the state of a name changes, at most one line is logged for it. All names beyond
// the first thousand share one line. A Log is safe for concurrent use.
package logonce

import (
	"errors"
	"sync"

	"github.com/rs/zerolog"

	"apilet/internal/store"
)

const maxFailures = 1000 // maximum number of names, because webhooks may be created and deleted

// A Log contains the current failures by name.
type Log struct {
	log zerolog.Logger

	mu         sync.Mutex // guards the fields below
	now        map[string]struct{}
	overflowed bool   // set if the log has a line about additional failures
	writing    string // reason why the store cannot be written, or ""
}

// New returns a Log without failures that writes to log.
func New(log zerolog.Logger) *Log {
	return &Log{log: log, now: map[string]struct{}{}}
}

// Report records the result of an operation. A nil error means success. It logs the result if it
// differs from the previous one. If maxFailures operations are failing, it logs once that there are
// more. After that, it does not log other failures until one of the operations recovers.
func (t *Log) Report(what string, err error) {
	if t == nil {
		return
	}
	switch t.update(what, err != nil) {
	case began:
		t.logBegin(what, err)
	case beganUntracked:
		t.log.Error().Err(err).Str("what", what).Int("failing", maxFailures).Msg("failing, as are many others; new failures are not logged until some recover")
	case ended:
		t.logEnd(what)
	}
}

// A transition is a change in the state of an operation.
type transition int

const (
	nothing transition = iota
	began
	beganUntracked // there are too many failures, so this one is logged but not stored
	ended
)

// update records whether an operation fails, and returns the change.
func (t *Log) update(what string, fails bool) transition {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, known := t.now[what]
	switch {
	case known == fails:
		return nothing
	case !fails:
		delete(t.now, what)
		t.overflowed = false
		return ended
	case len(t.now) < maxFailures:
		t.now[what] = struct{}{}
		return began
	case t.overflowed:
		return nothing
	}
	t.overflowed = true
	return beganUntracked
}

// ReportWrite records the result of a write to the store. A new kind of failure replaces the
// previous one. The limit of maxFailures does not apply.
func (t *Log) ReportWrite(err error) {
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
		t.logEnd(was)
	}
	if what != "" {
		t.logBegin(what, err)
	}
}

func (t *Log) logBegin(what string, err error) {
	t.log.Error().Err(err).Str("what", what).Msg("failing; the log will say when it recovers")
}

func (t *Log) logEnd(what string) {
	t.log.Info().Str("what", what).Msg("recovered")
}
