package boltfile

// This file is the write-ahead log of a data file: what makes a write durable. logfile.go draws its bytes.
//
// A disk may write in any order what it has not been told to sync, so that a file of pages needs two syncs a commit, each of scattered pages: one for
// the pages, one for the meta page that counts on them. A log needs one, of a block. So a commit is appended to the log as one record, that is synced
// (beside bbolt's own commit, which waits for no disk), and then it is shown and answered. The pages get to the disk whenever the kernel likes. Once
// in a while a checkpoint syncs them all, and the log begins anew.
//
//	                 data file (pages)                                 log
//	commit           bbolt writes free pages and a meta page, unsynced record appended, synced           then it is answered
//	checkpoint       all that was written is synced                    then the head: go from this meta page on, with the records behind it
//	start            the checkpoint's meta page is put back            the records are replayed, all in one transaction
//
// Pinned checkpoints. What the kernel has written of the commits since the checkpoint nobody knows, in which order neither. That does no harm because
// no page of the checkpoint is touched: a read transaction of bbolt's stays open on it, and bbolt gives no page away that an open transaction can see.
// A start puts the checkpoint's meta page into its place and has the file of that moment, to the byte.
//
// Pages ahead. A page that was both taken and freed since the checkpoint bbolt gives away again, so that a handful of pages, which the kernel writes
// once in half a minute, serve many commits. That holds for pages that came from its list of free ones, and not for those from the end of the file. So
// the file is made longer ahead of need, in steps (growAhead), and the lowest free page is taken first (bbolt's array freelist): 8 KB reach the disk
// for a create of 1 KiB, of which 4 are the log's block.
//
// Two halves. The log is used in turns: when it is time for a checkpoint (due), or a half is full, the writer goes on in the other one, and a
// goroutine makes the checkpoint of where it was.
//
//	writer           ... record 812 | half 1, epoch 8: record 813 ...                        the transaction R2 is opened between the two
//	goroutine        data file synced → head, its copy: from R2 on, epoch 8 → R1 closed       half 0 is free again
//
// Until the head is there the old one counts, and a start replays both halves; R1, its checkpoint, is let go only when both copies of the new head are
// synced.
//
// A commit that bbolt refuses (a full disk) has its record taken back: its head is made zeros, synced, before anything else is written or answered. A
// failed sync is never tried again: nobody knows what the disk has then, and the process ends. The goroutine has a handle of its own for the heads,
// since the kernel tells each failed write-back once a handle.
//
// A checkpoint that was due, which most are, is of a commit of its own that writes bbolt's list of free pages (checkpointIfDue): a start that goes on
// from there need not walk through all pages to find them. It vets those that it reads and those that the replay changes (vetReplay).
//
// What has no room in a half, or none on the disk by which the log would become longer, and what might make bbolt map its file anew (which waits for
// all read transactions, the pinned one too: bbolt doubles its mapping up to 1 GiB, then adds one each time), is committed by a checkpoint at once:
// the pin is let go before bbolt's commit, which does no harm as long as no other transaction begins, and the data file is synced before the answer.
// So a mapping that is small, on 32 bits or on Windows, where it would size the file, costs no more than that.
//
// The log may be removed, replaced or cut while the server runs. Before a write is acknowledged its file is looked for by its name. When it is not there, or
// too short, the data file is closed as at a clean close, since it has all commits, and the next write makes a new log (File.leaveLog).
//
// While there is a log the data file's format is 3, so that the file is refused if the log is missing. The log comes
// before the format does, at the first write, and goes after it, at a clean close; its head says "idle" at those moments, when bbolt's own two syncs
// do the work.
//
// What is trusted of the disk: that what it says is synced stays; that a block which is written anew keeps the bytes that do not change (the last
// block of the log is written for each record in it). Damage of the very last record is told from a torn one by the note in the data file (proof.go), which a
// power cut may take along: then that write is gone, unnoticed.
//
// Rejected: bbolt's commits only at checkpoints, and what is newer in memory in order (etcd's way), which saves the kernel's writing back of pages,
// but has every reader merge two sources; a log that is made anew instead of used again, whose size changes with each record, which the file system
// has to sync, too.

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"apilet/internal/atomicfile"
)

