package store

// This file reads: one object, a range of them at a revision in chunks, counts, and the log from where the ring in memory ends.
// Every read is a short transaction; what it returns is copied out of the file.

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

// A snapshot is one short read transaction. Nothing of it may be kept: its bytes are the file's.
type snapshot struct {
	*boltfile.Pages
	keys    boltfile.Tree
	revs    boltfile.Tree    // versions of objects by revision
	newest  boltfile.Finger  // in revs: where keys' newest versions are looked for,
	older   *boltfile.Finger // and earlier ones; nil until the first
	compact int64
	shared  bool // what lies under a revision may be another key's, and sound
	chains  *waypoints
	steps   int     // versions passed on the way to others
	passed  []int64 // some of them, of one key
	seek    [8]byte
}

func newSnapshot(p *boltfile.Pages, compact int64) *snapshot {
	s := &snapshot{Pages: p, compact: compact}
	var ok, also bool
	s.keys, ok = p.Bucket(boltfile.InKeys)
	s.revs, also = p.Bucket(boltfile.InRev)
	if !ok || !also {
		boltfile.PanicDamaged("a bucket is missing")
	}
	return s
}

// meta is the bucket of that name.
func (s *snapshot) meta() boltfile.Tree {
	meta, ok := s.Bucket(boltfile.InMeta)
	if !ok {
		boltfile.PanicDamaged("the bucket meta is missing")
	}
	return meta
}

// authors is the bucket of that name.
func (s *snapshot) authors() boltfile.Tree {
	t, _ := s.Bucket(boltfile.InAuthors)
	return t
}

// author is the entry of a number, nil where there is none.
func (s *snapshot) author(id AuthorID) []byte {
	t, ok := s.Bucket(boltfile.InAuthors)
	if !ok {
		return nil
	}
	return t.Get(authorKey(id))
}

// newestTime is when the newest record was written, in milliseconds; 0 where that is unknown.
func (s *snapshot) newestTime() int64 {
	if b := s.revs.Get(revKey(int64(s.revs.Sequence))); b != nil {
		if r, _, err := decodeRecord(int64(s.revs.Sequence), b); err == nil {
			return r.Time
		}
	}
	return 0
}

// readSnapshot runs fn in a read transaction. CompactRev is read after the transaction began: whatever the transaction finds deleted was
// deleted after CompactRev was raised, so what fn checks against it is never too low. Never call view within view.
func (st *Store) readSnapshot(fn func(*snapshot) error) error {
	return st.File.View(func(p *boltfile.Pages) error {
		s := newSnapshot(p, st.compactRev.Load())
		s.shared, s.chains = st.shared.Load(), &st.chains
		return fn(s)
	})
}

// record looks a key's record of a revision up; nil when there is none. What lies there of another key is damage for the caller to tell,
// unless revisions are shared.
func (s *snapshot) record(rev int64, key []byte) []byte { return s.recordNear(&s.newest, rev, key) }

