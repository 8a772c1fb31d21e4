package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestDamageUnderAServingStore damages the file of an open store. Objects on damaged pages are
// reported as damaged. Everything else must still be readable and writable. The store must not
// return wrong content, panic, or block.
//
//	APILET_DAMAGES=10000 go test -run TestDamageUnderAServingStore -v ./internal/store   # the long version, with counts
func TestDamageUnderAServingStore(t *testing.T) { runCampaign(t, "TestLiveDamageChild", 50) }

// TestLiveDamageChild is not a test. TestDamageUnderAServingStore runs it in a child process.
func TestLiveDamageChild(t *testing.T) {
	rounds, _ := strconv.Atoi(os.Getenv("APILET_DAMAGE_CHILD"))
	if rounds == 0 {
		t.Skip("for another test")
	}
	if runtime.GOOS == "windows" {
		t.Skip("a file in use cannot be written")
	}
	seed := rand.Uint64()
	if given := os.Getenv("APILET_DAMAGE_SEED"); given != "" {
		seed, _ = strconv.ParseUint(given, 10, 64)
	}
	fmt.Printf("seed %d\n", seed)
	d := &liveDamage{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), counts: map[string]int{}}
	d.prepare()
	for i := range rounds {
		d.round(i)
		if t.Failed() {
			break
		}
	}
	fmt.Printf("summary %d times damaged while open: %v\n", rounds, d.counts)
}

type liveDamage struct {
	t      *testing.T
	rnd    *rand.Rand
	sound  []byte            // a file whose trees have branch pages
	older  []byte            // the same file, some commits earlier
	truth  map[string]string // results of get for the sound file
	counts map[string]int

	what  string
	st    *Store
	now   map[string]string   // the expected objects after this round's writes
	under map[string][]uint64 // the pages on the path to each object
}

// prepare creates the file for all rounds.
func (d *liveDamage) prepare() {
	path := filepath.Join(d.t.TempDir(), "a.db")
	st := openTestStore(d.t, path)
	st.File.Db.NoSync = true
	for i := range 400 {
		rev := mustWrite(d.t, st, OpCreate, fmt.Sprintf("//pods/%080d/n%d", i%7, i), 0, strings.Repeat("x", i*3)).Rev
		if i%3 == 0 {
			mustWrite(d.t, st, OpUpdate, fmt.Sprintf("//pods/%080d/n%d", i%7, i), rev, "again")
		}
	}
	d.older, _ = os.ReadFile(path)
	mustUpkeep(d.t, st).Compact(d.t.Context(), 300)
	for i := range 50 {
		mustWrite(d.t, st, OpCreate, fmt.Sprintf("//pods/y/n%d", i), 0, "late")
	}
	d.truth = map[string]string{}
	for i := range 450 {
		key := fmt.Sprintf("//pods/%080d/n%d", i%7, i)
		if i >= 400 {
			key = fmt.Sprintf("//pods/y/n%d", i-400)
		}
		rec, err := st.Get(key)
		if err != nil {
			d.t.Fatal(err)
		}
		d.truth[key] = string(rec.JSON)
	}
	var used int64
	st.readSnapshot(func(s *snapshot) error { used = s.Size(); return nil })
	st.Close()
	d.sound, _ = os.ReadFile(path)
	d.sound = d.sound[:used]
}

// chart finds the pages on the path to each object, before any is damaged.
func (d *liveDamage) chart() {
	d.under = map[string][]uint64{}
	err := d.st.readSnapshot(func(s *snapshot) error {
		for key := range d.now {
			state, err := decodeKeyState([]byte(key), s.keys.Get([]byte(key)))
			if err != nil {
				return err
			}
			d.under[key] = slices.Concat(s.keys.PagesTo([]byte(key)), s.revs.PagesTo(revKey(state.rev)), []uint64{s.Top()})
		}
		return nil
	})
	if err != nil {
		d.t.Fatal(err)
	}
}

