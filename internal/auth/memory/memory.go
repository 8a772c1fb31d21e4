// Package memory remembers for some time what was found out about credentials: whose a certificate or token is that was good a moment ago, and what a
// program beside the server has said of it. A signature costs more than a small request, and a webhook more than both.
//
//	checked := memory.Of[request.User]{Most: 4096}
//	user, ok := checked.Get(hash, now)
//	checked.Put(hash, user, now, now.Add(10*time.Second))
//
// What is remembered stands under a hash, so that no credential lies in memory for long.
//
// Invariants: nothing is remembered beyond its time, nor more than Most. A full memory forgets what is over, then any half of the rest: whoever sends many
// credentials costs the others a question more.
package memory

import (
	"crypto/sha256"
	"maps"
	"sync"
	"time"
)

// A Key is the hash of a credential, or of a question.
type Key = [sha256.Size]byte

// Of remembers values. Safe for concurrent use; Most is set before, and does not change.
type Of[V any] struct {
	Most int

	mu   sync.Mutex // guards kept
	kept map[Key]entry[V]
}

type entry[V any] struct {
	value V
	until time.Time
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
	if !now.Before(until) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kept == nil {
		m.kept = map[Key]entry[V]{}
	}
	if len(m.kept) >= m.Most {
		maps.DeleteFunc(m.kept, func(_ Key, e entry[V]) bool { return !now.Before(e.until) })
		maps.DeleteFunc(m.kept, func(Key, entry[V]) bool { return len(m.kept) > m.Most/2 })
	}
	m.kept[key] = entry[V]{value, until}
}
