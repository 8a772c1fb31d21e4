//go:build noetcd

package etcd

// This file is all that there is of the package in a program that is built with the tag noetcd.

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/rs/zerolog"

	"apilet/internal/encryption"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

var errLeftOut = errors.New("--etcd-servers: this program was built without etcd (-tags noetcd)")

// ErrLost is nobody's here.
var ErrLost = errors.New("the replica cannot go on")

// Config is what the flags say.
type Config struct {
	Servers                   []string              // URLs of the members
	CAFile, CertFile, KeyFile string                // as the flags --etcd-cafile, --etcd-certfile and --etcd-keyfile name them
	Layout                    *Layout               // none
	Encryption                *encryption.Providers // nobody's
	CompactionInterval        time.Duration         // as the flag has it
	RevisionsGoBack           bool                  // nobody looks
	Log                       zerolog.Logger        // is told nothing
}

// A Layout is none: half a megabyte of types that only etcd's values have would stay in the program for it.
type Layout struct{}

// NewLayout makes none.
func NewLayout(string, *scheme.Registry) *Layout { return nil }

// Prefix is below what nothing lies.
func (*Layout) Prefix() string { return "" }

// A Cluster is none.
type Cluster struct{}

// State is what is seen of a cluster.
type State struct {
	Reachable, NoSpace bool          // no
	LagRevisions       int64         // 0
	Lag                time.Duration // 0
}

// Open refuses.
func Open(context.Context, Config) (*Cluster, error) {
	return nil, errLeftOut
}

func (*Cluster) Replica() *store.Replica                              { return nil }
func (*Cluster) Start(context.Context, *store.Store) error            { return nil }
func (*Cluster) Check() error                                         { return nil }
func (*Cluster) WithinQuota() error                                   { return nil }
func (*Cluster) State() State                                         { return State{} }
func (*Cluster) Damaged(string)                                       {}
func (*Cluster) KeysChanged()                                         {}
func (*Cluster) Lost() <-chan error                                   { return nil }
func (*Cluster) Lead(ctx context.Context, work func(context.Context)) { work(ctx) }
func (*Cluster) Masters(context.Context) ([]netip.Addr, error)        { return nil, nil }
func (*Cluster) Announce(context.Context, netip.Addr, func(context.Context, []netip.Addr, bool) error) {
}
func (*Cluster) Agree(context.Context, string, func([]byte) ([]byte, error)) error { return errLeftOut }
func (*Cluster) Close() error                                                      { return nil }

// ToCluster refuses.
func ToCluster(context.Context, Config, *store.Store, *store.Progress) (int, error) {
	return 0, errLeftOut
}

// Filled is nothing.
type Filled struct {
	Objects, LeftOut int
	Revision         int64
	Running          bool
}

// ToFile refuses.
func ToFile(context.Context, Config, string, *store.Progress) (Filled, error) {
	return Filled{}, errLeftOut
}
