package boltfile

// This file implements the write-ahead log of a data file, which makes writes durable. logfile.go
// describes its format.
//
// A disk may reorder unsynced writes. Therefore bbolt itself syncs each commit twice: first the
// pages, and then the meta page that refers to them. Both syncs write scattered pages. With a log,
// it is sufficient to sync a single block. The writer appends each commit to the log as a single
// record. It syncs the record while bbolt commits without a sync. The commit is then published and
// acknowledged. The changed pages stay in memory (overlay.go) until the next checkpoint writes and
// syncs them. After a checkpoint, the log is reused from the start.
//
//	                 data file (pages)                                 log
//	commit           unchanged; new pages are in memory                record appended and synced        then acknowledged
//	checkpoint       changed pages are written and synced              then the head: start from this meta page and the records after it
//	start            the checkpoint's meta page is restored            the records are replayed in one transaction
//
// Pinned checkpoints. The kernel may write the pages of the next checkpoint in any order. This is
// harmless, because the pages of the current checkpoint are never modified. The log keeps a read
// transaction open on the checkpoint, and bbolt does not reuse pages while an open transaction can
// see them. A start restores the checkpoint's meta page and gets exactly the state of the
// checkpoint.
//
// Pages ahead. bbolt reuses a page that was allocated and freed since the checkpoint. As a result,
// many commits use the same few pages in memory. This works only for pages from the freelist, and
// not for pages from the end of the file. Therefore the file is extended in advance, in steps
// (growAhead), and bbolt uses the lowest free page first (its array freelist). A checkpoint writes
// only the pages that are still in use.
//
// Two halves. The halves of the log are used in turn. If a checkpoint is due or the current half is
// full, the writer switches to the other half. At the same time, a goroutine makes a checkpoint of
// the state at that point.
//
//	writer           ... record 812 | half 1, epoch 8: record 813 ...                        transaction R2 begins between the two
//	goroutine        data file synced → head and its copy: from R2 on, epoch 8 → R1 closed    half 0 is free again
//
// The old head is valid until the new head has been written. In the meantime, a start replays both
// halves. The old checkpoint, R1, is released only after both copies of the new head are synced.
//
// If bbolt fails to commit because the disk is full, the record is revoked: its head is overwritten
// with zeros and synced before anything else is written or acknowledged. A failed sync is never
// retried, because the content of the disk is then unknown; the process ends. The goroutine uses a
// separate handle for the heads, because the kernel reports each write error only once per handle.
//
// If a checkpoint is due, the writer first makes an extra commit to write bbolt's freelist
// (checkpointIfDue). Otherwise the next start would have to read all pages to find the free pages.
// With a freelist, it only vets the pages that it needs and the pages that the replay changes
// (vetReplay).
//
// Some commits are followed by an immediate checkpoint instead of a record: commits that are too
// large for a half, commits for which the log cannot grow because the disk is full, and commits
// that may make bbolt remap its file. Remapping waits for all read transactions, including the
// pinned one. (bbolt doubles its mapping up to 1 GiB and then adds 1 GiB each time.) In all these
// cases, the pin is released before bbolt commits. This is harmless as long as no other transaction
// begins. The data file is synced before the commit is acknowledged. Therefore a small mapping, on
// 32 bits or on Windows, where the mapping determines the file size, has no other cost.
//
// The log may be removed, replaced or truncated while the server runs. Therefore the server checks
// the log's path before it acknowledges a write. If the log is missing or too short, the data file
// is closed as in a clean close, since it has all commits, and the next write creates a new log
// (File.leaveLog).
//
// While there is a log, the data file's format is 3, so that the file is rejected if the log is
// missing. The first write creates the log and then changes the format. A clean close changes the
// format back and then removes the log. In both cases the log is idle, and bbolt syncs its commits
// itself.
//
// The disk must keep synced data. If a block is written again, the disk must also keep the bytes
// that do not change, since the last block of the log is written for each of its records. The note
// in the data file (proof.go) distinguishes a damaged last record from a torn one. The note
// is not synced. If a power failure loses it, a damaged last record looks torn, and the loss of
// that write is not detected.
//
// Rejected alternatives:
//
//   - bbolt commits only at checkpoints, with newer data sorted in memory, as in etcd. Every reader
//     must then merge two sources. The overlay has the same effect on the disk, one level lower,
//     and readers do not notice it.
//   - bbolt writes all pages to the file, and the kernel to the disk. For one lease that is renewed
//     each ten seconds, this took 25 KB for each write.
//   - A lone commit is made by the caller instead of the writer goroutine, or syncs its record
//     itself. Neither saves processor time that can be measured, and the latter is slower.
//   - A new log file instead of reusing one. Its size changes with each record, so the file system
//     has to sync the size, too.

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
	logBytesMax   = 16 << 20
	logDiskShare  = 64 // the log uses at most this fraction of the disk
	logBytesMin   = 256 << 10
	logStepMax    = 1 << 20 // maximum number of bytes by which the log is extended
	checkpointAge = 30 * time.Minute
	// checkpointBytes is the maximum size of the records between two checkpoints. The limit is
	// lower if it exceeds three quarters of a half. Larger halves are only needed for large
	// commits.
	checkpointBytes = 2 << 20
	// A checkpoint is due if more than this number of bytes of pages wait for it to be reused, and
	// more than 1/pendingShare of the file.
	pendingMin   = 4 << 20
	pendingShare = 8
	changedMax   = 8 << 20 // a checkpoint is due if more than this number of bytes of pages are changed
)

