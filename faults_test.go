package main

// These tests damage files and set clocks wrong. A damaged file may be refused, and what is damaged in it may be reported; what must
// never happen is a panic, an object that is shown other than it was written, or one that is missing while `apilet check` finds nothing.
//
//	APILET_DAMAGES=10000 go test -run TestDamagedFiles -v .   # the long version, with counts

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
)

// TestDamagedFiles runs the campaign in a child: what kills it is named by the last line that it wrote.
func TestDamagedFiles(t *testing.T) {
	rounds := os.Getenv("APILET_DAMAGES")
	if rounds == "" {
		rounds = "400"
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestDamageChild$", "-test.v", "-test.timeout=1h")
	cmd.Env = append(os.Environ(), "APILET_DAMAGE_CHILD="+rounds, "TMPDIR="+t.TempDir())
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var last, summary string
	var said []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		switch text := lines.Text(); {
		case strings.HasPrefix(text, "round "):
			last = text
		case strings.HasPrefix(text, "summary "):
			summary = text
		default:
			said = append(said, text)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v in %s\n%s\n%.3000s", err, last, strings.Join(said, "\n"), errs.String())
	}
	t.Log(summary)
}

// TestDamageChild is no test but what TestDamagedFiles runs.
func TestDamageChild(t *testing.T) {
	rounds, _ := strconv.Atoi(os.Getenv("APILET_DAMAGE_CHILD"))
	if rounds == 0 {
		t.Skip("for another test")
	}
	seed := rand.Uint64()
	fmt.Printf("seed %d\n", seed)
	d := &damageCampaign{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), dir: t.TempDir(), counts: map[string]int{}}
	for i := range 2 {
		d.files[i] = smallFile(t, 60, i == 0)
		d.truth[i] = d.read(d.files[i])
	}
	for i := range rounds {
		d.round(i)
	}
	fmt.Printf("summary %d damaged files: %v\n", rounds, d.counts)
}

type damageCampaign struct {
	t      *testing.T
	rnd    *rand.Rand
	dir    string
	files  [2][]byte            // one of a store that was closed, one of a store that was not
	truth  [2]map[string]string // what LIST shows of each
	counts map[string]int
}

// read lists a sound file.
func (d *damageCampaign) read(file []byte) map[string]string {
	st := openTestStore(d.t, writeDataFile(d.t, file))
	defer st.close()
	shown, err := listShown(st)
	if err != nil || len(shown) != 60 {
		d.t.Fatalf("%d objects, %v", len(shown), err)
	}
	return shown
}

// listShown lists everything, up to the first error.
func listShown(st *store) (map[string]string, error) {
	shown := map[string]string{}
	for sp, c := (span{prefix: "/"}), new(chunk); ; sp.start = c.next {
		if err := st.chunk(sp, c); err != nil {
			return shown, err
		}
		for _, r := range c.records {
			shown[r.key] = fmt.Sprintf("%d %d %s", r.rev, r.createRev, r.json)
		}
		if c.next == "" {
			return shown, nil
		}
	}
}

// damage flips a bit of a copy; sometimes it cuts the file off or zeroes a sector of it instead.
func (d *damageCampaign) damage(file []byte) (b []byte, what string) {
	b = bytes.Clone(file)
	at := d.rnd.IntN(len(b))
	switch d.rnd.IntN(10) {
	case 0:
		return b[:at], fmt.Sprintf("cut to %d of %d bytes", at, len(b))
	case 1:
		at -= at % 512
		clear(b[at : at+512])
		return b, fmt.Sprintf("512 bytes zeroed at %d", at)
	}
	bit := d.rnd.IntN(8)
	b[at] ^= 1 << bit
	return b, fmt.Sprintf("bit %d of byte %d flipped", bit, at)
}

