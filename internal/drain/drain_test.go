package drain

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// A connection that is opened and never used does not hold a server up that stops, and one that comes to rest later goes as well.
func TestConnsAtRestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var resting Conns
		unused, peer := net.Pipe()
		busy, other := net.Pipe()
		resting.Track(unused, http.StateNew)
		resting.Track(busy, http.StateNew)
		resting.Track(busy, http.StateActive)
		resting.Close()
		if _, err := peer.Read(make([]byte, 1)); err == nil {
			t.Error("the unused connection is open")
		}
		other.SetReadDeadline(time.Now().Add(time.Second))
		if _, err := other.Read(make([]byte, 1)); !isTimeout(err) {
			t.Error("the connection with a request was closed:", err)
		}
		other.SetReadDeadline(time.Time{})
		resting.Track(busy, http.StateIdle)
		at := time.Now()
		if _, err := other.Read(make([]byte, 1)); err == nil {
			t.Error("the connection whose request has ended is open")
		}
		if waited := time.Since(at); waited != Delay {
			t.Errorf("it was closed after %v, want %v", waited, Delay)
		}
	})
}

func isTimeout(err error) bool {
	e, ok := err.(net.Error)
	return ok && e.Timeout()
}

// Shutdown of a server with an unused connection ends at once.
func TestShutdownDoesNotWait(t *testing.T) {
	t.Parallel()
	var resting Conns
	srv := httptest.NewUnstartedServer(http.NotFoundHandler())
	noted := make(chan http.ConnState, 16)
	srv.Config.ConnState = func(conn net.Conn, state http.ConnState) { resting.Track(conn, state); noted <- state }
	srv.Start()
	defer srv.Close()
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	<-noted
	resting.Close()
	if state := <-noted; state != http.StateClosed { // before Shutdown, which by itself waits five seconds for such a connection
		t.Error(state)
	}
	if err := srv.Config.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}
