package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.etcd.io/bbolt"
)

const sealSector = 512

// A tornDisk is the disk below a store: it knows what is durable and what is on its way, and looks at each commit at what a power cut could
// have left of it.
type tornDisk struct {
	t        *testing.T
	rnd      *rand.Rand
	file     *os.File
	sync     func() error
	pageSize int
	all      []byte     // with all that was written
	durable  []byte     // what the last sync left
	pending  []tornPart // since then, in order
	written  map[uint64]bool
	meta     bool   // the meta page is among them
	scratch  []byte // durable, and zeros up to the end of all, between images

	commits, images, older, newer, plain, lists int
}

// A tornPart is a part of a write that arrives whole or not at all.
type tornPart struct {
	at    int
	bytes []byte
	write int // of which write
}

func (d *tornDisk) WriteAt(b []byte, off int64) (int, error) {
	size := int64(d.pageSize)
	for id := off / size; off >= 2*size && id < (off+int64(len(b)))/size; id++ {
		d.written[uint64(id)] = true
	}
	d.meta = d.meta || off < 2*size && len(b) == d.pageSize // and no note
	d.put(b, off)
	return d.file.WriteAt(b, off)
}

// Sync is also that between pages and meta page, where there is no room for a seal.
func (d *tornDisk) Sync() error {
	if d.meta {
		d.judge()
	} else {
		d.plain++
	}
	d.settle()
	return d.sync()
}

func (d *tornDisk) put(b []byte, off int64) {
	write := len(d.pending)
	if n := int(off) + len(b); n > len(d.all) {
		d.all = append(d.all, make([]byte, n-len(d.all))...)
	}
	copy(d.all[off:], b)
	for at := 0; at < len(b); {
		end := min(len(b), at+sealSector-(int(off)+at)%sealSector)
		d.pending = append(d.pending, tornPart{int(off) + at, bytes.Clone(b[at:end]), write})
		at = end
	}
}

func (d *tornDisk) settle() {
	if d.meta {
		d.written = map[uint64]bool{}
	}
	d.durable, d.pending, d.meta = bytes.Clone(d.all), nil, false
}

// image shows the disk with some of what is on its way.
func (d *tornDisk) image(parts []tornPart, keep func(n int, p tornPart) bool, show func(b []byte)) {
	for n, p := range parts {
		if keep(n, p) {
			copy(d.scratch[p.at:], p.bytes)
		}
	}
	show(d.scratch)
	for _, p := range parts {
		clear(d.scratch[p.at : p.at+len(p.bytes)])
		if p.at < len(d.durable) {
			copy(d.scratch[p.at:p.at+len(p.bytes)], d.durable[p.at:])
		}
	}
}

// reach tells the pages that a meta page needs.
func (d *tornDisk) reach(b []byte) (*pageTree, []uint64) {
	tree, err := readMetas(bytes.NewReader(b))
	if err != nil {
		d.t.Fatal(err)
	}
	tree.seen = make([]uint64, tree.high/64+1)
	if tree.freelist != noFreelist {
		tree.vetFreelist(false)
		d.lists++
	}
	if tree.walk(tree.root, keyRange{}, 0); len(tree.problems) > 0 {
		d.t.Errorf("transaction %d: %v", tree.meta.txid, tree.problems)
	}
	return tree, tree.seen
}

func has(seen []uint64, id uint64) bool {
	return id/64 < uint64(len(seen)) && seen[id/64]&(1<<(id%64)) != 0
}

