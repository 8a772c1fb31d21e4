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
// nothing of HTTP or of types. Package boltfile is the file below it: pages, the write-ahead log, and what a disk may do to both.
//
// Read store.go first (the buckets, a worked history), then write.go (Commit), read.go (Chunk),
// waypoints.go (reads of what was long ago), room.go (a full disk), eventlog.go (what watchers read), follow.go (how to keep up with it),
// authors.go (who wrote what), sealing.go (what is encrypted) and layout.go (the bytes). open.go brings a file to where a store can begin; upkeep.go compacts, backs up and
// checks; discard.go deletes what is damaged.
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
//	meta   "format"       8  version of this layout: 2, or 102 for a replica, whose revisions have gaps; 3 while there is a log
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
//	                     replaced was damaged: discard.go), 16 sealed, 32 stale (sealing.go)
//	            1     8  previous revision of the key, a tombstone's too; 0: none
//	            9     8  CreateRev: the revision that created the object
//	           17     4  CRC of all the rest, started from the revision: a record in another's place shows
//	           21     2  k, the key's length
//	           23     k  key
//	         23+k     6  time in milliseconds since 1970, where it is stamped,
//	         29+k  1..5  and the author's number (uvarint), 0: nobody known; see authors.go
//	                     JSON, final but for kind and apiVersion, which reading puts before it; or what sealing has made of it
//
//	keys   key: /group/resource/namespace/name, the namespace empty for what is in none
//	            0     8  newest revision of the key
//	            8     4  size of its JSON, as it lies in rev
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
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"apilet/internal/store/boltfile"
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
	errClosed         = boltfile.ErrClosed                               // a write after close

	// A write on a full disk, or one other than a delete when what is left is kept for deletes (room.go). Nothing has changed.
	ErrDiskFull = boltfile.ErrFull

	// A write above --quota-backend-bytes. Deletes are taken.
	ErrQuota = errors.New("database space exceeded: the data file holds more than --quota-backend-bytes allows: delete objects, which makes room immediately unless old versions are kept (--history), or start with a higher --quota-backend-bytes")

	// A write while the file's name leads nowhere or elsewhere: what goes to a removed file is lost at exit. Reads go on.
	ErrFileLost = boltfile.ErrLost

	// A read of what is damaged, or a write beside it. Its text says where.
	ErrDamaged = boltfile.ErrDamaged

	errUnchanged = errors.New("no member of the batch changed anything") // ends a write transaction without a commit
)

const (
	Format        = boltfile.FormatClosed // of the data file; files of other formats are refused
	replicaFormat = 102
	backupRevBump = 1_000_000_000 // what a restored backup adds, so that no client mistakes its past for the present
	backupRevRate = 100_000       // and for each second since it was made, for what was begun from the same backup meanwhile: more than can be written

	maxPatience   = 2 * time.Millisecond
	writeBatchMax = 256       // changes in one commit
	chunkItems    = 500       // one read transaction copies out no more than this
	chunkBytes    = 256 << 10 // nor much more than this,
	walkKeysMax   = 10_000    // and passes no more keys than this
	replayScanMax = 1000      // records that one read of the log's older part passes
)

// LogSuffix follows a data file's name in that of its write-ahead log.
const LogSuffix = boltfile.LogSuffix

// Progress is told how far something long has come.
type Progress = boltfile.Progress

// IsDiskFull tells the errors of a full disk, also of what is no commit: a backup, a file that is made.
func IsDiskFull(err error) bool { return boltfile.IsDiskFull(err) }

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
	Sealing   *Sealing     // what is encrypted, and how; nil: nothing is, and what is cannot be read

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

// makesRoom tells what is on its way out.
func (c *Change) makesRoom() bool { return c.Op == OpDelete || c.Deleting }

// A Replica says how a store reaches its log.
type Replica struct {
	Identity string   // of the history: a file of another one is thrown away
	Lineage  [16]byte // what Store.Lineage answers, on all replicas of the log

	// Propose adds a change to the log, if the change's preconditions hold there, and returns its revision. It answers the errors of
	// Commit, after its own Store has seen what they are about.
	Propose func(ctx context.Context, c Change) (rev int64, err error)

	// Newest is a revision that the log had reached after the call began.
	Newest func(ctx context.Context) (rev int64, err error)

	// Behind is the error of a read that waited too long for what the log has. nil: it waits as long as its context.
	Behind error

	// Share returns what the log keeps under a name: fresh, if that is nothing.
	Share func(ctx context.Context, name string, fresh []byte) (value []byte, err error)

	// Last makes of an object's JSON what Change.JSON and RevAt are of its deletion.
	Last func(json []byte) (doc []byte, revAt int)
}

