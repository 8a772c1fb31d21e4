package boltfile

// This file reads seals. Versions of apilet before the write-ahead log waited for the disk once for each commit, pages and meta page together, and sealed
// the meta page so that a start could tell whether the pages had come, too. A file that such a version left when the power went is opened by this one, which
// has to judge the last commit as that version would have; nobody writes seals any more.
//
//	OFFSET  SIZE  MEANING, in a meta page behind what page.go draws
//	    40     8  the mark: a bit that is set, 31 bits of the transaction number, CRC-32C of the pages' bytes and of the list
//	    80     8  the note: the mark of the commit in the other meta page, once that was known to be on the disk
//	    96        the list of the pages that this transaction has written: how many runs; of each, how far it lies behind the one
//	              before (the first one: behind page 0), and its pages; varints
//
// A sealed commit counts if its pages are there, to the byte, or if it is noted; else the one before it does, which it left whole. The mark lies where bbolt
// keeps a sequence of the root bucket that it copies from commit to commit and never uses. So a commit of another program, or of this version, can be told:
// it has no mark, or that of an earlier transaction. It counts without more ado.
//
// takeBack replaces the meta page that does not count by a copy of the other one with a lower transaction number, so that bbolt, too, finds the one that
// counts. What is taken back was answered to nobody.

import (
	"encoding/binary"
	"hash/crc32"
	"hash/fnv"
	"io"
)

const (
	noteAt = metaSize
	runsAt = metaSize + 16
)

// A PageRun is some pages that lie one behind the other.
type PageRun struct{ First, Count uint64 }

func (r PageRun) holds(id uint64) bool { return id >= r.First && id-r.First < r.Count }

// markOf is the upper half of a transaction's mark.
func markOf(txid uint64) uint64 { return 1<<31 | txid&(1<<31-1) }

// sumMeta sets bbolt's checksum in a meta page.
func sumMeta(b []byte) {
	sum := fnv.New64a()
	sum.Write(b[pageHeaderSize : metaSize-8])
	binary.NativeEndian.PutUint64(b[metaSize-8:], sum.Sum64())
}

// decodeRuns reads a list of pages below high, and tells how many bytes it takes; ok is false for what is no such list.
func decodeRuns(b []byte, high uint64) (runs []PageRun, size int, ok bool) {
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
			runs = append(runs, PageRun{end + gap, count})
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
		at, left := int64(r.First)*int64(m.pageSize), int64(r.Count)*int64(m.pageSize)
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
