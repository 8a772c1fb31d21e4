package boltfile

// This file knows how a bbolt file lies on the disk, and nothing of what apilet keeps in it: making a file so that a power cut
// leaves either none or a whole one, telling damage apart before bbolt meets it, and packing a file.
//
// bbolt trusts its file. It maps it into memory and follows page numbers without looking, so that a truncated file is a SIGBUS and
// a zeroed page a panic, one of them in a goroutine that no caller can recover. vetFile therefore reads the file first, the plain
// way. A file is a row of pages of equal size; every page but the two meta pages begins with the same header:
//
//	OFFSET  SIZE  MEANING (integers in the byte order of the machine that wrote it)
//	     0     8  the page's own number
//	     8     2  flags: 1 branch, 2 leaf, 4 meta, 16 freelist
//	    10     2  count of elements (freelist: 0xFFFF when the count did not fit and is the first 8 bytes after the header)
//	    12     4  overflow: how many following pages belong to this one
//	    16    16  each element. branch: key offset 4, key size 4, child 8. leaf: flags 4 (1: a bucket), offset 4, key size 4, value size 4
//
// Pages 0 and 1 hold a meta each, the valid one with the higher transaction number counts, unless its commit was cut short (seal.go):
//
//	    16     8  magic 0xED0CDAED, version 2
//	    24     8  page size, flags
//	    32     8  root page of the tree of buckets
//	    40     8  the mark of a sealed commit
//	    48     8  freelist page, or all ones: not written, so the file was not closed cleanly
//	    56     8  high-water mark: pages from here on are no part of the file
//	    64     8  transaction number
//	    72     8  FNV-1a of the 56 bytes from the magic on; seal.go draws what follows

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"apilet/internal/atomicfile"
)

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

// dbOptions opens a file for reading and writing. Its freelist stays in memory (writing 8 bytes for each free page at each commit costs more than all
// else); a clean close writes it once. The lowest free page is taken first, so that few pages serve many commits (wal.go).
func dbOptions() *bbolt.Options {
	o := &bbolt.Options{Timeout: time.Second, NoFreelistSync: true, FreelistType: bbolt.FreelistArrayType}
	switch { // address space alone; growing the mapping waits for every reader
	case runtime.GOOS == "windows": // it would size the file
	case strconv.IntSize == 64:
		o.InitialMmapSize = 1 << 30
	default:
		o.InitialMmapSize = 128 << 20
	}
	return o
}

// createFile makes the data file at path as atomicfile.PlaceFile does. fill is to put into it what belongs there.
func Create(path string, fill func(*bbolt.DB) error) error {
	return atomicfile.PlaceFile(path, func(temp string) error { return fillFile(temp, fill) })
}

func fillFile(path string, fill func(*bbolt.DB) error) error {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second, NoSync: true, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return err
	}
	return errors.Join(fill(db), db.Sync(), db.Close())
}

// packFile rewrites a stopped server's file without its free pages.
func Pack(path string, seen *Progress) error {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	src, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second, ReadOnly: true})
	if err != nil {
		return ExplainOpen(path, err)
	}
	defer src.Close()
	packed := path + ".defrag"
	os.Remove(packed) // of a run that was killed
	defer os.Remove(packed)
	if info, err := os.Stat(path); err == nil {
		seen.Begin("bytes written, of a file with", info.Size())
	}
	err = Create(packed, func(dst *bbolt.DB) error {
		defer followSize(dst.Path(), seen)()
		return WithoutFaults(func() error { return bbolt.Compact(dst, src, 16<<20) })
	})
	if err == nil {
		err = src.Close() // Windows renames over closed files only
	}
	if err == nil {
		err = os.Rename(packed, path)
	}
	return errors.Join(err, atomicfile.SyncDir(filepath.Dir(path)))
}

