package boltfile

// This file protects write transactions from damaged pages by vetting each page before bbolt loads
// it.

import (
	"bytes"
	"encoding/binary"
	"errors"

	"go.etcd.io/bbolt"
)

// A Guard vets the pages that bbolt will load in one write transaction.
type Guard struct {
	p         *Pages
	marks     map[uint64]PageMark
	Exclusive bool // all changes of this transaction to its buckets went through this guard
}

// Guard returns a guard of the transaction. It first vets the freelist and the tree of buckets,
// which every commit writes. marks must be empty and must not be used elsewhere.
func (l *WriteTx) Guard(marks map[uint64]PageMark) (*Guard, error) {
	p, err := committedPages(l.Tx)
	if err != nil {
		return nil, err
	}
	g := &Guard{p: p, marks: marks}
	return g, errors.Join(g.vetFreelist(), g.vetAll(Tree{p: p, root: p.root}))
}

// VetMeta vets the bucket meta. It must be called before a write to that bucket.
func (g *Guard) VetMeta() error {
	meta, _ := g.p.Bucket(InMeta)
	return g.vetAll(meta)
}

// A PageMark is a set of flags for a page in a guard.
type PageMark uint8

const (
	markSound   PageMark = 1 << iota // vetted
	markWritten                      // bbolt has changed this leaf in memory, so the file has an old version
)

// A vettedPage contains a vetted page and the range of its keys.
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
		return v, NewDamage("page %d %s", id, what)
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

// root vets the root page of a bucket and returns it.
func (g *Guard) root(t Tree) (vettedPage, error) {
	if t.small == nil {
		return g.load(t.root, keyRange{})
	}
	if _, what := t.small.vet(keyRange{}); what != "" {
		return vettedPage{}, NewDamage("a small bucket %s", what)
	}
	return vettedPage{page: t.small}, nil
}

// vetPath vets the pages from the root to a key and returns the leaf.
func (g *Guard) vetPath(t Tree, key []byte) (v vettedPage, err error) {
	v, err = g.root(t)
	for depth := 0; err == nil && !v.leaf(); depth++ {
		if depth > treeDepthMax {
			return v, NewDamage("the path to a key has no end")
		}
		v, err = g.child(v, v.branchTo(key))
	}
	return v, err
}

// vetAround vets the pages from the root to a key, and their neighbors on every level. It includes
// neighbors with a different parent, because the parent may have been merged before bbolt merges
// the page.
func (g *Guard) vetAround(t Tree, key []byte) error {
	v, err := g.root(t)
	var left, right *vettedPage // neighbors of v on its level
	for depth := 0; err == nil && !v.leaf(); depth++ {
		if depth > treeDepthMax {
			return NewDamage("the path to a key has no end")
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

// beside vets child i of v. If i is out of range, it vets the outermost child of the neighbor of v
// instead. It returns nil if there is no neighbor.
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
		return NewDamage("a bucket has no end")
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

// vetFreelist vets the page of the freelist, which the next commit frees.
func (g *Guard) vetFreelist() error {
	id := g.p.freelist
	if id == noFreelist {
		return nil
	}
	if id < 2 || id >= g.p.high {
		return NewDamage("page %d, the freelist, is beyond the file's %d pages", id, g.p.high)
	}
	b := g.p.mapped[int(id)*g.p.pageSize:]
	count, overflow := uint64(binary.NativeEndian.Uint16(b[10:])), uint64(binary.NativeEndian.Uint32(b[12:]))
	if count == 0xFFFF {
		count = binary.NativeEndian.Uint64(b[pageHeaderSize:])
	}
	// bbolt computes the size before it allocates the pages from the list itself.
	need := func(ids uint64) uint64 { return (pageHeaderSize + 8*(ids+1)) / uint64(g.p.pageSize) }
	if binary.NativeEndian.Uint64(b) != id || binary.NativeEndian.Uint16(b[8:]) != pageFreelist || overflow >= g.p.high-id ||
		count > g.p.high || overflow+1 < need(count) || overflow > need(count+overflow+1) {
		return NewDamage("page %d is no freelist", id)
	}
	return nil
}

// A GuardedBucket wraps a bucket of bbolt. It vets all pages before bbolt loads them.
type GuardedBucket struct {
	bolt   *bbolt.Bucket // for reads; writes go through ledger
	ledger *WriteTx
	which  byte
	guard  *Guard
	tree   Tree
	leaf   vettedPage // of the last lookup
}

func (g *Guard) Bucket(l *WriteTx, which byte) (b GuardedBucket, err error) {
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

// Sequence returns the sequence of the bucket, including changes of the transaction.
func (b *GuardedBucket) Sequence() uint64 { return b.bolt.Sequence() }

// VetAround vets the pages around a key. It must be called before the key is deleted.
func (b *GuardedBucket) VetAround(key []byte) error { return b.guard.vetAround(b.tree, key) }

// goTo vets the path to the key. It does nothing if the key is on the same leaf as the previous
// key.
func (b *GuardedBucket) goTo(key []byte) (err error) {
	if at := b.leaf.keys; b.leaf.page == nil || bytes.Compare(key, at.lowest) < 0 || at.below != nil && bytes.Compare(key, at.below) >= 0 {
		b.leaf, err = b.guard.vetPath(b.tree, key)
	}
	if err != nil {
		b.leaf.page = nil
	}
	return err
}

// Get reads the vetted leaf directly, unless bbolt has a newer version of it.
func (b *GuardedBucket) Get(key []byte) ([]byte, error) {
	if err := b.goTo(key); err != nil {
		return nil, err
	}
	leaf := b.leaf.page
	if !b.guard.Exclusive || b.tree.small != nil || b.guard.marks[leaf.id()]&markWritten != 0 {
		return b.bolt.Get(key), nil
	}
	if i := leaf.find(key); i < leaf.count() && bytes.Equal(leaf.key(i), key) {
		e, _ := elementAt(leaf, i)
		if e.bucket {
			return nil, NewDamage("page %d has a bucket in the place of a value", leaf.id())
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
	b.guard.Exclusive = false
	return b.ledger.Remove(b.which, key)
}
