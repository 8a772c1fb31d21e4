package boltfile

// This file runs transactions on the data file and knows in what state the file is: sound, damaged in places, or not to be written any
// more. tree.go and guard.go find damage; here is what follows from it.
//
//	found by                     the caller gets        and then
//	a read                       ErrDamaged             nothing: who reads elsewhere is served
//	a write, before its commit   ErrDamaged             nothing: bbolt has not been asked yet, so there is nothing to undo
//	a write, in its commit       ErrDamaged             no more writes: bbolt's memory is not to be trusted. The file is as before
//	either, the file being cut   ErrDamaged             the process ends: all that lies beyond the end is gone
//	the loss of the newest meta  what it asked for      no more writes. Reads know from memory where the tree's root is
//
// Every place is told to the log once, and named until a scrub finds nothing. Once one is known, commits write the freelist: without it
// the next start, and a commit that finds the disk full, would have to walk through all pages, and would stumble.

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// Why nothing was written.
var (
	// ErrFull is a full disk. Nothing has changed.
	ErrFull = errors.New("no space left on the disk: make room on the file system of the data file, or delete objects, which is still accepted and makes room in the file immediately unless old versions are kept (--history)")

	// ErrLost: the file's name leads nowhere or elsewhere, and what goes to a removed file is lost at exit. Reads go on.
	ErrLost = errors.New("the data file was removed or replaced while in use: put it back, or take a backup from the running server and start on that")

	// ErrClosed is what is asked of a closed file.
	ErrClosed = errors.New("store is closed")
)

// errMetaMoved: two commits have overtaken a read transaction that just began.
var errMetaMoved = errors.New("the meta page was replaced")

// A File is an open bbolt file.
type File struct {
	Path       string                          // of the file
	Db         *bbolt.DB                       // for the writer; reads go past it, page by page
	handle     *os.File                        // bbolt's own
	file       os.FileInfo                     // what lies at path; nil when nothing does, being ephemeral
	fatal      func(error)                     // ends the process
	warn       func(string)                    // receives a line for the administrator; may be nil
	Found      DamageBook                      // what reads and scrubs have met
	meta       atomic.Pointer[metaPage]        // of the newest commit
	metas      metaMap                         // for reads, which look whether there is a meta page
	logHalf    int64                           // bytes of half a log; 0: there is to be none
	wal        *wal                            // from the first write on; the writer's
	logGrowth  atomic.Int64                    // bytes that the log may take of the disk beside those that it has
	Refusal    atomic.Pointer[error]           // why nothing can be written now; nil while it can
	foreignLog atomic.Pointer[foreignLogError] // the log that refused the newest write; nil if none did
	failed     atomic.Bool                     // a transaction was left open: bbolt can no longer be closed
	lazyFree   bool                            // commits leave the freelist out; the writer's
	changed    bool                            // something was committed; the writer's
	notes      []byte                          // of ledgers, used again; the writer's
}

// freelistMax is how many free pages a checkpoint lists: 64 KiB of numbers.
const freelistMax = 8 << 10

// notesKept is how long a list of changes may be to be used again.
const notesKept = 1 << 20

// Options configure Open.
type Options struct {
	Ephemeral bool               // nobody looks for the file by its name, and nothing of it is kept
	Unlogged  bool               // commits wait for no disk, and there is no log
	LogBytes  int64              // of the write-ahead log; 0: 16 MiB, or less where the disk is small
	Fatal     func(error)        // what ends the process when writing cannot go on; nil: one line on stderr and exit 1
	Damaged   func(place string) // told of each place where the file is found damaged, once; may be nil
	Warn      func(text string)  // receives a line for the administrator; may be nil
}

// Open opens a file that VetToWrite has vetted, and takes over what the log has that was left beside it. After an error the file may be
// open, to be abandoned.
func Open(path string, left *LeftLog, o Options) (f *File, err error) {
	f = &File{Path: path, fatal: o.Fatal, warn: o.Warn, Found: DamageBook{report: o.Damaged}}
	return f, WithoutFaults(func() error { return f.begin(left, o) })
}