const (
	logBytesMax     = 16 << 20
	logDiskShare    = 64 // of the disk, the log takes at most one part in so many
	logBytesMin     = 256 << 10
	logStepMax      = 1 << 20 // bytes by which it is made longer
	checkpointAge   = 5 * time.Minute
	checkpointBytes = 2 << 20 // of records, or three quarters of a half: what has no room in so much is why a half is longer
	pendingMin      = 4 << 20 // bytes of pages that wait for a checkpoint to be used again: as many, or
	pendingShare    = 8       // one part in so many of the file, call for one
)

// errLogLost ends the process: log and pages may differ, or nobody knows what is on the disk.
var errLogLost = errors.New("the write-ahead log cannot go on")

// A wal is a log in use. All of it is the writer's, but for what the goroutine of a checkpoint was given.
type wal struct {
	db    *bbolt.DB
	data  *os.File                  // the data file, for notes
	meta  *atomic.Pointer[metaPage] // of its newest commit
	inode uint64                    // of the data file
	path  string
	file  *os.File
	info  os.FileInfo // of file
	heads *os.File    // the same file, for its heads
	Disk

	head     logHead       // the newest that was asked for
	epoch    uint64        // that is written
	half     int           // in which
	pos      int64         // where the next record goes, from the half's start
	made     [2]int64      // how far each half is known to be long enough
	number   uint64        // of the next record
	length   int64         // bytes that the log has on the disk, at least
	complete uint64        // generation of the newest head that is on the disk
	buf      []byte        // of records; reused
	pin      *bbolt.Tx     // on the checkpoint, or on the one that is being made
	before   *bbolt.Tx     // on the checkpoint before the one that is being made; nil if there is none
	began    time.Time     // when the epoch did
	making   chan error    // answers when the checkpoint under way is there; nil: none is
	mapped   int64         // bbolt's mapping has at least so many bytes
	had      int64         // bytes that the log had of the disk when it was opened
	growth   *atomic.Int64 // bytes of the disk that it may take beside those that it has
	short    bool          // the disk has no room: pages that wait for a checkpoint are room
	spare    int64         // how much room there is for what can wait
	turns    int           // checkpoints that were begun

	grown    PageRun // the pages by which the file was made longer: the next commit is to make a checkpoint
	grownFor int     // the checkpoint after which that was done last
	settled  int     // commits since the last checkpoint was there
}

// A Disk is what a log goes through on its way to the disk. Tests come between, and cut the power.
type Disk struct {
	Write       func(b []byte, at int64) (int, error) // to the log
	Sync        func() error                          // of the log
	WriteAtHead func(b []byte, at int64) (int, error) // to the log's heads
	SyncHead    func() error
	SyncData    func(high uint64, but PageRun) error // of the data file's pages up to one, but for some
}

// Disk is nil while there is no log. The writer alone may change it.
func (f *File) Disk() *Disk {
	if f.wal == nil {
		return nil
	}
	return &f.wal.Disk
}

// Checkpoints is how many checkpoints were begun. The writer calls it.
func (f *File) Checkpoints() int {
	if f.wal == nil {
		return 0
	}
	return f.wal.turns
}

// Settle waits for the checkpoint that is under way. The writer calls it.
func (f *File) Settle() error {
	if f.wal == nil {
		return nil
	}
	return f.wal.reap(true)
}

// logHalf is how long a half is to be, given the bytes of the log and of the disk; 0: not known.
func logHalf(wanted, disk int64) int64 {
	if wanted == 0 {
		wanted = logBytesMax
		if disk > 0 {
			wanted = max(logBytesMin, min(wanted, disk/logDiskShare))
		}
	}
	return max(2*logBlock, wanted/2/logBlock*logBlock)
}

