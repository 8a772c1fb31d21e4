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
	"strings"

	"apilet/internal/auth/certs"
	"apilet/internal/etcd"
	"apilet/internal/gc"
	"apilet/internal/registry"
	"apilet/internal/store"
)

// reachEtcd reaches the cluster that holds the objects, if one does. closeStore leaves it.
func (s *server) reachEtcd() (err error) {
	c := s.cfg
	if len(c.Etcd.Servers) == 0 {
		return nil
	}
	s.cluster, err = etcd.Open(c.starting, etcd.Config{Servers: c.Etcd.Servers, CAFile: c.Etcd.CAFile, CertFile: c.Etcd.CertFile, KeyFile: c.Etcd.KeyFile,
		Layout: etcd.NewLayout(c.Etcd.Prefix, s.reg), CompactionInterval: c.CompactionInterval, Log: s.log})
	return err
}

// authorityShared is where the servers on a cluster keep the authority of their certificates; nil without a cluster.
func (s *server) authorityShared() certs.Share {
	if s.cluster == nil {
		return nil
	}
	return func(decide func(value []byte) (next []byte, err error)) error {
		return s.cluster.Agree(s.cfg.starting, "authority", decide)
	}
}

// openStore opens the data file, or the replica of what the cluster holds. closeStore closes it.
func (s *server) openStore() (err error) {
	c := s.cfg
	options := store.Options{Ephemeral: c.Ephemeral, Base: c.Base, Quota: c.Quota, Clock: s.clock.Now,
		Author:  registry.Author,
		Outcome: s.troubles.TellWriting,
		Fatal:   s.diskLost,
		Warn:    func(text string) { s.log.Warn().Msg(text) },
		Replica: s.cluster.Replica(),
		Damaged: func(place string) {
			s.log.Error().Str("place", place).Msg("the data file is damaged")
			s.cluster.Damaged(place)
		},
	}
	if s.st, err = store.Open(c.Data, options); err != nil {
		return err
	}
	return s.cluster.Start(c.starting, s.st)
}

// A backing is what holds the objects, as health checks ask for it: the file, or the cluster that a replica follows.
type backing struct {
	check, seen func() error // seen is check for those who may not wait: how it was when /readyz last looked at it
	quota       func() error // whether there is room for what is written
	told        []string     // checks of /readyz that nobody else tells the log of
}

func (s *server) backing() backing {
	if s.cluster == nil {
		return backing{check: s.st.Writable, seen: s.st.Writable, quota: s.st.WithinQuota}
	}
	return backing{check: s.cluster.Check, seen: s.clusterSeen, quota: s.cluster.WithinQuota, told: []string{"quota", "etcd"}}
}

func (s *server) clusterSeen() error {
	if !s.cluster.State().Reachable {
		return errors.New("etcd did not answer when it was last asked: /readyz/etcd says why")
	}
	return nil
}

// diskLost ends the process after an error of the disk: after a failed sync nobody knows what is there, and the next start reads it.
func (s *server) diskLost(err error) {
	s.log.Error().Err(err).Msg("the server ends, since nobody knows what is on the disk after such an error; a start reads what there is. If it comes again, replace the disk and restore a backup")
	os.Exit(1)
}

// giveUp closes what a start that has failed had opened. A replica that is damaged is not used again: etcd has everything that was in it.
func (s *server) giveUp(err error) error {
	if s.st != nil && errors.Is(err, store.ErrDamaged) {
		s.st.Distrust()
	}
	return errors.Join(err, s.closeStore())
}

// replicaFailed says that a start has failed by its replica alone: the next one has another.
func (c *config) replicaFailed(err error) bool {
	return len(c.Etcd.Servers) > 0 && (errors.Is(err, etcd.ErrLost) || errors.Is(err, store.ErrDamaged))
}

func (s *server) closeStore() (err error) {
	err = s.cluster.Close()
	if s.st != nil {
		err = errors.Join(err, s.st.Close())
	}
	return err
}

// lead runs work while this server is the one to do it: always, unless there are others on the same cluster.
func (s *server) lead(ctx context.Context, work func(context.Context)) {
	s.cluster.Lead(ctx, func(ctx context.Context) {
		s.leads.Store(true)
		defer s.leads.Store(false)
		work(ctx)
	})
}

// afterCompaction reports a round of compaction and lets old Events go, in the same rhythm.
func (s *server) afterCompaction(ctx context.Context, gc *gc.Collector, err error) {
	if err == nil && s.leads.Load() {
		err = gc.ExpireEvents(ctx)
	}
	if ctx.Err() == nil {
		s.troubles.Tell("compaction", err)
	}
}

// continueKeys reads the keys of --continue-key-file, or the one that the data file keeps.
func (s *server) continueKeys() ([][]byte, error) {
	if s.cfg.ContinueKeyFile == "" {
		key, err := s.st.Secret("continue-key", func() []byte {
			key := make([]byte, 32)
			_, _ = rand.Read(key) // never fails
			return key
		})
		return [][]byte{key}, err
	}
	file, err := os.Open(s.cfg.ContinueKeyFile)
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
func (s *server) stored(group, resource, namespace string) (objects, bytes int64) {
	for _, res := range s.reg.All() {
		if res.Group == group && res.Plural == resource {
			objects, bytes, _ = s.st.Count(res.KeyPrefix(namespace))
			return objects, bytes
		}
	}
	return -1, 0
}
