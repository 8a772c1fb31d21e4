package store

// This file has the seam where documents are encrypted: between what the store works with, and what lies on the disk. How, and which, it does not
// know: Options.Sealing says so.
//
//	stage.write    JSON ──Seal──▶ the record's last part, under the flag "sealed"      file, write-ahead log, replica, backup
//	opened         the record's last part ──Open──▶ JSON                               readers; the event log has what the writer had
//
// All that is on the disk of a sealed document is so: each version, its tombstone, what compaction has yet to delete, the log's records. Backups and
// packed files get the bytes as they lie, so that whoever makes them needs no key. Keys, sizes, times, authors and flags are in clear.
//
// A document that cannot be opened is an error of those who ask for it, with its key (ErrSealed), and never taken for damage: the key may come back, so
// that nothing deletes it. Who works on what there is passes over it, as over damage (Span.Sound), and finds it in Chunk.Sealed. A log in which one
// cannot be opened breaks off for those who follow it (ErrCompacted): old versions outlive the keys they are under. The history leaves the change out.
//
// Opening may ask a service, so it comes after the read transaction. The writer opens what a change replaces, mostly with what the reader before it has
// left in a cache, if the event log does not have it.
//
// Rejected: sealing before the writer takes a change, beside other writers. Two microseconds of a commit's hundred are not worth a second form of a Change.

import (
	"bytes"
	"errors"
)

// ErrSealed says that a document cannot be opened, or sealed.
var ErrSealed = errors.New("the document cannot be decrypted")

// errUnopened is of who opens a file without saying how to open what is in it.
var errUnopened = errors.New("it is encrypted, and no key is known here")

// Sealing says which documents are encrypted, and how. Its functions are called by many at once.
type Sealing struct {
	Open func(key string, sealed []byte) (json []byte, stale bool, err error) // stale: Seal would make something else of it
	Seal func(key string, json []byte) (sealed []byte, err error)             // nil: the document lies as it is
	Does func(key string) bool                                                // whether Seal does anything to a key's document; nil like Seal: to none

	Unopened func(key string, err error) // told of each document that could not be opened, as often as that is tried; may be nil
}

// A sealedError is ErrSealed about one document. Its text is its cause's.
type sealedError struct{ error }

func (sealedError) Is(target error) bool { return target == ErrSealed }

func (e sealedError) Unwrap() error { return e.error }

// record is what encodeRecord has made of a record, with its JSON sealed, and the size of that. r keeps its JSON.
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

// open returns a document; r.JSON is what lies in the file.
func (s *Sealing) open(r *Record, key string) (json []byte, stale bool, err error) {
	if s == nil {
		return nil, false, sealedError{errUnopened}
	}
	if json, stale, err = s.Open(key, r.JSON); err != nil {
		return nil, false, sealedError{err}
	}
	return json, stale, nil
}

// copyOf returns a copy of the document of a record that points into the file.
func (s *Sealing) copyOf(r *Record, key string) (json []byte, err error) {
	if !r.sealed {
		return bytes.Clone(r.JSON), nil
	}
	json, _, err = s.open(r, key)
	return json, err
}

// opened opens one record, and says whether it is stale.
func (st *Store) opened(rec Record) (Record, error) {
	s := st.Opts.Sealing
	switch {
	case rec.sealed:
		json, stale, err := s.open(&rec, rec.Key)
		if err != nil {
			st.passUnopened(rec.Key, err)
			return Record{Key: rec.Key, Rev: rec.Rev}, err
		}
		rec.JSON, rec.Stale, rec.sealed = json, rec.Stale || stale, false
	case s != nil && s.Seal != nil && !rec.Stale:
		rec.Stale = s.Does(rec.Key)
	}
	return rec, nil
}

// openAll opens the records of a chunk. Of what is sound it leaves out those that it cannot open.
func (st *Store) openAll(c *Chunk, sound bool) error {
	left := c.Records[:0]
	for i := range c.Records {
		rec := &c.Records[i]
		if rec.sealed {
			json, _, err := st.Opts.Sealing.open(rec, rec.Key)
			if err != nil {
				st.passUnopened(rec.Key, err)
				if !sound {
					return err
				}
				c.Sealed = append(c.Sealed, Unopened{rec.Key, err})
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

// An Unopened is an object that could not be opened.
type Unopened struct {
	Key string
	Err error // why
}

func (st *Store) passUnopened(key string, err error) {
	if s := st.Opts.Sealing; s != nil && s.Unopened != nil {
		s.Unopened(key, err)
	}
}

// openEvents opens events that were read from the file, from one on. Those that cannot be opened are told to miss. If that is no error, they are
// left out, and what is unknown is what one has replaced.
func (st *Store) openEvents(evs []Event, from int, miss missFunc) (_ []Event, err error) {
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
				st.passUnopened(ev.Key, err)
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
