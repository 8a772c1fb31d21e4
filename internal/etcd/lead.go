//go:build !noetcd

package etcd

// This file implements leader election for work that must only be done by one server at a time. The
// leader is the server that holds a lease, which expires within seconds if it is not renewed. When
// the lease expires, the next server in the queue becomes the leader. If a server was suspended, it
// may not be aware that its lease has expired, and may briefly continue to work after the next
// leader has started. This is harmless, because all their writes have preconditions, and one of two
// conflicting writes fails.
//
// Compaction of etcd works as in kube-apiserver. A server compacts to the revision of one interval
// ago if the version of a certain key has not changed since then. As a result, etcd is compacted
// once per interval even if there are servers of both kinds.

import (
	"context"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

const (
	leaseSeconds  = 5
	compactionKey = "compact_rev_key" // kube-apiserver's key, which has no prefix
)

// Lead runs work while this server is the leader, each time until the lease is lost or ctx ends. It
// does not return before ctx is done and work has returned. A nil Cluster always leads.
func (c *Cluster) Lead(ctx context.Context, work func(context.Context)) {
	if c == nil {
		work(ctx)
		return
	}
	for ctx.Err() == nil {
		if err := c.leadOnce(ctx, work); err != nil && ctx.Err() == nil {
			c.log.Warn().Err(err).Msg("cannot get the leader's lease")
			sleep(ctx, retryAfter)
		}
	}
}

func (c *Cluster) leadOnce(ctx context.Context, work func(context.Context)) error {
	granting, cancel := context.WithTimeout(ctx, writeTimeout)
	lease, err := c.client.Grant(granting, leaseSeconds)
	cancel()
	if err != nil {
		return err
	}
	session, err := concurrency.NewSession(c.client, concurrency.WithLease(lease.ID), concurrency.WithContext(ctx))
	if err != nil {
		return err
	}
	defer func() {
		leaving, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		session.Orphan()
		_, _ = c.client.Revoke(leaving, lease.ID) // otherwise the lease expires
	}()
	election := concurrency.NewElection(session, c.private("leader"))
	campaign, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(session.Ctx(), cancel)
	err = runElection(campaign, election)
	stop()
	cancel()
	if err != nil {
		return err
	}
	c.log.Info().Msg("this server is the leader, which runs the controllers for all servers")
	c.workWhile(ctx, session.Done(), work)
	if ctx.Err() == nil {
		c.log.Warn().Msg("the leader's lease is lost; another server becomes the leader")
	}
	return nil
}

// runElection campaigns until the election is won or ctx ends. If Campaign is canceled, it tries to
// delete its key, which can block until etcd responds. Therefore run does not wait for Campaign to
// return. It returns when etcd responds or the client is closed, and the expiry of the lease cleans
// up.
func runElection(ctx context.Context, election *concurrency.Election) error {
	won := make(chan error, 1)
	go func() { won <- election.Campaign(ctx, "") }()
	select {
	case err := <-won:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// workWhile runs work until ctx ends or over is closed.
func (c *Cluster) workWhile(ctx context.Context, over <-chan struct{}, work func(context.Context)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() { work(ctx) })
	running.Go(func() { c.compact(ctx) })
	select {
	case <-over:
	case <-ctx.Done():
	}
	cancel()
	running.Wait()
}

// compact compacts etcd once per interval.
func (c *Cluster) compact(ctx context.Context) {
	if c.cfg.CompactionInterval <= 0 {
		return
	}
	version, rev := int64(0), int64(0)
	for {
		sleep(ctx, c.cfg.CompactionInterval)
		if ctx.Err() != nil {
			return
		}
		var err error
		if version, rev, err = c.compactTo(ctx, version, rev); err != nil && ctx.Err() == nil {
			c.log.Warn().Err(err).Msg("cannot compact etcd; retrying")
		}
	}
}

// compactTo compacts to rev if no server has done so since the key had the given version. It
// returns the key's version and the current revision.
func (c *Cluster) compactTo(ctx context.Context, version, rev int64) (int64, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	answer, err := c.client.Txn(ctx).If(clientv3.Compare(clientv3.Version(compactionKey), "=", version)).
		Then(clientv3.OpPut(compactionKey, strconv.FormatInt(rev, 10))).Else(clientv3.OpGet(compactionKey)).Commit()
	if err != nil {
		return version, rev, err
	}
	now := answer.Header.Revision
	if !answer.Succeeded {
		if kv := found(answer, 0); kv != nil {
			version = kv.Version
		}
		return version, now, nil
	}
	if rev == 0 {
		return version + 1, now, nil
	}
	_, err = c.client.Compact(ctx, rev)
	return version + 1, now, err
}
