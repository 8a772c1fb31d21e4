package store

// This file encodes and decodes records, key states and the numbers in meta. The tables in store.go
// show their layout. The functions have no side effects, and they return an error if a checksum
// does not match.
//
// The checksum of a record also includes the revision and the key. The checksum of a key state also
// includes the key. Therefore intact bytes in the wrong place are also detected as damage.

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"math"
	"strconv"

	"github.com/tidwall/gjson"

	"apilet/internal/store/boltfile"
)

const (
	recordHeader  = 23
	keyStateSize  = 17
	flagTombstone = 1
	flagDeleting  = 2
	flagStamped   = 4 // time and author follow the key
	flagLost      = 8 // the replaced version was damaged
	flagSealed    = 16
	flagStale     = 32
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// AppendRevision appends json to b and inserts the decimal revision at json[revAt].
func AppendRevision(b, json []byte, revAt int, rev int64) []byte {
	b = append(b, json[:revAt]...)
	b = strconv.AppendInt(b, rev, 10)
	return append(b, json[revAt:]...)
}

// WithRevision returns a copy of the stored JSON with another resourceVersion.
func WithRevision(json []byte, rev int64) []byte {
	at := gjson.GetBytes(json, "metadata.resourceVersion")
	out := append(make([]byte, 0, len(json)+8), json[:at.Index]...)
	out = append(strconv.AppendInt(append(out, '"'), rev, 10), '"')
	return append(out, json[at.Index+len(at.Raw):]...)
}

// EqualAt reports whether AppendRevision would produce the JSON of rec from json and its revision.
func EqualAt(json []byte, revAt int, rec *Record) bool {
	var digits [20]byte
	rev := strconv.AppendInt(digits[:0], rec.Rev, 10)
	return len(rec.JSON) == len(json)+len(rev) && bytes.Equal(rec.JSON[:revAt], json[:revAt]) &&
		bytes.Equal(rec.JSON[revAt:revAt+len(rev)], rev) && bytes.Equal(rec.JSON[revAt+len(rev):], json[revAt:])
}

// encodeRecord encodes a record. It inserts the decimal revision at json[revAt], unless revAt is
// negative. The result has a spare capacity of at least room bytes. r.JSON is set to the JSON in
// the result.
func encodeRecord(r *Record, json []byte, revAt, room int) []byte {
	size := recordHeader + len(r.Key) + stampMax + len(json)
	b := make([]byte, recordHeader, size+20+room)
	b[0] = flagsOf(r)
	binary.BigEndian.PutUint64(b[1:], uint64(r.PrevRev))
	binary.BigEndian.PutUint64(b[9:], uint64(r.CreateRev))
	binary.BigEndian.PutUint16(b[21:], uint16(len(r.Key)))
	b = append(b, r.Key...)
	if r.Lost {
		b[0] |= flagLost
	}
	if r.sealed {
		b[0] |= flagSealed
	}
	if r.Stale {
		b[0] |= flagStale
	}
	if r.Time != 0 || r.Author != 0 {
		b[0] |= flagStamped
		b = appendStamp(b, r)
	}
	at := len(b)
	if revAt < 0 {
		b = append(b, json...)
	} else {
		b = AppendRevision(b, json, revAt, r.Rev)
	}
	binary.BigEndian.PutUint32(b[17:], recordCRC(r.Rev, b))
	r.JSON = b[at:]
	return b
}

// stampMax is the maximum length of a stamp in bytes.
const stampMax = 6 + binary.MaxVarintLen32

// appendStamp appends the time and the author of a record.
func appendStamp(b []byte, r *Record) []byte {
	b = append(b, byte(r.Time>>40), byte(r.Time>>32), byte(r.Time>>24), byte(r.Time>>16), byte(r.Time>>8), byte(r.Time))
	return binary.AppendUvarint(b, uint64(r.Author))
}

// cutStamp decodes a stamp and returns the bytes after it. ok is false if none exists.
func cutStamp(b []byte) (time int64, author AuthorID, rest []byte, ok bool) {
	if len(b) < 7 {
		return 0, 0, nil, false
	}
	time = int64(b[0])<<40 | int64(b[1])<<32 | int64(b[2])<<24 | int64(b[3])<<16 | int64(b[4])<<8 | int64(b[5])
	id, n := binary.Uvarint(b[6:])
	if n <= 0 || id > math.MaxUint32 {
		return 0, 0, nil, false
	}
	return time, AuthorID(id), b[6+n:], true
}

// flagsOf returns the flags that are stored both in a record and in the keyState of its key. They
// mark tombstones and objects that are being deleted.
func flagsOf(r *Record) (flags byte) {
	if r.Deleted {
		flags |= flagTombstone
	}
	if r.Deleting {
		flags |= flagDeleting
	}
	return flags
}

// recordCRC uses the revision as the seed instead of hashing it. This detects the same errors and
// does not allocate.
func recordCRC(rev int64, b []byte) uint32 {
	seed := uint32(rev) ^ uint32(rev>>32)
	return crc32.Update(crc32.Update(seed, castagnoli, b[:17]), castagnoli, b[21:])
}

// decodeRecord decodes the record of a revision and verifies its checksum. key and the JSON point
// into b. PrevRev is the value in the file, so the record of a re-created object refers to the
// tombstone before it.
func decodeRecord(rev int64, b []byte) (r Record, key []byte, err error) {
	if len(b) < recordHeader || len(b) < recordHeader+recordKeyLen(b) || binary.BigEndian.Uint32(b[17:]) != recordCRC(rev, b) {
		return r, nil, damagedRecord(rev, b)
	}
	n := recordHeader + recordKeyLen(b)
	key = b[recordHeader:n]
	r = Record{
		Rev:       rev,
		PrevRev:   int64(binary.BigEndian.Uint64(b[1:])),
		CreateRev: int64(binary.BigEndian.Uint64(b[9:])),
		Deleted:   b[0]&flagTombstone != 0,
		Deleting:  b[0]&flagDeleting != 0,
		Lost:      b[0]&flagLost != 0,
		Stale:     b[0]&flagStale != 0,
		sealed:    b[0]&flagSealed != 0,
	}
	rest := b[n:len(b):len(b)]
	if b[0]&flagStamped != 0 {
		var ok bool
		if r.Time, r.Author, rest, ok = cutStamp(rest); !ok {
			return r, nil, damagedRecord(rev, b)
		}
	}
	if r.JSON = rest; r.PrevRev < 0 || r.PrevRev >= rev || r.CreateRev > rev {
		return r, nil, damagedRecord(rev, b)
	}
	return r, key, nil
}

func recordKeyLen(b []byte) int { return int(binary.BigEndian.Uint16(b[21:])) }

// recordKey returns the key of a record without verifying the checksum. It returns nil if the
// record is too short.
func recordKey(b []byte) []byte {
	if len(b) < recordHeader || len(b) < recordHeader+recordKeyLen(b) {
		return nil
	}
	return b[recordHeader : recordHeader+recordKeyLen(b)]
}

func damagedRecord(rev int64, b []byte) error {
	return boltfile.NewDamage("revision %d (key %q) is damaged: its checksum does not match", rev, recordKey(b))
}

// keyState is a value in the bucket keys.
type keyState struct {
	rev   int64
	size  int // size of the JSON
	flags byte
}

func (s keyState) live() bool { return s.rev != 0 && s.flags&flagTombstone == 0 }

func appendKeyState(b, key []byte, s keyState) []byte {
	n := len(b)
	b = binary.BigEndian.AppendUint64(b, uint64(s.rev))
	b = binary.BigEndian.AppendUint32(b, uint32(s.size))
	b = append(b, s.flags)
	return binary.BigEndian.AppendUint32(b, keyStateCRC(key, b[n:]))
}

func keyStateCRC(key, b []byte) uint32 {
	return crc32.Update(crc32.Update(0, castagnoli, key), castagnoli, b[:13])
}

func decodeKeyState(key, b []byte) (keyState, error) {
	if len(b) != keyStateSize || binary.BigEndian.Uint32(b[13:]) != keyStateCRC(key, b) {
		return keyState{}, boltfile.NewDamage("the entry of key %q is damaged: its checksum does not match", key)
	}
	return keyState{int64(binary.BigEndian.Uint64(b)), int(binary.BigEndian.Uint32(b[8:])), b[12]}, nil
}

// revKey returns the key of a revision's record in the bucket rev: 8 bytes, big endian.
func revKey(rev int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(rev)) }

