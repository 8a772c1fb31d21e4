package store

// This file lets a commit wait for the disk once.
//
// bbolt alone waits twice: for the pages that a transaction has changed, and for the meta page that makes them the file. Were it to wait
// once, for both, a power cut could leave the meta page without its pages. So the meta page carries a seal, by which a start can tell:
//
//	OFFSET  SIZE  MEANING, in a meta page behind what dbfile.go draws
//	    40     8  the mark: a bit that is set, 31 bits of the transaction number, CRC-32C of the pages' bytes and of the list
//	    80     8  the note: the mark of the commit in the other meta page, once that is known to be on the disk
//	    96        the list of the pages that this transaction has written: how many runs; of each, how far it lies behind the one
//	              before (the first one: behind page 0), and its pages; varints
//
// A commit, and what a power cut leaves at each point (N counts before it, N+1 is the commit; its meta page takes the place of N-1's):
//
//	write the pages    only such as are free in N: N is whole, and counts
//	write the meta     with mark and list. N+1 counts if its pages are there, to the byte; else N does
//	sync               N+1 counts; now it is answered
//	write the note     into N's meta page, which nobody needs any more, and without a sync
//
// The mark lies where bbolt keeps a sequence of the root bucket that it copies from commit to commit and never uses. So it is covered by
// bbolt's own checksum of the meta page, and a commit of another program (bbolt's tools, an older apilet), which syncs twice, can be told
// by it: it has none, or that of an earlier transaction. Such a commit counts without more ado. So does one whose list has no room in the
// page, which is committed as bbolt does it.
//
// The note is what tells damage from a power cut: pages of a noted commit that do not fit their sum have been damaged since. They are
// named, and nothing is taken back (for half a minute after a commit, until the kernel writes the note, the two look the same).
//
// What is taken back was answered to nobody. takeBack replaces the meta page that does not count by a copy of the other one with a lower
// transaction number, so that bbolt, too, finds the one that counts. What a start has judged may lie in the kernel's memory only, when
// the process was killed in its sync, so that open syncs the file before anything is built upon it.
//
// Why N is whole whatever N+1 has written: bbolt gives to a transaction only pages that were free before it began, and keeps those that a
// transaction frees until the next one begins, which is after the sync. Why N, once it is the newest, still fits its seal: each page that
// it has written belongs to it, and what is begun and fails (a full disk) writes to free pages alone.
//
// Rejected: finding what was written by comparing the trees before and after, which passes by what the comparison does not expect; a word
// that a meta page is ours behind its checksum, where another program's commit and half of ours look the same.

import (
	"encoding/binary"
	"hash/crc32"
	"hash/fnv"
	"io"
	"os"
	"reflect"
	"unsafe"

	"go.etcd.io/bbolt"
)

const (
	markAt = pageHeaderSize + 24
	noteAt = metaSize
	runsAt = metaSize + 16
)

// A pageRun is some pages that lie one behind the other.
type pageRun struct{ first, count uint64 }

// A sealer is what bbolt writes its pages through. All of it is the writer's.
type sealer struct {
	db       *bbolt.DB
	file     io.WriterAt
	sync     func() error
	pageSize int

	on   bool // the commit under way is to be sealed
	runs []pageRun
	sum  uint32
	list []byte // runs, encoded; reused
	odd  bool   // a write was not what a list can name
	mark uint64 // of the commit under way; 0: it is not sealed
	slot int64  // where its meta page lies

	held   []byte // pages that lie one behind the other and have yet to be written: a call for each costs more than their bytes; reused
	heldAt int64
}

// heldMax is how many bytes of pages become one call; what is longer is written as it is.
const heldMax = 128 << 10

// newSealer comes between bbolt and its file, at the place that bbolt keeps for its tests; nil when there is no such place.
func newSealer(db *bbolt.DB, file *os.File) *sealer {
	s := &sealer{db: db, file: file, sync: db.Sync, pageSize: db.Info().PageSize}
	ops := reflect.ValueOf(db).Elem().FieldByName("ops")
	if ops.Kind() != reflect.Struct {
		return nil
	}
	door := ops.FieldByName("writeAt")
	if !door.IsValid() || door.Type() != reflect.TypeOf(s.writeAt) {
		return nil
	}
	*(*func([]byte, int64) (int, error))(unsafe.Pointer(door.UnsafeAddr())) = s.writeAt
	return s
}