// Replicated is one entry of the log. JSON and RevAt are as in a Change.
type Replicated struct {
	Key            string // as in Change
	Rev, CreateRev int64  // of the entry, and of the object's creation
	Deleted        bool   // the entry is a deletion
	Deleting       bool   // the object carries a deletionTimestamp
	JSON           []byte // nil for a deletion
	RevAt          int    // where its revision belongs
	Stale          bool   // the log has it under a key that is no longer the first
	Author         Author // who has written it, where that is known
}

// A mode is how a store does what is not the same in both kinds.
type mode struct {
	format  int64  // of the file
	lineage []byte // of a new file; nil: it draws one

	others, remade, unlogged, bounded bool

	open    func(path string, opts Options) (*Store, error)
	commit  func(st *Store, ctx context.Context, c Change) (Record, error)
	newest  func(st *Store, ctx context.Context) (rev int64, err error)                    // that the log had after the call began
	share   func(ctx context.Context, name string, fresh []byte) (value []byte, err error) // what all who have the log have under a name
	last    func(json []byte) (doc []byte, revAt int)                                      // see Replica.Last; nil: a deletion comes with it
	closing func(st *Store) error                                                          // before the last commit
	behind  error                                                                          // see Replica.Behind
}

// Store is an MVCC store of opaque JSON documents in one bbolt file.
type Store struct {
	File *boltfile.File // what it all lies in

	Opts  Options // as opened
	mode  mode    // what follows from Opts.Replica
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

	marks map[uint64]boltfile.PageMark // for commitBatch, who empties it each time; the writer's
}

type tally struct{ objects, bytes int64 }

// tally finds or makes the tally of a prefix. The caller holds mu, or is opening.
func (st *Store) tally(prefix string) *tally {
	t := st.tallies[prefix]
	if t == nil {
		t = new(tally)
		st.tallies[strings.Clone(prefix)] = t
	}
	return t
}

// Format returns the format of the data file.
func (st *Store) Format() int64 { return st.mode.format }

// Close waits for the commit in progress. Changes that still wait are answered with errClosed. Closing twice does nothing.
func (st *Store) Close() (err error) {
	st.closeOnce.Do(func() {
		close(st.closing)
		<-st.stopped
		err = errors.Join(st.mode.closing(st), st.File.Close())
		if st.closed != nil && (st.distrusted.Load() || err == nil && !st.File.Failed()) {
			err = errors.Join(err, st.closed())
		}
		if st.Opts.Ephemeral {
			os.RemoveAll(filepath.Dir(st.File.Path))
		}
	})
	return err
}

// Now is the time by the clock that records are stamped with: what compares times with theirs asks it.
func (st *Store) Now() time.Time {
	if st.Opts.Clock != nil {
		return st.Opts.Clock()
	}
	return time.Now()
}

// There are two kinds of store. One has a log of its own: what is committed to the file is written. The other is the replica of a log that is
// kept elsewhere (replica.go): what is written is in that log, and the file can be made anew from it. A mode is what follows from the one or the other,
// under the name of what follows; which of the two it is nobody asks but modeOf.
//
//	                 a log of its own                        a replica
//	others           nobody else writes                      revisions have gaps, what is newest has to be asked for
//	remade           what is damaged is mended here          a file that is damaged is thrown away, and filled anew
//	unlogged         a commit is in the file's log first     nothing is synced while it works
//	bounded          quota and reserve refuse writes         what is in the log is written, whether there is room or not

// Shared tells whether others write to the log, too: other servers on the same cluster.
func (st *Store) Shared() bool { return st.mode.others }

// isOwnFormat reports whether a file of this format is not a replica.
func isOwnFormat(format int64) bool { return format == Format || format == boltfile.FormatLogged }

// A pendingWrite carries one change, or a piece of maintenance, to the writer and its answer back.
type pendingWrite struct {
	Change
	job    func(*boltfile.Ledger) error // maintenance instead of a change
	proof  bool                         // nothing but an answer is asked for
	feed   *feed                        // what a replica takes over, instead of a change
	state  atomic.Int32                 // writeQueued, then one of the others
	answer chan struct{}                // the writer's one answer; capacity 1, so that it never waits

	resource, namespace string // the key's prefixes
	elsewhere           bool   // another key's record lies under the revision: this one's under a longer key
	was, is             keyState
	replaced            []byte // the JSON of was, not the file's
	rec                 Record
	err                 error
}

const (
	writeQueued    = iota
	writeTaken     // the writer has it: its answer is awaited
	writeAbandoned // who asked for it has gone: the writer drops it
)

// A feed is what the writer takes over in one transaction, and what came of it.
type feed struct {
	kind    feedKind
	changes []Replicated
	upTo    int64 // the revision that readers get to see; of feedFill: none
	compact int64 // what is compacted by it; 0: nothing
	members []pendingWrite
}

type feedKind int

const (
	feedFollow feedKind = iota // the next of the log
	feedFill                   // of a snapshot, to be seen later
	feedFinish                 // the end of the snapshot
)
