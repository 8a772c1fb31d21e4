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
//	log := st.Follow("//pods/") // what there is, then what happens
//	err = log.CatchUp(ctx, func() { clear(pods) }, func(ev *store.Event) { pods[ev.Key] = ev.Rev })
//	log.Wait(ctx, time.Time{}, nil) // for the next commit that touches pods
//
// Keys are /group/resource/namespace/name; values are JSON that the store never reads but for the place where the revision belongs. It knows
// nothing of HTTP or of types, and imports atomicfile alone.
//
// Read store.go first (the buckets, a worked history), then write.go (Commit), read.go (Chunk), finger.go (how the next record is found),
// waypoints.go (reads of what was long ago), room.go (a full disk), eventlog.go (what watchers read), follow.go (how to keep up with it),
// authors.go (who wrote what, and when) and layout.go (the bytes). upkeep.go compacts, backs up and checks; discard.go deletes what is damaged;
// wal.go is the log that makes a commit durable; dbfile.go, pages.go and datafile.go are about a file that a disk has damaged.
//
// A store may be a replica of a log that is kept elsewhere (Options.Replica, replica.go): what Commit is asked for is proposed there, and
// what comes of it arrives through Replicate, under revisions that the log has given.
//
// Invariants: each change has a revision of its own, above all before it, and is seen by readers only when it is durable; a read at a
// revision shows what was current then, for ever or until it is compacted (ErrCompacted); there is one writer, whose commits carry all
// changes that wait (group commit); damaged pages are errors of those who need them (ErrDamaged), and of nobody else: who works on all that
// there is passes over them (Span.Sound).
package store

// This file keeps every version of every object in one bbolt file, each under the revision that wrote it: a store with
// multi-version concurrency control, as etcd's mvcc is for kube-apiserver. It knows keys, revisions and bytes, no Kubernetes.
//
// Four buckets (layout.go reads and writes what is in them). Integers are big endian, CRCs are CRC-32C:
//
//	meta   "format"       8  version of this layout: 2, or 102 for a replica, whose revisions have gaps; 1 and 101 become them
//	       "lineage"     16  random; files of different history differ
//	       "compact"      8  CompactRev: reads and watches below it are refused
//	       "swept"        8  how far compaction has deleted; below CompactRev after a crash
//	       "marks"      16n  (unix seconds 8, revision 8): what was current when, one a compaction round
//	       "backup"       8  this file is a backup that nobody has opened yet, made at this time (unix seconds)
//	       "secret/..."      keys that other chapters made
//	       "shared"       8  some revision has several records; see replica.go, as for
//	       "filling"      8  a replica that was being filled when it was left
//
//	rev    key: revision, 8. Its sequence is currentRev. The last key is not: compacting a trailing tombstone would move it back
//	       OFFSET  SIZE  MEANING
//	            0     1  flags: 1 tombstone, 2 deleting (the object carries a deletionTimestamp), 4 stamped, 8 lost (what it
//	                     replaced was damaged: discard.go)
//	            1     8  previous revision of the key, a tombstone's too; 0: none
//	            9     8  CreateRev: the revision that created the object
//	           17     4  CRC of all the rest, started from the revision: a record in another's place shows
//	           21     2  k, the key's length
//	           23     k  key
//	         23+k     6  time in milliseconds since 1970, where it is stamped (format 1 does not know it),
//	         29+k  1..5  and the author's number (uvarint), 0: nobody known; see authors.go
//	                     JSON, final but for kind and apiVersion, which reading puts before it
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
// clustered by key (lists twice as fast, writes more), bbolt's Batch (waits 10 ms when alone), applying each change that the writer waits for
// as soon as it comes (the callers' work, which it waits for, takes longer by as much).

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
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
	ErrTypeEnding     = errors.New("type is missing or being deleted")   // create: Change.Type is no live object, or is marked as deleting
	ErrCompacted      = errors.New("revision has been compacted")        // a read below CompactRev
	errFutureRev      = errors.New("revision is in the future")          // a read above currentRev
	errClosed         = errors.New("store is closed")                    // a write after close

	// A write on a full disk, or one other than a delete when what is left is kept for deletes (room.go). Nothing has changed.
	ErrDiskFull = errors.New("no space left on the disk: make room on the file system of the data file, or delete objects, which is still taken and makes room in the file once history is compacted (--compaction-interval)")

	// A write above --quota-backend-bytes. Deletes are taken.
	ErrQuota = errors.New("database space exceeded: the data file holds more than --quota-backend-bytes allows: delete objects, which makes room once history is compacted (--compaction-interval), or start with a higher --quota-backend-bytes")

	// A write while the file's name leads nowhere or elsewhere: what goes to a removed file is lost at exit. Reads go on.
	ErrFileLost = errors.New("the data file was removed or replaced while in use: put it back, or take a backup from the running server and start on that")

	errUnchanged = errors.New("no member of the batch changed anything") // ends a write transaction without a commit
)

