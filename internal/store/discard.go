package store

// This file removes objects whose newest version is damaged. The version cannot be read, so no
// ordinary change is possible. A change with Change.Damaged replaces the object by a tombstone or
// by a new document.
//
//	rev      57 //configmaps/x/m, one bit flipped               58 {prev 57, lost, tombstone}, no JSON
//	keys     //configmaps/x/m→57, or a damaged entry            //configmaps/x/m→58†
//
// Watchers need the last state of a deleted object, but here it is lost. Therefore followers that
// have not reached such a record (flag "lost") get ErrCompacted and list all objects again, which
// is possible again. The history (EventsOf) shows the record as a change without a previous
// version.
//
// If the record is damaged, the entry of the key gives its revision. If the entry is damaged, the
// store searches the whole log for the newest record of the key, so that compaction finds the
// version that the tombstone supersedes.

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"

	"apilet/internal/store/boltfile"
)

// findDamaged returns the revision of a key's damaged newest version, or 0 if no record of it is
// found. It fails with ErrNotFound if the key has no object, and with ErrConflict if the version
// can be read.
func (st *Store) findDamaged(ctx context.Context, key string) (rev int64, err error) {
	k, known := []byte(key), false
	err = st.readSnapshot(func(s *snapshot) error {
		v := s.keys.Get(k)
		if v == nil {
			return ErrNotFound
		}
		known = true
		state, err := decodeKeyState(k, v)
		switch {
		case err != nil:
			return err
		case !state.live():
			return ErrNotFound
		}
		rev = state.rev
		_, _, err = s.version(k, state, rev)
		return err
	})
	switch {
	case err == nil:
		return 0, ErrConflict
	case !known || !errors.Is(err, ErrDamaged) || st.mode.remade:
		return 0, err
	case rev == 0: // the entry is damaged
		return st.newestRecord(ctx, k)
	}
	return rev, nil
}

// newestRecord searches the whole log for a key's newest record and skips damaged records.
func (st *Store) newestRecord(ctx context.Context, key []byte) (newest int64, err error) {
	for from := int64(1); from != 0 && err == nil; {
		err = st.readSnapshot(func(s *snapshot) error {
			c, next := s.revs.Cursor(), int64(0)
			behind, damage := c.SkipDamage(revKey(from), func(start []byte) {
				k, v := c.Seek(start)
				for n := 0; k != nil && n < replayScanMax; n++ {
					if _, found, err := decodeRecord(revOf(k), v); err == nil && bytes.Equal(found, key) {
						newest = revOf(k)
					}
					k, v = c.Next()
				}
				if k != nil {
					next = revOf(k)
				}
			})
			if damage != nil && len(behind) >= 8 {
				next = revOf(behind)
			}
			if from = next; next <= 0 {
				from = 0
			}
			return ctx.Err()
		})
	}
	return newest, err
}

// behindLost returns the revision that a damaged record superseded. It uses the previous revision
// that the record names, even though the record is damaged, if an older record of the same key
// exists there. Otherwise that older record would never be deleted.
func behindLost(s *snapshot, lost Record, key []byte) (rev int64, ok bool) {
	var b []byte
	if err := boltfile.RecoverFaults(func() error { b = s.record(lost.PrevRev, key); return nil }); err != nil || len(b) < recordHeader {
		return 0, false
	}
	rev = int64(binary.BigEndian.Uint64(b[1:]))
	if rev <= 0 || rev >= lost.PrevRev {
		return 0, false
	}
	err := boltfile.RecoverFaults(func() error {
		_, found, err := decodeRecord(rev, s.record(rev, key))
		ok = err == nil && bytes.Equal(found, key)
		return err
	})
	return rev, ok && err == nil
}
