package boltfile

// This file tells people how far something long has come: nothing in its first second, then a line each second.

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// A Progress counts what is done of what there is to do. Whoever does it calls Begin and Add; nil counts nothing.
type Progress struct {
	what        atomic.Pointer[string]
	done, total atomic.Int64 // total 0: nobody knows
}

// Begin starts a part of the work.
func (p *Progress) Begin(what string, total int64) {
	if p == nil {
		return
	}
	p.done.Store(0)
	p.total.Store(total)
	p.what.Store(&what)
}

func (p *Progress) Reach(done int64) {
	if p != nil {
		p.done.Store(done)
	}
}

// Add counts more that is done.
func (p *Progress) Add(n int64) {
	if p != nil {
		p.done.Add(n)
	}
}

// String is "pages 700 of 1000 (70 %)", "" before anything has begun.
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

// Show prints a line after each period until stop is called, which waits for the last one.
func (p *Progress) Show(out io.Writer, title string, period time.Duration) (stop func()) {
	ended, silent := make(chan struct{}), make(chan struct{}) // closed by stop, and by the printer
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

// Write counts bytes, for io.MultiWriter and io.TeeReader.
func (p *Progress) Write(b []byte) (int, error) {
	p.Add(int64(len(b)))
	return len(b), nil
}
