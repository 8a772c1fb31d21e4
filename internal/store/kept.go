package store

// This file has what a store keeps and tells besides objects: keys that other chapters made, its lineage, and what metrics read.

import (
	"bytes"
	"context"
	"strings"

	"apilet/internal/store/boltfile"
)

// Known returns the value kept under name in meta; nil when there is none.
func (st *Store) Known(name string) (value []byte, err error) {
	err = st.readSnapshot(func(s *snapshot) error {
		value = bytes.Clone(s.meta().Get([]byte("secret/" + name)))
		return nil
	})
	return value, err
}

// AllKnown returns what is kept, by name.
func (st *Store) AllKnown() (values map[string][]byte, err error) {
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

// Secret is Known with a value made by fresh at the first call, and durable before it is returned.
func (st *Store) Secret(name string, fresh func() []byte) (value []byte, err error) {
	if value, err = st.Known(name); err != nil || value != nil {
		return value, err
	}
	key := []byte("secret/" + name)
	if value, err = st.mode.share(context.Background(), name, fresh()); err != nil {
		return nil, err
	}
	err = st.maintain(context.Background(), func(l *boltfile.Ledger) error {
		if v := l.Tx.Bucket(boltfile.Buckets[boltfile.InMeta]).Get(key); v != nil { // somebody was faster
			value = bytes.Clone(v)
			return nil
		}
		return l.Put(boltfile.InMeta, key, value)
	})
	return value, err
}

// Lineage tells files of different history apart (a restored backup draws a new one).
func (st *Store) Lineage() [16]byte { return st.id }

// Stats reads the counters; it costs a few locks and no transaction.
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

// Newest is the revision of the resource's newest event that the log knows of: a watcher that stands there or above has seen all.
func (st *Store) Newest(resource string) int64 {
	st.mu.RLock()
	defer st.mu.RUnlock()
	if t := st.log.topics[resource]; t != nil {
		return t.last.rev
	}
	return st.log.floor
}

// countKeys fills the tallies. Keys come in order, so that those of a namespace follow each other and a look-up a namespace is
// enough. A damaged entry counts as an object of no bytes; the scrub names it. A damaged page is refused: nobody could say what is missing.
func (st *Store) countKeys(s *snapshot) error {
	var resource, namespace *tally
	c := s.keys.Cursor()
	prefix := "/" // no key has it: a namespace's prefix has four slashes
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