// judge makes the images of one commit.
func (d *tornDisk) judge() {
	d.commits++
	parts := d.pending
	before, needed := d.reach(d.durable)
	after, wanted := d.reach(d.all)
	if after.meta.txid != before.meta.txid+1 {
		d.t.Errorf("transaction %d comes after %d", after.meta.txid, before.meta.txid)
	}
	for id := range after.high {
		if has(needed, id) && d.written[id] {
			d.t.Errorf("transaction %d has written page %d, which the one before needs", after.meta.txid, id)
		}
		if d.written[id] && !has(wanted, id) { // a later transaction that fails might write it, and then the seal would not fit
			d.t.Errorf("transaction %d has written page %d, which it does not need", after.meta.txid, id)
		}
		if has(wanted, id) && !has(needed, id) && !d.written[id] {
			d.t.Errorf("transaction %d needs page %d, which has not been written", after.meta.txid, id)
		}
	}
	d.scratch = append(append(d.scratch[:0], d.durable...), make([]byte, len(d.all)-len(d.durable))...)
	touched := map[uint64]bool{}
	for _, p := range parts {
		touched[uint64(p.at/d.pageSize)] = true
	}
	d.imagine(parts, func(what string, keep func(n int, p tornPart) bool) {
		d.image(parts, keep, func(b []byte) {
			d.images++
			tree, err := readMetas(bytes.NewReader(b))
			if err != nil {
				d.t.Errorf("transaction %d, %s: %v", after.meta.txid, what, err)
				return
			}
			same, pages := d.all, wanted
			switch tree.meta.txid {
			case before.meta.txid:
				same, pages = d.durable, needed
				d.older++
			case after.meta.txid:
				d.newer++
			default:
				d.t.Errorf("transaction %d, %s: %d counts", after.meta.txid, what, tree.meta.txid)
				return
			}
			for id := range touched {
				at := int(id) * d.pageSize
				if has(pages, id) && !bytes.Equal(b[at:at+d.pageSize], same[at:at+d.pageSize]) {
					d.t.Errorf("transaction %d, %s: %d counts, and page %d is not its", after.meta.txid, what, tree.meta.txid, id)
				}
			}
			if tree.torn != nil {
				d.retreat(what, b, tree)
			}
		})
	})
	if all, err := readMetas(bytes.NewReader(d.all)); err != nil || all.meta.txid != after.meta.txid {
		d.t.Errorf("transaction %d does not count when it is on the disk (%v)", after.meta.txid, err)
	}
}

// imagine asks for images: each subset of few writes, each prefix, each single part alone and missing, and some by chance.
func (d *tornDisk) imagine(parts []tornPart, look func(what string, keep func(int, tornPart) bool)) {
	var writes []int
	for _, p := range parts {
		if len(writes) == 0 || writes[len(writes)-1] != p.write {
			writes = append(writes, p.write)
		}
	}
	place := map[int]int{}
	for i, w := range writes {
		place[w] = i
	}
	if len(writes) <= 7 {
		for set := range 1 << len(writes) {
			look(fmt.Sprintf("writes %b", set), func(_ int, p tornPart) bool { return set&(1<<place[p.write]) != 0 })
		}
	}
	step := 1 + len(parts)/40
	for i := d.rnd.IntN(step); i < len(parts); i += step {
		look(fmt.Sprintf("the first %d parts", i), func(n int, _ tornPart) bool { return n < i })
		look(fmt.Sprintf("all parts from %d on", i), func(n int, _ tornPart) bool { return n >= i })
		look(fmt.Sprintf("all but part %d", i), func(n int, _ tornPart) bool { return n != i })
	}
	for share := range 12 {
		look(fmt.Sprintf("chance %d", share), func(n int, p tornPart) bool {
			return n >= len(parts)-d.pageSize/sealSector && share%2 == 0 || d.rnd.IntN(12) <= share
		})
	}
}

// retreat takes back what does not count, with a power cut on the way.
func (d *tornDisk) retreat(what string, b []byte, tree *pageTree) {
	txid, page := tree.meta.txid, tree.meta.before(tree.torn.at/int64(d.pageSize))
	if m, ok := decodeMeta(page); !ok || m.txid != txid-1 || m.root != tree.meta.root || m.pageSize != d.pageSize {
		d.t.Errorf("%s: the copy of %d is %+v", what, txid, m)
	}
	for set := range 1 << (d.pageSize / sealSector) {
		torn := bytes.Clone(b[:2*d.pageSize])
		for at := 0; at < d.pageSize; at += sealSector {
			if set&(1<<(at/sealSector)) != 0 {
				copy(torn[int(tree.torn.at)+at:], page[at:at+sealSector])
			}
		}
		again, err := readMetas(overlay{torn, b})
		if err != nil || again.meta.txid != txid || set == 1<<(d.pageSize/sealSector)-1 && again.torn != nil {
			d.t.Errorf("%s, taken back in part (%b): %d does not count (%v)", what, set, txid, err)
		}
		if set > 0 && d.rnd.IntN(8) > 0 {
			break
		}
	}
}

// An overlay is a file whose first bytes are others.
type overlay struct{ first, rest []byte }

func (o overlay) ReadAt(b []byte, off int64) (int, error) {
	if off < int64(len(o.first)) {
		return bytes.NewReader(o.first).ReadAt(b, off)
	}
	return bytes.NewReader(o.rest).ReadAt(b, off)
}

