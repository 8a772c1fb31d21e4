package main

// This file opens the storage of the objects: the data file, or a replica of an etcd cluster. It
// also reads the keys in the data file, and elects the leader among servers that share a cluster.
// Package internal/datafile maintains the file of a running server, and internal/datafile/datacmd
// implements the commands for a stopped one. Package internal/store defines the format of the file
// and does not depend on HTTP. The file has three buckets:
//
//	BUCKET  KEY                        VALUE                                   RULE
//	rev     revision (8 bytes)         one record: header, key, JSON           records are never overwritten (MVCC)
//	keys    resource, namespace, name  the newest revision of the key          LIST iterates over it and reads rev
//	meta    name                       newest and compacted revision, secrets, format
//
// Each write adds a record with the next revision. For example, two writes of ConfigMap a and one
// of b leave three records, and keys refers to the second and the third:
//
//	rev:  41 a {"v":1}   42 a {"v":2}   43 b {"v":1}        keys:  a → 42   b → 43
//
// A LIST at revision 41 reads record 41 for a, and omits b. Compaction at 43 deletes record 41,
// because no readable revision needs it. A deletion also adds a record (a tombstone).

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/rs/zerolog"

	"apilet/internal/auth/certs"
	"apilet/internal/clock"
	"apilet/internal/continuetoken"
	"apilet/internal/datafile"
	"apilet/internal/encryption"
	"apilet/internal/etcd"
	"apilet/internal/gc"
	"apilet/internal/health"
	"apilet/internal/logonce"
	"apilet/internal/options"
	"apilet/internal/registry"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// A storage contains the store and the services that maintain it.
type storage struct {
	options  *options.Options
	types    *scheme.Registry
	clock    *clock.Clock
	log      zerolog.Logger
	troubles *logonce.Log

	keys     *encryption.Providers // for encryption at rest
	stopKeys context.CancelFunc    // stops the work for the keys; nil until readKeys
	cluster  *etcd.Cluster         // nil without --etcd-servers
	st       *store.Store          // nil until open
	upkeep   *store.Maintenance    // maintenance of st
	scrub    *datafile.Scrub       // scrub of st
	leads    atomic.Bool           // whether this server is the leader of the cluster

	// shortened is true if history was deleted for lack of space since the last regular compaction.
	// Only the goroutine of the compaction uses it.
	shortened bool

	// sealed points to a function that reports objects that cannot be decrypted. It is nil until
	// assemble sets it.
	sealed atomic.Pointer[func(key string, err error)]
}

// readKeys loads --encryption-provider-config. The caller must call close.
func (h *storage) readKeys() (err error) {
	var ctx context.Context
	ctx, h.stopKeys = context.WithCancel(context.Background())
	h.keys, err = encryption.Open(ctx, encryption.Config{Path: h.options.EncryptionConfig,
		Reload: h.options.EncryptionReload, Log: h.log,
		OnReload: func() { h.cluster.KeysChanged() }})
	return err
}

// sealing returns the encryption of documents on disk.
func (h *storage) sealing() *store.Sealing {
	s := h.keys.Sealing()
	if h.cluster != nil {
		s = h.keys.ReplicaSealing()
	}
	s.OnOpenError = func(key string, err error) {
		if tell := h.sealed.Load(); tell != nil {
			(*tell)(key, err)
		}
	}
	return s
}

// reachEtcd connects to the etcd cluster if --etcd-servers is set. close disconnects.
func (h *storage) reachEtcd(ctx context.Context) (err error) {
	o := &h.options.Etcd
	if len(o.Servers) == 0 {
		return nil
	}
	h.cluster, err = etcd.Open(ctx, etcd.Config{
		Servers: o.Servers, CAFile: o.CAFile, CertFile: o.CertFile, KeyFile: o.KeyFile,
		Layout: etcd.NewLayout(o.Prefix, h.types), Encryption: h.keys, Log: h.log,
		CompactionInterval: h.options.CompactionInterval,
	})
	return err
}

// authorityShared returns the function by which servers share a CA through etcd. It returns nil
// without a cluster.
func (h *storage) authorityShared(ctx context.Context) certs.Share {
	if h.cluster == nil {
		return nil
	}
	return func(decide func(value []byte) (next []byte, err error)) error {
		return h.cluster.UpdateValue(ctx, "authority", decide)
	}
}

// open opens the data file, or the replica of the cluster. close closes it.
func (h *storage) open(ctx context.Context) (err error) {
	options := store.Options{Ephemeral: h.options.Ephemeral, Base: h.options.Base, Quota: h.options.Quota,
		Clock:   h.clock.Now,
		Author:  registry.Author,
		OnBatch: h.troubles.ReportWrite,
		Fatal:   h.diskLost,
		Warn:    func(text string) { h.log.Warn().Msg(text) },
		Replica: h.cluster.Replica(),
		Sealing: h.sealing(),
		Damaged: func(place string) {
			h.log.Error().Str("place", place).Msg("the data file is damaged")
			h.cluster.Damaged(place)
		},
	}
	if h.st, err = store.Open(h.options.Data, options); err != nil {
		return err
	}
	if err := h.cluster.Start(ctx, h.st); err != nil {
		return err
	}
	h.clock.Observe(h.st.TimeOf(h.st.Revision()))
	datafile.RemoveLeftovers(h.st.File.Path)
	return nil
}

