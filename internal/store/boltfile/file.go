package boltfile

// This file runs transactions on the data file and tracks its state: intact, damaged in places, or
// read-only after an error. tree.go and guard.go detect damage. The consequences are:
//
//	detected by                  result                 consequence
//	a read                       ErrDamaged             none; reads of other data succeed
//	a write, before its commit   ErrDamaged             none; bbolt has not changed anything yet
//	a write, in its commit       ErrDamaged             no more writes, since bbolt's memory cannot be trusted; the file is unchanged
//	either, in a truncated file  ErrDamaged             the process ends, since the end of the file is lost
//	loss of the newest meta page the operation's own    no more writes; reads use the tree's root that is in memory
//
// Each place is logged once. The list is cleared if a scrub finds no damage. After the first
// damage, commits write the freelist. Otherwise the next start would have to read all pages and
// would fail at the damaged page. The same applies to a commit if the disk is full.

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// If a write returns one of these errors, it has not changed anything.
var (
	// ErrFull means that the disk is full. Nothing has been changed.
	ErrFull = errors.New("no space left on the disk: make room on the file system of the data file, or delete objects, which is still accepted and makes room in the file immediately unless old versions are kept (--history)")

	// ErrLost means that the file's path no longer leads to the open file. Data written to a
	// removed file would be lost at exit. Reads still work.
	ErrLost = errors.New("the data file was removed or replaced while in use: put it back, or take a backup from the running server and start on that")

	// ErrClosed is returned by operations on a closed file.
	ErrClosed = errors.New("store is closed")
)

// errMetaMoved means that a read transaction began while two commits replaced its meta page.
var errMetaMoved = errors.New("the meta page was replaced")

// A File is an open bbolt file.
type File struct {
	Path       string                          // path of the file
	Db         *bbolt.DB                       // used by the writer; reads access the pages directly
	handle     *os.File                        // bbolt's handle
	file       os.FileInfo                     // identity of the file at Path; nil if the file is ephemeral
	fatal      func(error)                     // ends the process
	warn       func(string)                    // if not nil, called with messages for the administrator
	Damage     DamageList                      // damage found by reads and scrubs
	meta       atomic.Pointer[metaPage]        // meta page of the newest commit
	metas      metaMap                         // used by reads to check that a meta page exists
	logHalf    int64                           // size of half a log in bytes, or 0 if no log is used
	wal        *wal                            // set at the first write; used only by the writer
	logGrowth  atomic.Int64                    // maximum number of bytes that the log may grow
	Refusal    atomic.Pointer[error]           // the error returned by writes, or nil if they are allowed
	foreignLog atomic.Pointer[foreignLogError] // foreign log that refused the newest write; nil if none exists
	failed     atomic.Bool                     // set if a transaction was left open; bbolt cannot be closed in this case
	lazyFree   bool                            // commits omit the freelist; used only by the writer
	changed    bool                            // there was a commit; used only by the writer
	notes      []byte                          // buffer of the ledgers; used only by the writer
}

// freelistMax is the maximum number of free pages that a checkpoint lists: 64 KiB of page numbers.
const freelistMax = 8 << 10

// notesKept is the maximum capacity of a notes buffer. Larger buffers are not reused.
const notesKept = 1 << 20

// Options configure Open.
type Options struct {
	Ephemeral bool  // do not check the path, and do not keep the file
	Unlogged  bool  // do not sync commits, and do not use a log
	LogBytes  int64 // size of the write-ahead log; 0 means 16 MiB, or less on a small disk
	// Fatal is called if writing cannot continue, and ends the process. nil means to print one line
	// to stderr and exit with status 1.
	Fatal   func(error)
	Damaged func(place string) // if not nil, called once for each damaged place
	Warn    func(text string)  // if not nil, called with messages for the administrator
}

// Open opens a file and applies the commits in left. The caller must have called VetToWrite, which
// returns the log. If Open fails, the caller must call Abandon on the returned File.
func Open(path string, left *LeftoverLog, o Options) (f *File, err error) {
	f = &File{Path: path, fatal: o.Fatal, warn: o.Warn, Damage: DamageList{report: o.Damaged}}
	return f, RecoverFaults(func() error { return f.begin(left, o) })
}

