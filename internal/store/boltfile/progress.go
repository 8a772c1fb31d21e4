package boltfile

// This file reports the progress of long operations. It prints one line after each period.

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// A Progress counts the completed and the total work of an operation. A nil Progress counts
// nothing.
type Progress struct {
	what        atomic.Pointer[string]
	done, total atomic.Int64 // total 0 means unknown
}

// Begin starts a part of the work and resets the count.
func (p *Progress) Begin(what string, total int64) {
	if p == nil {
		return
	}
	p.done.Store(0)
	p.total.Store(total)
	p.what.Store(&what)
}

func (p *Progress) Set(done int64) {
	if p != nil {
		p.done.Store(done)
	}
}

// Add adds n to the completed work.
func (p *Progress) Add(n int64) {
	if p != nil {
		p.done.Add(n)
	}
}

// String returns a text like "pages 700 of 1000 (70 %)", or "" before the first Begin.
func (p *Progress) String() string {
	what, done, total := p.what.Load(), p.done.Load(), p.total.Load()
	switch {
	case what == nil:
		return ""
	case total <= 0:
		return fmt.Sprintf("%s %d", *what, done)
	}
	done = min(done, total)
	return fmt.Sprintf("%s %d of %d (%d %%)", *what, done, total, int64(100*float64(done)/float64(total)))
}

// Show starts a goroutine that prints a line after each period. The caller must call stop, which
// waits until the goroutine has ended.
func (p *Progress) Show(out io.Writer, title string, period time.Duration) (stop func()) {
	ended, silent := make(chan struct{}), make(chan struct{}) // closed by stop, and by the printing goroutine
	go func() {
		defer close(silent)
		for {
			select {
			case <-ended:
				return
			case <-time.After(period):
			}
			if text := p.String(); text != "" {
				fmt.Fprintf(out, "%s: %s\n", title, text)
			}
		}
	}()
	return func() {
		close(ended)
		<-silent
	}
}

// Write counts the bytes of b, for use with io.MultiWriter and io.TeeReader.
func (p *Progress) Write(b []byte) (int, error) {
	p.Add(int64(len(b)))
	return len(b), nil
}