func (f *File) begin(left *LeftLog, o Options) (err error) {
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

// Abandon closes a file whose opening has failed, and leaves its log for the next one.
func (f *File) Abandon() {
	if f.Db == nil || f.failed.Load() {
		return
	}
	f.metas.close()
	if f.wal != nil {
		_ = f.wal.close() // what was written of it is synced
	}
	_ = f.Db.Close() // nothing was changed
}

// open maps a vetted file.
func (f *File) open(noSync bool) (err error) {
	options := dbOptions()
	options.NoSync = noSync
	if noSync { // no disk is spared by taking the lowest free page first, which costs more the more of them there are
		options.FreelistType = bbolt.FreelistMapType
	}
	options.NoGrowSync = noSync // else each 16 MiB that the file grows wait for the disk
	options.OpenFile = func(name string, flag int, mode os.FileMode) (_ *os.File, err error) {
		f.handle, err = os.OpenFile(name, flag, mode)
		return f.handle, err
	}
	if f.Db, err = bbolt.Open(f.Path, 0o600, options); err != nil {
		return err
	}
	f.lazyFree = true
	if !noSync { // a process that was killed may have left its last commit in the kernel's memory alone
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

// Close writes the freelist, so that the next opening need not scan the file. A file that was not changed stays as it is.
func (f *File) Close() (err error) {
	f.metas.close() // reads that are still to come look into the file
	if f.failed.Load() {
		return nil // bbolt may wait for ever for the transaction that failed; the process is on its way out
	}
	f.lazyFree = false
	switch {
	case f.Refusal.Load() != nil && f.wal != nil:
		err = f.wal.close()
	case f.Refusal.Load() != nil || f.file == nil: // nothing is kept of an ephemeral one
	case f.wal != nil:
		err = f.endLog()
	case f.changed:
		err = f.Transact(last)
	}
	if errors.Is(err, ErrFull) || errors.Is(err, ErrDamaged) {
		err = nil // all is there; only the next opening scans
	}
	if foreign := f.foreignLog.Load(); foreign != nil && f.warn != nil && f.Writable() != nil {
		f.warn(foreign.Error() + ". The next start refuses it")
	}
	if f.failed.Load() {
		return err
	}
	return errors.Join(err, f.Db.Close())
}

// last is what the last transaction does: its commit writes the freelist.
func last(l *Ledger) error {
	_, err := l.Guard(map[uint64]PageMark{})
	return err
}

// SyncAlways has every commit from now on wait for the disk, and waits for what was written.
func (f *File) SyncAlways() error {
	f.Db.NoSync, f.Db.NoGrowSync = false, false
	return f.Db.Sync()
}

// Failed tells whether a transaction was left open: bbolt can no longer be closed.
func (f *File) Failed() bool { return f.failed.Load() }

// ---- Room

// DiskSpace tells what the file system has free for this process, and its size; false where that is not known.
func (f *File) DiskSpace() (free, size int64, known bool) {
	conn, err := f.handle.SyscallConn()
	if err != nil {
		return 0, 0, false
	}
	_ = conn.Control(func(fd uintptr) { free, size, known = diskSpace(fd) }) // of a closed file nothing is known
	return free, size, known
}

// Sizes returns the sizes of the file and of its log, in bytes, as ls shows them.
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

// FreeBytes are the bytes of pages that are free, or will be after the next checkpoint.
func (f *File) FreeBytes() int64 {
	s := f.Db.Stats()
	return int64(s.FreePageN+s.PendingPageN) * int64(f.PageSize())
}

// ReadyBytes are the bytes of pages that are free now.
func (f *File) ReadyBytes() int64 { return int64(f.Db.Stats().FreePageN) * int64(f.PageSize()) }

func (f *File) PageSize() int { return f.meta.Load().pageSize }

// LogMayTake is how many bytes the log may take of the disk beside those that it has.
func (f *File) LogMayTake() int64 { return f.logGrowth.Load() }

// TellRoom tells the log how many bytes there are for what can wait, and whether they are few. The writer calls it.
func (f *File) TellRoom(spare int64, scarce bool) {
	if f.wal != nil {
		f.wal.short, f.wal.spare = scarce, spare
	}
}

// ---- Transactions

// View runs fn in a read transaction. Never call view within view: a commit that has to map the file anew would wait for the outer, and
// the inner for the commit.
func (f *File) View(fn func(*Pages) error) error {
	err := errMetaMoved
	for n := 0; n < 3 && err == errMetaMoved; n++ {
		err = WithoutFaults(func() error { return f.look(fn) })
	}
	switch {
	case err == errMetaMoved:
		return f.Explain(Damaged("a meta page cannot be read"))
	case errors.Is(err, berrors.ErrDatabaseNotOpen):
		return ErrClosed
	case errors.Is(err, ErrDamaged):
		return f.Explain(err)
	}
	return err
}

func (f *File) look(fn func(*Pages) error) error {
	known := *f.meta.Load()
	if !f.hasMeta(known) {
		// bbolt would panic with its locks held. Nobody writes any more either, so that nothing moves and no page is reused.
		f.Found.note(Damaged("pages 0 and 1, the meta pages, are lost"))
		return fn(newPages(f.Db, known))
	}
	return f.Db.View(func(tx *bbolt.Tx) error {
		m, id := known, uint64(tx.ID())
		switch {
		case id < known.txid: // nobody writes any more
			f.Found.note(Damaged("page %d, the newest meta page, is lost", known.txid%2))
		case id > known.txid:
			var err error
			if m, err = mappedMeta(f.Db, id); err != nil {
				return errMetaMoved
			}
		}
		return fn(newPages(f.Db, m))
	})
}

// hasMeta tells whether bbolt will find a meta page, given the newest one that we know. Every read asks, so it looks at memory first.
func (f *File) hasMeta(known metaPage) bool {
	if f.metas.sound(known.pageSize) {
		return true
	}
	for _, n := range [...]uint64{known.txid % 2, (known.txid + 1) % 2} {
		if _, err := f.metaAt(n, known.pageSize); !errors.Is(err, ErrDamaged) {
			return true // also a closed file, of which bbolt says so
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
		return m, Damaged("page %d, a meta page, is lost", n)
	}
	return m, nil
}

// Update is bbolt's Update with two differences: a panic is never rolled back by walking through the damaged file, and an error of the
// commit itself, but for a full disk, ends the process. After a failed sync nobody knows what is on the disk, while the memory map may
// show the new state already. There is one writer.
func (f *File) Update(fn func(*Ledger) error) error {
	if err := f.inPlace(); err != nil { // looking for the file takes a microsecond, the commit's sync some hundred
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
			return f.lose(err)
		case err != nil && IsDiskFull(err): // the file may have pages: bbolt's own two syncs will do
		case err != nil:
			return err
		}
	}
	if f.wal != nil {
		if err := f.makePages(); err != nil { // a log that is lost is not tried again
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

// makePages sees to it that the next transaction finds free pages: those that wait for a checkpoint when the disk has no others.
func (f *File) makePages() error {
	if f.wal.short {
		if err := f.wal.release(); err != nil {
			return f.lose(lostLog(err))
		}
	}
	if n := f.wal.ahead(f.meta.Load().high); n > 0 {
		if err := f.growAhead(n); err != nil && f.Refusal.Load() != nil {
			return err
		}
	}
	return nil
}

// checkpointIfDue begins a checkpoint when it is time, of a commit of its own that writes the freelist: a start that goes on from there need not walk through
// all pages to find the free ones. Without room for the list the checkpoint is made without it.
func (f *File) checkpointIfDue() error {
	if err := f.wal.reap(false); err != nil {
		return f.lose(lostLog(err))
	}
	if !f.wal.due(int64(f.meta.Load().high) * int64(f.PageSize())) {
		return nil
	}
	err := f.listingFree(func() error {
		return f.Transact(func(l *Ledger) error {
			l.unlogged = true
			_, err := l.Guard(map[uint64]PageMark{})
			return err
		})
	})
	if err != nil && f.Refusal.Load() != nil {
		return err
	}
	if list := f.meta.Load().freelist; list != noFreelist && f.wal.grown.holds(list) {
		f.wal.grown = PageRun{} // what is waited for has to have the list
	}
	if err := f.wal.turn(); err != nil {
		return f.lose(lostLog(err))
	}
	return nil
}

// listingFree has the commits within write the freelist, unless it is long.
func (f *File) listingFree(commit func() error) error {
	if f.FreeBytes()/int64(f.PageSize()) > freelistMax {
		return commit()
	}
	defer func(lazy bool) { f.lazyFree = lazy }(f.lazyFree)
	f.lazyFree = false
	return commit()
}

// Transact is update of a file that may be lost, and without a log while there is none.
func (f *File) Transact(fn func(*Ledger) error) error {
	known := *f.meta.Load()
	f.Db.NoFreelistSync = f.lazyFree && f.Found.First() == ""
	txid, open, committing := 0, false, false
	l := &Ledger{notes: f.notes[:0]}
	err := WithoutFaults(func() error {
		if _, err := f.metaAt(known.txid%2, known.pageSize); err != nil {
			return err
		}
		tx, err := f.Db.Begin(true)
		if err != nil {
			return err
		}
		txid, open, l.Tx = tx.ID(), true, tx
		if err := WithoutFaults(func() error {
			if uint64(txid) <= known.txid { // bbolt would build on the commit before and lose the last one
				return Damaged("page %d, the newest meta page, is lost", known.txid%2)
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
		return f.lose(err)
	case errors.Is(err, ErrDamaged) && open && !f.cutShort():
		f.stopWriting(err)
		return f.Explain(err)
	case errors.Is(err, ErrDamaged):
		return f.Explain(err)
	case committing && IsDiskFull(err) && !f.replaced(known):
		return ErrFull
	case committing:
		return f.lose(err)
	}
	return err
}

// commit returns when a transaction is on the disk, or when it is committed where nobody wants it on the disk.
func (f *File) commit(l *Ledger) error {
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

// committed notes the meta page of a commit. The writer alone moves the map.
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

// replaced tells whether a newer meta page than a known one has come into the file.
func (f *File) replaced(known metaPage) bool {
	next, err := f.metaAt((known.txid+1)%2, known.pageSize)
	return err == nil && next.txid > known.txid
}

// Writable returns why nothing can be written now, or nil.
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

// inPlace returns ErrLost if the file does not have its name any more, or the reason for which no further write is made.
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

// Explain notes a damage and names the file to the caller. A file cut under our feet ends the process.
func (f *File) Explain(err error) error {
	if f.cutShort() {
		f.fail(fmt.Errorf("cannot use %s any more: %w", f.Path, err))
		return err
	}
	f.Found.note(err)
	return fmt.Errorf("%s: %w", f.Path, err)
}

// cutShort tells whether the file ends before its last page.
func (f *File) cutShort() bool {
	m := f.meta.Load()
	info, err := f.handle.Stat()
	return err == nil && info.Size() < int64(m.high)*int64(m.pageSize)
}

// stopWriting leaves a transaction open, so that no other one can begin. Reads go on.
func (f *File) stopWriting(err error) {
	err = fmt.Errorf("%s: nothing is written any more, because a commit has met damage: %w", f.Path, err)
	f.Refusal.Store(&err)
	f.failed.Store(true)
}

// lose ends the process for what a write has come to.
func (f *File) lose(err error) error {
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
