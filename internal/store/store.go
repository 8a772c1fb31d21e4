// Package store keeps objects in one bbolt file, every version of each under its revision, as etcd's mvcc (server/storage/mvcc) does for
// kube-apiserver: reads at any revision that is not compacted, a log to follow, and writes that are on disk when they are answered.
//
//	st, err := store.Open("apilet.db", store.Options{})
//	doc := []byte(`{"metadata":{"name":"web","resourceVersion":""}}`) // the revision goes where RevAt says, between the quotes
//	rec, err := st.Commit(ctx, store.Change{Op: store.OpCreate, Key: "//pods/default/web", JSON: doc, RevAt: 45})
//
//	var chunk store.Chunk // of a key range, at a revision
//	err = st.Chunk(store.Span{Prefix: "//pods/", Rev: rec.Rev, Items: 500}, &chunk)
//
//	wake := st.Wake("//pods/") // first the channel, then the log: no commit falls between
//	events, upTo, err := st.Events("//pods/", rec.Rev, 100, nil)
//	<-wake // closed at the next commit that touches pods
//
// Keys are /group/resource/namespace/name; values are JSON that the store never reads but for the place where the revision belongs. It knows
// nothing of HTTP or of types, and imports atomicfile alone.
//
// Read store.go first (the buckets, a worked history, Commit and Chunk), then eventlog.go (what watchers read) and layout.go (the bytes).
// upkeep.go compacts, backs up and checks; dbfile.go, pages.go and datafile.go are about a file that a disk has damaged.
//
// A store may be a replica of a log that is kept elsewhere (Options.Replica, replica.go): what Commit is asked for is proposed there, and
// what comes of it arrives through Replicate, under revisions that the log has given.
//
// Invariants: each change has a revision of its own, above all before it, and is seen by readers only when it is durable; a read at a
// revision shows what was current then, for ever or until it is compacted (ErrCompacted); there is one writer, whose commits carry all
// changes that wait (group commit); damaged pages are errors of those who need them (ErrDamaged), and of nobody else.
package store

// This file keeps every version of every object in one bbolt file, each under the revision that wrote it: a store with
// multi-version concurrency control, as etcd's mvcc is for kube-apiserver. It knows keys, revisions and bytes, no Kubernetes.
//
// Three buckets (layout.go reads and writes what is in them). Integers are big endian, CRCs are CRC-32C:
//
//	meta   "format"       8  version of this layout: 1, or 101 for a replica, whose revisions have gaps
//	       "lineage"     16  random; files of different history differ
//	       "compact"      8  CompactRev: reads and watches below it are refused
//	       "swept"        8  how far compaction has deleted; below CompactRev after a crash
//	       "marks"      16n  (unix seconds 8, revision 8): what was current when, one a compaction round
//	       "backup"       8  this file is a backup that nobody has opened yet
//	       "secret/..."      keys that other chapters made
//	       "shared"       8  some revision has several records; see replica.go, as for
//	       "filling"      8  a replica that was being filled when it was left
//
//	rev    key: revision, 8. Its sequence is currentRev. The last key is not: compacting a trailing tombstone would move it back
//	       OFFSET  SIZE  MEANING
//	            0     1  flags: 1 tombstone, 2 deleting (the object carries a deletionTimestamp)
//	            1     8  previous revision of the key, a tombstone's too; 0: none
//	            9     8  CreateRev: the revision that created the object
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
// with exact look-ups: a missing record at or below CompactRev was a tombstone, above it is damage.
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
	"iter"
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
)

// Sentinels of the store, and when they come.
var (
	ErrNotFound       = errors.New("key not found")                      // get, update, delete: no live object has the key
	ErrExists         = errors.New("key already exists")                 // create: a live object has the key
	ErrDeleting       = errors.New("key already exists, being deleted")  // create: a live object has the key and is marked as deleting
	ErrConflict       = errors.New("key has changed")                    // update, delete: the newest revision is not the expected one
	ErrParentMissing  = errors.New("parent not found")                   // create: Change.Parent is no live object
	ErrInDoubt        = errors.New("nobody knows whether it is written") // any write of a replica's: it may have happened, or happen yet
	ErrParentDeleting = errors.New("parent is being deleted")            // create: Change.Parent is marked as deleting
	ErrCompacted      = errors.New("revision has been compacted")        // a read below CompactRev
	errFutureRev      = errors.New("revision is in the future")          // a read above currentRev
	ErrDiskFull       = errors.New("no space left on the disk")          // a write: nothing changed, writes work again once there is room
	errClosed         = errors.New("store is closed")                    // a write after close

	// A write above --quota-backend-bytes. Deletes are taken.
	ErrQuota = errors.New("database space exceeded: the data file holds more than --quota-backend-bytes allows: delete objects, which makes room once history is compacted (--compaction-interval), or start with a higher --quota-backend-bytes")

	// A write while the file's name leads nowhere or elsewhere: what goes to a removed file is lost at exit. Reads go on.
	ErrFileLost = errors.New("the data file was removed or replaced while in use: put it back, or take a backup from the running server and start on that")

	errUnchanged = errors.New("no member of the batch changed anything") // ends a write transaction without a commit
)