const (
	loggedFormat  = 3 // of a file whose log counts, too: Format until it is closed
	Format        = 2 // of the data file: one before it is brought to it when it is opened, any other is refused
	replicaFormat = 102
	formatBefore  = 1             // how much less the formats before are, without times and authors
	backupRevBump = 1_000_000_000 // what a restored backup adds, so that no client mistakes its past for the present
	backupRevRate = 100_000       // and for each second since it was made, for what was begun from the same backup meanwhile: more than can be written

	maxPatience   = 2 * time.Millisecond
	writeBatchMax = 256       // changes in one commit
	chunkItems    = 500       // one read transaction copies out no more than this
	chunkBytes    = 256 << 10 // nor much more than this,
	walkKeysMax   = 10_000    // and passes no more keys than this
	replayScanMax = 1000      // records that one read of the log's older part passes
)

// CommitBounds are the upper bounds in seconds of Stats.CommitBuckets, whose last bucket has none.
var CommitBounds = [...]float64{.0005, .001, .002, .004, .008, .016, .032, .064, .128, .256, .512, 1.024, 4.096}

// Options configure Open.
type Options struct {
	Ephemeral bool         // no fsync; the file is removed at close
	Base      string       // with Ephemeral: the file begins as a copy of this one, which stays as it is; "": empty
	Quota     int64        // bytes; 0 means 2 GiB or half of the file system, whichever is less, and none for an ephemeral file; below 0: none
	Fatal     func(error)  // what ends the process when writing cannot go on; nil: one line on stderr and exit 1
	Warn      func(string) // told at opening what deserves a line in the log; may be nil
	Outcome   func(error)  // told after each batch what kept all or some of it from being written, nil when that was nothing; may be nil
	Damaged   func(string) // told of each place where the file is found damaged, once; may be nil
	LogBytes  int64        // of the write-ahead log; 0: 16 MiB, or less where the disk is small
	Replica   *Replica     // the log is elsewhere; nil: it is the file's own

	Author func(ctx context.Context) Author // who asks for a Commit that does not say; may be nil
	Clock  func() time.Time                 // when records are written; nil: the machine's
}

// ChangeOp is what a change does to its key.
type ChangeOp int

const (
	OpCreate ChangeOp = iota // ErrExists, ErrDeleting, ErrParentMissing, ErrParentDeleting, ErrTypeEnding, ErrQuota
	OpUpdate                 // ErrNotFound, ErrConflict, ErrQuota unless the object is being deleted
	OpDelete                 // ErrNotFound, ErrConflict; writes a tombstone
)

