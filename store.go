package main

// This file keeps every version of every object in one bbolt file, each under the revision that wrote it: a store with
// multi-version concurrency control, as etcd's mvcc is for kube-apiserver. It knows keys, revisions and bytes, no Kubernetes.
//
// Three buckets (layout.go reads and writes what is in them). Integers are big endian, CRCs are CRC-32C:
//
//	meta   "format"       8  version of this layout, 1
//	       "lineage"     16  random; files of different history differ
//	       "compact"      8  compactRev: reads and watches below it are refused
//	       "swept"        8  how far compaction has deleted; below compactRev after a crash
//	       "marks"      16n  (unix seconds 8, revision 8): what was current when, one a compaction round
//	       "backup"       8  this file is a backup that nobody has opened yet
//	       "secret/..."      keys that other chapters made
//
//	rev    key: revision, 8. Its Sequence() is currentRev. The last key is not: compacting a trailing tombstone would move it back
//	       OFFSET  SIZE  MEANING
//	            0     1  flags: 1 tombstone, 2 deleting (the object carries a deletionTimestamp)
//	            1     8  previous revision of the key, a tombstone's too; 0: none
//	            9     8  createRev: the revision that created the object
//	           17     4  CRC of all the rest, started from the revision: a record in another's place shows
//	           21     2  k, the key's length
//	           23     k  key
//	         23+k        JSON, final but for kind and apiVersion, which reading puts before it
//
//	keys   key: /group/resource/namespace/name, the namespace empty for what is in none
//	            0     8  newest revision of the key
//	            8     4  size of its JSON
//	           12     1  its flags
//	           13     4  CRC of the key and the 13 bytes before
//
// Five writes, and what lies where:
//
//	write                    rev gets                              keys after it
//	create a                 1 {prev 0, create 1}                  a→1
//	create b                 2 {prev 0, create 2}                  a→1 b→2
//	update a                 3 {prev 1, create 1}                  a→3 b→2
//	delete b                 4 {prev 2, create 2, tombstone}       a→3 b→4†
//	create b                 5 {prev 4, create 5}                  a→3 b→5
//
// A LIST at revision 2 walks keys. a→3 is too new, its chain leads to 1. b→5 was created later, so the chain goes on behind the
// creation: 4 is still too new, 2 is it. At revision 4 the chain of b ends on a tombstone: b did not exist. A chain is followed
// with exact look-ups: a missing record at or below compactRev was a tombstone, above it is damage.
//
// Compaction (upkeep.go) to 4 first records compact=4, so that nobody starts to read below. Then it walks revisions 1 to 4: 3 has superseded 1,
// 4 has superseded 2, and 4 is a tombstone itself. It deletes 1, 2 and 4 in that order, in small slices between other writes, and
// records swept=4. Left are 3 and 5: the newest version of every key at or below 4, and all above. Running any part of it again
// finds nothing or the same. Its cost is that of the writes since the last one, whatever the store's size.
//
// One goroutine writes. It takes all requests that wait, checks each one's precondition against the newest state (its earlier
// neighbours included), and commits them with one sync of the disk. What a commit made is published in this order: event log,
// counts and currentRev (one step, under mu), then the answers, then the wake-ups. Readers never see more than the published
// revision, even where the file already has more: whoever lists at R and then asks for the events after R misses none.
//
// Rejected: an index of keys in memory (etcd's; twice as fast at 64 writers, but 100 bytes a key and a scan at start), records
// clustered by key (lists twice as fast, writes more), bbolt's Batch (waits 10 ms when alone).

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// Sentinels of the store, and when they come.
var (
	errNotFound       = errors.New("key not found")                     // get, update, delete: no live object has the key
	errExists         = errors.New("key already exists")                // create: a live object has the key
	errDeleting       = errors.New("key already exists, being deleted") // create: a live object has the key and is marked as deleting
	errConflict       = errors.New("key has changed")                   // update, delete: the newest revision is not the expected one
	errParentMissing  = errors.New("parent not found")                  // create: change.parent is no live object
	errParentDeleting = errors.New("parent is being deleted")           // create: change.parent is marked as deleting
	errCompacted      = errors.New("revision has been compacted")       // a read below compactRev
	errFutureRev      = errors.New("revision is in the future")         // a read above currentRev
	errDiskFull       = errors.New("no space left on the disk")         // a write: nothing changed, writes work again once there is room
	errQuota          = errors.New("database space exceeded")           // a write (but a delete) above --quota-backend-bytes
	errClosed         = errors.New("store is closed")                   // a write after close

	// A write while the file's name leads nowhere or elsewhere: what goes to a removed file is lost at exit. Reads go on.
	errFileLost = errors.New("the data file was removed or replaced while in use: put it back, or take a backup from the running server and start on that")

	errUnchanged = errors.New("no member of the batch changed anything") // ends a write transaction without a commit
)

const (
	storeFormat   = 1
	backupRevBump = 1_000_000_000 // what a restored backup adds, so that no client mistakes its past for the present

	maxPatience   = 2 * time.Millisecond
	writeBatchMax = 256     // changes in one commit
	chunkItems    = 500     // one read transaction copies out no more than this
	chunkBytes    = 1 << 20 // nor much more than this,
	walkKeysMax   = 10_000  // and passes no more keys than this
	replayScanMax = 1000    // records that one read of the log's older part passes
)

