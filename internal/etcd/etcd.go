//go:build !noetcd

// Package etcd makes an etcd cluster the log of a store: several servers then serve the same objects, each from its own replica.
//
//	cluster, err := etcd.Open(ctx, etcd.Config{Servers: []string{"http://10.0.0.1:2379"}, Layout: etcd.NewLayout("/registry", reg), Log: log})
//	st, err := store.Open("replica.db", store.Options{Replica: cluster.Replica()})
//	err = cluster.Start(ctx, st)  // fills the replica, or goes on where it was left; returns once it has caught up
//	...
//	cluster.Lead(ctx, work)       // runs work while this server, and no other, is the one to do it
//	cluster.Close()
//
// Keys and values are kube-apiserver's (package layout); the revision of a record is etcd's. Four things go on between the two:
//
//	follow.go    a watch (stream.go) of everything below the prefix feeds Store.Replicate; a snapshot feeds Store.Fill where the watch cannot begin
//	propose.go   Store.Commit becomes one Txn, whose precondition is the object's mod revision
//	newest.go    one linearizable read, shared by all who wait, tells how far the replica has to be for "most recent"; awaited.go waits for that
//	own.go       which of the events are this server's own writes
//	lead.go      a lease elects who does what only one may do, and who compacts etcd
//	masters.go   which servers there are, for the endpoints of Service default/kubernetes
//	probe.go     why etcd is not to be reached
//	health.go    how etcd was when it was last asked, and how far the replica was behind it
//	migrate.go   a file's objects go into a cluster, and back; bridge.go: above the revisions of before
//
// What is no object lies below PREFIX/.apilet/, where no path of an object leads: what Store.Secret keeps (keys of continue tokens and of
// service accounts, the lineage), the authority of the servers' certificates, and the lease's key.
//
// When etcd fails, in short: reads that ask for "most recent" and writes fail after some seconds; everything else goes on from the
// replica. A write whose outcome is not known is answered so, and not tried again. Everything recovers by itself. A cluster that is not the
// one that the replica follows (its id is another one, or its revision has gone back) makes Lost speak: nothing that was read from the
// replica would mean anything there, so the server starts anew, with an empty one.
//
// A nil Cluster is none, for a server whose objects are in its own file: it has no replica, is never lost, and leads always.
//
// Built with the tag noetcd it is left out, and [Open] says so.
package etcd

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"github.com/tidwall/gjson"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"apilet/internal/encryption"
	"apilet/internal/etcd/layout"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

const (
	patience      = 10 * time.Second // with etcd, of a write
	contactWithin = time.Minute      // of the start
	retryAfter    = time.Second

	// streamWindow is what etcd may send ahead on one stream. That it is said switches off gRPC's own search for it, which answers each message
	// with a ping: two more system calls here, and two in etcd.
	streamWindow = 4 << 20
)

// Config says which cluster, and how its keys are read. Names and meanings are those of kube-apiserver's flags.
type Config struct {
	Servers                   []string
	CAFile, CertFile, KeyFile string
	Layout                    *Layout
	Encryption                *encryption.Providers // of values; nil: none
	CompactionInterval        time.Duration         // 0: etcd is not compacted
	RevisionsGoBack           bool                  // of ToCluster: etcd's revision stays as it is, since no client goes on with one of the file's
	Log                       zerolog.Logger
}

// A Layout is where objects are in etcd and what their values are, as package layout tells.
type Layout = layout.Layout

// NewLayout makes one of the types in the registry, below a prefix such as /registry.
func NewLayout(prefix string, reg *scheme.Registry) *Layout { return layout.New(prefix, reg) }

// KeysChanged is for when what is encrypted in etcd can be read otherwise than before: a replica that could not read all of it is filled anew.
func (c *Cluster) KeysChanged() {
	if c != nil && c.unreadable.Load() > 0 {
		c.lose(errors.New("there may be a key for what could not be read"), true)
	}
}

// A Cluster is an etcd cluster that is in use.
type Cluster struct {
	cfg        Config
	log        zerolog.Logger
	lay        *layout.Layout
	client     *clientv3.Client
	id         uint64 // the cluster's
	lineage    [16]byte
	st         *store.Store // set by Start
	started    atomic.Bool  // st is set
	newest     newestReads
	own        ownWrites
	needed     knownDependencies
	wanted     atomic.Int64                // the revision that somebody waits for
	written    atomic.Int64                // the newest revision of what was written here
	masters    chan struct{}               // a token once a server has come or gone
	behind     chan struct{}               // a token once somebody waits for more than the replica has
	watching   atomic.Pointer[watchStream] // the last one that was opened, unless it has stalled
	trouble    atomic.Pointer[string]      // what is wrong with the watch; nil: nothing
	unreadable atomic.Int64                // objects that came and could not be decoded
	seen       sighting                    // of etcd, by those who ask how it is
	noSpace    atomic.Bool                 // etcd has refused the last write for want of space
	lost       chan error                  // capacity 1
	loseOnce   sync.Once
	stop       context.CancelFunc
	running    sync.WaitGroup
}

