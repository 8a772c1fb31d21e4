//go:build !noetcd

package etcd

// This file is used to increase the revision of an etcd cluster before objects are copied from a
// file with a higher revision. The only way to increase the revision is to execute transactions,
// each of which increments it by one. Therefore one small key is written repeatedly, some thousand
// times a second, and etcd is compacted meanwhile.
//
// This would take too long if the file was restored from a backup, because that increases its
// revision by a billion. An empty etcd can instead be restored by etcdutl from a snapshot of
// itself, at any revision. checkRaise reports this before anything is written.

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
	raiseMost    = 1_000_000 // maximum number of writes, which take some minutes
	raisesAtOnce = 256       // concurrent writes, which share etcd's fsync
	raiseCompact = 50_000    // number of writes after which etcd is compacted
)

// checkRaise returns an error if raising the revision would take too many writes.
func checkRaise(ctx context.Context, cfg Config, client *clientv3.Client, to int64) error {
	if cfg.RevisionsGoBack {
		return nil
	}
	at, err := currentRevision(ctx, cfg, client)
	if err != nil || to-at <= raiseMost {
		return err
	}
	return fmt.Errorf("the file is at revision %d and etcd at %d: clients that continue from old revisions would miss events silently, and raising etcd's revision takes %d writes, "+
		"more than %d. Restore etcd from a snapshot of itself with `etcdutl snapshot restore --bump-revision %d --mark-compacted`, or restart all clients and "+
		"say --revisions-go-back", to, at, to-at, raiseMost, to-at)
}

func currentRevision(ctx context.Context, cfg Config, client *clientv3.Client) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	answer, err := client.Get(ctx, private(cfg.Layout, "nothing"), clientv3.WithCountOnly())
	if err != nil {
		return 0, fmt.Errorf("--etcd-servers %s: %w", strings.Join(cfg.Servers, ","), err)
	}
	return answer.Header.Revision, nil
}

// raiseRevision writes to etcd until the cluster has reached the given revision.
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

// compactAll compacts all earlier revisions. At those revisions the prefix did not contain the
// file's objects yet, so reading them would give wrong results.
func compactAll(ctx context.Context, cfg Config, client *clientv3.Client) error {
	at, err := currentRevision(ctx, cfg, client)
	if err != nil {
		return err
	}
	return compactTo(ctx, client, at)
}

// compactTo compacts etcd. It is no error if this revision has already been compacted.
func compactTo(ctx context.Context, client *clientv3.Client, rev int64) error {
	ctx, cancel := context.WithTimeout(ctx, pageWithin)
	defer cancel()
	_, err := client.Compact(ctx, rev)
	if errors.Is(err, rpctypes.ErrCompacted) {
		return nil
	}
	return err
}

// serversRun reports whether there are any running servers. An apilet holds a lease for the leader
// election, and both apilets and kube-apiservers hold leases for their addresses.
func serversRun(ctx context.Context, cfg Config, client *clientv3.Client) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
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