// commit commits a transaction: it is on the disk when there is no error.
func (s *sealer) commit(tx *bbolt.Tx) error {
	s.on, s.runs, s.sum, s.odd, s.mark, s.held = true, s.runs[:0], 0, false, 0, s.held[:0]
	s.db.NoSync = true
	defer func() { s.on, s.db.NoSync = false, false }()
	if err := tx.Commit(); err != nil {
		return err
	}
	return s.sync()
}

// settle notes that the commit is on the disk. That this is not so itself does no harm.
func (s *sealer) settle() {
	if s.mark != 0 {
		s.list = binary.NativeEndian.AppendUint64(s.list[:0], s.mark)
		s.file.WriteAt(s.list, (1-s.slot)*int64(s.pageSize)+noteAt)
	}
}

// writeAt is told of the pages in the order in which they lie, and of the meta page last. bbolt uses their memory again before that: held is
// a copy. What could not be written is told by the next call, so by that for the meta page at the latest, which is not written then.
func (s *sealer) writeAt(b []byte, off int64) (int, error) {
	size := int64(s.pageSize)
	if !s.on {
		return s.file.WriteAt(b, off)
	}
	if off >= 2*size {
		s.add(b, off)
	}
	if off != s.heldAt+int64(len(s.held)) || len(s.held)+len(b) > heldMax || off < 2*size {
		if err := s.release(); err != nil {
			return 0, err
		}
	}
	if off < 2*size {
		if err := s.seal(b, off/size); err != nil {
			return 0, err
		}
	}
	if off < 2*size || len(b) > heldMax {
		return s.file.WriteAt(b, off)
	}
	if len(s.held) == 0 {
		s.heldAt = off
	}
	s.held = append(s.held, b...)
	return len(b), nil
}

// release writes the pages that are held.
func (s *sealer) release() error {
	if len(s.held) == 0 {
		return nil
	}
	_, err := s.file.WriteAt(s.held, s.heldAt)
	s.held = s.held[:0]
	return err
}

// add takes pages into the list.
func (s *sealer) add(b []byte, off int64) {
	size, end := uint64(s.pageSize), uint64(2)
	run := pageRun{uint64(off) / size, uint64(len(b)) / size}
	if n := len(s.runs); n > 0 {
		end = s.runs[n-1].first + s.runs[n-1].count
	}
	switch {
	case uint64(off)%size != 0 || uint64(len(b))%size != 0 || run.first < end:
		s.odd = true
	case len(s.runs) > 0 && run.first == end:
		s.runs[len(s.runs)-1].count += run.count
	default:
		s.runs = append(s.runs, run)
	}
	s.sum = crc32.Update(s.sum, castagnoli, b)
}

// seal puts mark and list into the meta page. Where that cannot be, the pages are synced first, which is bbolt's way.
func (s *sealer) seal(b []byte, slot int64) error {
	s.list = appendRuns(s.list[:0], s.runs)
	if s.odd || len(b) != s.pageSize || len(s.list) > len(b)-runsAt {
		return s.sync()
	}
	copy(b[runsAt:], s.list)
	m, _ := decodeMeta(b)
	s.slot, s.mark = slot, markOf(m.txid)<<32|uint64(crc32.Update(s.sum, castagnoli, s.list))
	binary.NativeEndian.PutUint64(b[markAt:], s.mark)
	sumMeta(b)
	return nil
}

// markOf is the upper half of a transaction's mark.
func markOf(txid uint64) uint64 { return 1<<31 | txid&(1<<31-1) }

// sumMeta sets bbolt's checksum in a meta page.
func sumMeta(b []byte) {
	sum := fnv.New64a()
	sum.Write(b[pageHeaderSize : metaSize-8])
	binary.NativeEndian.PutUint64(b[metaSize-8:], sum.Sum64())
}

