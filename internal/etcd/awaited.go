//go:build !noetcd

package etcd

// This file waits for the replica, until it has a revision that somebody wants to see.
//
// The replica may be behind that revision with nothing missing: what was written since was none of ours, and a watch is silent about it. Then
// etcd is asked for the watch's progress.

import (
	"context"
	"sync/atomic"
	"time"
)

const (
	progressAfter = time.Millisecond      // of waiting; mostly the events are on their way
	progressEvery = 20 * time.Millisecond // etcd does not answer while the watch is catching up
	writtenEvery  = time.Second           // what was written here, and does not come, is asked for
	stalledAfter  = 5 * time.Second       // a watch that has told nothing meanwhile is begun anew
)

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
