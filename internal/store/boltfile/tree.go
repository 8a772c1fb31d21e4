package boltfile

// This file reads the trees of a bbolt file without trusting their content. page.go describes the
// pages.
//
// bbolt trusts the pages that it reads. If a page is zeroed, or if it belongs to another file or
// another time, bbolt may panic or read beyond the mapping. It may also follow a cycle until the
// stack overflows, and recover does not handle this. If it writes next to such a page, it frees the
// pages that the damaged page claims. Therefore bbolt is used only for transactions, the freelist
// and the order of writes. This package controls how pages are read and written:
//
//	reading   The cursor in this file reads the mapping, under a read transaction of bbolt that keeps the pages from being reused.
//	          It checks each page's header, stays within the page, and requires the keys of a child to be in the range given
//	          by its parent. This also ends every cycle: a page cannot have the keys of two different places.
//	writing   A guard (guard.go) vets each page completely before bbolt loads it for a change: the pages on the path to the key,
//	          and for a deletion their neighbors, with which they may be merged. A rejected change has modified nothing.
//
// For example, page 17 is a leaf of the bucket rev with the revisions 400 to 431, and it is zeroed
// on the disk. A read of revision 405 fails. Revision 432 is read and written as before. Deleting
// revision 399, at the end of the previous page, fails, because if that page became less than a
// quarter full, bbolt would merge it with page 17.

import (
	"bytes"
	"encoding/binary"
	"unsafe"

	"go.etcd.io/bbolt"
)

// Buckets contains the names of the buckets. The log refers to them by number, so their order must
// never change.
var Buckets = [...][]byte{[]byte("meta"), []byte("rev"), []byte("keys"), []byte("authors")}

// The numbers of the buckets.
const (
	InMeta = iota
	InRev
	InKeys
	InAuthors
)

// mapping returns the first n bytes of bbolt's memory map. The caller must have an open transaction
// or be the only writer; otherwise the map may move.
func mapping(db *bbolt.DB, n int) []byte {
	info := db.Info()
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&info.Data))), n)
}

// mappedMeta returns the meta page of a transaction in the map. The page is overwritten two
// transactions later.
func mappedMeta(db *bbolt.DB, txid uint64) (metaPage, error) {
	size := db.Info().PageSize
	at := int(txid%2) * size
	if m, ok := decodeMeta(mapping(db, 2*size)[at : at+size]); ok && m.txid == txid && m.pageSize == size {
		return m, nil
	}
	return metaPage{}, NewDamage("page %d, a meta page, is not that of transaction %d", txid%2, txid)
}

// Pages provides access to the pages of the file in a transaction.
type Pages struct {
	metaPage
	mapped []byte // up to the high-water mark
	Moved  bool   // Verdict.Moved
}

// ListsFree reports whether the file contains a freelist. This is the case after a clean close.
func (p *Pages) ListsFree() bool { return p.freelist != noFreelist }

func newPages(db *bbolt.DB, m metaPage) *Pages {
	return &Pages{metaPage: m, mapped: mapping(db, int(m.high)*m.pageSize)}
}

// committedPages returns the pages before a write transaction.
func committedPages(tx *bbolt.Tx) (*Pages, error) {
	m, err := mappedMeta(tx.DB(), uint64(tx.ID()-1))
	if err != nil {
		return nil, err
	}
	return newPages(tx.DB(), m), nil
}

// Top returns the root page of the tree of buckets.
func (p *Pages) Top() uint64 { return p.root }

// Size returns the total size of the file's pages, used or free, in bytes.
func (p *Pages) Size() int64 { return int64(p.high) * int64(p.pageSize) }

// load returns a branch or leaf page, including its overflow pages. It returns an error if the
// header is invalid.
func (p *Pages) load(id uint64) (page, error) {
	if id < 2 || id >= p.high {
		return nil, NewDamage("page %d is beyond the file's %d pages", id, p.high)
	}
	at := int(id) * p.pageSize
	b := page(p.mapped[at : at+p.pageSize])
	overflow := uint64(binary.NativeEndian.Uint32(b[12:]))
	if own := binary.NativeEndian.Uint64(b); own != id || overflow >= p.high-id {
		return nil, NewDamage("page %d has a damaged header", id)
	}
	b = p.mapped[at : at+int(overflow+1)*p.pageSize]
	if what := b.headerProblem(); what != "" {
		return nil, NewDamage("page %d %s", id, what)
	}
	return b, nil
}

