package boltfile

// This file reads the trees of a bbolt file without trusting a byte of them. page.go draws the pages.
//
// bbolt believes what it reads. A page that is zeroed, of somebody else, or from another time makes it panic, run in a circle until the
// stack is full (which no recover survives), or read past the mapping; and when it writes beside such a page it frees what the page
// claims to own. So bbolt keeps what it is good at (transactions, the freelist, the order of writes), and the two ways to a page go
// past code of ours:
//
//	reading   a cursor of this file's over the mapping, under a read transaction of bbolt's that keeps the pages from being reused. It looks
//	          at each page's header, keeps within the page, and wants a child's keys to lie where its parent says. That also ends every
//	          circle: a page that is met twice cannot hold the keys of both places.
//	writing   a guard (guard.go) vets, whole, each page that bbolt is about to load for a change, before bbolt sees it: those on the way to the
//	          key, and for a deletion those beside it, with which it may be merged. What is refused has changed nothing.
//
// An example: page 17, a leaf of the bucket rev with the revisions 400 to 431, is zeroed on the disk. Whoever needs revision 405 is told
// so. Revision 432 is read and written as before. Deleting revision 399, at the end of the page before, is refused: were its page to
// fall below a quarter, bbolt would merge it with page 17.

import (
	"bytes"
	"encoding/binary"
	"unsafe"

	"go.etcd.io/bbolt"
)

// Buckets are the names of a file's buckets. In the log their numbers stand for them: the order never changes.
var Buckets = [...][]byte{[]byte("meta"), []byte("rev"), []byte("keys"), []byte("authors")}

// The numbers of the buckets.
const (
	InMeta = iota
	InRev
	InKeys
	InAuthors
)

// mapping is the first n bytes of bbolt's memory map. A transaction has to be open, or the caller be the only one who writes: else the
// map may move.
func mapping(db *bbolt.DB, n int) []byte {
	info := db.Info()
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&info.Data))), n)
}

// mappedMeta finds the meta page of a transaction in the map: the later one but one takes its place.
func mappedMeta(db *bbolt.DB, txid uint64) (metaPage, error) {
	size := db.Info().PageSize
	at := int(txid%2) * size
	if m, ok := decodeMeta(mapping(db, 2*size)[at : at+size]); ok && m.txid == txid && m.pageSize == size {
		return m, nil
	}
	return metaPage{}, Damaged("page %d, a meta page, is not that of transaction %d", txid%2, txid)
}

// Pages are the file as one transaction found it.
type Pages struct {
	metaPage
	mapped []byte // up to the high-water mark
	Moved  bool   // Verdict.Moved
}

// ListsFree reports whether the file lists its free pages, as a clean close does.
func (p *Pages) ListsFree() bool { return p.freelist != noFreelist }

func newPages(db *bbolt.DB, m metaPage) *Pages {
	return &Pages{metaPage: m, mapped: mapping(db, int(m.high)*m.pageSize)}
}

// committedPages are the file as a write transaction found it.
func committedPages(tx *bbolt.Tx) (*Pages, error) {
	m, err := mappedMeta(tx.DB(), uint64(tx.ID()-1))
	if err != nil {
		return nil, err
	}
	return newPages(tx.DB(), m), nil
}

// Top is the page from which all buckets are reached.
func (p *Pages) Top() uint64 { return p.root }

// Size is how many bytes of the file are pages, used or free.
func (p *Pages) Size() int64 { return int64(p.high) * int64(p.pageSize) }

// load returns a branch or leaf page with its overflow, once its header is likely.
func (p *Pages) load(id uint64) (page, error) {
	if id < 2 || id >= p.high {
		return nil, Damaged("page %d is beyond the file's %d pages", id, p.high)
	}
	at := int(id) * p.pageSize
	b := page(p.mapped[at : at+p.pageSize])
	overflow := uint64(binary.NativeEndian.Uint32(b[12:]))
	if own := binary.NativeEndian.Uint64(b); own != id || overflow >= p.high-id {
		return nil, Damaged("page %d has a damaged header", id)
	}
	b = p.mapped[at : at+int(overflow+1)*p.pageSize]
	if what := b.misshapen(); what != "" {
		return nil, Damaged("page %d %s", id, what)
	}
	return b, nil
}

// A Tree is one bucket, or the tree of all buckets.
type Tree struct {
	p        *Pages
	root     uint64
	small    page // in place of root: a small bucket's page
	Sequence uint64
}

// Bucket finds a bucket; ok is false when there is none. Like all that reads a tree it panics with a *damage where it cannot go on.
func (p *Pages) Bucket(which byte) (t Tree, ok bool) {
	name := Buckets[which]
	e, ok := Tree{p: p, root: p.root}.find(name)
	if !ok {
		return t, false
	}
	if !e.bucket || len(e.value) < 16 {
		PanicDamaged("the entry of bucket %s", name)
	}
	t = Tree{p: p, root: binary.NativeEndian.Uint64(e.value), Sequence: binary.NativeEndian.Uint64(e.value[8:])}
	if t.root != 0 {
		return t, true
	}
	t.small = page(e.value[16:])
	if len(t.small) < pageHeaderSize || t.small.misshapen() != "" || !t.small.leaf() {
		PanicDamaged("the small bucket %s", name)
	}
	return t, true
}

