package store

// This file remembers positions on long version chains. To find an object at a given revision, a
// reader starts with the newest version and follows the chain to older versions (read.go). Each
// step requires a lookup. If the object has changed a hundred thousand times since, this takes a
// tenth of a second. Clients that read the past usually do so repeatedly. To make this faster, each
// walk stores some positions, and the next walk can start at the nearest position.
//
// A position is a revision of the key that is higher than the requested revision. Versions do not
// change, and they are not compacted if they are above a readable revision. This means that a
// position is valid for all reads that can use it. Positions below CompactRev are not used. If a
// replica has been filled again, a position may no longer exist. In this case, all positions of the
// key are removed. No positions are stored for short chains or if no client reads old revisions.

import (
	"slices"
	"sync"
)

const (
	waypointEvery = 64      // in versions
	waypointsMax  = 1 << 16 // maximum number of positions: half a megabyte
	wayKeysMax    = 4096    // maximum number of keys with positions
	// chainStepsMax is the maximum number of versions to skip in a read transaction. It may be
	// exceeded by a single key.
	chainStepsMax = 8000
)

// waypoints are the positions by key.
type waypoints struct {
	mu sync.Mutex         // guards the fields below
	of map[string][]int64 // in ascending order
	n  int
}

// above returns the lowest position of key above rev, or 0 if none exists.
func (w *waypoints) above(key []byte, rev int64) int64 {
	if w == nil {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.of[string(key)]
	i, found := slices.BinarySearch(list, rev)
	if found {
		i++
	}
	if i == len(list) {
		return 0
	}
	return list[i]
}

// add stores the positions that were collected by a walk, starting with the newest. It may replace
// positions of other keys.
func (w *waypoints) add(key []byte, passed []int64) {
	if w == nil || len(passed) < 2 {
		return
	}
	for len(passed) > waypointsMax/4 { // keep every second position, or even fewer
		passed = slices.DeleteFunc(slices.Clone(passed), everySecond())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of == nil {
		w.of = map[string][]int64{}
	}
	list := append(w.of[string(key)], passed...)
	slices.Sort(list)
	list = slices.Compact(list)
	w.forgetLocked(string(key))
	for other := range w.of { // in any order
		if w.n+len(list) <= waypointsMax && len(w.of) < wayKeysMax {
			break
		}
		w.forgetLocked(other)
	}
	w.of[string(key)] = slices.Clip(list)
	w.n += len(list)
}

// everySecond returns a function that returns true at its first, third, fifth call, and so on.
func everySecond() func(int64) bool {
	odd := false
	return func(int64) bool {
		odd = !odd
		return odd
	}
}

func (w *waypoints) forget(key []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forgetLocked(string(key))
}

func (w *waypoints) forgetLocked(key string) {
	w.n -= len(w.of[key])
	delete(w.of, key)
}