func (d *damageCampaign) round(i int) {
	b, what := d.damage(d.files[i%2])
	fmt.Printf("round %d: %s, closed %v\n", i, what, i%2 == 0)
	path := filepath.Join(d.dir, fmt.Sprintf("%d.db", i))
	if err := os.WriteFile(path, b, 0o600); err != nil {
		d.t.Fatal(err)
	}
	defer os.Remove(path)
	rep, err := checkFile(path)
	found := err != nil || len(rep.problems) > 0
	shown, err := d.use(path)
	for key, object := range shown {
		if object != d.truth[i%2][key] && !found {
			d.t.Errorf("round %d: %s: %s is %q, was %q", i, what, key, object, d.truth[i%2][key])
		}
	}
	switch {
	case err != nil:
		d.counts["refused or an error that names it"]++
	case maps.Equal(shown, d.truth[i%2]) && found:
		d.counts["found by check alone, without effect on lists"]++
	case maps.Equal(shown, d.truth[i%2]):
		d.counts["without effect"]++
	case found:
		d.counts["lists lack something, found by check"]++
	default:
		d.t.Errorf("round %d: %s: %d of %d objects are shown, and nothing is found", i, what, len(shown), len(d.truth[i%2]))
	}
}

// use does with a file what a server does. It returns what LIST shows, and the first error.
func (d *damageCampaign) use(path string) (shown map[string]string, err error) {
	failed := false
	st, err := openStore(path, storeOptions{fatal: func(error) { failed = true }})
	if err != nil {
		return nil, err
	}
	defer func() {
		st.close()
		if failed { // the process would be gone
			go st.db.Close()
		}
	}()
	st.db.NoSync = true
	shown, err = listShown(st)
	for key := range shown {
		st.get(key)
	}
	for at := st.compacted(); at < st.revision(); {
		_, upTo, err := st.events("//pods/", at, 100, nil)
		if err != nil || upTo <= at {
			break
		}
		at = upTo
	}
	storeWrite(st, opCreate, "//pods/probe/a", 0, "")
	if up, err := newUpkeep(st); err == nil {
		up.compact(context.Background(), st.revision())
	}
	return shown, err
}

// ---- Lost files

// A branch page that names itself as its last child is a tree without an end.
func TestPagesInACircleAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	st := openTestStore(t, path)
	for i := range 300 {
		if _, err := st.commit(context.Background(), change{op: opCreate, key: fmt.Sprintf("//configmaps/default/%0200d", i), json: []byte(`{"metadata":{"resourceVersion":""}}`), revAt: 32}); err != nil {
			t.Fatal(err)
		}
	}
	var root int64
	if err := st.db.View(func(tx *bbolt.Tx) error { root = int64(tx.Bucket(bucketKeys).RootPage()); return nil }); err != nil {
		t.Fatal(err)
	}
	size := int64(st.pageSize)
	if err := st.close(); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	page := make([]byte, size)
	if _, err := file.ReadAt(page, root*size); err != nil || binary.NativeEndian.Uint16(page[8:]) != pageBranch {
		t.Fatalf("the root is no branch page: %v", err)
	}
	last := pageHeaderSize + (int(binary.NativeEndian.Uint16(page[10:]))-1)*pageElementSize
	binary.NativeEndian.PutUint64(page[last+8:], uint64(root))
	if _, err := file.WriteAt(page, root*size); err != nil {
		t.Fatal(err)
	}
	if st, err := openStore(path, storeOptions{}); !errors.Is(err, errDamaged) {
		t.Errorf("opened: %v, %v", st != nil, err)
	}
	if rep, err := checkFile(path); err != nil || len(rep.problems) == 0 {
		t.Errorf("check: %v, %v", rep.problems, err)
	}
}

// A client is told what has happened to the file, the probes too, and nothing is answered 201 that would be gone at exit.
func TestClientsAreToldOfALostFile(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a file in use cannot be removed")
	}
	path := filepath.Join(t.TempDir(), "a.db")
	s := startTest(t, onFile(path))
	maps := s.namespace("lost")
	s.want(201, "POST", maps, configMap("kept"))
	os.Rename(path, path+".away")
	if a := s.want(500, "POST", maps, configMap("refused")); !strings.Contains(a.get("message").String(), "data file was removed or replaced") {
		t.Errorf("got %s", a.failure())
	}
	if a := s.send("GET", "/readyz", ""); a.code != 500 {
		t.Errorf("/readyz: %d %s", a.code, a.body)
	}
	s.want(200, "GET", maps+"/kept", "")
	saved := filepath.Join(t.TempDir(), "saved.db")
	if err := (backupSource{server: s.url}).download(saved); err != nil {
		t.Error(err)
	}
	startTest(t, onFile(saved)).want(200, "GET", maps+"/kept", "")
	os.Rename(path+".away", path)
	s.want(201, "POST", maps, configMap("refused"))
}

