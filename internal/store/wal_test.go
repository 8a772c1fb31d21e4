package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"apilet/internal/store/boltfile"

	"apilet/internal/apitest"
)

const powerSector = 512

// A cutFile simulates the contents of a file after a power failure. Any sector may contain the data
// of the last sync or any later data.
type cutFile struct{ versions [][]byte }

func (c *cutFile) saw(b []byte) { c.versions = append(c.versions, b) }

// synced removes the versions that have been replaced by a sync. at is the number of versions when
// the sync was started.
func (c *cutFile) synced(at int) { c.versions = c.versions[at:] }

// image returns a possible content of the file after the power failure.
func (c *cutFile) image(rnd *rand.Rand) []byte {
	last := len(c.versions) - 1
	newest := c.versions[last]
	way, one := rnd.IntN(6), rnd.IntN(last+1)
	b := make([]byte, len(newest))
	for at := 0; at < len(b); at += powerSector {
		v := 0
		switch way {
		case 0:
		case 1:
			v = last
		case 2:
			v = one
		case 3:
			v = rnd.IntN(last + 1)
		case 4:
			v = last * rnd.IntN(2)
		case 5:
			v = min(last, one+rnd.IntN(2))
		}
		end := min(at+powerSector, len(b))
		if from := c.versions[v]; at < len(from) {
			copy(b[at:end], from[at:])
		}
	}
	if way == 0 {
		return b[:len(c.versions[0])]
	}
	return b
}

// A cutDisk simulates the disk of a store with a log.
type cutDisk struct {
	t     *testing.T
	rnd   *rand.Rand // for power failures; guarded by mu
	steps *rand.Rand // for writes
	st    *Store
	// guards the fields below. A commit may sync at the same time as bbolt and a checkpoint.
	mu        sync.Mutex
	data, log cutFile
	rate      int // one of this many moments is checked
	images    int
	replayed  int
	skipped   int               // syncs that omitted pages
	acked     map[string]string // objects that clients know to exist
	asked     map[string]string // possible other states of unacknowledged writes
	revision  int64             // the acknowledged revision
}

// look records the contents of the files, and sometimes checks a power failure at this moment.
func (d *cutDisk) look() {
	data, err := os.ReadFile(d.st.File.Path)
	log, failed := os.ReadFile(d.st.File.Path + boltfile.LogSuffix)
	if err = errors.Join(err, failed); err != nil {
		d.t.Error(err)
		return
	}
	d.data.saw(data)
	d.log.saw(log)
	if d.rate > 0 && d.rnd.IntN(d.rate) == 0 {
		d.cut()
	}
}

func (d *cutDisk) write(under func([]byte, int64) (int, error)) func([]byte, int64) (int, error) {
	return func(b []byte, at int64) (int, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		n, err := under(b, at)
		d.look()
		return n, err
	}
}

func (d *cutDisk) sync(f *cutFile, under func() error) func() error {
	return func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.look()
		if err := under(); err != nil {
			return err
		}
		f.synced(len(f.versions) - 1)
		return nil
	}
}

// syncPages syncs all pages except for some, whose content on the disk is then undefined.
func (d *cutDisk) syncPages(under func(uint64, boltfile.PageRun) error) func(uint64, boltfile.PageRun) error {
	return func(high uint64, but boltfile.PageRun) error {
		return d.sync(&d.data, func() error {
			if err := under(high, but); err != nil || but.Count < 2 {
				return err
			}
			page := uint64(os.Getpagesize())
			last := len(d.data.versions) - 1
			b := bytes.Clone(d.data.versions[last])
			for at := but.First * page; at < min((but.First+but.Count-1)*page, uint64(len(b))); at++ {
				b[at] = 0xff
			}
			d.data.versions[last] = b
			d.skipped++
			return nil
		})()
	}
}