// followSize shows how a file grows, until stop is called.
func followSize(path string, seen *Progress) (stop func()) {
	ended := make(chan struct{}) // closed by stop
	go func() {
		for {
			select {
			case <-ended:
				return
			case <-time.After(200 * time.Millisecond):
			}
			if info, err := os.Stat(path); err == nil {
				seen.Reach(info.Size())
			}
		}
	}()
	return func() { close(ended) }
}

// explainOpen says what to do about an error of bbolt.Open.
func ExplainOpen(path string, err error) error {
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return fmt.Errorf("%s is in use by another process: stop that one first, or choose another file", path)
	case errors.Is(err, ErrDamaged):
		return fmt.Errorf("%s: %w", path, err)
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrVersionMismatch), errors.Is(err, berrors.ErrChecksum),
		strings.Contains(err.Error(), "file size too small"):
		return fmt.Errorf("%s is not an apilet data file, or its first pages are lost: choose another file, or restore a backup (%w)", path, err)
	}
	return fmt.Errorf("cannot open %s: %w", path, err)
}

// IsDiskFull tells the errors of a commit after which everything is as it was. bbolt flattens some of them to text.
func IsDiskFull(err error) bool {
	for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG} {
		if errors.Is(err, full) || strings.Contains(err.Error(), full.Error()) {
			return true
		}
	}
	return strings.Contains(err.Error(), "not enough space on the disk")
}

// withoutFaults turns a panic or memory fault under fn (a cursor or bbolt on a damaged page, a file truncated while mapped) into an error.
func WithoutFaults(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch p := recover().(type) {
		case nil:
		case *Damage:
			err = p
		default:
			err = Damaged("%v", p)
		}
	}()
	return fn()
}

// A fileVerdict is what vetFile found.
type Verdict struct {
	Clean    bool     // closed cleanly
	OneMeta  bool     // one of the two meta pages is invalid: when it was the newer, the last commit is lost
	Log      *LeftLog // that lies beside; nil: none
	Torn     bool     // the newest meta page does not count: its commit was cut short
	Problems []string // damaged pages
}

// openShared opens a file that no process writes for reading, with the handle that bbolt has. Nobody can write it until it is closed.
func openShared(path string) (db *bbolt.DB, file *os.File, err error) {
	o := &bbolt.Options{Timeout: time.Second, ReadOnly: true, OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
		var err error
		file, err = os.OpenFile(name, flag, mode)
		return file, err
	}}
	if db, err = bbolt.Open(path, 0, o); err != nil {
		return nil, nil, ExplainOpen(path, err)
	}
	return db, file, nil
}

// vetFile looks at the file without following anything unseen: kind, lock, size, and the pages if the file was not closed in
// peace (bbolt will walk them all to find the free ones) or when thorough. What it vetted it shows to look.
func Vet(path string, thorough bool, seen *Progress, look func(*Pages) error) (v Verdict, err error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return v, fmt.Errorf("cannot open %s: %w", path, err)
	case !info.Mode().IsRegular(): // opening a named pipe would wait for ever
		return v, fmt.Errorf("%s is no regular file: choose another file", path)
	case info.Size() == 0:
		return v, fmt.Errorf("%s is empty (0 bytes), so its content was lost: restore a backup, or remove it to start anew", path)
	}
	db, file, err := openShared(path)
	if err != nil {
		return v, err
	}
	defer db.Close()
	if v.Log, err = readLog(path); err != nil {
		return v, err
	}
	tree, err := readMetas(file)
	if v.Log.used() {
		if tree == nil {
			tree = &pageTree{file: file}
		}
		err = tree.adopt(v.Log, tree.found)
	}
	if err != nil {
		return v, ExplainOpen(path, err)
	}
	v.Clean, v.OneMeta = tree.freelist != noFreelist, tree.invalidMetas > 0
	v.Torn = tree.torn != nil
	v.Clean = v.Clean && !v.Torn
	if need := int64(tree.high) * int64(tree.pageSize); info.Size() < need {
		return v, fmt.Errorf("%s is cut short: %d of at least %d bytes are there: restore a backup", path, info.Size(), need)
	}
	tree.progress = seen
	seen.Begin("page", int64(tree.high))
	if v.Problems = tree.vet(thorough || !v.Clean); len(v.Problems) > 0 {
		return v, fmt.Errorf("%s: %w", path, &Damage{v.Problems[0]})
	}
	return v, WithoutFaults(func() error {
		p := newPages(db, tree.meta.metaPage)
		if err := v.Log.vouches(p, path); err != nil {
			return err
		}
		return look(p)
	})
}

