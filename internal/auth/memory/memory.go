// Package memory remembers for some time what was found out about credentials: whose a certificate or token is that was good a moment ago, and what a
// program beside the server has said of it. A signature costs more than a small request, and a webhook more than both.
//
//	checked := memory.Of[request.User]{Most: 4096}
//	user, ok := checked.Get(hash, now)
//	checked.Put(hash, user, now, now.Add(10*time.Second))
//
// What is remembered stands under a hash, so that no credential lies in memory for long.
//
// Invariants: nothing is remembered beyond its time, nor more than Most and MostBytes. A full memory forgets what is over, then any half of the rest: whoever sends many
// credentials costs the others a question more.
package memory

import (
	"crypto/sha256"
	"sync"
	"time"
)

// A Key is the hash of a credential, or of a question.
type Key = [sha256.Size]byte

// Of remembers values. It is safe for concurrent use; Most and MostBytes must not change.
type Of[V any] struct {
	Most      int
	MostBytes int // the sum of the sizes given to PutSized; 0 is no limit

	mu    sync.Mutex // guards what follows
	kept  map[Key]entry[V]
	bytes int
}

type entry[V any] struct {
	value V
	until time.Time
	size  int
}

// Get is what is remembered; false: nothing is any more.
func (m *Of[V]) Get(key Key, now time.Time) (value V, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	found, ok := m.kept[key]
	if !ok || !now.Before(found.until) {
		return value, false
	}
	return found.value, true
}

// Put remembers a value until some time; one whose time is over is not taken.
func (m *Of[V]) Put(key Key, value V, now, until time.Time) {
	m.PutSized(key, value, 0, now, until)
}

// PutSized is Put for a value of a size that somebody else has chosen. A value larger than a 64th of MostBytes is not kept.
func (m *Of[V]) PutSized(key Key, value V, size int, now, until time.Time) {
	if !now.Before(until) || m.MostBytes > 0 && size > m.MostBytes/64 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kept == nil {
		m.kept = map[Key]entry[V]{}
	}
	m.bytes -= m.kept[key].size
	delete(m.kept, key)
	full := func(part int) bool {
		return len(m.kept) > (m.Most-1)/part || m.MostBytes > 0 && m.bytes+size > m.MostBytes/part
	}
	if full(1) {
		m.forget(func(_ Key, e entry[V]) bool { return !now.Before(e.until) })
		if full(1) {
			m.forget(func(Key, entry[V]) bool { return full(2) })
		}
	}
	m.kept[key] = entry[V]{value, until, size}
	m.bytes += size
}

func (m *Of[V]) forget(unwanted func(Key, entry[V]) bool) {
	for key, e := range m.kept {
		if unwanted(key, e) {
			delete(m.kept, key)
			m.bytes -= e.size
		}
	}
}
