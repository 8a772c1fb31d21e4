package main

// This file opens the storage of the objects. The storage is the data file, or a replica of an etcd
// cluster. This file also reads the keys that the data file contains, and elects the leader among
// servers that share a cluster. Package internal/datafile maintains the file of a running server
// (scrub, backups, metrics). Package internal/datafile/datacmd implements the commands for the file
// of a stopped server. Package internal/store defines the format of the file and does not depend on
// HTTP:
//
//	rev   revision (8 bytes)            one record per change: header, key, JSON       MVCC: records are never overwritten
//	keys  resource, namespace, name     the newest revision of each key                LIST iterates over it and reads rev
//	meta  name                          newest and compacted revision, secrets, format
//
// A LIST at an older revision reads the older records in rev for keys that have changed since.
// Compaction deletes the records that no readable revision needs.

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/rs/zerolog"

	"apilet/internal/auth/certs"
	"apilet/internal/clock"
	"apilet/internal/datafile"
	"apilet/internal/encryption"
	"apilet/internal/etcd"
	"apilet/internal/gc"
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

	keys    *encryption.Providers // for encryption at rest
	forget  context.CancelFunc    // stops the work for the keys; nil until readKeys
	cluster *etcd.Cluster         // nil without --etcd-servers
	st      *store.Store          // nil until open
	upkeep  *store.Maintenance    // maintenance of st
	scrub   *datafile.Scrub       // scrub of st
	leads   atomic.Bool           // whether this server is the leader of the cluster

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
	ctx, h.forget = context.WithCancel(context.Background())
	h.keys, err = encryption.Open(ctx, encryption.Config{Path: h.options.EncryptionConfig, Reload: h.options.EncryptionReload, Log: h.log,
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
	h.cluster, err = etcd.Open(ctx, etcd.Config{Servers: o.Servers, CAFile: o.CAFile, CertFile: o.CertFile, KeyFile: o.KeyFile,
		Layout: etcd.NewLayout(o.Prefix, h.types), Encryption: h.keys, CompactionInterval: h.options.CompactionInterval, Log: h.log})
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
	options := store.Options{Ephemeral: h.options.Ephemeral, Base: h.options.Base, Quota: h.options.Quota, Clock: h.clock.Now,
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

// warnOfCommittable logs a warning if git would commit files with secrets that the server writes.
func (h *storage) warnOfCommittable() {
	files := []string{h.options.Kubeconfig, h.options.Audit.Path}
	if h.options.OwnCerts && h.options.CertDir != "" {
		for _, name := range []string{"ca.key", "apiserver.key", "front-proxy-ca.key", "front-proxy-client.key"} {
			files = append(files, filepath.Join(h.options.CertDir, name))
		}
	}
	if !h.options.Ephemeral {
		files = append(files, h.st.File.Path, h.st.File.Path+store.LogSuffix)
	}
	datafile.WarnCommittable(h.log, files...)
}

// A backing contains the health checks of the storage, which is the data file or the etcd cluster.
type backing struct {
	// seen is check without waiting. It returns the result of the last check of /readyz.
	check, seen func() error
	quota       func() error // returns an error if no space is left for writes
	told        []string     // the checks of /readyz that no other part of the server logs
}

func (h *storage) backing() backing {
	if h.cluster == nil {
		return backing{check: h.st.File.Writable, seen: h.st.File.Writable, quota: h.st.WithinQuota}
	}
	return backing{check: h.cluster.Check, seen: h.clusterSeen, quota: h.cluster.WithinQuota, told: []string{"quota", "etcd"}}
}

func (h *storage) clusterSeen() error {
	if !h.cluster.State().Reachable {
		return errors.New("etcd did not respond to the last request: see /readyz/etcd")
	}
	return nil
}

// diskLost ends the process after a disk error. After a failed sync the contents of the file are
// unknown, so the process has to read them again.
func (h *storage) diskLost(err error) {
	h.log.Error().Err(err).Msg("disk error: exiting, because the content of the disk is uncertain. Restart apilet; if the error occurs again, replace the disk and restore a backup")
	os.Exit(1)
}

// giveUp cleans up after a failed start. It marks a damaged replica so that the next start does not
// use it. No data is lost, because etcd has all of it.
func (h *storage) giveUp(err error) error {
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
	if h.forget != nil {
		defer h.forget()
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
	h.noteShortened(done)
	if err == nil && h.leads.Load() && (done.Deleted > 0 || !done.ForSpace) {
		err = gc.ExpireEvents(ctx)
	}
	if ctx.Err() == nil {
		h.troubles.Report("compaction", err)
	}
}

// noteShortened logs that history was deleted early, at most once between two regular compactions.
func (h *storage) noteShortened(done store.Compaction) {
	early := done.ForSpace && done.Deleted > 0 && h.upkeep.CompactWhenFull
	if early && !h.shortened {
		h.log.Warn().Int64("compact-revision", done.Rev).Int("versions", done.Deleted).
			Msg("deleted all history early, because a write was refused for lack of space: earlier versions can no longer be read")
	}
	h.shortened = done.ForSpace && (h.shortened || early)
}

// continueKeys returns the keys in --continue-key-file, or the key that is stored in the data file.
func (h *storage) continueKeys() ([][]byte, error) {
	if h.options.ContinueKeyFile == "" {
		key, err := h.st.Secret("continue-key", func() []byte {
			key := make([]byte, 32)
			_, _ = rand.Read(key) // never fails
			return key
		})
		return [][]byte{key}, err
	}
	file, err := os.Open(h.options.ContinueKeyFile)
	if err != nil {
		return nil, fmt.Errorf("--continue-key-file: %w", err)
	}
	defer file.Close()
	var keys [][]byte
	for lines, n := bufio.NewScanner(file), 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(key) < 32 {
			return nil, fmt.Errorf("--continue-key-file: line %d does not contain at least 32 bytes in base64", n)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, errors.New("--continue-key-file: the file contains no key")
	}
	return keys, nil
}

// stored returns the number of stored objects and their bytes for flow control.
func (h *storage) stored(group, resource, namespace string) (objects, bytes int64) {
	for _, res := range h.types.All() {
		if res.Group == group && res.Plural == resource {
			objects, bytes, _ = h.st.Count(res.KeyPrefix(namespace))
			return objects, bytes
		}
	}
	return -1, 0
}
