//go:build noetcd

package etcd

// This file replaces the package in a program that is built with the tag noetcd.

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

// ErrLost is never returned in this build.
var ErrLost = errors.New("the replica cannot continue")

// Config holds the values of the flags.
type Config struct {
	Servers []string // URLs of the members
	// values of --etcd-cafile, --etcd-certfile and --etcd-keyfile
	CAFile, CertFile, KeyFile string
	Layout                    *Layout               // nil
	Encryption                *encryption.Providers // unused
	CompactionInterval        time.Duration         // unused
	RevisionsGoBack           bool                  // unused
	Log                       zerolog.Logger        // unused
}

// A Layout is empty. The real one would add half a megabyte of types that occur only in etcd's
// values.
type Layout struct{}

// NewLayout returns nil.
func NewLayout(string, *scheme.Registry) *Layout { return nil }

// Prefix returns "".
func (*Layout) Prefix() string { return "" }

// A Cluster is never created in this build.
type Cluster struct{}

// State is the zero value in this build.
type State struct {
	Reachable, NoSpace bool          // false
	LagRevisions       int64         // 0
	Lag                time.Duration // 0
}

// Open returns an error.
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
func (*Cluster) Servers(context.Context) ([]netip.Addr, error)        { return nil, nil }
func (*Cluster) Announce(context.Context, netip.Addr, func(context.Context, []netip.Addr, bool) error) {
}
func (*Cluster) UpdateValue(context.Context, string, func([]byte) ([]byte, error)) error {
	return errLeftOut
}
func (*Cluster) Close() error { return nil }

// MigrateToCluster returns an error.
func MigrateToCluster(context.Context, Config, *store.Store, *store.Progress) (int, error) {
	return 0, errLeftOut
}

// MigrationResult is the zero value in this build.
type MigrationResult struct {
	Objects, Skipped int
	Revision         int64
	Running          bool
}

// MigrateToFile returns an error.
func MigrateToFile(context.Context, Config, string, *store.Progress) (MigrationResult, error) {
	return MigrationResult{}, errLeftOut
}