// errLogLost ends the process, because log and pages may differ, or the content of the disk is
// unknown.
var errLogLost = errors.New("the write-ahead log cannot continue")

// A wal is a log in use. Only the writer uses it, except for the values passed to the goroutine of
// a checkpoint.
type wal struct {
	db      *bbolt.DB
	data    *os.File                  // data file, for notes
	meta    *atomic.Pointer[metaPage] // its newest commit
	inode   uint64                    // inode of the data file
	path    string
	file    *os.File
	info    os.FileInfo // identity of file
	heads   *os.File    // second handle, used to write the heads
	sectors sectorFile  // third handle, used to write the records
	Disk

	head           logHead       // newest head, possibly not written yet
	epoch          uint64        // current epoch
	half           int           // current half
	pos            int64         // offset of the next record in the half
	lengths        [2]int64      // number of bytes to which each half was extended
	number         uint64        // number of the next record
	length         int64         // minimum length of the log on the disk
	complete       uint64        // generation of the newest head on the disk
	buf            []byte        // buffer for records
	pin            *bbolt.Tx     // read transaction on the newest checkpoint, even if it is in progress
	before         *bbolt.Tx     // read transaction on the previous checkpoint, or nil if no checkpoint is in progress
	began          time.Time     // start of the epoch
	making         chan error    // receives the result of a checkpoint; nil if no checkpoint is in progress
	mapped         int64         // minimum size of bbolt's mapping in bytes
	initialDiskUse int64         // initial disk usage of the log in bytes
	growth         *atomic.Int64 // maximum number of bytes that the log may grow
	scarce         bool          // the disk is full, so pages that wait for a checkpoint are needed
	spare          int64         // free space above the reserve
	checkpoints    int           // number of started checkpoints

	overlay       *overlay     // pages that differ from the data file
	written       changedPages // by the checkpoint in progress
	grown         PageRun      // new pages at the end of the file; if not empty, a checkpoint is due
	grownFor      int          // value of checkpoints when the file was last extended
	stableCommits int          // number of commits since the last completed checkpoint
}

// A Disk contains the functions that the log uses to access the disk. Tests replace them to
// simulate power failures.
type Disk struct {
	Write       func(b []byte, at int64) (int, error) // writes to the log
	Sync        func() error                          // syncs the log
	WriteAtHead func(b []byte, at int64) (int, error) // writes to the log's heads
	SyncHead    func() error
	SyncData    func(high uint64, but PageRun) error // syncs the first high pages of the data file, except for some
}

// Disk returns nil if there is no log. Only the writer may change it.
func (f *File) Disk() *Disk {
	if f.wal == nil {
		return nil
	}
	return &f.wal.Disk
}

// Checkpoints returns the number of started checkpoints. It must be called by the writer.
func (f *File) Checkpoints() int {
	if f.wal == nil {
		return 0
	}
	return f.wal.checkpoints
}

// WaitCheckpoint waits for the checkpoint in progress. It must be called by the writer.
func (f *File) WaitCheckpoint() error {
	if f.wal == nil {
		return nil
	}
	return f.wal.finishCheckpoint(true)
}

// logHalf returns the size of a half, given the requested size of the log and the size of the disk.
// 0 means unknown.
func logHalf(wanted, disk int64) int64 {
	if wanted == 0 {
		wanted = logBytesMax
		if disk > 0 {
			wanted = max(logBytesMin, min(wanted, disk/logDiskShare))
		}
	}
	return max(2*logBlock, wanted/2/logBlock*logBlock)
}

