package store

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"apilet/internal/store/boltfile"

	"apilet/internal/apitest"
)

// TestStoreChild is not a test. Other tests run it in a child process.
func TestStoreChild(t *testing.T) {
	path := os.Getenv("APILET_STORE_PATH")
	switch os.Getenv("APILET_STORE_CHILD") {
	case "":
		t.Skip("for other tests")
	case "write":
		childWrites(path)
	case "probe":
		childProbes(path)
	case "limit":
		childFillsTheDisk(t, path)
	}
}

// childWrites writes until it is killed. It prints each acknowledged write or compaction to stdout
// as "ack REVISION KEY".
func childWrites(path string) {
	st, err := Open(path, Options{})
	if err != nil {
		fmt.Println("fail", err)
		os.Exit(3)
	}
	up, _ := NewMaintenance(st)
	fmt.Println("ready")
	for w := range 6 {
		go func() {
			revs := map[string]int64{}
			for i := 0; ; i++ {
				key := fmt.Sprintf("//pods/w%d/n%d", w, i%9)
				op := OpCreate
				if revs[key] != 0 {
					op = OpUpdate
				} else if r, err := st.Get(key); err == nil {
					op, revs[key] = OpUpdate, r.Rev
				}
				if op == OpUpdate && i%5 == 0 {
					op = OpDelete
				}
				rec, err := storeWrite(st, op, key, revs[key], strings.Repeat("x", i%3000))
				if err != nil {
					fmt.Println("fail", err)
					os.Exit(3)
				}
				if revs[key] = rec.Rev; op == OpDelete {
					revs[key] = 0
				}
				fmt.Printf("ack %d %s\n", rec.Rev, key)
			}
		}()
	}
	for {
		time.Sleep(5 * time.Millisecond)
		if _, err := up.Compact(context.Background(), max(st.Compacted(), st.Revision()-300)); err != nil {
			fmt.Println("fail", err)
			os.Exit(3)
		}
	}
}

