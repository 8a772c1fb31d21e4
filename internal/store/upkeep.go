package store

// This file implements the maintenance of a store, which includes compaction, backups, checks and
// defragmentation. All of this runs in short transactions between client requests.

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"apilet/internal/store/boltfile"
)

const (
	deadMax = 64_000 // maximum number of dead revisions that compaction holds in memory
	// deleteSliceMax is the maximum number of dead revisions to delete in a single transaction. If
	// it were 1,000, writers would have to wait for more than 10 ms.
	deleteSliceMax = 300
	marksMax       = 1024
)

// Maintenance performs the background work of a store.
type Maintenance struct {
	st *Store
	// history contains one token while a compaction or backup runs, because they must not run
	// concurrently.
	history         chan struct{}
	swept           int64 // last revision processed by compaction; guarded by history
	CompactWhenFull bool  // delete all history if a write is refused for lack of space; set before Run

	authorsSwept time.Time // time of the last search for unused authors; guarded by history

	mu    sync.RWMutex // guards marks
	marks []mark
}

// NewMaintenance returns the Maintenance of st and reads its records from the file. A store must
// have only one.
func NewMaintenance(st *Store) (*Maintenance, error) {
	up := &Maintenance{st: st, history: make(chan struct{}, 1)}
	err := up.st.readSnapshot(func(s *snapshot) error {
		up.swept = boltfile.MetaInt(s.meta(), "swept")
		up.marks = decodeMarks(s.meta().Get([]byte("marks")))
		return nil
	})
	return up, err
}

// ---- Compaction

// A Compaction describes the result of a compaction.
type Compaction struct {
	Rev      int64 // CompactRev after it
	Deleted  int   // number of deleted versions
	ForSpace bool  // it was started immediately, because a write was refused for lack of space
	walked   int64 // number of records that were read
	took     time.Duration
}