// createLog creates an idle log.
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
	w.sectors = openSectors(path, w.file)
	w.Write = func(b []byte, at int64) (int, error) {
		return w.sectors.writeAt(b, at, w.head.start(w.half)+w.lengths[w.half])
	}
	w.Sync = func() error { return syncFile(w.file) }
	w.SyncData = func(high uint64, but PageRun) error {
		if w.overlay.mapped != nil {
			return w.db.Sync() // a private mapping cannot sync a range
		}
		return syncPages(w.db, high, but)
	}
	if w.overlay, err = newOverlay(f.Db, f.handle); err != nil {
		return nil, errors.Join(err, w.close())
	}
	m := f.meta.Load()
	w.mapped = mapBytes(max(int64(m.high)*int64(m.pageSize), int64(dbOptions().InitialMmapSize)))
	err = syncFile(w.file) // the heads will contain its length
	if err == nil {
		w.info, err = w.file.Stat()
	}
	if err != nil {
		return nil, errors.Join(err, w.close())
	}
	w.initialDiskUse, w.length = diskUse(w.info)-logHeadsSize, w.info.Size()
	if info, err := f.handle.Stat(); err == nil {
		w.inode, _, _ = identity(info)
	}
	w.updateGrowth()
	w.WriteAtHead, w.SyncHead = w.heads.WriteAt, func() error { return syncFile(w.heads) }
	return w, nil
}

// freshHead returns the head of a new log.
func freshHead(lineage [16]byte, half int64) logHead {
	var random [8]byte
	rand.Read(random[:])
	return logHead{phase: logIdle, generation: 1, lineage: lineage, half: half, epoch: binary.BigEndian.Uint64(random[:]) >> 2, number: firstNumber(), length: logHeadsSize}
}

// mapBytes returns the size of bbolt's mapping for a file of the given size.
func mapBytes(size int64) int64 {
	for n := int64(32 << 10); n <= 1<<30; n *= 2 {
		if size <= n {
			return n
		}
	}
	return (size + 1<<30 - 1) &^ (1<<30 - 1)
}

// ---- A commit

// commit commits a transaction. If err is nil, the transaction is durable. If err is errLogLost,
// the transaction may or may not be durable.
func (w *wal) commit(l *WriteTx) error {
	if err := w.finishCheckpoint(false); err != nil {
		return lostLog(err)
	}
	size := int64(logRecordHead + len(l.notes))
	if w.remaps(l) || size > w.head.half || w.needsFreelist() {
		return w.commitWhole(l)
	}
	at := w.place(size)
	if at+size > w.head.half {
		if err := w.switchHalf(); err != nil {
			_ = l.Tx.Rollback()
			return lostLog(err)
		}
		at = w.place(size)
	}
	switch begun, err := w.append(at, l.notes); {
	case err != nil && !begun && IsDiskFull(err): // the file may have free pages
		return w.commitWhole(l)
	case err != nil:
		_ = l.Tx.Rollback()
		if !begun {
			return err
		}
		if failed := w.undoRecord(at); failed != nil {
			return fmt.Errorf("%w; %w", err, failed)
		}
		return err
	}
	synced := make(chan error, 1)
	go func() { synced <- w.Sync() }() // ends with the sync
	err := l.Tx.Commit()
	if failed := <-synced; failed != nil {
		return lostLog(failed)
	}
	if err != nil {
		if failed := w.undoRecord(at); failed != nil {
			return lostLog(fmt.Errorf("%w; %w", failed, err))
		}
		if failed := w.release(); failed != nil {
			return lostLog(failed)
		}
		return err
	}
	w.pos, w.number, w.stableCommits = (at+size+7)&^7, w.number+1, w.stableCommits+1
	w.length = max(w.length, w.head.start(w.half)+w.lengths[w.half])
	return nil
}

func lostLog(err error) error { return fmt.Errorf("%w: %w", errLogLost, err) }

// place returns the offset of a record of the given size in the half.
func (w *wal) place(size int64) int64 {
	if left := logBlock - w.pos%logBlock; size > left && size <= logBlock {
		return w.pos + left
	}
	return w.pos
}

