//go:build !noetcd

package etcd

// This file tells other servers that this one is there, and hears of them, as kube-apiservers do between each other (--endpoint-reconciler-type=lease):
//
//	PREFIX/masterleases/10.0.0.7    an Endpoints object with that address; etcd removes it 15 seconds after its server has last spoken
//
// kube-apiserver writes its key every ten seconds and then looks who is there. Here etcd's lease is kept alive, which is no write, and the watch tells
// at once who has come or gone. A key may be shared: servers that advertise one address are one to their clients. Then it is left to who has it, and
// made again when it is gone.

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
	masterSeconds = 15 // kube-apiserver's
	masterEvery   = 5 * time.Second
	leaveWithin   = 3 * time.Second // less than a server that stops waits for its work
)

// An announcement is what a server says of itself.
type announcement struct {
	*Cluster
	own   netip.Addr
	lease clientv3.LeaseID // 0: none
}

// Announce says until ctx ends that this server is at an address, and has reconcile called with the addresses of all servers: first of all, when one
// has come or gone, every few seconds, and at last without this one. entering: this server has just come.
func (c *Cluster) Announce(ctx context.Context, own netip.Addr, reconcile func(ctx context.Context, live []netip.Addr, entering bool) error) {
	a := &announcement{Cluster: c, own: own}
	entering, told := true, false
	for ctx.Err() == nil {
		err := a.keep(ctx)
		var live []netip.Addr
		if err == nil {
			live, err = c.Masters(ctx)
		}
		if err == nil {
			err = reconcile(ctx, live, entering)
		}
		if pause := masterEvery; err != nil {
			if !told && ctx.Err() == nil {
				c.log.Warn().Err(err).Msg("cannot add this server to the endpoints of Service default/kubernetes; trying again")
			}
			told = true
			rest(ctx, retryAfter)
		} else {
			entering, told = false, false
			a.await(ctx, pause)
		}
	}
	leaving, cancel := context.WithTimeout(context.Background(), leaveWithin)
	defer cancel()
	if err := a.leave(leaving, reconcile); err != nil {
		c.log.Warn().Err(err).Msg("cannot leave the endpoints of Service default/kubernetes; another server will remove this one")
	}
}

// await waits until somebody has come or gone.
func (a *announcement) await(ctx context.Context, most time.Duration) {
	late := time.NewTimer(most)
	defer late.Stop()
	select {
	case <-ctx.Done():
	case <-late.C:
	case <-a.masters:
	}
}

func (a *announcement) key() string { return a.mastersKey() + a.own.String() }

func (c *Cluster) mastersKey() string { return c.lay.Prefix() + mastersFolder }

// keep sees to it that the key is there, under a lease that lasts.
func (a *announcement) keep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
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

func (a *announcement) enter(ctx context.Context) error {
	value := fmt.Sprintf(`{"kind":"Endpoints","apiVersion":"v1","metadata":{},"subsets":[{"addresses":[{"ip":%q}]}]}`, a.own)
	_, err := a.client.Put(ctx, a.key(), value, clientv3.WithLease(a.lease))
	return err
}

// leave takes the server's word back. A key that another server has taken over stays.
func (a *announcement) leave(ctx context.Context, reconcile func(ctx context.Context, live []netip.Addr, entering bool) error) error {
	if a.lease == 0 {
		return nil
	}
	if _, err := a.client.Revoke(ctx, a.lease); err != nil {
		return err
	}
	live, err := a.Masters(ctx)
	if err != nil {
		return err
	}
	return reconcile(ctx, live, false)
}

// Masters are the addresses of all servers that are there.
func (c *Cluster) Masters(ctx context.Context) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, readPatience)
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

// noteMaster is told of keys that are no object's.
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