// cut opens a possible state of the files after a power failure at this moment.
func (d *cutDisk) cut() {
	d.images++
	path := filepath.Join(d.t.TempDir(), "a.db")
	err := errors.Join(os.WriteFile(path, d.data.image(d.rnd), 0o600), os.WriteFile(path+boltfile.LogSuffix, d.log.image(d.rnd), 0o600))
	if err != nil {
		d.t.Error(err)
		return
	}
	defer os.RemoveAll(filepath.Dir(path))
	var told []string
	putInPlace(d.t, path)
	st, err := Open(path, Options{LogBytes: 64 << 10, Warn: func(text string) { told = append(told, text) }})
	if err != nil {
		d.t.Errorf("image %d: %v", d.images, err)
		return
	}
	if text := strings.Join(told, "\n"); strings.Contains(text, "taken over from its log") && !strings.Contains(text, "; 0 commits") {
		d.replayed++
	}
	there, rev := d.read(st), st.Revision()
	if !maps.Equal(there, d.acked) && !maps.Equal(there, d.asked) {
		d.t.Errorf("image %d: %d objects, %d were acknowledged, %d were asked for; revision %d, %d was acknowledged", d.images, len(there), len(d.acked), len(d.asked), rev, d.revision)
	}
	if rev < d.revision {
		d.t.Errorf("image %d: revision %d, %d was acknowledged", d.images, rev, d.revision)
	}
	if _, err := storeWrite(st, OpCreate, "//pods/x/again", 0, "b"); err != nil {
		d.t.Error(err)
	}
	if err := st.Close(); err != nil {
		d.t.Error(err)
	}
	if rep, err := Check(path); err != nil || len(rep.Problems) > 0 || rep.Objects != int64(len(there)+1) {
		d.t.Errorf("image %d: check: %v, %+v", d.images, err, rep)
	}
}

func (d *cutDisk) read(st *Store) map[string]string {
	shown, err := listShown(st)
	if err != nil {
		d.t.Error(err)
	}
	for key, text := range shown {
		_, data, _ := strings.Cut(text, `"data":`)
		shown[key] = data
	}
	return shown
}

// attach inserts the simulation between the log and the disk, after the log exists.
func (d *cutDisk) attach() {
	maintainTest(d.t, d.st, func(*boltfile.WriteTx) error {
		w := d.st.File.Disk()
		w.Write, w.Sync = d.write(w.Write), d.sync(&d.log, w.Sync)
		w.WriteAtHead, w.SyncHead = d.write(w.WriteAtHead), d.sync(&d.log, w.SyncHead)
		w.SyncData = d.syncPages(w.SyncData)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.look()
		return errRefused
	})
}

// made returns the number of images so far.
func (d *cutDisk) made() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.images
}

// step performs one write.
func (d *cutDisk) step(live map[string]int64, i int) {
	key := fmt.Sprintf("//pods/x/n%d", i)
	op, expect := OpCreate, int64(0)
	for old, rev := range live { // take any
		switch d.steps.IntN(4) {
		case 0:
			op, key, expect = OpUpdate, old, rev
		case 1:
			op, key, expect = OpDelete, old, rev
		}
		break
	}
	pad := strings.Repeat(string(rune('a'+i%26)), d.steps.IntN(1+[...]int{100, 900, 9000, 100, 60_000}[i%5]))
	d.mu.Lock()
	d.asked = maps.Clone(d.acked)
	if d.asked[key] = fmt.Sprintf("%q}", pad); op == OpDelete {
		delete(d.asked, key)
	}
	d.mu.Unlock()
	rec := mustWrite(d.t, d.st, op, key, expect, pad)
	d.mu.Lock()
	d.acked, d.revision = maps.Clone(d.asked), rec.Rev
	d.mu.Unlock()
	if live[key] = rec.Rev; op == OpDelete {
		delete(live, key)
	}
}

