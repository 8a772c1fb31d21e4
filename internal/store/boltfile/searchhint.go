package boltfile

// This file implements a finger search in the tree of revisions. A LIST walks the keys in order and
// looks up a record for each. If objects are created in sequence, their revisions are adjacent. The
// next record is usually on the same leaf as the last one, or otherwise below the same branch. A
// search hint remembers that position within one snapshot:
//
//	the leaf has 400 to 402        401 is searched there,
//	its branch 1 to 510            403 below it,
//	                               900 from the root
//
// Revisions are dense. Therefore the position on a page can be guessed from the first and the last
// revision of the page.
//
// Most of the time is spent waiting for memory. A file is larger than the caches of a processor,
// which cannot predict the location of the next record. Therefore touch requests all cache lines of
// the next data at the same time. This is the record, or, if the revision is near the previous
// ones, the whole leaf, because other records of the leaf will be needed soon.
//
// A hint is only an optimization. If it finds anything unexpected, such as a damaged page or a
// missing revision, it returns nil, and the search from the root (Tree.find) determines the result.

import "encoding/binary"

// A SearchHint stores the position of the last lookup in a tree. All keys in the tree must start
// with a revision. It does not find keys that are longer than a revision.
type SearchHint struct {
	branch keyedPage // last branch page of the search
	leaf   keyedPage
	lines  byte // sum of the results of touch
}

// A keyedPage is a page with the range of revisions that can be on or below it.
type keyedPage struct {
	page        page // nil means none
	first, last uint64
}

func (p *keyedPage) holds(rev uint64) bool { return p.first <= rev && rev <= p.last && p.page != nil }

// Get returns the value of rev in its tree, or nil if the hint does not lead to it.
func (f *SearchHint) Get(t *Tree, rev uint64) []byte {
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

// near reports whether rev is near the last revision.
func (f *SearchHint) near(rev uint64) bool {
	return f.leaf.page != nil && rev+nearby >= f.leaf.first && rev-min(rev, nearby) <= f.leaf.last
}

// moveTo moves to the leaf of rev. It returns false on failure. If near is set, it touches the
// whole leaf.
func (f *SearchHint) moveTo(t *Tree, rev uint64, near bool) bool {
	at := f.branch
	if !at.holds(rev) {
		at = keyedPage{page: t.small, last: 1<<64 - 1}
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

// below returns the child of a branch that may contain rev. If the child is damaged, its page is
// nil. It need not check the page's keys: if the leaf is the wrong one, Get does not find the
// revision.
func (f *SearchHint) below(p *Pages, at *keyedPage, rev uint64, near bool) (child keyedPage) {
	b, i := at.page, at.find(rev)
	if next, long, ok := b.revAt(i); !ok || next != rev || long {
		i--
	}
	lowest, long, ok := b.revAt(i)
	if !ok {
		return child
	}
	child.first, child.last = lowest, at.last
	if long { // the key with only this revision would be in front of it
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

// revAt returns the revision at the beginning of the key of element i, and whether the key is
// longer. ok is false if none exists.
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

// find is like page.find for the key of a revision. It also returns -1 if a key is too short for a
// revision. It starts at a guessed position and needs at most twice as many steps as a binary
// search.
func (p *keyedPage) find(rev uint64) int {
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

// guess returns the position of rev on the page if the revisions were evenly spaced.
func (p *keyedPage) guess(rev uint64) int {
	n, first, last := uint64(p.page.count()), p.first, p.last
	if last-first >= 1<<47 { // the range is unbounded, so use the keys of the page
		first, _, _ = p.page.revAt(0)
		last, _, _ = p.page.revAt(int(n) - 1)
	}
	if rev < first || rev > last || last-first >= 1<<47 {
		return 0
	}
	return int((rev - first) * n / (last - first + 1))
}
