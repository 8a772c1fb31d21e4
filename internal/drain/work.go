package drain

// This file bounds what a server waits for when it stops: its background work, and the process as a whole.

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
	"time"
)

// Work is what goes on beside requests, each piece under a name. The zero value is ready.
type Work struct {
	group sync.WaitGroup

	mu      sync.Mutex     // guards what follows
	running map[string]int // by name
}

// Go runs a piece of work. Its name is one that "did not end" goes well with.
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

// ErrUnfinished is what Wait's error is when the time was over.
var ErrUnfinished = errors.New("did not end")

// Wait waits until all work has ended, for a time at most. The error names what has not.
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

// Told returns a context that ends at the first of the signals. From then on end is called once: when a time is over, or at the next signal. It
// gets the reason, and does not return. forget ends all that.
func Told(within time.Duration, end func(why string), signals ...os.Signal) (told context.Context, forget func()) {
	told, tell := context.WithCancel(context.Background())
	heard, over := make(chan os.Signal, 2), make(chan struct{}) // two: both may come before the first is looked at
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
