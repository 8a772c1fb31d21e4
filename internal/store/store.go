// Package store is a multi-version key-value store in a single bbolt file. It plays the role of
// etcd's mvcc package (server/storage/mvcc) for kube-apiserver. Each version of an object is stored
// with the revision of the write. Clients can read at any revision that is not compacted, follow a
// log of events, and commit writes that are durable when Commit returns.
//
//	st, err := store.Open("apilet.db", store.Options{})
//	doc := []byte(`{"metadata":{"name":"web","resourceVersion":""}}`) // RevAt is the offset between the quotes
//	rec, err := st.Commit(ctx, store.Change{Op: store.OpCreate, Key: "//pods/default/web", JSON: doc, RevAt: 45})
//
//	var chunk store.Chunk // part of a key range, at a revision
//	err = st.Chunk(store.Span{Prefix: "//pods/", Rev: rec.Rev, Items: 500}, &chunk)
//
//	log := st.Follow("//pods/") // the current objects, then each change
//	err = log.CatchUp(ctx, func() { clear(pods) }, func(ev *store.Event) { pods[ev.Key] = ev.Rev })
//	log.Wait(ctx, time.Time{}, nil) // for the next commit that touches pods
//
// Keys have the form /group/resource/namespace/name. Values are JSON. The store does not parse
// them; it only inserts the revision at the given offset. The package does not depend on HTTP or on
// Kubernetes types. Package boltfile implements the file below it: pages, the write-ahead log, and
// protection from disk errors.
//
// Start reading with store.go, which describes the buckets and a short history. The other files
// are:
//
//   - write.go: Commit
//   - read.go: Chunk
//   - waypoints.go: reads at old revisions
//   - room.go: the reserve for deletes on a full disk
//   - eventlog.go: the events that watchers read
//   - follow.go: the Follower
//   - authors.go: the author of each record
//   - sealing.go: encryption
//   - layout.go: the encoding of records
//   - open.go: opening and checking a file
//   - upkeep.go: compaction, backups and checks
//   - discard.go: deletion of damaged objects
//
// A store can also be a replica of an external log (Options.Replica, replica.go). Commit then
// proposes the change to that log. The committed change arrives through Replicate, with the
// revision that the log assigned to it.
//
// The store maintains these invariants:
//
//   - Each change gets a new revision, which is higher than all earlier ones. In a replica several
//     changes may share a revision. Readers see a change only after it is durable.
//   - A read at a revision returns the state at that revision until the revision is compacted.
//     After that it fails with ErrCompacted.
//   - A single goroutine writes. Each commit contains all pending changes (group commit).
//   - A damaged page causes errors only in reads that need it (ErrDamaged). Scans of all objects
//     can skip the damage (Span.SkipDamaged).
package store

