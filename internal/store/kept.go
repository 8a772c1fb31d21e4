package store

// This file contains the functions for other data in the store, such as the secrets of other
// packages, the lineage and the metrics.

import (
	"bytes"
	"context"
	"strings"

	"apilet/internal/store/boltfile"
)

// Value returns the value stored under name in meta, or nil if none exists.
func (st *Store) Value(name string) (value []byte, err error) {
	err = st.readSnapshot(func(s *snapshot) error {
		value = bytes.Clone(s.meta().Get([]byte("secret/" + name)))
		return nil
	})
	return value, err
}

// Values returns all stored values by name.
func (st *Store) Values() (values map[string][]byte, err error) {
	values = map[string][]byte{}
	err = st.readSnapshot(func(s *snapshot) error {
		c := s.meta().Cursor()
		for key, value := c.First(); key != nil; key, value = c.Next() {
			if name, ok := strings.CutPrefix(string(key), "secret/"); ok {
				values[name] = bytes.Clone(value)
			}
		}
		return nil
	})
	return values, err
}

// Secret is like Value, but calls fresh to create the value at the first call. The value is written
// to disk before Secret returns.
func (st *Store) Secret(name string, fresh func() []byte) (value []byte, err error) {
	if value, err = st.Value(name); err != nil || value != nil {
		return value, err
	}
	key := []byte("secret/" + name)
	if value, err = st.mode.share(context.Background(), name, fresh()); err != nil {
		return nil, err
	}
	err = st.maintain(context.Background(), func(l *boltfile.WriteTx) error {
		if v := l.Tx.Bucket(boltfile.Buckets[boltfile.InMeta]).Get(key); v != nil { // another call stored it first
			value = bytes.Clone(v)
			return nil
		}
		return l.Put(boltfile.InMeta, key, value)
	})
	return value, err
}

// Lineage identifies the history of the file. A restored backup gets a new lineage.
func (st *Store) Lineage() [16]byte { return st.id }

// Stats returns the store's counters. It uses a few locks and a single read transaction to get the
// size of the file.
func (st *Store) Stats() Stats {
	var size int64
	st.readSnapshot(func(s *snapshot) error {
		size = s.Size()
		return nil
	})
	st.mu.RLock()
	defer st.mu.RUnlock()
	s := st.stat
	s.Revision, s.CompactRev = st.Revision(), st.Compacted()
	used := size - st.File.FreeBytes()
	s.FileBytes, s.LogBytes = st.File.Sizes()
	s.FreeBytes = max(0, s.FileBytes-used)
	s.objects, s.objectBytes = st.total.objects, st.total.bytes
	s.ringEvents, s.ringSize, s.ringOldest = st.log.next-st.log.oldest, int64(st.log.bytes), st.log.evicted+1
	return s
}

// NewestEvent returns the revision of the resource's newest event in the log. If a watcher is at or
// above this revision, it has received all events.
func (st *Store) NewestEvent(resource string) int64 {
	st.mu.RLock()
	defer st.mu.RUnlock()
	if t := st.log.topics[resource]; t != nil {
		return t.last.rev
	}
	return st.log.floor
}

// countKeys computes the tallies. Since the keys are sorted by namespace, it only has to look up
// the tallies once for each namespace. If an entry is damaged, it is counted as an object with a
// size of 0. The scrub reports the damage. A damaged page is an error, because the number of
// missing keys is unknown.
func (st *Store) countKeys(s *snapshot) error {
	var resource, namespace *tally
	c := s.keys.Cursor()
	prefix := "/" // set when the first key is read
	for k, v := c.First(); k != nil; k, v = c.Next() {
		state, err := decodeKeyState(k, v)
		if err == nil && !state.live() {
			continue
		}
		if namespace == nil || len(k) < len(prefix) || string(k[:len(prefix)]) != prefix {
			var resourcePrefix string
			var ok bool
			if resourcePrefix, prefix, ok = keyPrefixes(string(k)); !ok {
				continue
			}
			resource, namespace = st.tally(resourcePrefix), st.tally(prefix)
		}
		for _, t := range [...]*tally{resource, namespace, &st.total} {
			t.objects++
			t.bytes += int64(state.size)
		}
	}
	return nil
}