// createLog makes an idle log.
func createLog(path string, h logHead) error {
	return atomicfile.PlaceFile(path, func(temp string) error {
		file, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		b := h.encode()
		_, err = file.WriteAt(append(b, b...), 0)
		return errors.Join(err, file.Sync(), file.Close())
	})
}

// openLog opens the log at path for writing.
func (f *File) openLog(path string, h logHead) (w *wal, err error) {
	w = &wal{db: f.Db, data: f.handle, meta: &f.meta, path: path, growth: &f.logGrowth, head: h, epoch: h.epoch, half: h.at, number: h.number, complete: h.generation}
	if w.file, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
		return nil, err
	}
	if w.heads, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
		return nil, errors.Join(err, w.file.Close())
	}
	w.Write, w.Sync = w.file.WriteAt, func() error { return syncFile(w.file) }
	w.SyncData = func(high uint64, but PageRun) error { return syncPages(w.db, high, but) }
	m := f.meta.Load()
	w.mapped = mapBytes(max(int64(m.high)*int64(m.pageSize), int64(dbOptions().InitialMmapSize)))
	err = syncFile(w.file) // the heads are about to name its length
	if err == nil {
		w.info, err = w.file.Stat()
	}
	if err != nil {
		return nil, errors.Join(err, w.close())
	}
	w.had, w.length = diskUse(w.info)-logHeadsSize, w.info.Size()
	if info, err := f.handle.Stat(); err == nil {
		w.inode, _, _ = identity(info)
	}
	w.tellGrowth()
	w.WriteAtHead, w.SyncHead = w.heads.WriteAt, func() error { return syncFile(w.heads) }
	return w, nil
}

// freshHead is the head of a new log.
func freshHead(lineage [16]byte, half int64) logHead {
	var random [8]byte
	rand.Read(random[:])
	return logHead{phase: logIdle, generation: 1, lineage: lineage, half: half, epoch: binary.BigEndian.Uint64(random[:]) >> 2, number: firstNumber(), length: logHeadsSize}
}

// mapBytes is how much bbolt maps for a file of a size.
func mapBytes(size int64) int64 {
	for n := int64(32 << 10); n <= 1<<30; n *= 2 {
		if size <= n {
			return n
		}
	}
	return (size + 1<<30 - 1) &^ (1<<30 - 1)
}

// ---- A commit

// commit commits a transaction. It is durable when there is no error. With errLogLost nobody knows whether it is.
func (w *wal) commit(l *Ledger) error {
	if err := w.reap(false); err != nil {
		return lostLog(err)
	}
	size := int64(logRecordHead + len(l.notes))
	if w.remaps(l) || size > w.head.half || w.needsFreelist() {
		return w.commitWhole(l)
	}
	at := w.place(size)
	if at+size > w.head.half {
		if err := w.turn(); err != nil {
			_ = l.Tx.Rollback()
			return lostLog(err)
		}
		at = w.place(size)
	}
	switch begun, err := w.append(at, l.notes); {
	case err != nil && !begun && IsDiskFull(err): // the file may have pages
		return w.commitWhole(l)
	case err != nil:
		_ = l.Tx.Rollback()
		if !begun {
			return err
		}
		if failed := w.takeBack(at); failed != nil {
			return fmt.Errorf("%w; %w", err, failed)
		}
		return err
	}
	synced := make(chan error, 1)
	go func() { synced <- w.Sync() }() // it ends with the sync
	err := l.Tx.Commit()
	if failed := <-synced; failed != nil {
		return lostLog(failed)
	}
	if err != nil {
		if failed := w.takeBack(at); failed != nil {
			return lostLog(fmt.Errorf("%w; %w", failed, err))
		}
		if failed := w.release(); failed != nil {
			return lostLog(failed)
		}
		return err
	}
	w.pos, w.number, w.settled = (at+size+7)&^7, w.number+1, w.settled+1
	w.length = max(w.length, w.head.start(w.half)+w.made[w.half])
	return nil
}

