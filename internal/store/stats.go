package store

// This file has the figures that a store counts.

import (
	"slices"
	"time"
)

// Stats is what the store has to say to metrics.
type Stats struct {
	Revision, CompactRev int64                        // the newest, and the one up to which history is gone
	FileBytes, FreeBytes int64                        // size of the data file, and the part of it that is not in use
	LogBytes             int64                        // size of its log; 0: there is none
	objects, objectBytes int64                        // live
	Commits, Writes      int64                        // transactions, and the changes in them
	CommitSeconds        float64                      // of all commits together
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

// CommitBounds are the upper bounds in seconds of Stats.CommitBuckets, whose last bucket has none.
var CommitBounds = [...]float64{.0005, .001, .002, .004, .008, .016, .032, .064, .128, .256, .512, 1.024, 4.096}
