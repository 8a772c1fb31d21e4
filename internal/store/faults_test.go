package store

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"apilet/internal/apitest"
	"apilet/internal/store/boltfile"
)

// TestDamagedFiles checks that a damaged file is either rejected or reported as damaged. It must
// never cause a panic, return wrong content, or omit an object without a finding by check.
//
//	APILET_DAMAGES=10000 go test -run TestDamagedFiles -v ./internal/store   # the long version, with counts
func TestDamagedFiles(t *testing.T) { runCampaign(t, "TestDamageChild", 500) }

// runCampaign runs a campaign in a child process. If the child dies, its last line identifies the
// cause.
func runCampaign(t *testing.T, child string, long int) {
	rounds := cmp.Or(os.Getenv("APILET_DAMAGES"), strconv.Itoa(apitest.Rounds(long)))
	limit := 3 * time.Hour
	if end := apitest.Deadline(t); !end.IsZero() {
		limit = time.Until(end) // a hanging child then prints its goroutines
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+child+"$", "-test.v", "-test.timeout="+limit.String())
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
	if summary == "" {
		t.Errorf("%s has not run: %v", child, said)
	}
	t.Log(summary)
}

// TestDamageChild is not a test. TestDamagedFiles runs it in a child process.
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
	files  [2][]byte            // the first was closed by the store, the second was not
	truth  [2]map[string]string // LIST results for each file
	counts map[string]int
}

// read lists a sound file.
func (d *damageCampaign) read(file []byte) map[string]string {
	st := openTestStore(d.t, writeDataFile(d.t, file))
	defer st.Close()
	shown, err := listShown(st)
	if err != nil || len(shown) != 60 {
		d.t.Fatalf("%d objects, %v", len(shown), err)
	}
	return shown
}

// listShown lists all objects up to the first error.
func listShown(st *Store) (map[string]string, error) {
	shown := map[string]string{}
	for sp, c := (Span{Prefix: "/"}), new(Chunk); ; sp.Start = c.Next {
		if err := st.Chunk(sp, c); err != nil {
			return shown, err
		}
		for _, r := range c.Records {
			shown[r.Key] = fmt.Sprintf("%d %d %s", r.Rev, r.CreateRev, r.JSON)
		}
		if c.Next == "" {
			return shown, nil
		}
	}
}

// damage flips a bit in a copy of the file. Sometimes it truncates the copy or clears a sector
// instead.
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
	rep, err := Check(path)
	found := err != nil || len(rep.Problems) > 0
	shown, err := d.use(path)
	if after, _ := os.ReadFile(path); shown == nil && !bytes.Equal(after, b) {
		d.t.Errorf("round %d: %s: refused (%v), and changed", i, what, err)
	}
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

// use opens a file and uses it like a server would. It returns the result of LIST and the first
// error.
func (d *damageCampaign) use(path string) (shown map[string]string, err error) {
	failed := false
	st, err := Open(path, Options{Fatal: func(error) { failed = true }})
	if err != nil {
		return nil, err
	}
	defer func() {
		st.Close()
		if failed { // the process would have ended
			go st.File.Db.Close()
		}
	}()
	st.File.Db.NoSync = true
	shown, err = listShown(st)
	for key := range shown {
		st.Get(key)
	}
	for at := st.Compacted(); at < st.Revision(); {
		_, upTo, err := st.Events("//pods/", at, 100, nil)
		if err != nil || upTo <= at {
			break
		}
		at = upTo
	}
	storeWrite(st, OpCreate, "//pods/probe/a", 0, "")
	if up, err := NewMaintenance(st); err == nil {
		up.Compact(context.Background(), st.Revision())
	}
	return shown, err
}

// TestPagesInACircleAreRefused tests a branch page that refers to itself as its last child.
func TestPagesInACircleAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	st := openTestStore(t, path)
	for i := range 300 {
		if _, err := st.Commit(context.Background(), Change{Op: OpCreate, Key: fmt.Sprintf("//configmaps/default/%0200d", i), JSON: []byte(`{"metadata":{"resourceVersion":""}}`), RevAt: 32}); err != nil {
			t.Fatal(err)
		}
	}
	var root int64
	if err := st.File.Db.View(func(tx *bbolt.Tx) error {
		root = int64(tx.Bucket(boltfile.Buckets[boltfile.InKeys]).RootPage())
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	size := int64(st.File.PageSize())
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	page := make([]byte, size)
	if _, err := file.ReadAt(page, root*size); err != nil || binary.NativeEndian.Uint16(page[8:]) != 1 {
		t.Fatalf("the root is no branch page: %v", err)
	}
	last := 16 + (int(binary.NativeEndian.Uint16(page[10:]))-1)*16
	binary.NativeEndian.PutUint64(page[last+8:], uint64(root))
	if _, err := file.WriteAt(page, root*size); err != nil {
		t.Fatal(err)
	}
	if st, err := Open(path, Options{}); !errors.Is(err, ErrDamaged) {
		t.Errorf("opened: %v, %v", st != nil, err)
	}
	if rep, err := Check(path); err != nil || len(rep.Problems) == 0 {
		t.Errorf("check: %v, %v", rep.Problems, err)
	}
}

// TestClockJumps checks that compactions are correct even if the clock is set forward or back.
// After the clock is correct again, history must be kept for one to two intervals.
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
		before := st.Compacted()
		mustWrite(t, st, OpCreate, fmt.Sprintf("//pods/x/%d", writes), 0, "")
		writes++
		if done, err := up.round(t.Context(), now, interval); err != nil || done.Rev < before || done.Rev > st.Revision() {
			t.Fatalf("seed %d: at %v compacted from %d to %d of %d, %v", seed, now, before, done.Rev, st.Revision(), err)
		}
	}
	for range 150 {
		switch rnd.IntN(4) {
		case 0:
			now = now.Add(time.Duration(rnd.Int64N(int64(20*365*24*time.Hour))) - 10*365*24*time.Hour)
		case 1:
			now = time.Unix(rnd.Int64N(100), 0) // a device whose clock has no battery
		default:
			now = now.Add(interval)
		}
		round()
	}
	for range 3 {
		now = now.Add(interval)
		round()
	}
	if got, want := st.Compacted(), st.Revision()-1; got != want {
		t.Errorf("seed %d: when the clock behaves again: compacted to %d, want %d", seed, got, want)
	}
	if n, err := st.CountAt("/", "", st.Revision()); err != nil || int(n) != writes {
		t.Errorf("seed %d: %d of %d objects are left, %v", seed, n, writes, err)
	}
}