// commitBounds are the upper bounds in seconds of storeStats.commitBuckets, whose last bucket has none.
var commitBounds = [...]float64{.0005, .001, .002, .004, .008, .016, .032, .064, .128, .256, .512, 1.024, 4.096}

// storeOptions configure openStore.
type storeOptions struct {
	ephemeral bool         // no fsync; the file is removed at close
	quota     int64        // bytes; 0 means none
	fatal     func(error)  // what ends the process when writing cannot go on; nil: one line on stderr and exit 1
	warn      func(string) // told at opening what deserves a line in the log; may be nil
}

type changeOp int

const (
	opCreate changeOp = iota
	opUpdate
	opDelete
)

// A change is one requested write. json is final but for the decimal revision, which the writer inserts at json[revAt]
// (json holds `"resourceVersion":""` there; a tombstone's json too).
type change struct {
	op       changeOp
	key      string
	expect   int64  // opUpdate, opDelete: the newest revision of key must be this one
	parent   string // opCreate: this key must be live and not deleting; "" for none
	deleting bool   // the new state carries a deletionTimestamp
	json     []byte
	revAt    int
}

// ---- Opening and closing

// store is an MVCC store of opaque JSON documents in one bbolt file.
type store struct {
	path     string
	db       *bbolt.DB
	pageSize int
	file     os.FileInfo // what lies at path; nil when nothing does, being ephemeral
	opts     storeOptions
	id       [16]byte
	queue    chan *envelope // buffered so that writers gather while a commit runs; never closed

	closeOnce sync.Once
	closing   chan struct{} // closed by close
	stopped   chan struct{} // closed by the writer when it has ended

	envelopes  sync.Pool
	currentRev atomic.Int64          // set under mu, together with what belongs to it
	compactRev atomic.Int64          // set after it is on the disk and before anything is deleted
	refusal    atomic.Pointer[error] // why nothing can be written now; nil while it can
	failed     atomic.Bool           // fail was called

	mu      sync.RWMutex // guards what follows
	log     eventLog
	tallies map[string]*tally
	total   tally
	stat    storeStats
}

type tally struct{ objects, bytes int64 }

// openStore opens the file at path, making it if there is none.
func openStore(path string, opts storeOptions) (*store, error) {
	path, err := preparePath(path, opts.ephemeral)
	if err != nil {
		return nil, err
	}
	_, err = os.Lstat(path)
	fresh := errors.Is(err, fs.ErrNotExist)
	if fresh {
		err = createFile(path, func(db *bbolt.DB) error { return db.Update(initBuckets) })
	}
	if err != nil && !errors.Is(err, fs.ErrExist) { // it may have come into being just now
		return nil, fmt.Errorf("cannot open %s: %w", path, err)
	}
	verdict, err := vetFile(path, false, checkFormat)
	if err != nil {
		return nil, err
	}
	st := &store{
		path: path, opts: opts, tallies: map[string]*tally{},
		queue: make(chan *envelope, writeBatchMax), closing: make(chan struct{}), stopped: make(chan struct{}),
	}
	st.envelopes.New = func() any { return &envelope{answer: make(chan struct{}, 1)} }
	st.warnAbout(fresh, verdict)
	if err := withoutFaults(st.load); err != nil {
		if st.db != nil {
			st.db.Close()
		}
		return nil, explainOpen(path, err)
	}
	go st.write() // until close
	return st, nil
}

// preparePath names the file. An ephemeral one is new in the folder for temporary files.
func preparePath(path string, ephemeral bool) (string, error) {
	if !ephemeral {
		return filepath.Abs(path)
	}
	dir, err := os.MkdirTemp("", "apilet-")
	return filepath.Join(dir, "apilet.db"), err
}

func initBuckets(tx *bbolt.Tx) error {
	for _, name := range [][]byte{bucketMeta, bucketRev, bucketKeys} {
		if _, err := tx.CreateBucket(name); err != nil {
			return err
		}
	}
	return errors.Join(putMetaInt(tx, "format", storeFormat), putLineage(tx))
}

func putLineage(tx *bbolt.Tx) error {
	id := make([]byte, 16)
	rand.Read(id)
	return tx.Bucket(bucketMeta).Put([]byte("lineage"), id)
}

// checkFormat refuses what is no file of ours before anything is written to it.
func checkFormat(tx *bbolt.Tx) error {
	for _, name := range [][]byte{bucketMeta, bucketRev, bucketKeys} {
		if tx.Bucket(name) == nil {
			return fmt.Errorf("%s is a bbolt file of another program: choose another file", tx.DB().Path())
		}
	}
	if format := metaInt(tx, "format"); format != storeFormat {
		return fmt.Errorf("%s has format %d and this version of apilet reads format %d: use the version that wrote it", tx.DB().Path(), format, storeFormat)
	}
	return nil
}

func (st *store) warnAbout(fresh bool, verdict fileVerdict) {
	warn := st.opts.warn
	if warn == nil {
		return
	}
	if fresh && !st.opts.ephemeral {
		warn("made a new, empty data file " + st.path)
	}
	if !verdict.clean {
		warn(st.path + " was not closed in peace; its pages have been checked")
	}
	if verdict.oneMeta {
		warn(st.path + " has lost one of its two meta pages: if it was the newer one, the last commit is gone")
	}
}