func TestStoreSurvivesKill(t *testing.T) {
	rounds := apitest.Rounds(25)
	path := filepath.Join(t.TempDir(), "a.db")
	acked := map[int64]string{}
	for round := range rounds {
		cmd := storeChild("write", path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for lines.Scan() && lines.Text() != "ready" {
			if strings.HasPrefix(lines.Text(), "fail") {
				t.Error(lines.Text())
			}
		}
		last := 1 + rand.N(200) // number of acknowledgments before the child is killed
		for lines.Scan() {
			f := strings.Fields(lines.Text())
			if len(f) == 3 && f[0] == "ack" {
				if last--; last == 0 {
					cmd.Process.Kill()
				}
				rev, _ := strconv.ParseInt(f[1], 10, 64)
				if acked[rev] != "" {
					t.Errorf("revision %d was given twice", rev)
				}
				acked[rev] = f[2]
			} else if len(f) > 0 && f[0] == "fail" {
				t.Error(lines.Text())
			}
		}
		cmd.Wait()
		if round%5 == 4 || round == rounds-1 {
			verifyAcked(t, path, acked)
		}
	}
	if len(acked) < rounds {
		t.Errorf("only %d writes in %d rounds", len(acked), rounds)
	}
}

// childProbes uses a file, which may be damaged, like a server would. It exits with 0 if everything
// succeeds. Otherwise it prints the error and exits with 1.
func childProbes(path string) {
	st, err := Open(path, Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	up, err := NewMaintenance(st)
	if err != nil {
		os.Exit(1)
	}
	var c Chunk
	for start, more := "", true; more; start, more = c.Next, c.Next != "" {
		if err := st.Chunk(Span{Prefix: "/", Start: start}, &c); err != nil {
			fmt.Println("list:", err)
			break
		}
		for _, r := range c.Records {
			if _, err := st.Get(r.Key); err != nil {
				fmt.Println("get:", err)
			}
		}
	}
	for at := st.Compacted(); at < st.Revision(); {
		_, upTo, err := st.Events("//pods/", at, 100, nil)
		if err != nil || upTo <= at {
			fmt.Println("events:", err)
			break
		}
		at = upTo
	}
	rep, err := up.Scrub(context.Background())
	fmt.Println("scrub:", err, rep.Problems)
	_, err = storeWrite(st, OpCreate, "//pods/probe/a", 0, "")
	fmt.Println("write:", err)
	_, err = up.Compact(context.Background(), st.Revision())
	fmt.Println("compact:", err)
	if err := st.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// probe runs the probing child and the check on a file. Neither may panic.
func probe(t *testing.T, what, path string) (out string, opened bool) {
	t.Helper()
	Check(path) // in this process, to notice a panic
	var stderr bytes.Buffer
	cmd := storeChild("probe", path)
	cmd.Stderr = &stderr
	b, err := cmd.Output()
	if code := cmd.ProcessState.ExitCode(); code != 0 && code != 1 || strings.Contains(stderr.String(), "goroutine ") {
		t.Errorf("%s: exit code %d (%v)\n%s%s", what, code, err, b, stderr.String())
	}
	if cmd.ProcessState.ExitCode() == 1 && strings.Count(strings.TrimSpace(stderr.String()), "\n") != 0 {
		t.Errorf("%s: want one line, got %s", what, stderr.String())
	}
	return string(b) + stderr.String(), cmd.ProcessState.ExitCode() == 0
}

func TestStoreRefusesWhatItCannotOpen(t *testing.T) {
	dir := t.TempDir()
	ofFormat := func(format int64) string {
		path := filepath.Join(dir, fmt.Sprintf("format-%d.db", format))
		openTestStore(t, path).Close()
		db, err := bbolt.Open(path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		err = db.Update(func(tx *bbolt.Tx) error { return (&boltfile.WriteTx{Tx: tx}).PutMetaInt("format", format) })
		if err := errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
		return path
	}
	foreign := filepath.Join(dir, "foreign.db")
	db, _ := bbolt.Open(foreign, 0o600, nil)
	db.Update(func(tx *bbolt.Tx) error { _, err := tx.CreateBucket([]byte("b")); return err })
	db.Close()
	cases := map[string][2]string{
		"a folder":          {dir, "not a regular file"},
		"an older format":   {ofFormat(Format - 1), "has format 1, and this version of apilet reads format 2: use the version that wrote it"},
		"a newer format":    {ofFormat(boltfile.FormatLogged + 1), "has format 4, and this version of apilet reads format 2: use the version that wrote it"},
		"another program's": {foreign, "another program"},
		"empty":             {writeDataFile(t, nil), "is empty"},
		"text":              {writeDataFile(t, []byte("hello")), "not an apilet data file"},
		"long text":         {writeDataFile(t, bytes.Repeat([]byte("hello "), 10_000)), "not an apilet data file"},
		"zeros":             {writeDataFile(t, make([]byte, 1<<16)), "not an apilet data file"},
		"in no folder":      {filepath.Join(dir, "none", "a.db"), "folder does not exist"},
	}
	if runtime.GOOS != "windows" {
		pipe := filepath.Join(dir, "pipe")
		if err := exec.Command("mkfifo", pipe).Run(); err == nil {
			cases["a pipe"] = [2]string{pipe, "not a regular file"}
		}
		if os.Getuid() != 0 {
			unreadable := writeDataFile(t, smallFile(t, 1, true))
			os.Chmod(unreadable, 0)
			cases["unreadable"] = [2]string{unreadable, "permission denied"}
		}
	}
	for name, c := range cases {
		_, err := Open(c[0], Options{})
		if err == nil || !strings.Contains(err.Error(), c[1]) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want ...%s...", name, err, c[1])
		}
		if _, err := Check(c[0]); err == nil {
			t.Errorf("%s: check found nothing", name)
		}
	}
}

func TestStoreSecondOpenerIsTold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	openTestStore(t, path)
	_, err := Open(path, Options{}) // waits for a second
	if err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("got %v", err)
	}
}

func TestStoreCutShortIsToldNotCrashed(t *testing.T) {
	for _, clean := range []bool{true, false} {
		whole := smallFile(t, 40, clean)
		n := apitest.Rounds(15)
		for i := range n {
			size := len(whole) * i / n
			if i%3 == 2 {
				size += 1 + i*97
			}
			path := writeDataFile(t, whole[:size])
			if out, opened := probe(t, fmt.Sprintf("cut to %d of %d", size, len(whole)), path); opened {
				t.Errorf("cut to %d of %d: opened: %s", size, len(whole), out)
			}
		}
	}
}

// TestStoreFlippedBits checks that each flipped bit is either found or has no effect: LIST must
// return the written objects.
func TestStoreFlippedBits(t *testing.T) {
	n := apitest.Rounds(40)
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 1))
	t.Logf("seed %d", seed)
	files := [][]byte{smallFile(t, 12, true), smallFile(t, 12, false)}
	for i := range n {
		b := bytes.Clone(files[i%2])
		at := rnd.IntN(len(b))
		bit := rnd.IntN(8)
		b[at] ^= 1 << bit
		out, _ := probe(t, fmt.Sprintf("bit %d of byte %d", bit, at), writeDataFile(t, b))
		if strings.Contains(out, "panic") && !strings.Contains(out, ErrDamaged.Error()) {
			t.Error(out)
		}
	}
}