const (
	StoreFormat   = 1
	replicaFormat = 101
	backupRevBump = 1_000_000_000 // what a restored backup adds, so that no client mistakes its past for the present

	maxPatience   = 2 * time.Millisecond
	writeBatchMax = 256     // changes in one commit
	chunkItems    = 500     // one read transaction copies out no more than this
	chunkBytes    = 1 << 20 // nor much more than this,
	walkKeysMax   = 10_000  // and passes no more keys than this
	replayScanMax = 1000    // records that one read of the log's older part passes
)

// CommitBounds are the upper bounds in seconds of Stats.CommitBuckets, whose last bucket has none.
var CommitBounds = [...]float64{.0005, .001, .002, .004, .008, .016, .032, .064, .128, .256, .512, 1.024, 4.096}

// Options configure Open.
type Options struct {
	Ephemeral bool         // no fsync; the file is removed at close
	Quota     int64        // bytes; 0 means none
	Fatal     func(error)  // what ends the process when writing cannot go on; nil: one line on stderr and exit 1
	Warn      func(string) // told at opening what deserves a line in the log; may be nil
	Outcome   func(error)  // told after each batch what kept all or some of it from being written, nil when that was nothing; may be nil
	Damaged   func(string) // told of each place where the file is found damaged, once; may be nil
	Replica   *Replica     // the log is elsewhere; nil: it is the file's own
}

// ChangeOp is what a change does to its key.
type ChangeOp int

const (
	OpCreate ChangeOp = iota
	OpUpdate
	OpDelete
)

// A Change is one requested write. JSON is final but for the decimal revision, which the writer inserts at json[RevAt]
// (JSON holds `"resourceVersion":""` there; a tombstone's json too).
type Change struct {
	Op       ChangeOp
	Key      string
	Expect   int64  // OpUpdate, OpDelete: the newest revision of key must be this one
	Parent   string // OpCreate: this key must be live and not deleting; "" for none
	Deleting bool   // the new state carries a deletionTimestamp
	JSON     []byte
	RevAt    int
}

// ---- Opening and closing

// Store is an MVCC store of opaque JSON documents in one bbolt file.
type Store struct {
	dataFile
	Opts  Options
	id    [16]byte
	queue chan *pendingWrite // buffered so that writers gather while a commit runs; never closed

	closed    func() error // called when the file is whole on the disk; may be nil
	closeOnce sync.Once
	closing   chan struct{} // closed by close
	stopped   chan struct{} // closed by the writer when it has ended

	envelopes  sync.Pool
	waiting    revisionWaiters
	shared     atomic.Bool  // some revision has several records
	distrusted atomic.Bool  // see Distrust
	currentRev atomic.Int64 // set under mu, together with what belongs to it
	compactRev atomic.Int64 // set after it is on the disk and before anything is deleted

	mu      sync.RWMutex // guards what follows
	log     eventLog
	tallies map[string]*tally
	total   tally
	stat    Stats
}

type tally struct{ objects, bytes int64 }

// Open opens the file at path, making it if there is none.
func Open(path string, opts Options) (*Store, error) {
	path, err := preparePath(path, opts.Ephemeral)
	if err != nil {
		return nil, err
	}
	if opts.Replica != nil {
		return openReplica(path, opts)
	}
	return open(path, opts)
}