// load opens the vetted file and reads what the store keeps in memory.
func (st *store) load() (err error) {
	options := dbOptions()
	options.NoSync = st.opts.ephemeral
	if st.db, err = bbolt.Open(st.path, 0o600, options); err != nil {
		return err
	}
	st.pageSize = st.db.Info().PageSize
	if !st.opts.ephemeral {
		if st.file, err = os.Stat(st.path); err != nil {
			return err
		}
	}
	if err := st.adoptBackup(); err != nil {
		return err
	}
	if st.opts.ephemeral && runtime.GOOS != "windows" { // where a file in use cannot be removed
		os.RemoveAll(filepath.Dir(st.path))
	}
	return st.db.View(func(tx *bbolt.Tx) error {
		copy(st.id[:], tx.Bucket(bucketMeta).Get([]byte("lineage")))
		st.currentRev.Store(int64(tx.Bucket(bucketRev).Sequence()))
		st.compactRev.Store(metaInt(tx, "compact"))
		st.log = newEventLog(st.currentRev.Load())
		return st.countKeys(tx)
	})
}

// adoptBackup makes a backup's file a history of its own at its first opening.
func (st *store) adoptBackup() error {
	err := st.db.Update(func(tx *bbolt.Tx) error {
		if tx.Bucket(bucketMeta).Get([]byte("backup")) == nil {
			return errUnchanged
		}
		rev := int64(tx.Bucket(bucketRev).Sequence()) + backupRevBump
		return errors.Join(tx.Bucket(bucketMeta).Delete([]byte("backup")), putLineage(tx), putMetaInt(tx, "compact", rev),
			putMetaInt(tx, "swept", rev), tx.Bucket(bucketRev).SetSequence(uint64(rev)))
	})
	if errors.Is(err, errUnchanged) {
		return nil
	}
	return err
}

// countKeys fills the tallies. Keys come in order, so that those of a namespace follow each other and a look-up a namespace is
// enough. A damaged entry counts for nothing; the scrub names it. More keys than the file has room for are those of pages that refer
// to each other in a circle, which the walk would never leave.
func (st *store) countKeys(tx *bbolt.Tx) error {
	var resource, namespace *tally
	room := tx.Size() / pageElementSize
	c := tx.Bucket(bucketKeys).Cursor()
	prefix := "/" // no key has it: a namespace's prefix has four slashes
	for k, v := c.First(); k != nil; k, v = c.Next() {
		if room--; room < 0 {
			return fmt.Errorf("%w (there is no end of keys)", errDamaged)
		}
		state, err := decodeKeyState(k, v)
		if err != nil || !state.live() {
			continue
		}
		if namespace == nil || len(k) < len(prefix) || string(k[:len(prefix)]) != prefix {
			var resourcePrefix string
			var ok bool
			if resourcePrefix, prefix, ok = keyPrefixes(string(k)); !ok {
				continue
			}
			resource, namespace = st.tally(resourcePrefix), st.tally(prefix)
		}
		for _, t := range [...]*tally{resource, namespace, &st.total} {
			t.objects++
			t.bytes += int64(state.size)
		}
	}
	return nil
}

// tally finds or makes the tally of a prefix. The caller holds mu, or is opening.
func (st *store) tally(prefix string) *tally {
	t := st.tallies[prefix]
	if t == nil {
		t = new(tally)
		st.tallies[strings.Clone(prefix)] = t
	}
	return t
}

// close waits for the commit in progress and writes the freelist, so that the next opening need not scan the file. Changes that
// still wait are answered with errClosed. Closing twice does nothing.
func (st *store) close() (err error) {
	st.closeOnce.Do(func() {
		close(st.closing)
		<-st.stopped
		if st.failed.Load() {
			return // bbolt may wait for ever for the transaction that failed; the process is on its way out
		}
		if st.refusal.Load() == nil && !st.opts.ephemeral {
			st.db.NoFreelistSync = false
			err = withoutFaults(func() error { return st.db.Update(func(*bbolt.Tx) error { return nil }) })
		}
		if err != nil && isDiskFull(err) {
			err = nil // all is there; only the next opening scans
		}
		err = errors.Join(err, st.db.Close())
		if st.opts.ephemeral {
			os.RemoveAll(filepath.Dir(st.path))
		}
	})
	return err
}

// ---- Writing

// An envelope carries one change, or a piece of maintenance, to the writer and its answer back.
type envelope struct {
	change
	job    func(*bbolt.Tx) error // maintenance instead of a change
	state  atomic.Int32          // envelopeQueued, then one of the others
	answer chan struct{}         // the writer's one answer; capacity 1, so that it never waits

	resource, namespace string // the key's prefixes
	was, is             keyState
	replaced            []byte // the JSON of was, a copy
	rec                 record
	err                 error
}

const (
	envelopeQueued = iota
	envelopeTaken
	envelopeAbandoned
)

// commit makes one change durable and returns the record as written. ctx ends the wait for the writer's queue only:
// once the writer has taken the change its answer is awaited.
func (st *store) commit(ctx context.Context, c change) (record, error) {
	e := st.envelopes.Get().(*envelope)
	e.change = c
	err := st.submit(ctx, e)
	rec := e.rec
	if e.state.Load() == envelopeTaken {
		*e = envelope{answer: e.answer}
		st.envelopes.Put(e)
	}
	return rec, err
}

// maintain runs job in the writer's next transaction.
func (st *store) maintain(ctx context.Context, job func(*bbolt.Tx) error) error {
	return st.submit(ctx, &envelope{job: job, answer: make(chan struct{}, 1)})
}