func (f *File) begin(left *LeftoverLog, o Options) (err error) {
	if err = f.open(o.Unlogged); err != nil {
		return err
	}
	if !o.Unlogged {
		_, disk, _ := f.DiskSpace()
		f.logHalf = logHalf(o.LogBytes, disk)
		f.logGrowth.Store(2 * f.logHalf)
	}
	if left.Used() {
		if err = f.resume(left); err != nil {
			return err
		}
	}
	if !o.Ephemeral {
		f.file, err = os.Stat(f.Path)
	}
	return err
}

// Abandon closes a file after a failed Open. It does not remove the log, because the next start
// needs it.
func (f *File) Abandon() {
	if f.Db == nil || f.failed.Load() {
		return
	}
	f.metas.close()
	if f.wal != nil {
		_ = f.wal.close() // its records are already synced
	}
	_ = f.Db.Close() // nothing was changed
}

// open maps a vetted file.
func (f *File) open(noSync bool) (err error) {
	options := dbOptions()
	options.NoSync = noSync
	// Using the lowest free page first saves disk writes only if commits sync. It is slower if
	// there are many free pages.
	if noSync {
		options.FreelistType = bbolt.FreelistMapType
	}
	options.NoGrowSync = noSync // otherwise each growth by 16 MiB waits for the disk
	options.OpenFile = func(name string, flag int, mode os.FileMode) (_ *os.File, err error) {
		if f.handle, err = os.OpenFile(name, flag, mode); err == nil && !noSync {
			forgetCached(f.handle)
		}
		return f.handle, err
	}
	if f.Db, err = bbolt.Open(f.Path, 0o600, options); err != nil {
		return err
	}
	f.lazyFree = true
	if !noSync { // if the last process was killed, its last commit may not be on the disk
		if err := f.Db.Sync(); err != nil {
			return err
		}
	}
	f.metas.open(f.handle, f.Db.Info().PageSize)
	return f.Db.View(func(tx *bbolt.Tx) error {
		m, err := mappedMeta(f.Db, uint64(tx.ID()))
		f.meta.Store(&m)
		return err
	})
}

// Close writes the freelist, so that the next Open need not scan the file. If nothing was
// committed, the file stays unchanged.
func (f *File) Close() (err error) {
	f.metas.close() // later reads use the file itself
	if f.failed.Load() {
		return nil // bbolt might wait forever for the failed transaction; the process is about to end
	}
	f.lazyFree = false
	switch {
	case f.Refusal.Load() != nil && f.wal != nil:
		err = f.wal.close()
	case f.Refusal.Load() != nil || f.file == nil: // an ephemeral file is not kept
	case f.wal != nil:
		err = f.endLog()
	case f.changed:
		err = f.Transact(last)
	}
	if errors.Is(err, ErrFull) || errors.Is(err, ErrDamaged) {
		err = nil // the file has all commits, but the next Open has to scan it
	}
	if foreign := f.foreignLog.Load(); foreign != nil && f.warn != nil && f.Writable() != nil {
		f.warn(foreign.Error() + ". The next start refuses it")
	}
	if f.failed.Load() {
		return err
	}
	return errors.Join(err, f.Db.Close())
}

// last is passed to Transact when the file is closed. The commit writes the freelist.
func last(l *WriteTx) error {
	_, err := l.Guard(map[uint64]PageMark{})
	return err
}

// SyncAlways syncs the file and makes all later commits sync.
func (f *File) SyncAlways() error {
	f.Db.NoSync, f.Db.NoGrowSync = false, false
	return f.Db.Sync()
}

// Failed reports whether a transaction was left open. In this case, bbolt cannot be closed.
func (f *File) Failed() bool { return f.failed.Load() }

// ---- Room

// DiskSpace returns the free space of the file system for this process, and its size. known is
// false if they are unknown.
func (f *File) DiskSpace() (free, size int64, known bool) {
	conn, err := f.handle.SyscallConn()
	if err != nil {
		return 0, 0, false
	}
	_ = conn.Control(func(fd uintptr) { free, size, known = diskSpace(fd) }) // fails if the file is closed
	return free, size, known
}