// preflight reads the maintenance records that a start requires. The encryption keys were already
// read when the file was opened. A start does not require any object.
func (h *storage) preflight() (err error) {
	if h.upkeep, err = store.NewMaintenance(h.st); err != nil {
		return err
	}
	h.upkeep.CompactWhenFull = h.options.History == nil // an explicit --history is kept even if space runs out
	h.scrub = &datafile.Scrub{Store: h.st, Maintenance: h.upkeep, Log: h.log}
	return nil
}

// A backing contains the health checks of the storage, which is the data file or the etcd cluster.
type backing struct {
	// seen is check without waiting. It returns the result of the last check of /readyz.
	check, seen func() error
	quota       func() error // returns an error if no space is left for writes
	logged      []string     // the checks of /readyz that no other part of the server logs
}

func (h *storage) backing() backing {
	if h.cluster == nil {
		return backing{check: h.st.File.Writable, seen: h.st.File.Writable, quota: h.st.WithinQuota}
	}
	return backing{check: h.cluster.Check, seen: h.clusterSeen, quota: h.cluster.WithinQuota,
		logged: []string{"quota", "etcd"}}
}

func (h *storage) clusterSeen() error {
	if !h.cluster.State().Reachable {
		return errors.New("etcd did not respond to the last request: see /readyz/etcd")
	}
	return nil
}

// keyChecks returns the check of the KMS plugins, if any are configured. /livez does not include
// it, because a restart does not bring a plugin back.
func (h *storage) keyChecks() []health.Check {
	if !h.keys.HasHealth() {
		return nil
	}
	return []health.Check{{Name: "kms-providers", Err: h.keys.Health}}
}

// diskLost ends the process after a disk error. After a failed sync the contents of the file are
// unknown, so the process has to read them again.
func (h *storage) diskLost(err error) {
	h.log.Error().Err(err).Msg("disk error: exiting, because the content of the disk is uncertain. Restart " +
		"apilet; if the error occurs again, replace the disk and restore a backup")
	os.Exit(1)
}

// abort cleans up after a failed start. It marks a damaged replica so that the next start does not
// use it. No data is lost, because etcd has all of it.
func (h *storage) abort(err error) error {
	if h.st != nil && errors.Is(err, store.ErrDamaged) {
		h.st.Invalidate()
	}
	return errors.Join(err, h.close())
}

// replicaFailed reports whether a start has failed because of its replica. The next start then
// creates a new replica.
func replicaFailed(o *options.Options, err error) bool {
	return len(o.Etcd.Servers) > 0 && (errors.Is(err, etcd.ErrLost) || errors.Is(err, store.ErrDamaged))
}

func (h *storage) close() (err error) {
	if h.stopKeys != nil {
		defer h.stopKeys()
	}
	err = h.cluster.Close()
	if h.st != nil {
		err = errors.Join(err, h.st.Close())
	}
	return err
}

// lead runs work while this server is the leader. Without a cluster this is always the case.
func (h *storage) lead(ctx context.Context, work func(context.Context)) {
	h.cluster.Lead(ctx, func(ctx context.Context) {
		h.leads.Store(true)
		defer h.leads.Store(false)
		work(ctx)
	})
}

// afterCompaction logs the result of a compaction and deletes expired Events.
func (h *storage) afterCompaction(ctx context.Context, gc *gc.Collector, done store.Compaction, err error) {
	h.logShortened(done)
	if err == nil && h.leads.Load() && (done.Deleted > 0 || !done.ForSpace) {
		err = gc.ExpireEvents(ctx)
	}
	if ctx.Err() == nil {
		h.troubles.Report("compaction", err)
	}
}

// logShortened logs that history was deleted early, at most once between two regular compactions.
func (h *storage) logShortened(done store.Compaction) {
	early := done.ForSpace && done.Deleted > 0 && h.upkeep.CompactWhenFull
	if early && !h.shortened {
		h.log.Warn().Int64("compact-revision", done.Rev).Int("versions", done.Deleted).
			Msg("deleted all history early, because a write was refused for lack of space: earlier versions can " +
				"no longer be read")
	}
	h.shortened = done.ForSpace && (h.shortened || early)
}

// continueKeys returns the keys in --continue-key-file, or the key that is stored in the data file.
func (h *storage) continueKeys() ([][]byte, error) {
	if h.options.ContinueKeyFile == "" {
		key, err := h.st.Secret("continue-key", continuetoken.NewKey)
		return [][]byte{key}, err
	}
	keys, err := continuetoken.ReadKeys(h.options.ContinueKeyFile)
	if err != nil {
		return nil, fmt.Errorf("--continue-key-file: %w", err)
	}
	return keys, nil
}

// countStored returns the number of stored objects and their bytes for flow control.
func (h *storage) countStored(group, resource, namespace string) (objects, bytes int64) {
	for _, res := range h.types.All() {
		if res.Group == group && res.Plural == resource {
			objects, bytes, _ = h.st.Count(res.KeyPrefix(namespace))
			return objects, bytes
		}
	}
	return -1, 0
}
