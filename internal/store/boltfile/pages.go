package boltfile

// This file reads the trees of a bbolt file without trusting a byte of them. dbfile.go draws the pages.
//
// bbolt believes what it reads. A page that is zeroed, of somebody else, or from another time makes it panic, run in a circle until the
// stack is full (which no recover survives), or read past the mapping; and when it writes beside such a page it frees what the page
// claims to own. So bbolt keeps what it is good at (transactions, the freelist, the order of writes), and the two ways to a page go
// through here:
//
//	reading   a cursor of our own over the mapping, under a read transaction of bbolt's that keeps the pages from being reused. It looks
//	          at each page's header, keeps within the page, and wants a child's keys to lie where its parent says. That also ends every
//	          circle: a page that is met twice cannot hold the keys of both places.
//	writing   a guard vets, whole, each page that bbolt is about to load for a change, before bbolt sees it: those on the way to the
//	          key, and for a deletion those beside it, with which it may be merged. What is refused has changed nothing.
//
// An example: page 17, a leaf of the bucket rev with the revisions 400 to 431, is zeroed on the disk. Whoever needs revision 405 is told
// so. Revision 432 is read and written as before. Deleting revision 399, at the end of the page before, is refused: were its page to
// fall below a quarter, bbolt would merge it with page 17.

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"unsafe"

	"go.etcd.io/bbolt"
)

// ErrDamaged is what every damage is.
var ErrDamaged = errors.New("the file is damaged: run `apilet check`, restore a backup, or DELETE what lies there")

// A Damage is what is wrong at one place of the file.
type Damage struct {
	Place string // which page or tree, and what is wrong there
}

// Error is what is wrong, and where.
func (d *Damage) Error() string { return ErrDamaged.Error() + " (" + d.Place + ")" }

// Unwrap makes every damage an ErrDamaged.
func (d *Damage) Unwrap() error { return ErrDamaged }

func Damaged(format string, args ...any) error { return &Damage{fmt.Sprintf(format, args...)} }

// placeOf is the place of a damage, without what to do about it; any other error's text.
func PlaceOf(err error) string {
	var d *Damage
	if errors.As(err, &d) {
		return d.Place
	}
	return err.Error()
}

// A metaPage is what the meta page of one transaction says.
type metaPage struct {
	txid     uint64
	root     uint64 // of the tree of buckets
	freelist uint64
	high     uint64 // pages from here on are no part of the file
	pageSize int
	mark     uint64 // seal.go tells
}

const metaSize = pageHeaderSize + 64

// decodeMeta reads a page that should be a meta page; false when its checksum does not fit.
func decodeMeta(page []byte) (m metaPage, ok bool) {
	b := page[pageHeaderSize:]
	sum := fnv.New64a()
	sum.Write(b[:56])
	u64 := func(at int) uint64 { return binary.NativeEndian.Uint64(b[at:]) }
	if binary.NativeEndian.Uint32(b) != metaMagic || u64(56) != sum.Sum64() {
		return m, false
	}
	return metaPage{txid: u64(48), root: u64(16), freelist: u64(32), high: u64(40), pageSize: int(binary.NativeEndian.Uint32(b[8:])),
		mark: u64(24)}, true
}

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

// pages are the file as one transaction found it.
type Pages struct {
	metaPage
	mapped []byte // up to the high-water mark
}

func newPages(db *bbolt.DB, m metaPage) *Pages {
	return &Pages{m, mapping(db, int(m.high)*m.pageSize)}
}

// committedPages are the file as a write transaction found it.
func committedPages(tx *bbolt.Tx) (*Pages, error) {
	m, err := mappedMeta(tx.DB(), uint64(tx.ID()-1))
	if err != nil {
		return nil, err
	}
	return newPages(tx.DB(), m), nil
}

// top is the page from which all buckets are reached.
func (p *Pages) Top() uint64 { return p.root }

// size is how many bytes of the file are pages, used or free.
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

// A page is a branch or leaf page with its overflow, or a small bucket's only page, which lies in its parent's value.
type page []byte

func (b page) id() uint64 { return binary.NativeEndian.Uint64(b) }
func (b page) leaf() bool { return binary.NativeEndian.Uint16(b[8:]) == pageLeaf }
func (b page) count() int { return int(binary.NativeEndian.Uint16(b[10:])) }

