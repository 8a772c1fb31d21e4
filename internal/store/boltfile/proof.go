package boltfile

// This file checks that a data file and its log belong to the same moment. This may not be the case
// if a user copies the files while the server is running. A copy may also be incomplete. The files
// are never rejected after a kill, which does not damage them, or after a power failure, which only
// loses unsynced data. The data file stores three facts about its log.
//
//	mark        in the meta page of each commit, of which the file has those of checkpoints: the number of the log's next record after this commit, and the generation of the log's head at the time
//	note        after the meta page of the checkpoint, written after the record is synced and before the write is acknowledged: the same two numbers, now known to be
//	            durable. It also contains the file's inode and the time.
//	checkpoint  the meta page itself, which the log's head contains as an exact copy
//
// The head of the log contains the number of the first record, and the numbers of the following
// records are consecutive. Each time the file is opened, numbering starts at a new random number.
// Therefore two runs of a server use different numbers.
//
//	the pair                                     is rejected because
//	the log is older, or lost its end            the mark or the note counts records that the log does not have
//	a checkpoint was made after the log's copy   the mark or the note has a newer generation: pages of the older checkpoint may have been reused
//	the file is older than the log's checkpoint  its meta pages are older than the one in the head
//	either is from another run, or a fork        the numbers are far apart
//
// If the power fails during a commit, the file may contain the commit even if the log does not
// contain the record. This is not an error, because the write has not been acknowledged. It is not
// counted by any note.
//
// A data file is copied page by page, and the server may write to it at the same time. If the log
// is copied first, a checkpoint may be completed before the last page is copied. The first pages of
// the copy do not show this. The same happens to a closed file if a server is started on it before
// the last page was copied. Therefore a file that may be a copy is read completely before it is
// opened: this package reads all pages, and package store reads all records and keys (Pages.Moved).
// A file may be a copy if its inode does not match its note, or if it has been changed since the
// note was written.
//
//	OFFSET  SIZE  MEANING of a note, at byte 80 of a meta page
//	     0     8  "apiletNT"
//	     8     8  the number of the next record
//	    16     8  the generation of the log's head
//	    24     8  the data file's inode; 0 if the file system has none
//	    32     8  the time, in milliseconds since 1970
//	    40     4  CRC-32C of the 40 bytes before
//
// A mark has 64 bits: 0 in bit 63, 1 in bit 62, 14 bits of the generation, and 48 bits of the
// number. The mark is 0 if the file was closed.

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"reflect"
	"time"
	"unsafe"

	"go.etcd.io/bbolt"
)

const (
	markLogged     = 1 << 62
	markNumberBits = 48
	markGeneration = 1<<14 - 1
	runMax         = 1 << 24 // larger than the number of records in a log

	noteAt    = metaSize // offset in a meta page
	noteMagic = "apiletNT"
	noteSize  = 44
	noteSlack = time.Second // maximum time between the time in a note and its write
)

// newMark returns the mark of a commit.
func newMark(generation, number uint64) uint64 {
	return markLogged | generation&markGeneration<<markNumberBits | number&(1<<markNumberBits-1)
}

// logged reports whether the file had a log at the time of the commit.
func logged(mark uint64) bool { return mark>>62 == 1 }

// firstNumber returns the number of the first record of a run.
func firstNumber() uint64 { return rand.Uint64N(1 << (markNumberBits - 1)) }

// setMark sets the mark that the meta page of a write transaction will have. bbolt stores an unused
// number there, the sequence of its root bucket, and has no method to change it.
func setMark(tx *bbolt.Tx, mark uint64) error {
	meta := reflect.ValueOf(tx).Elem().FieldByName("meta")
	if meta.Kind() != reflect.Pointer || meta.Type().Elem().Size() != metaSize-pageHeaderSize {
		return fmt.Errorf("bbolt's transactions have no meta page of %d bytes", metaSize-pageHeaderSize)
	}
	b := unsafe.Slice((*byte)(meta.UnsafePointer()), metaSize-pageHeaderSize)
	if binary.NativeEndian.Uint32(b) != metaMagic || binary.NativeEndian.Uint64(b[48:]) != uint64(tx.ID()) {
		return fmt.Errorf("bbolt's meta page of transaction %d has other fields", tx.ID())
	}
	binary.NativeEndian.PutUint64(b[24:], mark)
	return nil
}

// A logNote is a decoded note.
type logNote struct {
	number, generation, inode uint64
	written                   time.Time
}

