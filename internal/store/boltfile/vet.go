package boltfile

// This file checks a data file before it is opened. It fails if another process has the file open
// for writing. The checks are necessary, because bbolt maps its file into memory and does not check
// page numbers. A truncated file therefore causes a SIGBUS and a zeroed page causes a panic,
// possibly in a goroutine in which no caller can recover. Vet reads the file with ordinary reads:
// the meta pages, the log next to it, and all pages if the file was not closed cleanly.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// A Verdict is the result of Vet.
type Verdict struct {
	// Clean is set if the file contains a freelist, so it is not necessary to read all pages. This
	// is the case if the file was closed cleanly, or if the checkpoint of its log has a freelist.
	Clean bool
	// OneMeta is set if one of the two meta pages is invalid. If the newer page is invalid, the last
	// commit is lost.
	OneMeta  bool
	Log      *LeftoverLog // the log next to the file, or nil if it does not exist
	Moved    bool         // the file may have been copied while a server was using it
	Problems []string     // damaged pages
}

// statRegular returns an error unless path is a regular file. Opening a named pipe would block
// forever.
func statRegular(path string) (os.FileInfo, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot open %s: %w", path, err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file: choose another file", path)
	}
	return info, nil
}

// Regular returns an error unless there is a regular file at path.
func Regular(path string) error {
	_, err := statRegular(path)
	return err
}

// overflowMax is the maximum size of a page including its overflow pages. A sparse file could claim
// any size.
const overflowMax = 256 << 20

// smallMax is the maximum size of a file for ReadSmall.
const smallMax = 64 << 10

// ReadSmall reads a small regular file.
func ReadSmall(path string) ([]byte, error) {
	file, size, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if size > smallMax {
		return nil, fmt.Errorf("%s has %d bytes, which is too many: choose another file", path, size)
	}
	return io.ReadAll(file)
}

// openRegular opens a regular file for reading, and returns its size.
func openRegular(path string) (*os.File, int64, error) {
	info, err := statRegular(path)
	if err != nil {
		return nil, 0, err
	}
	file, err := os.Open(path)
	return file, info.Size(), err
}

// openShared opens a file for reading and returns bbolt's handle. It fails if a process has the
// file open for writing. No process can write the file until db is closed.
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

// Peek calls look with the unvetted pages of a file that no process writes. It returns the error of
// look, or any damage that look encounters.
func Peek(path string, look func(*Pages) error) error {
	db, file, err := openShared(path)
	if err != nil {
		return err
	}
	defer db.Close()
	return RecoverFaults(func() error {
		tree, err := readMetas(file)
		if err != nil {
			return err
		}
		info, err := file.Stat()
		if err != nil {
			return err
		}
		if tree.high > uint64(info.Size())/uint64(tree.pageSize) {
			return NewDamage("the file is shorter than its %d pages", tree.high)
		}
		return look(newPages(db, tree.meta.metaPage))
	})
}