// damage changes a page of the open file and returns its number.
func (d *liveDamage) damage(file *os.File) uint64 {
	id := d.rnd.IntN(len(d.sound) / livePage)
	if d.rnd.IntN(2) == 0 { // a page that is in use
		for _, under := range d.under {
			id = int(under[d.rnd.IntN(len(under))])
			break
		}
	}
	page := make([]byte, livePage)
	file.ReadAt(page, int64(id)*livePage)
	kind := d.rnd.IntN(7)
	switch kind {
	case 0:
		clear(page)
	case 1: // the content of another page
		from := d.rnd.IntN(len(d.sound) / livePage)
		copy(page, d.sound[from*livePage:])
	case 2: // an earlier content
		if (id+1)*livePage <= len(d.older) {
			copy(page, d.older[id*livePage:])
		}
	case 3:
		page[d.rnd.IntN(livePage)] ^= 1 << d.rnd.IntN(8)
	case 4:
		at := d.rnd.IntN(8) * 512
		clear(page[at : at+512])
	case 5: // a branch then refers to itself
		n := max(1, int(binary.NativeEndian.Uint16(page[10:])))
		at := 16 + min(d.rnd.IntN(n), 200)*16 + 8 // offset of a branch's element
		binary.NativeEndian.PutUint64(page[at:], uint64(id))
	case 6: // it then includes its neighbours
		binary.NativeEndian.PutUint32(page[12:], binary.NativeEndian.Uint32(page[12:])+1+uint32(d.rnd.IntN(3)))
	}
	if _, err := file.WriteAt(page, int64(id)*livePage); err != nil {
		d.t.Fatal(err)
	}
	d.what += fmt.Sprintf(" page %d kind %d", id, kind)
	return uint64(id)
}

func (d *liveDamage) round(i int) {
	path := filepath.Join(d.t.TempDir(), "a.db")
	if err := os.WriteFile(path, d.sound, 0o600); err != nil {
		d.t.Fatal(err)
	}
	defer os.Remove(path)
	d.what, d.now = "", map[string]string{}
	for key, json := range d.truth {
		d.now[key] = json
	}
	st, err := Open(path, Options{Fatal: func(err error) { d.t.Errorf("round %d:%s: the end of the process: %v", i, d.what, err) }})
	if err != nil {
		d.t.Fatal(err)
	}
	st.File.Db.NoSync = true
	d.st = st
	up := mustUpkeep(d.t, st)
	if d.rnd.IntN(2) == 0 {
		d.writes(20, false) // so that the file has no freelist
	}
	d.chart()
	file, _ := os.OpenFile(path, os.O_RDWR, 0)
	defer file.Close()
	var ids []uint64
	for range 1 + d.rnd.IntN(3) {
		ids = append(ids, d.damage(file))
	}
	fmt.Printf("round %d:%s\n", i, d.what)
	d.reads(ids)
	d.writes(40, true)
	_, err = up.Compact(context.Background(), st.Revision())
	d.mayFail("compaction", err)
	d.writes(20, true)
	rep, err := up.Scrub(context.Background())
	d.mayFail("scrub", err)
	d.backup(up)
	d.watch()
	found := len(rep.Problems) > 0 || st.File.Damage.Count() > 0
	d.list(found)
	d.listSound()
	d.discards()
	d.listSound()
	d.reopen(path, found)
}

// mayFail reports an error unless err is nil or ErrDamaged.
func (d *liveDamage) mayFail(doing string, err error) bool {
	d.t.Helper()
	switch {
	case err == nil:
		d.counts[doing]++
	// an earlier root is sound and has an earlier newest revision
	case errors.Is(err, ErrCompacted) && strings.Contains(d.what, "kind 2"):
		d.counts[doing+" with an older root"]++
	case !errors.Is(err, ErrDamaged):
		d.t.Errorf("%s: %s: %v", d.what, doing, err)
	case !strings.Contains(err.Error(), d.st.File.Path):
		d.t.Errorf("%s: %s: %v does not name the file", d.what, doing, err)
	default:
		d.counts[doing+" refused"]++
		if d.st.File.Damage.First() == "" && d.st.File.Refusal.Load() == nil {
			d.t.Errorf("%s: %s: %v is not noted", d.what, doing, err)
		}
	}
	return err == nil
}

