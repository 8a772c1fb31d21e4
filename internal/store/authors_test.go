package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"go.etcd.io/bbolt"

	"apilet/internal/apitest"
	"apilet/internal/store/boltfile"
)

func writeAs(t testing.TB, st *Store, key string, a Author) Record {
	t.Helper()
	json, at := storeDoc("x")
	rec, err := st.Commit(context.Background(), Change{Op: OpCreate, Key: key, JSON: json, RevAt: at, Author: a})
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// TestRecordsHaveTimesAndAuthors checks that the time and the author of a record are returned by
// all methods, also after a restart and from a backup.
func TestRecordsHaveTimesAndAuthors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "a.db")
	clock := time.UnixMilli(1_800_000_000_123)
	st, err := Open(path, Options{Clock: func() time.Time { return clock }, Author: func(ctx context.Context) Author {
		return Author{User: "alice", Agent: "kubectl/v1.36", Verb: "apply", Subresource: "status"}
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := Author{User: "alice", Agent: "kubectl/v1.36", Verb: "apply", Subresource: "status"}
	other := Author{User: "bob"}
	rec := mustWrite(t, st, OpCreate, "//pods/x/a", 0, "a")
	// the clock is corrected, but the timestamps must not decrease
	clock = clock.Add(-30 * time.Second)
	second := writeAs(t, st, "//pods/x/b", other)
	clock = clock.Add(-2 * time.Hour) // a large correction: times follow the clock
	third := writeAs(t, st, "//pods/x/c", other)
	for i, got := range []struct {
		Record
		ms   int64
		want Author
	}{{rec, 1_800_000_000_123, want}, {second, 1_800_000_000_123, Author{User: "bob", Verb: "create"}}, {third, 1_800_000_000_123 - 7_230_000, Author{User: "bob", Verb: "create"}}} {
		if got.Time != got.ms || st.Author(got.Author) != got.want {
			t.Errorf("record %d: %d by %+v, want %d by %+v", i, got.Time, st.Author(got.Author), got.ms, got.want)
		}
	}
	look := func(what string, st *Store) {
		t.Helper()
		var c Chunk
		if err := st.Chunk(Span{Prefix: "//pods/"}, &c); err != nil || len(c.Records) != 3 {
			t.Fatalf("%s: %v, %v", what, c.Records, err)
		}
		if r := c.Records[0]; r.Time != 1_800_000_000_123 || st.Author(r.Author) != want || !bytes.HasPrefix(r.JSON, []byte("{")) {
			t.Errorf("%s: %+v by %+v", what, r, st.Author(r.Author))
		}
	}
	look("chunk", st)
	evs, _, err := st.Events(Everything, 0, 10, nil)
	if err != nil || len(evs) != 3 || evs[0].Time != rec.Time || evs[0].Author != rec.Author {
		t.Errorf("events: %+v, %v", evs, err)
	}
	copied := filepath.Join(dir, "copy.db")
	if err := mustUpkeep(t, st).Backup(t.Context(), copied, nil); err != nil {
		t.Fatal(err)
	}
	st.Close()
	if err := Defrag(path, nil); err != nil {
		t.Fatal(err)
	}
	for what, file := range map[string]string{"restart": path, "backup": copied} {
		if rep, err := Check(file); err != nil || len(rep.Problems) > 0 {
			t.Errorf("%s: check: %v, %v", what, err, rep.Problems)
		}
		look(what, openTestStore(t, file))
	}
}

// TestStampsAreSmall checks that the stamp of a record is 7 bytes long, or 8 bytes if there are
// more than 127 authors.
func TestStampsAreSmall(t *testing.T) {
	for id, want := range map[AuthorID]int{0: 7, 127: 7, 128: 8, authorsMax: 8} {
		bare, stamped := Record{Key: "k", Rev: 9}, Record{Key: "k", Rev: 9, Time: 1_800_000_000_123, Author: id}
		doc := []byte("{}")
		b := encodeRecord(&stamped, doc, -1, 0)
		if got := len(b) - len(encodeRecord(&bare, doc, -1, 0)); got != want {
			t.Errorf("author %d: %d bytes, want %d", id, got, want)
		}
		r, key, err := decodeRecord(9, b)
		if err != nil || string(key) != "k" || r.Time != stamped.Time || r.Author != id || string(r.JSON) != "{}" {
			t.Errorf("author %d: %+v, %q, %v", id, r, key, err)
		}
	}
}

// TestStampsAreReadWithoutTrust checks that an incomplete stamp is treated as damage, even if the
// checksum is correct.
func TestStampsAreReadWithoutTrust(t *testing.T) {
	for n := range 8 {
		if _, _, _, ok := cutStamp(append(make([]byte, 0, 8), bytes.Repeat([]byte{0xFF}, n)...)); ok {
			t.Errorf("%d bytes are no stamp", n)
		}
	}
	if _, _, _, ok := cutStamp(append(make([]byte, 6), 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01)); ok {
		t.Error("an author beyond all numbers")
	}
}

// TestAuthorsAreBounded checks that a client cannot fill the file or the memory by changing its
// user agent, and that the names of other users are still recorded.
func TestAuthorsAreBounded(t *testing.T) {
	t.Parallel()
	const washed = 400
	path := filepath.Join(t.TempDir(), "a.db")
	st, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("agént\xff", 1000)
	bounded := st.Author(writeAs(t, st, "//pods/x/long", Author{User: long, Agent: long, Verb: long}).Author)
	if len(bounded.User) > userBytesMax || len(bounded.Agent) > agentBytesMax || !utf8.ValidString(bounded.Agent) || !strings.HasPrefix(bounded.Agent, "agént") {
		t.Errorf("bounded to %q", bounded)
	}
	st.Opts.Replica = nil
	wash := func(user string, writes int) {
		for i := range writes {
			rec := writeAs(t, st, fmt.Sprintf("//pods/x/%s-%d", user, i), Author{User: user, Agent: fmt.Sprint("random ", i), Verb: "create"})
			if a := st.Author(rec.Author); a.User != user || i < 10 && a.Agent == otherAuthor || i == writes-1 && a != (Author{User: user, Agent: otherAuthor, Verb: "create"}) {
				t.Fatalf("%d: %+v", i, a)
			}
		}
	}
	wash("mallory", washed)
	for i := range 3 {
		wash(fmt.Sprint("marvin", i), washed)
	}
	for i := range washed { // accounts of one namespace
		rec := writeAs(t, st, fmt.Sprintf("//pods/y/n%d", i), Author{User: fmt.Sprint(accountPrefix, "b:", i), Agent: fmt.Sprint("random ", i), Verb: "create"})
		if a := st.Author(rec.Author); i == washed-1 && a != (Author{User: accountPrefix + "b:" + otherAuthor, Agent: otherAuthor, Verb: "create"}) {
			t.Fatalf("%d: %+v", i, a)
		}
	}
	late := Author{User: "late", Agent: "a", Verb: "update"}
	if a := st.Author(writeAs(t, st, "//pods/y/last", late).Author); a != late {
		t.Errorf("who comes last, and has washed nothing: %+v", a)
	}
	for i := range rooms[0] { // for 600 users there is enough space
		writeAs(t, st, fmt.Sprintf("//pods/z/n%d", i), Author{User: fmt.Sprint("user ", i), Agent: "a", Verb: "create"})
	}
	if a := st.Author(writeAs(t, st, "//pods/z/last", Author{User: "later", Agent: "a", Verb: "update"}).Author); a != (Author{User: otherAuthor, Agent: otherAuthor, Verb: "update"}) {
		t.Errorf("after more users than there is room for: %+v", a)
	}
	if n := len(st.authors.byNumber); n > authorsMax+4 {
		t.Errorf("%d authors", n)
	}
	// A compaction removes authors that no record refers to. The others remain.
	kept := writeAs(t, st, "//pods/x/kept", Author{User: "alice", Agent: "random 3", Verb: "create"})
	for i := range washed {
		key := fmt.Sprintf("//pods/x/mallory-%d", i)
		rec, err := st.Get(key)
		if err != nil {
			t.Fatal(err)
		}
		json, at := storeDoc("gone")
		if _, err := st.Commit(t.Context(), Change{Op: OpDelete, Key: key, Expect: rec.Rev, JSON: json, RevAt: at}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := mustUpkeep(t, st).Compact(t.Context(), st.Revision()); err != nil {
		t.Fatal(err)
	}
	left := len(st.authors.byNumber)
	if left >= authorsMax-washed/2 || left < authorsMax/4 {
		t.Errorf("%d authors are left", left)
	}
	if a := st.Author(kept.Author); a.User == "" {
		t.Errorf("who is named is gone: %+v", a)
	}
	fresh := writeAs(t, st, "//pods/x/fresh", Author{User: "carol", Agent: "new", Verb: "create"})
	if a := st.Author(fresh.Author); a.User != "carol" || a.Agent != "new" {
		t.Errorf("a new one after it: %+v", a)
	}
	st.Close()
	if rep, err := Check(path); err != nil || len(rep.Problems) > 0 {
		t.Fatalf("check: %v, %v", err, rep.Problems)
	}
	st = openTestStore(t, path)
	if a := st.Author(fresh.Author); a.User != "carol" || len(st.authors.byNumber) != left+1 {
		t.Errorf("after a restart: %+v, %d authors", a, len(st.authors.byNumber))
	}
}

// TestDamagedAuthors checks that readers treat a damaged author as unknown, and that check reports
// it.
func TestDamagedAuthors(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	st := openTestStore(t, path)
	rec := writeAs(t, st, "//pods/x/a", Author{User: "unmistakable", Verb: "create"})
	st.Close()
	Defrag(path, nil) // leaves a single copy of it
	whole, _ := os.ReadFile(path)
	for at := range 20 {
		b := bytes.Clone(whole)
		// its checksum, lengths and texts
		b[bytes.LastIndex(whole, []byte("unmistakable"))-5+at] ^= 1
		path := writeDataFile(t, b)
		if rep, err := Check(path); err != nil || len(rep.Problems) == 0 {
			t.Fatalf("byte %d: check: %v, %v", at, err, rep.Problems)
		}
		st := openTestStore(t, path)
		if a := st.Author(rec.Author); a != (Author{}) {
			t.Errorf("byte %d: %+v", at, a)
		}
		if _, err := st.Get("//pods/x/a"); err != nil {
			t.Errorf("byte %d: %v", at, err)
		}
	}
	missing := writeDataFile(t, whole)
	db, err := bbolt.Open(missing, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	db.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket(boltfile.Buckets[boltfile.InAuthors]).Delete(authorKey(rec.Author))
	})
	db.Close()
	if rep, err := Check(missing); err != nil || len(rep.Problems) != 1 || !strings.Contains(rep.Problems[0], "names author 1, who is missing") {
		t.Errorf("a missing author: %v, %v", err, rep.Problems)
	}
}

// TestAuthorsOfAFailedCommit checks that a failed commit does not add an author that the file does
// not have.
func TestAuthorsOfAFailedCommit(t *testing.T) {
	t.Parallel()
	st := openTestStore(t, filepath.Join(t.TempDir(), "a.db"))
	json, at := storeDoc("x")
	who := Author{User: "dave", Verb: "update"}
	if _, err := st.Commit(t.Context(), Change{Op: OpUpdate, Key: "//pods/x/none", Expect: 3, JSON: json, RevAt: at, Author: who}); err != ErrNotFound {
		t.Fatal(err)
	}
	if len(st.authors.byNumber) != 0 {
		t.Errorf("%v", st.authors.byNumber)
	}
	rec := writeAs(t, st, "//pods/x/a", who)
	if st.Author(rec.Author) != who {
		t.Errorf("%+v", st.Author(rec.Author))
	}
}

// TestAuthorsOfAFullDisk checks that a commit that failed because of a full disk does not publish
// authors.
func TestAuthorsOfAFullDisk(t *testing.T) {
	t.Parallel()
	st := openLogged(t, filepath.Join(t.TempDir(), "a.db"))
	mustWrite(t, st, OpCreate, "//pods/x/a", 0, "a")
	maintainTest(t, st, func(*boltfile.WriteTx) error {
		disk, write := st.File.Disk(), st.File.Disk().Write
		disk.Write = func(b []byte, at int64) (int, error) {
			if len(b) > 32 && binary.BigEndian.Uint32(b) > 0 { // a record, not zeros
				disk.Write = write
				return 0, syscall.ENOSPC
			}
			return write(b, at)
		}
		return errRefused
	})
	json, at := storeDoc("x")
	who := Author{User: "dave", Verb: "create"}
	if _, err := st.Commit(t.Context(), Change{Op: OpCreate, Key: "//pods/x/b", JSON: json, RevAt: at, Author: who}); !errors.Is(err, ErrDiskFull) {
		t.Fatal(err)
	}
	if len(st.authors.byNumber) != 0 {
		t.Errorf("known are %v", st.authors.byNumber)
	}
	if rec := writeAs(t, st, "//pods/x/b", who); st.Author(rec.Author) != who {
		t.Errorf("%+v", st.Author(rec.Author))
	}
}

// BenchmarkStamps measures the cost of times and authors for a commit. It compares a store with a
// store that does not write stamps, and reports the difference in CPU time and in the size of the
// records.
func BenchmarkStamps(b *testing.B) {
	const perTurn = 5000
	unstamped := func() time.Time { return time.UnixMilli(0) }
	by := Author{User: "system:serviceaccount:shop:controller", Agent: "manager/v0.0.0 (linux/amd64) kubernetes/$Format", Verb: "update", Manager: "manager"}
	with, without := tempStore(b), tempStore(b)
	without.Opts.Clock = unstamped
	for _, writers := range []int{1, 64} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			var ratios, more []float64
			for i := 0; b.Loop(); i++ {
				var used [2]float64
				for k := range 2 {
					at, begin := (i+k)%2, apitest.Processor()
					st, author := []*Store{with, without}[at], []Author{by, {}}[at]
					var wg sync.WaitGroup
					for w := range writers {
						wg.Go(func() {
							for n := w; n < perTurn; n += writers {
								key := fmt.Sprintf("//pods/namespace-%d-%d/app-%06d", writers, i%50, i*perTurn+n)
								if _, err := st.Commit(context.Background(), Change{Op: OpCreate, Key: key, JSON: benchRecord, RevAt: benchRevAt, Author: author}); err != nil {
									b.Error(err)
									return
								}
							}
						})
					}
					wg.Wait()
					used[at] = float64(apitest.Processor() - begin)
				}
				ratios, more = append(ratios, used[0]/used[1]), append(more, (used[0]-used[1])/perTurn)
			}
			slices.Sort(ratios)
			slices.Sort(more)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(ratios[len(ratios)/2], "cpu-ratio")
			b.ReportMetric(more[len(more)/2], "more-ns/write")
		})
	}
	r := Record{Key: "//pods/shop/web", Rev: 1, Time: time.Now().UnixMilli(), Author: 1}
	longer := func() int { return len(encodeRecord(&r, benchRecord, benchRevAt, 0)) }
	size := longer()
	r.Time, r.Author = 0, 0
	b.Logf("%d bytes more a record", size-longer())
}
