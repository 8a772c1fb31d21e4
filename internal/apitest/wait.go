package apitest

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// reporting is reserved at the end of a test binary's time, so that a test that waits in vain can say so before the binary is killed.
const reporting = 30 * time.Second

// Deadline returns the time at which waiting becomes pointless: shortly before "go test -timeout" kills the test binary. It is the only limit
// on a wait. A shorter one would decide the result by how busy the machine is. Deadline returns the zero time if there is no timeout.
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

// Timeout returns a channel that receives at the test's Deadline; nil if there is none.
func Timeout(t testing.TB) <-chan time.Time {
	end := Deadline(t)
	if end.IsZero() {
		return nil
	}
	return time.After(time.Until(end))
}

// WaitFor polls until ready reports true, or until the test's Deadline. A failure prints the results of seen, which describe the state that
// the test saw last.
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

// A Last keeps the last answer that a test received.
type Last struct {
	text atomic.Value // of a string
}

// PrintLast returns a Last that is printed if the test fails, since a wait that was in vain says what it waited for, but not what it saw.
func PrintLast(t testing.TB) *Last {
	l := &Last{}
	t.Cleanup(func() {
		if text := l.text.Load(); t.Failed() && text != nil {
			t.Logf("the last answer: %s", text)
		}
	})
	return l
}

// Set replaces the last answer. A nil Last keeps none.
func (l *Last) Set(method, path string, code int, body []byte) {
	if l != nil {
		l.text.Store(fmt.Sprintf("%s %s: %d %.1000s", method, path, code, body))
	}
}

// A Log keeps what is logged while it runs.
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
