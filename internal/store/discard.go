package store

// This file is the way out for an object whose newest version is damaged: nobody can read it, so that no ordinary change of it can be made. A
// change with Change.Damaged replaces it by a tombstone, or by another document.
//
//	rev      57 //configmaps/x/m, one bit flipped               58 {prev 57, lost, tombstone}, no JSON
//	keys     //configmaps/x/m→57, or an entry of rubbish        //configmaps/x/m→58†
//
// What watchers would have to be told, the last state, is lost. A record with the flag "lost" therefore breaks the log off for those who follow
// it from before (ErrCompacted): they read everything anew, which they can again. The history (EventsOf) shows it as a change from nothing.
//
// Where the record is damaged its revision is known from the entry of the key. Where the entry is, the newest record of the key is looked for in
// the whole log, so that compaction finds what the tombstone supersedes.

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"

	"apilet/internal/store/boltfile"
)

// findDamaged is the revision of a key's newest version, which is damaged; 0 where no record of it is found. ErrNotFound when no object has the
// key, ErrConflict when it can be read.
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
	case rev == 0: // the entry is of no use
		return st.newestRecord(ctx, k)
	}
	return rev, nil
}

// newestRecord looks for a key's newest record in the whole log, past what is damaged.
func (st *Store) newestRecord(ctx context.Context, key []byte) (newest int64, err error) {
	for from := int64(1); from != 0 && err == nil; {
		err = st.readSnapshot(func(s *snapshot) error {
			c, next := s.revs.Cursor(), int64(0)
			behind, damage := c.Past(revKey(from), func(start []byte) {
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

// behindLost finds what a damaged record superseded: if an older record of the key lies where it says, that is superseded whatever else is wrong
// with what says so. Without this it would stay for ever.
func behindLost(s *snapshot, lost Record, key []byte) (rev int64, ok bool) {
	var b []byte
	if err := boltfile.WithoutFaults(func() error { b = s.record(lost.PrevRev, key); return nil }); err != nil || len(b) < recordHeader {
		return 0, false
	}
	rev = int64(binary.BigEndian.Uint64(b[1:]))
	if rev <= 0 || rev >= lost.PrevRev {
		return 0, false
	}
	err := boltfile.WithoutFaults(func() error {
		_, found, err := decodeRecord(rev, s.record(rev, key))
		ok = err == nil && bytes.Equal(found, key)
		return err
	})
	return rev, ok && err == nil
}
