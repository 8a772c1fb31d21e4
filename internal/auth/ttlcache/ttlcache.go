// Package ttlcache caches the results of checking credentials, such as the user of a certificate or
// token, or the response of a webhook. Verifying a signature costs more than a small request, and
// calling a webhook costs even more.
//
//	checked := ttlcache.Cache[request.User]{MaxEntries: 4096}
//	user, ok := checked.Get(hash, now)
//	checked.Put(hash, user, now, now.Add(10*time.Second))
//
// The keys are hashes, because credentials should not be kept in memory.
//
// Invariants: Expired values are never returned. The size of a cache is limited by MaxEntries and
// MaxBytes. If the cache is full, expired values are removed first, and then any half of the
// others. If a client sends many credentials, results for other clients may have to be computed
// again.
package ttlcache

import (
	"crypto/sha256"
	"sync"
	"time"
)

// A Key is a hash, for example of a token.
type Key = [sha256.Size]byte

// Cache caches values. It is safe for concurrent use. MaxEntries and MaxBytes must not change.
type Cache[V any] struct {
	MaxEntries int
	MaxBytes   int // maximum sum of the sizes passed to PutSized; 0 means no limit

	mu      sync.Mutex // guards the fields below
	entries map[Key]entry[V]
	bytes   int
}

type entry[V any] struct {
	value V
	until time.Time
	size  int
}

// Get returns the cached value. ok is false if the value does not exist or has expired.
func (m *Cache[V]) Get(key Key, now time.Time) (value V, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	found, ok := m.entries[key]
	if !ok || !now.Before(found.until) {
		return value, false
	}
	return found.value, true
}

// Put caches a value until the given time. If that time has passed, it does nothing.
func (m *Cache[V]) Put(key Key, value V, now, until time.Time) {
	m.PutSized(key, value, 0, now, until)
}

// PutSized is like Put, but the size of the value is also limited. It should be used if the size is
// chosen by a client or another server. It does not cache a value that is larger than a 64th of
// MaxBytes.
func (m *Cache[V]) PutSized(key Key, value V, size int, now, until time.Time) {
	if !now.Before(until) || m.MaxBytes > 0 && size > m.MaxBytes/64 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.entries == nil {
		m.entries = map[Key]entry[V]{}
	}
	m.bytes -= m.entries[key].size
	delete(m.entries, key)
	full := func(part int) bool {
		return len(m.entries) > (m.MaxEntries-1)/part || m.MaxBytes > 0 && m.bytes+size > m.MaxBytes/part
	}
	if full(1) {
		m.evict(func(_ Key, e entry[V]) bool { return !now.Before(e.until) })
		if full(1) {
			m.evict(func(Key, entry[V]) bool { return full(2) })
		}
	}
	m.entries[key] = entry[V]{value, until, size}
	m.bytes += size
}

func (m *Cache[V]) evict(unwanted func(Key, entry[V]) bool) {
	for key, e := range m.entries {
		if unwanted(key, e) {
			delete(m.entries, key)
			m.bytes -= e.size
		}
	}
}
