package boltfile

// This file keeps bbolt away from damaged pages in a write transaction: whatever page bbolt is about to load was vetted before.

import (
	"bytes"
	"encoding/binary"
	"errors"

	"go.etcd.io/bbolt"
)

// A Guard vets what bbolt is going to load in one write transaction.
type Guard struct {
	p     *Pages
	marks map[uint64]PageMark
	Alone bool // all that this transaction has written to its buckets went through this guard
}

// Guard is a guard of the transaction, once the freelist and the tree of buckets are vetted, which every commit writes. marks are empty, and its own from now on.
func (l *Ledger) Guard(marks map[uint64]PageMark) (*Guard, error) {
	p, err := committedPages(l.Tx)
	if err != nil {
		return nil, err
	}
	g := &Guard{p: p, marks: marks}
	return g, errors.Join(g.vetFreelist(), g.vetAll(Tree{p: p, root: p.root}))
}

// VetMeta is for those who are going to write into the bucket meta.
func (g *Guard) VetMeta() error {
	meta, _ := g.p.Bucket(InMeta)
	return g.vetAll(meta)
}

// A PageMark is what a guard knows of a page.
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

// VetAround vets the pages from the root to a key and on every level those beside them, also below another parent: by the time that
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

// A GuardedBucket lets bbolt near vetted pages only.
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

// Sequence is the bucket's, as changed by the transaction.
func (b *GuardedBucket) Sequence() uint64 { return b.bolt.Sequence() }

// VetAround vets the pages around a key, for who is about to delete it.
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

// Get reads the vetted leaf itself, unless bbolt knows of something newer.
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