// A Change is one requested write. JSON is final but for the decimal revision, which the writer inserts at json[RevAt]
// (JSON holds `"resourceVersion":""` there; a tombstone's json too).
type Change struct {
	Op       ChangeOp
	Key      string // a resource's base, namespace and name; see package scheme
	Expect   int64  // OpUpdate, OpDelete: the newest revision of key must be this one
	Parent   string // OpCreate: this key must be live and not deleting; "" for none
	Type     string // OpCreate: so must this one, of what makes a type of the object; "" for none
	Deleting bool   // the new state carries a deletionTimestamp
	JSON     []byte // not changed while the write is pending
	RevAt    int    // offset in JSON
	Author   Author // who asks; a zero one is what Options.Author says

	// The newest version is damaged: what Expect says does not count, and a tombstone has no JSON. OpUpdate and OpDelete: ErrConflict when it can be
	// read. A replica, which is made anew when it is damaged, takes no such change (ErrDamaged).
	Damaged bool

	// With says which updates of other keys have to be written in the same revision, or else nothing is. A replica asks before each attempt, also
	// of one after they have lost a race. A file with a log of its own does not ask. nil: none.
	With func(ctx context.Context) ([]Change, error)

	// Queued is told that the change has its place: of two changes, the second given to Commit after this, the first has the lower revision. A
	// change may get a place several times, and in a replica that is its place on the way to etcd alone. nil: nobody wants to know.
	Queued func()
}

// ---- Opening and closing

// Store is an MVCC store of opaque JSON documents in one bbolt file.
type Store struct {
	dataFile
	Opts  Options // as opened
	id    [16]byte
	queue chan *pendingWrite // buffered so that writers gather while a commit runs; never closed

	closed    func() error // called when the file is whole on the disk; may be nil
	closeOnce sync.Once
	closing   chan struct{} // closed by close
	stopped   chan struct{} // closed by the writer when it has ended

	pendingWrites sync.Pool
	rooms         roomMaker
	waiting       revisionWaiters
	shared        atomic.Bool  // some revision has several records
	distrusted    atomic.Bool  // see Distrust
	raised        bool         // the opening has raised the file's format
	reserve       int64        // bytes of the disk that are kept for deletes; 0: none
	diskFailed    atomic.Bool  // the last commit failed for want of room
	low           atomic.Bool  // creates and updates are refused, as of the last commit
	currentRev    atomic.Int64 // set under mu, together with what belongs to it
	compactRev    atomic.Int64 // set after it is on the disk and before anything is deleted

	mu      sync.RWMutex // guards what follows
	log     eventLog
	tallies map[string]*tally
	total   tally
	stat    Stats

	authors  authorTable // has a lock of its own
	chains   waypoints   // likewise
	lastTime int64       // of a record; the writer's

	marks map[uint64]pageMark // for commitBatch, who empties it each time; the writer's
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
	if opts.Ephemeral && opts.Base != "" {
		if err := beginWith(opts.Base, path); err != nil {
			os.RemoveAll(filepath.Dir(path))
			return nil, fmt.Errorf("--base: %w", err)
		}
	}
	return open(path, opts)
}

func open(path string, opts Options) (*Store, error) {
	_, err := os.Lstat(path)
	fresh := errors.Is(err, fs.ErrNotExist)
	if _, log := os.Lstat(path + logSuffix); fresh && log == nil {
		return nil, fmt.Errorf("%s is missing, and its log %s is there: put the data file back, or remove the log to start anew", path, path+logSuffix)
	}
	if fresh {
		err = createFile(path, func(db *bbolt.DB) error { return db.Update(opts.initBuckets) })
	}
	if err != nil && !errors.Is(err, fs.ErrExist) { // it may have come into being just now
		return nil, fmt.Errorf("cannot open %s: %w", path, err)
	}
	verdict, err := vetToWrite(path, opts.format())
	if err != nil {
		return nil, err
	}
	st := &Store{
		dataFile: dataFile{Path: path, fatal: opts.Fatal, Found: damageBook{report: opts.Damaged}}, Opts: opts, tallies: map[string]*tally{},
		marks: map[uint64]pageMark{},
		queue: make(chan *pendingWrite, writeBatchMax), closing: make(chan struct{}), stopped: make(chan struct{}),
		rooms: newRoomMaker(),
	}
	st.pendingWrites.New = func() any { return &pendingWrite{answer: make(chan struct{}, 1)} }
	st.warnAbout(fresh, verdict)
	if err := withoutFaults(func() error { return st.load(verdict.log) }); err != nil {
		if st.Db != nil && !st.failed.Load() {
			st.metas.close()
			if st.wal != nil {
				st.wal.close()
			}
			st.Db.Close()
		}
		return nil, explainOpen(path, err)
	}
	st.limit()
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
	for _, name := range [][]byte{bucketMeta, bucketRev, bucketKeys, bucketAuthors} {
		if _, err := tx.CreateBucket(name); err != nil {
			return err
		}
	}
	l := &ledger{tx: tx}
	return errors.Join(putMetaInt(l, "format", Format), putLineage(l))
}

