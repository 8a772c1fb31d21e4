package lending

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"apilet/internal/flowcontrol"
)

// A slowClient is both ends of a connection whose client waits for a channel before each read and write.
type slowClient struct {
	http.ResponseWriter
	ready chan struct{}
}

func (c *slowClient) Write(p []byte) (int, error) { <-c.ready; return len(p), nil }
func (c *slowClient) Read(p []byte) (int, error)  { <-c.ready; return 0, io.EOF }
func (c *slowClient) Close() error                { return nil }

// testDispatcher returns a dispatcher with one seat for ordinary users and no queue.
func testDispatcher() *flowcontrol.Dispatcher {
	d := flowcontrol.NewDispatcher(1, time.Minute)
	mandatory := flowcontrol.WithMandatory(flowcontrol.Objects{})
	d.Configure(mandatory.Schemas, mandatory.Levels)
	return d
}

func dispatch(t *testing.T, d *flowcontrol.Dispatcher, serve func(*flowcontrol.Ticket)) error {
	dig := flowcontrol.Digest{User: "alice", Groups: []string{"system:authenticated"}, ResourceRequest: true, Verb: "get", Path: "/api/v1/pods", Version: "v1",
		Resource: "pods", Received: time.Now()}
	return d.Dispatch(t.Context(), &dig, flowcontrol.Estimate{InitialSeats: 1, Watchers: -1}, serve)
}

// TestBlockedClientsLendTheSeat: a request that waits for its client has no seat after stuckAfter, and has it back afterwards.
func TestBlockedClientsLendTheSeat(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]func(*Loan, *slowClient){
		"write": func(l *Loan, c *slowClient) { _, _ = l.Writer(c).Write(make([]byte, unsentBytes+1)) },
		"read":  func(l *Loan, c *slowClient) { _, _ = l.Body(c).Read(make([]byte, 1)) },
		"memory": func(l *Loan, c *slowClient) {
			l.Writer(c).(interface{ WhileLent(func()) }).WhileLent(func() { <-c.ready })
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, c, done := testDispatcher(), &slowClient{ResponseWriter: httptest.NewRecorder(), ready: make(chan struct{})}, make(chan struct{})
				free := func() bool { return dispatch(t, d, func(*flowcontrol.Ticket) {}) == nil }
				go func() {
					_ = dispatch(t, d, func(ticket *flowcontrol.Ticket) {
						loan := &Loan{Ticket: ticket}
						wait(loan, c)
						if loan.Waited != 3*stuckAfter/2 {
							t.Errorf("waited %v", loan.Waited)
						}
						<-done // with the seat
					})
				}()
				time.Sleep(stuckAfter / 2)
				if free() {
					t.Error("the seat is lent too early")
				}
				time.Sleep(stuckAfter)
				if !free() {
					t.Error("the seat is not lent")
				}
				close(c.ready)
				synctest.Wait()
				if free() {
					t.Error("the seat was not taken back")
				}
				close(done)
				synctest.Wait()
				if !free() {
					t.Error("the seat is not free after the request")
				}
			})
		})
	}
}

// TestShortWritesAreNotTimed: net/http keeps the first bytes, so that they cannot block.
func TestShortWritesAreNotTimed(t *testing.T) {
	t.Parallel()
	loan := &Loan{}
	if _, err := loan.Writer(httptest.NewRecorder()).Write(make([]byte, unsentBytes)); err != nil || loan.timer != nil {
		t.Errorf("a timer was started: %v", err)
	}
	if loan.Body(http.NoBody) != http.NoBody || loan.Body(nil) != nil {
		t.Error("a body without bytes is wrapped")
	}
}

// TestReturnedSeatsAreNotTakenBack: a watch whose initial events were sent needs no seat for the others.
func TestReturnedSeatsAreNotTakenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := testDispatcher()
		err := dispatch(t, d, func(ticket *flowcontrol.Ticket) {
			loan := &Loan{Ticket: ticket}
			loan.Return()
			loan.Return()
			if _, err := loan.Writer(httptest.NewRecorder()).Write(make([]byte, 2*unsentBytes)); err != nil {
				t.Error(err)
			}
			if err := dispatch(t, d, func(*flowcontrol.Ticket) {}); err != nil {
				t.Error("the seat is not free:", err)
			}
		})
		if err != nil {
			t.Error(err)
		}
	})
}