func lostLog(err error) error { return fmt.Errorf("%w: %w", errLogLost, err) }

// place is where a record of a size goes in the half.
func (w *wal) place(size int64) int64 {
	if left := logBlock - w.pos%logBlock; size > left && size <= logBlock {
		return w.pos + left
	}
	return w.pos
}

// append writes a record, and tells whether it has begun to. What a sync has to make longer costs more than the record: it is made longer ahead, in steps.
func (w *wal) append(at int64, notes []byte) (begun bool, err error) {
	w.buf = appendLogRecord(w.buf[:0], w.epoch, w.number, w.head.start(w.half)+at, notes)
	end := at + int64(len(w.buf))
	if w.made[w.half] < end {
		from := max(w.made[w.half], at)
		to := min(w.head.half, end+min(logStepMax, w.head.half/8))
		if err := w.lengthen(from, to); err != nil {
			return false, err
		}
		w.made[w.half] = to
		w.tellGrowth()
	}
	_, err = w.Write(w.buf, w.head.start(w.half)+at)
	if cap(w.buf) > logStepMax {
		w.buf = nil
	}
	return true, err
}

// lengthen writes zeros into the half, a block at a time: of what was written at once Linux makes one folio of its cache, and counts all of it as written anew
// when a block of it is.
func (w *wal) lengthen(from, to int64) error {
	zeros := make([]byte, logBlock)
	for at := from; at < to; at += logBlock - at%logBlock {
		if _, err := w.Write(zeros[:min(logBlock-at%logBlock, to-at)], w.head.start(w.half)+at); err != nil {
			return err
		}
	}
	return nil
}

// tellGrowth notes how much of the disk the log may take beside what it has.
func (w *wal) tellGrowth() { w.growth.Store(max(0, 2*w.head.half-max(w.had, w.made[0]+w.made[1]))) }

// takeBack makes sure that a record which was not committed is never replayed.
func (w *wal) takeBack(at int64) error {
	if _, err := w.Write(make([]byte, logRecordHead), w.head.start(w.half)+at); err != nil {
		return lostLog(err)
	}
	if err := w.Sync(); err != nil {
		return lostLog(err)
	}
	return nil
}

// remaps tells whether a transaction might make bbolt map its file anew. Each change takes pages on the way to its key, and those that it splits or
// merges; the freelist may be written, too.
func (w *wal) remaps(l *Ledger) bool {
	size := int64(w.db.Info().PageSize)
	high := l.Tx.Size()
	return high+int64(2*len(l.notes))+size*(16*int64(l.changes)+64)+high/size*16 >= w.mapped
}

// needsFreelist tells whether damage has become known, so that commits write the freelist: a start wants it in the checkpoint.
func (w *wal) needsFreelist() bool {
	m, _ := decodeMeta(w.head.meta[:])
	return !w.db.NoFreelistSync && m.freelist == noFreelist
}

// commitWhole commits what is not for the log, and waits for the data file instead.
func (w *wal) commitWhole(l *Ledger) error {
	if err := w.reap(true); err != nil {
		_ = l.Tx.Rollback()
		return lostLog(err)
	}
	w.unpin()
	err := l.Tx.Commit()
	if err == nil {
		w.number++ // the mark counts it, as if it had a record
	}
	if failed := w.checkpointNow(); failed != nil {
		return lostLog(failed)
	}
	return err
}

func (w *wal) unpin() { release(&w.pin) }

// release ends a read transaction; nil is none.
func release(tx **bbolt.Tx) {
	if *tx != nil {
		_ = (*tx).Rollback() // of a reader: it has nothing to fail with
		*tx = nil
	}
}

// ---- Checkpoints

// checkpointNow makes a checkpoint, and waits for it.
func (w *wal) checkpointNow() error {
	if err := w.turn(); err != nil {
		return err
	}
	return w.reap(true)
}

