package rbac

// This file is the table that indexes are made of: 256 maps. One that is changed shares with the one before all maps that stay, so that a change costs
// what it touches, and who reads the old one may go on.

import "hash/maphash"

const partCount = 256

// parts is a table. Who has a copy of it may read it for ever.
type parts[K comparable, V any] [partCount]map[K]V

func (t *parts[K, V]) get(seed maphash.Seed, key K) V {
	return t[maphash.Comparable(seed, key)%partCount][key]
}

// An editor changes a table that shares parts with others: it copies a part before it writes there.
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