// Sizes returns the lengths of the file and its log in bytes.
func (f *File) Sizes() (data, log int64) {
	if info, err := f.handle.Stat(); err == nil {
		data = info.Size()
	}
	if f.file == nil { // ephemeral
		return data, 0
	}
	if info, err := os.Stat(f.Path + LogSuffix); err == nil {
		log = info.Size()
	}
	return data, log
}

// FreeBytes returns the size of all pages that are free, or will be after the next checkpoint.
func (f *File) FreeBytes() int64 {
	s := f.Db.Stats()
	return int64(s.FreePageN+s.PendingPageN) * int64(f.PageSize())
}

// ReusableBytes returns the size of the pages that are free now.
func (f *File) ReusableBytes() int64 { return int64(f.Db.Stats().FreePageN) * int64(f.PageSize()) }

func (f *File) PageSize() int { return f.meta.Load().pageSize }

// LogHeadroom returns the maximum number of bytes that the log may grow.
func (f *File) LogHeadroom() int64 { return f.logGrowth.Load() }

// SetFreeSpace informs the log of the free space above the reserve, and whether it is scarce. Only
// the writer calls it.
func (f *File) SetFreeSpace(spare int64, scarce bool) {
	if f.wal != nil {
		f.wal.scarce, f.wal.spare = scarce, spare
	}
}

// ---- Transactions

// View calls fn in a read transaction. Calls must not be nested: a commit that remaps the file
// waits for the outer transaction, and the inner one would wait for the commit.
func (f *File) View(fn func(*Pages) error) error {
	err := errMetaMoved
	for n := 0; n < 3 && err == errMetaMoved; n++ {
		err = RecoverFaults(func() error { return f.view(fn) })
	}
	switch {
	case err == errMetaMoved:
		return f.Explain(NewDamage("a meta page cannot be read"))
	case errors.Is(err, berrors.ErrDatabaseNotOpen):
		return ErrClosed
	case errors.Is(err, ErrDamaged):
		return f.Explain(err)
	}
	return err
}

func (f *File) view(fn func(*Pages) error) error {
	known := *f.meta.Load()
	if !f.hasMeta(known) {
		// A transaction of bbolt would panic while holding its locks. It is safe to read without a
		// transaction, because there are no more writes that could move or reuse pages.
		f.Damage.note(NewDamage("pages 0 and 1, the meta pages, are lost"))
		return fn(newPages(f.Db, known))
	}
	return f.Db.View(func(tx *bbolt.Tx) error {
		m, id := known, uint64(tx.ID())
		switch {
		case id < known.txid: // there are no more writes
			f.Damage.note(NewDamage("page %d, the newest meta page, is lost", known.txid%2))
		case id > known.txid:
			var err error
			if m, err = mappedMeta(f.Db, id); err != nil {
				return errMetaMoved
			}
		}
		return fn(newPages(f.Db, m))
	})
}

// hasMeta reports whether bbolt will find a meta page. known is the newest one. It checks the pages
// in memory first, because it is called for every read.
func (f *File) hasMeta(known metaPage) bool {
	if f.metas.sound(known.pageSize) {
		return true
	}
	for _, n := range [...]uint64{known.txid % 2, (known.txid + 1) % 2} {
		if _, err := f.metaAt(n, known.pageSize); !errors.Is(err, ErrDamaged) {
			return true // if the file is closed, bbolt returns an error
		}
	}
	return false
}

// metaAt reads meta page 0 or 1 from the file.
func (f *File) metaAt(n uint64, pageSize int) (m metaPage, err error) {
	var buf [metaSize]byte
	_, err = f.handle.ReadAt(buf[:], int64(n)*int64(pageSize))
	if errors.Is(err, os.ErrClosed) {
		return m, err
	}
	m, ok := decodeMeta(buf[:])
	if err != nil || !ok {
		return m, NewDamage("page %d, a meta page, is lost", n)
	}
	return m, nil
}

