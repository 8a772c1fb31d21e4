// Package tlsbatch hands TLS records to the kernel several at a time.
//
//	err := server.ServeTLS(tlsbatch.Listener{Listener: listener}, "", "")
//
// crypto/tls cuts what it is given into records of at most 16 KiB, and writes each by itself: a system call, a walk through the kernel's TCP and
// a wake-up of the reader for every one. Of a long answer that is more work than its encryption. A connection of this package lies below
// crypto/tls and holds records back while more must follow:
//
//	crypto/tls writes    16 KiB   16 KiB   16 KiB   16 KiB   16 KiB   9 KiB
//	the kernel gets                           64 KiB            25 KiB
//
// What tells that more follows is that a record is full: one that is not is the last of what was written, and takes those before it along at once.
// So nothing that is small ever waits: a head, an event of a watch, a handshake, the alert that ends a connection. Only a write whose length is a
// multiple of 16 KiB ends with a record that is full, and is sent a millisecond later, by a timer.
//
// A record with 4 KiB is one with net/http's buffer when that was full: a head and what of the body fitted in behind it. The rest follows, and
// it waits for that, too.
//
// How long a full record is depends on version and cipher, so it is learned from the records' headers: none was longer so far. A connection
// takes a buffer when it holds something back, and gives it back when that is sent. One at rest has none.
//
// A writer is held up by a peer that does not read, as without this package, once a buffer is full. An error that the timer meets is that of the
// next write. What is held back when a connection is closed is lost, as what the kernel has not sent may be; crypto/tls sends an alert before it
// closes one in peace.
package tlsbatch

import (
	"net"
	"sync"
	"time"
)

const (
	patience = time.Millisecond // with a full record that nothing follows

	header    = 5                        // bytes before a record's ciphertext: type, version, length
	plaintext = 16 << 10                 // that a record holds at most
	buffered  = 4 << 10                  // that net/http gathers before it writes
	longest   = header + plaintext + 256 // a record that is held back: what ciphers add is less
	room      = 4 * longest              // of a buffer; more brings nothing

	applicationData = 23 // a record's type
)

var buffers = sync.Pool{New: func() any { return new([room]byte) }}

// A Listener's connections are to be those below crypto/tls.
type Listener struct{ net.Listener }

// Accept waits for the next connection.
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c}, nil
}

// A conn is a connection that crypto/tls writes records to, each with a call of Write.
type conn struct {
	net.Conn // Read and deadlines are its own

	mu     sync.Mutex  // guards what follows, and lets one write at a time
	buffer *[room]byte // nil while nothing is held back
	held   int         // bytes in it
	timer  *time.Timer // runs while something is held back; made when it is first needed
	full   int         // length of the longest record so far
	err    error       // that held records met: what follows them cannot be sent
}

// NetConn is the connection below.
func (c *conn) NetConn() net.Conn { return c.Conn }

// Write takes a record, and returns before it is sent if another must follow.
func (c *conn) Write(record []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	more := c.moreFollowsLocked(record)
	if c.buffer == nil && !more {
		return c.Conn.Write(record)
	}
	if c.held+len(record) > room { // no record of application data
		if err := c.sendLocked(); err != nil {
			return 0, err
		}
		return c.Conn.Write(record)
	}
	c.holdLocked(record)
	if more && c.held+len(record) <= room {
		return len(record), nil
	}
	if err := c.sendLocked(); err != nil {
		return 0, err
	}
	return len(record), nil
}

// moreFollowsLocked tells whether b is one record, and full, or with a full buffer.
func (c *conn) moreFollowsLocked(b []byte) bool {
	if len(b) < header || len(b) > longest || b[0] != applicationData || int(b[3])<<8|int(b[4]) != len(b)-header {
		return false
	}
	if len(b) > header+plaintext && len(b) >= c.full {
		c.full = len(b)
		return true
	}
	return c.full > 0 && len(b) == c.full-plaintext+buffered // both are whole blocks of any cipher
}

func (c *conn) holdLocked(record []byte) {
	if c.buffer == nil {
		c.buffer = buffers.Get().(*[room]byte)
		if c.timer == nil {
			c.timer = time.AfterFunc(patience, c.sendLate)
		} else {
			c.timer.Reset(patience)
		}
	}
	c.held += copy(c.buffer[c.held:], record)
}

// sendLocked writes what is held back, and gives the buffer back.
func (c *conn) sendLocked() error {
	c.timer.Stop()
	_, c.err = c.Conn.Write(c.buffer[:c.held])
	c.dropLocked()
	return c.err
}

func (c *conn) dropLocked() {
	buffers.Put(c.buffer)
	c.buffer, c.held = nil, 0
}

// sendLate is the timer's. It may have begun just before others sent what it was to send; what it finds then is sent early.
func (c *conn) sendLate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.buffer != nil {
		_ = c.sendLocked() // the next write returns it
	}
}

// Close ends a write that waits for the peer, and forgets what is held back.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.buffer != nil {
		c.timer.Stop()
		c.dropLocked()
	}
	return err
}