// ---- Clocks

// However the clock jumps, compaction never goes back, nothing live is lost, and once the clock behaves history goes on to be kept for
// an interval and no longer than two.
func TestClockJumps(t *testing.T) {
	const interval = 5 * time.Minute
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 1))
	st := tempStore(t)
	up := mustUpkeep(t, st)
	now := time.Unix(1_800_000_000, 0)
	writes := 0
	round := func() {
		t.Helper()
		before := st.compacted()
		mustWrite(t, st, opCreate, fmt.Sprintf("//pods/x/%d", writes), 0, "")
		writes++
		if done, err := up.round(t.Context(), now, interval); err != nil || done.rev < before || done.rev > st.revision() {
			t.Fatalf("seed %d: at %v compacted from %d to %d of %d, %v", seed, now, before, done.rev, st.revision(), err)
		}
	}
	for range 150 {
		switch rnd.IntN(4) {
		case 0:
			now = now.Add(time.Duration(rnd.Int64N(int64(20*365*24*time.Hour))) - 10*365*24*time.Hour)
		case 1:
			now = time.Unix(rnd.Int64N(100), 0) // a device without a battery for its clock
		default:
			now = now.Add(interval)
		}
		round()
	}
	for range 3 {
		now = now.Add(interval)
		round()
	}
	if got, want := st.compacted(), st.revision()-1; got != want {
		t.Errorf("seed %d: when the clock behaves again: compacted to %d, want %d", seed, got, want)
	}
	if n, err := st.countAt("/", "", st.revision()); err != nil || int(n) != writes {
		t.Errorf("seed %d: %d of %d objects are left, %v", seed, n, writes, err)
	}
}

// ---- Files of others

// What is not ours, or of a format that this version does not know, is refused by name and left as it is.
func TestForeignFilesAreLeftAlone(t *testing.T) {
	withFormat := func(format int64) []byte {
		path := filepath.Join(t.TempDir(), "a.db")
		st := openTestStore(t, path)
		mustWrite(t, st, opCreate, "//pods/x/a", 0, "")
		st.db.Update(func(tx *bbolt.Tx) error { return putMetaInt(tx, "format", format) })
		st.close()
		b, _ := os.ReadFile(path)
		return b
	}
	plain := filepath.Join(t.TempDir(), "plain.db")
	db, err := bbolt.Open(plain, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	db.Update(func(tx *bbolt.Tx) error { _, err := tx.CreateBucket([]byte("users")); return err })
	db.Close()
	plainBytes, _ := os.ReadFile(plain)
	for title, c := range map[string]struct {
		content []byte
		want    string
	}{
		"a newer format":    {withFormat(storeFormat + 1), fmt.Sprintf("has format %d and this version of apilet reads format %d", storeFormat+1, storeFormat)},
		"an older format":   {withFormat(storeFormat - 1), fmt.Sprintf("has format %d and this version of apilet reads format %d", storeFormat-1, storeFormat)},
		"etcd, or any bolt": {plainBytes, "is a bbolt file of another program"},
		"SQLite":            {append([]byte("SQLite format 3\x00\x10\x00\x01\x01\x00\x40\x20\x20"), make([]byte, 8172)...), "not an apilet data file"},
		"nothing":           {nil, "is empty (0 bytes)"},
		"noise":             {bytes.Repeat([]byte("\x9d\x01kube"), 9000), "not an apilet data file"},
	} {
		path := writeDataFile(t, c.content)
		for command, do := range map[string]func() error{
			"serve":  func() error { _, err := openStore(path, storeOptions{}); return err },
			"check":  func() error { _, err := checkFile(path); return err },
			"defrag": func() error { return defragFile(path) },
			"backup": func() error { return runBackup(&config{data: path}, []string{path + ".copy"}) },
		} {
			if err := do(); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s of %s: got %v, want %s", command, title, err, c.want)
			}
		}
		if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, c.content) {
			t.Errorf("%s: the file has changed (%v)", title, err)
		}
		if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
			t.Errorf("%s: left %v", title, left)
		}
	}
}