func TestStoreZeroedPages(t *testing.T) {
	for _, clean := range []bool{true, false} {
		whole := smallFile(t, 40, clean)
		for page := 0; page < len(whole)/4096; page += apitest.Every(10) {
			b := bytes.Clone(whole)
			clear(b[page*4096 : (page+1)*4096])
			probe(t, fmt.Sprintf("page %d of %d zeroed", page, len(whole)/4096), writeDataFile(t, b))
		}
	}
}

// TestStoreCheckFindsEveryFlipInARecord checks that a flipped bit is detected in every byte of a
// record and its key.
func TestStoreCheckFindsEveryFlipInARecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	st := openTestStore(t, path)
	mustWrite(t, st, OpCreate, "//pods/x/a", 0, "payload")
	st.Close()
	Defrag(path, nil) // leaves a single copy of it
	whole, _ := os.ReadFile(path)
	const head = recordHeader + len("//pods/x/a") + 7 // with the stamp
	record := bytes.LastIndex(whole, []byte(storeDocAt("payload", 1))) - head
	for at := record; at < record+head+len(storeDocAt("payload", 1)); at++ {
		b := bytes.Clone(whole)
		b[at] ^= 4
		rep, err := Check(writeDataFile(t, b))
		if err == nil && len(rep.Problems) == 0 {
			t.Errorf("byte %d of the record: nothing found", at-record)
		}
	}
}

func TestStoreDamagedRecordIsNamedAndAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	st := openTestStore(t, path)
	mustWrite(t, st, OpCreate, "//pods/x/a", 0, "payload")
	mustWrite(t, st, OpCreate, "//pods/x/b", 0, "other")
	st.Close()
	Defrag(path, nil)
	whole, _ := os.ReadFile(path)
	whole[bytes.LastIndex(whole, []byte("payload"))] ^= 1
	st = openTestStore(t, writeDataFile(t, whole))
	if _, err := st.Get("//pods/x/a"); err == nil || !strings.Contains(err.Error(), `revision 1 (key "//pods/x/a") is damaged`) {
		t.Errorf("get: %v", err)
	}
	if err := st.Chunk(Span{Prefix: "//pods/"}, new(Chunk)); err == nil || !strings.Contains(err.Error(), "revision 1") {
		t.Errorf("chunk: %v", err)
	}
	if _, err := st.Get("//pods/x/b"); err != nil {
		t.Errorf("get of the other: %v", err)
	}
	rep, err := mustUpkeep(t, st).Scrub(t.Context())
	if err != nil || len(rep.Problems) != 2 || !strings.Contains(rep.Problems[0], `key "//pods/x/a"`) {
		t.Errorf("scrub: %v, %q", err, rep.Problems)
	}
}