func (n logNote) encode() []byte {
	b := append(make([]byte, 0, noteSize), noteMagic...)
	for _, v := range [...]uint64{n.number, n.generation, n.inode, uint64(n.written.UnixMilli())} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodeNote decodes a note. ok is false if b is not a note.
func decodeNote(b []byte) (n logNote, ok bool) {
	if string(b[:len(noteMagic)]) != noteMagic || crc32.Checksum(b[:noteSize-4], castagnoli) != binary.BigEndian.Uint32(b[noteSize-4:]) {
		return n, false
	}
	u64 := func(at int) uint64 { return binary.BigEndian.Uint64(b[at:]) }
	return logNote{number: u64(8), generation: u64(16), inode: u64(24), written: time.UnixMilli(int64(u64(32)))}, true
}

// fits reports whether the note was written to the file of info, and only its server has changed
// the file since.
func (n logNote) fits(info os.FileInfo) bool {
	inode, changed, known := identity(info)
	return known && n.inode == inode && changed.Before(n.written.Add(noteSlack))
}

// note writes a note to the data file when all records up to now are durable. The note is not
// synced, and errors are ignored. If the note is lost in a power failure, the marks are sufficient.
func (w *wal) note() {
	m := w.meta.Load()
	if w.overlay.mapped != nil { // the newest meta page in the file belongs to the checkpoint
		checkpoint, _ := decodeMeta(w.head.meta[:])
		m = &checkpoint
	}
	n := logNote{number: w.number, generation: w.complete, inode: w.inode, written: time.Now()}
	_, _ = w.data.WriteAt(n.encode(), int64(m.txid%2)*int64(m.pageSize)+noteAt)
}

// covers checks that the log contains all commits of the data file, and that its head is not older
// than the marks and notes in the file. It returns the number of records that the file already
// contains.
func (l *LeftoverLog) covers(t *pageTree, checkpoint metaPage) (there uint64, err error) {
	count := uint64(len(l.records))
	for _, m := range t.found {
		if m.txid <= checkpoint.txid {
			continue
		}
		ahead := (m.mark - l.head.number) & (1<<markNumberBits - 1)
		switch {
		case !logged(m.mark):
			return 0, l.foreignError("the file was closed without it")
		case ahead > runMax:
			return 0, l.foreignError("it is of another run of the server, or much older")
		case ahead > count+1, newer(m.mark>>markNumberBits, l.head.generation):
			return 0, l.tooOld()
		}
		there = max(there, ahead)
	}
	for _, n := range t.notes {
		switch ahead := n.number - l.head.number; {
		case ahead+runMax > 2*runMax: // from the run before the checkpoint
		case int64(ahead) > int64(count), newer(n.generation, l.head.generation):
			return 0, l.tooOld()
		}
	}
	return there, nil
}

// newer reports whether generation is after than. It compares only the low 14 bits, because marks
// contain no more.
func newer(generation, than uint64) bool {
	ahead := (generation - than) & markGeneration
	return ahead > 0 && ahead <= markGeneration/2
}

// tooOld returns the error for a log that does not contain all commits of its data file.
func (l *LeftoverLog) tooOld() error {
	return fmt.Errorf("%s lacks commits that its data file has (it was cut, damaged, or copied before the file): "+
		"put the log of the same moment beside it, or restore a backup", l.path)
}

// checkIdle checks that an idle log belongs to a data file that was not closed. The file must have
// the state of the log's end.
func (l *LeftoverLog) checkIdle(t *pageTree) error {
	m := t.meta
	ahead := (m.mark - l.head.number) & (1<<markNumberBits - 1)
	switch {
	case !logged(m.mark), ahead == 0 && !newer(m.mark>>markNumberBits, l.head.generation):
		return nil
	case ahead > 0 && ahead < runMax:
		return l.tooOld()
	}
	return l.foreignError("the file is of another moment")
}

// moved reports whether a data file was copied, moved or changed after its server wrote it. A new
// file has no note. used reports whether the log is in use.
func (t *pageTree) moved(info os.FileInfo, used bool) bool {
	for _, n := range t.notes {
		if n.fits(info) {
			return false
		}
	}
	return used || len(t.notes) > 0 || logged(t.meta.mark)
}

// signNotes updates the note in a copy. The original must have been locked while it was copied.
func signNotes(file *os.File) error {
	t, err := readMetas(file)
	if err != nil || len(t.notes) == 0 {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return err
	}
	inode, _, _ := identity(info)
	n := t.notes[0]
	n.inode, n.written = inode, time.Now()
	_, err = file.WriteAt(n.encode(), t.meta.at+noteAt)
	return err
}
