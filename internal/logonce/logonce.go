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
// Invariant: at most one line is logged for a name until its state changes. All names beyond the
// first thousand share one line. A Log is safe for concurrent use.
package logonce

import (
	"errors"
	"sync"

	"github.com/rs/zerolog"

	"apilet/internal/store"
)

const maxFailures = 1000 // maximum number of names, since webhooks come and go

// A Log contains the current failures by name.
type Log struct {
	log zerolog.Logger

	mu         sync.Mutex // guards the fields below
	now        map[string]struct{}
	overflowed bool   // whether the log has a line about failures beyond maxFailures
	writing    string // the reason why the store cannot write, or ""
}

// New returns a Log without failures that writes to log.
func New(log zerolog.Logger) *Log {
	return &Log{log: log, now: map[string]struct{}{}}
}

// Report records the result of an operation. A nil error means success. It logs the result if it
// differs from the previous one. If maxFailures operations are failing, it logs once that there are
// more, and no further failures until one of them recovers.
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

// A turn is the change in the state of an operation.
type transition int

const (
	nothing transition = iota
	began
	beganUntracked // too many failures: this one is logged, but not remembered
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
