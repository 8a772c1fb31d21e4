//go:build !noetcd

package etcd

// This file finds out how far the log is. "Most recent" has to show every write that was answered before the question, by whichever server;
// only a quorum of etcd's members knows of them all. One small read is enough for everybody who waits when it begins:
//
//	a asks ──▶ read 1 begins
//	b asks, c asks: read 1 may be older than what they want, they wait for the next
//	             read 1 ends ──▶ a has its revision; read 2 begins, for b and c
//
// The replica may be behind that revision with nothing missing: what was written since was none of ours, and a watch is silent about it. Then
// etcd is asked for the watch's progress.

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	progressAfter = time.Millisecond      // of waiting; mostly the events are on their way
	progressEvery = 20 * time.Millisecond // etcd does not answer while the watch is catching up
	writtenEvery  = time.Second           // what was written here, and does not come, is asked for
	stalledAfter  = 5 * time.Second       // a watch that has told nothing meanwhile is begun anew
)

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

func (c *Cluster) readNewest(ctx context.Context) (int64, error) {
	known := c.st.Revision()
	answer, err := c.client.Get(ctx, c.private("nothing"), clientv3.WithCountOnly())
	if err != nil {
		return 0, failed(err)
	}
	return answer.Header.Revision, c.sameHistory(answer.Header, known)
}

// await sees to it that the replica gets to a revision, however little happens there.
func (c *Cluster) await(rev int64) {
	if c.st == nil || c.st.Revision() >= rev {
		return
	}
	raise(&c.wanted, rev)
	select {
	case c.behind <- struct{}{}:
	default:
	}
}

// expect is await for the revision of a write of ours: the watch tells it without being asked, unless it has stalled.
func (c *Cluster) expect(rev int64) { raise(&c.written, rev) }

func raise(to *atomic.Int64, rev int64) {
	for {
		if was := to.Load(); was >= rev || to.CompareAndSwap(was, rev) {
			return
		}
	}
}

// reach is await and the wait.
func (c *Cluster) reach(ctx context.Context, rev int64) error {
	c.await(rev)
	return c.st.Reach(ctx, rev)
}

// keepUp asks for the watch's progress while somebody waits for it.
func (c *Cluster) keepUp(ctx context.Context) {
	overdue := time.NewTicker(writtenEvery)
	defer overdue.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.behind:
		case <-overdue.C:
			raise(&c.wanted, c.written.Load())
		}
		since, at := time.Now(), c.st.Revision()
		for wait := progressAfter; !c.within(ctx, wait) && ctx.Err() == nil; wait = progressEvery {
			if now := c.st.Revision(); now != at {
				since, at = time.Now(), now
			}
			if time.Since(since) > stalledAfter {
				if w := c.watching.Swap(nil); w != nil {
					c.log.Warn().Msg("etcd's watch has stalled; beginning another one")
					w.close()
				}
				since = time.Now()
			}
			if w := c.watching.Load(); w != nil {
				w.askProgress() // who follows hears when there is something wrong
			}
		}
	}
}

// within tells whether the replica gets to what is wanted in a time.
func (c *Cluster) within(ctx context.Context, wait time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return c.st.Reach(ctx, c.wanted.Load()) == nil
}
