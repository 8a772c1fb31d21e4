// Package drain closes the connections of a server that stops, as soon as they carry no request.
//
//	var resting drain.Conns
//	srv := &http.Server{ConnState: resting.Note}
//	time.AfterFunc(drain.Delay, resting.Close)
//	err := srv.Shutdown(ctx)
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
	stopping bool
}

// Note is for http.Server.ConnState.
func (c *Conns) Note(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if state != http.StateNew && state != http.StateIdle {
		delete(c.conns, conn)
		return
	}
	if c.conns == nil {
		c.conns = map[net.Conn]bool{}
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
