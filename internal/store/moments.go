package store

// This file finds what was when: the revision that was current at a time, one object as it was at a revision, since when a key is that
// object's and no other's, and whether a set of objects was the same at two revisions.
//
// Records contain the time when they were written, so that a binary search in the kept revisions finds the newest record that is not later
// than a moment. Records that filled a replica have no time, and count as older than the others; where one of them is the answer,
// the marks of compaction vouch for a revision at or before the moment. Where the clock ran back, some moments came twice: one of the two
// is found.

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"time"
)

// RevisionAt is the revision that was current at a time. ErrCompacted when that is longer ago than what is kept.
func (up *Maintenance) RevisionAt(at time.Time) (int64, error) {
	st, ms := up.st, at.UnixMilli()
	for {
		current, compacted := st.Revision(), st.Compacted()
		low, high := compacted, current // at low it was not later, as far as anybody knows; above high it was
		found := Record{}
		for low < high {
			middle := low + (high-low+1)/2
			r, err := st.recordFrom(middle)
			switch {
			case errors.Is(err, ErrNotFound) || err == nil && (r.Rev > high || r.Time > ms):
				high = middle - 1
			case err != nil:
				return 0, err
			default:
				low, found = r.Rev, r
			}
		}
		if st.Compacted() != compacted { // and something that was looked for is gone
			continue
		}
		if found.Time != 0 {
			return low, nil
		}
		return up.vouchedAt(at, compacted)
	}
}

// vouchedAt is RevisionAt where no record that knows its time is so old.
func (up *Maintenance) vouchedAt(at time.Time, compacted int64) (int64, error) {
	if rev := up.RevisionBefore(at); rev > 0 && rev >= compacted {
		return rev, nil
	}
	if r, err := up.st.recordFrom(compacted); err == nil && r.Rev == compacted && r.Time != 0 && r.Time <= at.UnixMilli() {
		return compacted, nil
	}
	return 0, ErrCompacted
}

// Oldest is the oldest revision that can be read, and since when it was current; the zero time where nobody knows.
func (up *Maintenance) Oldest() (rev int64, since time.Time) {
	rev = max(up.st.Compacted(), 1)
	if r, err := up.st.recordFrom(rev); err == nil && r.Rev == rev && r.Time != 0 {
		return rev, time.UnixMilli(r.Time)
	}
	up.mu.RLock()
	defer up.mu.RUnlock()
	for _, m := range up.marks {
		if m.rev == rev {
			return rev, time.Unix(m.unix, 0)
		}
	}
	return rev, time.Time{}
}

// TimeOf is when a revision was written, or, where it is gone or another's, the next one that is kept; the zero time where nobody knows.
func (st *Store) TimeOf(rev int64) time.Time {
	if r, err := st.recordFrom(rev); err == nil && r.Time != 0 {
		return time.UnixMilli(r.Time)
	}
	return time.Time{}
}

// recordFrom is the first record at or above a revision, without its key and JSON.
func (st *Store) recordFrom(rev int64) (r Record, err error) {
	err = st.readSnapshot(func(s *snapshot) error {
		c := s.revs.Cursor()
		k, v := c.Seek(revKey(rev))
		if k == nil {
			return ErrNotFound
		}
		r, _, err = decodeRecord(revOf(k), v)
		r.JSON = nil
		return err
	})
	return r, err
}

// GetAt is an object as it was at a revision; ErrNotFound where it was not there, ErrCompacted, or an error where that is in the future.
func (st *Store) GetAt(key string, rev int64) (rec Record, err error) {
	current := st.Revision()
	err = st.readSnapshot(func(s *snapshot) error {
		if err = s.reach(rev, current); err != nil {
			return err
		}
		rec, err = s.at(key, rev)
		return err
	})
	if err == nil {
		rec, err = st.opened(rec)
	}
	return rec, err
}

// Since is the first revision at which a key's object was the one that it is now; 0 where no other is known to have had the key. Of an object
// that is not there it is the revision after its deletion.
func (st *Store) Since(key string) (rev int64, err error) {
	err = st.readSnapshot(func(s *snapshot) error {
		k := []byte(key)
		v := s.keys.Get(k)
		if v == nil {
			return nil
		}
		state, err := decodeKeyState(k, v)
		if err != nil || !state.live() {
			rev = state.rev + 1
			return err
		}
		newest, ok, err := s.version(k, state, state.rev)
		if err != nil || !ok {
			return err
		}
		rev = newest.CreateRev
		if b := s.record(rev, k); b != nil {
			first, found, err := decodeRecord(rev, b)
			if err == nil && string(found) == key && first.PrevRev == 0 {
				rev = 0
			}
			return err
		}
		return nil
	})
	return rev, err
}

// Digest tells sets of versions apart: those of the keys with a prefix that were there at a revision. rev 0 is now. It reads no object.
// ErrCompacted, errFutureRev, or the context's error.
func (st *Store) Digest(ctx context.Context, prefix string, rev int64) (uint64, error) {
	current, sum := st.Revision(), fnv.New64a()
	if rev == 0 {
		rev = current
	}
	for start := prefix; ; {
		err := st.readSnapshot(func(s *snapshot) (err error) {
			if err := s.reach(rev, current); err != nil {
				return err
			}
			start, err = s.each(prefix, start, func(key []byte, state keyState) (bool, error) {
				if s.steps > chainStepsMax {
					return false, nil
				}
				r, ok, err := s.version(key, state, rev)
				if ok {
					_, _ = sum.Write(binary.BigEndian.AppendUint64(append(key[:len(key):len(key)], 0), uint64(r.Rev)))
				}
				return err == nil, err
			})
			return err
		})
		if err = errors.Join(err, ctx.Err()); err != nil || start == "" {
			return sum.Sum64(), err
		}
	}
}
