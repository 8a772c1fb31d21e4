package store

// This file remembers places on long chains. What an object was at a revision is found by following the versions back from the newest one
// (read.go), a look-up each: of an object that has changed a hundred thousand times since, a tenth of a second. Whoever reads the past reads
// it again, so that each such walk leaves behind where it came by: the next one begins at the nearest of these places.
//
// A place is a revision of the key above the one that is asked for. What is above a revision that can be read is never compacted away, and
// versions never change, so that a place stays right for as long as anybody may come by it; of those that compaction has passed nobody asks.
// A replica that is filled anew may lack one: then it is forgotten. Nothing is remembered of short chains, and nothing while nobody reads
// what was long ago.

import (
	"slices"
	"sync"
)

const (
	waypointEvery = 64      // versions
	waypointsMax  = 1 << 16 // in all: half a megabyte,
	wayKeysMax    = 4096    // of so many keys
	chainStepsMax = 8000    // versions that one read transaction passes, but for its first key
)

// waypoints are the places, by key.
type waypoints struct {
	mu sync.Mutex         // guards what follows
	of map[string][]int64 // rising
	n  int
}

// above is the lowest place of a key above a revision; 0 where there is none.
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

// add remembers places that a walk came by, from the newest to the oldest. Others give way.
func (w *waypoints) add(key []byte, passed []int64) {
	if w == nil || len(passed) < 2 {
		return
	}
	for len(passed) > waypointsMax/4 { // of a very long one every second, or fourth
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
	for other := range w.of { // any
		if w.n+len(list) <= waypointsMax && len(w.of) < wayKeysMax {
			break
		}
		w.forgetLocked(other)
	}
	w.of[string(key)] = slices.Clip(list)
	w.n += len(list)
}

// everySecond is true for the first, third and so on that it is asked about.
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