// acquireHistory acquires the history token. The caller must call release.
func (up *Maintenance) acquireHistory(ctx context.Context) (release func(), err error) {
	select {
	case up.history <- struct{}{}:
		return func() { <-up.history }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Compact deletes all versions that have been replaced at or before rev. It also completes a
// compaction that was interrupted by a crash.
func (up *Maintenance) Compact(ctx context.Context, rev int64) (done Compaction, err error) {
	start := time.Now()
	release, err := up.acquireHistory(ctx)
	if err != nil {
		return done, err
	}
	defer release()
	if rev > up.st.Revision() {
		return done, errFutureRev
	}
	if rev > up.st.Compacted() {
		if err := up.st.raiseCompact(ctx, rev); err != nil {
			return done, err
		}
	}
	for up.swept < up.st.Compacted() && err == nil {
		var dead []deadRecord
		var upTo int64
		if dead, upTo, err = up.findDead(ctx); err != nil {
			break
		}
		if err = up.deleteDead(ctx, dead, upTo); err == nil {
			done.walked += upTo - up.swept
			done.Deleted += len(dead)
			up.swept = upTo
		}
	}
	if err == nil {
		err = up.sweepAuthors(ctx, start)
	}
	done.Rev, done.took = up.st.Compacted(), time.Since(start)
	return done, err
}

// findDead walks the log from swept to CompactRev, or until it has found deadMax records. It sorts
// the result, because deleting the records in the order of discovery would write twenty times as
// much. The order is also important if the process crashes. Since a record is not deleted before
// the record that it replaced, the next walk can find all remaining records.
func (up *Maintenance) findDead(ctx context.Context) (dead []deadRecord, upTo int64, err error) {
	upTo = up.swept
	for upTo < up.st.Compacted() && len(dead) < deadMax && err == nil {
		err = up.st.readSnapshot(func(s *snapshot) error {
			dead, upTo = up.walkDead(s, dead, upTo)
			return ctx.Err()
		})
	}
	slices.SortFunc(dead, func(a, b deadRecord) int { return cmp.Or(cmp.Compare(a.rev, b.rev), strings.Compare(a.key, b.key)) })
	return slices.Compact(dead), upTo, err
}

// A deadRecord is a record to be deleted. key is empty if revisions are not shared.
type deadRecord struct {
	rev int64
	key string
}

// place returns the bucket key and the value of the record.
func (d deadRecord) place(s *stage) ([]byte, []byte, error) {
	short := revKey(d.rev)
	b, err := s.revs.Get(short)
	if err != nil || d.key == "" || string(recordKey(b)) == d.key {
		return short, b, err
	}
	long := longKey(d.rev, []byte(d.key))
	b, err = s.revs.Get(long)
	return long, b, err
}

// walkDead reads about 1,000 records after the given revision, but not above CompactRev. It returns
// the last revision that was read. It skips damaged pages. Since the records on these pages cannot
// be read, the versions that they replaced are not deleted.
func (up *Maintenance) walkDead(s *snapshot, dead []deadRecord, after int64) ([]deadRecord, int64) {
	c, end, shared, began := s.revs.Cursor(), false, up.st.shared.Load(), after
	next, err := c.SkipDamage(revKey(after+1), func(from []byte) {
		k, v := c.Seek(from)
		for n := 0; ; n++ {
			rev := revOf(k)
			if end = rev > s.compact; end || n >= replayScanMax && rev != after {
				return
			}
			dead = appendDead(dead, s, rev, v, shared)
			after = rev
			k, v = c.Next()
		}
	})
	if err != nil {
		up.st.File.Explain(err)
		after = max(after, revOf(next)-1)
	}
	// If the key after a damaged page is too low, there is no progress. Skip the rest in this case.
	if end || after > s.compact || after == began {
		after = s.compact
	}
	return dead, after
}

// appendDead appends the records that can be deleted because they were replaced by the given
// record. If the given record is a tombstone, it is also appended. If the record is damaged, it is
// ignored and will not be deleted.
func appendDead(dead []deadRecord, s *snapshot, rev int64, b []byte, shared bool) []deadRecord {
	r, key, err := decodeRecord(rev, b)
	if err != nil {
		return dead
	}
	name := ""
	if shared {
		name = string(key)
	}
	if r.PrevRev != 0 {
		dead = append(dead, deadRecord{r.PrevRev, name})
	}
	if r.Lost {
		if older, ok := behindLost(s, r, key); ok {
			dead = append(dead, deadRecord{older, name})
		}
	}
	if r.Deleted {
		dead = append(dead, deadRecord{rev, name})
	}
	return dead
}

// deleteDead deletes records in several transactions. The transactions get smaller if the disk has
// no room for the pages that they copy.
func (up *Maintenance) deleteDead(ctx context.Context, dead []deadRecord, upTo int64) error {
	size := deleteSliceMax
	if up.st.roomLow.Load() {
		size = lowSpaceSlice
	}
	for {
		slice := dead[:min(size, len(dead))]
		last := len(slice) == len(dead)
		err := up.st.maintain(ctx, func(l *boltfile.WriteTx) error {
			err := up.deleteRecords(l, slice)
			if last {
				err = errors.Join(err, l.PutMetaInt("swept", upTo))
			}
			return err
		})
		switch {
		case errors.Is(err, ErrDiskFull) && size > 1:
			size = max(1, size/8)
		case err != nil || last:
			return err
		default:
			dead = dead[len(slice):]
		}
	}
}

// deleteRecords deletes records. With a tombstone it deletes the key's entry, if that still refers
// to the tombstone. It does not delete records on a damaged page or next to one.
func (up *Maintenance) deleteRecords(l *boltfile.WriteTx, dead []deadRecord) error {
	s, err := newStage(l)
	for i := 0; err == nil && i < len(dead); i++ {
		if err = s.deleteRecord(dead[i]); errors.Is(err, ErrDamaged) {
			up.st.File.Explain(err)
			err = nil
		}
	}
	return err
}

func (s *stage) deleteRecord(d deadRecord) error {
	place, b, err := d.place(s)
	if err != nil || len(b) < recordHeader {
		return err
	}
	if b[0]&flagTombstone != 0 {
		// A damaged entry returns the zero state and is kept. The scrub reports it.
		if state, _ := s.state(string(recordKey(b))); state.rev == d.rev {
			if err := s.revs.VetAround(place); err != nil {
				return err // before the entry is deleted
			}
			if err := s.keys.Remove(s.key); err != nil {
				return err
			}
		}
	}
	return s.revs.Remove(place)
}

// A mark records the current revision at a time.
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

// addMark records the current revision durably. It does not write anything if the revision has not
// changed since the last mark. Marks in the future (after the clock was set back) are dropped. If
// there are too many marks, every other mark of the older half is dropped.
func (up *Maintenance) addMark(ctx context.Context, now time.Time) error {
	rev := up.st.Revision()
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
	err := up.st.maintain(ctx, func(l *boltfile.WriteTx) error { return l.Put(boltfile.InMeta, []byte("marks"), encodeMarks(marks)) })
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

// RevisionBefore returns the revision of the store at the given time or earlier. The resolution is
// one second. It is the newest such revision with a mark, or 0 if none exists.
func (up *Maintenance) RevisionBefore(t time.Time) int64 {
	up.mu.RLock()
	defer up.mu.RUnlock()
	n := sort.Search(len(up.marks), func(i int) bool { return up.marks[i].unix > t.Unix() })
	if n == 0 {
		return 0
	}
	return up.marks[n-1].rev
}

// round is one iteration of Run. It adds a mark for the current revision and compacts all versions
// that are older than history. If history is 0, all versions are kept.
func (up *Maintenance) round(ctx context.Context, now time.Time, history time.Duration) (Compaction, error) {
	if err := up.addMark(ctx, now); err != nil || history <= 0 {
		return Compaction{Rev: up.st.Compacted()}, err
	}
	return up.Compact(ctx, max(up.st.Compacted(), up.RevisionBefore(now.Add(-history))))
}

// makeRoom compacts after a write was refused for lack of space. If CompactWhenFull is set, it
// deletes all history; otherwise only versions older than history. It does not add a mark, because
// it may run as often as clients write.
func (up *Maintenance) makeRoom(ctx context.Context, history time.Duration) (done Compaction, err error) {
	rev := up.st.Revision()
	if !up.CompactWhenFull {
		rev = max(up.st.Compacted(), up.RevisionBefore(up.st.Now().Add(-history)))
	}
	done, err = up.Compact(ctx, rev)
	done.ForSpace = true
	if up.CompactWhenFull {
		up.st.rooms.set(true)
	}
	return done, err
}

// Run compacts all versions that are older than history. It runs the first round immediately and
// then one round for each interval until ctx is done. It reports each round. If interval or history
// is 0, it only adds marks; if interval is 0, it does so every five minutes. If a write is refused
// for lack of space, Run starts a round immediately (makeRoom).
func (up *Maintenance) Run(ctx context.Context, interval, history time.Duration, report func(Compaction, error)) {
	tick := interval
	if tick <= 0 {
		tick, history = 5*time.Minute, 0
	}
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	var short <-chan struct{}
	if history > 0 {
		short = up.st.rooms.short
	}
	if up.CompactWhenFull && history > 0 {
		defer up.st.rooms.begin()()
	}
	done, err := up.round(ctx, up.st.Now(), history)
	for ctx.Err() == nil {
		report(done, err)
		select {
		case <-ticker.C:
			done, err = up.round(ctx, up.st.Now(), history)
		case <-short:
			done, err = up.makeRoom(ctx, history)
		case <-ctx.Done():
			return
		}
	}
}

// ---- Backup, check, scrub, defragmentation

// Backup creates a new file at dest, which must not exist. The file will contain all live objects
// at a single revision. They are copied in chunks while writes continue. Compaction is blocked
// during the backup.
func (up *Maintenance) Backup(ctx context.Context, dest string, seen *Progress) error {
	return up.BackupAt(ctx, dest, 0, seen)
}

// BackupAt is like Backup, but copies the objects that were live at rev. 0 means the newest
// revision.
func (up *Maintenance) BackupAt(ctx context.Context, dest string, rev int64, seen *Progress) error {
	release, err := up.acquireHistory(ctx)
	if err != nil {
		return err
	}
	defer release()
	switch {
	case rev == 0:
		rev = up.st.Revision()
	case rev < up.st.Compacted():
		return ErrCompacted
	case rev > up.st.Revision():
		return errFutureRev
	}
	return boltfile.Create(dest, func(db *bbolt.DB) error {
		if err := db.Update(initBuckets); err != nil {
			return err
		}
		if err := up.copyObjects(ctx, db, rev, seen); err != nil {
			return err
		}
		return errors.Join(up.copyAuthors(db), up.copyMeta(db, rev))
	})
}

func (up *Maintenance) copyObjects(ctx context.Context, db *bbolt.DB, rev int64, seen *Progress) error {
	var c Chunk
	seen.Begin("objects", up.st.Objects())
	for sp := (Span{Rev: rev, asStored: true}); ; sp.Start = c.Next {
		if err := errors.Join(ctx.Err(), up.st.Chunk(sp, &c)); err != nil {
			return err
		}
		err := db.Update(func(tx *bbolt.Tx) error { return putRecords(tx, c.Records) })
		seen.Add(int64(len(c.Records)))
		if err != nil || c.Next == "" {
			return err
		}
	}
}

// putRecords stores records unchanged. PrevRev is set to 0, since the backup does not contain the
// previous versions.
func putRecords(tx *bbolt.Tx, records []Record) error {
	s, err := newStage(&boltfile.WriteTx{Tx: tx})
	if err != nil {
		return err
	}
	for _, r := range records {
		r.PrevRev = 0
		value := encodeRecord(&r, r.JSON, -1, 0)
		key := recordKey(value)
		state := appendKeyState(nil, key, keyState{r.Rev, len(r.JSON), flagsOf(&r)})
		place, err := s.freeKey(r.Rev, key)
		if err := errors.Join(err, s.revs.Put(place, value), s.keys.Put(key, state)); err != nil {
			return err
		}
	}
	return nil
}

// copyAuthors copies all authors, including authors without a copied record, since there are few.
func (up *Maintenance) copyAuthors(db *bbolt.DB) error {
	entries, last := map[string][]byte{}, uint64(0)
	err := up.st.readSnapshot(func(s *snapshot) error {
		clear(entries)
		authors := s.authors()
		last = authors.Sequence
		c := authors.Cursor()
		for k, v := c.First(); k != nil; k, v = c.Next() {
			entries[string(k)] = bytes.Clone(v)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(boltfile.Buckets[boltfile.InAuthors])
		for key, value := range entries {
			if err := b.Put([]byte(key), value); err != nil {
				return err
			}
		}
		return b.SetSequence(last)
	})
}

func (up *Maintenance) copyMeta(db *bbolt.DB, rev int64) error {
	meta := map[string][]byte{}
	err := up.st.readSnapshot(func(s *snapshot) error {
		c := s.meta().Cursor()
		for k, v := c.First(); k != nil; k, v = c.Next() {
			meta[string(k)] = bytes.Clone(v)
		}
		return nil
	})
	if err != nil {
		return err
	}
	meta["format"] = revKey(Format)
	delete(meta, "filling")
	meta["backup"], meta["compact"], meta["swept"] = revKey(up.st.Now().Unix()), revKey(rev), revKey(rev)
	return db.Update(func(tx *bbolt.Tx) error {
		for name, value := range meta {
			if err := tx.Bucket(boltfile.Buckets[boltfile.InMeta]).Put([]byte(name), value); err != nil {
				return err
			}
		}
		return tx.Bucket(boltfile.Buckets[boltfile.InRev]).SetSequence(uint64(rev))
	})
}

// Report is the result of Check or Scrub.
type Report struct {
	Objects, Records    int64 // live objects, and all versions including tombstones
	Revision, Compacted int64 // newest revision, and CompactRev
	// Logged is the number of commits in the log that the next start will apply. The other fields,
	// except Revision, do not include them.
	Logged   int
	Format   int64                               // format of the file; not set by Scrub
	Problems []string                            // the first 100
	decodes  func(key string, json []byte) error // called to check the JSON of each object; may be nil
	gaps     bool                                // the file is a replica, so revisions may be missing

	Sealed    int64               // live encrypted objects that were not checked, since there was no Sealing
	sealing   *Sealing            // may be nil
	encrypted func(sealed []byte) // see Inspection
}

// Problem adds a problem to the report.
func (rep *Report) Problem(format string, args ...any) {
	if what := fmt.Sprintf(format, args...); len(rep.Problems) < boltfile.ProblemsMax && !slices.Contains(rep.Problems, what) {
		rep.Problems = append(rep.Problems, what)
	}
}

// Check verifies all pages, records and keys of a file. The file must not be in use. An error is
// only returned if the file cannot be checked. All findings are in the report.
func Check(path string) (rep Report, err error) { return CheckObjects(path, Inspection{}, nil) }

// An Inspection selects additional checks of each live object.
type Inspection struct {
	Decodes func(key string, json []byte) error // returns an error if the JSON cannot be decoded; may be nil
	Sealing *Sealing                            // used to decrypt objects; may be nil if they should not be decoded

	// Encrypted is called with the stored bytes of each live encrypted document. It may be nil.
	Encrypted func(sealed []byte)
}

// CheckObjects is like Check and also inspects the objects.
func CheckObjects(path string, each Inspection, seen *Progress) (rep Report, err error) {
	rep.decodes, rep.sealing, rep.encrypted = each.Decodes, each.Sealing, each.Encrypted
	verdict, err := boltfile.Vet(path, true, seen, func(p *boltfile.Pages) error {
		if err := checkFormat(p, path, 0); err != nil {
			return err
		}
		rep.inspect(p, seen)
		return nil
	})
	rep.Problems = append(verdict.Problems, rep.Problems...)
	rep.Logged = verdict.Log.Count()
	rep.Revision = max(rep.Revision, verdict.Log.Revision())
	if verdict.OneMeta {
		rep.Problem("one of the two meta pages is damaged: if it was the newer one, the last commit is gone")
	}
	if errors.Is(err, ErrDamaged) && len(rep.Problems) > 0 {
		err = nil
	}
	return rep, err
}

// inspect checks all records, keys and authors in the file.
func (rep *Report) inspect(p *boltfile.Pages, seen *Progress) {
	s := newSnapshot(p, 0)
	rep.Format = boltfile.MetaInt(s.meta(), "format")
	rep.gaps = rep.Format == replicaFormat
	rep.inspectAuthors(s)
	s.compact = boltfile.MetaInt(s.meta(), "compact")
	rep.Revision, rep.Compacted = int64(s.revs.Sequence), s.compact
	seen.Begin("revision", rep.Revision)
	for next := int64(1); next != 0; seen.Set(next) {
		next = rep.inspectRecords(s, next)
	}
	seen.Begin("objects", 0)
	for next, more := "", true; more; more = next != "" {
		next = rep.inspectKeys(s, next)
		seen.Set(rep.Objects)
	}
}

// Scrub inspects records and keys like Check, while the server is running. It uses short
// transactions and sleeps half of the time.
func (up *Maintenance) Scrub(ctx context.Context) (rep Report, err error) {
	rev, key := int64(1), ""
	rep.gaps = up.st.mode.others
	for done := false; !done && err == nil; {
		start := time.Now()
		err = up.st.readSnapshot(func(s *snapshot) error {
			rep.Revision, rep.Compacted = int64(s.revs.Sequence), s.compact
			if rev == 1 {
				rep.inspectAuthors(s)
			}
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

// inspectAuthors checks all authors at once, since there are only a few of them.
func (rep *Report) inspectAuthors(s *snapshot) {
	err := boltfile.RecoverFaults(func() error {
		authors := s.authors()
		c := authors.Cursor()
		for k, v := c.First(); k != nil; k, v = c.Next() {
			if _, _, err := decodeAuthor(k, v); err != nil {
				rep.Problem("%s", boltfile.PlaceOf(err))
			}
		}
		return nil
	})
	if err != nil {
		rep.Problem("%s", boltfile.PlaceOf(err))
	}
}

// inspectRecords checks about 1,000 records, starting at the given revision. It skips damaged
// pages. It returns the revision at which to continue, or 0 at the end.
func (rep *Report) inspectRecords(s *snapshot, from int64) (next int64) {
	c, expected := s.revs.Cursor(), max(from, s.compact+1)
	more, end := []byte(nil), false
	behind, err := c.SkipDamage(revKey(from), func(from []byte) {
		k, v := c.Seek(from)
		for n, last := 0, int64(0); k != nil && (n < replayScanMax || revOf(k) == last); n++ {
			expected, last = rep.inspectRevision(s, k, v, expected), revOf(k)
			k, v = c.Next()
		}
		more, end = bytes.Clone(k), k == nil
	})
	switch {
	case err != nil:
		rep.Problem("%s", boltfile.PlaceOf(err))
		more = behind
	case end:
		rep.inspectEnd(int64(s.revs.Sequence), expected)
	}
	// Stop if the key after a damaged page is too low.
	if len(more) < 8 || revOf(more) <= from {
		return 0
	}
	return revOf(more)
}

// inspectRevision inspects one key and record of the bucket rev and returns the next expected
// revision.
func (rep *Report) inspectRevision(s *snapshot, k, v []byte, expected int64) int64 {
	if len(k) < 8 {
		rep.Problem("bucket rev has a key of %d bytes", len(k))
		return expected
	}
	rev := revOf(k)
	if rev > expected && !rep.gaps {
		rep.Problem("revisions %d to %d are missing", expected, rev-1)
	}
	rep.Records++
	if err := boltfile.RecoverFaults(func() error { return inspectRecord(s, rev, v) }); err != nil {
		rep.Problem("%s", boltfile.PlaceOf(err))
	}
	return max(expected, rev+1)
}

func (rep *Report) inspectEnd(current, expected int64) {
	if rep.gaps {
		return
	}
	if expected <= current {
		rep.Problem("revisions %d to %d are missing", expected, current)
	} else if expected > current+1 {
		rep.Problem("revision %d is above the current revision %d", expected-1, current)
	}
}

func inspectRecord(s *snapshot, rev int64, b []byte) error {
	r, key, err := decodeRecord(rev, b)
	if err != nil {
		return err
	}
	state, err := decodeKeyState(key, s.keys.Get(key))
	switch {
	case err != nil:
		return boltfile.NewDamage("revision %d: key %q has no sound entry", rev, key)
	case state.rev < rev:
		return boltfile.NewDamage("revision %d: the entry of key %q names revision %d", rev, key, state.rev)
	case r.PrevRev > s.compact && s.record(r.PrevRev, key) == nil:
		return boltfile.NewDamage("revision %d (key %q) is missing, revision %d refers to it", r.PrevRev, key, rev)
	case r.Author != 0 && s.author(r.Author) == nil:
		return boltfile.NewDamage("revision %d (key %q) names author %d, who is missing", rev, key, r.Author)
	}
	return nil
}

// inspectKeys inspects 1,000 keys, beginning at from. It skips damaged pages. It returns the key at
// which to continue, or "" at the end.
func (rep *Report) inspectKeys(s *snapshot, from string) (next string) {
	c := s.keys.Cursor()
	behind, err := c.SkipDamage([]byte(from), func(from []byte) {
		k, v := c.Seek(from)
		for n := 0; k != nil && n < replayScanMax; n++ {
			if err := boltfile.RecoverFaults(func() error { return rep.inspectKey(s, k, v) }); err != nil {
				rep.Problem("%s", boltfile.PlaceOf(err))
			}
			k, v = c.Next()
		}
		next = string(k)
	})
	if err != nil {
		rep.Problem("%s", boltfile.PlaceOf(err))
		next = string(behind)
	}
	return next
}

func (rep *Report) inspectKey(s *snapshot, k, v []byte) error {
	state, err := decodeKeyState(k, v)
	if err != nil {
		return err
	}
	if state.live() {
		rep.Objects++
	}
	r, key, err := decodeRecord(state.rev, s.record(state.rev, k))
	if err != nil || !bytes.Equal(key, k) || len(r.JSON) != state.size || flagsOf(&r) != state.flags {
		return boltfile.NewDamage("key %q: revision %d is not its newest version", k, state.rev)
	}
	if state.live() && r.sealed && rep.encrypted != nil {
		rep.encrypted(r.JSON)
	}
	if state.live() && rep.decodes != nil {
		rep.inspectDocument(string(k), &r)
	}
	return nil
}

// inspectDocument checks the JSON of a live object.
func (rep *Report) inspectDocument(key string, r *Record) {
	if r.sealed && rep.sealing == nil {
		rep.Sealed++
		return
	}
	json, err := rep.sealing.copyOf(r, key)
	if err == nil {
		err = rep.decodes(key, json)
	}
	if err != nil {
		rep.Problem("key %q: %v", key, err)
	}
}

// Defrag rewrites the file to remove all free pages. The server must not be running.
func Defrag(path string, seen *Progress) error {
	verdict, err := boltfile.VetToWrite(path, func(p *boltfile.Pages) error { return checkFormat(p, path, 0) })
	if err != nil {
		return err
	}
	if verdict.Log != nil { // Close writes the log's commits to the file
		st, err := Open(path, Options{})
		if err == nil {
			err = st.Close()
		}
		if err != nil {
			return err
		}
	}
	return boltfile.Pack(path, seen)
}

// DiskUsage returns the total size of a data file and its log in bytes.
func DiskUsage(path string) (bytes int64, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	bytes = info.Size()
	if info, err = os.Stat(path + boltfile.LogSuffix); err == nil {
		bytes += info.Size()
	}
	return bytes, nil
}

// History returns the number and the size of the versions that would be deleted by a compaction to
// the newest revision. The server must not be running. It does not count commits that are only in
// the file's log.
func History(path string) (versions, bytes int64, err error) {
	_, err = boltfile.Vet(path, false, nil, func(p *boltfile.Pages) error {
		if err := checkFormat(p, path, 0); err != nil {
			return err
		}
		s := newSnapshot(p, 0)
		c := s.revs.Cursor()
		for k, v := c.First(); k != nil; k, v = c.Next() {
			if s.superseded(k, v) {
				versions++
				bytes += int64(len(k) + len(v))
			}
		}
		return nil
	})
	return versions, bytes, err
}

// superseded reports whether a record is not the newest version of a live object. It returns false
// for a damaged record, because compaction does not delete it.
func (s *snapshot) superseded(place, b []byte) bool {
	if len(place) < 8 {
		return false
	}
	r, key, err := decodeRecord(revOf(place), b)
	if err != nil {
		return false
	}
	state, err := decodeKeyState(key, s.keys.Get(key))
	return err == nil && (state.rev > r.Rev || !state.live())
}

// CompactFile deletes the whole history of a stopped server's file. If the file has no history and
// no log, it is not opened, because opening a backup would change its revisions.
func CompactFile(path string) error {
	versions, _, err := History(path)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(path + boltfile.LogSuffix); err != nil && versions == 0 {
		return nil
	}
	st, err := Open(path, Options{})
	if err != nil {
		return err
	}
	up, err := NewMaintenance(st)
	if err == nil {
		_, err = up.Compact(context.Background(), st.Revision())
	}
	return errors.Join(err, st.Close())
}

// sweepAuthors deletes authors that are no longer used by any record. It does nothing if there are
// only a few authors. The caller must hold the history token.
func (up *Maintenance) sweepAuthors(ctx context.Context, now time.Time) error {
	table := &up.st.authors
	table.mu.RLock()
	many := len(table.byNumber) >= authorsSweep
	table.mu.RUnlock()
	if !many || now.Sub(up.authorsSwept) < authorsEvery {
		return nil
	}
	up.authorsSwept = now
	begun := up.st.Revision()
	named, err := up.namedAuthors(ctx)
	if err != nil {
		return err
	}
	err = up.st.maintain(ctx, func(l *boltfile.WriteTx) error { return up.st.dropAuthors(l, named, begun) })
	if err != nil {
		return errors.Join(err, up.st.readSnapshot(func(s *snapshot) error { table.load(s.authors()); return nil }))
	}
	return nil
}

// namedAuthors returns the authors of all records. It uses short transactions. It fails at the
// first damaged record, because the authors of the rest are then unknown.
func (up *Maintenance) namedAuthors(ctx context.Context) (named map[AuthorID]bool, err error) {
	named = map[AuthorID]bool{}
	from := revKey(0)
	for from != nil && err == nil {
		err = up.st.readSnapshot(func(s *snapshot) error {
			c := s.revs.Cursor()
			k, v := c.Seek(from)
			for n := 0; k != nil && n < replayScanMax; n++ {
				r, _, err := decodeRecord(revOf(k), v)
				if err != nil {
					return err
				}
				named[r.Author] = true
				k, v = c.Next()
			}
			from = append([]byte(nil), k...)
			return ctx.Err()
		})
		if len(from) == 0 {
			from = nil
		}
	}
	return named, err
}

// dropAuthors deletes the authors that are not in named. It keeps authors that have written after
// revision begun. It must run in the writer.
func (st *Store) dropAuthors(l *boltfile.WriteTx, named map[AuthorID]bool, begun int64) error {
	s, err := newStage(l)
	if err != nil {
		return err
	}
	bucket, err := s.guard.Bucket(l, boltfile.InAuthors)
	if err != nil {
		return err
	}
	table := &st.authors
	table.mu.Lock()
	defer table.mu.Unlock()
	for id, e := range table.byNumber {
		if named[id] || e.used > begun {
			continue
		}
		if err := bucket.Remove(authorKey(id)); err != nil {
			return err
		}
		table.remove(e)
	}
	return nil
}
