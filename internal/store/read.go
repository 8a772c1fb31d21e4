package store

// This file implements reads of single objects, key ranges and counts. It also reads events from
// the file if they are no longer in memory. Key ranges are read in chunks. Each read is a short
// transaction. Results are copies, which do not refer to the file.

import (
	"bytes"
	"encoding/binary"
	"errors"
	"iter"
	"math"
	"slices"
	"strings"
	"sync"

	"apilet/internal/store/boltfile"
)

// A snapshot is a short read transaction. Its bytes belong to the file and must not be retained.
type snapshot struct {
	*boltfile.Pages
	keys   boltfile.Tree
	revs   boltfile.Tree       // versions of objects by revision
	newest boltfile.SearchHint // position in revs for lookups of the keys' newest versions
	// older is the position in revs for lookups of older versions. It is nil if there was no such
	// lookup yet.
	older   *boltfile.SearchHint
	compact int64
	shared  bool // some revisions have more than one record
	chains  *waypoints
	steps   int     // number of newer versions that were skipped
	passed  []int64 // some of the skipped revisions of the current key
	seek    [8]byte
}

func newSnapshot(p *boltfile.Pages, compact int64) *snapshot {
	s := &snapshot{Pages: p, compact: compact}
	var ok, also bool
	s.keys, ok = p.Bucket(boltfile.InKeys)
	s.revs, also = p.Bucket(boltfile.InRev)
	if !ok || !also {
		boltfile.PanicDamage("a bucket is missing")
	}
	return s
}

// meta returns the bucket meta.
func (s *snapshot) meta() boltfile.Tree {
	meta, ok := s.Bucket(boltfile.InMeta)
	if !ok {
		boltfile.PanicDamage("the bucket meta is missing")
	}
	return meta
}

// authors returns the bucket authors.
func (s *snapshot) authors() boltfile.Tree {
	t, _ := s.Bucket(boltfile.InAuthors)
	return t
}

// author returns the entry of an author, or nil if none exists.
func (s *snapshot) author(id AuthorID) []byte {
	t, ok := s.Bucket(boltfile.InAuthors)
	if !ok {
		return nil
	}
	return t.Get(authorKey(id))
}

// newestTime returns the time of the newest record in milliseconds, or 0 if it is unknown.
func (s *snapshot) newestTime() int64 {
	if b := s.revs.Get(revKey(int64(s.revs.Sequence))); b != nil {
		if r, _, err := decodeRecord(int64(s.revs.Sequence), b); err == nil {
			return r.Time
		}
	}
	return 0
}

// readSnapshot calls fn in a read transaction. It reads CompactRev after the transaction has begun.
// Since CompactRev is always updated before versions are deleted, it cannot be too low for the
// transaction. Calls must not be nested.
func (st *Store) readSnapshot(fn func(*snapshot) error) error {
	return st.File.View(func(p *boltfile.Pages) error {
		s := newSnapshot(p, st.compactRev.Load())
		s.shared, s.chains = st.shared.Load(), &st.chains
		return fn(s)
	})
}

// record returns the record of key at revision rev, or nil if none exists. If revisions are not
// shared, it may return a record of another key. The caller must treat that as damage.
func (s *snapshot) record(rev int64, key []byte) []byte { return s.recordFromHint(&s.newest, rev, key) }

// recordFromHint is like record, but it uses f as a hint for the search.
func (s *snapshot) recordFromHint(f *boltfile.SearchHint, rev int64, key []byte) []byte {
	b := f.Get(&s.revs, uint64(rev))
	if b == nil {
		binary.BigEndian.PutUint64(s.seek[:], uint64(rev))
		b = s.revs.Get(s.seek[:])
	}
	if b != nil && bytes.Equal(recordKey(b), key) {
		return b
	}
	if long := s.revs.Get(longKey(rev, key)); long != nil || s.shared {
		return long
	}
	return b
}

// olderHint returns the hint for lookups of older versions.
func (s *snapshot) olderHint() *boltfile.SearchHint {
	if s.older == nil {
		s.older = new(boltfile.SearchHint)
	}
	return s.older
}

