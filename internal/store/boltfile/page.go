package boltfile

// This file knows how a page of a bbolt file lies on the disk. A file is a row of pages of equal size; every page but the two meta pages begins with the
// same header:
//
//	OFFSET  SIZE  MEANING (integers in the byte order of the machine that wrote it)
//	     0     8  the page's own number
//	     8     2  flags: 1 branch, 2 leaf, 4 meta, 16 freelist
//	    10     2  count of elements (freelist: 0xFFFF when the count did not fit and is the first 8 bytes after the header)
//	    12     4  overflow: how many following pages belong to this one
//	    16    16  each element. branch: key offset 4, key size 4, child 8. leaf: flags 4 (1: a bucket), offset 4, key size 4, value size 4
//
// Pages 0 and 1 hold a meta each. The valid one with the higher transaction number counts:
//
//	    16     8  magic 0xED0CDAED, version 2
//	    24     8  page size, flags
//	    32     8  root page of the tree of buckets
//	    40     8  the mark (proof.go), in a field that bbolt does not use
//	    48     8  freelist page, or all ones: not written, so the file was not closed cleanly
//	    56     8  high-water mark: pages from here on are no part of the file
//	    64     8  transaction number
//	    72     8  FNV-1a of the 56 bytes from the magic on; a note follows (proof.go)

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"hash/fnv"
)

// castagnoli is the table of CRC-32C.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A metaPage is what the meta page of one transaction says.
type metaPage struct {
	txid     uint64
	root     uint64 // of the tree of buckets
	freelist uint64
	high     uint64 // pages from here on are no part of the file
	pageSize int
	mark     uint64 // see proof.go
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

// sumMeta sets the checksum of a meta page.
func sumMeta(b []byte) {
	sum := fnv.New64a()
	sum.Write(b[pageHeaderSize : metaSize-8])
	binary.NativeEndian.PutUint64(b[metaSize-8:], sum.Sum64())
}

// A placedMeta is a meta page and its place in a file.
type placedMeta struct {
	metaPage
	at  int64
	raw [metaSize]byte
}

// before returns a meta page for the given slot with the content of m, as an earlier transaction.
func (m *placedMeta) before(slot int64) []byte {
	page := make([]byte, m.pageSize)
	copy(page, m.raw[:])
	binary.NativeEndian.PutUint64(page, uint64(slot))
	binary.NativeEndian.PutUint64(page[pageHeaderSize+48:], m.txid-1)
	sumMeta(page)
	return page
}

// A PageRun is a run of adjacent pages.
type PageRun struct{ First, Count uint64 }

func (r PageRun) holds(id uint64) bool { return id >= r.First && id-r.First < r.Count }

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

const (
	pageHeaderSize  = 16
	pageElementSize = 16
	pageBranch      = 1
	pageLeaf        = 2
	pageFreelist    = 16
	leafIsBucket    = 1
	noFreelist      = ^uint64(0)
	metaMagic       = 0xED0CDAED
	treeDepthMax    = 64  // deeper than any tree that fits a disk
	ProblemsMax     = 100 // a report names no more than this
)

// keyRange is what the keys of a subtree have to lie in: from lowest on, before below; nil where there is no bound.
type keyRange struct{ lowest, below []byte }

// A pageElement is one of a branch (key and child) or of a leaf (key and value).
type pageElement struct {
	key, value []byte
	child      uint64
	bucket     bool
}

// elementAt returns element i of a branch or leaf page; false when it leaves the page.
func elementAt(page []byte, i int) (e pageElement, ok bool) {
	at := pageHeaderSize + i*pageElementSize
	u32 := func(o int) int { return int(binary.NativeEndian.Uint32(page[at+o:])) }
	if binary.NativeEndian.Uint16(page[8:]) == pageBranch {
		e.child = binary.NativeEndian.Uint64(page[at+8:])
		e.key = cut(page, at+u32(0), u32(4))
		return e, e.key != nil
	}
	e.bucket = u32(0)&leafIsBucket != 0
	e.key = cut(page, at+u32(4), u32(8))
	e.value = cut(page, at+u32(4)+u32(8), u32(12))
	return e, e.key != nil && e.value != nil
}

// cut returns page[at:at+n], nil when that leaves the page.
func cut(page []byte, at, n int) []byte {
	if at < 0 || n < 0 || at > len(page) || n > len(page)-at {
		return nil
	}
	return page[at : at+n : at+n]
}