// reads gets all objects. Objects that are not on a damaged page must be readable.
func (d *liveDamage) reads(ids []uint64) {
	for key, want := range d.now {
		hit := slices.ContainsFunc(d.under[key], func(id uint64) bool { return slices.Contains(ids, id) })
		rec, err := d.st.Get(key)
		switch {
		case err == nil && string(rec.JSON) != want && !hit:
			d.t.Errorf("%s: %s is %s, want %s", d.what, key, rec.JSON, want)
		case err != nil && !hit && d.truth[key] == want:
			d.t.Errorf("%s: %s lies elsewhere: %v", d.what, key, err)
		case errors.Is(err, ErrNotFound):
			d.counts["hidden until the scrub"]++
			if strings.Count(d.what, "kind") == 1 {
				d.counts["hidden by"+d.what[len(d.what)-7:]]++
			}
		default:
			d.mayFail("get", err)
		}
	}
}

// writes creates, updates and deletes objects. A failed write must have no effect.
func (d *liveDamage) writes(n int, after bool) {
	keys := make([]string, 0, len(d.now))
	for key := range d.now {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for i := range n {
		key := keys[d.rnd.IntN(len(keys))]
		rec, err := d.st.Get(key)
		op := ChangeOp(d.rnd.IntN(3))
		if op == OpCreate {
			key = fmt.Sprintf("//pods/new/%d-%d", d.st.Revision(), i)
		} else if err != nil {
			continue
		}
		rec, err = storeWrite(d.st, op, key, rec.Rev, strings.Repeat("w", d.rnd.IntN(900)))
		if after {
			d.mayFail("write", err)
		}
		switch {
		case err != nil:
		case op == OpDelete:
			delete(d.now, key)
		default:
			d.now[key] = string(rec.JSON)
		}
		d.same(key)
	}
}

// same checks that the object has not been modified since the last write. Reading it may also fail.
func (d *liveDamage) same(key string) {
	d.t.Helper()
	want, live := d.now[key]
	rec, err := d.st.Get(key)
	if err == nil && (!live || string(rec.JSON) != want) && !strings.Contains(d.what, "kind 2") {
		d.t.Errorf("%s: %s is %s, want %s (live %v)", d.what, key, rec.JSON, want, live)
	}
}

func (d *liveDamage) backup(up *Maintenance) {
	dest := filepath.Join(d.t.TempDir(), "copy.db")
	err := up.Backup(context.Background(), dest, nil)
	defer os.Remove(dest)
	if d.mayFail("backup", err) {
		if rep, err := Check(dest); err != nil || len(rep.Problems) > 0 {
			d.t.Errorf("%s: the backup: %v %v", d.what, err, rep.Problems)
		}
	} else if left, _ := os.ReadDir(filepath.Dir(dest)); len(left) > 0 {
		d.t.Errorf("%s: the failed backup left %v", d.what, left)
	}
}

func (d *liveDamage) watch() {
	for at := d.st.Compacted(); at < d.st.Revision(); {
		_, upTo, err := d.st.Events("//pods/", at, 100, nil)
		if !d.mayFail("events", err) {
			break
		}
		at = upTo
	}
	for at := d.st.Compacted(); at < d.st.Revision(); {
		_, upTo, err := d.st.EventsOf(Everything, nil, at, 100, nil)
		if !d.mayFail("history", err) {
			break
		}
		if upTo <= at {
			d.t.Fatalf("%s: the history goes from %d to %d", d.what, at, upTo)
		}
		at = upTo
	}
}

// listSound lists the objects that are not damaged. They must be unchanged, and the list must end.
func (d *liveDamage) listSound() {
	c, last := &Chunk{}, ""
	for sp := (Span{Prefix: "//pods/", SkipDamaged: true}); ; sp.Rev, sp.Start = c.Rev, c.Next {
		if !d.mayFail("list of what is sound", d.st.Chunk(sp, c)) {
			return
		}
		for i := range c.Records {
			rec := &c.Records[i]
			if want := d.now[rec.Key]; string(rec.JSON) != want && !strings.Contains(d.what, "kind 2") {
				d.t.Errorf("%s: %s is listed as %s, want %s", d.what, rec.Key, rec.JSON, want)
			}
			if rec.Key <= last {
				d.t.Fatalf("%s: %s comes after %s", d.what, rec.Key, last)
			}
			last = rec.Key
		}
		if c.Next == "" {
			return
		}
	}
}

// discards deletes damaged objects. This must not affect other objects.
func (d *liveDamage) discards() {
	c := &Chunk{}
	if d.st.Chunk(Span{Prefix: "//pods/", SkipDamaged: true, Items: 1000}, c) != nil {
		return
	}
	for _, key := range c.Damaged[:min(20, len(c.Damaged))] {
		_, err := d.st.Commit(context.Background(), Change{Op: OpDelete, Key: key, Damaged: true})
		// a search through damaged pages may return a different result than a walk
		if errors.Is(err, ErrNotFound) || errors.Is(err, ErrConflict) {
			continue
		}
		if d.mayFail("discard", err) {
			delete(d.now, key)
			if _, err := d.st.Get(key); !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrDamaged) {
				d.t.Errorf("%s: %s was discarded: %v", d.what, key, err)
			}
		}
	}
}

