package boltfile

// This file is a finger search over the tree of revisions. A LIST walks the keys in their order, and looks a record up for each. Objects that
// were made one after the other have revisions one after the other: most often the next record lies on the leaf that the last one was found on,
// and else below the same branch. A finger stays there, for as long as its snapshot lasts:
//
//	the leaf has 400 to 402        401 is looked for there,
//	its branch 1 to 510            403 below it,
//	                               900 from the root on
//
// Revisions are dense, too, so that where one stands on a page is guessed from the first and last that belong there.
//
// What takes longest is none of this but waiting for memory: a file is larger than a processor's caches, and where the next record lies is
// nothing that a processor foresees. So all lines of what will be read are asked for at once (touch), and come together: of the record, and where
// revisions lie close to the ones before, of the whole leaf, whose other records will be wanted soon.
//
// A finger only ever finds. Where something is not as it expects (a damaged page, no such revision) it does not know, and the search from the
// root, tree.find, tells what is the matter.

import "encoding/binary"

// A Finger is where the last record was found in a tree whose keys begin with revisions. It knows of keys that are a revision alone.
type Finger struct {
	branch place // the last one that a search came by
	leaf   place
	lines  byte // what touch returned
}

// A place is a page, and which revisions' records lie there or below, if anywhere.
type place struct {
	page        page // nil: none
	first, last uint64
}

func (p *place) holds(rev uint64) bool { return p.first <= rev && rev <= p.last && p.page != nil }

// Get returns the value under a revision in its tree; nil when it does not know.
func (f *Finger) Get(t *Tree, rev uint64) []byte {
	near := f.near(rev)
	if !f.leaf.holds(rev) && !f.moveTo(t, rev, near) {
		return nil
	}
	b, i := f.leaf.page, f.leaf.find(rev)
	if i < 0 || i >= b.count() {
		return nil
	}
	e, ok := elementAt(b, i)
	if !ok || len(e.key) != 8 || binary.BigEndian.Uint64(e.key) != rev {
		return nil
	}
	if !near {
		f.lines += touch(e.value)
	}
	return e.value
}

// near tells whether a revision lies close to the last one.
func (f *Finger) near(rev uint64) bool {
	return f.leaf.page != nil && rev+nearby >= f.leaf.first && rev-min(rev, nearby) <= f.leaf.last
}

// moveTo goes to the leaf where a revision belongs; false when it cannot. All of a leaf nearby is asked for.
func (f *Finger) moveTo(t *Tree, rev uint64, near bool) bool {
	at := f.branch
	if !at.holds(rev) {
		at = place{page: t.small, last: 1<<64 - 1}
		if at.page == nil {
			at.page, _ = t.p.load(t.root)
		}
	}
	for depth := 0; at.page != nil && !at.page.leaf() && depth < treeDepthMax; depth++ {
		f.branch = at
		at = f.below(t.p, &f.branch, rev, near)
	}
	f.leaf = at
	return at.page != nil && at.page.leaf()
}

// below is the place below a branch where a revision belongs; it has no page when that is damaged. Whether its keys are those that the branch
// promises need not be asked: on a leaf of another place the revision is not found.
func (f *Finger) below(p *Pages, at *place, rev uint64, near bool) (child place) {
	b, i := at.page, at.find(rev)
	if next, long, ok := b.revAt(i); !ok || next != rev || long {
		i--
	}
	lowest, long, ok := b.revAt(i)
	if !ok {
		return child
	}
	child.first, child.last = lowest, at.last
	if long { // keys of a revision and more follow that of the revision alone
		child.first++
	}
	if i+1 < b.count() {
		if child.last, long, ok = b.revAt(i + 1); !ok {
			return child
		}
		if !long {
			child.last--
		}
	}
	id := b.childAt(i)
	if near {
		f.lines += p.touch(id)
	}
	if page, err := p.load(id); err == nil {
		child.page = page
	}
	return child
}

// revAt returns the revision that the key of element i begins with, and whether it goes on; ok is false where there is none.
func (b page) revAt(i int) (rev uint64, longer, ok bool) {
	if i < 0 || i >= b.count() {
		return 0, false, false
	}
	at := pageHeaderSize + i*pageElementSize
	e := b[at : at+pageElementSize]
	if b.leaf() {
		e = e[4:]
	}
	size := int(binary.NativeEndian.Uint32(e[4:]))
	at += int(binary.NativeEndian.Uint32(e))
	if size < 8 || at < 0 || at > len(b)-size {
		return 0, false, false
	}
	return binary.BigEndian.Uint64(b[at:]), size > 8, true
}

// find is page.find for the key of a revision, -1 also where a key is too short for one. It guesses first, and looks at no more than twice the
// elements that a binary search would.
func (p *place) find(rev uint64) int {
	low, high := 0, p.page.count()
	at := p.guess(rev)
	for step := 1; low < high; step *= 2 {
		if at < low || at >= high {
			at = int(uint(low+high) >> 1)
		}
		switch found, longer, ok := p.page.revAt(at); {
		case !ok:
			return -1
		case found == rev && !longer:
			return at
		case found < rev:
			low = at + 1
			at += step
		default:
			high = at
			at -= step
		}
	}
	return low
}

// guess is where a revision would stand if all of the place lay equally far apart.
func (p *place) guess(rev uint64) int {
	n, first, last := uint64(p.page.count()), p.first, p.last
	if last-first >= 1<<47 { // it has no end: the page's own then
		first, _, _ = p.page.revAt(0)
		last, _, _ = p.page.revAt(int(n) - 1)
	}
	if rev < first || rev > last || last-first >= 1<<47 {
		return 0
	}
	return int((rev - first) * n / (last - first + 1))
}
