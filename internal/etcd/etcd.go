//go:build !noetcd

// Package etcd uses an etcd cluster as the log of a store. This allows multiple servers to serve
// the same objects from their own replicas.
//
//	cluster, err := etcd.Open(ctx, etcd.Config{Servers: []string{"http://10.0.0.1:2379"}, Layout: etcd.NewLayout("/registry", reg), Log: log})
//	st, err := store.Open("replica.db", store.Options{Replica: cluster.Replica()})
//	err = cluster.Start(ctx, st)  // fills the replica or resumes it; returns when it has caught up
//	...
//	cluster.Lead(ctx, work)       // runs work while this server is the leader
//	cluster.Close()
//
// The keys and values are compatible with kube-apiserver (see package layout). Records have the
// same revisions as in etcd. The files of the package are:
//
//	follow.go    a watch (stream.go) of all keys below the prefix feeds Store.Replicate; a snapshot feeds Store.Fill if the watch cannot start
//	propose.go   Store.Commit becomes one Txn, whose precondition is the object's mod revision
//	newest.go    one linearizable read, shared by all waiting requests, returns the revision that the replica must reach for "most recent"; awaited.go waits for it
//	own.go       recognizes the events of this server's own writes
//	lead.go      elects, with a lease, the leader; it does the work of one server and compacts etcd
//	masters.go   finds the addresses of all servers, for the endpoints of Service default/kubernetes
//	probe.go     finds out why etcd is unreachable
//	health.go    remembers the state of etcd at the last check, and the lag of the replica
//	migrate.go   copies the objects of a file to a cluster, and back; bridge.go raises the revision before
//
// Everything that is not an object is stored below PREFIX/.apilet/, which is not a valid path for
// objects. This includes the values of Store.Secret (the keys for continue tokens and service
// accounts, and the lineage), the certificate authority of the servers, and the key for the leader
// election.
//
// If etcd fails, writes and reads that require the most recent state fail after some seconds. All
// other requests are served from the replica. If the outcome of a write is unknown, it is not
// retried, and the client receives an error that says so. After etcd returns, everything recovers
// without intervention. If the cluster turns out to be a different one (because its ID has changed
// or its revision has decreased), an error is sent to the channel returned by Lost. The replica is
// then useless, and the server must restart with an empty one.
//
// A nil Cluster is valid. It is used if the server stores objects in its own file. In this case
// there is no replica, Lost never reports an error, and the server is always the leader.
//
// With the build tag noetcd, the package is reduced to stubs, and [Open] returns an error.
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
	writeTimeout   = 10 * time.Second // time limit of a write to etcd
	contactTimeout = time.Minute      // time limit for the first contact
	retryAfter     = time.Second

	// streamWindow limits the data that etcd may send ahead on one stream. Setting it disables
	// gRPC's estimate of the bandwidth, which answers each message with a ping and so needs two
	// more system calls here and two in etcd.
	streamWindow = 4 << 20
)

// Config contains the addresses of the cluster and the layout of its data. The fields correspond to
// the flags of kube-apiserver.
type Config struct {
	Servers                   []string
	CAFile, CertFile, KeyFile string
	Layout                    *Layout
	Encryption                *encryption.Providers // encryption of values; nil means none
	CompactionInterval        time.Duration         // if 0, etcd is not compacted
	// RevisionsGoBack is used by MigrateToCluster. If set, the revision of etcd is not increased,
	// which is only safe if no client continues with a revision from the file.
	RevisionsGoBack bool
	Log             zerolog.Logger
}

// A Layout maps objects to their keys and values in etcd. See package layout.
type Layout = layout.Layout

// NewLayout returns a layout of the registry's types below a prefix such as /registry.
func NewLayout(prefix string, reg *scheme.Registry) *Layout { return layout.New(prefix, reg) }

// KeysChanged must be called after the encryption keys have changed. The replica is filled again if
// there were objects that could not be decrypted.
func (c *Cluster) KeysChanged() {
	if c != nil && c.unreadable.Load() > 0 {
		c.reportLost(errors.New("there may be a key for what could not be read"), true)
	}
}

