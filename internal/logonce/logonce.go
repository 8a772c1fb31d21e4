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

const troublesMax = 1000 // maximum number of names, since webhooks come and go

// A Log contains the current failures by name.
type Log struct {
	log zerolog.Logger

	mu      sync.Mutex // guards the fields below
	now     map[string]struct{}
	crowded bool   // whether the log has a line about failures beyond troublesMax
	writing string // the reason why the store cannot write, or ""
}

// New returns a Log without failures that writes to log.
func New(log zerolog.Logger) *Log {
	return &Log{log: log, now: map[string]struct{}{}}
}

// Report records the result of an operation. A nil error means success. It logs the result if it
// differs from the previous one. If troublesMax operations are failing, it logs once that there are
// more, and no further failures until one of them recovers.
func (t *Log) Report(what string, err error) {
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

// A turn is the change in the state of an operation.
type turn int

const (
	nothing turn = iota
	begins
	beginsUnseen // too many failures: this one is logged, but not remembered
	ends
)

// note records whether an operation fails, and returns the change.
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

// ReportWrite records the result of a write to the store. A new kind of failure replaces the
// previous one. The limit of troublesMax does not apply.
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