// A pageTree reads one file's pages, checking what bbolt takes for granted.
type pageTree struct {
	file         io.ReaderAt
	pageSize     int
	root         uint64
	freelist     uint64
	high         uint64
	invalidMetas int
	found        []*placedMeta // that are valid
	meta         *placedMeta   // that counts
	torn         *placedMeta   // a newer one that does not; nil mostly
	progress     *Progress

	seen     []uint64 // a bit for each page that something refers to
	bufs     [][]byte // one for each level, reused: a child's bounds are keys of its parent's
	problems []string
}

// readMetas finds the meta page that counts. The first one may be damaged and with it the page size, so the second is looked for
// at every size.
func readMetas(file io.ReaderAt) (*pageTree, error) {
	var found []*placedMeta
	buf := make([]byte, runsAt)
	for at := int64(0); at <= 64<<10 && len(found) < 2; at = max(1024, at*2) {
		if n, _ := file.ReadAt(buf, at); n < len(buf) {
			break
		}
		m, ok := decodeMeta(buf)
		if !ok || at != 0 && int64(m.pageSize) != at || m.pageSize < 1024 || m.pageSize > 64<<10 {
			continue
		}
		found = append(found, &placedMeta{m, at, [metaSize]byte(buf), binary.NativeEndian.Uint64(buf[noteAt:])})
	}
	if len(found) == 0 {
		return nil, berrors.ErrInvalid
	}
	m := found[0]
	t := &pageTree{file: file, found: found, invalidMetas: 2 - len(found)}
	if len(found) == 2 {
		other := found[1]
		if other.txid > m.txid {
			m, other = other, m
		}
		if !m.counts(file, other) {
			m, t.torn = other, m
		}
	}
	t.meta, t.pageSize, t.root, t.freelist, t.high = m, m.pageSize, m.root, m.freelist, m.high
	return t, nil
}

// vet checks the freelist and, if asked to, every page of the tree.
func (t *pageTree) vet(all bool) []string {
	t.seen = make([]uint64, t.high/64+1)
	t.mark(0)
	t.mark(1)
	if t.freelist != noFreelist {
		t.vetFreelist(all)
	}
	if all {
		t.walk(t.root, keyRange{}, 0)
	}
	if all && t.freelist != noFreelist {
		for id := range t.high {
			if t.seen[id/64]&(1<<(id%64)) == 0 {
				t.problem("page %d is neither used nor free", id)
			}
		}
	}
	return t.problems
}

func (t *pageTree) problem(format string, args ...any) {
	if len(t.problems) < ProblemsMax {
		t.problems = append(t.problems, fmt.Sprintf(format, args...))
	}
}

// mark notes that something refers to a page; false when it may not.
func (t *pageTree) mark(id uint64) bool {
	if id >= t.high {
		t.problem("page %d is beyond the file's %d pages", id, t.high)
		return false
	}
	if t.seen[id/64]&(1<<(id%64)) != 0 {
		t.problem("page %d is used twice", id)
		return false
	}
	t.seen[id/64] |= 1 << (id % 64)
	t.progress.Add(1)
	return true
}