// raiseCompact makes rev the compactRev, on the disk first: a reader that finds something deleted has to find this too.
func (st *store) raiseCompact(ctx context.Context, rev int64) error {
	err := st.maintain(ctx, func(tx *bbolt.Tx) error { return putMetaInt(tx, "compact", rev) })
	if err == nil {
		st.compactRev.Store(rev)
	}
	return err
}

func (st *store) submit(ctx context.Context, e *envelope) error {
	select {
	case st.queue <- e:
	case <-ctx.Done():
		return ctx.Err()
	case <-st.closing:
		return errClosed
	}
	var err error
	select {
	case <-e.answer:
		return e.err
	case <-ctx.Done():
		err = ctx.Err()
	case <-st.stopped:
		err = errClosed
	}
	if e.state.CompareAndSwap(envelopeQueued, envelopeAbandoned) {
		return err
	}
	<-e.answer
	return e.err
}

// write is the writer goroutine.
func (st *store) write() {
	defer close(st.stopped)
	batch := make([]*envelope, 0, writeBatchMax)
	var p pace
	for {
		select {
		case e := <-st.queue:
			expected, patience := p.next()
			batch = st.gather(batch[:0], e)
			if len(batch) < expected {
				batch = st.await(batch, expected, patience)
			}
			start := time.Now()
			st.commitBatch(batch)
			p = pace{size: len(batch), waiting: len(st.queue), ended: time.Now(), took: time.Since(start)}
			clear(batch)
		case <-st.closing:
			return
		}
	}
}

// A pace remembers the last commit. Whoever it answered is likely to write again at once, and whoever came meanwhile is waiting: if the
// next commit started with the latter alone, the two groups would take turns for ever, each commit with half of the writers. So the
// next one waits for both, for a part of what a commit costs at most.
type pace struct {
	size, waiting int
	ended         time.Time
	took          time.Duration
}

// next says how many changes to wait for, and how long.
func (p *pace) next() (expected int, patience time.Duration) {
	patience = min(p.took/3, maxPatience) - time.Since(p.ended)
	if patience <= 0 {
		return 0, 0
	}
	return min(p.size+p.waiting, writeBatchMax), patience
}

// await adds to a batch what comes until it has the expected size or patience ends.
func (st *store) await(batch []*envelope, expected int, patience time.Duration) []*envelope {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for len(batch) < expected {
		select {
		case e := <-st.queue:
			batch = st.gather(batch, e)
		case <-timer.C:
			return batch
		case <-st.closing:
			return batch
		}
	}
	return batch
}

// gather takes what waits, without waiting for more: an idle store answers a lone writer at once, a busy one finds the next batch
// grown while the last one was on its way to the disk.
func (st *store) gather(batch []*envelope, e *envelope) []*envelope {
	for {
		if e.state.CompareAndSwap(envelopeQueued, envelopeTaken) {
			batch = append(batch, e)
		}
		if len(batch) == writeBatchMax {
			return batch
		}
		select {
		case e = <-st.queue:
		default:
			return batch
		}
	}
}

// commitBatch commits, publishes and answers. A member that fails its precondition fails alone.
func (st *store) commitBatch(batch []*envelope) {
	start := time.Now()
	err := st.update(func(tx *bbolt.Tx) error {
		s := newStage(tx)
		s.full = st.opts.quota > 0 && st.usedBytes(tx) > st.opts.quota
		dirty := false
		for _, e := range batch {
			e.err = s.apply(e)
			dirty = dirty || e.err == nil
		}
		if !dirty {
			return errUnchanged
		}
		return s.revs.SetSequence(uint64(s.rev))
	})
	switch {
	case errors.Is(err, errUnchanged):
		err = nil
	case err != nil:
		for _, e := range batch {
			e.err = err
		}
	}
	var wake []chan struct{}
	if err == nil {
		wake = st.publish(batch, time.Since(start))
	}
	for _, e := range batch {
		e.answer <- struct{}{}
	}
	for _, ch := range wake {
		close(ch)
	}
}

// update is bbolt's Update with two differences: a panic is not rolled back (that would walk the damaged file), and an error of the
// commit itself, but for a full disk, ends the process. After a failed sync nobody knows what is on the disk, while the memory map
// may show the new state already.
func (st *store) update(fn func(*bbolt.Tx) error) error {
	if err := st.writable(); err != nil { // looking for the file takes a microsecond, each of the commit's syncs some hundred
		return err
	}
	committing := false
	before := st.currentRev.Load()
	err := withoutFaults(func() error {
		tx, err := st.db.Begin(true)
		if err != nil {
			return err
		}
		if err := fn(tx); err != nil {
			tx.Rollback()
			return err
		}
		committing = true
		return tx.Commit()
	})
	switch {
	case err == nil:
		return nil
	case committing && isDiskFull(err) && st.sequence() == before:
		return errDiskFull
	case committing, errors.Is(err, errDamaged):
		st.fail(fmt.Errorf("cannot write %s: %w", st.path, err))
	}
	return err
}

// sequence is the file's currentRev, -1 when unknown.
func (st *store) sequence() (rev int64) {
	rev = -1
	withoutFaults(func() error {
		return st.db.View(func(tx *bbolt.Tx) error {
			rev = int64(tx.Bucket(bucketRev).Sequence())
			return nil
		})
	})
	return rev
}

