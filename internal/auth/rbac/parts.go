package rbac

// This file implements the persistent table of an index, which consists of 256 maps. A changed
// table shares the unchanged maps with the previous one. The cost of a change depends on the maps
// that it touches, and readers can continue to use the previous table.

import "hash/maphash"

const partCount = 256

// parts is a table. A copy of it is immutable and safe for concurrent use.
type parts[K comparable, V any] [partCount]map[K]V

func (t *parts[K, V]) get(seed maphash.Seed, key K) V {
	return t[maphash.Comparable(seed, key)%partCount][key]
}

// An editor is used to change a table. A part is copied before it is changed for the first time.
type editor[K comparable, V any] struct {
	to    *parts[K, V]
	seed  maphash.Seed
	owned [partCount]bool
}

func (e *editor[K, V]) own(key K) map[K]V {
	at := maphash.Comparable(e.seed, key) % partCount
	if !e.owned[at] {
		own := make(map[K]V, len(e.to[at])+1)
		for k, v := range e.to[at] {
			own[k] = v
		}
		e.to[at], e.owned[at] = own, true
	}
	return e.to[at]
}

func (e *editor[K, V]) set(key K, value V) { e.own(key)[key] = value }

func (e *editor[K, V]) remove(key K) { delete(e.own(key), key) }
