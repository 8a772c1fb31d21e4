package main

// This file does to the store what no request asks for: it compacts the history, makes backups, looks for damage, and packs
// files. All of it works in small pieces between the requests, through the store's own transactions.

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"sync"
	"time"

	"go.etcd.io/bbolt"
)

const (
	deadMax        = 64_000 // dead revisions that compaction holds in memory
	deleteSliceMax = 300    // dead revisions deleted in one transaction: at 1,000 writers wait more than 10 ms
	marksMax       = 1024
)

// upkeep keeps house in a store.
type upkeep struct {
	st      *store
	history chan struct{} // holds one token while somebody compacts or makes a backup: the one must not run beside the other
	swept   int64         // how far compaction has deleted; the token's holder's

	mu    sync.RWMutex // guards marks
	marks []mark
}

func newUpkeep(st *store) (*upkeep, error) {
	up := &upkeep{st: st, history: make(chan struct{}, 1)}
	err := up.st.view(func(s *snapshot) error {
		up.swept = metaInt(s.tx, "swept")
		up.marks = decodeMarks(s.tx.Bucket(bucketMeta).Get([]byte("marks")))
		return nil
	})
	return up, err
}

// ---- Compaction

// compaction reports on one.
type compaction struct {
	rev     int64 // compactRev after it
	walked  int64 // records looked at
	deleted int
	took    time.Duration
}