// version follows the chain of key to its newest version at or below rev. ok is false if the key
// did not exist at rev.
func (s *snapshot) version(key []byte, state keyState, rev int64) (r Record, ok bool, err error) {
	if state.rev <= rev && !state.live() {
		return r, false, nil
	}
	r, ok, err = s.follow(key, state.rev, rev)
	if len(s.passed) > 0 {
		s.chains.add(key, s.passed)
		s.passed = s.passed[:0]
	}
	return r, ok, err
}

// follow is version, starting at the revision from.
func (s *snapshot) follow(key []byte, from, rev int64) (r Record, ok bool, err error) {
	at, f := from, &s.newest
	for steps := 0; at > 0; steps++ {
		if steps > 0 && steps%waypointEvery == 0 {
			at = s.shortcut(key, at, rev, steps)
		}
		b := s.recordFromHint(f, at, key)
		if b == nil && at <= s.compact && at != from {
			return r, false, nil // a compacted tombstone
		}
		if b == nil {
			return r, false, boltfile.NewDamage("revision %d (key %q) is missing", at, key)
		}
		r, found, err := decodeRecord(at, b)
		if err != nil {
			return r, false, err
		}
		if !bytes.Equal(found, key) {
			return r, false, boltfile.NewDamage("revision %d belongs to key %q, not to %q", at, found, key)
		}
		if at <= rev {
			return r, !r.Deleted, nil
		}
		s.steps++
		f = s.olderHint()
		if at = r.PrevRev; r.CreateRev > rev && r.CreateRev < r.Rev && s.recordFromHint(f, r.CreateRev, key) != nil {
			// If the object was created after rev, skip all of its updates. In a replica, the
			// record of the creation may not exist.
			at = r.CreateRev
		}
	}
	return r, false, nil
}

// shortcut returns the revision at which follow continues. The first time that a walk is long, this
// is the remembered waypoint nearest to rev. Otherwise it returns at and adds it to the list of new
// waypoints.
func (s *snapshot) shortcut(key []byte, at, rev int64, steps int) int64 {
	if steps == waypointEvery {
		if place := s.chains.above(key, rev); place != 0 && place < at {
			if b := s.record(place, key); b != nil && bytes.Equal(recordKey(b), key) {
				return place
			}
			s.chains.forget(key)
		}
	}
	if at > rev {
		s.passed = append(s.passed, at)
	}
	return at
}

// reach returns an error if rev cannot be read. current must be a published revision, which every
// later transaction contains.
func (s *snapshot) reach(rev, current int64) error {
	if rev < s.compact {
		return ErrCompacted
	}
	if rev > current {
		return errFutureRev
	}
	return nil
}

// each calls visit for each key with the given prefix, starting at start. It stops when visit
// returns false. It returns the key at which to continue, or "" at the end.
func (s *snapshot) each(prefix, start string, visit func(key []byte, state keyState) (bool, error)) (next string, err error) {
	c := s.keys.Cursor()
	return walkKeys(&c, prefix, []byte(max(prefix, start)), func(k, v []byte) (bool, error) {
		state, err := decodeKeyState(k, v)
		if err != nil {
			return false, err
		}
		return visit(k, state)
	})
}

func walkKeys(c *boltfile.Cursor, prefix string, from []byte, visit func(k, v []byte) (bool, error)) (next string, err error) {
	k, v := c.Seek(from)
	for n := 0; k != nil && strings.HasPrefix(string(k), prefix); n++ {
		if n == walkKeysMax {
			return string(k), nil
		}
		if more, err := visit(k, v); !more || err != nil {
			return string(k), err
		}
		k, v = c.Next()
	}
	return "", nil
}

// only returns a walk like each that visits only the given sorted keys.
func only(keys []string) walk {
	return func(s *snapshot, prefix, start string, visit func([]byte, keyState) (bool, error)) (next string, err error) {
		at, _ := slices.BinarySearch(keys, max(prefix, start))
		for n, key := range keys[at:] {
			if !strings.HasPrefix(key, prefix) {
				break
			}
			if n == walkKeysMax {
				return key, nil
			}
			k := []byte(key)
			v := s.keys.Get(k)
			if v == nil {
				continue
			}
			state, err := decodeKeyState(k, v)
			if err != nil {
				return key, err
			}
			if more, err := visit(k, state); !more || err != nil {
				return key, err
			}
		}
		return "", nil
	}
}

