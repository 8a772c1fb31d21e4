package findings

// This file implements the tables for everything that is not a finding yet. There are two tables of
// fixed size, one for loops and one for objects. A hash selects a set of four entries. A fifth
// entry replaces the least important one, which has been idle for the longest time. Each earlier
// observation counts as half a minute less of idle time.

import (
	"time"
)

const (
	loopSets   = 256
	objectSets = 1024
	ways       = 4
	credit     = 30 // seconds per observation
)

// A table is a set-associative table that is indexed by hash.
type table[T any] [][ways]entry[T]

type entry[T any] struct {
	hash   uint64
	last   second // time of the last event
	credit second // added to last when the entries of a set are compared
	value  T
}

// A second is a Unix time in seconds. It uses 32 bits to reduce the size of the tables.
type second uint32

func secondOf(t time.Time) second { return second(t.Unix()) }

func newTable[T any](sets int) table[T] { return make(table[T], sets) }

// at returns the entry of a hash. If there is none, it replaces the least important entry of the
// set.
func (t table[T]) at(hash uint64, now second) *entry[T] {
	set := &t[hash%uint64(len(t))]
	least := &set[0]
	for i := range set {
		if set[i].hash == hash {
			set[i].last = now
			return &set[i]
		}
		if set[i].last+set[i].credit < least.last+least.credit {
			least = &set[i]
		}
	}
	*least = entry[T]{hash: hash, last: now}
	return least
}