// TestStoreFileCutWhileInUse checks that a server whose file is truncated reports an error instead
// of dying of SIGBUS.
func TestStoreFileCutWhileInUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	var fatal []error
	st, err := Open(path, Options{Fatal: func(err error) { fatal = append(fatal, err) }})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		mustWriteNoSync(t, st, fmt.Sprintf("//pods/x/%d", i))
	}
	if err := os.Truncate(path, 8192); err != nil {
		t.Skip(err)
	}
	if _, err := st.Get("//pods/x/1"); !errors.Is(err, ErrDamaged) || len(fatal) != 1 {
		t.Errorf("get: %v, fatal %v", err, fatal)
	}
	st.File.Refusal.Store(nil)
	if _, err := storeWrite(st, OpCreate, "//pods/x/new", 0, ""); !errors.Is(err, ErrDamaged) || len(fatal) != 2 {
		t.Errorf("write: %v, fatal %v", err, fatal)
	}
	if _, err := storeWrite(st, OpCreate, "//pods/x/new", 0, ""); !errors.Is(err, ErrDamaged) || len(fatal) != 2 {
		t.Errorf("write after failing: %v, fatal %v", err, fatal)
	}
	st.Close()
}

func TestStoreRunReportsItsRounds(t *testing.T) {
	st := tempStore(t)
	up := mustUpkeep(t, st)
	rev := mustWrite(t, st, OpCreate, "//pods/x/a", 0, "").Rev
	mustWrite(t, st, OpUpdate, "//pods/x/a", rev, "")
	ctx, cancel := context.WithCancel(t.Context())
	rounds := 0
	up.Run(ctx, time.Second, time.Second, func(done Compaction, err error) {
		if rounds++; err != nil {
			t.Error(err)
		}
		if done.Rev == 2 {
			cancel()
		}
		if rounds > 4 {
			t.Errorf("compacted to %d after %d rounds", done.Rev, rounds)
			cancel()
		}
	})
}

// TestStoreFileRemovedWhileInUse checks that writes fail after the file was removed. The contents
// of the file must still be readable.
func TestStoreFileRemovedWhileInUse(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a file in use cannot be removed")
	}
	path := filepath.Join(t.TempDir(), "a.db")
	st := openTestStore(t, path)
	mustWrite(t, st, OpCreate, "//pods/x/a", 0, "")
	lost := func(what string) {
		t.Helper()
		if _, err := storeWrite(st, OpCreate, "//pods/x/b", 0, ""); !errors.Is(err, ErrFileLost) || !errors.Is(st.File.Writable(), ErrFileLost) {
			t.Errorf("%s: write: %v, writable: %v", what, err, st.File.Writable())
		}
	}
	os.Rename(path, path+".away")
	lost("gone")
	if _, err := st.Get("//pods/x/a"); err != nil {
		t.Errorf("get: %v", err)
	}
	saved := path + ".saved"
	if err := mustUpkeep(t, st).Backup(t.Context(), saved, nil); err != nil {
		t.Errorf("backup: %v", err)
	}
	if _, err := openTestStore(t, saved).Get("//pods/x/a"); err != nil {
		t.Errorf("get from the backup: %v", err)
	}
	os.WriteFile(path, nil, 0o600)
	lost("replaced")
	os.Rename(path+".away", path)
	mustWrite(t, st, OpCreate, "//pods/x/b", 0, "")
}