// initBuckets makes a new file's, those of a replica with its log's lineage.
func (o *Options) initBuckets(tx *bbolt.Tx) error {
	if err := initBuckets(tx); err != nil || o.Replica == nil {
		return err
	}
	return errors.Join(putMetaInt(&ledger{tx: tx}, "format", replicaFormat), tx.Bucket(bucketMeta).Put([]byte("lineage"), o.Replica.Lineage[:]))
}

func (o *Options) format() int64 {
	if o.Replica != nil {
		return replicaFormat
	}
	return Format
}

func putLineage(l *ledger) error {
	id := make([]byte, 16)
	rand.Read(id)
	return l.put(inMeta, []byte("lineage"), id)
}

// checkFormat refuses what is no file of ours, or not of the format that is wanted (0: any), before anything is written to it.
func checkFormat(p *pages, path string, want int64) error {
	for _, name := range [][]byte{bucketMeta, bucketRev, bucketKeys} {
		if _, ok := p.bucket(name); !ok {
			return fmt.Errorf("%s is a bbolt file of another program: choose another file", path)
		}
	}
	meta, _ := p.bucket(bucketMeta)
	own, replica := isOwnFormat(metaInt(meta, "format")), isFormat(metaInt(meta, "format"), replicaFormat)
	switch format := metaInt(meta, "format"); {
	case own && want != replicaFormat, replica && want != Format:
		if _, ok := p.bucket(bucketAuthors); !ok && (format == Format || format == replicaFormat) {
			return damaged("the bucket authors is missing")
		}
	case replica:
		return fmt.Errorf("%s is a replica of what an etcd cluster holds: use it with --etcd-servers, or choose another file", path)
	case own:
		return fmt.Errorf("%s holds objects of its own, which no etcd cluster has: choose another file for --etcd-servers", path)
	default:
		return fmt.Errorf("%s has format %d and this version of apilet reads format %d: use the version that wrote it", path, format, Format)
	}
	return nil
}

// isFormat tells whether a file's format is one that is wanted, or the one before it.
func isFormat(format, want int64) bool { return format == want || format == want-formatBefore }

// isOwnFormat tells a file that holds objects of its own.
func isOwnFormat(format int64) bool { return isFormat(format, Format) || format == loggedFormat }

func (st *Store) warnAbout(fresh bool, verdict fileVerdict) {
	warn := st.Opts.Warn
	if warn == nil {
		return
	}
	if fresh && !st.Opts.Ephemeral {
		warn("made a new, empty data file " + st.Path)
	}
	if n := verdict.log.count(); n > 0 {
		warn(fmt.Sprintf("%s: %d commits are taken over from its log", st.Path, n))
	}
	if verdict.torn {
		warn(st.Path + ": a commit was under way when the power went; it had been answered to nobody, and is taken back")
	}
	if !verdict.clean {
		warn(st.Path + " was not shut down cleanly; its pages have been checked")
	}
	if verdict.oneMeta {
		warn(st.Path + " has lost one of its two meta pages: if it was the newer one, the last commit is gone")
	}
}