// fail ends the process.
func (st *store) fail(err error) {
	st.refusal.Store(&err)
	st.failed.Store(true)
	if st.opts.fatal != nil {
		st.opts.fatal(err)
		return
	}
	fmt.Fprintln(os.Stderr, "apilet:", err)
	os.Exit(1)
}

// usedBytes is the file's size without its free pages, as of the last commit.
func (st *store) usedBytes(tx *bbolt.Tx) int64 { return tx.Size() - st.freeBytes() }

func (st *store) freeBytes() int64 {
	s := st.db.Stats()
	return int64(s.FreePageN+s.PendingPageN) * int64(st.pageSize)
}

// A stage is one write transaction's newest state.
type stage struct {
	tx         *bbolt.Tx
	revs, keys *bbolt.Bucket
	rev        int64 // the newest revision given out
	full       bool  // above the quota
	key        []byte
}

func newStage(tx *bbolt.Tx) *stage {
	s := &stage{tx: tx, revs: tx.Bucket(bucketRev), keys: tx.Bucket(bucketKeys)}
	s.revs.FillPercent = 0.95 // it grows at its end only
	s.rev = int64(s.revs.Sequence())
	return s
}

func (s *stage) apply(e *envelope) (err error) {
	if e.job != nil {
		return e.job(s.tx)
	}
	var ok bool
	if e.resource, e.namespace, ok = keyPrefixes(e.key); !ok {
		return fmt.Errorf("key %q is not /group/resource/namespace/name", e.key)
	}
	if e.revAt < 0 || e.revAt > len(e.json) || int64(len(e.json)) > math.MaxInt32-2*keyLengthMax {
		return fmt.Errorf("key %q: no place %d in %d bytes of JSON", e.key, e.revAt, len(e.json))
	}
	if e.was, err = s.state(e.key); err != nil {
		return err
	}
	e.rec = record{key: e.key, rev: s.rev + 1, createRev: s.rev + 1, prevRev: e.was.rev, deleted: e.op == opDelete, deleting: e.deleting}
	if e.op == opCreate {
		err = s.checkCreate(e)
	} else {
		err = s.checkChange(e)
	}
	if err != nil {
		return err
	}
	return s.put(e)
}

// state returns what keys says of a key; the zero state when nothing.
func (s *stage) state(key string) (keyState, error) {
	s.key = append(s.key[:0], key...)
	v := s.keys.Get(s.key)
	if v == nil {
		return keyState{}, nil
	}
	return decodeKeyState(s.key, v)
}

// checkCreate asks for the parent first: Kubernetes' namespace admission comes before its storage.
func (s *stage) checkCreate(e *envelope) error {
	if e.parent != "" {
		parent, err := s.state(e.parent)
		switch {
		case err != nil:
			return err
		case !parent.live():
			return errParentMissing
		case parent.flags&flagDeleting != 0:
			return errParentDeleting
		}
	}
	switch {
	case e.was.live() && e.was.flags&flagDeleting != 0:
		return errDeleting
	case e.was.live():
		return errExists
	case s.full:
		return errQuota
	}
	return nil
}

// checkChange fills what an update or delete inherits from the version that it replaces.
func (s *stage) checkChange(e *envelope) error {
	switch {
	case !e.was.live():
		return errNotFound
	case e.was.rev != e.expect:
		return errConflict
	case s.full && e.op != opDelete && !e.deleting: // what is on its way out makes room
		return errQuota
	}
	old, key, err := decodeRecord(e.was.rev, s.revs.Get(revKey(e.was.rev)))
	if err != nil {
		return err
	}
	if string(key) != e.key {
		return damagedRecord(e.was.rev, nil)
	}
	e.rec.createRev = old.createRev
	e.replaced = bytes.Clone(old.json)
	return nil
}

// put writes the record and the key's state. One allocation holds both: bbolt needs them until the commit, the event log longer.
func (s *stage) put(e *envelope) error {
	value := encodeRecord(&e.rec, e.json, e.revAt, keyStateSize)
	key := recordKey(value)
	e.is = keyState{rev: e.rec.rev, size: len(e.rec.json), flags: value[0]}
	state := appendKeyState(value[len(value):], key, e.is)
	e.rec.json = slices.Clip(e.rec.json)
	if err := s.revs.Put(revKey(e.rec.rev), slices.Clip(value)); err != nil {
		return err
	}
	if err := s.keys.Put(key, state); err != nil {
		return err
	}
	s.rev = e.rec.rev
	if e.op == opCreate {
		e.rec.prevRev = 0 // the tombstone before it is the store's affair
	}
	return nil
}

// publish makes a committed batch visible and returns the channels to close.
func (st *store) publish(batch []*envelope, took time.Duration) (wake []chan struct{}) {
	st.mu.Lock()
	defer st.mu.Unlock()
	rev := st.currentRev.Load()
	for _, e := range batch {
		if e.job != nil || e.err != nil {
			continue
		}
		rev = e.rec.rev
		if ch := st.log.append(e.resource, event{record: e.rec, prev: e.replaced}); ch != nil {
			wake = append(wake, ch)
		}
		st.recount(e)
		st.stat.writes++
	}
	if ch := st.log.wakeAll(); ch != nil {
		wake = append(wake, ch)
	}
	st.currentRev.Store(rev)
	st.stat.observeCommit(took)
	return wake
}

