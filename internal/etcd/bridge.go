//go:build !noetcd

package etcd

// This file takes a cluster's revision above a file's, before the file's objects come in. A revision is counted up by each Txn, however much is in
// it, and by nothing else: so one small key is written as often as that takes, some thousand times a second. What that leaves behind is
// compacted on the way.
//
// That is no way for a file that was restored from a backup, which is a billion ahead. For an etcd that is still empty there is another:
// etcdutl restores a snapshot of it under any revision. checkRaise says so, before anything is written.

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"apilet/internal/store"
)

const (
	raiseMost    = 1_000_000 // writes: some minutes
	raisesAtOnce = 256       // which etcd syncs together
	raiseCompact = 50_000    // writes that etcd keeps at most
)

// checkRaise refuses what would take too many writes.
func checkRaise(ctx context.Context, cfg Config, client *clientv3.Client, to int64) error {
	if cfg.RevisionsGoBack {
		return nil
	}
	at, err := currentRevision(ctx, cfg, client)
	if err != nil || to-at <= raiseMost {
		return err
	}
	return fmt.Errorf("the file is at revision %d and etcd at %d: clients that go on with revisions of before would miss events in silence, and to raise etcd's takes %d writes, "+
		"more than %d. Restore etcd from a snapshot of itself with `etcdutl snapshot restore --bump-revision %d --mark-compacted`, or restart all clients and "+
		"say --revisions-go-back", to, at, to-at, raiseMost, to-at)
}

func currentRevision(ctx context.Context, cfg Config, client *clientv3.Client) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer, err := client.Get(ctx, private(cfg.Layout, "nothing"), clientv3.WithCountOnly())
	if err != nil {
		return 0, fmt.Errorf("--etcd-servers %s: %w", strings.Join(cfg.Servers, ","), err)
	}
	return answer.Header.Revision, nil
}

// raiseRevision writes until the cluster's revision is one or above it.
func raiseRevision(ctx context.Context, cfg Config, client *clientv3.Client, to int64, seen *store.Progress) error {
	begun, err := currentRevision(ctx, cfg, client)
	if err != nil || begun >= to {
		return err
	}
	seen.Begin("revisions", to-begun)
	key := private(cfg.Layout, "revision")
	var at, compacted atomic.Int64
	at.Store(begun)
	compacted.Store(begun)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var writing sync.WaitGroup
	for range min(raisesAtOnce, to-begun) {
		writing.Go(func() {
			for at.Load() < to && ctx.Err() == nil {
				now, err := putOnce(ctx, client, key)
				if err == nil {
					raise(&at, now)
					seen.Add(1)
					if was := compacted.Load(); now-was > raiseCompact && compacted.CompareAndSwap(was, now) {
						err = compactTo(ctx, client, now)
					}
				}
				if err != nil {
					stop(fmt.Errorf("raising the revision of etcd: %w", err))
				}
			}
		})
	}
	writing.Wait()
	return context.Cause(ctx)
}

func putOnce(ctx context.Context, client *clientv3.Client, key string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, pageWithin)
	defer cancel()
	answer, err := client.Put(ctx, key, "")
	if err != nil {
		return 0, err
	}
	return answer.Header.Revision, nil
}

// compactAll lets no revision of before be read: nobody is told what was below a key then, when all that the file held was not there yet.
func compactAll(ctx context.Context, cfg Config, client *clientv3.Client) error {
	at, err := currentRevision(ctx, cfg, client)
	if err != nil {
		return err
	}
	return compactTo(ctx, client, at)
}

// compactTo compacts, unless somebody has.
func compactTo(ctx context.Context, client *clientv3.Client, rev int64) error {
	ctx, cancel := context.WithTimeout(ctx, pageWithin)
	defer cancel()
	_, err := client.Compact(ctx, rev)
	if errors.Is(err, rpctypes.ErrCompacted) {
		return nil
	}
	return err
}

// serversRun tells whether a server has a lease: apilets on who leads, and servers of both kinds on where they are.
func serversRun(ctx context.Context, cfg Config, client *clientv3.Client) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var asked []clientv3.Op
	for _, prefix := range []string{private(cfg.Layout, "leader") + "/", cfg.Layout.Prefix() + mastersFolder} {
		asked = append(asked, clientv3.OpGet(prefix, clientv3.WithPrefix(), clientv3.WithCountOnly()))
	}
	answer, err := client.Txn(ctx).Then(asked...).Commit()
	if err != nil {
		return false, fmt.Errorf("--etcd-servers %s: %w", strings.Join(cfg.Servers, ","), err)
	}
	for _, r := range answer.Responses {
		if r.GetResponseRange().Count > 0 {
			return true, nil
		}
	}
	return false, nil
}