// release makes a checkpoint when pages wait for one to be free, for a file that cannot grow.
func (w *wal) release() error {
	if w.db.Stats().PendingPageN == 0 {
		return nil
	}
	return w.checkpointNow()
}

// due tells whether it is time for a checkpoint, and none is under way.
func (w *wal) due(fileSize int64) bool {
	if w.making != nil || w.pos == 0 && w.grown.Count == 0 {
		return false
	}
	if w.grown.Count > 0 || w.pos > min(checkpointBytes, w.head.half/4*3) || time.Since(w.began) > checkpointAge {
		return true
	}
	return int64(w.db.Stats().PendingPageN)*int64(w.db.Info().PageSize) > max(pendingMin, fileSize/pendingShare)
}

// turn goes on in the other half, once that is free, and has a checkpoint made of what is committed.
func (w *wal) turn() error {
	if err := w.reap(true); err != nil {
		return err
	}
	tx, err := w.db.Begin(false)
	if err != nil {
		return err
	}
	h, err := w.nextHead(tx)
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	grown := w.grown
	w.before = w.pin
	w.head, w.epoch, w.half, w.pos, w.pin, w.began = h, h.epoch, h.at, 0, tx, time.Now()
	w.turns++
	w.grown = PageRun{}
	making := make(chan error, 1)
	w.making = making
	go func() { making <- w.checkpoint(h, grown) }() // it ends with the disk
	return nil
}

// nextHead is the head of a log that goes from what a transaction sees.
func (w *wal) nextHead(tx *bbolt.Tx) (h logHead, err error) {
	m, err := mappedMeta(w.db, uint64(tx.ID()))
	if err != nil {
		return h, err
	}
	h = w.head
	h.phase, h.generation, h.epoch, h.at, h.number, h.length = logUsed, h.generation+1, w.epoch+1, 1-w.half, w.number, w.length
	copy(h.meta[:], mapping(w.db, 2*m.pageSize)[int(tx.ID()%2)*m.pageSize:])
	w.mapped = max(w.mapped, mapBytes(int64(m.high)*int64(m.pageSize)))
	err = WithoutFaults(func() error {
		revs, _ := newPages(w.db, m).Bucket(InRev)
		h.rev = int64(revs.Sequence)
		return nil
	})
	return h, err
}

// checkpoint syncs the pages, then says so in the head. grown are free pages, of which no byte counts.
func (w *wal) checkpoint(h logHead, grown PageRun) error {
	m, _ := decodeMeta(h.meta[:])
	if err := w.SyncData(m.high, grown); err != nil {
		return err
	}
	return w.writeHead(h)
}

// writeHead writes both copies, each synced before the other is touched.
func (w *wal) writeHead(h logHead) error {
	b := h.encode()
	for n := range int64(2) {
		if _, err := w.WriteAtHead(b, n*logBlock); err != nil {
			return err
		}
		if err := w.SyncHead(); err != nil {
			return err
		}
	}
	return nil
}

// reap takes the answer of the checkpoint under way, if there is one already, or waits for it. Before the pages of the checkpoint before are free, the data file
// notes that the log has another one now.
func (w *wal) reap(wait bool) (err error) {
	if w.making == nil {
		return nil
	}
	if wait {
		err = <-w.making
	} else {
		select {
		case err = <-w.making:
		default:
			return nil
		}
	}
	w.making, w.settled = nil, 0
	if err != nil {
		return err
	}
	w.complete = w.head.generation
	w.note()
	release(&w.before)
	return nil
}

// ---- Pages ahead

const (
	aheadMin    = 256 // pages by which the file is made longer
	aheadMax    = 512
	aheadShare  = 8 // of the file's pages
	aheadLeft   = 4 // one part in so many of them is left when it is time for more
	aheadSettle = 2 // commits after a checkpoint, until what it has set free is counted
)