// recount brings the tallies up to date. One that falls to nothing goes: namespaces come and go. The caller holds mu.
func (st *store) recount(e *envelope) {
	var d tally
	if e.was.live() {
		d.objects, d.bytes = -1, -int64(e.was.size)
	}
	if e.is.live() {
		d.objects, d.bytes = d.objects+1, d.bytes+int64(e.is.size)
	}
	st.total.objects, st.total.bytes = st.total.objects+d.objects, st.total.bytes+d.bytes
	for _, prefix := range [...]string{e.resource, e.namespace} {
		t := st.tally(prefix)
		t.objects, t.bytes = t.objects+d.objects, t.bytes+d.bytes
		if t.objects == 0 {
			delete(st.tallies, prefix)
		}
	}
}

// ---- Reading

// A snapshot is one short read transaction. Nothing of it may be kept: its bytes are the file's.
type snapshot struct {
	tx      *bbolt.Tx
	keys    *bbolt.Bucket
	revs    *bbolt.Bucket
	compact int64
	byRev   *bbolt.Cursor
	seek    [8]byte
}

func newSnapshot(tx *bbolt.Tx, compact int64) *snapshot {
	s := &snapshot{tx: tx, keys: tx.Bucket(bucketKeys), revs: tx.Bucket(bucketRev), compact: compact}
	s.byRev = s.revs.Cursor()
	return s
}

// view runs fn in a read transaction. compactRev is read after the transaction began: whatever the transaction finds deleted was
// deleted after compactRev was raised, so what fn checks against it is never too low. Never call view within view: a commit that
// has to map the file anew would wait for the outer, and the inner for the commit.
func (st *store) view(fn func(*snapshot) error) error {
	err := withoutFaults(func() error {
		return st.db.View(func(tx *bbolt.Tx) error { return fn(newSnapshot(tx, st.compactRev.Load())) })
	})
	if errors.Is(err, berrors.ErrDatabaseNotOpen) {
		return errClosed
	}
	if errors.Is(err, errDamaged) {
		st.fail(fmt.Errorf("cannot read %s: %w", st.path, err))
	}
	return err
}

// record looks a revision up; nil when there is none. It is a seek and a comparison: a seek alone would find a neighbour.
func (s *snapshot) record(rev int64) []byte {
	binary.BigEndian.PutUint64(s.seek[:], uint64(rev))
	k, v := s.byRev.Seek(s.seek[:])
	if !bytes.Equal(k, s.seek[:]) {
		return nil
	}
	return v
}

// version follows a key's chain to its newest version at or below rev. ok is false when the key did not exist then.
func (s *snapshot) version(key []byte, state keyState, rev int64) (r record, ok bool, err error) {
	if state.rev <= rev && !state.live() {
		return r, false, nil
	}
	for at := state.rev; at > 0; {
		b := s.record(at)
		if b == nil && at <= s.compact && at != state.rev {
			return r, false, nil // a compacted tombstone
		}
		if b == nil {
			return r, false, fmt.Errorf("revision %d (key %q) is missing", at, key)
		}
		r, found, err := decodeRecord(at, b)
		if err != nil {
			return r, false, err
		}
		if !bytes.Equal(found, key) {
			return r, false, fmt.Errorf("revision %d belongs to key %q, not to %q", at, found, key)
		}
		if at <= rev {
			return r, !r.deleted, nil
		}
		if at = r.prevRev; r.createRev > rev && r.createRev < r.rev {
			at = r.createRev // past all the updates of an object that did not exist yet
		}
	}
	return r, false, nil
}

// reach refuses revisions that cannot be read. current is a published revision that the transaction is sure to contain.
func (s *snapshot) reach(rev, current int64) error {
	if rev < s.compact {
		return errCompacted
	}
	if rev > current {
		return errFutureRev
	}
	return nil
}

// each calls visit for the keys with prefix, from start on, until it answers false. It returns the key to go on at, "" at the end.
func (s *snapshot) each(prefix, start string, visit func(key []byte, state keyState) (bool, error)) (next string, err error) {
	c := s.keys.Cursor()
	k, v := c.Seek([]byte(max(prefix, start)))
	for n := 0; k != nil && strings.HasPrefix(string(k), prefix); n++ {
		if n == walkKeysMax {
			return string(k), nil
		}
		state, err := decodeKeyState(k, v)
		if err != nil {
			return "", err
		}
		if more, err := visit(k, state); !more || err != nil {
			return string(k), err
		}
		k, v = c.Next()
	}
	return "", nil
}

func (st *store) revision() int64  { return st.currentRev.Load() } // currentRev: newest committed revision
func (st *store) compacted() int64 { return st.compactRev.Load() } // compactRev: reads below it answer errCompacted; 0 at first

// get returns the newest version of a live object, errNotFound otherwise.
func (st *store) get(key string) (rec record, err error) {
	current := st.revision()
	err = st.view(func(s *snapshot) error {
		k := []byte(key)
		v := s.keys.Get(k)
		if v == nil {
			return errNotFound
		}
		state, err := decodeKeyState(k, v)
		if err != nil {
			return err
		}
		r, ok, err := s.version(k, state, current)
		if err == nil && !ok {
			return errNotFound
		}
		rec = r.public(key, bytes.Clone(r.json))
		return err
	})
	return rec, err
}

