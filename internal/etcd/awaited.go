//go:build !noetcd

package etcd

// This file waits until the replica has reached a required revision.
//
// The replica may be up to date even if its revision is lower, because the watch does not receive
// events for writes outside of the prefix. In this case, requestProgress asks etcd for the progress
// of the watch.

import (
	"context"
	"sync/atomic"
	"time"
)

const (
	// delay before the first progress request; usually the events arrive first
	progressAfter = time.Millisecond
	// interval between progress requests, which etcd ignores until the watch has caught up
	progressEvery   = 20 * time.Millisecond
	writtenInterval = time.Second     // interval for checking whether events for our own writes are missing
	stalledAfter    = 5 * time.Second // the watch is restarted if nothing is received for this long
)

// await ensures that the replica eventually reaches the given revision, even if the watch does not
// receive any events. It does not block.
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

// noteWritten records the revision of one of this server's writes. There is no need to request
// progress for it, because the watch will receive the event unless it has stalled.
func (c *Cluster) noteWritten(rev int64) { raise(&c.written, rev) }

func raise(to *atomic.Int64, rev int64) {
	for {
		if was := to.Load(); was >= rev || to.CompareAndSwap(was, rev) {
			return
		}
	}
}

// reach blocks until the replica has reached the given revision.
func (c *Cluster) reach(ctx context.Context, rev int64) error {
	c.await(rev)
	return c.st.WaitRevision(ctx, rev)
}

// requestProgress sends progress requests while there are callers waiting for a revision.
func (c *Cluster) requestProgress(ctx context.Context) {
	overdue := time.NewTicker(writtenInterval)
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
					c.log.Warn().Msg("the watch of etcd has stalled; starting another one")
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
	return c.st.WaitRevision(ctx, c.wanted.Load()) == nil
}
