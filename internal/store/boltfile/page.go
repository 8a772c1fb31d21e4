package boltfile

// This file describes the pages of a bbolt file. All pages have the same size. Every page except
// the two meta pages begins with the same header:
//
//	OFFSET  SIZE  MEANING (integers in the byte order of the machine that wrote it)
//	     0     8  the page's own number
//	     8     2  flags: 1 branch, 2 leaf, 4 meta, 16 freelist
//	    10     2  count of elements (freelist: 0xFFFF if the count does not fit; it is then in the first 8 bytes after the header)
//	    12     4  overflow: number of following pages that belong to this one
//	    16    16  each element. branch: key offset 4, key size 4, child 8. leaf: flags 4 (1: a bucket), offset 4, key size 4, value size 4
//
// Pages 0 and 1 each contain a meta page. The valid one with the higher transaction number is
// current:
//
//	    16     8  magic 0xED0CDAED, version 2
//	    24     8  page size, flags
//	    32     8  root page of the tree of buckets
//	    40     8  the mark (proof.go), in a field that bbolt does not use
//	    48     8  freelist page; all bits set if the list was not written, because the file was not closed cleanly
//	    56     8  high-water mark: the number of pages in the file
//	    64     8  transaction number
//	    72     8  FNV-1a of the 56 bytes from the magic on; followed by a note (proof.go)

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"hash/fnv"
)

// castagnoli is the table for CRC-32C.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A metaPage is the content of a meta page.
type metaPage struct {
	txid     uint64
	root     uint64 // root of the tree of buckets
	freelist uint64
	high     uint64 // number of pages in the file
	pageSize int
	mark     uint64 // see proof.go
}

const metaSize = pageHeaderSize + 64

// decodeMeta decodes a meta page. ok is false if its checksum does not match.
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

// A placedMeta contains a meta page and its offset in the file.
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

// A page is a branch or leaf page with its overflow pages. It can also be the only page of a small
// bucket, which is stored in the value of its parent.
type page []byte

func (b page) id() uint64 { return binary.NativeEndian.Uint64(b) }

func (b page) leaf() bool { return binary.NativeEndian.Uint16(b[8:]) == pageLeaf }

func (b page) count() int { return int(binary.NativeEndian.Uint16(b[10:])) }

// headerProblem returns the problem of the page's header, or "" if it is valid.
func (b page) headerProblem() string {
	flags := binary.NativeEndian.Uint16(b[8:])
	switch {
	case flags != pageBranch && flags != pageLeaf || flags == pageBranch && b.count() == 0:
		return "is neither branch nor leaf"
	case pageHeaderSize+b.count()*pageElementSize > len(b):
		return "has more elements than room"
	}
	return ""
}

// key returns the key of element i. It returns nil if the key is empty or not within the page.
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

// childAt returns the child page of element i of a branch page.
func (b page) childAt(i int) uint64 {
	return binary.NativeEndian.Uint64(b[pageHeaderSize+i*pageElementSize+8:])
}

// find returns the index of the first element whose key is not less than key. It returns the count
// if none exists, and -1 if an element is not within the page.
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

// branchTo returns the index of the element of a branch page to which key belongs, or -1 if an
// element is not within the page.
func (b page) branchTo(key []byte) int {
	i := b.find(key)
	if i > 0 && (i == b.count() || !bytes.Equal(b.key(i), key)) {
		i--
	}
	return i
}

// vet returns the problem of a page, or "" if bbolt may load it. It checks that all elements are
// within the page and that the keys are sorted and within the bounds set by the parent. used is the
// number of used bytes. Each commit calls vet for all pages that it will change.
func (b page) vet(keys keyRange) (used int, what string) {
	if what := b.headerProblem(); what != "" {
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
		if order := bytes.Compare(key, before); order < 0 || order == 0 && i > 0 { // only the first key may equal the bound
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

// fits reports whether a vetted page has the number of overflow pages that bbolt would allocate. If
// there were too many, bbolt would also free the neighbors of the page.
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
	treeDepthMax    = 64  // deeper than any tree that fits on a disk
	ProblemsMax     = 100 // maximum number of problems in a report
)

// keyRange contains the bounds for the keys of a subtree. The range includes lowest, but not below.
// There is no bound if the value is nil.
type keyRange struct{ lowest, below []byte }

// A pageElement is an element of a branch page (key and child) or of a leaf page (key and value).
type pageElement struct {
	key, value []byte
	child      uint64
	bucket     bool
}

// elementAt returns element i of a branch or leaf page. ok is false if the element is not within
// the page.
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

// cut returns page[at:at+n], or nil if that is not within the page.
func cut(page []byte, at, n int) []byte {
	if at < 0 || n < 0 || at > len(page) || n > len(page)-at {
		return nil
	}
	return page[at : at+n : at+n]
}