// hold takes the token of history; release gives it back.
func (up *upkeep) hold(ctx context.Context) (release func(), err error) {
	select {
	case up.history <- struct{}{}:
		return func() { <-up.history }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// compact forgets what was superseded at or before rev. It also finishes what a crash left half done.
func (up *upkeep) compact(ctx context.Context, rev int64) (done compaction, err error) {
	start := time.Now()
	release, err := up.hold(ctx)
	if err != nil {
		return done, err
	}
	defer release()
	if rev > up.st.revision() {
		return done, errFutureRev
	}
	if rev > up.st.compacted() {
		if err := up.st.raiseCompact(ctx, rev); err != nil {
			return done, err
		}
	}
	for up.swept < up.st.compacted() && err == nil {
		var dead []int64
		var upTo int64
		if dead, upTo, err = up.findDead(ctx); err != nil {
			break
		}
		if err = up.deleteDead(ctx, dead, upTo); err == nil {
			done.walked += upTo - up.swept
			done.deleted += len(dead)
			up.swept = upTo
		}
	}
	done.rev, done.took = up.st.compacted(), time.Since(start)
	return done, err
}

// findDead walks the log from swept to compactRev, or until it holds enough. Sorted, the dead lie together: deleting them in the
// order of their discovery writes twenty times as much. It also makes a crash harmless: a record never goes before the one that it
// superseded, so the walk of the next start finds whatever is left.
func (up *upkeep) findDead(ctx context.Context) (dead []int64, upTo int64, err error) {
	upTo = up.swept
	for upTo < up.st.compacted() && len(dead) < deadMax && err == nil {
		err = up.st.view(func(s *snapshot) error {
			dead, upTo = walkDead(s, dead, upTo)
			return ctx.Err()
		})
	}
	slices.Sort(dead)
	return slices.Compact(dead), upTo, err
}

// walkDead goes through 1,000 records after a revision, at most to compactRev, and returns how far it came.
func walkDead(s *snapshot, dead []int64, after int64) ([]int64, int64) {
	c := s.revs.Cursor()
	k, v := c.Seek(revKey(after + 1))
	for range replayScanMax {
		rev := int64(math.MaxInt64)
		if len(k) == 8 {
			rev = int64(binary.BigEndian.Uint64(k))
		}
		if rev > s.compact {
			return dead, s.compact
		}
		dead = appendDead(dead, rev, v)
		after = rev
		k, v = c.Next()
	}
	return dead, after
}

// appendDead adds what a record at or below compactRev makes superfluous. A damaged one cannot be believed, and stays.
func appendDead(dead []int64, rev int64, b []byte) []int64 {
	r, _, err := decodeRecord(rev, b)
	if err != nil {
		return dead
	}
	if r.prevRev != 0 {
		dead = append(dead, r.prevRev)
	}
	if r.deleted {
		dead = append(dead, rev)
	}
	return dead
}

func (up *upkeep) deleteDead(ctx context.Context, dead []int64, upTo int64) error {
	for len(dead) > deleteSliceMax {
		slice := dead[:deleteSliceMax]
		dead = dead[deleteSliceMax:]
		if err := up.st.maintain(ctx, func(tx *bbolt.Tx) error { return deleteRecords(tx, slice) }); err != nil {
			return err
		}
	}
	return up.st.maintain(ctx, func(tx *bbolt.Tx) error {
		return errors.Join(deleteRecords(tx, dead), putMetaInt(tx, "swept", upTo))
	})
}

// deleteRecords deletes records, and with a tombstone the key's entry while it still names that tombstone.
func deleteRecords(tx *bbolt.Tx, revs []int64) error {
	s := newStage(tx)
	for _, rev := range revs {
		b := s.revs.Get(revKey(rev))
		if len(b) < recordHeader {
			continue
		}
		var err error
		if b[0]&flagTombstone != 0 {
			// A damaged entry answers the zero state and stays; the scrub names it.
			if state, _ := s.state(string(recordKey(b))); state.rev == rev {
				err = s.keys.Delete(s.key)
			}
		}
		if err = errors.Join(err, s.revs.Delete(revKey(rev))); err != nil {
			return err
		}
	}
	return nil
}

// A mark says which revision was current at a time.
type mark struct{ unix, rev int64 }

func decodeMarks(b []byte) (marks []mark) {
	for ; len(b) >= 16; b = b[16:] {
		marks = append(marks, mark{int64(binary.BigEndian.Uint64(b)), int64(binary.BigEndian.Uint64(b[8:]))})
	}
	return marks
}

func encodeMarks(marks []mark) (b []byte) {
	for _, m := range marks {
		b = binary.BigEndian.AppendUint64(b, uint64(m.unix))
		b = binary.BigEndian.AppendUint64(b, uint64(m.rev))
	}
	return b
}

// addMark notes the current revision, durably, unless it is that of the last mark: an idle store does not write. Marks from the
// future (the clock was set back) give way; when there are too many, the older half loses every other one.
func (up *upkeep) addMark(ctx context.Context, now time.Time) error {
	rev := up.st.revision()
	up.mu.RLock()
	marks := slices.Clone(up.marks)
	up.mu.RUnlock()
	for len(marks) > 0 && marks[len(marks)-1].unix > now.Unix() {
		marks = marks[:len(marks)-1]
	}
	if len(marks) > 0 && marks[len(marks)-1].rev == rev {
		return nil
	}
	marks = append(marks, mark{now.Unix(), rev})
	if len(marks) > marksMax {
		marks = thinMarks(marks)
	}
	err := up.st.maintain(ctx, func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Put([]byte("marks"), encodeMarks(marks)) })
	if err != nil {
		return err
	}
	up.mu.Lock()
	defer up.mu.Unlock()
	up.marks = marks
	return nil
}

func thinMarks(marks []mark) []mark {
	half := len(marks) / 2
	thin := make([]mark, 0, len(marks))
	for i := 0; i < half; i += 2 {
		thin = append(thin, marks[i])
	}
	return append(thin, marks[half:]...)
}

// revisionBefore returns a revision that was current at time t (to the second) or before: the newest one that a mark vouches for,
// 0 when none does.
func (up *upkeep) revisionBefore(t time.Time) int64 {
	up.mu.RLock()
	defer up.mu.RUnlock()
	n := sort.Search(len(up.marks), func(i int) bool { return up.marks[i].unix > t.Unix() })
	if n == 0 {
		return 0
	}
	return up.marks[n-1].rev
}

// round is one turn of run: mark the revision, compact to what was current an interval ago (0: keep all).
func (up *upkeep) round(ctx context.Context, now time.Time, interval time.Duration) (compaction, error) {
	if err := up.addMark(ctx, now); err != nil || interval <= 0 {
		return compaction{rev: up.st.compacted()}, err
	}
	return up.compact(ctx, max(up.st.compacted(), up.revisionBefore(now.Add(-interval))))
}

// run compacts at once and then every interval, and reports each round, until ctx ends. With interval 0 it only marks, every five
// minutes.
func (up *upkeep) run(ctx context.Context, interval time.Duration, report func(compaction, error)) {
	tick := interval
	if tick <= 0 {
		tick = 5 * time.Minute
	}
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		done, err := up.round(ctx, time.Now(), interval)
		if ctx.Err() != nil {
			return
		}
		report(done, err)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// ---- Backup, check, scrub, defragmentation

// backup makes a new file at dest, which must not exist: the live objects at one revision, copied chunk by chunk beside the writes.
// Compaction waits meanwhile.
func (up *upkeep) backup(ctx context.Context, dest string) error {
	release, err := up.hold(ctx)
	if err != nil {
		return err
	}
	defer release()
	return createFile(dest, func(db *bbolt.DB) error {
		if err := db.Update(initBuckets); err != nil {
			return err
		}
		rev := up.st.revision()
		if err := up.copyObjects(ctx, db, rev); err != nil {
			return err
		}
		return up.copyMeta(db, rev)
	})
}

func (up *upkeep) copyObjects(ctx context.Context, db *bbolt.DB, rev int64) error {
	var c chunk
	for sp := (span{rev: rev}); ; sp.start = c.next {
		if err := errors.Join(ctx.Err(), up.st.chunk(sp, &c)); err != nil {
			return err
		}
		err := db.Update(func(tx *bbolt.Tx) error { return putRecords(tx, c.records) })
		if err != nil || c.next == "" {
			return err
		}
	}
}

// putRecords puts records as they are. What they replaced is no part of a backup.
func putRecords(tx *bbolt.Tx, records []record) error {
	s := newStage(tx)
	for _, r := range records {
		r.prevRev = 0
		value := encodeRecord(&r, r.json, -1, 0)
		key := recordKey(value)
		state := appendKeyState(nil, key, keyState{r.rev, len(r.json), value[0]})
		if err := errors.Join(s.revs.Put(revKey(r.rev), value), s.keys.Put(key, state)); err != nil {
			return err
		}
	}
	return nil
}

func (up *upkeep) copyMeta(db *bbolt.DB, rev int64) error {
	meta := map[string][]byte{}
	err := up.st.view(func(s *snapshot) error {
		return s.tx.Bucket(bucketMeta).ForEach(func(k, v []byte) error {
			meta[string(k)] = bytes.Clone(v)
			return nil
		})
	})
	if err != nil {
		return err
	}
	meta["backup"], meta["compact"], meta["swept"] = revKey(rev), revKey(rev), revKey(rev)
	return db.Update(func(tx *bbolt.Tx) error {
		for name, value := range meta {
			if err := tx.Bucket(bucketMeta).Put([]byte(name), value); err != nil {
				return err
			}
		}
		return tx.Bucket(bucketRev).SetSequence(uint64(rev))
	})
}

// fileReport is what checkFile and scrub found.
type fileReport struct {
	objects, records    int64
	revision, compacted int64
	problems            []string // the first 100
}

func (rep *fileReport) problem(format string, args ...any) {
	if len(rep.problems) < problemsMax {
		rep.problems = append(rep.problems, fmt.Sprintf(format, args...))
	}
}

// checkFile looks at every page, record and key of a file that no server has open. err says why it could not look; what it found
// is in the report.
func checkFile(path string) (rep fileReport, err error) {
	verdict, err := vetFile(path, true, func(tx *bbolt.Tx) error {
		if err := checkFormat(tx); err != nil {
			return err
		}
		s := newSnapshot(tx, metaInt(tx, "compact"))
		rep.revision, rep.compacted = int64(s.revs.Sequence()), s.compact
		for next := int64(1); next != 0; {
			next = rep.inspectRecords(s, next)
		}
		for next, more := "", true; more; more = next != "" {
			next = rep.inspectKeys(s, next)
		}
		return nil
	})
	rep.problems = append(verdict.problems, rep.problems...)
	if verdict.oneMeta {
		rep.problem("one of the two meta pages is damaged: if it was the newer one, the last commit is gone")
	}
	if errors.Is(err, errDamaged) && len(rep.problems) > 0 {
		err = nil
	}
	return rep, err
}

// scrub does what checkFile does to records and keys, beside the server's work: in short transactions, half of the time at rest.
func (up *upkeep) scrub(ctx context.Context) (rep fileReport, err error) {
	rev, key := int64(1), ""
	for done := false; !done && err == nil; {
		start := time.Now()
		err = up.st.view(func(s *snapshot) error {
			rep.revision, rep.compacted = int64(s.revs.Sequence()), s.compact
			if rev != 0 {
				rev = rep.inspectRecords(s, rev)
			} else {
				key = rep.inspectKeys(s, key)
				done = key == ""
			}
			return nil
		})
		select {
		case <-time.After(time.Since(start)):
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	return rep, err
}

// inspectRecords looks at 1,000 records from a revision on and returns where to go on, 0 at the end.
func (rep *fileReport) inspectRecords(s *snapshot, from int64) (next int64) {
	c, expected := s.revs.Cursor(), max(from, s.compact+1)
	k, v := c.Seek(revKey(from))
	for range replayScanMax {
		if k == nil {
			break
		}
		if len(k) != 8 {
			rep.problem("bucket rev has a key of %d bytes", len(k))
		} else {
			rev := int64(binary.BigEndian.Uint64(k))
			if rev > expected {
				rep.problem("revisions %d to %d are missing", expected, rev-1)
			}
			expected = max(expected, rev+1)
			rep.records++
			rep.inspectRecord(s, rev, v)
			next = rev + 1
		}
		k, v = c.Next()
	}
	if k != nil {
		return next
	}
	if current := int64(s.revs.Sequence()); expected <= current {
		rep.problem("revisions %d to %d are missing", expected, current)
	} else if expected > current+1 {
		rep.problem("revision %d is above the current revision %d", expected-1, current)
	}
	return 0
}

func (rep *fileReport) inspectRecord(s *snapshot, rev int64, b []byte) {
	r, key, err := decodeRecord(rev, b)
	if err != nil {
		rep.problem("%v", err)
		return
	}
	state, err := decodeKeyState(key, s.keys.Get(key))
	switch {
	case err != nil:
		rep.problem("revision %d: key %q has no sound entry", rev, key)
	case state.rev < rev:
		rep.problem("revision %d: the entry of key %q names revision %d", rev, key, state.rev)
	case r.prevRev > s.compact && s.record(r.prevRev) == nil:
		rep.problem("revision %d (key %q) is missing, revision %d refers to it", r.prevRev, key, rev)
	}
}

// inspectKeys looks at 1,000 keys from one on and returns where to go on, "" at the end.
func (rep *fileReport) inspectKeys(s *snapshot, from string) (next string) {
	c := s.keys.Cursor()
	k, v := c.Seek([]byte(from))
	for n := 0; k != nil; k, v = c.Next() {
		if n++; n > replayScanMax {
			return string(k)
		}
		state, err := decodeKeyState(k, v)
		if err != nil {
			rep.problem("%v", err)
			continue
		}
		if state.live() {
			rep.objects++
		}
		r, key, err := decodeRecord(state.rev, s.record(state.rev))
		if err != nil || !bytes.Equal(key, k) || len(r.json) != state.size || flagsOf(&r) != state.flags {
			rep.problem("key %q: revision %d is not its newest version", k, state.rev)
		}
	}
	return ""
}

// defragFile rewrites a stopped server's file without its free pages.
func defragFile(path string) error {
	if _, err := vetFile(path, false, checkFormat); err != nil {
		return err
	}
	return packFile(path)
}
