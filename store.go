package main

// This file opens what holds the objects: the data file, or one that follows an etcd cluster; and does what goes with it, such as the work
// that one of several servers on a cluster does, and the keys that are kept in the file. What a running server does for its file (scrub,
// backups, figures) is package internal/datafile, and the commands for a file at rest are package internal/datafile/datacmd. How objects
// lie in it is package internal/store, which knows nothing of HTTP:
//
//	rev   revision (8 bytes)            one record each change: header, key, JSON      MVCC: nothing is written over
//	keys  resource, namespace, name     the newest revision of each key                LIST walks it, and looks into rev
//	meta  name                          newest and compacted revision, secrets, format
//
// A LIST at an older revision reads rev for keys that have changed since; compaction drops from rev what no revision that may still be
// asked for needs.

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
	"apilet/internal/options"
	"apilet/internal/registry"
	"apilet/internal/scheme"
	"apilet/internal/store"
	"apilet/internal/troubles"
)

// A storage is what holds the objects, and what goes with it.
type storage struct {
	options  *options.Options
	types    *scheme.Registry
	clock    *clock.Clock
	log      zerolog.Logger
	troubles *troubles.Log

	keys    *encryption.Providers // what is encrypted at rest
	forget  context.CancelFunc    // ends the work for keys; nil until they are there
	cluster *etcd.Cluster         // nil without --etcd-servers
	st      *store.Store          // nil until it is open
	upkeep  *store.Maintenance    // of st
	scrub   *datafile.Scrub       // of st
	leads   atomic.Bool           // this server is the leader of those on the cluster

	shortened bool // since the last regular compaction, history was deleted for lack of space; the compacting goroutine's

	sealed atomic.Pointer[func(key string, err error)] // is told of what cannot be decrypted; nil while nobody is there to be told
}

// readKeys puts --encryption-provider-config into force. close ends it.
func (h *storage) readKeys() (err error) {
	var ctx context.Context
	ctx, h.forget = context.WithCancel(context.Background())
	h.keys, err = encryption.Open(ctx, encryption.Config{Path: h.options.EncryptionConfig, Reload: h.options.EncryptionReload, Log: h.log,
		Changed: func() { h.cluster.KeysChanged() }})
	return err
}

// sealing is what is done to documents on their way to the disk and back.
func (h *storage) sealing() *store.Sealing {
	s := h.keys.Sealing()
	if h.cluster != nil {
		s = h.keys.ReplicaSealing()
	}
	s.Unopened = func(key string, err error) {
		if tell := h.sealed.Load(); tell != nil {
			(*tell)(key, err)
		}
	}
	return s
}

// reachEtcd reaches the cluster that holds the objects, if one does. close leaves it.
func (h *storage) reachEtcd(ctx context.Context) (err error) {
	o := &h.options.Etcd
	if len(o.Servers) == 0 {
		return nil
	}
	h.cluster, err = etcd.Open(ctx, etcd.Config{Servers: o.Servers, CAFile: o.CAFile, CertFile: o.CertFile, KeyFile: o.KeyFile,
		Layout: etcd.NewLayout(o.Prefix, h.types), Encryption: h.keys, CompactionInterval: h.options.CompactionInterval, Log: h.log})
	return err
}

// authorityShared is where the servers on a cluster keep the authority of their certificates; nil without a cluster.
func (h *storage) authorityShared(ctx context.Context) certs.Share {
	if h.cluster == nil {
		return nil
	}
	return func(decide func(value []byte) (next []byte, err error)) error {
		return h.cluster.Agree(ctx, "authority", decide)
	}
}