// list lists all objects. They must be unchanged, unless there is an error or the scrub has found a
// problem.
func (d *liveDamage) list(found bool) {
	shown, err := listShown(d.st)
	if d.mayFail("list", err) && len(shown) != len(d.now) && !found {
		d.t.Errorf("%s: %d of %d objects are listed, and nothing is found", d.what, len(shown), len(d.now))
	}
}

// reopen stops the store and opens the file again. The open must either fail without changing the
// file, or return all written objects.
func (d *liveDamage) reopen(path string, found bool) {
	crash := d.rnd.IntN(2) == 0
	if !crash {
		d.mayFail("close", d.st.Close())
	}
	before, _ := os.ReadFile(path)
	if crash {
		d.st.Close()
		os.WriteFile(path, before, 0o600)
	}
	if d.st.File.Failed() { // it still holds the lock
		other := filepath.Join(filepath.Dir(path), "b.db")
		os.WriteFile(other, before, 0o600)
		defer os.Remove(other)
		path = other
	}
	st, err := Open(path, Options{Fatal: func(err error) { d.t.Errorf("%s: fatal: %v", d.what, err) }})
	if err != nil {
		d.counts["reopening refused"]++
		if after, _ := os.ReadFile(path); !bytes.Equal(after, before) {
			d.t.Errorf("%s: refused, and changed: %v", d.what, err)
		}
		return
	}
	defer st.Close()
	d.counts["reopened"]++
	d.st = st
	d.list(found)
}

// TestReadsGoOnWithoutMetaPages checks that readers look for a valid meta page before they call
// bbolt, which would panic while holding its locks. They notice damage and repair immediately.
func TestReadsGoOnWithoutMetaPages(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a file in use cannot be written")
	}
	path := filepath.Join(t.TempDir(), "db")
	st := openTestStore(t, path)
	rev := mustWrite(t, st, OpCreate, "//pods/x/a", 0, "").Rev
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	sound := make([]byte, 2*st.File.PageSize())
	if _, err := file.ReadAt(sound, 0); err != nil {
		t.Fatal(err)
	}
	for round := range 20 {
		for _, pages := range [][]byte{make([]byte, len(sound)), sound} {
			if _, err := file.WriteAt(pages, 0); err != nil {
				t.Fatal(err)
			}
			if got, err := st.Get("//pods/x/a"); err != nil || got.Rev != rev {
				t.Fatalf("round %d: revision %d, %v", round, got.Rev, err)
			}
			lost := &pages[0] != &sound[0]
			if found := st.File.Damage.First(); strings.Contains(found, "the meta pages, are lost") != lost {
				t.Fatalf("round %d: lost: %v, found: %q", round, lost, found)
			}
			st.File.Damage.Clear()
		}
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Get("//pods/x/a"); !errors.Is(err, errClosed) {
		t.Errorf("closed: %v", err)
	}
}