// This file describes the layout of the data file. The file contains all versions of all objects.
// The key of each version is its revision. This is similar to the mvcc package of etcd. The code in
// this package only handles keys, revisions and bytes. It does not depend on Kubernetes.
//
// The file contains four buckets. See layout.go for the encoding. Integers are big endian. CRCs are
// CRC-32C.
//
//	meta   "format"       8  version of this layout: 2, or 102 for a replica, whose revisions have gaps; 3 while there is a log
//	       "lineage"     16  random; identifies the file's history
//	       "compact"      8  CompactRev: reads and watches below it are refused
//	       "swept"        8  compaction has deleted up to this revision; below CompactRev after a crash
//	       "marks"      16n  (unix seconds 8, revision 8): the current revision at each compaction round
//	       "backup"       8  unix seconds; this file is a backup made at that time and not opened since
//	       "secret/..."      keys of other packages
//	       "shared"       8  some revision has several records; see replica.go
//	       "filling"      8  the filling of a replica was interrupted; see replica.go
//
//	rev    key: revision, 8. The bucket's sequence is currentRev. The last key is not always currentRev, since compaction deletes trailing tombstones
//	       OFFSET  SIZE  MEANING
//	            0     1  flags: 1 tombstone, 2 deleting (the object carries a deletionTimestamp), 4 stamped, 8 lost (the
//	                     replaced version was damaged: discard.go), 16 sealed, 32 stale (sealing.go)
//	            1     8  previous revision of the key, or of its tombstone; 0: none
//	            9     8  CreateRev: the revision that created the object
//	           17     4  CRC of all other bytes, seeded with the revision, so that a misplaced record is detected
//	           21     2  k, the key's length
//	           23     k  key
//	         23+k     6  if stamped: time in milliseconds since 1970,
//	         29+k  1..5  and the author's number (uvarint), 0: unknown; see authors.go
//	                     JSON without kind and apiVersion, which readers add; or its sealed form
//
//	keys   key: /group/resource/namespace/name; the namespace is empty for cluster-scoped objects
//	            0     8  newest revision of the key
//	            8     4  size of its JSON as stored in rev
//	           12     1  its flags
//	           13     4  CRC of the key and the 13 bytes before
//
// For example, five writes leave these records:
//
//	write                    rev gets                              keys after it
//	create a                 1 {prev 0, create 1}                  a→1
//	create b                 2 {prev 0, create 2}                  a→1 b→2
//	update a                 3 {prev 1, create 1}                  a→3 b→2
//	delete b                 4 {prev 2, create 2, tombstone}       a→3 b→4†
//	create b                 5 {prev 4, create 5}                  a→3 b→5
//
// A LIST at revision 2 walks keys. Revision 3 of a is too new, so the reader follows its chain to
// revision 1. The object b in revision 5 was created after revision 2, so the reader skips to the
// version before its creation. Revision 4 is still too new, so it returns revision 2. At revision
// 4, the newest version of b is a tombstone, so b does not exist. Readers follow a chain with exact
// lookups. If a record at or below CompactRev is missing, it was a tombstone that has been
// compacted. If a record above CompactRev is missing, the file is damaged.
//
// A compaction to revision 4 (upkeep.go) first records compact=4, so that no new read starts below
// it. Then it walks revisions 1 to 4. Revision 3 supersedes 1, revision 4 supersedes 2, and
// revision 4 is a tombstone itself. The compaction deletes 1, 2 and 4 in that order, in small
// transactions between other writes, and records swept=4. Revisions 3 and 5 are not deleted.
// Revision 3 is the newest version of a at or below revision 4, and all versions above revision 4
// are kept. Each step is idempotent. The cost depends on the number of writes since the last
// compaction and not on the size of the store.
//
// A single goroutine writes. It takes all pending requests and checks the precondition of each
// against the newest state, which includes earlier changes of the same batch. All changes of a
// batch are committed with a single fsync. After the commit, the writer updates the event log, the
// counts and currentRev while holding mu. Then it sends the answers to the callers. Finally it
// wakes up the watchers. Readers never see more than the published revision, even if the file
// already contains more. This means that a client can list at revision R and then request all
// events after R without missing any of them.
//
// Rejected alternatives:
//
//   - an index of keys in memory, as in etcd: twice as fast with 64 writers, but it needs 100 bytes
//     for each key and a scan at startup
//   - records clustered by key: lists are twice as fast, but more is written
//   - bbolt's Batch: a single writer waits 10 ms
//   - applying each change as soon as it arrives while the writer waits for more: the callers, for
//     which the writer waits, are delayed by the same time

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

