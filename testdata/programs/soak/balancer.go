package main

// This file implements a TCP load balancer for several servers. New connections are forwarded to
// the next ready server. If none of the servers is ready, any server is used. The balancer does not
// terminate TLS.

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"
)

const lookEvery = 200 * time.Millisecond // between two checks of the servers' readiness

// A balancer accepts connections until the listener is closed.
type balancer struct {
	listener net.Listener
	client   *http.Client // for readiness checks

	mu    sync.Mutex // guards the fields below
	all   []*server  // servers that may receive connections
	ready []string   // host:port of the ready servers
	next  int
}

func newBalancer() (*balancer, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	return &balancer{listener: listener}, err
}

func (b *balancer) url() string { return "https://" + b.listener.Addr().String() }

// serve replaces the servers.
func (b *balancer) serve(servers ...*server) {
	b.mu.Lock()
	b.all = servers
	b.mu.Unlock()
	b.look(context.Background())
}

// run accepts connections and checks the servers until ctx is done.
func (b *balancer) run(ctx context.Context) {
	go func() { // ends when the listener is closed
		for {
			conn, err := b.listener.Accept()
			if err != nil {
				return
			}
			go b.connect(conn)
		}
	}()
	for pause(ctx, lookEvery) {
		b.look(ctx)
	}
	b.listener.Close()
}

func (b *balancer) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	b.mu.Lock()
	all := slices.Clone(b.all)
	b.mu.Unlock()
	oks := make([]bool, len(all))
	var looks sync.WaitGroup
	for i, s := range all {
		looks.Go(func() { oks[i] = b.isReady(ctx, s) })
	}
	looks.Wait()
	var ready []string
	for i, s := range all {
		if oks[i] {
			ready = append(ready, hostOf(s))
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if slices.Equal(b.all, all) {
		b.ready = ready
	}
}

func (b *balancer) isReady(ctx context.Context, s *server) bool {
	if s.pid.Load() == 0 || s.url.Load() == nil {
		return false
	}
	r, err := http.NewRequestWithContext(ctx, "GET", *s.url.Load()+"/readyz", nil)
	if err != nil {
		return false
	}
	response, err := b.client.Do(r)
	if err != nil {
		return false
	}
	response.Body.Close()
	return response.StatusCode == http.StatusOK
}

func hostOf(s *server) string {
	at, err := url.Parse(*s.url.Load())
	if err != nil {
		return ""
	}
	return at.Host
}

// choose returns the addresses to try, in this order.
func (b *balancer) choose() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	from := slices.Clone(b.ready)
	for _, s := range b.all {
		if len(b.ready) == 0 && s.url.Load() != nil {
			from = append(from, hostOf(s))
		}
	}
	if len(from) == 0 {
		return nil
	}
	b.next++
	at := b.next % len(from)
	return slices.Concat(from[at:], from[:at])
}

func (b *balancer) connect(from net.Conn) {
	defer from.Close()
	for _, host := range b.choose() {
		to, err := net.DialTimeout("tcp", host, time.Second)
		if err != nil {
			continue
		}
		defer to.Close()
		var both sync.WaitGroup
		both.Go(func() { passOn(from, to) })
		both.Go(func() { passOn(to, from) })
		both.Wait()
		return
	}
}

// passOn copies data until a connection is closed, and then closes both connections.
func passOn(from, to net.Conn) {
	_, _ = io.Copy(to, from)
	from.Close()
	to.Close()
}
