package boltfile

// This file encodes and decodes the write-ahead log, apilet.db-wal next to apilet.db, and reads a
// log that was left by a server. wal.go describes how the log is used.
//
//	OFFSET        SIZE  MEANING (integers are big endian, CRCs are CRC-32C)
//	     0        4096  the head
//	  4096        4096  a copy of the head; the two are written one after the other, so that one survives if the other is torn
//	  8192           n  a half
//	8192+n           n  the other half
//
// The head determines where recovery starts:
//
//	     0     8  "apiletWL"
//	     8     4  version, 2
//	    12     4  phase. 1 idle: the data file is complete, and there are no records. 2 used: the state is the checkpoint plus the records after it
//	    16     8  generation; of two valid heads the one with the higher generation is used
//	    24    16  the data file's lineage
//	    40     8  n, the size of a half in bytes
//	    48     8  the epoch of the first record to be replayed
//	    56     8  the half that contains it, 0 or 1
//	    64     8  its number
//	    72     8  the checkpoint's revision
//	    80     8  the known length of the log in bytes; a shorter log was truncated
//	    88    80  the checkpoint: bbolt's meta page, as stored in the data file
//	   168     4  CRC of the 168 bytes before
//
// The offset of a record is a multiple of 8. If a record fits into a block of 4096 bytes, it does
// not cross a block boundary. In this case a sync only writes a single block:
//
//	     0     4  the body's length
//	     4     4  CRC of everything that follows
//	     8     8  epoch: incremented each time a half is used again, with a random start
//	    16     8  number: consecutive, with a random start each time a server starts (proof.go)
//	    24     8  its own offset in the log
//	    32        the body: the changes of one transaction (ledger.go)
//
// The checksum includes the epoch and the offset. Therefore leftovers of an earlier use of the
// half, or an object that looks like a record, are not mistaken for records.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
)

const (
	LogSuffix     = "-wal"
	logMagic      = "apiletWL"
	logVersion    = 2
	logBlock      = 4096
	logHeadsSize  = 2 * logBlock
	logHeadSize   = 172
	logRecordHead = 32
	logIdle       = 1
	logUsed       = 2
	logHalfMax    = logBytesMax
)

// A logHead contains the fields of a head.
type logHead struct {
	phase      uint32
	generation uint64
	lineage    [16]byte
	half       int64 // size of a half in bytes
	epoch      uint64
	at         int // index of the half
	number     uint64
	rev        int64
	length     int64 // minimum length of the log
	meta       [metaSize]byte
}

func (h *logHead) encode() []byte {
	b := append(make([]byte, 0, logBlock), logMagic...)
	b = binary.BigEndian.AppendUint32(b, logVersion)
	b = binary.BigEndian.AppendUint32(b, h.phase)
	b = binary.BigEndian.AppendUint64(b, h.generation)
	b = append(b, h.lineage[:]...)
	for _, n := range [...]uint64{uint64(h.half), h.epoch, uint64(h.at), h.number, uint64(h.rev), uint64(h.length)} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	b = append(b, h.meta[:]...)
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return b[:logBlock]
}

// decodeHead reads a head. ok is false if b is not a head. err reports a head of another version.
func decodeHead(b []byte) (h logHead, ok bool, err error) {
	u64 := func(at int) uint64 { return binary.BigEndian.Uint64(b[at:]) }
	if len(b) < logHeadSize || string(b[:8]) != logMagic {
		return h, false, nil
	}
	if v := binary.BigEndian.Uint32(b[8:]); v != logVersion && v > 0 && v < 1<<16 { // any other number is damage
		return h, false, fmt.Errorf("has version %d, and this version of apilet reads version %d: use the version that wrote it", v, logVersion)
	}
	if crc32.Checksum(b[:logHeadSize-4], castagnoli) != binary.BigEndian.Uint32(b[logHeadSize-4:]) {
		return h, false, nil
	}
	h = logHead{phase: binary.BigEndian.Uint32(b[12:]), generation: u64(16), half: int64(u64(40)), epoch: u64(48), at: int(u64(56)),
		number: u64(64), rev: int64(u64(72)), length: int64(u64(80))}
	copy(h.lineage[:], b[24:])
	copy(h.meta[:], b[88:])
	ok = (h.phase == logIdle || h.phase == logUsed) && h.half >= logBlock && h.half <= logHalfMax && h.half%logBlock == 0 && (h.at == 0 || h.at == 1)
	return h, ok, nil
}

// start returns the offset of a half.
func (h *logHead) start(half int) int64 { return logHeadsSize + int64(half)*h.half }

// A logRecord is a decoded record.
type logRecord struct {
	epoch, number uint64
	body          []byte
}

// appendLogRecord appends an encoded record for the offset at.
func appendLogRecord(b []byte, epoch, number uint64, at int64, body []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
	b = append(b, 0, 0, 0, 0)
	for _, n := range [...]uint64{epoch, number, uint64(at)} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	b = append(b, body...)
	binary.BigEndian.PutUint32(b[4:], logRecordSum(b))
	return b
}

func logRecordSum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:4], castagnoli), castagnoli, b[8:])
}