// eachSound is like each, but skips damage. It calls damaged with each error and the key of the
// affected object, or with a nil key if a whole page is damaged.
func (s *snapshot) eachSound(prefix, start string, visit func([]byte, keyState) (bool, error), damaged func(key []byte, err error)) (next string) {
	c, last := s.keys.Cursor(), ""
	behind, err := c.SkipDamage([]byte(max(prefix, start)), func(from []byte) {
		next, _ = walkKeys(&c, prefix, from, func(k, v []byte) (more bool, _ error) {
			last = string(k) // a copy is acceptable, since this function is rarely used
			err := boltfile.RecoverFaults(func() error {
				state, err := decodeKeyState(k, v)
				if err == nil {
					more, err = visit(k, state)
				}
				return err
			})
			if err != nil {
				damaged(k, err)
			}
			return more || err != nil, nil
		})
	})
	if err != nil {
		damaged(nil, err)
		if next = string(behind); next != "" && next <= last { // ensure progress if pages are not sorted
			next = last + "\x00"
		}
		if !strings.HasPrefix(next, prefix) {
			next = ""
		}
	}
	return next
}

// Revision returns the newest durable revision.
func (st *Store) Revision() int64 { return st.currentRev.Load() }

// Compacted returns the compacted revision, or 0 if there was no compaction. Reads below it fail
// with ErrCompacted.
func (st *Store) Compacted() int64 { return st.compactRev.Load() }

// Get returns the newest version of a live object. It fails with ErrNotFound if none exists.
func (st *Store) Get(key string) (rec Record, err error) {
	current := st.Revision()
	err = st.readSnapshot(func(s *snapshot) error {
		rec, err = s.at(key, current)
		return err
	})
	if err == nil {
		rec, err = st.openRecord(rec)
	}
	return rec, err
}

// GetUpTo is like Get, but if the stored JSON is longer than most bytes, the record has no JSON.
// size is the length of the stored JSON.
func (st *Store) GetUpTo(key string, most int) (rec Record, size int, err error) {
	current := st.Revision()
	err = st.readSnapshot(func(s *snapshot) error {
		rec, size, err = s.upTo(key, current, most)
		return err
	})
	if err == nil && size <= most {
		rec, err = st.openRecord(rec)
	}
	return rec, size, err
}

// at returns a copy of an object at rev, which must be readable. It fails with ErrNotFound if the
// object did not exist.
func (s *snapshot) at(key string, rev int64) (rec Record, err error) {
	rec, _, err = s.upTo(key, rev, math.MaxInt)
	return rec, err
}

// upTo is like at, but it does not return the JSON if it is longer than most bytes.
func (s *snapshot) upTo(key string, rev int64, most int) (rec Record, size int, err error) {
	k := []byte(key)
	v := s.keys.Get(k)
	if v == nil {
		return rec, 0, ErrNotFound
	}
	state, err := decodeKeyState(k, v)
	if err != nil {
		return rec, 0, err
	}
	r, ok, err := s.version(k, state, rev)
	if err != nil {
		return rec, 0, err
	}
	if !ok {
		return rec, 0, ErrNotFound
	}
	if len(r.JSON) > most {
		return r.public(key, nil), len(r.JSON), nil
	}
	return r.public(key, bytes.Clone(r.JSON)), len(r.JSON), nil
}

// A Span selects the objects that Store.Chunk reads: the keys with Prefix, beginning with Start (""
// means the first), at revision Rev (0 means the newest, which is returned in Chunk.Rev). The
// number of objects in a chunk is limited by Items (default 500). The size is limited by bytes
// (default 256 KiB), unless the first object is larger.
type Span struct {
	Prefix, Start string   // key prefix and first key
	Rev           int64    // 0 means the newest
	Items, bytes  int      // 0 means the default limit
	SkipDamaged   bool     // skip damaged objects and report each to the log once, instead of failing
	Keys          []string // only these sorted keys, from an Index; ignored if nil or if SkipDamaged is set
	asStored      bool     // do not decrypt documents
}

