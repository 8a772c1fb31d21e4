//go:build !noetcd

package etcd

// This file reports the state of etcd, and the lag of the replica. Check sends a request to etcd.
// State returns the result of the last check.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"apilet/internal/store"
)

const checkTimeout = 3 * time.Second

// State describes the state of the cluster as of the last check.
type State struct {
	Reachable bool // etcd answered a linearizable read
	NoSpace   bool // etcd rejected the last write because its quota is exceeded
	// number of revisions that the replica lacks, compared with the newest revision seen
	LagRevisions int64
	Lag          time.Duration // how long the replica has lagged
}

// State returns the result of the last check, compared with the current revision of the replica.
func (c *Cluster) State() State {
	replica := c.st.Revision()
	c.health.mu.Lock()
	defer c.health.mu.Unlock()
	s := State{Reachable: c.health.reachable, NoSpace: c.noSpace.Load(), LagRevisions: max(0, c.health.newest-replica)}
	if c.health.awaited > replica {
		s.Lag = time.Since(c.health.since)
	}
	return s
}

// Check returns an error that explains why the most recent state cannot be read, or nil if it can.
func (c *Cluster) Check() error {
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	rev, err := c.newest.get(ctx)
	c.health.note(rev, err, c.st.Revision())
	if err == nil {
		if err = c.reach(ctx, rev); err == nil {
			c.health.note(rev, nil, c.st.Revision())
			return nil
		}
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("the replica is at revision %d and etcd at %d: check the replica's disk and the connection to etcd", c.st.Revision(), rev)
		}
	}
	if why := c.cfg.probe(context.Background()); why != nil {
		err = fmt.Errorf("%w: %w", err, why)
	} else if trouble := c.watchError.Load(); trouble != nil {
		err = fmt.Errorf("%w: %s", err, *trouble)
	}
	return fmt.Errorf("%w (the replica still serves watches and reads with resourceVersion=0; the server recovers automatically with etcd)", err)
}

// WithinQuota returns an error if etcd rejects writes because of its quota, according to the last
// write.
func (c *Cluster) WithinQuota() error {
	if !c.noSpace.Load() {
		return nil
	}
	return fmt.Errorf("%w: compact and defragment etcd or raise its --quota-backend-bytes, then `etcdctl alarm disarm`; deletes are still accepted", rpctypes.ErrNoSpace)
}

// noteSpace records whether a write found etcd out of space. Successful deletes are ignored,
// because etcd accepts them even if the quota is exceeded.
func (c *Cluster) noteSpace(op store.ChangeOp, err error) {
	var etcdErr rpctypes.EtcdError
	switch {
	case err == nil && op != store.OpDelete:
		c.noSpace.Store(false)
	case errors.As(err, &etcdErr) && errors.Is(etcdErr, rpctypes.ErrNoSpace):
		c.noSpace.Store(true)
	}
}