// recordAt decodes the record at the given offset of a half. The content of the half is b. If there
// is no valid record of the epoch, ok is false.
func (h *logHead) recordAt(b []byte, half int, at int64, epoch uint64) (r logRecord, size int64, ok bool) {
	if at < 0 || at > int64(len(b))-logRecordHead {
		return r, 0, false
	}
	head := b[at:]
	size = logRecordHead + int64(binary.BigEndian.Uint32(head))
	r.epoch, r.number = binary.BigEndian.Uint64(head[8:]), binary.BigEndian.Uint64(head[16:])
	if r.epoch != epoch || int64(binary.BigEndian.Uint64(head[24:])) != h.start(half)+at || size > int64(len(head)) {
		return r, 0, false
	}
	r.body = head[logRecordHead:size]
	return r, size, logRecordSum(head[:size]) == binary.BigEndian.Uint32(head[4:])
}

// A LeftoverLog is a log from a previous run of the server.
type LeftoverLog struct {
	path    string
	head    logHead
	records []logRecord // records to be replayed, in order
}

// Used reports whether the log is in use. In this case, the current state is the checkpoint plus
// the records. Otherwise the data file is complete. If there is no log, l is nil.
func (l *LeftoverLog) Used() bool { return l != nil && l.head.phase == logUsed }

// Count returns the number of records to be replayed.
func (l *LeftoverLog) Count() int {
	if l == nil {
		return 0
	}
	return len(l.records)
}

// Revision returns the newest revision of the records, or 0 if none has a revision.
func (l *LeftoverLog) Revision() (rev int64) {
	for n := l.Count() - 1; n >= 0 && rev == 0; n-- {
		_ = eachNoted(l.records[n].body, func(what byte, _, _ []byte, n uint64) error {
			if what == InRev|notedSequence {
				rev = int64(n)
			}
			return nil
		})
	}
	return rev
}

// readLog reads the log of a data file. It returns nil if the log does not exist. It ignores a torn
// record at the end, because the write was not acknowledged. Any other damage is an error.
func readLog(path string) (*LeftoverLog, error) {
	file, size, err := openRegular(path + LogSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	l := &LeftoverLog{path: path + LogSuffix}
	if l.head, err = readHead(file, l.path); err != nil {
		return l, err
	}
	if size < l.head.length {
		return l, fmt.Errorf("%s is truncated: it has %d of at least %d bytes: put the whole log back, or restore a backup", l.path, size, l.head.length)
	}
	if l.head.phase == logIdle {
		return l, nil
	}
	return l, l.readRecords(file, size)
}

// readHead returns the valid head with the highest generation.
func readHead(file io.ReaderAt, path string) (newest logHead, err error) {
	found := false
	for n := range int64(2) {
		b := make([]byte, logHeadSize)
		size, _ := file.ReadAt(b, n*logBlock)
		h, ok, err := decodeHead(b[:size])
		if err != nil {
			return newest, fmt.Errorf("%s %w", path, err)
		}
		if ok && (!found || h.generation > newest.generation) {
			newest, found = h, true
		}
	}
	if !found {
		return newest, fmt.Errorf("%s has lost both of its heads, so the last writes are unknown: restore a backup (%w)",
			path, NewDamage("the log's heads"))
	}
	return newest, nil
}

// readRecords reads the records of both halves in order. Each record is synced before the next
// record is written. If a record is missing and there is a later record, the log is damaged.
func (l *LeftoverLog) readRecords(file io.ReaderAt, fileSize int64) error {
	var halves [2][]byte
	for i := range halves {
		b := make([]byte, max(0, min(l.head.half, fileSize-l.head.start(i)))) // the file may be shorter than the head claims
		n, err := file.ReadAt(b, l.head.start(i))
		if err != nil && err != io.EOF {
			return fmt.Errorf("%s cannot be read: %w", l.path, err)
		}
		halves[i] = b[:n]
	}
	next := l.head.number
	for turn := range 2 {
		half, epoch := (l.head.at+turn)%2, l.head.epoch+uint64(turn)
		for at := int64(0); ; {
			r, size, ok := l.head.recordAt(halves[half], half, at, epoch)
			if !ok && at%logBlock != 0 {
				at += logBlock - at%logBlock
				r, size, ok = l.head.recordAt(halves[half], half, at, epoch)
			}
			if !ok || r.number != next {
				break
			}
			l.records = append(l.records, r)
			next, at = next+1, (at+size+7)&^7
		}
	}
	return l.vetEnd(halves, next)
}

// vetEnd checks that there are no later records. The expected number of the next record is next.
func (l *LeftoverLog) vetEnd(halves [2][]byte, next uint64) error {
	summed := int64(0) // limits the time needed for a manipulated log
	for turn := range 2 {
		half, epoch := (l.head.at+turn)%2, l.head.epoch+uint64(turn)
		for at := int64(0); at < int64(len(halves[half])); at += 8 {
			r, size, ok := l.head.recordAt(halves[half], half, at, epoch)
			if ok && r.number >= next {
				return fmt.Errorf("%s: %w", l.path, NewDamage("record %d of the log is missing before record %d", next, r.number))
			}
			if r.body == nil {
				continue
			}
			if summed += size; summed > 3*l.head.half { // this is more than all valid records and a torn record
				return fmt.Errorf("%s: %w", l.path, NewDamage("the log has many records that do not check"))
			}
		}
	}
	return nil
}

// foreignError returns the error for a log that does not belong to this data file or to its current
// state.
func (l *LeftoverLog) foreignError(why string) error {
	return fmt.Errorf("%s is the log of another data file, or of another state of this one (%s): if the data file is a restored backup, remove the log; "+
		"else put back the file that it belongs to", l.path, why)
}