// open opens the data file, or the replica of what the cluster holds. close closes it.
func (h *storage) open(ctx context.Context) (err error) {
	options := store.Options{Ephemeral: h.options.Ephemeral, Base: h.options.Base, Quota: h.options.Quota, Clock: h.clock.Now,
		Author:  registry.Author,
		Outcome: h.troubles.TellWriting,
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
	h.clock.Passed(h.st.TimeOf(h.st.Revision()))
	datafile.RemoveLeftovers(h.st.File.Path)
	return nil
}

// preflight reads what a start cannot do without of the file, beside the keys, which opening has read: what maintenance keeps there. Objects it can do
// without, whichever they are.
func (h *storage) preflight() (err error) {
	if h.upkeep, err = store.NewMaintenance(h.st); err != nil {
		return err
	}
	h.upkeep.Yields = h.options.History == nil // what was asked for is kept
	h.scrub = &datafile.Scrub{Store: h.st, Maintenance: h.upkeep, Log: h.log}
	return nil
}

// warnOfCommittable warns once about files with secrets that the server writes, and that git would commit.
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
	datafile.WarnOfCommittable(h.log, files...)
}

// A backing is what holds the objects, as health checks ask for it: the file, or the cluster that a replica follows.
type backing struct {
	check, seen func() error // seen is check for those who may not wait: how it was when /readyz last looked at it
	quota       func() error // whether there is room for what is written
	told        []string     // checks of /readyz that nobody else tells the log of
}

func (h *storage) backing() backing {
	if h.cluster == nil {
		return backing{check: h.st.File.Writable, seen: h.st.File.Writable, quota: h.st.WithinQuota}
	}
	return backing{check: h.cluster.Check, seen: h.clusterSeen, quota: h.cluster.WithinQuota, told: []string{"quota", "etcd"}}
}

func (h *storage) clusterSeen() error {
	if !h.cluster.State().Reachable {
		return errors.New("etcd did not answer when it was last asked: /readyz/etcd says why")
	}
	return nil
}

// diskLost ends the process after an error of the disk: after a failed sync nobody knows what is there, and the next start reads it.
func (h *storage) diskLost(err error) {
	h.log.Error().Err(err).Msg("disk error: exiting, since what is on the disk is uncertain. Restart apilet; if it happens again, replace the disk and restore a backup")
	os.Exit(1)
}

// giveUp closes what a start that has failed had opened. A replica that is damaged is not used again: etcd has everything that was in it.
func (h *storage) giveUp(err error) error {
	if h.st != nil && errors.Is(err, store.ErrDamaged) {
		h.st.Distrust()
	}
	return errors.Join(err, h.close())
}

// replicaFailed says that a start has failed by its replica alone: the next one has another.
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

// lead runs work while this server is the one to do it: always, unless there are others on the same cluster.
func (h *storage) lead(ctx context.Context, work func(context.Context)) {
	h.cluster.Lead(ctx, func(ctx context.Context) {
		h.leads.Store(true)
		defer h.leads.Store(false)
		work(ctx)
	})
}

// afterCompaction reports a round of compaction, and deletes expired Events in the same rhythm.
func (h *storage) afterCompaction(ctx context.Context, gc *gc.Collector, done store.Compaction, err error) {
	h.noteShortened(done)
	if err == nil && h.leads.Load() && (done.Deleted > 0 || !done.ForSpace) {
		err = gc.ExpireEvents(ctx)
	}
	if ctx.Err() == nil {
		h.troubles.Tell("compaction", err)
	}
}

// noteShortened logs that history was deleted early, once between two regular compactions.
func (h *storage) noteShortened(done store.Compaction) {
	early := done.ForSpace && done.Deleted > 0 && h.upkeep.Yields
	if early && !h.shortened {
		h.log.Warn().Int64("compact-revision", done.Rev).Int("versions", done.Deleted).
			Msg("deleted all history early, because a write was refused for lack of space: earlier versions can no longer be read")
	}
	h.shortened = done.ForSpace && (h.shortened || early)
}

// continueKeys reads the keys of --continue-key-file, or the one that the data file keeps.
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
			return nil, fmt.Errorf("--continue-key-file: line %d is not the base64 of at least 32 bytes", n)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, errors.New("--continue-key-file: no key in it")
	}
	return keys, nil
}

// stored tells flow control how much a resource holds.
func (h *storage) stored(group, resource, namespace string) (objects, bytes int64) {
	for _, res := range h.types.All() {
		if res.Group == group && res.Plural == resource {
			objects, bytes, _ = h.st.Count(res.KeyPrefix(namespace))
			return objects, bytes
		}
	}
	return -1, 0
}
