package store

// This file encrypts documents before they are written to the disk and decrypts them for readers.
// Options.Sealing provides the functions and decides which documents are encrypted.
//
//	stage.write    JSON ──Seal──▶ last part of the record, with the flag "sealed"      file, write-ahead log, replica, backup
//	opened         last part of the record ──Open──▶ JSON                              readers; the event log has the writer's JSON
//
// If a document is encrypted, all copies on the disk are also encrypted. This includes all versions
// that have not been deleted by compaction, the tombstones, and the records in the log. Backups and
// packed files contain the stored bytes, so they can be made without a key. Note that the keys,
// sizes, times, authors and flags of records are not encrypted.
//
// If a document cannot be decrypted, the read fails with ErrSealed. The key of the document is also
// returned. This is not treated as damage, and the document is not deleted, because the encryption
// key may become available later. Scans skip it like damage if Span.SkipDamaged is set, and report
// it in Chunk.Sealed. Followers of a log with such a document get ErrCompacted, because old
// versions may outlive their encryption keys. The history omits the change.
//
// Decryption may call a service. Therefore readers decrypt after their read transaction. The writer
// decrypts the document that a change replaces if the event log does not contain it. In most cases,
// the document is still in a cache after the last read.
//
// Rejected alternative: sealing before the writer takes a change, concurrently with other writers.
// Sealing takes two of the hundred microseconds of a commit, which does not justify a second form
// of Change.

import (
	"bytes"
	"errors"
)

// ErrSealed means that a document cannot be decrypted or encrypted.
var ErrSealed = errors.New("the document cannot be decrypted")

// errUnopened is returned if a document is encrypted, but the file was opened without Sealing.
var errUnopened = errors.New("it is encrypted, and this server has no key for it")

// Sealing contains the functions that are used to encrypt and decrypt documents. Its functions must
// be safe for concurrent use.
type Sealing struct {
	Open     func(key string, sealed []byte) (json []byte, stale bool, err error) // stale: Seal would now produce a different result
	Seal     func(key string, json []byte) (sealed []byte, err error)             // a nil result means that the document is not encrypted
	Encrypts func(key string) bool                                                // reports whether Seal encrypts the document of a key; nil if and only if Seal is nil

	OnOpenError func(key string, err error) // called when a document cannot be decrypted; may be nil
}

// A sealedError is returned if a document cannot be encrypted or decrypted. It matches ErrSealed
// and has the text of the wrapped error.
type sealedError struct{ error }

func (sealedError) Is(target error) bool { return target == ErrSealed }

func (e sealedError) Unwrap() error { return e.error }

// record encrypts the JSON of a record. It returns the encoded record and the size of the encrypted
// JSON. r keeps the plain JSON. plain is the record as encoded without encryption.
func (s *Sealing) record(r *Record, plain []byte) (value []byte, size int, err error) {
	json := r.JSON
	sealed, err := s.Seal(r.Key, json)
	if err != nil {
		return nil, 0, sealedError{err}
	}
	if sealed == nil {
		return plain, len(json), nil
	}
	r.sealed = true
	value = encodeRecord(r, sealed, -1, keyStateSize)
	r.JSON, r.sealed = json, false
	return value, len(sealed), nil
}

// open decrypts r.JSON, which is the JSON in the file.
func (s *Sealing) open(r *Record, key string) (json []byte, stale bool, err error) {
	if s == nil {
		return nil, false, sealedError{errUnopened}
	}
	if json, stale, err = s.Open(key, r.JSON); err != nil {
		return nil, false, sealedError{err}
	}
	return json, stale, nil
}

// copyOf returns a plain copy of the document of a record that points into the file.
func (s *Sealing) copyOf(r *Record, key string) (json []byte, err error) {
	if !r.sealed {
		return bytes.Clone(r.JSON), nil
	}
	json, _, err = s.open(r, key)
	return json, err
}

// openRecord decrypts one record and sets Stale.
func (st *Store) openRecord(rec Record) (Record, error) {
	s := st.Opts.Sealing
	switch {
	case rec.sealed:
		json, stale, err := s.open(&rec, rec.Key)
		if err != nil {
			st.reportOpenFailure(rec.Key, err)
			return Record{Key: rec.Key, Rev: rec.Rev}, err
		}
		rec.JSON, rec.Stale, rec.sealed = json, rec.Stale || stale, false
	case s != nil && s.Seal != nil && !rec.Stale:
		rec.Stale = s.Encrypts(rec.Key)
	}
	return rec, nil
}

// openAll decrypts the records of a chunk. If sound is set, it skips records that cannot be
// decrypted.
func (st *Store) openAll(c *Chunk, sound bool) error {
	left := c.Records[:0]
	for i := range c.Records {
		rec := &c.Records[i]
		if rec.sealed {
			json, _, err := st.Opts.Sealing.open(rec, rec.Key)
			if err != nil {
				st.reportOpenFailure(rec.Key, err)
				if !sound {
					return err
				}
				c.Sealed = append(c.Sealed, OpenFailure{rec.Key, err})
				continue
			}
			rec.JSON, rec.sealed = json, false
		}
		left = append(left, *rec)
	}
	clear(c.Records[len(left):])
	c.Records = left
	return nil
}

// An OpenFailure describes an object that could not be decrypted.
type OpenFailure struct {
	Key string
	Err error // cause
}

func (st *Store) reportOpenFailure(key string, err error) {
	if s := st.Opts.Sealing; s != nil && s.OnOpenError != nil {
		s.OnOpenError(key, err)
	}
}

// openEvents decrypts the events of evs from index from on, which were read from the file. It
// passes errors to miss. If miss returns nil, it omits the event, or only Prev if that cannot be
// decrypted.
func (st *Store) openEvents(evs []Event, from int, miss damageFunc) (_ []Event, err error) {
	left := evs[:from]
	for i := from; i < len(evs) && err == nil; i++ {
		ev := evs[i]
		if ev.prevSealed {
			old := Record{JSON: ev.Prev}
			if ev.Prev, _, err = st.Opts.Sealing.open(&old, ev.Key); err != nil {
				err = miss(ev.PrevRev, err)
			}
		}
		if ev.sealed && err == nil {
			if ev.JSON, _, err = st.Opts.Sealing.open(&ev.Record, ev.Key); err != nil {
				st.reportOpenFailure(ev.Key, err)
				err = miss(ev.Rev, err)
				continue
			}
		}
		ev.sealed, ev.prevSealed = false, false
		left = append(left, ev)
	}
	if err != nil {
		left = evs[:from]
	}
	clear(evs[len(left):])
	return left, err
}