func TestStoreBackupWhileWriting(t *testing.T) {
	dir := t.TempDir()
	st := openTestStore(t, filepath.Join(dir, "a.db"))
	up := mustUpkeep(t, st)
	secret, _ := st.Secret("k", func() []byte { return []byte("s") })
	for i := range 2000 {
		mustWriteNoSync(t, st, fmt.Sprintf("//pods/x/%d", i))
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				storeWrite(st, OpCreate, fmt.Sprintf("//pods/y/%d", i), 0, "")
			}
		}
	})
	before := st.Revision()
	dest := filepath.Join(dir, "backup.db")
	if err := up.Backup(t.Context(), dest, nil); err != nil {
		t.Fatal(err)
	}
	close(stop)
	wg.Wait()
	if err := up.Backup(t.Context(), dest, nil); !errors.Is(err, os.ErrExist) {
		t.Errorf("backup over a file: %v", err)
	}
	rep, err := Check(dest)
	if err != nil || len(rep.Problems) > 0 || rep.Revision < before || rep.Objects != rep.Revision {
		t.Fatalf("check: %v, %+v", err, rep)
	}
	restored := openTestStore(t, dest)
	if restored.Revision() < rep.Revision+backupRevBump || restored.Revision() > rep.Revision+backupRevBump+3600*backupRevRate || restored.Compacted() != restored.Revision() || restored.Lineage() == st.Lineage() {
		t.Errorf("restored at %d, compacted %d", restored.Revision(), restored.Compacted())
	}
	if n, err := restored.CountAt("/", "", restored.Revision()); err != nil || n != rep.Objects {
		t.Errorf("restored %d objects, %v, want %d", n, err, rep.Objects)
	}
	if s, _ := restored.Secret("k", nil); string(s) != string(secret) {
		t.Errorf("secret %q", s)
	}
	if err := restored.Chunk(Span{Prefix: "/", Rev: before}, new(Chunk)); !errors.Is(err, ErrCompacted) {
		t.Errorf("list in the past: %v", err)
	}
	r := mustWrite(t, restored, OpUpdate, "//pods/x/7", 8, "new")
	if r.CreateRev != 8 || r.Rev != restored.Revision() {
		t.Errorf("%+v", r)
	}
	if _, err := mustUpkeep(t, restored).Compact(t.Context(), r.Rev); err != nil {
		t.Error(err)
	}
	restored.Close()
	if rep, err := Check(dest); err != nil || len(rep.Problems) > 0 {
		t.Errorf("check after all: %v, %+v", err, rep)
	}
}

// mustWriteNoSync creates a key without waiting for the disk.
func mustWriteNoSync(t *testing.T, st *Store, key string) {
	st.File.Db.NoSync = true
	mustWrite(t, st, OpCreate, key, 0, "payload")
	st.File.Db.NoSync = false
}

func TestStoreDefragShrinksTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	st := openTestStore(t, path)
	for i := range 300 {
		mustWriteNoSync(t, st, fmt.Sprintf("//pods/x/%d", i))
	}
	id := st.Lineage()
	for i := range 290 {
		st.File.Db.NoSync = true
		mustWrite(t, st, OpDelete, fmt.Sprintf("//pods/x/%d", i), int64(i+1), "")
		st.File.Db.NoSync = false
	}
	if _, err := mustUpkeep(t, st).Compact(t.Context(), st.Revision()); err != nil {
		t.Fatal(err)
	}
	if err := Defrag(path, nil); err == nil {
		t.Error("defrag of a file in use went well")
	}
	st.Close()
	before, _ := os.Stat(path)
	if err := Defrag(path, nil); err != nil {
		t.Fatal(err)
	}
	after, _ := os.Stat(path)
	if after.Size() >= before.Size() || after.Mode() != before.Mode() {
		t.Errorf("before %d %v, after %d %v", before.Size(), before.Mode(), after.Size(), after.Mode())
	}
	if rep, err := Check(path); err != nil || len(rep.Problems) > 0 || rep.Objects != 10 {
		t.Errorf("check: %v, %+v", err, rep)
	}
	st = openTestStore(t, path)
	if st.Revision() != 590 || st.Lineage() != id {
		t.Errorf("revision %d", st.Revision())
	}
	mustWrite(t, st, OpCreate, "//pods/x/new", 0, "")
}