// TestPowerCutOfFileAndLog simulates power failures. Any writes after the last sync may be lost or
// reordered. A start must find all acknowledged writes. Other writes must be complete or absent.
//
//	APILET_POWER_IMAGES=10000 go test -run TestPowerCutOfFileAndLog -v ./internal/store
func TestPowerCutOfFileAndLog(t *testing.T) {
	t.Parallel()
	images, _ := strconv.Atoi(os.Getenv("APILET_POWER_IMAGES"))
	if images == 0 {
		images = apitest.Rounds(500)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	d := &cutDisk{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), steps: rand.New(rand.NewPCG(seed, 2)), rate: 4, acked: map[string]string{}}
	d.st = openLogged(t, filepath.Join(t.TempDir(), "a.db"))
	mustWrite(t, d.st, OpCreate, "//pods/x/first", 0, "")
	d.acked["//pods/x/first"], d.revision = `""}`, 1
	d.asked = d.acked
	d.attach()
	up, live := mustUpkeep(t, d.st), map[string]int64{}
	for i := 0; d.made() < images && !t.Failed(); i++ {
		d.step(live, i)
		if i%15 == 14 && d.st.Revision() > 20 {
			if _, err := up.Compact(context.Background(), d.st.Revision()-10); err != nil {
				t.Error(err)
			}
		}
	}
	// no other goroutine calls look now
	maintainTest(t, d.st, func(*boltfile.WriteTx) error { return d.st.File.WaitCheckpoint() })
	d.mu.Lock()
	d.rate = 0
	d.mu.Unlock()
	t.Logf("%d images, %d with something to replay, %d checkpoints, %d of them without pages that were made ahead, revision %d", d.images, d.replayed, d.st.File.Checkpoints(), d.skipped, d.st.Revision())
	if d.replayed < images/4 || d.st.File.Checkpoints() < 10 || d.skipped < 1 {
		t.Error("not everything has come up")
	}
}