// Vet checks the type, the lock and the size of a file. If thorough is set, it also checks all
// pages. It does the same if the file was not closed cleanly, because bbolt will then read all
// pages to find the free pages. Finally, it calls look with the vetted pages.
func Vet(path string, thorough bool, seen *Progress, look func(*Pages) error) (v Verdict, err error) {
	info, err := statRegular(path)
	switch {
	case err != nil:
		return v, err
	case info.Size() == 0:
		return v, fmt.Errorf("%s is empty (0 bytes), so its content was lost: restore a backup, or remove it to start with a new file", path)
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
	switch {
	case err != nil:
		return v, ExplainOpen(path, err)
	case v.Log.Used():
		err = tree.adopt(v.Log)
	case v.Log != nil:
		err = v.Log.checkIdle(tree)
	}
	if err != nil {
		return v, err
	}
	v.Moved = tree.moved(info, v.Log.Used())
	v.Clean, v.OneMeta = tree.freelist != noFreelist, tree.invalidMetas > 0
	if tree.high > uint64(info.Size())/uint64(tree.pageSize) {
		need := new(big.Int).Mul(new(big.Int).SetUint64(tree.high), big.NewInt(int64(tree.pageSize))) // any number, if the file is forged
		return v, fmt.Errorf("%s is truncated: it has %d of at least %d bytes: restore a backup", path, info.Size(), need)
	}
	tree.progress = seen
	seen.Begin("page", int64(tree.high))
	walked := thorough || !v.Clean || v.Moved
	v.Problems = tree.vet(walked)
	p := newPages(db, tree.meta.metaPage)
	err = RecoverFaults(func() error { return v.Log.checkTree(p, path) })
	switch {
	case len(v.Problems) > 0 && (err == nil || errors.Is(err, ErrDamaged)):
		return v, fmt.Errorf("%s: %w", path, &Damage{v.Problems[0]})
	case err != nil: // with the wrong log any file looks damaged, so this error comes first
		return v, err
	}
	if v.Log.Used() && !walked {
		if err = RecoverFaults(func() error { return v.Log.vetReplay(p) }); err != nil {
			return v, fmt.Errorf("%s: %w", path, err)
		}
	}
	p.Moved = v.Moved
	if err = RecoverFaults(func() error { return look(p) }); errors.Is(err, ErrDamaged) {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return v, err
}

// A pageTree reads the pages of a file and checks that bbolt can use them.
type pageTree struct {
	file         io.ReaderAt
	pageSize     int
	root         uint64
	freelist     uint64
	high         uint64
	invalidMetas int
	found        []*placedMeta // valid meta pages
	notes        []logNote     // valid notes
	meta         *placedMeta   // current meta page
	progress     *Progress

	seen     []uint64 // bitmap of the referenced pages
	bufs     [][]byte // buffers for each level of the tree, because the keys of a page are the bounds of its children
	problems []string
}

// readMetas finds the current meta page. If the first one is damaged, the page size is unknown, so
// it searches for the second one at every possible page size.
func readMetas(file io.ReaderAt) (*pageTree, error) {
	var found []*placedMeta
	notes := map[int64]logNote{} // by offset of the meta page
	buf := make([]byte, noteAt+noteSize)
	for at := int64(0); at <= 64<<10 && len(found) < 2; at = max(1024, at*2) {
		if n, _ := file.ReadAt(buf, at); n < len(buf) {
			break
		}
		if n, ok := decodeNote(buf[noteAt:]); ok {
			notes[at] = n
		}
		m, ok := decodeMeta(buf)
		if !ok || at != 0 && int64(m.pageSize) != at || m.pageSize < 1024 || m.pageSize > 64<<10 {
			continue
		}
		found = append(found, &placedMeta{m, at, [metaSize]byte(buf)})
	}
	if len(found) == 0 {
		return nil, berrors.ErrInvalid
	}
	m := found[0]
	t := &pageTree{file: file, found: found, invalidMetas: 2 - len(found)}
	if len(found) == 2 && found[1].txid > m.txid {
		m = found[1]
	}
	t.meta, t.pageSize, t.root, t.freelist, t.high = m, m.pageSize, m.root, m.freelist, m.high
	for _, at := range [...]int64{0, int64(m.pageSize)} {
		if n, ok := notes[at]; ok {
			t.notes = append(t.notes, n)
		}
	}
	return t, nil
}

// vet checks the freelist. If all is set, it also checks every page of the tree.
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

// mark records a reference to a page. It returns false if the reference is invalid.
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

// load reads a page, including its overflow pages, into the buffer for the given level. It returns
// nil if the header is invalid.
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
	if own := binary.NativeEndian.Uint64(buf); own != id || overflow >= t.high-id || overflow > uint64(overflowMax/t.pageSize) {
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

// vetFreelist checks the list of free pages. If markFree is set, it also marks them, in order to
// detect pages that are both free and used.
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

// walk checks the page with the given id and all its descendants.
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

// walkElements checks the elements of a page. The page may also be the content of a small bucket.
// It returns the number of used bytes and the problem, if any.
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

// walkBucket checks the bucket with the given value. If the bucket is small, the value contains its
// only page.
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

// adopt makes the checkpoint of a used log the current state of a data file. The newer meta pages
// of the file were not synced, but all their commits must be in the log.
func (t *pageTree) adopt(l *LeftoverLog) error {
	m, ok := decodeMeta(l.head.meta[:])
	if !ok || m.pageSize < 1024 || m.pageSize > 64<<10 {
		return fmt.Errorf("%s: %w", l.path, NewDamage("the checkpoint in the log's head"))
	}
	for _, other := range t.found {
		switch {
		case other.pageSize != m.pageSize:
			return l.foreignError("its pages have another size")
		case other.txid+1 < m.txid:
			return l.foreignError("the file is older")
		case other.txid == m.txid && other.raw != l.head.meta:
			return l.foreignError("transactions of one number differ")
		}
	}
	there, err := l.covers(t, m)
	if err != nil {
		return err
	}
	if there < uint64(len(l.records)) { // a lost meta page had no commit that is missing from the log
		t.invalidMetas = 0
	}
	t.take(l, m)
	return nil
}

// take makes the checkpoint of a log, with the meta page m, the current state.
func (t *pageTree) take(l *LeftoverLog, m metaPage) {
	at := int64(m.txid%2) * int64(m.pageSize)
	t.meta = &placedMeta{metaPage: m, at: at, raw: l.head.meta}
	t.pageSize, t.root, t.freelist, t.high = m.pageSize, m.root, m.freelist, m.high
}

// checkTree checks that the tree matches the checkpoint of the log.
func (l *LeftoverLog) checkTree(p *Pages, path string) error {
	meta, ok := p.Bucket(InMeta)
	revs, there := p.Bucket(InRev)
	switch {
	case !l.Used() && ok && l == nil && MetaInt(meta, "format") == FormatLogged:
		return fmt.Errorf("%s was in use when it was left or copied, and its log %s is missing, which has what was written last: "+
			"put that beside it, or restore a backup", path, path+LogSuffix)
	case !l.Used():
		return nil
	case !ok || !there:
		return l.foreignError("it has other buckets")
	case MetaInt(meta, "format") != FormatLogged:
		return l.foreignError("the file was closed without it")
	case string(meta.Get([]byte("lineage"))) != string(l.head.lineage[:]):
		return l.foreignError("another lineage")
	case int64(revs.Sequence) != l.head.rev:
		return l.foreignError("another revision")
	}
	return nil
}
