//go:build !noetcd

package etcd

// This file finds the newest revision of the log. A read of the most recent state must include
// every write that any server acknowledged before the read began. Only a quorum of etcd's members
// knows all of these writes. All callers that are waiting when a read begins share its result:
//
//	a asks ──▶ read 1 begins
//	b asks, c asks: read 1 may be older than their requests, so they wait for the next
//	             read 1 ends ──▶ a has its revision; read 2 begins, for b and c
//
// See awaited.go for how to wait until the replica has reached that revision.

import (
	"context"
	"runtime"
	"sync"
	"time"
)

const readTimeout = 5 * time.Second // time limit of a read of the newest revision

// newestReads shares linearizable reads between callers.
type newestReads struct {
	read func(context.Context) (int64, error)

	mu      sync.Mutex   // guards the fields below
	next    *newestRound // the callers that wait for the next read
	running bool
}

type newestRound struct {
	done chan struct{} // closed when rev and err are set
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

// run performs reads until there are no more callers waiting.
func (n *newestReads) run() {
	for {
		runtime.Gosched() // on a busy machine, lets other callers join the next read
		n.mu.Lock()
		round := n.next
		n.next = nil
		n.running = round != nil
		n.mu.Unlock()
		if round == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
		round.rev, round.err = n.read(ctx)
		cancel()
		close(round.done)
	}
}
