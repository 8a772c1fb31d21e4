// Package proxy stands between two programs and spoils their connections: for the tests of several servers on etcd.
//
//	p, err := proxy.Start("127.0.0.1:2379")    // whoever connects to p.Addr() is connected there
//	p.Cut()                                    // all connections end, and no new one lasts
//	p.Stall()                                  // nobody hears from the other any more, and nobody is told
//	p.Slow(50 * time.Millisecond)              // each piece takes that long
//	p.Mend()                                   // what was held back goes on
//	p.Lead("127.0.0.2:2379")                   // who connects from now on is connected there; the others stay
//	p.Close()
//
// What is held back while a proxy stalls arrives later, also after its sender has given up: so a request may be carried out long after it was
// made, as in a network that loses packets and repeats them.
//
// A program whose port the tests have to know before it starts, as etcd's, has one that is held for it.
package proxy

import (
	"net"
	"sync"
	"time"
)

// A Proxy passes bytes on, or does not.
type Proxy struct {
	listener net.Listener

	mu      sync.Mutex // guards what follows
	targets []string   // connections go to them in turn
	turn    int
	conns   map[net.Conn]bool
	cut     bool
	closed  bool
	delay   time.Duration
	stalled chan struct{} // closed when it goes on; nil: nothing is held back
}

// Start listens on a free loopback port.
func Start(target string) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: listener, targets: []string{target}, conns: map[net.Conn]bool{}}
	go p.accept()
	return p, nil
}

// Addr is where it listens.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Cut ends all connections, and every new one at once.
func (p *Proxy) Cut() {
	p.set(func() {
		p.cut = true
		for conn := range p.conns {
			conn.Close()
		}
	})
}

// Drop ends the connections of now.
func (p *Proxy) Drop() {
	p.Cut()
	p.Mend()
}

// Lead connects those who come from now on elsewhere, to one target after the other.
func (p *Proxy) Lead(targets ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.targets = targets
}

// next is where a connection goes.
func (p *Proxy) next() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turn++
	return p.targets[p.turn%len(p.targets)]
}

// Stall holds back whatever comes.
func (p *Proxy) Stall() { p.set(func() { p.stalled = make(chan struct{}) }) }

// Slow holds each piece back for a time.
func (p *Proxy) Slow(delay time.Duration) { p.set(func() { p.delay = delay }) }

// Mend passes on again, first of all what was held back.
func (p *Proxy) Mend() { p.set(func() {}) }

// Close ends it.
func (p *Proxy) Close() {
	p.listener.Close()
	p.Cut()
	p.set(func() { p.cut, p.closed = true, true })
}

// set changes what is done, from doing nothing special on.
func (p *Proxy) set(how func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stalled != nil {
		close(p.stalled)
	}
	p.stalled, p.delay, p.cut = nil, 0, p.closed
	how()
}

func (p *Proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		go p.serve(conn)
	}
}

func (p *Proxy) serve(from net.Conn) {
	defer from.Close()
	if !p.enter(from) {
		return
	}
	defer p.leave(from)
	to, err := net.Dial("tcp", p.next())
	if err != nil {
		return
	}
	defer to.Close()
	if !p.enter(to) {
		return
	}
	defer p.leave(to)
	var both sync.WaitGroup
	both.Go(func() { p.pass(from, to) })
	both.Go(func() { p.pass(to, from) })
	both.Wait()
}

func (p *Proxy) enter(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut {
		return false
	}
	p.conns[conn] = true
	return true
}

func (p *Proxy) leave(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, conn)
}

// pass copies until either end closes, which it tells the other.
func (p *Proxy) pass(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	piece := make([]byte, 32<<10)
	for {
		n, err := from.Read(piece)
		p.hold()
		if n > 0 {
			if _, err := to.Write(piece[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// hold returns when a piece may go on.
func (p *Proxy) hold() {
	p.mu.Lock()
	stalled, delay := p.stalled, p.delay
	p.mu.Unlock()
	if stalled != nil {
		<-stalled
	}
	time.Sleep(delay)
}