// load reads page id with its overflow into the buffer of a level; nil when the header cannot be true.
func (t *pageTree) load(id uint64, level int) page {
	if !t.mark(id) {
		return nil
	}
	for len(t.bufs) <= level {
		t.bufs = append(t.bufs, make([]byte, t.pageSize))
	}
	buf := t.bufs[level][:t.pageSize]
	if _, err := t.file.ReadAt(buf, int64(id)*int64(t.pageSize)); err != nil {
		t.problem("page %d cannot be read: %v", id, err)
		return nil
	}
	overflow := uint64(binary.NativeEndian.Uint32(buf[12:]))
	if own := binary.NativeEndian.Uint64(buf); own != id || overflow >= t.high-id {
		t.problem("page %d has a damaged header", id)
		return nil
	}
	for i := range overflow {
		if !t.mark(id + 1 + i) {
			return nil
		}
	}
	if overflow == 0 {
		return buf
	}
	buf = make([]byte, int(overflow+1)*t.pageSize)
	if _, err := t.file.ReadAt(buf, int64(id)*int64(t.pageSize)); err != nil {
		t.problem("page %d cannot be read: %v", id, err)
		return nil
	}
	t.bufs[level] = buf
	return buf
}

// vetFreelist checks the list of free pages; with markFree they count as seen, so that a page both free and used shows.
func (t *pageTree) vetFreelist(markFree bool) {
	b := t.load(t.freelist, 0)
	if b == nil {
		return
	}
	count := uint64(binary.NativeEndian.Uint16(b[10:]))
	ids := b[pageHeaderSize:]
	if count == 0xFFFF {
		count, ids = binary.NativeEndian.Uint64(ids), ids[8:]
	}
	if binary.NativeEndian.Uint16(b[8:]) != pageFreelist || count > uint64(len(ids)/8) {
		t.problem("page %d is no freelist", t.freelist)
		return
	}
	last := uint64(1)
	for i := range count {
		id := binary.NativeEndian.Uint64(ids[i*8:])
		if id <= last || id >= t.high {
			t.problem("the freelist on page %d holds page %d out of order", t.freelist, id)
			return
		}
		last = id
		if markFree {
			t.mark(id)
		}
	}
}

// keyRange is what the keys of a subtree have to lie in: from lowest on, before below; nil where there is no bound.
type keyRange struct{ lowest, below []byte }

// walk checks the page and all below it.
func (t *pageTree) walk(id uint64, keys keyRange, level int) {
	if level > treeDepthMax {
		t.problem("page %d lies too deep", id)
		return
	}
	page := t.load(id, level)
	if page == nil {
		return
	}
	used, what := t.walkElements(page, keys, level)
	if what == "" && !page.fits(used, t.pageSize) {
		what = "claims pages that it does not need"
	}
	if what != "" {
		t.problem("page %d %s", id, what)
	}
}

// walkElements checks a loaded page, or a small bucket that lies in a value of its parent's, and answers how much of it is used, and what is wrong.
func (t *pageTree) walkElements(b page, keys keyRange, level int) (used int, what string) {
	if used, what = b.vet(keys); what != "" {
		return used, what
	}
	for i := range b.count() {
		e, _ := elementAt(b, i)
		below := keys.below
		if i+1 < b.count() {
			below = b.key(i + 1)
		}
		switch {
		case !b.leaf():
			t.walk(e.child, keyRange{e.key, below}, level+1)
		case e.bucket:
			what = t.walkBucket(e.value, level)
		}
		if what != "" {
			return used, what
		}
	}
	return used, ""
}

// walkBucket checks a bucket, which has a tree of its own or, when small, a page within its value.
func (t *pageTree) walkBucket(value []byte, level int) (what string) {
	if len(value) < 16 {
		return "has a damaged bucket"
	}
	if root := binary.NativeEndian.Uint64(value); root != 0 {
		t.walk(root, keyRange{}, level+1)
		return ""
	}
	if len(value) < 16+pageHeaderSize || binary.NativeEndian.Uint16(value[24:]) != pageLeaf {
		return "has a damaged small bucket"
	}
	_, what = t.walkElements(value[16:], keyRange{}, level+1)
	return what
}

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
