package boltfile

// The store uses this file to change its buckets. A WriteTx is a write transaction of bbolt that
// records each change. The list of changes is the body of the transaction's record in the
// write-ahead log (wal.go). Applying the same changes in the same order to the same state produces
// the same buckets. This includes the changes made by compactions and by the deletion of authors.
//
//	OFFSET  SIZE  MEANING, of one change
//	     0     1  the bucket (meta, rev, keys, authors: 0 to 3), plus 16 for a deletion or 32 for a sequence
//	     1        the key's length and the key; for a sequence only the number (uvarint)
//	              the value's length and the value, unless it is a deletion

import (
	"encoding/binary"
	"fmt"

	"go.etcd.io/bbolt"
)

// Format versions of data files that can have a log.
const (
	FormatClosed = 2 // the file is complete
	FormatLogged = 3 // the file must not be used without its log
)

// revFill is the fill percentage for pages of the bucket rev, which grows only at its end.
const revFill = 0.95

const (
	notedDelete   = 16
	notedSequence = 32
)

// A WriteTx wraps a write transaction and records all changes.
type WriteTx struct {
	Tx      *bbolt.Tx
	notes   []byte
	changes int

	unlogged bool // recovery does not need its changes
}

// Put is bbolt's Put and records the change.
func (l *WriteTx) Put(bucket byte, key, value []byte) error {
	if err := l.Tx.Bucket(Buckets[bucket]).Put(key, value); err != nil {
		return err
	}
	l.note(bucket, key)
	l.notes = append(binary.AppendUvarint(l.notes, uint64(len(value))), value...)
	return nil
}

// Remove is bbolt's Delete and records the change.
func (l *WriteTx) Remove(bucket byte, key []byte) error {
	if err := l.Tx.Bucket(Buckets[bucket]).Delete(key); err != nil {
		return err
	}
	l.note(bucket|notedDelete, key)
	return nil
}

// PutMetaInt writes a number to the bucket meta.
func (l *WriteTx) PutMetaInt(name string, n int64) error {
	return l.Put(InMeta, []byte(name), binary.BigEndian.AppendUint64(nil, uint64(n)))
}

// SetSequence is bbolt's SetSequence and records the change.
func (l *WriteTx) SetSequence(bucket byte, n uint64) error {
	if err := l.Tx.Bucket(Buckets[bucket]).SetSequence(n); err != nil {
		return err
	}
	l.notes = binary.AppendUvarint(append(l.notes, bucket|notedSequence), n)
	l.changes++
	return nil
}

func (l *WriteTx) note(what byte, key []byte) {
	l.notes = append(l.notes, what)
	l.notes = append(binary.AppendUvarint(l.notes, uint64(len(key))), key...)
	l.changes++
}

// eachNoted calls show for each change in the given notes, in the original order.
func eachNoted(notes []byte, show func(what byte, key, value []byte, n uint64) error) error {
	bad := fmt.Errorf("a list of changes cannot be read")
	number := func() uint64 {
		n, size := binary.Uvarint(notes)
		if size <= 0 {
			notes = nil
			return 1 << 63
		}
		notes = notes[size:]
		return n
	}
	text := func() []byte {
		n := number()
		if n > uint64(len(notes)) {
			return nil
		}
		b := notes[:n:n]
		notes = notes[n:]
		return b
	}
	for len(notes) > 0 {
		what := notes[0]
		notes = notes[1:]
		if int(what&15) >= len(Buckets) {
			return bad
		}
		var key, value []byte
		var n uint64
		switch what &^ 15 {
		case notedSequence:
			if n = number(); n == 1<<63 {
				return bad
			}
		case notedDelete:
			if key = text(); len(key) == 0 {
				return bad
			}
		case 0:
			key, value = text(), text()
			if len(key) == 0 || value == nil {
				return bad
			}
		default:
			return bad
		}
		if err := show(what, key, value, n); err != nil {
			return err
		}
	}
	return nil
}

// replay applies the changes in the body of a record.
func (l *WriteTx) replay(notes []byte) error {
	var buckets [len(Buckets)]*bbolt.Bucket
	for i, name := range Buckets {
		if buckets[i] = l.Tx.Bucket(name); buckets[i] == nil {
			return NewDamage("the bucket %s is missing", name)
		}
	}
	buckets[InRev].FillPercent = revFill
	return eachNoted(notes, func(what byte, key, value []byte, n uint64) error {
		b := buckets[what&15]
		switch what &^ 15 {
		case notedSequence:
			return b.SetSequence(n)
		case notedDelete:
			return b.Delete(key)
		}
		return b.Put(key, value)
	})
}
