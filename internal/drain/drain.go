// Package drain stops a server in bounded time, even if some work hangs. SignalContext receives the
// signal to stop. Conns closes connections without a request. Work reports the background work that
// does not end in time.
//
//	told, forget := drain.SignalContext(30*time.Second, end, syscall.SIGTERM) // end exits the process, after the time or at a second signal
//	var resting drain.Conns
//	srv := &http.Server{ConnState: resting.Track}
//	var work drain.Work
//	work.Go("the scrub", scrub)
//	...
//	<-told.Done()
//	time.AfterFunc(drain.Delay, resting.Close)
//	err := srv.Shutdown(ctx)
//	err = work.Wait(4*time.Second)                                    // the scrub did not end within 4s
//
// http.Server.Shutdown alone would be slow. It waits five seconds for the first request on a new
// connection, and some clients open connections in advance. It also waits one second for HTTP/2
// clients to close an idle connection.
package drain

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// Delay is the time between the begin of the shutdown and the closing of idle connections. It lets
// HTTP/2 clients receive the GOAWAY and send no new requests.
const Delay = 50 * time.Millisecond

// Conns tracks the connections of a server that have no request, because they are new or idle. The
// zero value is ready to use.
type Conns struct {
	mu       sync.Mutex // guards the fields below
	conns    map[net.Conn]bool
	busy     map[net.Conn]bool // connections with a request
	stopping bool
}

// Track is for http.Server.ConnState.
func (c *Conns) Track(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conns == nil {
		c.conns, c.busy = map[net.Conn]bool{}, map[net.Conn]bool{}
	}
	if delete(c.busy, conn); state == http.StateActive {
		c.busy[conn] = true
	}
	if state != http.StateNew && state != http.StateIdle {
		delete(c.conns, conn)
		return
	}
	c.conns[conn] = true
	if c.stopping {
		time.AfterFunc(Delay, c.Close)
	}
}

// Close closes all connections without a request. From then on it also closes each connection that
// becomes idle, after Delay.
func (c *Conns) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopping = true
	for conn := range c.conns {
		go conn.Close() // Close may block if the client does not read
	}
	clear(c.conns)
}

// Busy returns the number of connections with a request.
func (c *Conns) Busy() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.busy)
}

// CloseConnections is a middleware that sets Connection: close once stopping is closed. The client
// then opens a new connection, and a load balancer routes it to another server. In HTTP/2 the
// header causes a GOAWAY, and running requests continue.
func CloseConnections(stopping <-chan struct{}, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-stopping:
			w.Header().Set("Connection", "close")
		default:
		}
		next.ServeHTTP(w, r)
	})
}