func appendRuns(b []byte, runs []pageRun) []byte {
	b = binary.AppendUvarint(b, uint64(len(runs)))
	end := uint64(0)
	for _, r := range runs {
		b = binary.AppendUvarint(binary.AppendUvarint(b, r.first-end), r.count)
		end = r.first + r.count
	}
	return b
}

// decodeRuns reads a list of pages below high, and tells how many bytes it takes; ok is false for what is no such list.
func decodeRuns(b []byte, high uint64) (runs []pageRun, size int, ok bool) {
	next := func() uint64 {
		v, n := binary.Uvarint(b[size:])
		ok = ok && n > 0
		size += max(n, 0)
		return v
	}
	ok = true
	end := uint64(0)
	for n := next(); ok && n > 0; n-- {
		gap, count := next(), next()
		if ok = ok && gap < high-end && count > 0 && count <= high-end-gap && end+gap >= 2; ok {
			runs = append(runs, pageRun{end + gap, count})
			end += gap + count
		}
	}
	return runs, size, ok
}

// ---- What counts

// A placedMeta is a meta page as it lies in a file.
type placedMeta struct {
	metaPage
	at   int64
	raw  [metaSize]byte
	note uint64 // of the commit in the other one
}

// counts tells whether a newest meta page counts, given the other valid one.
func (m *placedMeta) counts(file io.ReaderAt, other *placedMeta) bool {
	switch {
	case m.mark>>32 != markOf(m.txid): // synced twice
		return true
	case other.note == m.mark: // known to be on the disk
		return true
	case other.mark == m.mark: // one is a copy of the other, made by before or by bbolt, which copies all pages and no seal
		return true
	case other.txid >= m.txid || other.txid == 0 || other.pageSize != m.pageSize: // there is nothing to go back to
		return true
	}
	return m.fits(file)
}

// fits tells whether the pages on a meta page's list are those that its transaction has written. Whatever cannot be read does not fit.
func (m *placedMeta) fits(file io.ReaderAt) bool {
	page := make([]byte, m.pageSize)
	if _, err := file.ReadAt(page, m.at); err != nil {
		return false
	}
	runs, size, ok := decodeRuns(page[runsAt:], m.high)
	sum, buf := uint32(0), make([]byte, 64<<10)
	for _, r := range runs {
		at, left := int64(r.first)*int64(m.pageSize), int64(r.count)*int64(m.pageSize)
		for ok && left > 0 {
			part := buf[:min(left, int64(len(buf)))]
			n, _ := file.ReadAt(part, at)
			ok = n == len(part)
			sum = crc32.Update(sum, castagnoli, part)
			at, left = at+int64(len(part)), left-int64(len(part))
		}
	}
	return ok && crc32.Update(sum, castagnoli, page[runsAt:runsAt+size]) == uint32(m.mark)
}

// before is a page that says what the meta page says, as an earlier transaction. By the same mark in both the meta page counts from now on.
func (m *placedMeta) before(slot int64) []byte {
	page := make([]byte, m.pageSize)
	copy(page, m.raw[:])
	binary.NativeEndian.PutUint64(page, uint64(slot))
	binary.NativeEndian.PutUint64(page[pageHeaderSize+48:], m.txid-1)
	sumMeta(page)
	return page
}

// vetToWrite vets a file of ours for who is about to write it or to copy it: what a power cut has left of a commit is gone then. want is checkFormat's.
func vetToWrite(path string, want int64) (fileVerdict, error) {
	verdict, err := vetFile(path, false, nil, func(p *pages) error { return checkFormat(p, path, want) })
	if err == nil && verdict.torn {
		err = takeBack(path)
	}
	return verdict, err
}

// takeBack undoes in a file that no process writes what a power cut has left of a commit.
func takeBack(path string) error {
	db, file, err := openShared(path)
	if err != nil {
		return err
	}
	defer db.Close()
	tree, err := readMetas(file)
	if err != nil || tree.torn == nil {
		return err
	}
	return writeSynced(path, tree.meta.before(tree.torn.at/int64(tree.pageSize)), tree.torn.at)
}

// writeSynced writes into an existing file. Two processes may do so at once with the same bytes.
func writeSynced(path string, b []byte, at int64) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.WriteAt(b, at); err != nil {
		return err
	}
	return file.Sync()
}
