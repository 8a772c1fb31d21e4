//go:build !noetcd

package etcd

// This file waits until the replica has reached a required revision.
//
// The replica may be behind that revision although it has all objects: the writes since then may
// have been outside the prefix, and the watch does not report those. In this case, keepUp asks etcd
// for the progress of the watch.

import (
	"context"
	"sync/atomic"
	"time"
)

const (
	// delay before the first progress request; usually the events arrive first
	progressAfter = time.Millisecond
	// interval of progress requests; etcd does not answer them while the watch catches up
	progressEvery = 20 * time.Millisecond
	writtenEvery  = time.Second     // interval of checks for own writes whose events have not arrived
	stalledAfter  = 5 * time.Second // a watch without any message for this long is replaced
)

// await makes the replica catch up to a revision even if its watch receives no events. It does not
// block.
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

// expect records the revision of one of this server's writes. The watch delivers its event without
// a progress request, unless the watch has stalled.
func (c *Cluster) expect(rev int64) { raise(&c.written, rev) }

func raise(to *atomic.Int64, rev int64) {
	for {
		if was := to.Load(); was >= rev || to.CompareAndSwap(was, rev) {
			return
		}
	}
}

// reach waits until the replica has reached a revision.
func (c *Cluster) reach(ctx context.Context, rev int64) error {
	c.await(rev)
	return c.st.Reach(ctx, rev)
}

// keepUp requests the progress of the watch while a caller waits for it.
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
				w.askProgress() // an error is noticed by watchOnce
			}
		}
	}
}

// within reports whether the replica reaches the wanted revision in the given time.
func (c *Cluster) within(ctx context.Context, wait time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return c.st.Reach(ctx, c.wanted.Load()) == nil
}
