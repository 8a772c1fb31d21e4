package store

// This file remembers positions on long version chains. To find an object at a revision, a reader
// follows its versions back from the newest one (read.go), with one lookup for each version. If the
// object has changed a hundred thousand times since, this takes a tenth of a second. Clients that
// read the past usually do so repeatedly. Therefore each such walk stores some of its positions,
// and the next walk starts at the nearest one.
//
// A position is a revision of the key above the requested one. Versions above a readable revision
// are never compacted, and versions never change. So a position stays valid as long as a read can
// reach it; positions below CompactRev are never used. A replica that was filled again may lack a
// position, which is then removed. Short chains have no positions, and there are none until old
// revisions are read.

import (
	"slices"
	"sync"
)

const (
	waypointEvery = 64      // in versions
	waypointsMax  = 1 << 16 // maximum number of positions: half a megabyte
	wayKeysMax    = 4096    // maximum number of keys with positions
	chainStepsMax = 8000    // versions that one read transaction skips; its first key may exceed this
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

// add stores the positions that a walk has passed, from the newest to the oldest. It may replace
// positions of other keys.
func (w *waypoints) add(key []byte, passed []int64) {
	if w == nil || len(passed) < 2 {
		return
	}
	for len(passed) > waypointsMax/4 { // keep every second position, or every fourth
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