// ahead tells by how many pages the file is to be made longer now; 0: there are enough, or it is not the time.
func (w *wal) ahead(high uint64) int {
	n := min(max(int(high/aheadShare), aheadMin), aheadMax, int(w.head.half/logBlock))
	end := (int64(high) + 2*int64(n)) * int64(w.db.Info().PageSize)
	switch {
	case w.making != nil, w.settled < aheadSettle, w.grownFor == w.turns, w.spare < 2*int64(n*w.db.Info().PageSize), end >= w.mapped:
		return 0
	case w.db.Stats().FreePageN >= n/aheadLeft:
		return 0
	}
	return n
}

// growAhead makes the file longer by some pages that are free. While a checkpoint is pinned bbolt gives a page away again as soon as it is free if the
// page was taken after the checkpoint, which it knows of pages that were free before, and not of those at the end of the file: they would lie idle
// until the next checkpoint, and each commit would make the kernel write other pages. So a bucket of as many pages is filled and deleted. Another
// transaction comes after these, since a checkpoint keeps what the transaction before it has set free. None of them is in the log: they change nothing
// that a start would miss. The checkpoint does not wait for the pages of the first one, all of which are free then: they are written again before
// long.
func (f *File) growAhead(pages int) error {
	f.wal.grownFor = f.wal.turns
	grown := PageRun{First: f.meta.Load().high}
	name, page := []byte("ahead"), f.Db.Info().PageSize
	value := make([]byte, page/2-64) // two of them have room in a page, and bbolt wants two
	for _, change := range []func(*bbolt.Tx) error{
		func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists(name)
			for n := 0; n < 2*pages && err == nil; n++ {
				b.FillPercent = 1
				err = b.Put(binary.BigEndian.AppendUint64(nil, uint64(n)), value)
			}
			return err
		},
		func(tx *bbolt.Tx) error { return tx.DeleteBucket(name) },
		func(*bbolt.Tx) error { return nil },
	} {
		if err := f.Transact(func(l *Ledger) error {
			l.unlogged = true
			_, err := l.Guard(map[uint64]PageMark{})
			return errors.Join(err, change(l.Tx))
		}); err != nil {
			return err
		}
		if grown.Count == 0 {
			grown.Count = f.meta.Load().high - grown.First
		}
	}
	f.wal.grown = grown
	return nil
}

// ---- From the first write to the close

// startLog makes the log and takes it into use. Nothing of the file waits for a sync.
func (f *File) startLog() (err error) {
	path := f.Path + LogSuffix
	var lineage [16]byte
	if err := f.View(func(p *Pages) error {
		meta, _ := p.Bucket(InMeta)
		copy(lineage[:], meta.Get([]byte("lineage")))
		return nil
	}); err != nil {
		return err
	}
	h := freshHead(lineage, f.logHalf)
	left, err := readLog(f.Path)
	switch {
	case err != nil:
		return err
	case left.Used():
		foreign := &foreignLogError{path}
		f.foreignLog.Store(foreign)
		return foreign
	case left != nil && left.head.lineage == lineage: // of a start or a close that was cut short: it is long enough
		h = left.head
		h.number = firstNumber()
	case left != nil:
		err = os.Remove(path)
		fallthrough
	default:
		err = errors.Join(err, createLog(path, h))
	}
	if err != nil {
		return err
	}
	f.foreignLog.Store(nil)
	w, err := f.openLog(path, h)
	if err != nil {
		return err
	}
	if err = f.listingFree(func() error {
		return f.Transact(func(l *Ledger) error {
			g, err := l.Guard(map[uint64]PageMark{})
			if err == nil {
				err = g.VetMeta()
			}
			return errors.Join(err, l.PutMetaInt("format", FormatLogged))
		})
	}); err != nil {
		return errors.Join(err, w.close())
	}
	return f.useLog(w)
}

// A foreignLogError refuses writes while the log of another data file, or of an earlier moment, has the
// name of this file's log. For callers it is an ErrLost.
type foreignLogError struct{ path string }