func open(path string, opts Options) (*Store, error) {
	_, err := os.Lstat(path)
	fresh := errors.Is(err, fs.ErrNotExist)
	if fresh {
		err = createFile(path, func(db *bbolt.DB) error { return db.Update(opts.initBuckets) })
	}
	if err != nil && !errors.Is(err, fs.ErrExist) { // it may have come into being just now
		return nil, fmt.Errorf("cannot open %s: %w", path, err)
	}
	verdict, err := vetFile(path, false, nil, func(p *pages) error { return checkFormat(p, path, opts.format()) })
	if err != nil {
		return nil, err
	}
	st := &Store{
		dataFile: dataFile{Path: path, fatal: opts.Fatal, Found: damageBook{report: opts.Damaged}}, Opts: opts, tallies: map[string]*tally{},
		queue: make(chan *pendingWrite, writeBatchMax), closing: make(chan struct{}), stopped: make(chan struct{}),
	}
	st.envelopes.New = func() any { return &pendingWrite{answer: make(chan struct{}, 1)} }
	st.warnAbout(fresh, verdict)
	if err := withoutFaults(st.load); err != nil {
		if st.Db != nil {
			st.Db.Close()
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
	return errors.Join(PutMetaInt(tx, "format", StoreFormat), putLineage(tx))
}

// initBuckets makes a new file's, those of a replica with its log's lineage.
func (o *Options) initBuckets(tx *bbolt.Tx) error {
	if err := initBuckets(tx); err != nil || o.Replica == nil {
		return err
	}
	return errors.Join(PutMetaInt(tx, "format", replicaFormat), tx.Bucket(bucketMeta).Put([]byte("lineage"), o.Replica.Lineage[:]))
}

func (o *Options) format() int64 {
	if o.Replica != nil {
		return replicaFormat
	}
	return StoreFormat
}

func putLineage(tx *bbolt.Tx) error {
	id := make([]byte, 16)
	rand.Read(id)
	return tx.Bucket(bucketMeta).Put([]byte("lineage"), id)
}

// checkFormat refuses what is no file of ours, or not of the format that is wanted (0: any), before anything is written to it.
func checkFormat(p *pages, path string, want int64) error {
	for _, name := range [][]byte{bucketMeta, bucketRev, bucketKeys} {
		if _, ok := p.bucket(name); !ok {
			return fmt.Errorf("%s is a bbolt file of another program: choose another file", path)
		}
	}
	meta, _ := p.bucket(bucketMeta)
	switch format := metaInt(meta, "format"); {
	case want != 0 && format == want, want == 0 && (format == StoreFormat || format == replicaFormat):
	case format == replicaFormat:
		return fmt.Errorf("%s is a replica of what an etcd cluster holds: use it with --etcd-servers, or choose another file", path)
	case format == StoreFormat && want == replicaFormat:
		return fmt.Errorf("%s holds objects of its own, which no etcd cluster has: choose another file for --etcd-servers", path)
	default:
		return fmt.Errorf("%s has format %d and this version of apilet reads format %d: use the version that wrote it", path, format, StoreFormat)
	}
	return nil
}

func (st *Store) warnAbout(fresh bool, verdict fileVerdict) {
	warn := st.Opts.Warn
	if warn == nil {
		return
	}
	if fresh && !st.Opts.Ephemeral {
		warn("made a new, empty data file " + st.Path)
	}
	if !verdict.clean {
		warn(st.Path + " was not closed in peace; its pages have been checked")
	}
	if verdict.oneMeta {
		warn(st.Path + " has lost one of its two meta pages: if it was the newer one, the last commit is gone")
	}
}

// load opens the vetted file and reads what the store keeps in memory. What it cannot read it refuses before it writes anything.
func (st *Store) load() (err error) {
	if err = st.open(st.Opts.Ephemeral || st.Opts.Replica != nil); err != nil {
		return err
	}
	if !st.Opts.Ephemeral {
		if st.file, err = os.Stat(st.Path); err != nil {
			return err
		}
	}
	backup := false
	err = st.View(func(s *Snapshot) error {
		backup = s.meta().get([]byte("backup")) != nil
		return st.countKeys(s)
	})
	if err == nil && backup {
		err = st.update(adoptBackup)
	}
	if err != nil {
		return err
	}
	if st.Opts.Ephemeral && runtime.GOOS != "windows" { // where a file in use cannot be removed
		os.RemoveAll(filepath.Dir(st.Path))
	}
	return st.View(func(s *Snapshot) error {
		copy(st.id[:], s.meta().get([]byte("lineage")))
		st.currentRev.Store(int64(s.Revs.sequence))
		st.compactRev.Store(metaInt(s.meta(), "compact"))
		st.shared.Store(metaInt(s.meta(), "shared") != 0)
		st.log = newEventLog(st.currentRev.Load())
		return nil
	})
}

// adoptBackup makes a backup's file a history of its own at its first opening.
func adoptBackup(tx *bbolt.Tx) error {
	s, err := newStage(tx)
	if err == nil {
		err = s.vetMeta()
	}
	if err != nil {
		return err
	}
	rev := s.rev + backupRevBump
	return errors.Join(tx.Bucket(bucketMeta).Delete([]byte("backup")), putLineage(tx), PutMetaInt(tx, "compact", rev),
		PutMetaInt(tx, "swept", rev), s.revs.SetSequence(uint64(rev)))
}

// countKeys fills the tallies. Keys come in order, so that those of a namespace follow each other and a look-up a namespace is
// enough. A damaged entry counts for nothing; the scrub names it. A damaged page is refused: nobody could say what is missing.
func (st *Store) countKeys(s *Snapshot) error {
	var resource, namespace *tally
	c := s.keys.Cursor()
	prefix := "/" // no key has it: a namespace's prefix has four slashes
	for k, v := c.first(); k != nil; k, v = c.next() {
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
func (st *Store) tally(prefix string) *tally {
	t := st.tallies[prefix]
	if t == nil {
		t = new(tally)
		st.tallies[strings.Clone(prefix)] = t
	}
	return t
}

// Close waits for the commit in progress. Changes that still wait are answered with errClosed. Closing twice does nothing.
func (st *Store) Close() (err error) {
	st.closeOnce.Do(func() {
		close(st.closing)
		<-st.stopped
		var last func(*bbolt.Tx) error
		if !st.Opts.Ephemeral {
			last = func(tx *bbolt.Tx) error { _, err := newStage(tx); return err }
		}
		err = errors.Join(st.syncReplica(), st.dataFile.close(last))
		if err == nil && st.closed != nil && !st.failed.Load() {
			err = st.closed()
		}
		if st.Opts.Ephemeral {
			os.RemoveAll(filepath.Dir(st.Path))
		}
	})
	return err
}

// ---- Writing

// An pendingWrite carries one change, or a piece of maintenance, to the writer and its answer back.
type pendingWrite struct {
	Change
	job    func(*bbolt.Tx) error // maintenance instead of a change
	feed   *feed                 // what a replica takes over, instead of a change
	state  atomic.Int32          // envelopeQueued, then one of the others
	answer chan struct{}         // the writer's one answer; capacity 1, so that it never waits

	resource, namespace string // the key's prefixes
	elsewhere           bool   // another key's record lies under the revision: this one's under a longer key
	was, is             keyState
	replaced            []byte // the JSON of was, a copy
	rec                 Record
	err                 error
}

const (
	envelopeQueued = iota
	envelopeTaken
	envelopeAbandoned
)

// Commit makes one change durable and returns the record as written. ctx ends the wait for the writer's queue only:
// once the writer has taken the change its answer is awaited.
func (st *Store) Commit(ctx context.Context, c Change) (Record, error) {
	if st.Opts.Replica != nil {
		return st.propose(ctx, c)
	}
	e := st.envelopes.Get().(*pendingWrite)
	e.Change = c
	err := st.submit(ctx, e)
	rec := e.rec
	if e.state.Load() == envelopeTaken {
		*e = pendingWrite{answer: e.answer}
		st.envelopes.Put(e)
	}
	return rec, err
}

// maintain runs job in the writer's next transaction.
func (st *Store) maintain(ctx context.Context, job func(*bbolt.Tx) error) error {
	return st.submit(ctx, &pendingWrite{job: job, answer: make(chan struct{}, 1)})
}

// raiseCompact makes rev the CompactRev, on the disk first: a reader that finds something deleted has to find this too.
func (st *Store) raiseCompact(ctx context.Context, rev int64) error {
	err := st.maintain(ctx, func(tx *bbolt.Tx) error { return PutMetaInt(tx, "compact", rev) })
	if err == nil {
		st.compactRev.Store(rev)
	}
	return err
}

func (st *Store) submit(ctx context.Context, e *pendingWrite) error {
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
func (st *Store) write() {
	defer close(st.stopped)
	batch := make([]*pendingWrite, 0, writeBatchMax)
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
func (st *Store) await(batch []*pendingWrite, expected int, patience time.Duration) []*pendingWrite {
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
func (st *Store) gather(batch []*pendingWrite, e *pendingWrite) []*pendingWrite {
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
func (st *Store) commitBatch(batch []*pendingWrite) {
	start, full, refused := time.Now(), false, false
	err := st.update(func(tx *bbolt.Tx) error {
		s, err := newStage(tx)
		if err != nil {
			return err
		}
		if st.Opts.Replica != nil {
			s.last, s.onShared = st.Opts.Replica.Last, func() { st.shared.Store(true) }
		}
		s.full = st.Opts.Quota > 0 && st.Opts.Replica == nil && st.usedBytes(tx) > st.Opts.Quota
		dirty := false
		full = s.full
		for _, e := range batch {
			if e.err = s.apply(e); errors.Is(e.err, ErrDamaged) {
				e.err = st.explain(e.err)
			}
			dirty, refused = dirty || e.err == nil, refused || e.err == ErrQuota
		}
		if !dirty {
			return errUnchanged
		}
		return s.revs.SetSequence(uint64(s.rev))
	})
	st.tellOutcome(err, full, refused)
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

// tellOutcome leaves out what says neither that writing works nor that it does not: a batch of which nothing was left, and one of deletes
// above the quota.
func (st *Store) tellOutcome(err error, full, refused bool) {
	switch {
	case st.Opts.Outcome == nil:
	case refused:
		st.Opts.Outcome(ErrQuota)
	case err == nil && !full, errors.Is(err, ErrDiskFull), errors.Is(err, ErrFileLost):
		st.Opts.Outcome(err)
	}
}

// usedBytes is the file's size without its free pages, as of the last commit.
func (st *Store) usedBytes(tx *bbolt.Tx) int64 { return tx.Size() - st.freeBytes() }

func (st *Store) freeBytes() int64 {
	s := st.Db.Stats()
	return int64(s.FreePageN+s.PendingPageN) * int64(st.Meta.Load().pageSize)
}

// A stage is one write transaction's newest state. What it refuses as damaged it has not begun to change.
type stage struct {
	tx         *bbolt.Tx
	guard      *guard
	revs, keys guardedBucket
	rev        int64 // the newest revision given out
	full       bool  // above the quota
	key        []byte

	last     func(json []byte) ([]byte, int) // a replica's
	onShared func()                          // told that a revision has several records; may be nil
}

func newStage(tx *bbolt.Tx) (*stage, error) {
	p, err := committedPages(tx)
	if err != nil {
		return nil, err
	}
	s := &stage{tx: tx, guard: &guard{p: p, sound: map[uint64]bool{}}}
	if err := errors.Join(s.guard.vetFreelist(), s.guard.vetAll(Tree{p: p, root: p.root})); err != nil {
		return nil, err
	}
	var missing error
	s.revs, err = s.guard.bucket(tx, bucketRev)
	s.keys, missing = s.guard.bucket(tx, bucketKeys)
	if err = errors.Join(err, missing); err != nil {
		return nil, err
	}
	s.revs.FillPercent = 0.95 // it grows at its end only
	s.rev = int64(s.revs.Sequence())
	return s, nil
}

// vetMeta is for those who are going to write into the bucket meta.
func (s *stage) vetMeta() error {
	meta, _ := s.guard.p.bucket(bucketMeta)
	return s.guard.vetAll(meta)
}

func (s *stage) apply(e *pendingWrite) (err error) {
	if e.job != nil {
		if err := s.vetMeta(); err != nil {
			return err
		}
		return e.job(s.tx)
	}
	if e.feed != nil {
		return s.applyFeed(e.feed)
	}
	var ok bool
	if e.resource, e.namespace, ok = keyPrefixes(e.Key); !ok {
		return fmt.Errorf("key %q is not /group/resource/namespace/name", e.Key)
	}
	if e.RevAt < 0 || e.RevAt > len(e.JSON) || int64(len(e.JSON)) > math.MaxInt32-2*keyLengthMax {
		return fmt.Errorf("key %q: no place %d in %d bytes of JSON", e.Key, e.RevAt, len(e.JSON))
	}
	if e.was, err = s.state(e.Key); err != nil {
		return err
	}
	e.rec = Record{Key: e.Key, Rev: s.rev + 1, CreateRev: s.rev + 1, PrevRev: e.was.rev, Deleted: e.Op == OpDelete, Deleting: e.Deleting}
	if e.Op == OpCreate {
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
	v, err := s.keys.get(s.key)
	if v == nil {
		return keyState{}, err
	}
	return decodeKeyState(s.key, v)
}

// checkCreate asks for the parent first: Kubernetes' namespace admission comes before its storage.
func (s *stage) checkCreate(e *pendingWrite) error {
	if e.Parent != "" {
		parent, err := s.state(e.Parent)
		switch {
		case err != nil:
			return err
		case !parent.live():
			return ErrParentMissing
		case parent.flags&flagDeleting != 0:
			return ErrParentDeleting
		}
	}
	switch {
	case e.was.live() && e.was.flags&flagDeleting != 0:
		return ErrDeleting
	case e.was.live():
		return ErrExists
	case s.full:
		return ErrQuota
	}
	return nil
}

// checkChange fills what an update or delete inherits from the version that it replaces.
func (s *stage) checkChange(e *pendingWrite) error {
	switch {
	case !e.was.live():
		return ErrNotFound
	case e.was.rev != e.Expect:
		return ErrConflict
	case s.full && e.Op != OpDelete && !e.Deleting: // what is on its way out makes room
		return ErrQuota
	}
	old, err := s.newest(e)
	if err != nil {
		return err
	}
	e.rec.CreateRev = old.CreateRev
	e.replaced = bytes.Clone(old.JSON)
	return nil
}

// newest is the record that was names, the one to be replaced. Its JSON is the file's.
func (s *stage) newest(e *pendingWrite) (old Record, err error) {
	b, err := s.record(e.was.rev, e.Key)
	if err != nil {
		return old, err
	}
	old, key, err := decodeRecord(e.was.rev, b)
	if err == nil && string(key) != e.Key {
		err = damagedRecord(e.was.rev, nil)
	}
	return old, err
}

// put writes the record and the key's state. One allocation holds both: bbolt needs them until the commit, the event log longer.
func (s *stage) put(e *pendingWrite) error {
	value := encodeRecord(&e.rec, e.JSON, e.RevAt, keyStateSize)
	key := recordKey(value)
	e.is = keyState{rev: e.rec.Rev, size: len(e.rec.JSON), flags: value[0]}
	state := appendKeyState(value[len(value):], key, e.is)
	e.rec.JSON = slices.Clip(e.rec.JSON)
	place := RevKey(e.rec.Rev)
	if e.elsewhere {
		place = longKey(e.rec.Rev, key)
	}
	if err := s.revs.put(place, slices.Clip(value)); err != nil {
		return err
	}
	if err := s.keys.put(key, state); err != nil { // not for damage: the way to the key was vetted when it was looked up
		return err
	}
	s.rev = max(s.rev, e.rec.Rev)
	if e.Op == OpCreate {
		e.rec.PrevRev = 0 // the tombstone before it is the store's affair
	}
	return nil
}

// publish makes a committed batch visible and returns the channels to close.
func (st *Store) publish(batch []*pendingWrite, took time.Duration) (wake []chan struct{}) {
	st.mu.Lock()
	defer st.mu.Unlock()
	rev := st.currentRev.Load()
	for _, e := range batch {
		if e.job != nil || e.err != nil {
			continue
		}
		if e.feed != nil {
			wake, rev = st.publishFeed(e.feed, wake), e.feed.upTo
			continue
		}
		rev = e.rec.Rev
		if ch := st.log.append(e.resource, Event{Record: e.rec, Prev: e.replaced}); ch != nil {
			wake = append(wake, ch)
		}
		st.recount(e)
		st.stat.Writes++
	}
	if ch := st.log.wakeAll(); ch != nil {
		wake = append(wake, ch)
	}
	st.currentRev.Store(rev)
	st.waiting.release(rev)
	st.stat.observeCommit(took)
	return wake
}

// recount brings the tallies up to date. One that falls to nothing goes: namespaces come and go. The caller holds mu.
func (st *Store) recount(e *pendingWrite) {
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

// A Snapshot is one short read transaction. Nothing of it may be kept: its bytes are the file's.
type Snapshot struct {
	*pages
	keys    Tree
	Revs    Tree
	compact int64
	shared  bool // what lies under a revision may be another key's, and sound
	seek    [8]byte
}

func newSnapshot(p *pages, compact int64) *Snapshot {
	s := &Snapshot{pages: p, compact: compact}
	var ok, also bool
	s.keys, ok = p.bucket(bucketKeys)
	s.Revs, also = p.bucket(bucketRev)
	if !ok || !also {
		panicDamaged("a bucket is missing")
	}
	return s
}

// meta is the bucket of that name.
func (s *Snapshot) meta() Tree {
	meta, ok := s.bucket(bucketMeta)
	if !ok {
		panicDamaged("the bucket meta is missing")
	}
	return meta
}

// View runs fn in a read transaction. CompactRev is read after the transaction began: whatever the transaction finds deleted was
// deleted after CompactRev was raised, so what fn checks against it is never too low. Never call view within view.
func (st *Store) View(fn func(*Snapshot) error) error {
	return st.dataFile.view(func(p *pages) error {
		s := newSnapshot(p, st.compactRev.Load())
		s.shared = st.shared.Load()
		return fn(s)
	})
}

// record looks a key's record of a revision up; nil when there is none. What lies there of another key is damage for the caller to tell,
// unless revisions are shared.
func (s *Snapshot) record(rev int64, key []byte) []byte {
	binary.BigEndian.PutUint64(s.seek[:], uint64(rev))
	b := s.Revs.get(s.seek[:])
	if b != nil && bytes.Equal(recordKey(b), key) {
		return b
	}
	if long := s.Revs.get(longKey(rev, key)); long != nil || s.shared {
		return long
	}
	return b
}

// version follows a key's chain to its newest version at or below rev. ok is false when the key did not exist then.
func (s *Snapshot) version(key []byte, state keyState, rev int64) (r Record, ok bool, err error) {
	if state.rev <= rev && !state.live() {
		return r, false, nil
	}
	for at := state.rev; at > 0; {
		b := s.record(at, key)
		if b == nil && at <= s.compact && at != state.rev {
			return r, false, nil // a compacted tombstone
		}
		if b == nil {
			return r, false, damaged("revision %d (key %q) is missing", at, key)
		}
		r, found, err := decodeRecord(at, b)
		if err != nil {
			return r, false, err
		}
		if !bytes.Equal(found, key) {
			return r, false, damaged("revision %d belongs to key %q, not to %q", at, found, key)
		}
		if at <= rev {
			return r, !r.Deleted, nil
		}
		if at = r.PrevRev; r.CreateRev > rev && r.CreateRev < r.Rev && s.record(r.CreateRev, key) != nil {
			at = r.CreateRev // past all the updates of an object that did not exist yet; a replica may never have seen its creation
		}
	}
	return r, false, nil
}

// reach refuses revisions that cannot be read. current is a published revision that the transaction is sure to contain.
func (s *Snapshot) reach(rev, current int64) error {
	if rev < s.compact {
		return ErrCompacted
	}
	if rev > current {
		return errFutureRev
	}
	return nil
}

// each calls visit for the keys with prefix, from start on, until it answers false. It returns the key to go on at, "" at the end.
func (s *Snapshot) each(prefix, start string, visit func(key []byte, state keyState) (bool, error)) (next string, err error) {
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
		k, v = c.next()
	}
	return "", nil
}

// Revision is the newest revision that is durable.
func (st *Store) Revision() int64 { return st.currentRev.Load() } // currentRev: newest committed revision

// Compacted is the compacted revision: a read below it is ErrCompacted.
func (st *Store) Compacted() int64 { return st.compactRev.Load() } // CompactRev: reads below it answer ErrCompacted; 0 at first

// Get returns the newest version of a live object, ErrNotFound otherwise.
func (st *Store) Get(key string) (rec Record, err error) {
	current := st.Revision()
	err = st.View(func(s *Snapshot) error {
		k := []byte(key)
		v := s.keys.get(k)
		if v == nil {
			return ErrNotFound
		}
		state, err := decodeKeyState(k, v)
		if err != nil {
			return err
		}
		r, ok, err := s.version(k, state, current)
		if err == nil && !ok {
			return ErrNotFound
		}
		rec = r.public(key, bytes.Clone(r.JSON))
		return err
	})
	return rec, err
}

// A Span names what Store.Chunk reads: keys with prefix, from start on (inclusive; "" is the first), as they were at rev
// (0: at the newest revision, which is then in Chunk.Rev), at most Items objects and about bytes bytes
// (0: 500 and 1 MiB).
type Span struct {
	Prefix, Start string
	Rev           int64
	Items, bytes  int
}

// A Chunk is what one short read transaction copied out; its records' JSON shares one buffer. Reusable. It may hold fewer
// objects than there is room for, even none: Next alone says whether the end is reached.
type Chunk struct {
	Rev     int64
	Records []Record
	Next    string // where the next chunk starts, "" at the end
	buf     []byte

	keys    []byte // the records' keys, one after the other
	keyEnds []int
	left    int // bytes of the budget
}

// Chunk fills c with live objects in key order. ErrCompacted, errFutureRev.
func (st *Store) Chunk(sp Span, c *Chunk) error {
	current := st.Revision()
	c.reset(&sp, current)
	err := st.View(func(s *Snapshot) (err error) {
		if err := s.reach(c.Rev, current); err != nil {
			return err
		}
		c.Next, err = s.each(sp.Prefix, sp.Start, func(key []byte, state keyState) (bool, error) {
			r, ok, err := s.version(key, state, c.Rev)
			if err != nil || !ok {
				return err == nil, err
			}
			return len(c.Records) < sp.Items && c.add(key, r), nil
		})
		return err
	})
	c.nameRecords()
	return err
}

// All walks the live objects of a span in key order, all at one revision, with one short read transaction a chunk. A record is the
// caller's until the next one is asked for. An error ends the walk: ErrCompacted, errFutureRev, with a nil record. Who works on whole
// chunks, or asks for the revision that they are of, calls Chunk.
func (st *Store) All(sp Span) iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		c := ChunkPool.Get().(*Chunk)
		defer ChunkPool.Put(c)
		for at := sp; ; at.Rev, at.Start = c.Rev, c.Next {
			if err := st.Chunk(at, c); err != nil {
				yield(nil, err)
				return
			}
			for i := range c.Records {
				if !yield(&c.Records[i], nil) {
					return
				}
			}
			if c.Next == "" {
				return
			}
		}
	}
}

// Readable tells whether everything with a prefix can be read.
func (st *Store) Readable(prefix string) error {
	c := &Chunk{}
	for sp := (Span{Prefix: prefix}); ; sp.Start = c.Next {
		if err := st.Chunk(sp, c); err != nil || c.Next == "" {
			return err
		}
	}
}

func (c *Chunk) reset(sp *Span, current int64) {
	if sp.Items <= 0 {
		sp.Items = chunkItems
	}
	if sp.bytes <= 0 {
		sp.bytes = chunkBytes
	}
	if c.Rev = sp.Rev; c.Rev == 0 {
		c.Rev = current
	}
	clear(c.Records) // of what pointed into older buffers
	c.Records, c.buf, c.keys, c.keyEnds = c.Records[:0], c.buf[:0], c.keys[:0], c.keyEnds[:0]
	c.Next, c.left = "", sp.bytes
}

// add copies one object, unless the budget is spent. The first always fits. A full buffer is not grown but followed by a larger one:
// the records before keep theirs.
func (c *Chunk) add(key []byte, r Record) bool {
	if len(r.JSON) > c.left && len(c.Records) > 0 {
		return false
	}
	c.left -= len(r.JSON)
	if cap(c.buf)-len(c.buf) < len(r.JSON) {
		c.buf = make([]byte, 0, max(len(r.JSON), 2*cap(c.buf), 4096))
	}
	at := len(c.buf)
	c.buf = append(c.buf, r.JSON...)
	c.keys = append(c.keys, key...)
	c.keyEnds = append(c.keyEnds, len(c.keys))
	c.Records = append(c.Records, r.public("", c.buf[at:len(c.buf):len(c.buf)]))
	return true
}

// nameRecords makes the records' keys of one string.
func (c *Chunk) nameRecords() {
	all, at := string(c.keys), 0
	for i, end := range c.keyEnds {
		c.Records[i].Key = all[at:end]
		at = end
	}
}

// Count returns how many live objects, and bytes of JSON, a prefix holds now. The prefix is that of a resource
// (`/group/resource/`) or of a namespace in it (`/group/resource/namespace/`). rev is the revision that both belong to.
func (st *Store) Count(prefix string) (objects, bytes, rev int64) {
	st.mu.RLock()
	defer st.mu.RUnlock()
	if t := st.tallies[prefix]; t != nil {
		objects, bytes = t.objects, t.bytes
	}
	return objects, bytes, st.currentRev.Load()
}

// Objects is the number of all live objects.
func (st *Store) Objects() int64 {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.total.objects
}

// CountAt counts the live objects at revision rev among the keys with prefix from start on: a walk over keys alone, but for those
// that have changed since. It takes a transaction for each 10,000 keys.
func (st *Store) CountAt(prefix, start string, rev int64) (n int64, err error) {
	current := st.Revision()
	for {
		err := st.View(func(s *Snapshot) (err error) {
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
func (s *Snapshot) countOne(key []byte, state keyState, rev int64) (int64, error) {
	live, err := state.live(), error(nil)
	if state.rev > rev {
		_, live, err = s.version(key, state, rev)
	}
	if !live {
		return 0, err
	}
	return 1, err
}

// OlderThan returns live objects with prefix, from start on, that nobody has written since revision rev: at most max, and what one
// short transaction finds. next is where to go on, "" at the end.
func (st *Store) OlderThan(prefix string, rev int64, max int, start string) (records []Record, next string, err error) {
	size := 0
	err = st.View(func(s *Snapshot) (err error) {
		next, err = s.each(prefix, start, func(key []byte, state keyState) (bool, error) {
			if !state.live() || state.rev > rev {
				return true, nil
			}
			if len(records) == max || size > chunkBytes {
				return false, nil
			}
			r, ok, err := s.version(key, state, state.rev)
			if ok {
				records = append(records, r.public(string(key), bytes.Clone(r.JSON)))
				size += len(r.JSON)
			}
			return err == nil, err
		})
		return err
	})
	return records, next, err
}

// ---- The event log

// Events returns, in revision order, the events of one resource (`/group/resource/`, or everything) after revision after: at most
// max (and about 1 MiB when they come from disk), but never a part of a revision. upTo is the revision up to which dst is complete. ErrCompacted when after <
// CompactRev, unless the log still knows that nothing of the resource has happened in between: a watcher of a quiet resource
// outlives compactions.
func (st *Store) Events(resource string, after int64, max int, dst []Event) (evs []Event, upTo int64, err error) {
	if max <= 0 {
		max = chunkItems
	}
	st.mu.RLock()
	n, first, known := st.log.since(resource, after)
	if known && (n == 0 || after >= st.Compacted() || first > st.Compacted()) {
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
func (st *Store) replay(resource string, after int64, max int, dst []Event) (evs []Event, upTo int64, err error) {
	current, found := st.Revision(), len(dst)
	upTo = current
	err = st.View(func(s *Snapshot) error {
		if after < s.compact {
			return ErrCompacted
		}
		c, last, scanned, size := s.Revs.Cursor(), after, 0, 0
		for k, v := c.Seek(RevKey(after + 1)); ; k, v = c.next() {
			rev := revOf(k)
			if rev > last+1 && last < current && st.Opts.Replica == nil {
				return damaged("revision %d is missing", last+1)
			}
			if rev > current {
				return nil
			}
			if full := scanned >= replayScanMax || size > chunkBytes || len(dst)-found >= max; full && rev != last {
				upTo = last
				return nil
			}
			last = rev
			scanned++
			r, key, err := decodeRecord(rev, v) // of every resource: a damaged key might be one of ours
			if err != nil {
				return damaged("revision %d is damaged", rev) // without the key: it may be nobody's business who watches
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
	})
	return dst, upTo, err
}

// event copies a record and the JSON that it replaced.
func (s *Snapshot) event(r Record, key []byte) (ev Event, err error) {
	ev.Record = r.public(string(key), bytes.Clone(r.JSON))
	if ev.PrevRev == 0 {
		return ev, nil
	}
	b := s.record(ev.PrevRev, key)
	if b == nil {
		return ev, damaged("revision %d is missing", ev.PrevRev)
	}
	old, _, err := decodeRecord(ev.PrevRev, b)
	if err != nil {
		return ev, damaged("revision %d is damaged", ev.PrevRev)
	}
	ev.Prev = bytes.Clone(old.JSON)
	return ev, nil
}

// Wake returns a channel that is closed at the next commit that touches the resource (everything: at any). Take it before reading
// events.
func (st *Store) Wake(resource string) <-chan struct{} {
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
