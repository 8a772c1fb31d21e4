package apitest

import (
	"bytes"
	"sync"
	"testing"
	"time"
)

// Patience is how long a test waits for what has to come: so long that only what never comes fails, however busy the machine is.
const Patience = 2 * time.Minute

// WaitFor polls for what another goroutine will bring about.
func WaitFor(t testing.TB, what string, ready func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ready() {
			return
		}
	}
	t.Fatalf("waited %v for %s", Patience, what)
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