// longKey returns the key for a record if there is already another record with the same revision.
func longKey(rev int64, key []byte) []byte { return append(revKey(rev), key...) }

// revOf decodes a key of the bucket rev. If the key is nil or too short, it returns math.MaxInt64.
func revOf(k []byte) int64 {
	if len(k) < 8 {
		return math.MaxInt64
	}
	return int64(binary.BigEndian.Uint64(k))
}

func authorKey(id AuthorID) []byte { return binary.BigEndian.AppendUint32(nil, uint32(id)) }

func encodeAuthor(key []byte, a Author) []byte {
	b := make([]byte, 4, 16+len(a.User)+len(a.Agent)+len(a.Verb)+len(a.Subresource)+len(a.Manager))
	for _, text := range [...]string{a.User, a.Agent, a.Verb, a.Subresource, a.Manager} {
		b = append(binary.AppendUvarint(b, uint64(len(text))), text...)
	}
	binary.BigEndian.PutUint32(b, authorCRC(key, b))
	return b
}

func authorCRC(key, b []byte) uint32 {
	return crc32.Update(crc32.Update(0, castagnoli, key), castagnoli, b[4:])
}

func decodeAuthor(key, b []byte) (id AuthorID, a Author, err error) {
	if len(key) != 4 || len(b) < 4 || binary.BigEndian.Uint32(b) != authorCRC(key, b) {
		return 0, a, boltfile.NewDamage("author %x is damaged: its checksum does not match", key)
	}
	id, b = AuthorID(binary.BigEndian.Uint32(key)), b[4:]
	for _, text := range [...]*string{&a.User, &a.Agent, &a.Verb, &a.Subresource, &a.Manager} {
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) {
			return 0, a, boltfile.NewDamage("author %d is damaged", id)
		}
		*text, b = string(b[n:n+int(size)]), b[n+int(size):]
	}
	return id, a, nil
}