// onTornDisk opens a store whose pages have a size and whose commits are looked at.
func onTornDisk(t *testing.T, pageSize int) (*Store, *tornDisk) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.db")
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{PageSize: pageSize})
	if err == nil {
		err = errors.Join(db.Update(initBuckets), db.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	st := openTestStore(t, path)
	b, err := os.ReadFile(path)
	if err != nil || st.seals == nil {
		t.Fatalf("%v, sealed: %v", err, st.seals != nil)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	d := &tornDisk{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), file: st.handle, sync: st.seals.sync, pageSize: pageSize,
		all: b, durable: bytes.Clone(b), written: map[uint64]bool{}}
	maintainTest(t, st, func(tx *bbolt.Tx) error { // in the writer; nothing is committed
		st.seals.file, st.seals.sync = d, d.Sync
		return errRefused
	})
	return st, d
}

var errRefused = errors.New("nothing is to be committed")

func maintainTest(t *testing.T, st *Store, fn func(tx *bbolt.Tx) error) {
	t.Helper()
	if err := st.maintain(t.Context(), fn); err != nil && !errors.Is(err, errRefused) {
		t.Fatal(err)
	}
}

// Whatever part of a commit the power leaves: what counts is exactly that commit, or exactly the one before.
func TestCommitIsWholeOrTakenBack(t *testing.T) {
	t.Parallel()
	for _, pageSize := range []int{1024, 4096} {
		t.Run(fmt.Sprint(pageSize), func(t *testing.T) {
			t.Parallel()
			st, d := onTornDisk(t, pageSize)
			up := mustUpkeep(t, st)
			live := map[string]int64{}
			for i := range 120 {
				d.step(st, up, live, i)
				if t.Failed() {
					t.Fatalf("step %d", i)
				}
			}
			maintainTest(t, st, func(*bbolt.Tx) error { return errRefused }) // the writer is at rest
			onDisk, err := os.ReadFile(st.Path)
			if err != nil || !bytes.Equal(onDisk[:len(d.all)], d.all) || len(bytes.Trim(onDisk[len(d.all):], "\x00")) > 0 {
				t.Errorf("bbolt has written past the seal (%v)", err)
			}
			t.Logf("%d commits (%d with a freelist, %d without a seal), %d images: %d as before, %d as after",
				d.commits, d.lists/2, d.plain, d.images, d.older, d.newer)
			if d.commits < 120 || d.lists == 0 || d.older == 0 || d.newer == 0 || (d.plain == 0) != (pageSize > 1024) {
				t.Error("not everything has come up")
			}
		})
	}
}

// step is one or several transactions.
func (d *tornDisk) step(st *Store, up *Maintenance, live map[string]int64, i int) {
	key := fmt.Sprintf("//pods/%s/n%d", strings.Repeat("y", d.rnd.IntN(60)), i)
	pad := strings.Repeat("x", d.rnd.IntN(1+[...]int{100, 900, 20_000}[i%3]))
	for old := range live { // any one
		switch d.rnd.IntN(3) {
		case 0:
			live[old] = mustWrite(d.t, st, OpUpdate, old, live[old], pad).Rev
		case 1:
			mustWrite(d.t, st, OpDelete, old, live[old], "")
			delete(live, old)
		}
		break
	}
	live[key] = mustWrite(d.t, st, OpCreate, key, 0, pad).Rev
	switch i % 12 {
	case 3:
		st.Found.note(damaged("nothing")) // commits write the freelist
	case 5:
		st.Found.Forget()
	case 7:
		if _, err := up.Compact(context.Background(), st.Revision()-20); err != nil && st.Revision() > 20 {
			d.t.Error(err)
		}
	case 9:
		maintainTest(d.t, st, func(tx *bbolt.Tx) error { return d.shake(tx, i) })
	}
	if i == 60 && d.pageSize == 1024 { // a small file will do; more scattered pages than a list has room for
		for turn := range 3 {
			maintainTest(d.t, st, func(tx *bbolt.Tx) error { return scatter(tx, d.pageSize, turn) })
		}
	}
}

// scatter fills a bucket whose pages hold two keys each (bbolt's least), then writes every other page anew, and into the holes that
// they leave the others.
func scatter(tx *bbolt.Tx, pageSize, turn int) error {
	b, err := tx.CreateBucketIfNotExists([]byte("wide"))
	for n := range 3 * pageSize {
		if turn == 0 || n/2%2 == turn-1 {
			err = errors.Join(err, b.Put(fmt.Appendf(nil, "%06d", n), bytes.Repeat([]byte{byte(turn)}, pageSize*2/3)))
		}
	}
	return err
}

// shake lets a bucket of its own, many small buckets or a deep tree grow and shrink.
func (d *tornDisk) shake(tx *bbolt.Tx, i int) error {
	if b := tx.Bucket([]byte("shaken")); b != nil && d.rnd.IntN(4) == 0 {
		return tx.DeleteBucket([]byte("shaken"))
	}
	b, err := tx.CreateBucketIfNotExists([]byte("shaken"))
	if err != nil {
		return err
	}
	few := d.rnd.IntN(2)
	for n := range 1200 {
		k := fmt.Appendf(nil, "%06d", n*7)
		switch d.rnd.IntN(2 + 40*few) {
		case 0:
			err = errors.Join(err, b.Put(k, make([]byte, d.rnd.IntN(900))))
		case 1:
			err = errors.Join(err, b.Delete(k))
		}
	}
	for n := range 60 { // the tree of buckets gets branches, and loses them
		name := fmt.Appendf(nil, "small-%d-%s", n, strings.Repeat("z", 40))
		if i%24 == 9 {
			_, e := tx.CreateBucketIfNotExists(name)
			err = errors.Join(err, e)
		} else if tx.Bucket(name) != nil {
			err = errors.Join(err, tx.DeleteBucket(name))
		}
	}
	return err
}

// tear takes some bytes out of a page that the newest commit has written, and the note that it is on the disk.
func tear(t *testing.T, path string, noted bool) (before, after uint64) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := readMetas(bytes.NewReader(b))
	if err != nil || tree.torn != nil {
		t.Fatal(err, tree.torn)
	}
	m := tree.meta
	runs, _, ok := decodeRuns(b[int(m.at)+runsAt:int(m.at)+m.pageSize], m.high)
	if !ok || len(runs) == 0 {
		t.Fatal("the newest commit has no seal")
	}
	b[int(runs[0].first)*m.pageSize+pageHeaderSize+5] ^= 1
	if !noted {
		binary.NativeEndian.PutUint64(b[m.pageSize-int(m.at)+noteAt:], 0)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return m.txid - 1, m.txid
}

// copyOpen copies the file of a store that goes on having it open, as kill -9 or a power cut leaves it.
func copyOpen(t *testing.T, st *Store) (path string) {
	t.Helper()
	b, err := os.ReadFile(st.Path)
	if err != nil {
		t.Fatal(err)
	}
	return writeDataFile(t, b)
}

// What a power cut has left of a commit is taken back, told once, and built upon; check and defrag see what a start would see.
func TestTornCommitIsTakenBack(t *testing.T) {
	t.Parallel()
	st := openTestStore(t, filepath.Join(t.TempDir(), "a.db"))
	for i := range 30 {
		mustWrite(t, st, OpCreate, fmt.Sprintf("//pods/x/n%d", i), 0, "a")
	}
	for _, use := range []string{"open", "check", "defrag"} {
		path := copyOpen(t, st)
		tear(t, path, false)
		torn, _ := os.ReadFile(path)
		rep, err := Check(path)
		if err != nil || len(rep.Problems) > 0 || rep.Revision != 29 {
			t.Errorf("check: %v, %+v", err, rep)
		}
		if same, _ := os.ReadFile(path); !bytes.Equal(same, torn) {
			t.Error("check has changed the file")
		}
		if use == "defrag" {
			if err := Defrag(path, nil); err != nil {
				t.Error(err)
			}
		}
		for again := range 3 {
			var told []string
			st, err := Open(path, Options{Warn: func(what string) { told = append(told, what) }})
			if err != nil {
				t.Fatal(err)
			}
			if said := strings.Contains(strings.Join(told, "\n"), "taken back"); said != (again == 0 && use != "defrag") {
				t.Errorf("%s %d: %q", use, again, told)
			}
			if st.Revision() != 29+int64(again) {
				t.Errorf("%s %d: revision %d", use, again, st.Revision())
			}
			mustWrite(t, st, OpCreate, fmt.Sprintf("//pods/x/again-%d", again), 0, "b")
			if st.Close(); again < 2 {
				continue
			}
			if rep, err := Check(path); err != nil || len(rep.Problems) > 0 || rep.Objects != 32 {
				t.Errorf("%s: %v, %+v", use, err, rep)
			}
		}
	}
}

// A commit that is known to have come to the disk is never taken back: what does not fit it is damage, and told as such.
func TestDamageIsNotTakenForAPowerCut(t *testing.T) {
	t.Parallel()
	st := openTestStore(t, filepath.Join(t.TempDir(), "a.db"))
	for i := range 30 {
		mustWrite(t, st, OpCreate, fmt.Sprintf("//pods/x/n%d", i), 0, "a")
	}
	path := copyOpen(t, st)
	_, txid := tear(t, path, true)
	b, _ := os.ReadFile(path)
	if tree, err := readMetas(bytes.NewReader(b)); err != nil || tree.torn != nil || tree.meta.txid != txid {
		t.Errorf("%+v, %v", tree, err)
	}
	if rep, err := Check(path); err == nil && len(rep.Problems) == 0 {
		t.Error("nothing is found")
	}
	if _, err := Open(path, Options{}); err == nil {
		t.Log("opened beside the damage")
	} else if after, _ := os.ReadFile(path); !bytes.Equal(after, b) {
		t.Error("refused, and changed")
	}
}

// A note is of one commit: one that is left of a commit which was lost does not stand for the commit that took its place.
func TestNoteIsOfOneCommit(t *testing.T) {
	t.Parallel()
	st := openTestStore(t, filepath.Join(t.TempDir(), "a.db"))
	mustWrite(t, st, OpCreate, "//pods/x/a", 0, "a")
	mustWrite(t, st, OpCreate, "//pods/x/lost", 0, "a")
	path := copyOpen(t, st)
	b, _ := os.ReadFile(path)
	tree, err := readMetas(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	slot, size := int(tree.meta.at), tree.pageSize
	clear(b[slot : slot+size])
	note := binary.NativeEndian.Uint64(b[size-slot+noteAt:])
	if note != tree.meta.mark || note == 0 {
		t.Fatalf("noted is %x, not %x", note, tree.meta.mark)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if st = openTestStore(t, path); st.Revision() != 1 {
		t.Fatalf("revision %d", st.Revision())
	}
	mustWrite(t, st, OpCreate, "//pods/x/other", 0, "b")
	path = copyOpen(t, st)
	tear(t, path, false)
	b, _ = os.ReadFile(path)
	binary.NativeEndian.PutUint64(b[size-slot+noteAt:], note)
	if again, err := readMetas(bytes.NewReader(b)); err != nil || again.torn == nil || again.torn.txid != tree.meta.txid {
		t.Errorf("%+v, %v", again, err)
	}
}

// Commits of programs that know nothing of seals count, in whatever order they and ours come, and so does a copy that bbolt makes.
func TestCommitsOfOthersCount(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	objects, note := 0, int64(0)
	others := func() {
		db, err := bbolt.Open(path, 0o600, dbOptions())
		if err != nil {
			t.Fatal(err)
		}
		note++
		err = db.Update(func(tx *bbolt.Tx) error { return putMetaInt(tx, "others", note) })
		if err := errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
	}
	copied := func() {
		db, err := bbolt.Open(path, 0o600, dbOptions())
		if err != nil {
			t.Fatal(err)
		}
		odd := func() (odd bool) {
			db.View(func(tx *bbolt.Tx) error { odd = tx.ID()%2 == 1; return nil })
			return odd
		}
		if odd() { // a copy begins with the newest meta page, where an even transaction's is looked for
			err = db.Update(func(*bbolt.Tx) error { return nil })
		}
		err = errors.Join(err, db.View(func(tx *bbolt.Tx) error { return tx.CopyFile(path+".copy", 0o600) }))
		if err := errors.Join(err, db.Close(), os.Rename(path+".copy", path)); err != nil {
			t.Fatal(err)
		}
	}
	ours := func() {
		st, err := Open(path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		mustWrite(t, st, OpCreate, fmt.Sprintf("//pods/x/n%d", objects), 0, "a")
		objects++
		killed := copyOpen(t, st)
		st.Close()
		if err := os.Rename(killed, path); err != nil {
			t.Fatal(err)
		}
	}
	torn := func() { // a commit that nobody was told of
		ours()
		before, _ := tear(t, path, false)
		b, _ := os.ReadFile(path)
		if tree, err := readMetas(bytes.NewReader(b)); err != nil || tree.torn == nil || tree.meta.txid > before {
			t.Fatalf("what is torn counts: %v", err)
		}
		objects--
	}
	ours()
	rnd := rand.New(rand.NewPCG(rand.Uint64(), 1))
	for range 60 {
		// Others believe a torn commit: an apilet that knows of seals has to open the file before they do.
		turn := rnd.IntN(4)
		[]func(){ours, others, copied, func() { torn(); ours() }}[turn]()
		var found int64
		verdict, err := vetFile(path, true, nil, func(p *pages) error {
			meta, _ := p.bucket(bucketMeta)
			found = metaInt(meta, "others")
			return nil
		})
		rep, checked := Check(path)
		if err != nil || checked != nil || verdict.torn || len(rep.Problems) > 0 || rep.Objects != int64(objects) || found != note {
			t.Fatalf("after turn %d: %v, %v, %+v; %d objects and note %d, want %d and %d", turn, err, checked, rep, rep.Objects, found, objects, note)
		}
	}
}

// A fullDisk has no room any more from one of the writes of a commit on.
type fullDisk struct {
	io.WriterAt
	pages, metas []int64 // where was written, of a commit
	room         int     // writes until it is full
}

func (d *fullDisk) WriteAt(b []byte, off int64) (int, error) {
	if d.room--; d.room < 0 {
		return 0, syscall.ENOSPC
	}
	switch {
	case off >= 2*livePage:
		d.pages = append(d.pages, off)
	case len(b) == livePage: // and no note
		d.metas = append(d.metas, off)
	}
	return d.WriterAt.WriteAt(b, off)
}

// TestNeighboursAreWrittenAtOnce: a commit writes pages that lie one behind the other with one call, and where one of the calls fails the
// meta page is not written.
func TestNeighboursAreWrittenAtOnce(t *testing.T) {
	st := openTestStore(t, filepath.Join(t.TempDir(), "a.db"))
	disk := &fullDisk{WriterAt: st.seals.file}
	st.seals.file = disk
	big := strings.Repeat("x", 3*heldMax/2) // more than is held
	for turn, payloads := range [][]string{{"small"}, slices.Repeat([]string{strings.Repeat("x", livePage/3)}, 50), {big}} {
		for room, err := 0, ErrDiskFull; err != nil; room++ {
			before := st.Revision()
			disk.pages, disk.metas, disk.room = nil, nil, room
			var members []*pendingWrite
			for i, payload := range payloads {
				e := &pendingWrite{answer: make(chan struct{}, 1)}
				e.Key = fmt.Sprintf("//pods/x/%d-%d", turn, i)
				e.JSON, e.RevAt = storeDoc(payload)
				members = append(members, e)
			}
			st.commitBatch(members)
			err = members[0].err
			if err != nil && (!errors.Is(err, ErrDiskFull) || len(disk.metas) > 0 || st.Revision() != before) {
				t.Fatalf("room for %d writes: %v, %d meta pages, revision %d after %d", room, err, len(disk.metas), st.Revision(), before)
			}
		}
		calls, runs, pages := len(disk.pages), len(st.seals.runs), uint64(0)
		for _, run := range st.seals.runs {
			pages += run.count
		}
		if len(disk.metas) != 1 || calls < runs || payloads[0] != big && calls != runs || turn == 1 && pages < 20 {
			t.Errorf("%d calls and %d meta pages for %d pages in %d runs", calls, len(disk.metas), pages, runs)
		}
		if rec, err := st.Get(fmt.Sprintf("//pods/x/%d-0", turn)); err != nil || !bytes.Contains(rec.JSON, []byte(payloads[0])) {
			t.Errorf("%v, %d bytes", err, len(rec.JSON))
		}
	}
	disk.room = math.MaxInt
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	if rep, err := Check(st.Path); err != nil || len(rep.Problems) > 0 || rep.Objects != 52 {
		t.Errorf("%v, %+v", err, rep)
	}
}

// BenchmarkSeal is what a seal costs beside the disk: commits with one and without one, and no sync in either.
func BenchmarkSeal(b *testing.B) {
	for _, writers := range []int{1, 16, 64} {
		for _, sealed := range []bool{false, true} {
			b.Run(fmt.Sprintf("writers=%d/sealed=%v", writers, sealed), func(b *testing.B) {
				b.ReportAllocs()
				st := openTestStore(b, filepath.Join(b.TempDir(), "a.db"))
				st.seals.sync = func() error { return nil }
				st.Db.NoSync = !sealed
				benchWriters(b, writers, func(i int) error {
					_, err := st.Commit(context.Background(), Change{Op: OpCreate, Key: benchKey(i), JSON: benchRecord, RevAt: benchRevAt})
					return err
				})
			})
		}
	}
}