// append writes a record. begun reports whether it has started to write it. A sync that also
// extends the file costs more than the record, so the file is extended in advance, in steps.
func (w *wal) append(at int64, notes []byte) (begun bool, err error) {
	w.buf = appendLogRecord(w.buf[:0], w.epoch, w.number, w.head.start(w.half)+at, notes)
	end := at + int64(len(w.buf))
	if w.lengths[w.half] < end {
		from := max(w.lengths[w.half], at)
		to := min(w.head.half, end+min(logStepMax, w.head.half/8))
		if err := w.lengthen(from, to); err != nil {
			return false, err
		}
		w.lengths[w.half] = to
		w.updateGrowth()
	}
	_, err = w.Write(w.buf, w.head.start(w.half)+at)
	if cap(w.buf) > logStepMax {
		w.buf = nil
	}
	return true, err
}

// lengthen fills a part of the half with zeros. It writes each block separately, because Linux
// would otherwise use a large folio in its page cache. If any block of a folio is written later,
// Linux counts the whole folio as written.
func (w *wal) lengthen(from, to int64) error {
	zeros := make([]byte, logBlock)
	for at := from; at < to; at += logBlock - at%logBlock {
		if _, err := w.Write(zeros[:min(logBlock-at%logBlock, to-at)], w.head.start(w.half)+at); err != nil {
			return err
		}
	}
	return nil
}

// updateGrowth updates the value of growth.
func (w *wal) updateGrowth() {
	w.growth.Store(max(0, 2*w.head.half-max(w.initialDiskUse, w.lengths[0]+w.lengths[1])))
}

// undoRecord overwrites an uncommitted record to make sure that it is never replayed.
func (w *wal) undoRecord(at int64) error {
	if _, err := w.Write(make([]byte, logRecordHead), w.head.start(w.half)+at); err != nil {
		return lostLog(err)
	}
	if err := w.Sync(); err != nil {
		return lostLog(err)
	}
	return nil
}

// remaps reports whether a transaction might make bbolt remap its file. Each change may allocate
// all pages on the path to its key, as well as pages for splits and merges. The commit may also
// write the freelist.
func (w *wal) remaps(l *WriteTx) bool {
	size := int64(w.db.Info().PageSize)
	high := l.Tx.Size()
	return high+int64(2*len(l.notes))+size*(16*int64(l.changes)+64)+high/size*16 >= w.mapped
}

// needsFreelist reports whether commits now write the freelist, because damage was found, but the
// checkpoint does not have it. A start needs it in the checkpoint.
func (w *wal) needsFreelist() bool {
	m, _ := decodeMeta(w.head.meta[:])
	return !w.db.NoFreelistSync && m.freelist == noFreelist
}

// commitWhole commits a transaction without a record and syncs the data file instead.
func (w *wal) commitWhole(l *WriteTx) error {
	if err := w.finishCheckpoint(true); err != nil {
		_ = l.Tx.Rollback()
		return lostLog(err)
	}
	if err := w.overlay.close(); err != nil {
		_ = l.Tx.Rollback()
		return lostLog(err)
	}
	w.unpin()
	err := l.Tx.Commit()
	if err == nil {
		w.number++ // the mark counts all commits, including this one
	}
	if failed := w.checkpointNow(); failed != nil {
		return lostLog(failed)
	}
	w.openOverlay()
	return err
}

// openOverlay opens the overlay. It must be called after a checkpoint, when the file is complete.
func (w *wal) openOverlay() {
	m, _ := decodeMeta(w.head.meta[:])
	w.overlay.open(w.db, w.mapped, m.high)
}

func (w *wal) unpin() { release(&w.pin) }

// release ends a read transaction. *tx may be nil.
func release(tx **bbolt.Tx) {
	if *tx != nil {
		_ = (*tx).Rollback() // cannot fail for a reader
		*tx = nil
	}
}

// ---- Checkpoints

// checkpointNow starts a checkpoint and waits until it is complete.
func (w *wal) checkpointNow() error {
	if err := w.switchHalf(); err != nil {
		return err
	}
	return w.finishCheckpoint(true)
}

// release makes a checkpoint if pages wait for one to become free. It is used if the file cannot
// grow.
func (w *wal) release() error {
	if w.db.Stats().PendingPageN == 0 {
		return nil
	}
	return w.checkpointNow()
}

// due reports whether a new checkpoint should be started.
func (w *wal) due(fileSize int64) bool {
	if w.making != nil || w.pos == 0 && w.grown.Count == 0 {
		return false
	}
	if w.grown.Count > 0 || w.pos > min(checkpointBytes, w.head.half/4*3) || time.Since(w.began) > checkpointAge {
		return true
	}
	if w.overlay.size() > changedMax {
		return true
	}
	return int64(w.db.Stats().PendingPageN)*int64(w.db.Info().PageSize) > max(pendingMin, fileSize/pendingShare)
}

