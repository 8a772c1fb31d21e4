//go:build !noetcd

package etcd

// This file says how etcd is, and how far the replica is behind it. Whoever asks Check has etcd looked at; State is what was seen last.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"apilet/internal/store"
)

const checkWithin = 3 * time.Second

// State is how a cluster was when it was last asked.
type State struct {
	Reachable    bool          // it answered a linearizable read
	NoSpace      bool          // it has refused the last write because its own quota is exceeded
	LagRevisions int64         // that the replica does not show yet, of those that etcd was seen to have
	Lag          time.Duration // since when that is so
}

// State is what was seen last, compared with the replica of now.
func (c *Cluster) State() State {
	replica := c.st.Revision()
	c.seen.mu.Lock()
	defer c.seen.mu.Unlock()
	s := State{Reachable: c.seen.reachable, NoSpace: c.noSpace.Load(), LagRevisions: max(0, c.seen.newest-replica)}
	if c.seen.awaited > replica {
		s.Lag = time.Since(c.seen.since)
	}
	return s
}

// Check tells why "most recent" cannot be read; nil while it can.
func (c *Cluster) Check() error {
	ctx, cancel := context.WithTimeout(context.Background(), checkWithin)
	defer cancel()
	rev, err := c.newest.get(ctx)
	c.seen.note(rev, err, c.st.Revision())
	if err == nil {
		if err = c.reach(ctx, rev); err == nil {
			c.seen.note(rev, nil, c.st.Revision())
			return nil
		}
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("the replica is at revision %d and etcd at %d: look at the replica's disk and the way to etcd", c.st.Revision(), rev)
		}
	}
	if why := c.cfg.probe(context.Background()); why != nil {
		err = fmt.Errorf("%w: %w", err, why)
	} else if trouble := c.trouble.Load(); trouble != nil {
		err = fmt.Errorf("%w: %s", err, *trouble)
	}
	return fmt.Errorf("%w (reads with resourceVersion=0 and watches go on with what the replica has; all comes back by itself once etcd does)", err)
}

// WithinQuota tells that etcd takes no writes because of its quota; nil while it does, as far as is known from the last write.
func (c *Cluster) WithinQuota() error {
	if !c.noSpace.Load() {
		return nil
	}
	return fmt.Errorf("%w: compact and defragment etcd or raise its --quota-backend-bytes, then `etcdctl alarm disarm`; deletes are still taken", rpctypes.ErrNoSpace)
}

// noteSpace keeps what a write has shown of etcd's space. Deletes take none.
func (c *Cluster) noteSpace(op store.ChangeOp, err error) {
	var said rpctypes.EtcdError
	switch {
	case err == nil && op != store.OpDelete:
		c.noSpace.Store(false)
	case errors.As(err, &said) && errors.Is(said, rpctypes.ErrNoSpace):
		c.noSpace.Store(true)
	}
}