// A span names what chunk reads: keys with prefix, from start on (inclusive; "" is the first), as they were at rev
// (0: at the newest revision, which chunk then fills into chunk.rev), at most items objects and about bytes bytes
// (0: 500 and 1 MiB).
type span struct {
	prefix, start string
	rev           int64
	items, bytes  int
}

// A chunk is what one short read transaction copied out; its records' json slices share buf. Reusable. It may hold fewer
// objects than there is room for, even none: next alone says whether the end is reached.
type chunk struct {
	rev     int64
	records []record
	next    string // where the next chunk starts, "" at the end
	buf     []byte

	keys    []byte // the records' keys, one after the other
	keyEnds []int
	left    int // bytes of the budget
}

// chunk fills c with live objects in key order. errCompacted, errFutureRev.
func (st *store) chunk(sp span, c *chunk) error {
	current := st.revision()
	c.reset(&sp, current)
	err := st.view(func(s *snapshot) (err error) {
		if err := s.reach(c.rev, current); err != nil {
			return err
		}
		c.next, err = s.each(sp.prefix, sp.start, func(key []byte, state keyState) (bool, error) {
			r, ok, err := s.version(key, state, c.rev)
			if err != nil || !ok {
				return err == nil, err
			}
			return len(c.records) < sp.items && c.add(key, r), nil
		})
		return err
	})
	c.nameRecords()
	return err
}

func (c *chunk) reset(sp *span, current int64) {
	if sp.items <= 0 {
		sp.items = chunkItems
	}
	if sp.bytes <= 0 {
		sp.bytes = chunkBytes
	}
	if c.rev = sp.rev; c.rev == 0 {
		c.rev = current
	}
	clear(c.records) // of what pointed into older buffers
	c.records, c.buf, c.keys, c.keyEnds = c.records[:0], c.buf[:0], c.keys[:0], c.keyEnds[:0]
	c.next, c.left = "", sp.bytes
}

// add copies one object, unless the budget is spent. The first always fits. A full buffer is not grown but followed by a larger one:
// the records before keep theirs.
func (c *chunk) add(key []byte, r record) bool {
	if len(r.json) > c.left && len(c.records) > 0 {
		return false
	}
	c.left -= len(r.json)
	if cap(c.buf)-len(c.buf) < len(r.json) {
		c.buf = make([]byte, 0, max(len(r.json), 2*cap(c.buf), 4096))
	}
	at := len(c.buf)
	c.buf = append(c.buf, r.json...)
	c.keys = append(c.keys, key...)
	c.keyEnds = append(c.keyEnds, len(c.keys))
	c.records = append(c.records, r.public("", c.buf[at:len(c.buf):len(c.buf)]))
	return true
}

// nameRecords makes the records' keys of one string.
func (c *chunk) nameRecords() {
	all, at := string(c.keys), 0
	for i, end := range c.keyEnds {
		c.records[i].key = all[at:end]
		at = end
	}
}

// count returns how many live objects, and bytes of JSON, a prefix holds now. The prefix is that of a resource
// (`/group/resource/`) or of a namespace in it (`/group/resource/namespace/`). rev is the revision that both belong to.
func (st *store) count(prefix string) (objects, bytes, rev int64) {
	st.mu.RLock()
	defer st.mu.RUnlock()
	if t := st.tallies[prefix]; t != nil {
		objects, bytes = t.objects, t.bytes
	}
	return objects, bytes, st.currentRev.Load()
}

// countAt counts the live objects at revision rev among the keys with prefix from start on: a walk over keys alone, but for those
// that have changed since. It takes a transaction for each 10,000 keys.
func (st *store) countAt(prefix, start string, rev int64) (n int64, err error) {
	current := st.revision()
	for {
		err := st.view(func(s *snapshot) (err error) {
			if err := s.reach(rev, current); err != nil {
				return err
			}
			start, err = s.each(prefix, start, func(key []byte, state keyState) (bool, error) {
				one, err := s.countOne(key, state, rev)
				n += one
				return err == nil, err
			})
			return err
		})
		if err != nil || start == "" {
			return n, err
		}
	}
}

// countOne answers 1 for a key that was live at a revision. What has not changed since need not be looked up.
func (s *snapshot) countOne(key []byte, state keyState, rev int64) (int64, error) {
	live, err := state.live(), error(nil)
	if state.rev > rev {
		_, live, err = s.version(key, state, rev)
	}
	if !live {
		return 0, err
	}
	return 1, err
}

// olderThan returns live objects with prefix, from start on, that nobody has written since revision rev: at most max, and what one
// short transaction finds. next is where to go on, "" at the end.
func (st *store) olderThan(prefix string, rev int64, max int, start string) (records []record, next string, err error) {
	size := 0
	err = st.view(func(s *snapshot) (err error) {
		next, err = s.each(prefix, start, func(key []byte, state keyState) (bool, error) {
			if !state.live() || state.rev > rev {
				return true, nil
			}
			if len(records) == max || size > chunkBytes {
				return false, nil
			}
			r, ok, err := s.version(key, state, state.rev)
			if ok {
				records = append(records, r.public(string(key), bytes.Clone(r.json)))
				size += len(r.json)
			}
			return err == nil, err
		})
		return err
	})
	return records, next, err
}

// ---- The event log