// Get returns a key's value, nil when there is none.
func (t Tree) Get(key []byte) []byte {
	e, _ := t.find(key)
	return e.value
}

// MetaInt is a number of the bucket meta, 0 where there is none.
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
	// That there is no such key is believed only of pages that are sound: a search in disorder misses what is there.
	g := Guard{p: t.p, marks: map[uint64]PageMark{}}
	if _, err := g.vetPath(t, key); err != nil {
		panic(err)
	}
	return pageElement{}, false
}

// A step is a page on the way from the root, and the element at which the way goes on.
type step struct {
	page  page
	id    uint64
	at    int
	count int
	leaf  bool
	below []byte // keys have to lie below; nil: no bound
}

func (s *step) outOfBounds() { PanicDamaged("page %d has an element out of its bounds", s.id) }

// goTo sets the element that a search in the page has found.
func (s *step) goTo(i int) {
	if i < 0 {
		s.outOfBounds()
	}
	s.at = i
}

// top is the step to the root.
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

// child is the step to the child at which s stands, a branch.
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
		PanicDamaged("page %d lies too deep", id)
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
		PanicDamaged("page %d holds keys of another place", id)
	}
	return c
}

// A Cursor walks through a tree in the order of keys. What it returns is the file's, and nil at the end. Keep it where it was made.
type Cursor struct {
	t     Tree
	path  []step  // from the root down to where it stands
	last  []byte  // the key that it stands on
	room  [4]step // of most paths
	lines byte    // what touch returned
}

// Cursor is a new one before the first key.
func (t Tree) Cursor() Cursor { return Cursor{t: t} }

func (c *Cursor) top() *step { return &c.path[len(c.path)-1] }

// start goes to the root.
func (c *Cursor) start() {
	if c.path == nil {
		c.path = c.room[:0]
	}
	c.path = append(c.path[:0], c.t.top())
}

// descend goes to the child at which the topmost step stands.
func (c *Cursor) descend() { c.path = append(c.path, c.t.child(c.top(), len(c.path))) }

// Seek goes to the first key that is not below key.
func (c *Cursor) Seek(key []byte) (k, v []byte) {
	for c.start(); !c.top().leaf; c.descend() {
		c.top().goTo(c.top().page.branchTo(key))
	}
	c.top().goTo(c.top().page.find(key))
	if k, v = c.settle(); k != nil && bytes.Compare(k, key) < 0 {
		c.disorder()
	}
	return k, v
}

func (c *Cursor) First() (k, v []byte) {
	for c.start(); !c.top().leaf; c.descend() {
	}
	return c.settle()
}

// Next goes on to the next key, after one of the three has returned a key.
func (c *Cursor) Next() (k, v []byte) {
	if len(c.path) == 0 {
		return nil, nil
	}
	before := c.last
	c.top().at++
	if k, v = c.settle(); k != nil && bytes.Compare(k, before) <= 0 {
		c.disorder()
	}
	return k, v
}

// disorder stops who walks: nobody may come by a key twice, or go on at one for ever.
func (c *Cursor) disorder() { PanicDamaged("page %d has its keys out of order", c.top().id) }

// settle returns the element at which the cursor stands, or at the end of a leaf the first of the next one.
func (c *Cursor) settle() (k, v []byte) {
	for c.top().at >= c.top().count {
		for len(c.path) > 0 && c.top().at+1 >= c.top().count {
			c.path = c.path[:len(c.path)-1]
		}
		if len(c.path) == 0 {
			return nil, nil
		}
		c.top().at++
		c.lines += c.t.p.touch(c.top().page.childAt(c.top().at)) // who goes on will read all of it
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

// PagesTo are the pages on the way to a key, for who looks into a file.
func (t Tree) PagesTo(key []byte) (ids []uint64) {
	c := t.Cursor()
	c.Seek(key)
	for i := range c.path {
		ids = append(ids, c.path[i].id)
	}
	return ids
}

// Past runs what walks with the cursor from a key on. When that meets damage, next is the first key that can lie behind the damaged
// page; nil: none.
func (c *Cursor) Past(from []byte, walk func(from []byte)) (next []byte, err error) {
	err = WithoutFaults(func() error { walk(from); return nil })
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
	touchMax  = 4096 // bytes; what is longer is foreseen while it is read
	nearby    = 128  // revisions: more than a crowd of writers brings out of the order of names
)

// touch reads a byte of each cache line. That the sum is kept sees to it that they are read.
func touch(b []byte) (sum byte) {
	for i := 0; i < min(len(b), touchMax); i += cacheLine {
		sum += b[i]
	}
	return sum
}

// touch asks for a page, before its header is waited for.
func (p *Pages) touch(id uint64) (sum byte) {
	if id >= p.high {
		return 0
	}
	return touch(p.mapped[int(id)*p.pageSize:][:p.pageSize])
}