// A Tree represents a bucket or the tree of all buckets.
type Tree struct {
	p        *Pages
	root     uint64
	small    page // the only page of a small bucket, which has no root
	Sequence uint64
}

// Bucket returns a bucket. ok is false if it does not exist. Like all methods that read a tree, it
// panics with a *Damage if it cannot continue.
func (p *Pages) Bucket(which byte) (t Tree, ok bool) {
	name := Buckets[which]
	e, ok := Tree{p: p, root: p.root}.find(name)
	if !ok {
		return t, false
	}
	if !e.bucket || len(e.value) < 16 {
		PanicDamage("the entry of bucket %s", name)
	}
	t = Tree{p: p, root: binary.NativeEndian.Uint64(e.value), Sequence: binary.NativeEndian.Uint64(e.value[8:])}
	if t.root != 0 {
		return t, true
	}
	t.small = page(e.value[16:])
	if len(t.small) < pageHeaderSize || t.small.headerProblem() != "" || !t.small.leaf() {
		PanicDamage("the small bucket %s", name)
	}
	return t, true
}

// Get returns the value of a key, or nil if none exists.
func (t Tree) Get(key []byte) []byte {
	e, _ := t.find(key)
	return e.value
}

// MetaInt returns a number in the bucket meta, or 0 if none exists.
func MetaInt(meta Tree, name string) int64 {
	if v := meta.Get([]byte(name)); len(v) == 8 {
		return int64(binary.BigEndian.Uint64(v))
	}
	return 0
}

func (t Tree) find(key []byte) (e pageElement, ok bool) {
	s := t.top()
	for depth := 0; !s.leaf; depth++ {
		s.goTo(s.page.branchTo(key))
		s = t.child(&s, depth)
	}
	if s.goTo(s.page.find(key)); s.at < s.count {
		if e, ok = elementAt(s.page, s.at); !ok {
			s.outOfBounds()
		}
		if bytes.Equal(e.key, key) {
			return e, true
		}
	}
	// The absence of the key is trusted only if the pages are sound, because a search in unsorted
	// keys may miss an existing key.
	g := Guard{p: t.p, marks: map[uint64]PageMark{}}
	if _, err := g.vetPath(t, key); err != nil {
		panic(err)
	}
	return pageElement{}, false
}

// A step is a page on the path from the root, and the element at which the path continues.
type step struct {
	page  page
	id    uint64
	at    int
	count int
	leaf  bool
	below []byte // keys must be less than this; nil means no bound
}

func (s *step) outOfBounds() { PanicDamage("page %d has an element out of its bounds", s.id) }

// goTo selects the element with index i. It panics if i is negative.
func (s *step) goTo(i int) {
	if i < 0 {
		s.outOfBounds()
	}
	s.at = i
}

// top returns the step to the root.
func (t Tree) top() step {
	if t.small != nil {
		return step{page: t.small, count: t.small.count(), leaf: true}
	}
	b, err := t.p.load(t.root)
	if err != nil {
		panic(err)
	}
	return step{page: b, id: t.root, count: b.count(), leaf: b.leaf()}
}

// child returns the step to the selected child of s, a branch.
func (t Tree) child(s *step, depth int) step {
	lowest, below := s.page.key(s.at), s.below
	if s.at+1 < s.count {
		if below = s.page.key(s.at + 1); below == nil {
			s.outOfBounds()
		}
	}
	if lowest == nil {
		s.outOfBounds()
	}
	id := s.page.childAt(s.at)
	b, err := t.p.load(id)
	if err != nil {
		panic(err)
	}
	if depth > treeDepthMax {
		PanicDamage("page %d lies too deep", id)
	}
	c := step{page: b, id: id, count: b.count(), leaf: b.leaf(), below: below}
	if c.count == 0 {
		return c
	}
	first, last := b.key(0), b.key(c.count-1)
	if first == nil || last == nil {
		c.outOfBounds()
	}
	if bytes.Compare(first, lowest) < 0 || below != nil && bytes.Compare(last, below) >= 0 {
		PanicDamage("page %d holds keys of another place", id)
	}
	return c
}