// Errors returned by the store. The comments list the operations that can return each error.
var (
	ErrNotFound       = errors.New("key not found")                        // get, update, delete: the object does not exist
	ErrExists         = errors.New("key already exists")                   // create: the object already exists
	ErrDeleting       = errors.New("key already exists, being deleted")    // create: the object exists and is being deleted
	ErrConflict       = errors.New("key has changed")                      // update, delete: the revision does not match Change.Expect
	ErrParentMissing  = errors.New("parent not found")                     // create: Change.Parent does not exist
	ErrInDoubt        = errors.New("it is unknown whether it was written") // any write to a replica: the outcome is unknown
	ErrParentDeleting = errors.New("parent is being deleted")              // create: Change.Parent is being deleted
	ErrTypeDeleting   = errors.New("type is missing or being deleted")     // create: Change.Type does not exist or is being deleted
	ErrCompacted      = errors.New("revision has been compacted")          // read below CompactRev
	errFutureRev      = errors.New("revision is in the future")            // read above currentRev
	errClosed         = boltfile.ErrClosed                                 // write after Close

	// ErrDiskFull is returned by a write if the disk is full. It is also returned by creates and
	// updates if only the space reserved for deletes is left (room.go). Nothing has been changed.
	ErrDiskFull = boltfile.ErrFull

	// ErrQuota is returned by creates and updates above --quota-backend-bytes. Deletes are still
	// accepted.
	ErrQuota = errors.New("database space exceeded: the data file is larger than --quota-backend-bytes allows: delete objects, which makes room immediately unless old versions are kept (--history), or start with a higher --quota-backend-bytes")

	// ErrFileLost is returned by a write if the file's path no longer leads to the open file. Data
	// written to a removed file would be lost at exit. Reads still work.
	ErrFileLost = boltfile.ErrLost

	// ErrDamaged is returned by a read of damaged data, or by a write next to it. The text names
	// the place.
	ErrDamaged = boltfile.ErrDamaged

	errUnchanged = errors.New("no member of the batch changed anything") // ends a write transaction without a commit
)

const (
	Format        = boltfile.FormatClosed // data file format; other formats are refused
	replicaFormat = 102
	// backupRevBump is added to the revision when a backup is restored. This ensures that clients
	// have not seen the new revisions before.
	backupRevBump = 1_000_000_000
	// backupRevRate is also added for each second since the backup was created. It is higher than
	// the maximum write rate. This ensures that the new revisions are not used by another server
	// that was started from the same backup at a different time.
	backupRevRate = 100_000

	maxCommitDelay = 2 * time.Millisecond
	writeBatchMax  = 256       // maximum number of changes in one commit
	chunkItems     = 500       // maximum number of objects that one read transaction returns
	chunkBytes     = 256 << 10 // approximate maximum of JSON bytes that one read transaction returns
	walkKeysMax    = 10_000    // maximum number of keys that one read transaction visits
	replayScanMax  = 1000      // maximum number of records that one read transaction of the log visits
)

// LogSuffix is appended to the data file's name to form the name of its write-ahead log.
const LogSuffix = boltfile.LogSuffix

// Progress is used to report the progress of a long operation.
type Progress = boltfile.Progress

// IsDiskFull reports whether err means that the disk is full. It also recognizes errors of backups
// and new files, which are not commits.
func IsDiskFull(err error) bool { return boltfile.IsDiskFull(err) }

// Options configure Open.
type Options struct {
	Ephemeral bool   // do not sync; remove the file on Close
	Base      string // with Ephemeral: start with a copy of this file; "" means an empty store
	// Quota is the limit of the data file in bytes. 0 means 2 GiB or half of the file system,
	// whichever is less, or no limit if the file is ephemeral. A negative value means no limit.
	Quota int64
	// Fatal is called if writing cannot continue, and ends the process. nil means to print one line
	// to stderr and exit with status 1.
	Fatal func(error)
	Warn  func(string) // called with warnings when the file is opened; may be nil
	// OnBatch is called after a batch with the error that prevented some or all writes, or nil if
	// they succeeded. It may be nil.
	OnBatch  func(error)
	Damaged  func(string) // called once for each place where damage is found; may be nil
	LogBytes int64        // maximum size of the write-ahead log; 0 means 16 MiB, or less on a small disk
	// Replica is used to access an external log. If it is nil, the store uses its own log.
	Replica *Replica
	// Sealing is used to encrypt and decrypt documents. If it is nil, documents are not encrypted,
	// and the store cannot read encrypted documents.
	Sealing *Sealing

	Author func(ctx context.Context) Author // returns the default author of a change; may be nil
	Clock  func() time.Time                 // time for records; nil means the system clock
}

// ChangeOp is the operation of a Change.
type ChangeOp int

const (
	OpCreate ChangeOp = iota // ErrExists, ErrDeleting, ErrParentMissing, ErrParentDeleting, ErrTypeDeleting, ErrQuota
	OpUpdate                 // ErrNotFound, ErrConflict, ErrQuota unless the object is being deleted
	OpDelete                 // ErrNotFound, ErrConflict; writes a tombstone
)

