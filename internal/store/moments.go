package store

// This file implements queries about the history of the store. RevisionAt returns the revision for
// a given time, and GetAt returns an object at a given revision. Since returns the revision when
// the current object got its key. Digest can be used to check if a set of objects is the same at
// two revisions.
//
// Each record contains the time when it was written. A binary search in the kept revisions finds
// the newest record that is not later than a given time. If a record was written while filling a
// replica, it has no time and is treated as older than all other records. If the search ends at
// such a record, the compaction marks are used to find a revision at or before the given time. If
// the clock was set back, there may be more than one revision for the given time. In this case one
// of them is returned.

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"time"
)

// RevisionAt returns the revision of the store at the given time. It fails with ErrCompacted if the
// time is before the kept history.
func (up *Maintenance) RevisionAt(at time.Time) (int64, error) {
	st, ms := up.st, at.UnixMilli()
	for {
		current, compacted := st.Revision(), st.Compacted()
		// If the time of low is known, it is not after the given time. All revisions above high are
		// after it.
		low, high := compacted, current
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
		if st.Compacted() != compacted { // a revision may have been deleted during the search
			continue
		}
		if found.Time != 0 {
			return low, nil
		}
		return up.vouchedAt(at, compacted)
	}
}

// vouchedAt is called by RevisionAt if the given time is before the first record with a time.
func (up *Maintenance) vouchedAt(at time.Time, compacted int64) (int64, error) {
	if rev := up.RevisionBefore(at); rev > 0 && rev >= compacted {
		return rev, nil
	}
	if r, err := up.st.recordFrom(compacted); err == nil && r.Rev == compacted && r.Time != 0 && r.Time <= at.UnixMilli() {
		return compacted, nil
	}
	return 0, ErrCompacted
}

// Oldest returns the oldest readable revision and the time since which it was current, or the zero
// time if that is unknown.
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

// TimeOf returns the time when the given revision was written. If the file has no record of that
// revision, it returns the time of the next record. It returns the zero time if the time is
// unknown.
func (st *Store) TimeOf(rev int64) time.Time {
	if r, err := st.recordFrom(rev); err == nil && r.Time != 0 {
		return time.UnixMilli(r.Time)
	}
	return time.Time{}
}

// recordFrom returns the first record with a revision that is not less than rev. It omits the key
// and the JSON.
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

// GetAt returns an object at a revision. It fails with ErrNotFound if the object did not exist
// then, with ErrCompacted, or with errFutureRev.
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
		rec, err = st.openRecord(rec)
	}
	return rec, err
}

// Since returns the first revision at which the key belonged to its current object, or 0 if no
// other object is known to have had the key. If the object was deleted, it returns the revision
// after the deletion.
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

// Digest returns a hash of the versions of all keys with a prefix that were live at a revision. rev
// 0 means the current revision. Digest does not copy the objects. It fails
// with ErrCompacted, errFutureRev, or the error of ctx.
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
