//go:build !noetcd

package etcd

// This file finds out how far the log is. "Most recent" has to show every write that was answered before the question, by whichever server;
// only a quorum of etcd's members knows of them all. One small read is enough for everybody who waits when it begins:
//
//	a asks ──▶ read 1 begins
//	b asks, c asks: read 1 may be older than what they want, they wait for the next
//	             read 1 ends ──▶ a has its revision; read 2 begins, for b and c
//
// awaited.go waits until the replica is there.

import (
	"context"
	"runtime"
	"sync"
	"time"
)

const readPatience = 5 * time.Second // with what asks how far the log is

// newestReads share linearizable reads.
type newestReads struct {
	read func(context.Context) (int64, error)

	mu      sync.Mutex   // guards what follows
	next    *newestRound // those who wait for the next one
	running bool
}

type newestRound struct {
	done chan struct{} // closed when rev and err are there
	rev  int64
	err  error
}

// get returns a revision that the log had reached after the call began.
func (n *newestReads) get(ctx context.Context) (int64, error) {
	n.mu.Lock()
	if n.next == nil {
		n.next = &newestRound{done: make(chan struct{})}
	}
	round := n.next
	if !n.running {
		n.running = true
		go n.run()
	}
	n.mu.Unlock()
	select {
	case <-round.done:
		return round.rev, round.err
	case <-ctx.Done():
		return 0, failed(ctx.Err())
	}
}

// run reads as long as somebody waits.
func (n *newestReads) run() {
	for {
		runtime.Gosched() // whoever is about to ask, on a busy machine, asks first
		n.mu.Lock()
		round := n.next
		n.next = nil
		n.running = round != nil
		n.mu.Unlock()
		if round == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), readPatience)
		round.rev, round.err = n.read(ctx)
		cancel()
		close(round.done)
	}
}