// A Change is one requested write. JSON is final except for the decimal revision, which the writer
// inserts at JSON[RevAt]. At that offset JSON contains `"resourceVersion":""`. This also applies to
// the JSON of a deletion.
type Change struct {
	Op     ChangeOp
	Key    string // the resource's base, namespace and name; see package scheme
	Expect int64  // OpUpdate, OpDelete: required newest revision of the key
	Parent string // OpCreate: this key must be live and not deleting; "" means no check
	// Type is like Parent, but it is the key of the object's type definition.
	Type     string
	Deleting bool   // the new state carries a deletionTimestamp
	JSON     []byte // must not be modified while the write is pending
	RevAt    int    // offset of the revision in JSON
	Author   Author // author of the change; the zero Author means the result of Options.Author

	// Damaged must be set to replace an object if the newest version is damaged. In this case,
	// Expect is ignored and a tombstone has no JSON. OpUpdate and OpDelete fail with ErrConflict if
	// the version can be read. A replica rejects such a change with ErrDamaged, because a damaged
	// replica is rebuilt.
	Damaged bool

	// With returns updates of other keys that must be written in the same revision, or the write
	// fails. A replica calls it before each attempt to write the change, including retries after a
	// conflict. It is not used if the store has its own log. It may be nil.
	With func(ctx context.Context) ([]Change, error)

	// Queued is called when the change has been added to the queue. If a second change is passed to
	// Commit after this call, it gets a higher revision than the first. Queued may be called
	// several times for a change. In a replica it only means the place on the way to etcd. It may
	// be nil.
	Queued func()
}

// makesRoom reports whether the change deletes the object or updates one that is being deleted.
func (c *Change) makesRoom() bool { return c.Op == OpDelete || c.Deleting }

// A Replica contains the functions that are used to access the external log.
type Replica struct {
	// Identity identifies the history of the log. If the file was created for a different history,
	// it is discarded.
	Identity string
	Lineage  [16]byte // result of Store.Lineage on all replicas of the log

	// Propose checks the preconditions of a change, adds it to the log and returns the new
	// revision. It returns the same errors as Commit. Before returning such an error, it must wait
	// until the store has caught up with the state that caused the error.
	Propose func(ctx context.Context, c Change) (rev int64, err error)

	// Newest returns a revision that the log has reached after the call began.
	Newest func(ctx context.Context) (rev int64, err error)

	// Behind is returned if a read has waited too long for a revision of the log. If it is nil,
	// reads wait until their context is done.
	Behind error

	// Share returns the log's value for a name. If there is no value, it stores fresh and returns
	// it.
	Share func(ctx context.Context, name string, fresh []byte) (value []byte, err error)

	// Tombstone converts an object's JSON to the Change.JSON and RevAt of its deletion.
	Tombstone func(json []byte) (doc []byte, revAt int)
}

// Replicated is one entry of the log. JSON and RevAt have the same meaning as in a Change.
type Replicated struct {
	Key string // as in Change
	// Rev is the revision of this entry, and CreateRev is the revision that created the object.
	Rev, CreateRev int64
	Deleted        bool   // the entry is a deletion
	Deleting       bool   // the object carries a deletionTimestamp
	JSON           []byte // nil for a deletion
	RevAt          int    // offset of the revision in JSON
	Stale          bool   // the log has encrypted it with an old key
	Author         Author // author of the entry, if known
}

// A mode defines the differences between a store that uses its own log and a replica.
type mode struct {
	format  int64  // of the file
	lineage []byte // lineage for new files, or nil to use a random one

	others, remade, unlogged, bounded bool

	open    func(path string, opts Options) (*Store, error)
	commit  func(st *Store, ctx context.Context, c Change) (Record, error)
	newest  func(st *Store, ctx context.Context) (rev int64, err error)                    // see Replica.Newest
	share   func(ctx context.Context, name string, fresh []byte) (value []byte, err error) // see Replica.Share
	last    func(json []byte) (doc []byte, revAt int)                                      // see Replica.Tombstone; nil if deletions contain their JSON
	closing func(st *Store) error                                                          // called before the last commit
	behind  error                                                                          // see Replica.Behind
}