func openLogged(t testing.TB, path string) *Store {
	t.Helper()
	st, err := Open(path, Options{LogBytes: 64 << 10, Fatal: func(err error) { t.Errorf("fatal: %v", err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

// TestReplayMakesTheSameFile checks that replaying a log produces the same buckets, for all kinds
// of writes.
func TestReplayMakesTheSameFile(t *testing.T) {
	t.Parallel()
	st := openTestStore(t, filepath.Join(t.TempDir(), "a.db"))
	up := mustUpkeep(t, st)
	for i := range 60 {
		rec, err := st.Commit(t.Context(), change(OpCreate, fmt.Sprintf("//pods/x/n%d", i), 0, Author{User: fmt.Sprint("u", i%7)}))
		if err == nil && i%3 == 0 {
			rec, err = st.Commit(t.Context(), change(OpUpdate, rec.Key, rec.Rev, Author{User: "other"}))
		}
		if err == nil && i%6 == 0 {
			_, err = st.Commit(t.Context(), change(OpDelete, rec.Key, rec.Rev, Author{}))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := st.Secret("s", func() []byte { return []byte("v") }); err != nil {
		t.Fatal(err)
	}
	if err := up.addMark(t.Context(), st.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := up.Compact(t.Context(), st.Revision()-10); err != nil {
		t.Fatal(err)
	}
	again := openTestStore(t, copyOpen(t, st))
	if want, got := dumped(t, st), dumped(t, again); want != got {
		t.Errorf("got %d bytes of buckets, want %d", len(got), len(want))
	}
}

func change(op ChangeOp, key string, expect int64, author Author) Change {
	json, at := storeDoc("x")
	return Change{Op: op, Key: key, Expect: expect, JSON: json, RevAt: at, Author: author}
}

// dumped returns the contents of all buckets.
func dumped(t *testing.T, st *Store) string {
	t.Helper()
	var b strings.Builder
	if err := st.File.View(func(p *boltfile.Pages) error {
		for which, name := range boltfile.Buckets {
			bucket, _ := p.Bucket(byte(which))
			fmt.Fprintf(&b, "%s %d\n", name, bucket.Sequence)
			c := bucket.Cursor()
			for k, v := c.First(); k != nil; k, v = c.Next() {
				fmt.Fprintf(&b, "%x %x\n", k, v)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestCleanCloseLeavesOneFile checks that a clean stop removes the log and sets the format of a
// closed file.
func TestCleanCloseLeavesOneFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	for i := range 3 {
		st := openLogged(t, path)
		mustWrite(t, st, OpCreate, fmt.Sprintf("//pods/x/n%d", i), 0, "a")
		if info, err := os.Stat(path + boltfile.LogSuffix); err != nil || info.Mode().Perm() != 0o600 {
			t.Error(info, err)
		}
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
		if names, _ := os.ReadDir(filepath.Dir(path)); len(names) != 1 {
			t.Error(names)
		}
		if rep, err := Check(path); err != nil || rep.Format != Format || rep.Objects != int64(i+1) || len(rep.Problems) > 0 {
			t.Error(rep, err)
		}
	}
}

// TestLogsThatAreRefused checks that each of these logs is rejected with a clear message, and that
// the files are unchanged.
func TestLogsThatAreRefused(t *testing.T) {
	t.Parallel()
	made := func(n int) string {
		st := openLogged(t, filepath.Join(t.TempDir(), "a.db"))
		for i := range n {
			mustWrite(t, st, OpCreate, fmt.Sprintf("//pods/x/n%d", i), 0, "a")
		}
		return copyOpen(t, st)
	}
	closed := filepath.Join(t.TempDir(), "a.db")
	st := openLogged(t, closed)
	mustWrite(t, st, OpCreate, "//pods/x/n", 0, "a")
	st.Close()
	copyTo := func(from, to string) {
		b, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		change func(path string)
		want   string
	}{
		"no log":        {func(path string) { os.Remove(path + boltfile.LogSuffix) }, "is missing, which has what was written last"},
		"no file":       {func(path string) { os.Remove(path) }, "its log"},
		"another's log": {func(path string) { copyTo(made(20)+boltfile.LogSuffix, path+boltfile.LogSuffix) }, "is the log of another data file"},
		"a closed file": {func(path string) { copyTo(closed, path) }, "is the log of another data file"},
		"both heads":    {func(path string) { overwrite(t, path+boltfile.LogSuffix, 0, make([]byte, headsBytes)) }, "has lost both of its heads"},
		"newer version": {func(path string) { overwrite(t, path+boltfile.LogSuffix, 8, []byte{0, 0, 0, 3}) }, "has version 3, and this version of apilet reads version 2"},
		"older version": {func(path string) { overwrite(t, path+boltfile.LogSuffix, 8, []byte{0, 0, 0, 1}) }, "has version 1, and this version of apilet reads version 2"},
		"first record":  {func(path string) { overwrite(t, path+boltfile.LogSuffix, headsBytes+int64(32), []byte("xxxx")) }, "record"},
		"a middle block": {func(path string) {
			overwrite(t, path+boltfile.LogSuffix, headsBytes+headBytes, make([]byte, headBytes))
		}, "record"},
	} {
		path := made(60)
		if at := usedHalf(t, path); name == "first record" || name == "a middle block" {
			c.change = func(path string) {
				overwrite(t, path+boltfile.LogSuffix, at+64*int64(len(name)-12), bytes.Repeat([]byte("x"), 64))
			}
		}
		c.change(path)
		before, _ := os.ReadFile(path)
		log, _ := os.ReadFile(path + boltfile.LogSuffix)
		st, err := Open(path, Options{})
		if err == nil {
			st.Close()
			t.Errorf("%s: opened", name)
			continue
		}
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		after, _ := os.ReadFile(path)
		logAfter, _ := os.ReadFile(path + boltfile.LogSuffix)
		if !bytes.Equal(before, after) || !bytes.Equal(log, logAfter) {
			t.Errorf("%s: refused, and changed", name)
		}
	}
}

// TestCheckpointKeepsItsOrder checks that the pages are synced before the head is written, and that
// the previous checkpoint is pinned in the meantime.
func TestCheckpointKeepsItsOrder(t *testing.T) {
	t.Parallel()
	st := openLogged(t, filepath.Join(t.TempDir(), "a.db"))
	mustWrite(t, st, OpCreate, "//pods/x/a", 0, "a")
	var mu sync.Mutex // guards the variables below
	var steps []string
	pinned := 1000
	step := func(name string) {
		mu.Lock()
		defer mu.Unlock()
		steps = append(steps, name)
	}
	maintainTest(t, st, func(*boltfile.WriteTx) error {
		disk := st.File.Disk()
		data, write, sync := disk.SyncData, disk.WriteAtHead, disk.SyncHead
		disk.SyncData = func(high uint64, but boltfile.PageRun) error {
			step("pages")
			mu.Lock()
			pinned = min(pinned, st.File.Db.Stats().OpenTxN)
			mu.Unlock()
			return data(high, but)
		}
		disk.WriteAtHead = func(b []byte, at int64) (int, error) { step(fmt.Sprint("head ", at/headBytes)); return write(b, at) }
		disk.SyncHead = func() error { step("sync"); return sync() }
		return errRefused
	})
	for begun, i := 0, 0; begun < 3; i++ {
		mustWrite(t, st, OpCreate, fmt.Sprintf("//pods/x/b%d", i), 0, strings.Repeat("b", 2000))
		maintainTest(t, st, func(*boltfile.WriteTx) error { begun = st.File.Checkpoints(); return errRefused })
	}
	maintainTest(t, st, func(*boltfile.WriteTx) error { return st.File.WaitCheckpoint() })
	mu.Lock()
	defer mu.Unlock()
	one := []string{"pages", "head 0", "sync", "head 1", "sync"}
	if len(steps) == 0 || !slices.Equal(steps, slices.Repeat(one, len(steps)/len(one))) {
		t.Errorf("the steps were %v", steps)
	}
	if pinned < 2 {
		t.Errorf("%d checkpoints were pinned while another was made", pinned)
	}
}

// TestRefusedChangesWriteNothing checks that rejected changes do not write to the disk.
func TestRefusedChangesWriteNothing(t *testing.T) {
	t.Parallel()
	st := openLogged(t, filepath.Join(t.TempDir(), "a.db"))
	mustWrite(t, st, OpCreate, "//pods/x/a", 0, "a")
	var written atomic.Int64
	maintainTest(t, st, func(*boltfile.WriteTx) error {
		write := st.File.Disk().Write
		st.File.Disk().Write = func(b []byte, at int64) (int, error) { written.Add(1); return write(b, at) }
		return errRefused
	})
	if _, err := storeWrite(st, OpCreate, "//pods/x/a", 0, "a"); err != ErrExists || written.Load() != 0 {
		t.Errorf("%v, and %d writes to the log", err, written.Load())
	}
	if mustWrite(t, st, OpCreate, "//pods/x/b", 0, "b"); written.Load() == 0 {
		t.Error("a create wrote nothing to the log")
	}
}

// TestDamagedRecordBeforeTheLast checks that a damaged record is not mistaken for a torn record,
// which was never acknowledged. A torn record is always the last one.
func TestDamagedRecordBeforeTheLast(t *testing.T) {
	t.Parallel()
	st := openLogged(t, filepath.Join(t.TempDir(), "a.db"))
	for i := range 2 {
		mustWrite(t, st, OpCreate, fmt.Sprintf("//pods/x/n%d", i), 0, "a")
	}
	path := copyOpen(t, st)
	overwrite(t, path+boltfile.LogSuffix, usedHalf(t, path), bytes.Repeat([]byte("x"), 64))
	if st, err := Open(path, Options{}); !errors.Is(err, ErrDamaged) {
		if err == nil {
			st.Close()
		}
		t.Errorf("got %v, want damage", err)
	}
}

// TestLogThatWasCutIsRefused truncates a log. It must be rejected although the remaining records
// are valid.
func TestLogThatWasCutIsRefused(t *testing.T) {
	t.Parallel()
	st := openLogged(t, filepath.Join(t.TempDir(), "a.db"))
	for i := range 60 {
		mustWrite(t, st, OpCreate, fmt.Sprintf("//pods/x/n%d", i), 0, "a")
	}
	path := copyOpen(t, st)
	if err := os.Truncate(path+boltfile.LogSuffix, headsBytes); err != nil {
		t.Fatal(err)
	}
	if st, err := Open(path, Options{}); err == nil || !strings.Contains(err.Error(), "is truncated") {
		if err == nil {
			st.Close()
		}
		t.Errorf("got %v", err)
	}
}

// usedHalf returns the offset of the log's first record, which its head contains.
func usedHalf(t *testing.T, path string) int64 {
	t.Helper()
	b, err := os.ReadFile(path + boltfile.LogSuffix)
	if err != nil || len(b) < headsBytes {
		t.Fatal(err)
	}
	return headsBytes + int64(binary.BigEndian.Uint64(b[56:])*binary.BigEndian.Uint64(b[40:]))
}

const (
	headBytes  = 4096
	headsBytes = 2 * headBytes
)

func overwrite(t *testing.T, path string, at int64, b []byte) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err == nil {
		_, err = file.WriteAt(b, at)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestOneLostHeadIsMadeGood checks that a start needs only one copy of the head and restores the
// other copy.
func TestOneLostHeadIsMadeGood(t *testing.T) {
	t.Parallel()
	st := openLogged(t, filepath.Join(t.TempDir(), "a.db"))
	for i := range 30 {
		mustWrite(t, st, OpCreate, fmt.Sprintf("//pods/x/n%d", i), 0, "a")
	}
	for n := range int64(2) {
		path := copyOpen(t, st)
		overwrite(t, path+boltfile.LogSuffix, n*headBytes, make([]byte, headBytes))
		again := openLogged(t, path)
		if again.Revision() != 30 {
			t.Errorf("without copy %d: revision %d", n, again.Revision())
		}
		b, _ := os.ReadFile(path + boltfile.LogSuffix)
		if !bytes.Equal(b[:headBytes], b[headBytes:headsBytes]) {
			t.Error("the copies differ")
		}
	}
}

// TestRefusedCommitLeavesNoRecord checks that a record is not replayed if its commit has failed,
// but that later records are replayed.
func TestRefusedCommitLeavesNoRecord(t *testing.T) {
	t.Parallel()
	st := openLogged(t, filepath.Join(t.TempDir(), "a.db"))
	mustWrite(t, st, OpCreate, "//pods/x/a", 0, "a")
	// unsynced means that the record is removed, but the removal may be lost in a power failure
	w, refused, unsynced := st.File.Disk(), 0, false
	write, sync := w.Write, w.Sync
	maintainTest(t, st, func(*boltfile.WriteTx) error {
		w.Sync = func() error { unsynced = false; return sync() }
		w.Write = func(b []byte, at int64) (int, error) {
			if unsynced {
				t.Error("something is written before the record is surely taken back")
			}
			// header of a record that is filled with zeros
			unsynced = refused == 1 && len(b) == 32
			// a record, not zeros
			if refused == 0 && len(b) > 32 && binary.BigEndian.Uint32(b) > 0 {
				refused++
				write(b, at) // the whole record is written, but the disk reports that it is full
				return 0, syscall.ENOSPC
			}
			return write(b, at)
		}
		return errRefused
	})
	for i := range 6 {
		_, err := storeWrite(st, OpCreate, fmt.Sprintf("//pods/x/b%d", i), 0, strings.Repeat("b", 500))
		if i == 0 != errors.Is(err, ErrDiskFull) || i > 0 && err != nil {
			t.Errorf("%d: %v", i, err)
		}
		if err == nil {
			continue
		}
		again := openLogged(t, copyOpen(t, st))
		if again.Revision() != st.Revision() {
			t.Errorf("revision %d, want %d", again.Revision(), st.Revision())
		}
	}
	if refused != 1 || st.Revision() != 6 {
		t.Errorf("%d refused, revision %d", refused, st.Revision())
	}
	again := openLogged(t, copyOpen(t, st))
	if want, got := dumped(t, st), dumped(t, again); want != got {
		t.Error("the replayed file differs")
	}
}

// TestLogWithoutRoomIsGoneAround checks that writes succeed while the data file has free pages,
// even if the log cannot grow.
func TestLogWithoutRoomIsGoneAround(t *testing.T) {
	t.Parallel()
	st := openLogged(t, filepath.Join(t.TempDir(), "a.db"))
	mustWrite(t, st, OpCreate, "//pods/x/a", 0, "a")
	without := 0
	maintainTest(t, st, func(*boltfile.WriteTx) error {
		write := st.File.Disk().Write
		st.File.Disk().Write = func(b []byte, at int64) (int, error) {
			if bytes.Count(b, []byte{0}) == len(b) { // a write that extends the log
				without++
				return 0, syscall.ENOSPC
			}
			return write(b, at)
		}
		return errRefused
	})
	for i := range 40 {
		mustWrite(t, st, OpCreate, fmt.Sprintf("//pods/x/b%d", i), 0, "b")
		again := openLogged(t, copyOpen(t, st))
		if want, got := dumped(t, st), dumped(t, again); want != got {
			t.Fatal("the replayed file differs")
		}
	}
	if without == 0 {
		t.Error("the log was never to become longer")
	}
}

// TestFewPagesServeManyCommits checks that pages can be reused by later commits while a checkpoint
// is pinned. Otherwise the kernel would write different pages each time.
func TestFewPagesServeManyCommits(t *testing.T) {
	t.Parallel()
	st := openTestStore(t, filepath.Join(t.TempDir(), "a.db"))
	rec := mustWrite(t, st, OpCreate, "//pods/x/a", 0, "a")
	turns, most := 0, 0
	for i := range 600 {
		rec = mustWrite(t, st, OpUpdate, rec.Key, rec.Rev, "a")
		maintainTest(t, st, func(*boltfile.WriteTx) error {
			turns = st.File.Checkpoints()
			return errors.Join(st.File.WaitCheckpoint(), errRefused) // for slow machines
		})
		if i > 100 {
			most = max(most, st.File.Db.Stats().PendingPageN)
		}
	}
	// otherwise five additional pages would be waiting after each commit
	if most > 100 || turns < 2 {
		t.Errorf("%d pages waited for a checkpoint; %d checkpoints", most, turns)
	}
}

// TestStartAfterAKillWalksThroughNoPages checks that each checkpoint lists the free pages, so that
// a start does not have to read all pages.
func TestStartAfterAKillWalksThroughNoPages(t *testing.T) {
	t.Parallel()
	st := openLogged(t, filepath.Join(t.TempDir(), "a.db"))
	vet := func() boltfile.Verdict {
		verdict, err := boltfile.VetToWrite(copyOpen(t, st), func(*boltfile.Pages) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		return verdict
	}
	rec, made := mustWrite(t, st, OpCreate, "//pods/x/a", 0, "a"), 0
	for range 400 {
		rec = mustWrite(t, st, OpUpdate, rec.Key, rec.Rev, strings.Repeat("b", 400))
		turns := 0
		maintainTest(t, st, func(*boltfile.WriteTx) error {
			turns = st.File.Checkpoints()
			return errors.Join(st.File.WaitCheckpoint(), errRefused)
		})
		if turns == made {
			continue
		}
		made = turns
		if verdict := vet(); !verdict.Log.Used() || !verdict.Clean || verdict.Moved && runtime.GOOS == "linux" {
			t.Fatalf("checkpoint %d: %+v", made, verdict)
		}
	}
	if made < 5 {
		t.Errorf("%d checkpoints", made)
	}
	again := openLogged(t, copyOpen(t, st))
	if want, got := dumped(t, st), dumped(t, again); want != got {
		t.Error("the replayed file differs")
	}
	if again.File.FreeBytes() == 0 {
		t.Error("no free pages are known")
	}
}

// TestDamageBeforeAReplay checks that damaged pages are detected when the log is replayed. A start
// must fail without changing the file and the log, or return only valid objects.
func TestDamageBeforeAReplay(t *testing.T) {
	t.Parallel()
	st := openLogged(t, filepath.Join(t.TempDir(), "a.db"))
	for i := range 300 {
		rec := mustWrite(t, st, OpCreate, fmt.Sprintf("//pods/x/%080d", i), 0, strings.Repeat("b", 300))
		if i%3 == 0 {
			mustWrite(t, st, OpDelete, rec.Key, rec.Rev, "")
		}
		// so that the next checkpoint is not delayed, and lists the free pages
		maintainTest(t, st, func(*boltfile.WriteTx) error { return errors.Join(st.File.WaitCheckpoint(), errRefused) })
	}
	if verdict, err := boltfile.VetToWrite(copyOpen(t, st), func(*boltfile.Pages) error { return nil }); err != nil || !verdict.Clean || verdict.Log.Count() < 10 {
		t.Fatalf("%+v, %v: all pages would be walked through, or nothing replayed", verdict, err)
	}
	truth, err := listShown(st)
	if err != nil {
		t.Fatal(err)
	}
	left := copyOpen(t, st)
	sound, _ := os.ReadFile(left)
	log, _ := os.ReadFile(left + boltfile.LogSuffix)
	refused, opened := 0, 0
	for at := 2 * livePage; at < len(sound); at += livePage {
		damaged := bytes.Clone(sound)
		clear(damaged[at : at+livePage])
		path := writeDataFile(t, damaged)
		if err := os.WriteFile(path+boltfile.LogSuffix, log, 0o600); err != nil {
			t.Fatal(err)
		}
		putInPlace(t, path)
		damaged, _ = os.ReadFile(path)
		again, err := Open(path, Options{Fatal: func(err error) { t.Errorf("page %d: fatal: %v", at/livePage, err) }})
		if err != nil {
			refused++
			file, _ := os.ReadFile(path)
			logged, _ := os.ReadFile(path + boltfile.LogSuffix)
			if !bytes.Equal(file, damaged) || !bytes.Equal(logged, log) || !errors.Is(err, ErrDamaged) {
				t.Errorf("page %d: refused, and changed: %v", at/livePage, err)
			}
			continue
		}
		opened++
		shown, err := listShown(again)
		if err != nil && !errors.Is(err, ErrDamaged) || err == nil && !maps.Equal(shown, truth) {
			t.Errorf("page %d: %d objects of %d, %v", at/livePage, len(shown), len(truth), err)
		}
		again.Close()
	}
	if refused < 5 || opened < 5 {
		t.Errorf("%d refused, %d opened: not everything has come up", refused, opened)
	}
}

// TestFailedSyncOfTheLogIsFatal checks that a failed sync is not retried and that the write is not
// acknowledged.
func TestFailedSyncOfTheLogIsFatal(t *testing.T) {
	t.Parallel()
	fatal := 0
	st, err := Open(filepath.Join(t.TempDir(), "a.db"), Options{Fatal: func(error) { fatal++ }})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	mustWrite(t, st, OpCreate, "//pods/x/a", 0, "a")
	maintainTest(t, st, func(*boltfile.WriteTx) error {
		st.File.Disk().Sync = func() error { return syscall.EIO }
		return errRefused
	})
	for range 2 {
		if rec, err := storeWrite(st, OpCreate, "//pods/x/b", 0, "b"); err == nil {
			t.Error("acknowledged", rec)
		}
	}
	if _, err := st.Get("//pods/x/a"); err != nil || fatal != 1 || st.Revision() != 1 {
		t.Errorf("%v, fatal %d, revision %d", err, fatal, st.Revision())
	}
}

// BenchmarkStartAfterKill measures the time to open a file and a log after the store was killed.
// Both are in the page cache.
//
//	go test -run xxx -bench StartAfterKill -benchtime 5x ./internal/store
func BenchmarkStartAfterKill(b *testing.B) {
	for _, objects := range []int{20_000, 400_000} {
		b.Run(fmt.Sprintf("objects=%d", objects), func(b *testing.B) {
			st := openTestStore(b, filepath.Join(b.TempDir(), "a.db"))
			var wait sync.WaitGroup
			for c := range 64 {
				wait.Go(func() {
					for i := c; i < objects; i += 64 {
						change := Change{Op: OpCreate, Key: benchKey(i), JSON: benchRecord, RevAt: benchRevAt}
						if _, err := st.Commit(context.Background(), change); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wait.Wait()
			for b.Loop() {
				b.StopTimer()
				path := copyOpen(b, st)
				if err := syncCopies(path, path+boltfile.LogSuffix); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				again, err := Open(path, Options{})
				b.StopTimer()
				if err != nil || again.Revision() != st.Revision() {
					b.Fatal(err)
				}
				again.Close()
				os.RemoveAll(filepath.Dir(path))
				b.StartTimer()
			}
		})
	}
}

// syncCopies waits until the copies are on the disk, because otherwise the start would have to
// wait.
func syncCopies(paths ...string) error {
	for _, path := range paths {
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		if err := errors.Join(file.Sync(), file.Close()); err != nil {
			return err
		}
	}
	return nil
}