func (e *foreignLogError) Error() string {
	return e.path + " is not the write-ahead log of the running server: remove it, or move it elsewhere. The data file has all acknowledged writes"
}

// Is reports whether target is ErrLost.
func (e *foreignLogError) Is(target error) bool { return target == ErrLost }

// useLog makes a checkpoint of the file, and has the log do what bbolt's syncs did.
func (f *File) useLog(w *wal) error {
	if err := w.checkpointNow(); err != nil {
		return errors.Join(lostLog(err), w.close())
	}
	f.wal, f.Db.NoSync, f.Db.NoGrowSync = w, true, true
	return nil
}

func (w *wal) close() error {
	_ = w.reap(true)
	release(&w.before)
	w.unpin()
	return errors.Join(w.file.Close(), w.heads.Close())
}

// resume replays what a log that was left has behind its checkpoint, which was put back.
func (f *File) resume(left *LeftLog) error {
	now, err := readLog(f.Path)
	if err == nil && (now == nil || now.head != left.head || len(now.records) != len(left.records)) || f.meta.Load().txid != left.txid() {
		return fmt.Errorf("%s is in use by another process: stop that one first, or choose another file", f.Path)
	}
	if err != nil {
		return err
	}
	f.Db.NoSync, f.Db.NoGrowSync = true, true
	if len(left.records) > 0 {
		if err := f.listingFree(func() error { return f.Transact(left.replay) }); err != nil {
			return err
		}
	}
	h := left.head
	h.epoch, h.number = h.epoch+1, firstNumber() // the epoch is above all that a half may have
	w, err := f.openLog(left.path, h)
	if err != nil {
		return err
	}
	return f.useLog(w)
}

// replay makes the changes of all records.
func (l *LeftLog) replay(to *Ledger) error {
	for _, r := range l.records {
		if err := to.replay(r.body); err != nil {
			return fmt.Errorf("%s: record %d: %w", l.path, r.number, err)
		}
	}
	return setMark(to.Tx, newMark(l.head.generation, l.head.number+uint64(len(l.records))))
}

func (l *LeftLog) txid() uint64 {
	m, _ := decodeMeta(l.head.meta[:])
	return m.txid
}

// endLog closes the file without a log, as of the last commit.
func (f *File) endLog() error {
	w := f.wal
	f.wal = nil
	err := w.checkpointNow()
	if err == nil {
		h := w.head
		h.phase, h.generation = logIdle, h.generation+1
		err = w.writeHead(h)
	}
	ours := sameFile(w.file, w.path)
	err = errors.Join(err, w.close())
	if err != nil {
		return err
	}
	f.Db.NoSync, f.Db.NoGrowSync = false, false
	if err := f.Transact(func(l *Ledger) error {
		return errors.Join(last(l), l.PutMetaInt("format", FormatClosed), setMark(l.Tx, 0))
	}); err != nil {
		return err // the log is idle: the next opening needs it no more, and is not hindered
	}
	w.note()
	if !ours {
		return nil
	}
	return errors.Join(os.Remove(w.path), atomicfile.SyncDir(filepath.Dir(w.path)))
}

// inPlace reports whether the log still has its name and its length.
func (w *wal) inPlace() bool {
	info, err := os.Stat(w.path)
	return err == nil && os.SameFile(info, w.info) && info.Size() >= w.length
}

// leaveLog closes a file whose log was removed, replaced or cut, without that log: the file has all commits. The next write makes a new one.
func (f *File) leaveLog() error {
	if f.warn != nil {
		f.warn(fmt.Sprintf("%s was removed, replaced or cut while in use; all commits are written into the data file, and the next write makes a new log", f.wal.path))
	}
	if err := f.endLog(); err != nil {
		return f.lose(lostLog(err))
	}
	return nil
}

// sameFile tells whether an open file is still what has its name.
func sameFile(file *os.File, path string) bool {
	mine, err := file.Stat()
	there, lost := os.Stat(path)
	return err == nil && lost == nil && os.SameFile(mine, there)
}