// misshapen says what is wrong with the header, "" for nothing.
func (b page) misshapen() string {
	flags := binary.NativeEndian.Uint16(b[8:])
	switch {
	case flags != pageBranch && flags != pageLeaf || flags == pageBranch && b.count() == 0:
		return "is neither branch nor leaf"
	case pageHeaderSize+b.count()*pageElementSize > len(b):
		return "has more elements than room"
	}
	return ""
}

// key returns the key of element i, nil when that leaves the page or is none.
func (b page) key(i int) []byte {
	at := pageHeaderSize + i*pageElementSize
	e := b[at : at+pageElementSize]
	if b.leaf() {
		e = e[4:]
	}
	size := int(binary.NativeEndian.Uint32(e[4:]))
	if size == 0 {
		return nil
	}
	return cut(b, at+int(binary.NativeEndian.Uint32(e)), size)
}

// childAt returns the page below element i of a branch page.
func (b page) childAt(i int) uint64 {
	return binary.NativeEndian.Uint64(b[pageHeaderSize+i*pageElementSize+8:])
}

// find returns the first element whose key is not below key; the count when there is none, -1 when an element leaves the page.
func (b page) find(key []byte) int {
	low, high := 0, b.count()
	for low < high {
		mid := int(uint(low+high) >> 1)
		k := b.key(mid)
		if k == nil {
			return -1
		}
		if bytes.Compare(k, key) < 0 {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}

// branchTo returns the element of a branch page under which a key belongs, -1 when an element leaves the page.
func (b page) branchTo(key []byte) int {
	i := b.find(key)
	if i > 0 && (i == b.count() || !bytes.Equal(b.key(i), key)) {
		i--
	}
	return i
}

// vet says what is wrong with a page, "" when bbolt may have it: elements within the page, keys in order and within the bounds that the
// parent sets. used is how many bytes of it are in use. Each commit looks so at all pages that it is about to change.
func (b page) vet(keys keyRange) (used int, what string) {
	if what := b.misshapen(); what != "" {
		return 0, what
	}
	count, leaf, before := b.count(), b.leaf(), keys.lowest
	used = pageHeaderSize + count*pageElementSize
	for i := range count {
		at := pageHeaderSize + i*pageElementSize
		e := b[at : at+pageElementSize]
		keySize, valueSize := uint64(binary.NativeEndian.Uint32(e[4:])), uint64(0)
		from := uint64(at) + uint64(binary.NativeEndian.Uint32(e))
		if leaf {
			from, keySize, valueSize = uint64(at)+keySize, uint64(binary.NativeEndian.Uint32(e[8:])), uint64(binary.NativeEndian.Uint32(e[12:]))
		}
		if keySize == 0 || from+keySize+valueSize > uint64(len(b)) {
			return 0, "has an element out of its bounds"
		}
		key := b[from : from+keySize]
		if order := bytes.Compare(key, before); order < 0 || order == 0 && i > 0 { // only the first may equal the bound
			return 0, "has its keys out of order"
		}
		before = key
		used += int(keySize + valueSize)
	}
	if count > 0 && keys.below != nil && bytes.Compare(before, keys.below) >= 0 {
		return 0, "has its keys out of order"
	}
	return used, ""
}

// fits tells whether a vetted page takes as many pages as it needs, which is what bbolt gives it: freeing one that claims more would
// free its neighbours'.
func (b page) fits(used, pageSize int) bool { return len(b) == (used+pageSize-1)/pageSize*pageSize }

// ---- Reading

// A tree is one bucket, or the tree of all buckets.
type Tree struct {
	p        *Pages
	root     uint64
	small    page // in place of root: a small bucket's page
	Sequence uint64
}

// bucket finds a bucket; ok is false when there is none. Like all that reads a tree it panics with a *damage where it cannot go on.
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

func PanicDamaged(format string, args ...any) { panic(Damaged(format, args...)) }

// get returns a key's value, nil when there is none.
func (t Tree) Get(key []byte) []byte {
	e, _ := t.find(key)
	return e.value
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

// A cursor walks through a tree in the order of keys. What it returns is the file's, and nil at the end. Keep it where it was made.
type Cursor struct {
	t     Tree
	path  []step  // from the root down to where it stands
	last  []byte  // the key that it stands on
	room  [4]step // of most paths
	lines byte    // what touch returned
}

// cursor is a new one before the first key.
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

// next goes on to the next key, after one of the three has returned a key.
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

// pagesTo are the pages on the way to a key, for who looks into a file.
func (t Tree) PagesTo(key []byte) (ids []uint64) {
	c := t.Cursor()
	c.Seek(key)
	for i := range c.path {
		ids = append(ids, c.path[i].id)
	}
	return ids
}

// past runs what walks with the cursor from a key on. When that meets damage, next is the first key that can lie behind the damaged
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

// ---- Writing

// A guard vets what bbolt is going to load in one write transaction.
type Guard struct {
	p     *Pages
	marks map[uint64]PageMark
	Alone bool // all that this transaction has written to its buckets went through this guard
}

// guard is a guard of the transaction, once the freelist and the tree of buckets are vetted, which every commit writes. marks are empty, and its own from now on.
func (l *Ledger) Guard(marks map[uint64]PageMark) (*Guard, error) {
	p, err := committedPages(l.Tx)
	if err != nil {
		return nil, err
	}
	g := &Guard{p: p, marks: marks}
	return g, errors.Join(g.vetFreelist(), g.vetAll(Tree{p: p, root: p.root}))
}

// vetMeta is for those who are going to write into the bucket meta.
func (g *Guard) VetMeta() error {
	meta, _ := g.p.Bucket(InMeta)
	return g.vetAll(meta)
}

// A pageMark is what a guard knows of a page.
type PageMark uint8

const (
	markSound   PageMark = 1 << iota // vetted
	markWritten                      // a leaf that bbolt has changed in its memory: what the file has of it is the past
)

// A vettedPage is one that bbolt may have, and the bounds of its keys.
type vettedPage struct {
	page
	keys keyRange
}

func (g *Guard) load(id uint64, keys keyRange) (v vettedPage, err error) {
	b, err := g.p.load(id)
	if err != nil || g.marks[id]&markSound != 0 {
		return vettedPage{b, keys}, err
	}
	used, what := b.vet(keys)
	if what == "" && !b.fits(used, g.p.pageSize) {
		what = "claims pages that it does not need"
	}
	if what != "" {
		return v, Damaged("page %d %s", id, what)
	}
	g.marks[id] |= markSound
	return vettedPage{b, keys}, nil
}

func (g *Guard) child(v vettedPage, i int) (vettedPage, error) {
	e, _ := elementAt(v.page, i)
	keys := keyRange{e.key, v.keys.below}
	if i+1 < v.count() {
		keys.below = v.key(i + 1)
	}
	return g.load(e.child, keys)
}

// root vets the first page of a bucket.
func (g *Guard) root(t Tree) (vettedPage, error) {
	if t.small == nil {
		return g.load(t.root, keyRange{})
	}
	if _, what := t.small.vet(keyRange{}); what != "" {
		return vettedPage{}, Damaged("a small bucket %s", what)
	}
	return vettedPage{page: t.small}, nil
}

// vetPath vets the pages from the root to a key, and returns the leaf.
func (g *Guard) vetPath(t Tree, key []byte) (v vettedPage, err error) {
	v, err = g.root(t)
	for depth := 0; err == nil && !v.leaf(); depth++ {
		if depth > treeDepthMax {
			return v, Damaged("the path to a key has no end")
		}
		v, err = g.child(v, v.branchTo(key))
	}
	return v, err
}

// vetAround vets the pages from the root to a key and on every level those beside them, also below another parent: by the time that
// bbolt merges a page, its parent may have been merged, too.
func (g *Guard) vetAround(t Tree, key []byte) error {
	v, err := g.root(t)
	var left, right *vettedPage // of v, on its level
	for depth := 0; err == nil && !v.leaf(); depth++ {
		if depth > treeDepthMax {
			return Damaged("the path to a key has no end")
		}
		i := v.branchTo(key)
		var before, after *vettedPage
		before, err = g.beside(v, i-1, left, true)
		if err == nil {
			after, err = g.beside(v, i+1, right, false)
		}
		if err == nil {
			v, err = g.child(v, i)
		}
		left, right = before, after
	}
	return err
}

// beside vets child i of a page, or where that is none the outermost child of the page beside; nil when there is none either.
func (g *Guard) beside(v vettedPage, i int, neighbour *vettedPage, last bool) (*vettedPage, error) {
	if i < 0 || i >= v.count() {
		if neighbour == nil || neighbour.leaf() {
			return nil, nil
		}
		if v, i = *neighbour, 0; last {
			i = v.count() - 1
		}
	}
	child, err := g.child(v, i)
	return &child, err
}

// vetAll vets a whole bucket.
func (g *Guard) vetAll(t Tree) error {
	v, err := g.root(t)
	if err != nil {
		return err
	}
	return g.vetBelow(v, 0)
}

func (g *Guard) vetBelow(v vettedPage, depth int) error {
	if depth > treeDepthMax {
		return Damaged("a bucket has no end")
	}
	for i := 0; !v.leaf() && i < v.count(); i++ {
		child, err := g.child(v, i)
		if err == nil {
			err = g.vetBelow(child, depth+1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// vetFreelist vets the freelist's page, which the next commit frees.
func (g *Guard) vetFreelist() error {
	id := g.p.freelist
	if id == noFreelist {
		return nil
	}
	if id < 2 || id >= g.p.high {
		return Damaged("page %d, the freelist, is beyond the file's %d pages", id, g.p.high)
	}
	b := g.p.mapped[int(id)*g.p.pageSize:]
	count, overflow := uint64(binary.NativeEndian.Uint16(b[10:])), uint64(binary.NativeEndian.Uint32(b[12:]))
	if count == 0xFFFF {
		count = binary.NativeEndian.Uint64(b[pageHeaderSize:])
	}
	// bbolt reckons its pages before it takes them from the list.
	need := func(ids uint64) uint64 { return (pageHeaderSize + 8*(ids+1)) / uint64(g.p.pageSize) }
	if binary.NativeEndian.Uint64(b) != id || binary.NativeEndian.Uint16(b[8:]) != pageFreelist || overflow >= g.p.high-id ||
		count > g.p.high || overflow+1 < need(count) || overflow > need(count+overflow+1) {
		return Damaged("page %d is no freelist", id)
	}
	return nil
}

// A guardedBucket lets bbolt near vetted pages only.
type GuardedBucket struct {
	bolt   *bbolt.Bucket // for reading; the ledger writes
	ledger *Ledger
	which  byte
	guard  *Guard
	tree   Tree
	leaf   vettedPage // of the key that was looked for last
}

func (g *Guard) Bucket(l *Ledger, which byte) (b GuardedBucket, err error) {
	name := Buckets[which]
	t, _ := g.p.Bucket(which)
	if _, err = g.root(t); err != nil {
		return b, err
	}
	b = GuardedBucket{bolt: l.Tx.Bucket(name), ledger: l, which: which, guard: g, tree: t}
	if which == InRev {
		b.bolt.FillPercent = revFill
	}
	return b, nil
}

// sequence is the bucket's, as changed by the transaction.
func (b *GuardedBucket) Sequence() uint64 { return b.bolt.Sequence() }

// vetAround vets the pages around a key, for who is about to delete it.
func (b *GuardedBucket) VetAround(key []byte) error { return b.guard.vetAround(b.tree, key) }

// goTo vets the way to a key, unless that is the way to the key before.
func (b *GuardedBucket) goTo(key []byte) (err error) {
	if at := b.leaf.keys; b.leaf.page == nil || bytes.Compare(key, at.lowest) < 0 || at.below != nil && bytes.Compare(key, at.below) >= 0 {
		b.leaf, err = b.guard.vetPath(b.tree, key)
	}
	if err != nil {
		b.leaf.page = nil
	}
	return err
}

// get reads the vetted leaf itself, unless bbolt knows of something newer.
func (b *GuardedBucket) Get(key []byte) ([]byte, error) {
	if err := b.goTo(key); err != nil {
		return nil, err
	}
	leaf := b.leaf.page
	if !b.guard.Alone || b.tree.small != nil || b.guard.marks[leaf.id()]&markWritten != 0 {
		return b.bolt.Get(key), nil
	}
	if i := leaf.find(key); i < leaf.count() && bytes.Equal(leaf.key(i), key) {
		e, _ := elementAt(leaf, i)
		if e.bucket {
			return nil, Damaged("page %d has a bucket in the place of a value", leaf.id())
		}
		return e.value, nil
	}
	return nil, nil
}

func (b *GuardedBucket) Put(key, value []byte) error {
	if err := b.goTo(key); err != nil {
		return err
	}
	b.guard.marks[b.leaf.id()] |= markWritten
	return b.ledger.Put(b.which, key, value)
}

func (b *GuardedBucket) Remove(key []byte) error {
	if err := b.guard.vetAround(b.tree, key); err != nil {
		return err
	}
	b.guard.Alone = false
	return b.ledger.Remove(b.which, key)
}