func TestStoreCompactionGoesOnAfterACrash(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	st := openTestStore(t, path)
	up := mustUpkeep(t, st)
	st.File.Db.NoSync = true
	rev := mustWrite(t, st, OpCreate, "//pods/x/a", 0, "").Rev
	for range 1500 {
		rev = mustWrite(t, st, OpUpdate, "//pods/x/a", rev, "").Rev
	}
	rev = mustWrite(t, st, OpDelete, "//pods/x/a", rev, "").Rev
	st.File.Db.NoSync = false
	// The state after a crash in the middle: the mark and some slices exist, but not "swept".
	if err := st.raiseCompact(t.Context(), rev); err != nil {
		t.Fatal(err)
	}
	dead, _, err := up.findDead(t.Context())
	if err != nil || len(dead) != int(rev) {
		t.Fatalf("%d dead of %d, %v", len(dead), rev, err)
	}
	if err := st.maintain(t.Context(), func(l *boltfile.WriteTx) error { return up.deleteRecords(l, dead[:700]) }); err != nil {
		t.Fatal(err)
	}
	st.Close()
	st = openTestStore(t, path)
	done, err := mustUpkeep(t, st).Compact(t.Context(), 0)
	if err != nil || done.Rev != rev {
		t.Errorf("%+v, %v", done, err)
	}
	st.readSnapshot(func(s *snapshot) error {
		revs, keys := s.revs.Cursor(), s.keys.Cursor()
		if k, _ := revs.First(); k != nil {
			t.Errorf("left revision %x", k)
		}
		if k, _ := keys.First(); k != nil {
			t.Errorf("left key %s", k)
		}
		return nil
	})
	if st.Revision() != rev {
		t.Errorf("revision went from %d to %d", rev, st.Revision())
	}
	st.Close()
	if st = openTestStore(t, path); st.Revision() != rev {
		t.Errorf("revision went from %d to %d", rev, st.Revision())
	}
	if rec := mustWrite(t, st, OpCreate, "//pods/x/a", 0, ""); rec.Rev != rev+1 {
		t.Errorf("next revision is %d", rec.Rev)
	}
}

func TestStoreRoundsCompactToTheIntervalBefore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	st := openTestStore(t, path)
	up := mustUpkeep(t, st)
	const interval = 5 * time.Minute
	start := time.Unix(1_000_000, 0)
	for i := range 6 {
		if i == 3 {
			st.Close()
			st = openTestStore(t, path)
			up = mustUpkeep(t, st)
		}
		mustWrite(t, st, OpCreate, fmt.Sprintf("//pods/x/%d", i), 0, "")
		done, err := up.round(t.Context(), start.Add(time.Duration(i)*interval), interval)
		if err != nil || done.Rev != int64(i) {
			t.Errorf("round %d: %+v, %v", i, done, err)
		}
	}
	for _, c := range []struct {
		after time.Duration
		want  int64
	}{{-time.Second, 0}, {0, 1}, {interval - time.Second, 1}, {interval, 2}, {time.Hour, 6}} {
		if got := up.RevisionBefore(start.Add(c.after)); got != c.want {
			t.Errorf("revision at %v: got %d, want %d", c.after, got, c.want)
		}
	}
	commits := st.Stats().Commits
	up.round(t.Context(), start.Add(time.Hour), interval)
	up.round(t.Context(), start.Add(2*time.Hour), interval)
	// the compaction to revision 6 needs a mark and a single slice
	if n := st.Stats().Commits - commits; n > 2 {
		t.Errorf("an idle store commits %d times", n)
	}
}

func TestStoreMarksAreThinned(t *testing.T) {
	var marks []mark
	for i := range int64(10) {
		marks = append(marks, mark{i, i})
	}
	if got := fmt.Sprint(thinMarks(marks)); got != "[{0 0} {2 2} {4 4} {5 5} {6 6} {7 7} {8 8} {9 9}]" {
		t.Error(got)
	}
	if got := fmt.Sprint(decodeMarks(encodeMarks(marks))); got != fmt.Sprint(marks) {
		t.Error(got)
	}
}

