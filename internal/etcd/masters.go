//go:build !noetcd

package etcd

// This file registers this server in etcd and discovers the addresses of other servers, like
// kube-apiserver do (--endpoint-reconciler-type=lease):
//
//	PREFIX/masterleases/10.0.0.7    an Endpoints object with that address; etcd removes it 15 seconds after the last sign of life of its server
//
// kube-apiserver writes its key every ten seconds and then reads the others. apilet renews a lease
// instead, which does not write to etcd. A watch reports new and removed keys. Servers with the same
// address share a key. The key has the lease of one of these servers. If that lease expires, another
// server creates the key again.

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	mastersFolder = "masterleases/"
	masterSeconds = 15 // as in kube-apiserver
	masterEvery   = 5 * time.Second
	leaveWithin   = 3 * time.Second // must be less than the timeout for goroutines during a shutdown
)

// A registration is used to register the address of this server in etcd.
type registration struct {
	*Cluster
	own   netip.Addr
	lease clientv3.LeaseID // 0 means none
}

// Announce registers the address of this server in etcd until ctx is done. It calls reconcile with
// the addresses of all servers: at the start, after each change, and periodically. The last call
// does not include the own address. The argument entering is true until the first call succeeds.
func (c *Cluster) Announce(ctx context.Context, own netip.Addr, reconcile func(ctx context.Context, live []netip.Addr, entering bool) error) {
	a := &registration{Cluster: c, own: own}
	entering, logged := true, false
	for ctx.Err() == nil {
		err := a.keep(ctx)
		var live []netip.Addr
		if err == nil {
			live, err = c.Servers(ctx)
		}
		if err == nil {
			err = reconcile(ctx, live, entering)
		}
		if pause := masterEvery; err != nil {
			if !logged && ctx.Err() == nil {
				c.log.Warn().Err(err).Msg("cannot add this server to the endpoints of Service default/kubernetes; retrying")
			}
			logged = true
			sleep(ctx, retryAfter)
		} else {
			entering, logged = false, false
			a.await(ctx, pause)
		}
	}
	leaving, cancel := context.WithTimeout(context.Background(), leaveWithin)
	defer cancel()
	if err := a.leave(leaving, reconcile); err != nil {
		c.log.Warn().Err(err).Msg("cannot leave the endpoints of Service default/kubernetes; another server will remove this one")
	}
}

// await waits until the address of a server is added to etcd or removed from it, ctx ends, or the
// given time has passed.
func (a *registration) await(ctx context.Context, most time.Duration) {
	late := time.NewTimer(most)
	defer late.Stop()
	select {
	case <-ctx.Done():
	case <-late.C:
	case <-a.masters:
	}
}

func (a *registration) key() string { return a.mastersKey() + a.own.String() }

func (c *Cluster) mastersKey() string { return c.lay.Prefix() + mastersFolder }

// keep renews the lease and makes sure that the key exists.
func (a *registration) keep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if a.lease != 0 {
		_, err := a.client.KeepAliveOnce(ctx, a.lease)
		if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return failed(err)
		}
		if err == nil {
			answer, err := a.client.Get(ctx, a.key(), clientv3.WithKeysOnly())
			if err != nil || len(answer.Kvs) > 0 {
				return err
			}
			return a.enter(ctx)
		}
	}
	lease, err := a.client.Grant(ctx, masterSeconds)
	if err != nil {
		return failed(err)
	}
	a.lease = lease.ID
	return a.enter(ctx)
}

func (a *registration) enter(ctx context.Context) error {
	value := fmt.Sprintf(`{"kind":"Endpoints","apiVersion":"v1","metadata":{},"subsets":[{"addresses":[{"ip":%q}]}]}`, a.own)
	_, err := a.client.Put(ctx, a.key(), value, clientv3.WithLease(a.lease))
	return err
}

// leave revokes the lease. The key is not removed if it has been taken over by another server.
func (a *registration) leave(ctx context.Context, reconcile func(ctx context.Context, live []netip.Addr, entering bool) error) error {
	if a.lease == 0 {
		return nil
	}
	if _, err := a.client.Revoke(ctx, a.lease); err != nil {
		return err
	}
	live, err := a.Servers(ctx)
	if err != nil {
		return err
	}
	return reconcile(ctx, live, false)
}

// Servers returns the addresses of all running servers.
func (c *Cluster) Servers(ctx context.Context) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	answer, err := c.client.Get(ctx, c.mastersKey(), clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, failed(err)
	}
	var live []netip.Addr
	for _, kv := range answer.Kvs {
		if addr, err := netip.ParseAddr(strings.TrimPrefix(string(kv.Key), c.mastersKey())); err == nil {
			live = append(live, addr)
		}
	}
	return live, nil
}

// noteMaster handles events of keys that do not belong to objects. It wakes Announce if a server
// was added or removed.
func (c *Cluster) noteMaster(event *mvccpb.Event) {
	known := event.Type == mvccpb.Event_PUT && event.Kv.CreateRevision != event.Kv.ModRevision
	if known || !strings.HasPrefix(string(event.Kv.Key), c.mastersKey()) {
		return
	}
	select {
	case c.masters <- struct{}{}:
	default:
	}
}
