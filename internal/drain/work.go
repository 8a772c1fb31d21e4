package drain

// This file limits the time that a server needs to stop, both for its background work and for the
// whole process.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Work tracks background work by name. The zero value is ready to use.
type Work struct {
	group sync.WaitGroup

	mu      sync.Mutex     // guards the field below
	running map[string]int // number of running functions by name
}

// Go runs piece in a goroutine. If piece does not end in time, the error of Wait contains the name.
func (w *Work) Go(name string, piece func()) {
	w.count(name, 1)
	w.group.Go(func() {
		defer w.count(name, -1)
		piece()
	})
}

func (w *Work) count(name string, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running == nil {
		w.running = map[string]int{}
	}
	if w.running[name] += n; w.running[name] == 0 {
		delete(w.running, name)
	}
}

// ErrUnfinished is returned by Wait if some work has not ended in time.
var ErrUnfinished = errors.New("did not end")

// Wait waits until all work has ended, at most for the given time. The error names the unfinished
// work.
func (w *Work) Wait(most time.Duration) error {
	ended := make(chan struct{})
	go func() {
		w.group.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-time.After(most):
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.running) == 0 {
		return nil
	}
	return fmt.Errorf("%s %w within %v", strings.Join(slices.Sorted(maps.Keys(w.running)), ", "), ErrUnfinished, most)
}

// SignalContext returns a context that is canceled when the process receives one of the signals.
// After that, end is called at the next signal or when the given time is over. end receives the
// reason and must not return. forget stops the handling of signals and cancels the context.
func SignalContext(within time.Duration, end func(why string), signals ...os.Signal) (told context.Context, forget func()) {
	told, tell := context.WithCancel(context.Background())
	heard, over := make(chan os.Signal, 2), make(chan struct{}) // both signals may arrive before the first one has been handled
	signal.Notify(heard, signals...)
	go func() {
		select {
		case <-heard:
			tell()
		case <-over:
			return
		}
		select {
		case again := <-heard:
			end(fmt.Sprintf("the server was told a second time to stop (%v)", again))
		case <-time.After(within):
			end(fmt.Sprintf("the server did not stop within %v", within))
		case <-over:
		}
	}()
	return told, sync.OnceFunc(func() {
		signal.Stop(heard)
		close(over)
		tell()
	})
}

// IgnoreHangups ignores SIGHUP until stop is called. Closing a terminal sends SIGHUP, and so does
// logrotate even if no audit log is configured.
func IgnoreHangups() (stop func()) {
	heard := make(chan os.Signal, 1) // never read; further signals are dropped
	signal.Notify(heard, syscall.SIGHUP)
	return func() { signal.Stop(heard) }
}