// Store is an MVCC store of opaque JSON documents in one bbolt file.
type Store struct {
	File *boltfile.File // the data file

	Opts Options // passed to Open
	mode mode    // derived from Opts.Replica
	id   [16]byte
	// queue is buffered so that changes can be added during a commit. It is never closed.
	queue chan *pendingWrite

	closed    func() error // called after the file has been closed; may be nil
	closeOnce sync.Once
	closing   chan struct{} // closed by Close
	stopped   chan struct{} // closed by the writer when it returns

	pendingWrites   sync.Pool
	rooms           roomMaker
	revisionWaiters revisionWaiters
	shared          atomic.Bool  // a revision may have several records
	distrusted      atomic.Bool  // see Invalidate
	reserve         int64        // bytes of the disk reserved for deletes, or 0
	diskFailed      atomic.Bool  // the last commit failed because the disk was full
	roomLow         atomic.Bool  // the last commit refused creates and updates
	currentRev      atomic.Int64 // updated while holding mu, together with log and tallies
	// compactRev is updated after it has been written to disk, but before any version is deleted.
	compactRev atomic.Int64

	mu      sync.RWMutex // guards log, tallies, total and stat
	log     eventLog
	tallies map[string]*tally
	total   tally
	stat    Stats

	authors  authorTable // has its own lock
	chains   waypoints   // has its own lock
	lastTime int64       // time of the newest record; used only by the writer

	marks map[uint64]boltfile.PageMark // cleared and reused by each commitBatch; used only by the writer
}

type tally struct{ objects, bytes int64 }

// tally returns the tally of a prefix and creates it if necessary. The caller must hold mu, except
// while the store is opened.
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

// Close waits for the commit in progress. Pending changes fail with errClosed. Further calls do
// nothing.
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

// Now returns the time of the clock that stamps records. Code that compares times with those of
// records must use it.
func (st *Store) Now() time.Time {
	if st.Opts.Clock != nil {
		return st.Opts.Clock()
	}
	return time.Now()
}

// There are two kinds of store. If a store uses its own log, it commits all changes to its file. A
// replica (replica.go) follows an external log, and its file can be rebuilt from that log. The
// fields of mode name the differences. Only modeOf checks which kind a store is.
//
//	                 own log                                 replica
//	others           there are no other writers              revisions have gaps; the newest must be requested from the log
//	remade           damage is repaired in the file          a damaged file is discarded and filled again
//	unlogged         a commit is in the file's log first     nothing is synced while the store is open
//	bounded          quota and reserve refuse writes         all entries of the log are written

// Shared reports whether other servers write to the same log.
func (st *Store) Shared() bool { return st.mode.others }

// isOwnFormat reports whether a file of this format is not a replica.
func isOwnFormat(format int64) bool { return format == Format || format == boltfile.FormatLogged }

// A pendingWrite carries one change or maintenance job to the writer, and the answer back.
type pendingWrite struct {
	Change
	job   func(*boltfile.WriteTx) error // maintenance instead of a change
	proof bool                          // only request an answer
	feed  *feed                         // changes from the log of a replica
	state atomic.Int32                  // writeQueued, writeTaken or writeAbandoned
	// answer is used to wake up the caller when the write is done. It has a capacity of 1, so that
	// the writer does not block.
	answer chan struct{}

	resource, namespace string // prefixes of the key
	usesLongKey         bool   // the record is stored with a long key; see longKey
	was, is             keyState
	replaced            []byte // copy of the JSON of was
	rec                 Record
	err                 error
}

const (
	writeQueued    = iota
	writeTaken     // the writer is processing it, and the caller must wait for the answer
	writeAbandoned // the caller stopped waiting; the writer drops it
)

// A feed contains changes from the log of a replica. The writer applies all of them in a single
// transaction and adds the results to members.
type feed struct {
	kind    feedKind
	changes []Replicated
	upTo    int64 // new revision for readers; not used by feedFill
	compact int64 // new CompactRev; 0 means no compaction
	members []pendingWrite
}

type feedKind int

const (
	feedFollow feedKind = iota // next entries of the log
	feedFill                   // part of a snapshot that is not visible yet
	feedFinish                 // end of the snapshot
)