// switchHalf continues in the other half, as soon as that is free, and starts a checkpoint of the
// committed state.
func (w *wal) switchHalf() error {
	if err := w.finishCheckpoint(true); err != nil {
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
	changed, err := w.changes(h)
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	grown := w.grown
	w.before = w.pin
	w.head, w.epoch, w.half, w.pos, w.pin, w.began = h, h.epoch, h.at, 0, tx, time.Now()
	w.checkpoints++
	w.grown = PageRun{}
	making := make(chan error, 1)
	w.making, w.written = making, changed
	go func() { making <- w.checkpoint(h, changed, grown) }() // ends with the checkpoint
	return nil
}

// changes begins a turn of the overlay and returns the pages that the checkpoint of a head must
// write. If the overlay is closed, it does nothing.
func (w *wal) changes(h logHead) (changed changedPages, err error) {
	if w.overlay.mapped == nil {
		return changed, nil
	}
	m, _ := decodeMeta(h.meta[:])
	err = RecoverFaults(func() error {
		changed = w.overlay.begin(newPages(w.db, m).freePages())
		return nil
	})
	return changed, err
}

// nextHead returns a new head for a checkpoint of the given transaction.
func (w *wal) nextHead(tx *bbolt.Tx) (h logHead, err error) {
	m, err := mappedMeta(w.db, uint64(tx.ID()))
	if err != nil {
		return h, err
	}
	h = w.head
	h.phase, h.generation, h.epoch, h.at, h.number, h.length = logUsed, h.generation+1, w.epoch+1, 1-w.half, w.number, w.length
	copy(h.meta[:], mapping(w.db, 2*m.pageSize)[int(tx.ID()%2)*m.pageSize:])
	w.mapped = max(w.mapped, mapBytes(int64(m.high)*int64(m.pageSize)))
	err = RecoverFaults(func() error {
		revs, _ := newPages(w.db, m).Bucket(InRev)
		h.rev = int64(revs.Sequence)
		return nil
	})
	return h, err
}

// checkpoint writes the changed pages, syncs the data file and then writes the head. The pages in
// grown are free, so they are not synced.
func (w *wal) checkpoint(h logHead, changed changedPages, grown PageRun) error {
	m, _ := decodeMeta(h.meta[:])
	if err := w.overlay.write(changed); err != nil {
		return err
	}
	if err := w.SyncData(m.high, grown); err != nil {
		return err
	}
	return w.writeHead(h)
}

// writeHead writes both copies of the head. The first copy is synced before the second copy is
// written.
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

// finishCheckpoint processes the result of the checkpoint in progress. If wait is set, it waits
// until the checkpoint is complete. Otherwise it returns immediately if the checkpoint is still in
// progress. It writes a note with the new checkpoint to the data file before it releases the pages
// of the previous one.
func (w *wal) finishCheckpoint(wait bool) (err error) {
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
	w.making, w.stableCommits = nil, 0
	if err != nil {
		return err
	}
	w.complete = w.head.generation
	w.overlay.end(w.written)
	w.note()
	release(&w.before)
	return nil
}

// ---- Pages ahead

const (
	aheadMin    = 256 // minimum number of pages by which the file is extended
	aheadMax    = 512
	aheadShare  = 8 // fraction of the file's pages
	aheadLeft   = 4 // the file is extended when less than this fraction of the pages is free
	aheadSettle = 2 // minimum number of commits after a checkpoint, because only then all freed pages are counted
)

// ahead returns the number of pages by which the file should be extended now. 0 means that there
// are enough pages, or that it is too early.
func (w *wal) ahead(high uint64) int {
	n := min(max(int(high/aheadShare), aheadMin), aheadMax, int(w.head.half/logBlock))
	end := (int64(high) + 2*int64(n)) * int64(w.db.Info().PageSize)
	switch {
	case w.making != nil, w.stableCommits < aheadSettle, w.grownFor == w.checkpoints, w.spare < 2*int64(n*w.db.Info().PageSize), end >= w.mapped:
		return 0
	case w.db.Stats().FreePageN >= n/aheadLeft:
		return 0
	}
	return n
}

// growAhead extends the file by some free pages. While a checkpoint is pinned, bbolt reuses a freed
// page immediately only if the page was allocated after the checkpoint. This is known for pages
// from the freelist, but not for pages from the end of the file. Pages from the end of the file
// could not be reused before the next checkpoint, and each commit would write to different pages.
// Therefore growAhead fills a bucket with the given number of pages and then deletes the bucket.
// The third transaction is empty. It is necessary because a checkpoint keeps the pages that were
// freed by the previous transaction. The transactions are not logged, because a start does not need
// their changes. The checkpoint does not sync the pages of the first transaction, because they are
// free again and will be overwritten soon.
func (f *File) growAhead(pages int) error {
	f.wal.grownFor = f.wal.checkpoints
	grown := PageRun{First: f.meta.Load().high}
	name, page := []byte("ahead"), f.Db.Info().PageSize
	value := make([]byte, page/2-64) // bbolt requires at least two values per page
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
		if err := f.Transact(func(l *WriteTx) error {
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

// startLog creates the log and starts to use it. At that time all data in the file is already
// synced.
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
	case left != nil && left.head.lineage == lineage: // the last start or close was interrupted; the log is long enough
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
		return f.Transact(func(l *WriteTx) error {
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

// A foreignLogError is returned if there is already a different log at the path of the log. It may
// belong to another data file or to an earlier state of this file. The error matches ErrLost.
type foreignLogError struct{ path string }

func (e *foreignLogError) Error() string {
	return e.path + " is not the write-ahead log of the running server: remove it, or move it elsewhere. The data file has all acknowledged writes"
}

// Is reports whether target is ErrLost.
func (e *foreignLogError) Is(target error) bool { return target == ErrLost }

// useLog makes a checkpoint of the file and disables the syncs of bbolt.
func (f *File) useLog(w *wal) error {
	if err := w.checkpointNow(); err != nil {
		return errors.Join(lostLog(err), w.close())
	}
	w.openOverlay()
	f.wal, f.Db.NoSync, f.Db.NoGrowSync = w, true, true
	return nil
}

func (w *wal) close() error {
	_ = w.finishCheckpoint(true)
	release(&w.before)
	w.unpin()
	return errors.Join(w.file.Close(), w.heads.Close(), w.sectors.close())
}

// resume replays the records of the given log. The caller must have restored its checkpoint.
func (f *File) resume(left *LeftoverLog) error {
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
	h.epoch, h.number = h.epoch+1, firstNumber() // this epoch is higher than all epochs in the halves
	w, err := f.openLog(left.path, h)
	if err != nil {
		return err
	}
	return f.useLog(w)
}

// replay applies the changes of all records.
func (l *LeftoverLog) replay(to *WriteTx) error {
	for _, r := range l.records {
		if err := to.replay(r.body); err != nil {
			return fmt.Errorf("%s: record %d: %w", l.path, r.number, err)
		}
	}
	return setMark(to.Tx, newMark(l.head.generation, l.head.number+uint64(len(l.records))))
}

func (l *LeftoverLog) txid() uint64 {
	m, _ := decodeMeta(l.head.meta[:])
	return m.txid
}

// endLog writes all commits to the data file and removes the log.
func (f *File) endLog() error {
	w := f.wal
	f.wal = nil
	err := w.finishCheckpoint(true)
	if err == nil {
		err = w.overlay.close()
	}
	if err == nil {
		err = w.checkpointNow()
	}
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
	if err := f.Transact(func(l *WriteTx) error {
		return errors.Join(last(l), l.PutMetaInt("format", FormatClosed), setMark(l.Tx, 0))
	}); err != nil {
		return err // the next Open accepts an idle log, but does not need it
	}
	w.note()
	if !ours {
		return nil
	}
	return errors.Join(os.Remove(w.path), atomicfile.SyncDir(filepath.Dir(w.path)))
}

// inPlace reports whether the log still exists at its path and has not been truncated.
func (w *wal) inPlace() bool {
	info, err := os.Stat(w.path)
	return err == nil && os.SameFile(info, w.info) && info.Size() >= w.length
}

// leaveLog stops using a log that was removed, replaced or truncated. The file has all commits. The
// next write creates a new log.
func (f *File) leaveLog() error {
	if f.warn != nil {
		f.warn(fmt.Sprintf("%s was removed, replaced or cut while in use; all commits are written into the data file, and the next write makes a new log", f.wal.path))
	}
	if err := f.endLog(); err != nil {
		return f.fatalWrite(lostLog(err))
	}
	return nil
}

// sameFile reports whether path still leads to the open file.
func sameFile(file *os.File, path string) bool {
	mine, err := file.Stat()
	there, lost := os.Stat(path)
	return err == nil && lost == nil && os.SameFile(mine, there)
}
