//go:build !noetcd

package etcd

// This file implements the functions for connecting to a cluster and for accessing it from a store.

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"apilet/internal/store"
)

// Open connects to the cluster and determines its identity.
func Open(ctx context.Context, cfg Config) (*Cluster, error) {
	c := &Cluster{cfg: cfg, log: cfg.Log, lay: cfg.Layout, masters: make(chan struct{}, 1), behind: make(chan struct{}, 1), lost: make(chan error, 1), stop: func() {}}
	c.lay.Encryption = cfg.Encryption
	var err error
	if c.client, err = cfg.connect(); err != nil {
		return nil, err
	}
	c.newest.read = c.readNewest
	if err = c.identify(ctx); err == nil {
		err = c.checkMigrated(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("--etcd-servers %s: %w", strings.Join(cfg.Servers, ","), err), c.client.Close())
	}
	return c, nil
}

// identify reads the cluster's id and lineage. It waits for etcd if etcd is still starting.
func (c *Cluster) identify(starting context.Context) error {
	ctx, cancel := context.WithTimeout(starting, contactTimeout)
	defer cancel()
	fresh, begun := make([]byte, 16), time.Now()
	rand.Read(fresh)
	for logged := ""; ; {
		var kept []byte
		var header *pb.ResponseHeader
		err := c.cfg.probe(ctx)
		if err == nil {
			kept, header, err = c.storedOrCreate(ctx, "lineage", fresh)
		}
		if err == nil && len(kept) == len(c.lineage) {
			copy(c.lineage[:], kept)
			c.id = header.ClusterId
			return nil
		}
		if err == nil {
			return fmt.Errorf("%s contains no lineage", c.private("lineage"))
		}
		if errors.Is(err, errMisconfigured) {
			return err
		}
		if starting.Err() != nil {
			return fmt.Errorf("it did not respond in %v, until the server was stopped: %w", time.Since(begun).Round(time.Second), err)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("it did not respond within %v: %w", contactTimeout, err)
		}
		if why := err.Error(); why != logged {
			logged = why
			c.log.Warn().Err(err).Strs("servers", c.cfg.Servers).Msg("etcd does not respond; retrying")
		}
		sleep(ctx, retryAfter)
	}
}

// Replica returns the functions that the store uses to access etcd.
func (c *Cluster) Replica() *store.Replica {
	if c == nil {
		return nil
	}
	return &store.Replica{
		Identity: strings.TrimSpace(fmt.Sprintf("%s %016x %s %s", hex.EncodeToString(c.lineage[:]), c.id, c.lay.Prefix(), c.cfg.Encryption.Hash())),
		Lineage:  c.lineage,
		Propose:  c.propose,
		Newest: func(ctx context.Context) (int64, error) {
			rev, err := c.newest.get(ctx)
			if err == nil {
				c.await(rev)
			}
			return rev, err
		},
		Behind: apierrors.NewTimeoutError("this server's replica does not keep up with etcd", 1),
		Share: func(ctx context.Context, name string, fresh []byte) ([]byte, error) {
			kept, _, err := c.storedOrCreate(ctx, "secrets/"+name, fresh)
			return kept, err
		},
		Tombstone: lastState,
	}
}

func (c *Cluster) readNewest(ctx context.Context) (int64, error) {
	known := c.st.Revision()
	answer, err := c.client.Get(ctx, c.private("nothing"), clientv3.WithCountOnly())
	if err != nil {
		return 0, failed(err)
	}
	return answer.Header.Revision, c.sameHistory(answer.Header, known)
}