// A Chunk is the result of one short read transaction. All records use the same buffer for the
// JSON. A Chunk can be reused. It may contain fewer objects than requested, or no objects at all.
// If Next is empty, there are no more objects.
type Chunk struct {
	Rev     int64         // revision of the objects
	Records []Record      // valid until the chunk is filled again
	Next    string        // start of the next chunk; "" at the end
	Damaged []string      // known keys of the damaged objects that were skipped with Span.SkipDamaged
	Sealed  []OpenFailure // objects that could not be decrypted and were skipped with Span.SkipDamaged
	buf     []byte
	sealed  bool // some records are encrypted

	keys    []byte // concatenated keys of the records
	keyEnds []int
	left    int // remaining bytes of the budget
}

// ChunkPool holds Chunks for reuse. Records of a Chunk must not be used after it is returned to the
// pool.
var ChunkPool = sync.Pool{New: func() any { return new(Chunk) }}

// Chunk fills c with live objects in key order. It fails with ErrCompacted or errFutureRev if the
// revision cannot be read.
func (st *Store) Chunk(sp Span, c *Chunk) error {
	current, keys := st.Revision(), walk((*snapshot).each)
	if sp.Keys != nil && !sp.SkipDamaged {
		keys = only(sp.Keys)
	}
	err := st.fill(c, &sp, current, keys)
	if sp.SkipDamaged && errors.Is(err, ErrDamaged) { // rarely needed, and slower
		err = st.fill(c, &sp, current, func(s *snapshot, prefix, start string, visit func([]byte, keyState) (bool, error)) (string, error) {
			return s.eachSound(prefix, start, visit, c.skipDamaged(st)), nil
		})
	}
	c.nameRecords()
	if err == nil && c.sealed && !sp.asStored {
		err = st.openAll(c, sp.SkipDamaged)
	}
	return err
}

// A walk is a function that visits all keys with a prefix, such as each.
type walk func(s *snapshot, prefix, start string, visit func(key []byte, state keyState) (bool, error)) (next string, err error)

// fill makes one attempt to fill a chunk.
func (st *Store) fill(c *Chunk, sp *Span, current int64, keys walk) error {
	c.reset(sp, current)
	return st.readSnapshot(func(s *snapshot) (err error) {
		if err := s.reach(c.Rev, current); err != nil {
			return err
		}
		c.Next, err = keys(s, sp.Prefix, sp.Start, func(key []byte, state keyState) (bool, error) {
			if s.steps > chainStepsMax {
				return false, nil
			}
			r, ok, err := s.version(key, state, c.Rev)
			if err != nil || !ok {
				return err == nil, err
			}
			return len(c.Records) < sp.Items && c.add(key, r), nil
		})
		return err
	})
}

// skipDamaged returns a function that reports damage to the log and adds the key to c.Damaged.
func (c *Chunk) skipDamaged(st *Store) func(key []byte, err error) {
	return func(key []byte, err error) {
		_ = st.File.Explain(err)
		if _, _, ok := keyPrefixes(string(key)); ok { // keys on a damaged page may be invalid
			c.Damaged = append(c.Damaged, string(key))
		}
	}
}

// All iterates over the live objects of a span in key order. All objects are read at the same
// revision. A short read transaction is used for each chunk. A record is valid until the next
// iteration. An error, such as ErrCompacted or errFutureRev, ends the iteration and comes with a
// nil record. Callers that need whole chunks or Chunk.Damaged use Chunks.
func (st *Store) All(sp Span) iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		for c, err := range st.Chunks(sp) {
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range c.Records {
				if !yield(&c.Records[i], nil) {
					return
				}
			}
		}
	}
}

// Chunks is like All, but iterates over chunks. A chunk is valid until the next iteration.
func (st *Store) Chunks(sp Span) iter.Seq2[*Chunk, error] {
	return func(yield func(*Chunk, error) bool) {
		c := ChunkPool.Get().(*Chunk)
		defer ChunkPool.Put(c)
		for at := sp; ; at.Rev, at.Start = c.Rev, c.Next {
			if err := st.Chunk(at, c); err != nil {
				yield(nil, err)
				return
			}
			if !yield(c, nil) || c.Next == "" {
				return
			}
		}
	}
}

