package apitest

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// reporting is reserved at the end of a test binary's time, so that a test whose wait fails can
// report it before the binary is killed.
const reporting = 30 * time.Second

// Deadline returns the time at which a wait should fail: shortly before "go test -timeout" kills
// the test binary. It is the only limit on a wait. With a shorter limit, the result would depend on
// the load of the machine. Deadline returns the zero time if there is no timeout.
func Deadline(t testing.TB) time.Time {
	limited, ok := t.(interface{ Deadline() (time.Time, bool) }) // a *testing.T
	if !ok {
		return time.Time{}
	}
	end, ok := limited.Deadline()
	if !ok {
		return time.Time{}
	}
	return end.Add(-min(reporting, time.Until(end)/10))
}

// Timeout returns a channel that receives at the test's Deadline, or nil if there is none.
func Timeout(t testing.TB) <-chan time.Time {
	end := Deadline(t)
	if end.IsZero() {
		return nil
	}
	return time.After(time.Until(end))
}

// WaitFor polls until ready returns true, or until the test's Deadline. A failure prints the
// results of seen, which describe the last state.
func WaitFor(t testing.TB, what string, ready func() bool, seen ...func() any) {
	t.Helper()
	pause := time.Millisecond
	for end := Deadline(t); end.IsZero() || time.Now().Before(end); time.Sleep(pause) {
		if ready() {
			return
		}
		pause = min(pause*3/2, 50*time.Millisecond) // a poll may be a request
	}
	var last string
	for _, state := range seen {
		last += fmt.Sprintf("; last seen: %v", state())
	}
	t.Fatalf("waited until the test's deadline for %s%s", what, last)
}

// Last stores the last response in a test.
type Last struct {
	text atomic.Value // of a string
}

// PrintLast returns a Last that is printed if the test fails. The message of a failed wait contains
// the expected state, but not the actual one.
func PrintLast(t testing.TB) *Last {
	l := &Last{}
	t.Cleanup(func() {
		if text := l.text.Load(); t.Failed() && text != nil {
			t.Logf("the last answer: %s", text)
		}
	})
	return l
}

// Set replaces the last response. It does nothing if l is nil.
func (l *Last) Set(method, path string, code int, body []byte) {
	if l != nil {
		l.text.Store(fmt.Sprintf("%s %s: %d %.1000s", method, path, code, body))
	}
}

// Log collects log output. It is safe for concurrent use.
type Log struct {
	mu    sync.Mutex // guards lines
	lines bytes.Buffer
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.String()
}
