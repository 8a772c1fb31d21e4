// Package drain is how a server stops in bounded time, whatever is away or hangs: told hears that it is to stop, resting closes the connections
// that carry no request, and work says of what goes on beside requests what has not ended in time.
//
//	told, forget := drain.Told(30*time.Second, end, syscall.SIGTERM)  // end ends the process, when the time is over or at a second signal
//	var resting drain.Conns
//	srv := &http.Server{ConnState: resting.Note}
//	var work drain.Work
//	work.Go("the scrub", scrub)
//	...
//	<-told.Done()
//	time.AfterFunc(drain.Delay, resting.Close)
//	err := srv.Shutdown(ctx)
//	err = work.Wait(4*time.Second)                                    // the scrub did not end within 4s
//
// http.Server.Shutdown alone waits five seconds for the first request of a connection that was opened and not used yet, as clients that dial
// ahead have them, and one for HTTP/2 clients to leave an idle one. Nobody who stops a server wants to wait for nothing.
package drain

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// Delay is how long a connection may rest once the server stops: HTTP/2 clients hear that it goes, and begin nothing new.
const Delay = 50 * time.Millisecond

// Conns are a server's connections without a request: new or idle. The zero value is ready.
type Conns struct {
	mu       sync.Mutex // guards what follows
	conns    map[net.Conn]bool
	busy     map[net.Conn]bool // those with a request
	stopping bool
}

// Note is for http.Server.ConnState.
func (c *Conns) Note(conn net.Conn, state http.ConnState) {
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

// Close ends what rests, and a while later each connection that comes to rest after it.
func (c *Conns) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopping = true
	for conn := range c.conns {
		go conn.Close() // which waits for a client that reads nothing
	}
	clear(c.conns)
}

// Busy is how many connections have a request.
func (c *Conns) Busy() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.busy)
}