// events returns, in revision order, the events of one resource (`/group/resource/`, or everything) after revision after: at most
// max (and about 1 MiB when they come from disk). upTo is the revision up to which dst is complete. errCompacted when after <
// compactRev, unless the log still knows that nothing of the resource has happened in between: a watcher of a quiet resource
// outlives compactions.
func (st *store) events(resource string, after int64, max int, dst []event) (evs []event, upTo int64, err error) {
	if max <= 0 {
		max = chunkItems
	}
	st.mu.RLock()
	n, first, known := st.log.since(resource, after)
	if known && (n == 0 || after >= st.compacted() || first > st.compacted()) {
		dst, upTo = st.log.read(resource, n, max, dst)
		st.mu.RUnlock()
		if upTo < after {
			upTo = after
		}
		return dst, upTo, nil
	}
	st.mu.RUnlock()
	return st.replay(resource, after, max, dst)
}

// replay reads what has left the ring from the file.
func (st *store) replay(resource string, after int64, max int, dst []event) (evs []event, upTo int64, err error) {
	current, found := st.revision(), len(dst)
	upTo = current
	err = st.view(func(s *snapshot) error {
		if after < s.compact {
			return errCompacted
		}
		c, scanned, size := s.revs.Cursor(), int64(0), 0
		for k, v := c.Seek(revKey(after + 1)); after+scanned < current; k, v = c.Next() {
			rev := after + scanned + 1
			if !bytes.Equal(k, revKey(rev)) {
				return fmt.Errorf("revision %d is missing", rev)
			}
			if scanned == replayScanMax || size > chunkBytes || len(dst)-found == max {
				upTo = rev - 1
				return nil
			}
			scanned++
			r, key, err := decodeRecord(rev, v) // of every resource: a damaged key might be one of ours
			if err != nil {
				return err
			}
			if !strings.HasPrefix(string(key), resource) {
				continue
			}
			ev, err := s.event(r, key)
			if err != nil {
				return err
			}
			size += ev.size()
			dst = append(dst, ev)
		}
		return nil
	})
	return dst, upTo, err
}

// event copies a record and the JSON that it replaced.
func (s *snapshot) event(r record, key []byte) (ev event, err error) {
	ev.record = r.public(string(key), bytes.Clone(r.json))
	if ev.prevRev == 0 {
		return ev, nil
	}
	b := s.record(ev.prevRev)
	if b == nil {
		return ev, fmt.Errorf("revision %d (key %q) is missing", ev.prevRev, key)
	}
	old, _, err := decodeRecord(ev.prevRev, b)
	ev.prev = bytes.Clone(old.json)
	return ev, err
}

// wake returns a channel that is closed at the next commit that touches the resource (everything: at any). Take it before reading
// events.
func (st *store) wake(resource string) <-chan struct{} {
	st.mu.RLock()
	if t := st.log.topics[resource]; t != nil && t.wake != nil {
		defer st.mu.RUnlock()
		return t.wake
	}
	st.mu.RUnlock()
	st.mu.Lock()
	defer st.mu.Unlock()
	t := st.log.topic(resource)
	if t.wake == nil {
		t.wake = make(chan struct{})
	}
	return t.wake
}

// ---- What else is kept and told

// writable returns why nothing can be written now, nil while it can.
func (st *store) writable() error {
	if refusal := st.refusal.Load(); refusal != nil {
		return *refusal
	}
	if st.file == nil {
		return nil
	}
	if info, err := os.Stat(st.path); err != nil || !os.SameFile(info, st.file) {
		return errFileLost
	}
	return nil
}

// secret returns the value kept under name in meta, made by fresh at the first call and durable before it is returned.
func (st *store) secret(name string, fresh func() []byte) (value []byte, err error) {
	key := []byte("secret/" + name)
	err = st.view(func(s *snapshot) error {
		value = bytes.Clone(s.tx.Bucket(bucketMeta).Get(key))
		return nil
	})
	if err != nil || value != nil {
		return value, err
	}
	value = fresh()
	err = st.maintain(context.Background(), func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketMeta)
		if v := b.Get(key); v != nil { // somebody was faster
			value = bytes.Clone(v)
			return nil
		}
		return b.Put(key, value)
	})
	return value, err
}

// lineage tells files of different history apart (a restored backup draws a new one).
func (st *store) lineage() [16]byte { return st.id }

// storeStats is what the store has to say to metrics.
type storeStats struct {
	revision, compactRev int64
	fileBytes, freeBytes int64 // pages in use or free, and the free ones of them
	objects, objectBytes int64 // live
	commits, writes      int64 // transactions, and the changes in them
	commitSeconds        float64
	commitBuckets        [len(commitBounds) + 1]int64 // not cumulative
	ringEvents, ringSize int64
	ringOldest           int64
}

func (s *storeStats) observeCommit(took time.Duration) {
	s.commits++
	s.commitSeconds += took.Seconds()
	n, _ := slices.BinarySearch(commitBounds[:], took.Seconds())
	s.commitBuckets[n]++
}

func (st *store) stats() storeStats {
	var size int64
	st.view(func(s *snapshot) error {
		size = s.tx.Size()
		return nil
	})
	st.mu.RLock()
	defer st.mu.RUnlock()
	s := st.stat
	s.revision, s.compactRev = st.revision(), st.compacted()
	s.fileBytes, s.freeBytes = size, st.freeBytes()
	s.objects, s.objectBytes = st.total.objects, st.total.bytes
	s.ringEvents, s.ringSize, s.ringOldest = st.log.newest-st.log.oldest+1, int64(st.log.bytes), st.log.oldest
	return s
}