func (cfg *Config) connect() (*clientv3.Client, error) {
	security, err := cfg.tls()
	if err != nil {
		return nil, err
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: cfg.Servers, TLS: security, DialTimeout: 5 * time.Second,
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 5 * time.Second, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithInitialWindowSize(streamWindow), grpc.WithInitialConnWindowSize(2 * streamWindow), grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: 3 * time.Second,
			Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second}})}})
	if err != nil {
		return nil, fmt.Errorf("--etcd-servers: %w", err)
	}
	return client, nil
}

func (cfg *Config) tls() (*tls.Config, error) {
	secured := false
	for _, server := range cfg.Servers {
		secured = secured || strings.HasPrefix(server, "https://")
	}
	info := transport.TLSInfo{TrustedCAFile: cfg.CAFile, CertFile: cfg.CertFile, KeyFile: cfg.KeyFile}
	if !secured && info.Empty() && cfg.CAFile == "" {
		return nil, nil
	}
	security, err := info.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("--etcd-cafile, --etcd-certfile, --etcd-keyfile: %w", err)
	}
	return security, nil
}

// private is the key of something that is no object.
func (c *Cluster) private(name string) string { return private(c.lay, name) }

func private(lay *layout.Layout, name string) string {
	return lay.Prefix() + path.Join(".apilet", name)
}

// keep returns what etcd has under a private key: fresh, if it had nothing.
func (c *Cluster) keep(ctx context.Context, name string, fresh []byte) ([]byte, *pb.ResponseHeader, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	key := c.private(name)
	answer, err := c.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, string(fresh))).Else(clientv3.OpGet(key)).Commit()
	if err != nil {
		return nil, nil, failed(err)
	}
	if answer.Succeeded {
		return fresh, answer.Header, nil
	}
	found := answer.Responses[0].GetResponseRange().Kvs
	if len(found) == 0 {
		return nil, nil, fmt.Errorf("%s came and went", key)
	}
	return found[0].Value, answer.Header, nil
}

// Agree changes what etcd has under a private key. decide gets that, nil for nothing, and returns what is to be there instead, nil to leave it. It is
// called again when another server was faster.
func (c *Cluster) Agree(ctx context.Context, name string, decide func(kept []byte) (next []byte, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	key := c.private(name)
	for {
		answer, err := c.client.Get(ctx, key)
		if err != nil {
			return fmt.Errorf("%s: %w", key, failed(err))
		}
		var kept []byte
		var rev int64
		if len(answer.Kvs) > 0 {
			kept, rev = answer.Kvs[0].Value, answer.Kvs[0].ModRevision
		}
		next, err := decide(kept)
		if err != nil || next == nil {
			return err
		}
		written, err := c.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", rev)).Then(clientv3.OpPut(key, string(next))).Commit()
		if err != nil {
			return fmt.Errorf("%s: %w", key, failed(err))
		}
		if written.Succeeded {
			return nil
		}
	}
}

// lastState is what an object's deletion shows: the object, and the revision of its deletion.
func lastState(json []byte) (doc []byte, revAt int) {
	at := gjson.GetBytes(json, "metadata.resourceVersion")
	if at.Index == 0 {
		return json, 0
	}
	return bytes.Join([][]byte{json[:at.Index+1], json[at.Index+len(at.Raw)-1:]}, nil), at.Index + 1
}

// ErrLost is what Lost says, and Start: only a new beginning helps.
var ErrLost = errors.New("the replica cannot go on")

// Lost says why the replica cannot go on, once it cannot. Of no cluster it says nothing.
func (c *Cluster) Lost() <-chan error {
	if c == nil {
		return nil
	}
	return c.lost
}

// lose is for what only a new beginning helps against. distrust: the replica's file is not to be used again.
func (c *Cluster) lose(err error, distrust bool) {
	c.loseOnce.Do(func() {
		if distrust && c.st != nil {
			c.st.Distrust()
		}
		c.lost <- fmt.Errorf("%w: %w", ErrLost, err)
	})
}

// Damaged is told what is damaged in the replica that Start was given.
func (c *Cluster) Damaged(place string) {
	if c != nil && c.started.Load() { // what is found before, the opening of the store has dealt with
		c.lose(fmt.Errorf("the replica is damaged: %s", place), true)
	}
}

// sameHistory compares an answer's header with what the replica knew before the question; 0: it may be behind that.
func (c *Cluster) sameHistory(header *pb.ResponseHeader, known int64) error {
	var err error
	switch {
	case header.ClusterId != c.id:
		err = fmt.Errorf("%w: the cluster's id was %016x and is %016x", errOtherHistory, c.id, header.ClusterId)
	case header.Revision < known:
		err = fmt.Errorf("%w: the revision has gone back from %d to %d, so that clients that go on miss events: restart them, or restore etcd with "+
			"`etcdutl snapshot restore --bump-revision N --mark-compacted`", errOtherHistory, known, header.Revision)
	default:
		return nil
	}
	c.lose(err, true)
	return err
}

// Close ends what Start has begun, and the connections.
func (c *Cluster) Close() error {
	if c == nil {
		return nil
	}
	c.stop()
	c.running.Wait()
	return c.client.Close()
}

// rest waits, unless ctx ends.
func rest(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
