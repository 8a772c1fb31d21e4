// Package lending lends the seats of a request to other requests while its handler waits for the
// client. A client that reads or writes slowly therefore does not keep others from the server.
// Package limits limits the memory that such requests hold.
//
//	loan := &lending.Loan{Ticket: ticket}
//	r.Body = loan.Body(r.Body)
//	next.ServeHTTP(loan.Writer(w), r)
//	auto.Done(ticket, ..., loan.Waited) // the time with the client is not the server's
//
// The seats are lent only after a wait of stuckAfter. Most reads and writes are faster, because
// they only copy bytes to a buffer of the kernel. When the wait ends, the request takes its seats
// back immediately, even if there are then more requests than seats for a moment.
package lending

import (
	"io"
	"net/http"
	"sync"
	"time"

	"apilet/internal/flowcontrol"
)

// stuckAfter limits the duration of a read or a write. If it takes longer, the request lends its
// seats.
const stuckAfter = 10 * time.Millisecond

const unsentBytes = 2048 // bytes that net/http buffers before it sends anything to the client

// A Loan lends the seats of a request while its handler waits for the client.
type Loan struct {
	Ticket   *flowcontrol.Ticket
	Waited   time.Duration // total time; used by the handler's goroutine only
	returned bool          // used by the handler's goroutine only

	mu      sync.Mutex // guards the fields below
	waiting bool
	began   time.Time
	lent    bool
	timer   *time.Timer
}

// begin and end must be called before and after an operation that may wait for the client.
func (l *Loan) begin() {
	if l.returned {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting, l.began = true, time.Now()
	if l.timer == nil {
		l.timer = time.AfterFunc(stuckAfter, l.lend)
	} else {
		l.timer.Reset(stuckAfter)
	}
}

// lend runs in the timer's goroutine. It may run shortly after the wait has ended.
func (l *Loan) lend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting {
		l.lent = true
		l.Ticket.Yield()
	}
}

func (l *Loan) end() {
	if l.returned {
		return
	}
	l.timer.Stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = false
	l.Waited += time.Since(l.began)
	if l.lent {
		l.lent = false
		l.Ticket.Reclaim()
	}
}

// Return returns the seats for good, although the request continues.
func (l *Loan) Return() {
	l.returned = true
	l.Ticket.Finish()
}

// Writer returns a response writer that lends the seats while a write to the client blocks.
func (l *Loan) Writer(w http.ResponseWriter) http.ResponseWriter {
	return &writer{ResponseWriter: w, loan: l}
}

// Body returns a request body that lends the seats while a read from the client blocks.
func (l *Loan) Body(body io.ReadCloser) io.ReadCloser {
	if body == nil || body == http.NoBody {
		return body
	}
	return &seatBody{body, l}
}

// A writer lends the seats of the request while a write to the client blocks.
type writer struct {
	http.ResponseWriter
	loan    *Loan
	written int
}

func (sw *writer) Unwrap() http.ResponseWriter { return sw.ResponseWriter }

func (sw *writer) Write(p []byte) (int, error) {
	if sw.written += len(p); sw.written <= unsentBytes {
		return sw.ResponseWriter.Write(p)
	}
	sw.loan.begin()
	defer sw.loan.end()
	return sw.ResponseWriter.Write(p)
}

// WhileLent calls wait and lends the seats meanwhile.
func (sw *writer) WhileLent(wait func()) {
	sw.loan.begin()
	defer sw.loan.end()
	wait()
}

// FlushError implements the interface of http.ResponseController.
func (sw *writer) FlushError() error {
	sw.loan.begin()
	defer sw.loan.end()
	return http.NewResponseController(sw.ResponseWriter).Flush()
}

// A seatBody lends the seats of the request while a read from the client blocks.
type seatBody struct {
	io.ReadCloser
	loan *Loan
}

func (b *seatBody) Read(p []byte) (int, error) {
	b.loan.begin()
	defer b.loan.end()
	return b.ReadCloser.Read(p)
}
