package store

// This file defines the Stats type.

import (
	"slices"
	"time"
)

// Stats contains the metrics of a store.
type Stats struct {
	Revision, CompactRev int64                        // newest revision, and the compacted revision
	FileBytes, FreeBytes int64                        // size of the data file, and its unused part
	LogBytes             int64                        // size of the write-ahead log
	objects, objectBytes int64                        // number and size of the live objects
	Commits, Writes      int64                        // number of commits and changes
	CommitSeconds        float64                      // total duration of all commits
	CommitBuckets        [len(CommitBounds) + 1]int64 // not cumulative
	ringEvents, ringSize int64
	ringOldest           int64
}

func (s *Stats) observeCommit(took time.Duration) {
	s.Commits++
	s.CommitSeconds += took.Seconds()
	n, _ := slices.BinarySearch(CommitBounds[:], took.Seconds())
	s.CommitBuckets[n]++
}

// CommitBounds are the upper bounds of Stats.CommitBuckets in seconds. The last bucket has no upper
// bound.
var CommitBounds = [...]float64{.0005, .001, .002, .004, .008, .016, .032, .064, .128, .256, .512, 1.024, 4.096}
