package findings

// This file is the memory for what is not a finding yet: two tables of a fixed size, one of loops (who does what) and one of objects, in which
// a hash leads to a set of four entries. A fifth takes the place of the one that matters least: the longest without anything new, where what
// was noticed before counts as half a minute.

import (
	"time"
)

const (
	loopSets   = 256
	objectSets = 1024
	ways       = 4
	credit     = 30 // seconds for each time
)

// A table has entries by hash.
type table[T any] [][ways]entry[T]

type entry[T any] struct {
	hash   uint64
	last   second // of the last event
	credit second // that it stays longer than others
	value  T
}

// A second is one since 1970: half the size of what it would be otherwise, in tables that are made of it.
type second uint32

func secondOf(t time.Time) second { return second(t.Unix()) }

func newTable[T any](sets int) table[T] { return make(table[T], sets) }

// at is the entry of a hash, new or not.
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