// A Cluster is a connection to an etcd cluster.
type Cluster struct {
	cfg          Config
	log          zerolog.Logger
	lay          *layout.Layout
	client       *clientv3.Client
	id           uint64 // id of the cluster
	lineage      [16]byte
	st           *store.Store // set by Start
	started      atomic.Bool  // st is set
	newest       newestReads
	pending      pendingWrites
	dependencies knownDependencies
	wanted       atomic.Int64  // the highest revision requested by any caller
	written      atomic.Int64  // the newest revision that was written by this server
	masters      chan struct{} // notified when a server is added or removed
	// notified when wanted exceeds the replica's revision
	behind     chan struct{}
	watching   atomic.Pointer[watchStream] // the current stream, or nil if it has stalled
	watchError atomic.Pointer[string]      // the last error of the watch, or nil if it is working
	unreadable atomic.Int64                // number of received objects that could not be decoded
	health     healthState                 // result of the last health checks
	noSpace    atomic.Bool                 // the last write failed because etcd has no space
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

// private returns the key of data that is not an object.
func (c *Cluster) private(name string) string { return private(c.lay, name) }

func private(lay *layout.Layout, name string) string {
	return lay.Prefix() + path.Join(".apilet", name)
}

// storedOrCreate returns the value of a private key. If the key does not exist, it is created with
// the value fresh.
func (c *Cluster) storedOrCreate(ctx context.Context, name string, fresh []byte) ([]byte, *pb.ResponseHeader, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
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

// UpdateValue updates the value of a private key. decide receives the current value, or nil if the
// key does not exist. It returns the new value, or nil to leave the key unchanged. It is called
// again if another server changed the value in the meantime.
func (c *Cluster) UpdateValue(ctx context.Context, name string, decide func(kept []byte) (next []byte, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
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

// lastState converts the last version of an object for its DELETED event. It removes the revision,
// and returns the offset at which the revision of the deletion belongs.
func lastState(json []byte) (doc []byte, revAt int) {
	at := gjson.GetBytes(json, "metadata.resourceVersion")
	if at.Index == 0 {
		return json, 0
	}
	return bytes.Join([][]byte{json[:at.Index+1], json[at.Index+len(at.Raw)-1:]}, nil), at.Index + 1
}

// ErrLost is the error of Lost and Start. It means that the server must restart with an empty
// replica.
var ErrLost = errors.New("the replica cannot continue")

// Lost delivers an error if the replica cannot continue. A nil Cluster returns a nil channel.
func (c *Cluster) Lost() <-chan error {
	if c == nil {
		return nil
	}
	return c.lost
}

// reportLost reports an error that only a restart can resolve. If distrust is set, the replica's
// file must not be used again.
func (c *Cluster) reportLost(err error, distrust bool) {
	c.loseOnce.Do(func() {
		if distrust && c.st != nil {
			c.st.Invalidate()
		}
		c.lost <- fmt.Errorf("%w: %w", ErrLost, err)
	})
}

// Damaged reports damage in the replica. Damage found before Start is ignored, because opening the
// store has handled it.
func (c *Cluster) Damaged(place string) {
	if c != nil && c.started.Load() {
		c.reportLost(fmt.Errorf("the replica is damaged: %s", place), true)
	}
}

// sameHistory checks the header of a response against the cluster's id, and against a revision that
// the replica had before the request. known is 0 if the response may be older.
func (c *Cluster) sameHistory(header *pb.ResponseHeader, known int64) error {
	var err error
	switch {
	case header.ClusterId != c.id:
		err = fmt.Errorf("%w: the cluster's id was %016x and is %016x", errOtherHistory, c.id, header.ClusterId)
	case header.Revision < known:
		err = fmt.Errorf("%w: the revision has gone back from %d to %d, so clients that continue miss events: restart them, or restore etcd with "+
			"`etcdutl snapshot restore --bump-revision N --mark-compacted`", errOtherHistory, known, header.Revision)
	default:
		return nil
	}
	c.reportLost(err, true)
	return err
}

// Close stops the goroutines of Start and closes the connections.
func (c *Cluster) Close() error {
	if c == nil {
		return nil
	}
	c.stop()
	c.running.Wait()
	return c.client.Close()
}

// sleep sleeps for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