func TestStoreWarnsAtOpening(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	var said []string
	open := func(path string) *Store {
		said = nil
		st, err := Open(path, Options{Warn: func(s string) { said = append(said, s) }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { st.Close() })
		return st
	}
	st := open(path)
	if len(said) != 1 || !strings.Contains(said[0], "new, empty") {
		t.Errorf("new file: %q", said)
	}
	mustWrite(t, st, OpCreate, "//pods/x/a", 0, "")
	left := copyOpen(t, st)
	st.Close()
	open(path).Close()
	if len(said) != 0 {
		t.Errorf("clean file: %q", said)
	}
	open(left)
	if len(said) != 1 || !strings.Contains(said[0], "not shut down cleanly; 1 commits are taken over from its log") {
		t.Errorf("unclean file: %q", said)
	}
}

// TestStoreCompactionBesideReaders lists at fixed revisions during writes and compactions. Each
// list must be the same until it is rejected.
func TestStoreCompactionBesideReaders(t *testing.T) {
	st := tempStore(t)
	up := mustUpkeep(t, st)
	ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		revs := make([]int64, 20)
		for i := 0; ctx.Err() == nil; i++ {
			key, op := fmt.Sprintf("//pods/x/%d", i%20), OpUpdate
			if revs[i%20] == 0 {
				op = OpCreate
			} else if i%7 == 0 {
				op = OpDelete
			}
			rec, err := storeWrite(st, op, key, revs[i%20], "")
			if err != nil {
				t.Error(err)
			}
			if revs[i%20] = rec.Rev; op == OpDelete {
				revs[i%20] = 0
			}
		}
	})
	wg.Go(func() {
		for ctx.Err() == nil {
			if _, err := up.Compact(ctx, max(st.Compacted(), st.Revision()-50)); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	for range 3 {
		wg.Go(func() {
			for ctx.Err() == nil {
				rev := st.Revision()
				first, err := listText(st, rev)
				for err == nil && ctx.Err() == nil {
					var again string
					if again, err = listText(st, rev); err == nil && again != first {
						t.Errorf("list at %d changed from %s to %s", rev, first, again)
					}
				}
				if err != nil && !errors.Is(err, ErrCompacted) {
					t.Errorf("list at %d: %v", rev, err)
				}
			}
		})
	}
	wg.Wait()
}

func listText(st *Store, rev int64) (string, error) {
	var c Chunk
	if rev == 0 {
		return "", nil
	}
	err := st.Chunk(Span{Prefix: "//pods/", Rev: rev}, &c)
	var b strings.Builder
	for _, r := range c.Records {
		fmt.Fprintf(&b, "%s@%d ", r.Key, r.Rev)
	}
	return b.String(), err
}

// TestBackupRestoredTwice restores the same backup twice. Revisions from one of the two histories
// must not be accepted by the other.
func TestBackupRestoredTwice(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	st := openTestStore(t, filepath.Join(dir, "data.db"))
	mustWrite(t, st, OpCreate, "//pods/x/a", 0, "")
	dest := filepath.Join(dir, "backup.db")
	if err := mustUpkeep(t, st).Backup(t.Context(), dest, nil); err != nil {
		t.Fatal(err)
	}
	copied, err := os.ReadFile(dest)
	if err != nil {
		t.Fatal(err)
	}
	known := int64(0)
	for n := range 3 {
		path := filepath.Join(dir, fmt.Sprint(n))
		if err := os.WriteFile(path, copied, 0o600); err != nil {
			t.Fatal(err)
		}
		again, err := Open(path, Options{Clock: func() time.Time { return time.Now().Add(time.Duration(n) * time.Minute) }})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := again.Events("//pods/", known, 10, nil); n > 0 && !errors.Is(err, ErrCompacted) {
			t.Errorf("events after %d at %d: %v", known, again.Revision(), err)
		}
		for i := range 100 {
			known = mustWrite(t, again, OpCreate, fmt.Sprint("//pods/x/b", i), 0, "").Rev
		}
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestBeginAt checks that revisions continue above the given one and that earlier revisions are
// compacted, also after a restart.
func TestBeginAt(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "data.db")
	st := openTestStore(t, path)
	if err := st.BeginAt(t.Context(), 1000); err != nil {
		t.Fatal(err)
	}
	if r := mustWrite(t, st, OpCreate, "//pods/x/a", 0, ""); r.Rev != 1001 {
		t.Errorf("the first write has revision %d", r.Rev)
	}
	if err := st.BeginAt(t.Context(), st.Revision()); err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		if st.Revision() != 1001 || st.Compacted() != 1001 {
			t.Errorf("at %d, compacted %d", st.Revision(), st.Compacted())
		}
		for _, known := range []int64{1, 999, 1000} {
			if _, _, err := st.Events("//pods/", known, 10, nil); !errors.Is(err, ErrCompacted) {
				t.Errorf("events after %d: %v", known, err)
			}
		}
		if n, err := st.CountAt("/", "", st.Revision()); err != nil || n != 1 || st.Objects() != 1 {
			t.Errorf("%d objects, %d counted, %v", n, st.Objects(), err)
		}
	}
	check()
	st.Close()
	if rep, err := Check(path); err != nil || len(rep.Problems) > 0 {
		t.Errorf("check: %v %+v", err, rep)
	}
	st = openTestStore(t, path)
	check()
	r := mustWrite(t, st, OpUpdate, "//pods/x/a", 1001, "new")
	if events, _, err := st.Events("//pods/", 1001, 10, nil); err != nil || len(events) != 1 || r.Rev != 1002 {
		t.Errorf("%v %v", events, err)
	}
	if _, err := mustUpkeep(t, st).Compact(t.Context(), r.Rev); err != nil {
		t.Error(err)
	}
}

// A watchedContext calls asked whenever Err is called.
type watchedContext struct {
	context.Context
	asked func() error
}

func (c *watchedContext) Err() error { return c.asked() }

// TestBackupHoldsTheHistory checks that the history is not compacted during a backup, and that the
// backup stops when the context is canceled.
func TestBackupHoldsTheHistory(t *testing.T) {
	st := tempStore(t)
	up := mustUpkeep(t, st)
	mustWrite(t, st, OpCreate, "//pods/x/a", 0, "")
	held := -1
	ctx := &watchedContext{t.Context(), func() error { held = len(up.history); return context.Canceled }}
	if err := up.Backup(ctx, filepath.Join(t.TempDir(), "b.db"), nil); !errors.Is(err, context.Canceled) || held != 1 {
		t.Errorf("got %v, %d tokens were held", err, held)
	}
	if len(up.history) != 0 {
		t.Error("the token of history is kept")
	}
}

// TestBackupOfTheCompactedRevision checks that a backup of the compacted revision is possible, and
// that backups of older or future revisions are not.
func TestBackupOfTheCompactedRevision(t *testing.T) {
	st := tempStore(t)
	up := mustUpkeep(t, st)
	rev := mustWrite(t, st, OpCreate, "//pods/x/a", 0, "").Rev
	for range 3 {
		rev = mustWrite(t, st, OpUpdate, "//pods/x/a", rev, "").Rev
	}
	if _, err := up.Compact(t.Context(), rev+1); !errors.Is(err, errFutureRev) {
		t.Errorf("a compaction of the future: %v", err)
	}
	if _, err := up.Compact(t.Context(), rev-1); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[int64]error{rev - 2: ErrCompacted, rev - 1: nil, rev: nil, rev + 1: errFutureRev} {
		if err := up.BackupAt(t.Context(), filepath.Join(t.TempDir(), "b.db"), at, nil); !errors.Is(err, want) {
			t.Errorf("at %d of %d, compacted at %d: %v, want %v", at, rev, st.Compacted(), err, want)
		}
	}
}