// Update is like bbolt's Update with two differences. After a panic, it does not roll back in a way
// that would read the damaged file. If the commit itself fails, it ends the process, unless the
// disk is full. After a failed sync the content of the disk is unknown, although the memory map may
// already contain the new state. Calls must not overlap.
func (f *File) Update(fn func(*WriteTx) error) error {
	if err := f.inPlace(); err != nil { // this takes about 1 µs, and the sync of a commit takes about 100 µs
		return err
	}
	if f.wal != nil && !f.wal.inPlace() {
		if err := f.leaveLog(); err != nil {
			return err
		}
	}
	if f.wal == nil && f.logHalf > 0 {
		switch err := f.startLog(); {
		case errors.Is(err, errLogLost):
			return f.fatalWrite(err)
		case err != nil && IsDiskFull(err): // continue without a log, because the file may have free pages
		case err != nil:
			return err
		}
	}
	if f.wal != nil {
		if err := f.makePages(); err != nil { // a lost log is not used again
			return err
		}
		if err := f.checkpointIfDue(); err != nil {
			return err
		}
	}
	if err := f.Transact(fn); err != nil || f.wal == nil || f.wal.inPlace() {
		return err
	}
	return f.leaveLog() // before the write is acknowledged
}

// makePages provides free pages for the next transaction. If the disk is full, it makes a
// checkpoint to free the pages that wait for one.
func (f *File) makePages() error {
	if f.wal.scarce {
		if err := f.wal.release(); err != nil {
			return f.fatalWrite(lostLog(err))
		}
	}
	if n := f.wal.ahead(f.meta.Load().high); n > 0 {
		if err := f.growAhead(n); err != nil && f.Refusal.Load() != nil {
			return err
		}
	}
	return nil
}

// checkpointIfDue starts a checkpoint if it is due. It first makes an extra commit to write the
// freelist. Otherwise a start from this checkpoint would have to read all pages to find the free
// pages. If there is no room for the list, the checkpoint omits it.
func (f *File) checkpointIfDue() error {
	if err := f.wal.finishCheckpoint(false); err != nil {
		return f.fatalWrite(lostLog(err))
	}
	if !f.wal.due(int64(f.meta.Load().high) * int64(f.PageSize())) {
		return nil
	}
	err := f.listingFree(func() error {
		return f.Transact(func(l *WriteTx) error {
			l.unlogged = true
			_, err := l.Guard(map[uint64]PageMark{})
			return err
		})
	})
	if err != nil && f.Refusal.Load() != nil {
		return err
	}
	if list := f.meta.Load().freelist; list != noFreelist && f.wal.grown.holds(list) {
		f.wal.grown = PageRun{} // the list must be synced with the checkpoint
	}
	if err := f.wal.switchHalf(); err != nil {
		return f.fatalWrite(lostLog(err))
	}
	return nil
}

// listingFree calls commit with the freelist enabled, unless the freelist is too long.
func (f *File) listingFree(commit func() error) error {
	if f.FreeBytes()/int64(f.PageSize()) > freelistMax {
		return commit()
	}
	defer func(lazy bool) { f.lazyFree = lazy }(f.lazyFree)
	f.lazyFree = false
	return commit()
}

// Transact is like Update, but does not check that the file and the log are in place, and does not
// start a log.
func (f *File) Transact(fn func(*WriteTx) error) error {
	known := *f.meta.Load()
	f.Db.NoFreelistSync = f.lazyFree && f.Damage.First() == ""
	txid, open, committing := 0, false, false
	l := &WriteTx{notes: f.notes[:0]}
	err := RecoverFaults(func() error {
		if _, err := f.metaAt(known.txid%2, known.pageSize); err != nil {
			return err
		}
		tx, err := f.Db.Begin(true)
		if err != nil {
			return err
		}
		txid, open, l.Tx = tx.ID(), true, tx
		if err := RecoverFaults(func() error {
			if uint64(txid) <= known.txid { // bbolt would continue from the previous commit and lose this one
				return NewDamage("page %d, the newest meta page, is lost", known.txid%2)
			}
			return fn(l)
		}); err != nil {
			err = errors.Join(err, tx.Rollback())
			open = false
			return err
		}
		committing = true
		return f.commit(l)
	})
	if f.notes = l.notes; cap(f.notes) > notesKept {
		f.notes = nil
	}
	switch {
	case err == nil:
		return f.committed(txid)
	case errors.Is(err, errLogLost):
		return f.fatalWrite(err)
	case errors.Is(err, ErrDamaged) && open && !f.isTruncated():
		f.stopWriting(err)
		return f.Explain(err)
	case errors.Is(err, ErrDamaged):
		return f.Explain(err)
	case committing && IsDiskFull(err) && !f.replaced(known):
		return ErrFull
	case committing:
		return f.fatalWrite(err)
	}
	return err
}