// load opens the vetted file and reads what the store keeps in memory. What it cannot read it refuses before it writes anything.
func (st *Store) load(left *leftLog) (err error) {
	unlogged := st.Opts.Ephemeral || st.Opts.Replica != nil
	if err = st.open(unlogged); err != nil {
		return err
	}
	if !unlogged {
		_, disk, _ := st.askDisk()
		st.logHalf = logHalf(st.Opts.LogBytes, disk)
		st.logGrowth.Store(2 * st.logHalf)
	}
	if left.used() {
		if err = st.resume(left); err != nil {
			return err
		}
	}
	if !st.Opts.Ephemeral {
		if st.file, err = os.Stat(st.Path); err != nil {
			return err
		}
	}
	backup, made, format := false, int64(0), int64(0)
	err = st.readSnapshot(func(s *snapshot) error {
		backup, made, format = s.meta().get([]byte("backup")) != nil, metaInt(s.meta(), "backup"), metaInt(s.meta(), "format")
		return st.countKeys(s)
	})
	if err == nil && format != st.Opts.format() && format != loggedFormat {
		st.raised = true
		if err = st.transact(upgrade(st.Opts.format())); err == nil && st.Opts.Warn != nil {
			st.Opts.Warn(fmt.Sprintf("%s: format %d is now %d; older versions of apilet refuse it: the way back is a backup that was made before", st.Path, format, st.Opts.format()))
		}
	}
	if err == nil && backup {
		bump := int64(backupRevBump)
		if made > backupRevBump { // in backups of earlier versions it is the revision
			bump += max(0, st.Now().Unix()-made) * backupRevRate
		}
		err = st.transact(adoptBackup(bump))
	}
	if err != nil {
		return err
	}
	if st.Opts.Ephemeral && runtime.GOOS != "windows" { // where a file in use cannot be removed
		os.RemoveAll(filepath.Dir(st.Path))
	}
	return st.readSnapshot(func(s *snapshot) error {
		copy(st.id[:], s.meta().get([]byte("lineage")))
		st.currentRev.Store(int64(s.revs.sequence))
		st.compactRev.Store(metaInt(s.meta(), "compact"))
		st.shared.Store(metaInt(s.meta(), "shared") != 0)
		st.log = newEventLog(st.currentRev.Load())
		st.authors.load(s)
		st.lastTime = s.newestTime()
		return nil
	})
}

// adoptBackup makes a backup's file a history of its own at its first opening.
func adoptBackup(bump int64) func(*ledger) error {
	return func(l *ledger) error {
		s, err := newStage(l)
		if err == nil {
			err = s.vetMeta()
		}
		if err != nil {
			return err
		}
		rev := s.rev + bump
		return errors.Join(l.remove(inMeta, []byte("backup")), putLineage(l), putMetaInt(l, "compact", rev),
			putMetaInt(l, "swept", rev), l.setSequence(inRev, uint64(rev)))
	}
}

// countKeys fills the tallies. Keys come in order, so that those of a namespace follow each other and a look-up a namespace is
// enough. A damaged entry counts as an object of no bytes; the scrub names it. A damaged page is refused: nobody could say what is missing.
func (st *Store) countKeys(s *snapshot) error {
	var resource, namespace *tally
	c := s.keys.cursor()
	prefix := "/" // no key has it: a namespace's prefix has four slashes
	for k, v := c.first(); k != nil; k, v = c.next() {
		state, err := decodeKeyState(k, v)
		if err == nil && !state.live() {
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

// Format is the data file's, and whether this opening has raised it.
func (st *Store) Format() (format int64, raised bool) { return st.Opts.format(), st.raised }

// Close waits for the commit in progress. Changes that still wait are answered with errClosed. Closing twice does nothing.
func (st *Store) Close() (err error) {
	st.closeOnce.Do(func() {
		close(st.closing)
		<-st.stopped
		var last func(*ledger) error
		if !st.Opts.Ephemeral {
			last = func(l *ledger) error { _, err := newStage(l); return err }
		}
		err = errors.Join(st.syncReplica(), st.dataFile.close(last))
		if st.closed != nil && (st.distrusted.Load() || err == nil && !st.failed.Load()) {
			err = errors.Join(err, st.closed())
		}
		if st.Opts.Ephemeral {
			os.RemoveAll(filepath.Dir(st.Path))
		}
	})
	return err
}