// A Cursor iterates over the keys of a tree in order. The returned bytes belong to the file; they
// are nil at the end. A Cursor must not be copied after use.
type Cursor struct {
	t     Tree
	path  []step  // from the root to the current page
	last  []byte  // current key
	room  [4]step // storage for path, long enough for most trees
	lines byte    // sum of the results of touch
}

// Cursor returns a new cursor before the first key.
func (t Tree) Cursor() Cursor { return Cursor{t: t} }

func (c *Cursor) top() *step { return &c.path[len(c.path)-1] }

// start moves to the root.
func (c *Cursor) start() {
	if c.path == nil {
		c.path = c.room[:0]
	}
	c.path = append(c.path[:0], c.t.top())
}

// descend moves to the selected child of the last step.
func (c *Cursor) descend() { c.path = append(c.path, c.t.child(c.top(), len(c.path))) }

// Seek moves to the first key that is not less than key.
func (c *Cursor) Seek(key []byte) (k, v []byte) {
	for c.start(); !c.top().leaf; c.descend() {
		c.top().goTo(c.top().page.branchTo(key))
	}
	c.top().goTo(c.top().page.find(key))
	if k, v = c.current(); k != nil && bytes.Compare(k, key) < 0 {
		c.disorder()
	}
	return k, v
}

func (c *Cursor) First() (k, v []byte) {
	for c.start(); !c.top().leaf; c.descend() {
	}
	return c.current()
}

// Next moves to the next key. It must follow a Seek, First or Next that has returned a key.
func (c *Cursor) Next() (k, v []byte) {
	if len(c.path) == 0 {
		return nil, nil
	}
	before := c.last
	c.top().at++
	if k, v = c.current(); k != nil && bytes.Compare(k, before) <= 0 {
		c.disorder()
	}
	return k, v
}

// disorder panics to make sure that an iteration does not return the same key twice or run forever.
func (c *Cursor) disorder() { PanicDamage("page %d has its keys out of order", c.top().id) }

// current returns the selected element. At the end of a leaf it moves to the first element of the
// next leaf.
func (c *Cursor) current() (k, v []byte) {
	for c.top().at >= c.top().count {
		for len(c.path) > 0 && c.top().at+1 >= c.top().count {
			c.path = c.path[:len(c.path)-1]
		}
		if len(c.path) == 0 {
			return nil, nil
		}
		c.top().at++
		c.lines += c.t.p.touch(c.top().page.childAt(c.top().at)) // a walk will read the whole page
		for c.descend(); !c.top().leaf; c.descend() {
		}
	}
	e, ok := elementAt(c.top().page, c.top().at)
	if !ok {
		c.top().outOfBounds()
	}
	c.last = e.key
	return e.key, e.value
}

// PagesTo returns the pages on the path to a key. It is used to inspect a file.
func (t Tree) PagesTo(key []byte) (ids []uint64) {
	c := t.Cursor()
	c.Seek(key)
	for i := range c.path {
		ids = append(ids, c.path[i].id)
	}
	return ids
}

// SkipDamage calls walk, which iterates with the cursor from a key on. If walk encounters damage,
// next is the first key that can be after the damaged page, or nil if none exists.
func (c *Cursor) SkipDamage(from []byte, walk func(from []byte)) (next []byte, err error) {
	err = RecoverFaults(func() error { walk(from); return nil })
	for i := len(c.path) - 1; err != nil && i >= 0; i-- {
		if s := &c.path[i]; !s.leaf && s.at+1 < s.count {
			if next = bytes.Clone(s.page.key(s.at + 1)); bytes.Compare(next, from) > 0 {
				return next, err
			}
		}
	}
	return nil, err
}

const (
	cacheLine = 64
	touchMax  = 4096 // maximum number of bytes; the processor prefetches the rest
	nearby    = 128  // in revisions: more than concurrent writers usually deviate from the order of names
)

// touch reads a byte of each cache line. The caller must use the result, or the compiler may remove
// the reads.
func touch(b []byte) (sum byte) {
	for i := 0; i < min(len(b), touchMax); i += cacheLine {
		sum += b[i]
	}
	return sum
}

// touch starts to load a page into the cache of the processor.
func (p *Pages) touch(id uint64) (sum byte) {
	if id >= p.high {
		return 0
	}
	return touch(p.mapped[int(id)*p.pageSize:][:p.pageSize])
}