// CheckReadable returns an error if an object with the prefix cannot be read.
func (st *Store) CheckReadable(prefix string) error {
	for _, err := range st.Chunks(Span{Prefix: prefix}) {
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *Chunk) reset(sp *Span, current int64) {
	if sp.Items <= 0 {
		sp.Items = chunkItems
	}
	if sp.bytes <= 0 {
		sp.bytes = chunkBytes
	}
	if c.Rev = sp.Rev; c.Rev == 0 {
		c.Rev = current
	}
	if cap(c.buf) > 4*chunkBytes { // used for a large object, which is rare
		c.buf = nil
	}
	c.Damaged, c.Sealed, c.sealed = nil, nil, false
	clear(c.Records) // release older buffers
	c.Records, c.buf, c.keys, c.keyEnds = c.Records[:0], c.buf[:0], c.keys[:0], c.keyEnds[:0]
	c.Next, c.left = "", sp.bytes
}

// add copies an object to the chunk. It returns false if the chunk is full. The first object always
// fits. A full buffer is replaced by a larger one and not grown, so that earlier records keep their
// JSON.
func (c *Chunk) add(key []byte, r Record) bool {
	if len(r.JSON) > c.left && len(c.Records) > 0 {
		return false
	}
	c.left, c.sealed = c.left-len(r.JSON), c.sealed || r.sealed
	if cap(c.buf)-len(c.buf) < len(r.JSON) {
		c.buf = make([]byte, 0, max(len(r.JSON), 2*cap(c.buf), 4096))
	}
	at := len(c.buf)
	c.buf = append(c.buf, r.JSON...)
	c.keys = append(c.keys, key...)
	c.keyEnds = append(c.keyEnds, len(c.keys))
	c.Records = append(c.Records, r.public("", c.buf[at:len(c.buf):len(c.buf)]))
	return true
}

// nameRecords sets the key of each record. It allocates a single string for all keys.
func (c *Chunk) nameRecords() {
	all, at := string(c.keys), 0
	for i, end := range c.keyEnds {
		c.Records[i].Key = all[at:end]
		at = end
	}
}

// Count returns the number of live objects with the prefix and the total size of their JSON. The
// prefix must be either `/group/resource/` or `/group/resource/namespace/`. Both numbers are as of
// revision rev.
func (st *Store) Count(prefix string) (objects, bytes, rev int64) {
	st.mu.RLock()
	defer st.mu.RUnlock()
	if t := st.tallies[prefix]; t != nil {
		objects, bytes = t.objects, t.bytes
	}
	return objects, bytes, st.currentRev.Load()
}

// Objects returns the number of all live objects.
func (st *Store) Objects() int64 {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.total.objects
}

// CountAt returns the number of objects with the given prefix that were live at rev, starting at
// the key start. It only has to read a record if the key has changed since rev. Each transaction is
// limited to 10,000 keys.
func (st *Store) CountAt(prefix, start string, rev int64) (n int64, err error) {
	current := st.Revision()
	for {
		err := st.readSnapshot(func(s *snapshot) (err error) {
			if err := s.reach(rev, current); err != nil {
				return err
			}
			start, err = s.each(prefix, start, func(key []byte, state keyState) (bool, error) {
				if s.steps > chainStepsMax {
					return false, nil
				}
				one, err := s.countOne(key, state, rev)
				n += one
				return err == nil, err
			})
			return err
		})
		if err != nil || start == "" {
			return n, err
		}
	}
}

// countOne returns 1 if the key was live at rev. It does not have to read the record if the key has
// not changed since then.
func (s *snapshot) countOne(key []byte, state keyState, rev int64) (int64, error) {
	live, err := state.live(), error(nil)
	if state.rev > rev {
		_, live, err = s.version(key, state, rev)
	}
	if !live {
		return 0, err
	}
	return 1, err
}

// OlderThan returns live objects with the given prefix that have not been changed since rev. It
// starts at the key start and returns at most max objects. It may return fewer objects to keep the
// transaction short. next is the key to use as start in the next call, or "" if there are no more
// objects. Damaged objects are skipped.
func (st *Store) OlderThan(prefix string, rev int64, max int, start string) (records []Record, next string, err error) {
	size := 0
	err = st.readSnapshot(func(s *snapshot) error {
		next = s.eachSound(prefix, start, func(key []byte, state keyState) (bool, error) {
			if !state.live() || state.rev > rev {
				return true, nil
			}
			if len(records) == max || size > chunkBytes {
				return false, nil
			}
			r, ok, err := s.version(key, state, state.rev)
			if ok {
				records = append(records, r.public(string(key), bytes.Clone(r.JSON)))
				size += len(r.JSON)
			}
			return err == nil, err
		}, func(_ []byte, err error) { _ = st.File.Explain(err) })
		return nil
	})
	c := Chunk{Records: records}
	if slices.ContainsFunc(records, func(r Record) bool { return r.sealed }) {
		err = errors.Join(err, st.openAll(&c, true))
	}
	return c.Records, next, err
}

// ---- The event log

// Events returns the events of a resource (`/group/resource/` or Everything) after the given
// revision. The events are sorted by revision. The number of events is limited to max. If they are
// read from disk, the size is also limited to about 256 KiB. Both limits may be exceeded to return
// all events of a revision. The result contains all events up to revision upTo.
//
// Events fails with ErrCompacted if after is less than CompactRev. However, it does not fail if the
// log in memory shows that there are no events after that revision. This means that a watcher of an
// idle resource can continue after a compaction. It also fails with ErrCompacted if an event is
// incomplete because the replaced version was damaged (Record.Lost), or if an event cannot be
// decrypted.
func (st *Store) Events(resource string, after int64, max int, dst []Event) (evs []Event, upTo int64, err error) {
	known := len(dst)
	evs, upTo, err = st.events(resource, nil, after, max, dst, func(rev int64, err error) error {
		if errors.Is(err, ErrSealed) {
			return ErrCompacted
		}
		return boltfile.NewDamage("revision %d is damaged", rev) // omit the key, which the watcher may not be allowed to see
	})
	for i := known; err == nil && i < len(evs); i++ {
		if evs[i].Lost {
			return evs[:known], after, ErrCompacted
		}
	}
	return evs, upTo, err
}

// A Filter reports whether a record with this key and author is wanted. A nil Filter accepts all.
type Filter func(key []byte, by AuthorID) bool

// EventsOf is like Events, but returns as much as possible. It skips damaged events. It also
// returns events if the previous version is not known. It omits events that wanted rejects if that
// saves reading them. Some rejected events may still be returned.
func (st *Store) EventsOf(resource string, wanted Filter, after int64, max int, dst []Event) (evs []Event, upTo int64, err error) {
	return st.events(resource, wanted, after, max, dst, func(_ int64, err error) error {
		if !errors.Is(err, ErrSealed) {
			_ = st.File.Explain(err)
		}
		return nil
	})
}

// events implements Events and EventsOf. It calls miss for each damaged revision.
func (st *Store) events(resource string, wanted Filter, after int64, max int, dst []Event, miss damageFunc) (evs []Event, upTo int64, err error) {
	if max <= 0 {
		max = chunkItems
	}
	st.mu.RLock()
	n, first, known := st.log.since(resource, after)
	if known && (n == 0 || after >= st.Compacted() || first > st.Compacted()) {
		dst, upTo = st.log.read(resource, n, max, dst)
		st.mu.RUnlock()
		if upTo < after {
			upTo = after
		}
		return dst, upTo, nil
	}
	st.mu.RUnlock()
	return st.replay(resource, wanted, after, max, dst, miss)
}

// A damageFunc handles damage in the log. If it returns nil, reading continues.
type damageFunc func(rev int64, err error) error

// replay reads events that have left the ring from the file.
func (st *Store) replay(resource string, wanted Filter, after int64, max int, dst []Event, miss damageFunc) (evs []Event, upTo int64, err error) {
	r := &replay{resource: resource, wanted: wanted, miss: miss, current: st.Revision(), full: len(dst) + max, gaps: st.mode.others, dst: dst}
	r.upTo = r.current
	err = st.readSnapshot(func(s *snapshot) (err error) {
		if after < s.compact {
			return ErrCompacted
		}
		c := s.revs.Cursor()
		behind, damage := c.SkipDamage(revKey(after+1), func([]byte) { err = r.walk(s, &c, after) })
		if damage == nil {
			return err
		}
		next := min(revOf(behind), r.current+1)
		if miss(next-1, damage) != nil {
			return damage
		}
		r.upTo = next - 1
		if r.upTo <= after { // always make progress
			r.upTo = after + 1
		}
		return nil
	})
	if err == nil && r.sealed {
		r.dst, err = st.openEvents(r.dst, len(dst), miss)
	}
	return r.dst, r.upTo, err
}

// A replay contains the parameters and the result of reading events from the file.
type replay struct {
	resource string
	wanted   Filter
	miss     damageFunc
	current  int64
	full     int // maximum length of dst
	gaps     bool
	dst      []Event
	sealed   bool // some events are encrypted
	upTo     int64
}

// walk reads the records after a revision.
func (r *replay) walk(s *snapshot, c *boltfile.Cursor, after int64) error {
	last, scanned, size := after, 0, 0
	for k, v := c.Seek(revKey(after + 1)); ; k, v = c.Next() {
		rev := revOf(k)
		if rev > last+1 && last < r.current && !r.gaps {
			if err := r.miss(last+1, boltfile.NewDamage("revision %d is missing", last+1)); err != nil {
				return err
			}
		}
		if rev > r.current {
			return nil
		}
		if full := scanned >= replayScanMax || size > chunkBytes || len(r.dst) >= r.full; full && rev != last {
			r.upTo = last
			return nil
		}
		last = rev
		scanned++
		n, err := r.add(s, rev, v)
		if err != nil {
			return err
		}
		size += n
	}
}

// add appends the event for the given record and returns its size. It returns 0 if the event is not
// wanted.
func (r *replay) add(s *snapshot, rev int64, b []byte) (size int, err error) {
	// Records of other resources must be decoded as well. If the key is damaged, the record may
	// belong to this resource.
	rec, key, err := decodeRecord(rev, b)
	if err != nil {
		return 0, r.miss(rev, err)
	}
	if !strings.HasPrefix(string(key), r.resource) || r.wanted != nil && !r.wanted(key, rec.Author) {
		return 0, nil
	}
	ev := Event{Record: rec.public(string(key), bytes.Clone(rec.JSON))}
	if ev.PrevRev != 0 && !ev.Lost {
		if err := boltfile.RecoverFaults(func() (err error) { ev.Prev, ev.prevSealed, err = s.replaced(ev.PrevRev, key); return err }); err != nil {
			if err = r.miss(ev.PrevRev, err); err != nil {
				return 0, err
			}
		}
	}
	r.dst, r.sealed = append(r.dst, ev), r.sealed || ev.sealed || ev.prevSealed
	return ev.size(), nil
}

// replaced returns a copy of the JSON of key at rev.
func (s *snapshot) replaced(rev int64, key []byte) (json []byte, sealed bool, err error) {
	b := s.record(rev, key)
	if b == nil {
		return nil, false, boltfile.NewDamage("revision %d is missing", rev)
	}
	old, _, err := decodeRecord(rev, b)
	return bytes.Clone(old.JSON), old.sealed, err
}

// WakeChannel returns a channel that is closed when the next change of the resource is committed.
// For Everything, it is closed after the next commit. It must be called before reading the events,
// to make sure that no commit is missed.
func (st *Store) WakeChannel(resource string) <-chan struct{} {
	st.mu.RLock()
	if t := st.log.topics[resource]; t != nil && t.wake != nil {
		defer st.mu.RUnlock()
		return t.wake
	}
	st.mu.RUnlock()
	st.mu.Lock()
	defer st.mu.Unlock()
	t := st.log.topic(resource)
	if t.wake == nil {
		t.wake = make(chan struct{})
	}
	return t.wake
}

// Author returns the author with a number, or the zero Author if it is unknown.
func (st *Store) Author(id AuthorID) Author {
	if id == 0 {
		return Author{}
	}
	st.authors.mu.RLock()
	defer st.authors.mu.RUnlock()
	if e := st.authors.byNumber[id]; e != nil {
		return e.Author
	}
	return Author{}
}