// commit commits a transaction. If it returns nil, the transaction is on the disk, unless syncs are
// disabled.
func (f *File) commit(l *WriteTx) error {
	if f.wal == nil {
		return l.Tx.Commit()
	}
	number := f.wal.number
	if !l.unlogged {
		number++
	}
	if err := setMark(l.Tx, newMark(f.wal.complete, number)); err != nil {
		return errors.Join(err, l.Tx.Rollback())
	}
	if l.unlogged {
		return l.Tx.Commit()
	}
	return f.wal.commit(l)
}

// committed records the meta page of a commit. The mapping cannot move meanwhile, because only the
// writer moves it.
func (f *File) committed(txid int) error {
	f.changed = true
	m, err := mappedMeta(f.Db, uint64(txid))
	if err != nil {
		f.stopWriting(err)
		return f.Explain(err)
	}
	f.meta.Store(&m)
	if f.wal != nil {
		f.wal.note()
	}
	return nil
}

// replaced reports whether the file has a newer meta page than known.
func (f *File) replaced(known metaPage) bool {
	next, err := f.metaAt((known.txid+1)%2, known.pageSize)
	return err == nil && next.txid > known.txid
}

// Writable returns the reason why writes are refused now, or nil.
func (f *File) Writable() error {
	if err := f.inPlace(); err != nil {
		return err
	}
	if foreign := f.foreignLog.Load(); foreign != nil {
		if _, err := os.Lstat(foreign.path); err == nil {
			return foreign
		}
	}
	return nil
}

// inPlace returns ErrLost if the file's path no longer leads to it, or the reason why no more
// writes are allowed.
func (f *File) inPlace() error {
	if refusal := f.Refusal.Load(); refusal != nil {
		return *refusal
	}
	if f.file == nil {
		return nil
	}
	if info, err := os.Stat(f.Path); err != nil || !os.SameFile(info, f.file) {
		return ErrLost
	}
	return nil
}

// Explain records a damage and adds the file's name to the error. If the open file was truncated,
// it ends the process.
func (f *File) Explain(err error) error {
	if f.isTruncated() {
		f.fail(fmt.Errorf("cannot use %s anymore: %w", f.Path, err))
		return err
	}
	f.Damage.note(err)
	return fmt.Errorf("%s: %w", f.Path, err)
}

// isTruncated reports whether the file ends before its last page.
func (f *File) isTruncated() bool {
	m := f.meta.Load()
	info, err := f.handle.Stat()
	return err == nil && info.Size() < int64(m.high)*int64(m.pageSize)
}

// stopWriting prevents all further writes. The current transaction stays open, and reads continue.
func (f *File) stopWriting(err error) {
	err = fmt.Errorf("%s: writing has stopped, because a commit found damage: %w", f.Path, err)
	f.Refusal.Store(&err)
	f.failed.Store(true)
}

// fatalWrite ends the process after a failed write.
func (f *File) fatalWrite(err error) error {
	f.fail(fmt.Errorf("cannot write %s: %w", f.Path, err))
	return err
}

// fail ends the process.
func (f *File) fail(err error) {
	f.Refusal.Store(&err)
	f.failed.Store(true)
	if f.fatal != nil {
		f.fatal(err)
		return
	}
	fmt.Fprintln(os.Stderr, "apilet:", err)
	os.Exit(1)
}