// recordNear is record, beginning at a finger.
func (s *snapshot) recordNear(f *boltfile.Finger, rev int64, key []byte) []byte {
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

// olderFinger is the finger for versions that chains lead to.
func (s *snapshot) olderFinger() *boltfile.Finger {
	if s.older == nil {
		s.older = new(boltfile.Finger)
	}
	return s.older
}

// version follows a key's chain to its newest version at or below rev. ok is false when the key did not exist then.
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

// follow is version from a revision of the key on.
func (s *snapshot) follow(key []byte, from, rev int64) (r Record, ok bool, err error) {
	at, f := from, &s.newest
	for steps := 0; at > 0; steps++ {
		if steps > 0 && steps%waypointEvery == 0 {
			at = s.shortcut(key, at, rev, steps)
		}
		b := s.recordNear(f, at, key)
		if b == nil && at <= s.compact && at != from {
			return r, false, nil // a compacted tombstone
		}
		if b == nil {
			return r, false, boltfile.Damaged("revision %d (key %q) is missing", at, key)
		}
		r, found, err := decodeRecord(at, b)
		if err != nil {
			return r, false, err
		}
		if !bytes.Equal(found, key) {
			return r, false, boltfile.Damaged("revision %d belongs to key %q, not to %q", at, found, key)
		}
		if at <= rev {
			return r, !r.Deleted, nil
		}
		s.steps++
		f = s.olderFinger()
		if at = r.PrevRev; r.CreateRev > rev && r.CreateRev < r.Rev && s.recordNear(f, r.CreateRev, key) != nil {
			at = r.CreateRev // past all the updates of an object that did not exist yet; a replica may never have seen its creation
		}
	}
	return r, false, nil
}

// shortcut is where a walk along a chain goes on: the place nearest to its end that is remembered, the first time that it is a long one, else
// where it is, which is then remembered.
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

// reach refuses revisions that cannot be read. current is a published revision that the transaction is sure to contain.
func (s *snapshot) reach(rev, current int64) error {
	if rev < s.compact {
		return ErrCompacted
	}
	if rev > current {
		return errFutureRev
	}
	return nil
}

// each calls visit for the keys with prefix, from start on, until it answers false. It returns the key to go on at, "" at the end.
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

// only is each for some keys, in order.
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

// eachSound is each for who passes over damage. damaged is told what is wrong, and with the object of which key; nil: a page hides which.
func (s *snapshot) eachSound(prefix, start string, visit func([]byte, keyState) (bool, error), damaged func(key []byte, err error)) (next string) {
	c, last := s.keys.Cursor(), ""
	behind, err := c.Past([]byte(max(prefix, start)), func(from []byte) {
		next, _ = walkKeys(&c, prefix, from, func(k, v []byte) (more bool, _ error) {
			last = string(k) // few chunks come by here
			err := boltfile.WithoutFaults(func() error {
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
		if next = string(behind); next != "" && next <= last { // pages in disorder: never back
			next = last + "\x00"
		}
		if !strings.HasPrefix(next, prefix) {
			next = ""
		}
	}
	return next
}

// Revision is the newest revision that is durable.
func (st *Store) Revision() int64 { return st.currentRev.Load() } // currentRev: newest committed revision

// Compacted is the compacted revision: a read below it is ErrCompacted.
func (st *Store) Compacted() int64 { return st.compactRev.Load() } // CompactRev: reads below it answer ErrCompacted; 0 at first

// Get returns the newest version of a live object, ErrNotFound otherwise.
func (st *Store) Get(key string) (rec Record, err error) {
	current := st.Revision()
	err = st.readSnapshot(func(s *snapshot) error {
		rec, err = s.at(key, current)
		return err
	})
	if err == nil {
		rec, err = st.opened(rec)
	}
	return rec, err
}

// GetUpTo is Get for objects of at most so many bytes. Of a larger one it tells the size, and its record has no JSON.
func (st *Store) GetUpTo(key string, most int) (rec Record, size int, err error) {
	current := st.Revision()
	err = st.readSnapshot(func(s *snapshot) error {
		rec, size, err = s.upTo(key, current, most)
		return err
	})
	if err == nil && size <= most {
		rec, err = st.opened(rec)
	}
	return rec, size, err
}

// at is a copy of an object as it was at a revision that can be read; ErrNotFound where it was not there.
func (s *snapshot) at(key string, rev int64) (rec Record, err error) {
	rec, _, err = s.upTo(key, rev, math.MaxInt)
	return rec, err
}

// upTo is at for objects of at most so many bytes.
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

// A Span names what Store.Chunk reads: keys with prefix, from start on (inclusive; "" is the first), as they were at rev
// (0: at the newest revision, which is then in Chunk.Rev), at most Items objects and about bytes bytes
// (0: 500 and 256 KiB).
type Span struct {
	Prefix, Start string   // of keys
	Rev           int64    // 0: the newest
	Items, bytes  int      // 0: as many as a chunk has by default
	Sound         bool     // damaged objects are left out, and told to the log once; else they are an error
	Keys          []string // only these, in order, of an Index; nil, and with Sound: all
	asStored      bool     // sealed documents stay as they are
}

// A Chunk is what one short read transaction copied out; its records' JSON shares one buffer. Reusable. It may hold fewer
// objects than there is room for, even none: Next alone says whether the end is reached.
type Chunk struct {
	Rev     int64      // that the objects are of
	Records []Record   // good until the chunk is filled again
	Next    string     // where the next chunk starts, "" at the end
	Damaged []string   // keys of the objects that a span of what is sound leaves out, as far as they are known
	Sealed  []Unopened // likewise, of those that cannot be opened
	buf     []byte
	sealed  bool // some records are

	keys    []byte // the records' keys, one after the other
	keyEnds []int
	left    int // bytes of the budget
}

// ChunkPool has Chunks to be filled again; nobody keeps records of one that is back in it.
var ChunkPool = sync.Pool{New: func() any { return new(Chunk) }}

// Chunk fills c with live objects in key order. ErrCompacted, errFutureRev.
func (st *Store) Chunk(sp Span, c *Chunk) error {
	current, keys := st.Revision(), walk((*snapshot).each)
	if sp.Keys != nil && !sp.Sound {
		keys = only(sp.Keys)
	}
	err := st.fill(c, &sp, current, keys)
	if sp.Sound && errors.Is(err, ErrDamaged) { // few need the care that this takes
		err = st.fill(c, &sp, current, func(s *snapshot, prefix, start string, visit func([]byte, keyState) (bool, error)) (string, error) {
			return s.eachSound(prefix, start, visit, c.passOver(st)), nil
		})
	}
	c.nameRecords()
	if err == nil && c.sealed && !sp.asStored {
		err = st.openAll(c, sp.Sound)
	}
	return err
}

// A walk visits the keys with a prefix from one on; see each.
type walk func(s *snapshot, prefix, start string, visit func(key []byte, state keyState) (bool, error)) (next string, err error)

// fill is one try to fill a chunk.
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

// passOver notes damage, and in the chunk whose it is.
func (c *Chunk) passOver(st *Store) func(key []byte, err error) {
	return func(key []byte, err error) {
		_ = st.File.Explain(err)
		if _, _, ok := keyPrefixes(string(key)); ok { // a damaged page may show anything as a key
			c.Damaged = append(c.Damaged, string(key))
		}
	}
}

// All walks the live objects of a span in key order, all at one revision, with one short read transaction a chunk. A record is the
// caller's until the next one is asked for. An error ends the walk: ErrCompacted, errFutureRev, with a nil record. Who works on whole
// chunks, or asks for what is damaged, calls Chunks.
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

// Chunks is All by chunks. A chunk is the caller's until the next one is asked for.
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

// Readable tells whether everything with a prefix can be read.
func (st *Store) Readable(prefix string) error {
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
	if cap(c.buf) > 4*chunkBytes { // for a large object, which does not come again
		c.buf = nil
	}
	c.Damaged, c.Sealed, c.sealed = nil, nil, false
	clear(c.Records) // of what pointed into older buffers
	c.Records, c.buf, c.keys, c.keyEnds = c.Records[:0], c.buf[:0], c.keys[:0], c.keyEnds[:0]
	c.Next, c.left = "", sp.bytes
}

// add copies one object, unless the budget is spent. The first always fits. A full buffer is not grown but followed by a larger one:
// the records before keep theirs.
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

// nameRecords makes the records' keys of one string.
func (c *Chunk) nameRecords() {
	all, at := string(c.keys), 0
	for i, end := range c.keyEnds {
		c.Records[i].Key = all[at:end]
		at = end
	}
}

// Count returns how many live objects, and bytes of JSON, a prefix holds now. The prefix is that of a resource
// (`/group/resource/`) or of a namespace in it (`/group/resource/namespace/`). rev is the revision that both belong to.
func (st *Store) Count(prefix string) (objects, bytes, rev int64) {
	st.mu.RLock()
	defer st.mu.RUnlock()
	if t := st.tallies[prefix]; t != nil {
		objects, bytes = t.objects, t.bytes
	}
	return objects, bytes, st.currentRev.Load()
}

// Objects is the number of all live objects.
func (st *Store) Objects() int64 {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.total.objects
}

// CountAt counts the live objects at revision rev among the keys with prefix from start on: a walk over keys alone, but for those
// that have changed since. It takes a transaction for each 10,000 keys.
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

// countOne answers 1 for a key that was live at a revision. What has not changed since need not be looked up.
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

// OlderThan returns live objects with prefix, from start on, that nobody has written since revision rev: at most max, and what one
// short transaction finds. next is where to go on, "" at the end. What is damaged is left out.
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

// Events returns, in revision order, the events of one resource (`/group/resource/`, or everything) after revision after: at most
// max (and about 256 KiB when they come from disk), but never a part of a revision. upTo is the revision up to which dst is complete. ErrCompacted when after <
// CompactRev, unless the log still knows that nothing of the resource has happened in between: a watcher of a quiet resource
// outlives compactions. It is ErrCompacted, too, where the log does not tell enough any more: what a record has replaced was damaged (Record.Lost),
// or an event cannot be opened.
func (st *Store) Events(resource string, after int64, max int, dst []Event) (evs []Event, upTo int64, err error) {
	known := len(dst)
	evs, upTo, err = st.events(resource, nil, after, max, dst, func(rev int64, err error) error {
		if errors.Is(err, ErrSealed) {
			return ErrCompacted
		}
		return boltfile.Damaged("revision %d is damaged", rev) // without the key: it may be nobody's business who watches
	})
	for i := known; err == nil && i < len(evs); i++ {
		if evs[i].Lost {
			return evs[:known], after, ErrCompacted
		}
	}
	return evs, upTo, err
}

// A Filter says of a record's key and author whether anybody wants to have it read; nil wants all.
type Filter func(key []byte, by AuthorID) bool

// EventsOf is Events for those who want to see as much as there is. It passes over what is damaged, and has events of which nobody knows what
// they replaced. It leaves out those that a filter does not want, where that saves reading them: some of them may come all the same.
func (st *Store) EventsOf(resource string, wanted Filter, after int64, max int, dst []Event) (evs []Event, upTo int64, err error) {
	return st.events(resource, wanted, after, max, dst, func(_ int64, err error) error {
		if !errors.Is(err, ErrSealed) {
			_ = st.File.Explain(err)
		}
		return nil
	})
}

// events is both: miss says what follows from damage at a revision.
func (st *Store) events(resource string, wanted Filter, after int64, max int, dst []Event, miss missFunc) (evs []Event, upTo int64, err error) {
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

// A missFunc is told of damage in the log; nil: go on.
type missFunc func(rev int64, err error) error

// replay reads what has left the ring from the file.
func (st *Store) replay(resource string, wanted Filter, after int64, max int, dst []Event, miss missFunc) (evs []Event, upTo int64, err error) {
	r := &replay{resource: resource, wanted: wanted, miss: miss, current: st.Revision(), full: len(dst) + max, gaps: st.mode.others, dst: dst}
	r.upTo = r.current
	err = st.readSnapshot(func(s *snapshot) (err error) {
		if after < s.compact {
			return ErrCompacted
		}
		c := s.revs.Cursor()
		behind, damage := c.Past(revKey(after+1), func([]byte) { err = r.walk(s, &c, after) })
		if damage == nil {
			return err
		}
		next := min(revOf(behind), r.current+1)
		if miss(next-1, damage) != nil {
			return damage
		}
		r.upTo = next - 1
		if r.upTo <= after { // never again the same
			r.upTo = after + 1
		}
		return nil
	})
	if err == nil && r.sealed {
		r.dst, err = st.openEvents(r.dst, len(dst), miss)
	}
	return r.dst, r.upTo, err
}

// A replay is what one read of the log in the file wants, and has found.
type replay struct {
	resource string
	wanted   Filter
	miss     missFunc
	current  int64
	full     int // events are enough
	gaps     bool
	dst      []Event
	sealed   bool // some of them are
	upTo     int64
}

// walk goes through the records after a revision.
func (r *replay) walk(s *snapshot, c *boltfile.Cursor, after int64) error {
	last, scanned, size := after, 0, 0
	for k, v := c.Seek(revKey(after + 1)); ; k, v = c.Next() {
		rev := revOf(k)
		if rev > last+1 && last < r.current && !r.gaps {
			if err := r.miss(last+1, boltfile.Damaged("revision %d is missing", last+1)); err != nil {
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

// add takes a record's event, if it is wanted, and returns its size.
func (r *replay) add(s *snapshot, rev int64, b []byte) (size int, err error) {
	rec, key, err := decodeRecord(rev, b) // of every resource: a damaged key might be one of ours
	if err != nil {
		return 0, r.miss(rev, err)
	}
	if !strings.HasPrefix(string(key), r.resource) || r.wanted != nil && !r.wanted(key, rec.Author) {
		return 0, nil
	}
	ev := Event{Record: rec.public(string(key), bytes.Clone(rec.JSON))}
	if ev.PrevRev != 0 && !ev.Lost {
		if err := boltfile.WithoutFaults(func() (err error) { ev.Prev, ev.prevSealed, err = s.replaced(ev.PrevRev, key); return err }); err != nil {
			if err = r.miss(ev.PrevRev, err); err != nil {
				return 0, err
			}
		}
	}
	r.dst, r.sealed = append(r.dst, ev), r.sealed || ev.sealed || ev.prevSealed
	return ev.size(), nil
}

// replaced copies the JSON that a key's record of a revision has.
func (s *snapshot) replaced(rev int64, key []byte) (json []byte, sealed bool, err error) {
	b := s.record(rev, key)
	if b == nil {
		return nil, false, boltfile.Damaged("revision %d is missing", rev)
	}
	old, _, err := decodeRecord(rev, b)
	return bytes.Clone(old.JSON), old.sealed, err
}

// Wake returns a channel that is closed at the next commit that touches the resource (everything: at any). Take it before reading
// events.
func (st *Store) Wake(resource string) <-chan struct{} {
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

// Author is what a record's number stands for.
func (st *Store) Author(id AuthorID) Author {
	if id == 0 {
		return Author{}
	}
	st.authors.mu.RLock()
	defer st.authors.mu.RUnlock()
	if e := st.authors.named[id]; e != nil {
		return e.Author
	}
	return Author{}
}
