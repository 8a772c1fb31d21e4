package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"apilet/internal/apitest"
	"apilet/internal/store/boltfile"
)

func storeDocAt(payload string, rev int64) string {
	json, at := storeDoc(payload)
	return string(json[:at]) + strconv.FormatInt(rev, 10) + string(json[at:])
}

func tempStore(t testing.TB) *Store {
	t.Helper()
	st, err := Open("", Options{Ephemeral: true, Fatal: func(err error) { t.Errorf("fatal: %v", err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

// storeModel is the expected content of the store. It contains all writes in order.
type storeModel []Event

// at returns all live records at the given revision, sorted by key.
func (m storeModel) at(rev int64) (live []Record) {
	newest := map[string]Record{}
	for _, ev := range m {
		if ev.Rev <= rev {
			newest[ev.Key] = ev.Record
		}
	}
	for _, r := range newest {
		if !r.Deleted {
			live = append(live, r)
		}
	}
	slices.SortFunc(live, func(a, b Record) int { return strings.Compare(a.Key, b.Key) })
	return live
}

func (m storeModel) newest(key string) (Record, bool) {
	for i := len(m) - 1; i >= 0; i-- {
		if m[i].Key == key {
			return m[i].Record, !m[i].Deleted
		}
	}
	return Record{}, false
}

func (m storeModel) after(resource string, rev int64) (evs []Event) {
	for _, ev := range m {
		if ev.Rev > rev && strings.HasPrefix(ev.Key, resource) {
			evs = append(evs, ev)
		}
	}
	return evs
}

func diffRecord(got, want Record) string {
	if got.Key != want.Key || got.Rev != want.Rev || got.CreateRev != want.CreateRev || got.PrevRev != want.PrevRev ||
		got.Deleted != want.Deleted || got.Deleting != want.Deleting || !bytes.Equal(got.JSON, want.JSON) {
		return fmt.Sprintf("got %+v (%s)\nwant %+v (%s)", got, got.JSON, want, want.JSON)
	}
	return ""
}

func TestStoreAgreesWithASliceOfWrites(t *testing.T) {
	for range apitest.Rounds(10) {
		seed := rand.Uint64()
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { simulate(t, seed) })
	}
}

// A storeSim executes random operations and compares the store with its model.
type storeSim struct {
	t     *testing.T
	rnd   *rand.Rand
	path  string
	st    *Store
	up    *Maintenance
	model storeModel
	keys  []string
}

func simulate(t *testing.T, seed uint64) {
	s := &storeSim{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), path: filepath.Join(t.TempDir(), "a.db")}
	for i := range 12 {
		s.keys = append(s.keys, fmt.Sprintf("/%s/%s/%s/n%d", []string{"", "apps"}[i%2], []string{"pods", "sets"}[i%2], []string{"", "x", "y"}[i%3], i))
	}
	s.open()
	for s.st.Revision() == 0 {
		s.write()
	}
	for range 500 {
		switch n := s.rnd.IntN(100); {
		case n < 90:
			s.write()
		case n < 93:
			s.compact()
		case n < 94:
			if err := s.st.Close(); err != nil {
				t.Fatal(err)
			}
			s.open()
		default:
			s.list(s.retained())
		}
	}
	for rev := max(1, s.st.Compacted()); rev <= s.st.Revision(); rev++ {
		s.list(rev)
	}
	s.replayAll()
	s.st.Close()
	s.open()
	s.replayAll()
	s.st.Close()
	if rep, err := Check(s.path); err != nil || len(rep.Problems) > 0 {
		t.Errorf("check: %v, %+v", err, rep)
	}
}

func (s *storeSim) open() {
	s.st = openTestStore(s.t, s.path)
	s.up = mustUpkeep(s.t, s.st)
}

func (s *storeSim) retained() int64 {
	low := max(1, s.st.Compacted()) // 0 would mean the newest revision
	return low + s.rnd.Int64N(max(1, s.st.Revision()-low+1))
}

func (s *storeSim) write() {
	key := s.keys[s.rnd.IntN(len(s.keys))]
	op := ChangeOp(s.rnd.IntN(3))
	old, live := s.model.newest(key)
	expect := old.Rev
	if s.rnd.IntN(10) == 0 {
		expect = s.rnd.Int64N(s.st.Revision() + 2)
	}
	payload := strings.Repeat("x", s.rnd.IntN(200))
	if s.rnd.IntN(20) == 0 {
		payload = strings.Repeat("y", s.rnd.IntN(20000))
	}
	json, revAt := storeDoc(payload)
	rec, err := s.st.Commit(context.Background(), Change{Op: op, Key: key, Expect: expect, JSON: json, RevAt: revAt, Deleting: op == OpUpdate && old.Deleting})
	var want error
	switch {
	case op == OpCreate && live:
		want = ErrExists
	case op != OpCreate && !live:
		want = ErrNotFound
	case op != OpCreate && expect != old.Rev:
		want = ErrConflict
	}
	if !errors.Is(err, want) || (err != nil) != (want != nil) {
		s.t.Fatalf("op %d of %s: got %v, want %v", op, key, err, want)
	}
	if err != nil {
		return
	}
	rev := int64(1)
	if n := len(s.model); n > 0 {
		rev = s.model[n-1].Rev + 1
	}
	ev := Event{Record: Record{Key: key, Rev: rev, CreateRev: rev, Deleted: op == OpDelete, JSON: []byte(storeDocAt(payload, rev))}}
	if op != OpCreate {
		ev.CreateRev, ev.PrevRev, ev.Prev = old.CreateRev, old.Rev, old.JSON
	}
	if d := diffRecord(rec, ev.Record); d != "" {
		s.t.Fatal(d)
	}
	s.model = append(s.model, ev)
}

func (s *storeSim) compact() {
	if _, err := s.up.Compact(context.Background(), s.retained()); err != nil {
		s.t.Fatal(err)
	}
	if below := s.st.Compacted() - 1; below >= 0 {
		if err := s.st.Chunk(Span{Prefix: "/", Rev: below}, new(Chunk)); below > 0 && !errors.Is(err, ErrCompacted) {
			s.t.Fatalf("list at %d: got %v, want errCompacted", below, err)
		}
		if _, err := s.st.CountAt("/", "", below); !errors.Is(err, ErrCompacted) {
			s.t.Fatalf("count at %d: got %v, want errCompacted", below, err)
		}
	}
}

// list compares all lists at a revision.
func (s *storeSim) list(rev int64) {
	for _, prefix := range []string{"/", "//pods/", "/apps/sets/", "//pods/x/", "/apps/sets//"} {
		var want []Record
		for _, r := range s.model.at(rev) {
			if strings.HasPrefix(r.Key, prefix) {
				want = append(want, r)
			}
		}
		got := s.listChunks(prefix, rev)
		if len(got) != len(want) {
			s.t.Fatalf("list %s at %d: got %d objects, want %d", prefix, rev, len(got), len(want))
		}
		for i := range got {
			if d := diffRecord(got[i], want[i]); d != "" {
				s.t.Fatalf("list %s at %d: %s", prefix, rev, d)
			}
		}
		if n, err := s.st.CountAt(prefix, "", rev); err != nil || n != int64(len(want)) {
			s.t.Fatalf("countAt %s at %d: got %d, %v, want %d", prefix, rev, n, err, len(want))
		}
		if rev == s.st.Revision() && prefix != "/" {
			s.compareCount(prefix, want)
		}
	}
	if rev == s.st.Revision() {
		s.gets()
	}
}

func (s *storeSim) listChunks(prefix string, rev int64) (got []Record) {
	c := new(Chunk)
	for sp := (Span{Prefix: prefix, Rev: rev}); ; sp.Start = c.Next {
		sp.Items, sp.bytes = 1+s.rnd.IntN(5), 1+s.rnd.IntN(2000)
		if err := s.st.Chunk(sp, c); err != nil {
			s.t.Fatal(err)
		}
		if len(c.Records) > sp.Items || c.Rev != rev && rev != 0 {
			s.t.Fatalf("%d records at %d, asked for %d at %d", len(c.Records), c.Rev, sp.Items, rev)
		}
		for _, r := range c.Records {
			r.JSON = bytes.Clone(r.JSON)
			got = append(got, r)
		}
		if c.Next == "" {
			return got
		}
	}
}

func (s *storeSim) compareCount(prefix string, want []Record) {
	var size int64
	for _, r := range want {
		size += int64(len(r.JSON))
	}
	objects, bytes, rev := s.st.Count(prefix)
	if objects != int64(len(want)) || bytes != size || rev != s.st.Revision() {
		s.t.Fatalf("count %s: got %d, %d at %d, want %d, %d", prefix, objects, bytes, rev, len(want), size)
	}
}

func (s *storeSim) gets() {
	for _, key := range s.keys {
		want, live := s.model.newest(key)
		got, err := s.st.Get(key)
		if !live {
			if !errors.Is(err, ErrNotFound) {
				s.t.Fatalf("get %s: got %v, want errNotFound", key, err)
			}
			continue
		}
		if d := diffRecord(got, want); err != nil || d != "" {
			s.t.Fatalf("get %s: %v %s", key, err, d)
		}
	}
}

// replayAll reads the events from every revision on.
func (s *storeSim) replayAll() {
	for _, resource := range []string{"//pods/", "/apps/sets/", "//none/"} {
		for after := s.st.Compacted(); after <= s.st.Revision(); after++ {
			s.replay(resource, after)
		}
		if c := s.st.Compacted(); c > 0 && len(s.model.after(resource, c-1)) > len(s.model.after(resource, c)) {
			if _, _, err := s.st.Events(resource, c-1, 10, nil); !errors.Is(err, ErrCompacted) {
				s.t.Fatalf("events after %d: got %v, want errCompacted", c-1, err)
			}
		}
	}
}

func (s *storeSim) replay(resource string, after int64) {
	want := s.model.after(resource, after)
	from := after
	for {
		evs, upTo, err := s.st.Events(resource, after, 1+s.rnd.IntN(100), nil)
		if err != nil {
			s.t.Fatalf("events of %s after %d: %v", resource, after, err)
		}
		for _, ev := range evs {
			if len(want) == 0 {
				s.t.Fatalf("events of %s from %d: %s at %d is one too many", resource, from, ev.Key, ev.Rev)
			}
			if d := diffRecord(ev.Record, want[0].Record); d != "" || !bytes.Equal(ev.Prev, want[0].Prev) || ev.Rev > upTo {
				s.t.Fatalf("events of %s from %d, up to %d: %s (prev %q, want %q)", resource, from, upTo, d, ev.Prev, want[0].Prev)
			}
			want = want[1:]
		}
		if upTo == s.st.Revision() {
			break
		}
		if upTo <= after {
			s.t.Fatalf("events of %s after %d stand still", resource, after)
		}
		after = upTo
	}
	if len(want) > 0 {
		s.t.Fatalf("events of %s from %d: %d are missing", resource, from, len(want))
	}
}

func TestStoreFutureRevisionIsRefused(t *testing.T) {
	st := tempStore(t)
	mustWrite(t, st, OpCreate, "//pods/x/a", 0, "")
	if err := st.Chunk(Span{Prefix: "//pods/", Rev: 2}, new(Chunk)); !errors.Is(err, errFutureRev) {
		t.Errorf("chunk: %v", err)
	}
	if _, err := st.CountAt("//pods/", "", 2); !errors.Is(err, errFutureRev) {
		t.Errorf("countAt: %v", err)
	}
	if _, err := mustUpkeep(t, st).Compact(t.Context(), 2); !errors.Is(err, errFutureRev) {
		t.Errorf("compact: %v", err)
	}
	if evs, upTo, err := st.Events("//pods/", 7, 10, nil); len(evs) != 0 || upTo != 7 || err != nil {
		t.Errorf("events: %v, %d, %v", evs, upTo, err)
	}
}

func TestStorePreconditions(t *testing.T) {
	st := tempStore(t)
	create := func(key, parent string, deleting bool) error {
		json, at := storeDoc("")
		_, err := st.Commit(t.Context(), Change{Op: OpCreate, Key: key, Parent: parent, Deleting: deleting, JSON: json, RevAt: at})
		return err
	}
	for _, c := range []struct {
		key, parent string
		deleting    bool
		want        error
	}{
		{"//pods/n/a", "//namespaces//n", false, ErrParentMissing},
		{"//namespaces//n", "", false, nil},
		{"//pods/n/a", "//namespaces//n", false, nil},
		{"//pods/n/a", "//namespaces//n", false, ErrExists},
		{"//pods/n/b", "", true, nil},
		{"//pods/n/b", "", false, ErrDeleting},
		{"//namespaces//m", "", true, nil},
		{"//pods/m/a", "//namespaces//m", false, ErrParentDeleting},
	} {
		if err := create(c.key, c.parent, c.deleting); err != c.want {
			t.Errorf("create %s under %q: got %v, want %v", c.key, c.parent, err, c.want)
		}
	}
	for made, want := range map[string]error{"//namespaces//missing": ErrTypeDeleting, "//namespaces//m": ErrTypeDeleting, "//namespaces//n": nil} {
		json, at := storeDoc("")
		if _, err := st.Commit(t.Context(), Change{Op: OpCreate, Key: "//pods/n/typed", Type: made, Parent: "//namespaces//n", JSON: json, RevAt: at}); err != want {
			t.Errorf("create of a type made by %s: got %v, want %v", made, err, want)
		}
	}
	for _, key := range []string{"", "/", "pods", "/a/b/c", "/a/b/c/", "/a//c/d", "/a/b/c/d/e", "a/b/c/d/e", "/a/b/c/" + strings.Repeat("x", keyLengthMax)} {
		if err := create(key, "", false); err == nil {
			t.Errorf("create of key %q went well", key)
		}
	}
}

// TestStoreExpectationHasToBeTheRevision checks that a write fails if the expected revision is
// higher than the stored revision.
func TestStoreExpectationHasToBeTheRevision(t *testing.T) {
	st := tempStore(t)
	mustWrite(t, st, OpCreate, "//pods/x/a", 0, "")
	rev := mustWrite(t, st, OpUpdate, "//pods/x/a", 1, "").Rev
	for _, op := range []ChangeOp{OpUpdate, OpDelete} {
		for _, expect := range []int64{0, rev - 1, rev + 1} {
			if _, err := storeWrite(st, op, "//pods/x/a", expect, ""); err != ErrConflict {
				t.Errorf("operation %d at %d of %d: got %v, want a conflict", op, expect, rev, err)
			}
		}
	}
}

// TestStoreForgetsEmptyNamespaces checks that the counts are removed when the last object of a
// namespace is deleted.
func TestStoreForgetsEmptyNamespaces(t *testing.T) {
	st := tempStore(t)
	for i := range 3 {
		key := fmt.Sprintf("//pods/n%d/a", i)
		mustWrite(t, st, OpDelete, key, mustWrite(t, st, OpCreate, key, 0, "").Rev, "")
	}
	if len(st.tallies) != 0 {
		t.Errorf("%d prefixes are counted, and nothing is stored", len(st.tallies))
	}
}

func TestStoreOneOfManyCreatesWins(t *testing.T) {
	st := tempStore(t)
	var won atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			switch _, err := storeWrite(st, OpCreate, "//pods/x/a", 0, ""); {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, ErrExists):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 || st.Revision() != 1 {
		t.Errorf("%d creates won, revision %d", won.Load(), st.Revision())
	}
}

// TestStoreBatchMembersSeeTheirNeighbours creates the batch itself to make sure that the changes
// are committed together.
func TestStoreBatchMembersSeeTheirNeighbours(t *testing.T) {
	st := tempStore(t)
	var members []*pendingWrite
	add := func(op ChangeOp, key string, expect int64) {
		json, at := storeDoc("p")
		members = append(members, &pendingWrite{Change: Change{Op: op, Key: key, Expect: expect, JSON: json, RevAt: at}, answer: make(chan struct{}, 1)})
	}
	add(OpCreate, "//pods/x/a", 0) // 1
	add(OpCreate, "//pods/x/a", 0) // exists
	add(OpUpdate, "//pods/x/a", 1) // 2
	add(OpUpdate, "//pods/x/a", 1) // conflict
	add(OpDelete, "//pods/x/a", 2) // 3
	add(OpDelete, "//pods/x/a", 3) // not found
	add(OpCreate, "//pods/x/a", 0) // 4
	st.commitBatch(members)
	for i, want := range []error{nil, ErrExists, nil, ErrConflict, nil, ErrNotFound, nil} {
		if members[i].err != want {
			t.Errorf("member %d: got %v, want %v", i, members[i].err, want)
		}
	}
	if s := st.Stats(); s.Commits != 1 || s.Writes != 4 || s.Revision != 4 || s.objects != 1 {
		t.Errorf("%+v", s)
	}
	evs, _, _ := st.Events("//pods/", 0, 10, nil)
	if len(evs) != 4 || string(evs[1].Prev) != storeDocAt("p", 1) || string(evs[2].Prev) != storeDocAt("p", 2) || evs[3].Prev != nil {
		t.Errorf("events %+v", evs)
	}
}

// TestStoreBatchFindsTheFirstKeyOfAPage checks that the first key of a page is found after the last
// key of the previous page was read.
func TestStoreBatchFindsTheFirstKeyOfAPage(t *testing.T) {
	st := tempStore(t)
	batch := func(op ChangeOp, want error) {
		var members []*pendingWrite
		for i := range writeBatchMax {
			json, at := storeDoc("p")
			c := Change{Op: op, Key: fmt.Sprintf("//pods/x/%03d", i), Expect: -1, JSON: json, RevAt: at}
			members = append(members, &pendingWrite{Change: c, answer: make(chan struct{}, 1)})
		}
		st.commitBatch(members)
		for _, e := range members {
			if e.err != want {
				t.Errorf("operation %d of %s: got %v, want %v", e.Op, e.Key, e.err, want)
			}
		}
	}
	batch(OpCreate, nil)
	batch(OpUpdate, ErrConflict) // the pages are read from the file because nothing was written
}

// TestStoreBatchSeesWhatItHasChanged checks that changes in a batch are visible to later changes in
// the same batch.
func TestStoreBatchSeesWhatItHasChanged(t *testing.T) {
	st := tempStore(t)
	up := mustUpkeep(t, st)
	for i := range 300 { // to make sure that the keys are stored on several pages
		mustWrite(t, st, OpCreate, fmt.Sprintf("//pods/%c/filler-%03d", 'w'+2*byte(i%2), i), 0, "")
	}
	base := st.Revision()
	mustWrite(t, st, OpCreate, "//namespaces//x", 0, "")            // 1
	mustWrite(t, st, OpCreate, "/ext/definitions//foos.ext", 0, "") // 2
	mustWrite(t, st, OpCreate, "//pods/x/gone", 0, "")              // 3
	gone := mustWrite(t, st, OpDelete, "//pods/x/gone", base+3, "") // 4
	// the deleted versions can no longer be read
	if err := up.st.raiseCompact(t.Context(), gone.Rev); err != nil {
		t.Fatal(err)
	}
	var members []*pendingWrite
	var wants []error
	add := func(c Change, want error) {
		c.JSON, c.RevAt = storeDoc("p")
		members, wants = append(members, &pendingWrite{Change: c, answer: make(chan struct{}, 1)}), append(wants, want)
	}
	foo := func(name string) Change {
		return Change{Op: OpCreate, Key: "/ext/foos/x/" + name, Parent: "//namespaces//x", Type: "/ext/definitions//foos.ext"}
	}
	add(foo("a"), nil)                                                                                  // 5
	add(Change{Op: OpUpdate, Key: "/ext/definitions//foos.ext", Expect: base + 2, Deleting: true}, nil) // 6
	add(foo("b"), ErrTypeDeleting)
	add(Change{Op: OpDelete, Key: "/ext/definitions//foos.ext", Expect: base + 6}, nil) // 7
	add(foo("b"), ErrTypeDeleting)
	add(Change{Op: OpCreate, Key: "/ext/definitions//foos.ext"}, nil)                        // 8
	add(foo("b"), nil)                                                                       // 9
	add(Change{Op: OpUpdate, Key: "//namespaces//x", Expect: base + 1, Deleting: true}, nil) // 10
	add(foo("c"), ErrParentDeleting)
	add(Change{Op: OpDelete, Key: "//namespaces//x", Expect: base + 10}, nil) // 11
	add(foo("c"), ErrParentMissing)
	members, wants = append(members, &pendingWrite{answer: make(chan struct{}, 1), job: func(l *boltfile.WriteTx) error {
		return up.deleteRecords(l, []deadRecord{{rev: base + 3}, {rev: gone.Rev}})
	}}), append(wants, nil)
	add(Change{Op: OpCreate, Key: "//pods/x/gone"}, nil)   // 12
	add(Change{Op: OpCreate, Key: "//namespaces//x"}, nil) // 13
	add(foo("c"), nil)                                     // 14
	st.commitBatch(members)
	for i, want := range wants {
		if members[i].err != want {
			t.Errorf("member %d: got %v, want %v", i, members[i].err, want)
		}
	}
	err := st.readSnapshot(func(s *snapshot) error {
		// the version before 12 was deleted by the job
		for rev, want := range map[int64]int64{5: 0, 9: 0, 12: 0, 13: 11, 14: 0} {
			r, _, err := decodeRecord(base+rev, s.revs.Get(revKey(base+rev)))
			if err != nil || max(r.PrevRev-base, 0) != want {
				t.Errorf("revision %d was before %d (%v), want %d", r.PrevRev-base, rev, err, want)
			}
		}
		return nil
	})
	if err != nil || st.Revision() != base+14 {
		t.Errorf("%v, revision %d", err, st.Revision()-base)
	}
}

func TestStoreContextEndsTheWaitInTheQueue(t *testing.T) {
	st := tempStore(t)
	hold, held := make(chan struct{}), make(chan struct{})
	go st.maintain(context.Background(), func(*boltfile.WriteTx) error {
		close(held)
		<-hold
		return nil
	})
	<-held
	ctx, cancel := context.WithCancel(t.Context())
	queued, done := make(chan struct{}), make(chan error)
	go func() {
		json, at := storeDoc("")
		_, err := st.Commit(ctx, Change{Op: OpCreate, Key: "//pods/x/a", JSON: json, RevAt: at, Queued: func() { close(queued) }})
		done <- err
	}()
	<-queued
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(hold)
	mustWrite(t, st, OpCreate, "//pods/x/b", 0, "")
	if _, err := st.Get("//pods/x/a"); !errors.Is(err, ErrNotFound) {
		t.Errorf("the abandoned change was made: %v", err)
	}
}

func TestStoreQuotaSparesDeletes(t *testing.T) {
	st := openTestStore(t, filepath.Join(t.TempDir(), "a.db"))
	st.Opts.Quota = 1 << 20
	var err error
	last := 0
	for i := 0; err == nil && i < 1000; i++ {
		last = i
		_, err = storeWrite(st, OpCreate, fmt.Sprintf("//pods/x/%d", i), 0, strings.Repeat("x", 10_000))
	}
	if !errors.Is(err, ErrQuota) {
		t.Fatalf("after %d creates: %v", last, err)
	}
	json, at := storeDoc("")
	if rec, err := st.Commit(t.Context(), Change{Op: OpUpdate, Key: "//pods/x/0", Expect: 1, Deleting: true, JSON: json, RevAt: at}); err != nil {
		t.Errorf("a mark of deletion: %v", err)
	} else {
		mustWrite(t, st, OpDelete, "//pods/x/0", rec.Rev, "")
	}
	for i := 1; i < last; i++ {
		mustWrite(t, st, OpDelete, fmt.Sprintf("//pods/x/%d", i), int64(i+1), "")
	}
	if _, err := storeWrite(st, OpCreate, "//pods/x/a", 0, ""); !errors.Is(err, ErrQuota) {
		t.Errorf("before compaction: %v", err)
	}
	if _, err := mustUpkeep(t, st).Compact(t.Context(), st.Revision()); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, st, OpCreate, "//pods/x/a", 0, "")
}

func TestStoreEphemeralLeavesNothing(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv("TMP", os.Getenv("TMPDIR"))
	st, err := Open("ignored", Options{Ephemeral: true})
	if err != nil {
		t.Fatal(err)
	}
	mustWrite(t, st, OpCreate, "//pods/x/a", 0, "")
	if err := st.Close(); err != nil {
		t.Error(err)
	}
	if names, _ := os.ReadDir(os.Getenv("TMPDIR")); len(names) > 0 {
		t.Errorf("left %v", names)
	}
	if _, err := storeWrite(st, OpCreate, "//pods/x/b", 0, ""); !errors.Is(err, errClosed) {
		t.Errorf("write after close: %v", err)
	}
	if _, err := st.Get("//pods/x/a"); !errors.Is(err, errClosed) {
		t.Errorf("get after close: %v", err)
	}
	st.Stats()
}

func TestStoreSecretIsMadeOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	st := openTestStore(t, path)
	values := make(chan string, 8)
	for i := range 8 {
		go func() {
			v, err := st.Secret("k", func() []byte { return []byte{byte(i)} })
			if err != nil {
				t.Error(err)
			}
			values <- string(v)
		}()
	}
	first := <-values
	for range 7 {
		if v := <-values; v != first {
			t.Errorf("got %q and %q", first, v)
		}
	}
	id := st.Lineage()
	st.Close()
	st = openTestStore(t, path)
	if v, _ := st.Secret("k", func() []byte { return []byte("new") }); string(v) != first || st.Lineage() != id || id == [16]byte{} {
		t.Errorf("after reopening: %q, %x; before: %q, %x", v, st.Lineage(), first, id)
	}
}

// TestStoreListThenWatchMissesNothing runs writers and watchers concurrently. Each watcher lists at
// some revision, then follows the events, and must end with the stored objects.
func TestStoreListThenWatchMissesNothing(t *testing.T) {
	st := tempStore(t)
	const writers, each = 4, 300
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			resource := []string{"//pods/", "/apps/sets/"}[w%2]
			for i := range each {
				key := fmt.Sprintf("%sx/w%d-%d", resource, w, i%7)
				var expect int64
				op := OpCreate
				if r, err := st.Get(key); err == nil {
					expect, op = r.Rev, ChangeOp(1+i%2)
				}
				if rec, err := storeWrite(st, op, key, expect, strconv.Itoa(i)); err != nil || rec.Rev > st.Revision() {
					t.Errorf("%s: %v, revision %d above %d", key, err, rec.Rev, st.Revision())
				}
			}
		})
	}
	for range 6 {
		wg.Go(func() { followToRevision(t, st, "//pods/", writers*each) })
	}
	wg.Wait()
}

func followToRevision(t *testing.T, st *Store, resource string, end int64) {
	state := map[string]int64{}
	var c Chunk
	if err := st.Chunk(Span{Prefix: resource}, &c); err != nil {
		t.Error(err)
	}
	for _, r := range c.Records {
		state[r.Key] = r.Rev
	}
	starved := apitest.Timeout(t)
	for at := c.Rev; at < end; {
		wake := st.WakeChannel(resource)
		evs, upTo, err := st.Events(resource, at, 50, nil)
		if err != nil || upTo < at {
			t.Error(err, upTo)
			return
		}
		for _, ev := range evs {
			if ev.Rev <= at || state[ev.Key] != ev.PrevRev {
				t.Errorf("event %d of %s after %d replaces %d, have %d", ev.Rev, ev.Key, at, ev.PrevRev, state[ev.Key])
			}
			if at, state[ev.Key] = ev.Rev, ev.Rev; ev.Deleted {
				delete(state, ev.Key)
			}
		}
		if at = upTo; len(evs) > 0 || at >= end {
			continue
		}
		select {
		case <-wake:
		// the last writes may have been made to another resource
		case <-time.After(10 * time.Millisecond):
		case <-starved:
			t.Error("watcher starved")
			return
		}
	}
	if n, err := st.CountAt(resource, "", end); err != nil || int(n) != len(state) {
		t.Errorf("watcher holds %d objects, the store %d (%v)", len(state), n, err)
	}
}

func TestStoreRingStaysBounded(t *testing.T) {
	st := tempStore(t)
	big := strings.Repeat("x", 1<<20)
	for i := range 20 {
		mustWrite(t, st, OpCreate, fmt.Sprintf("//pods/x/%d", i), 0, big)
	}
	if s := st.Stats(); s.ringSize > ringBytes || s.ringEvents < 4 || s.ringEvents > 8 {
		t.Errorf("ring holds %d events, %d bytes", s.ringEvents, s.ringSize)
	}
	mustWrite(t, st, OpCreate, "//pods/x/huge", 0, strings.Repeat(big, 9))
	if s := st.Stats(); s.ringSize != 0 || s.ringEvents != 0 {
		t.Errorf("ring holds %d events, %d bytes", s.ringEvents, s.ringSize)
	}
	var at, n int64
	for at < st.Revision() {
		evs, upTo, err := st.Events("//pods/", at, 100, nil)
		if err != nil || upTo <= at {
			t.Fatal(upTo, err)
		}
		at, n = upTo, n+int64(len(evs))
	}
	if n != 21 {
		t.Errorf("%d events", n)
	}
}

func TestStoreWatcherOfAQuietResourceOutlivesCompaction(t *testing.T) {
	st := tempStore(t)
	mustWrite(t, st, OpCreate, "//quiet/x/a", 0, "")
	_, at, err := st.Events("//quiet/", 0, 10, nil)
	if err != nil || at != 1 {
		t.Fatal(at, err)
	}
	var rev int64
	for i := range ringEvents + 10 {
		if i == 0 {
			rev = mustWrite(t, st, OpCreate, "//pods/x/a", 0, "").Rev
		} else {
			rev = mustWrite(t, st, OpUpdate, "//pods/x/a", rev, "").Rev
		}
	}
	if _, err := mustUpkeep(t, st).Compact(t.Context(), rev); err != nil {
		t.Fatal(err)
	}
	last := mustWrite(t, st, OpCreate, "//quiet/x/b", 0, "").Rev
	if evs, upTo, err := st.Events("//quiet/", at, 10, nil); err != nil || len(evs) != 1 || upTo != last {
		t.Errorf("%v, up to %d, %v", evs, upTo, err)
	}
	if _, _, err := st.Events("//quiet/", 0, 10, nil); !errors.Is(err, ErrCompacted) {
		t.Errorf("events from 0: %v", err)
	}
}

func TestStoreChunkMakesProgressWithHugeObjects(t *testing.T) {
	st := tempStore(t)
	for i := range 3 {
		mustWrite(t, st, OpCreate, fmt.Sprintf("//pods/x/%d", i), 0, strings.Repeat("x", 3<<20))
	}
	var c Chunk
	for i, start := 0, ""; i < 3; i++ {
		if err := st.Chunk(Span{Prefix: "//pods/", Start: start}, &c); err != nil || len(c.Records) != 1 {
			t.Fatalf("chunk %d: %d records, %v", i, len(c.Records), err)
		}
		start = c.Next
	}
	if c.Next != "" {
		t.Errorf("next is %q", c.Next)
	}
}

// TestStoreAllIsOneRevision checks that a walk of several chunks does not contain later writes, and
// that the caller can end it.
func TestStoreAllIsOneRevision(t *testing.T) {
	st := tempStore(t)
	for i := range 5 {
		mustWrite(t, st, OpCreate, fmt.Sprintf("//pods/x/%d", i), 0, "")
	}
	at := st.Revision()
	walk := func(until int) (keys []string) {
		for rec, err := range st.All(Span{Prefix: "//pods/", Rev: at, Items: 2}) {
			if err != nil {
				t.Fatal(err)
			}
			if keys = append(keys, rec.Key[len("//pods/x/"):]); len(keys) == until {
				break
			}
			mustWrite(t, st, OpCreate, fmt.Sprintf("//pods/x/%s+%d", keys[len(keys)-1], st.Revision()), 0, "")
		}
		return keys
	}
	if got := strings.Join(walk(0), " "); got != "0 1 2 3 4" {
		t.Errorf("the walk shows %s", got)
	}
	if got := strings.Join(walk(3), " "); got != "0 1 2" {
		t.Errorf("the walk that ends early shows %s", got)
	}
	ended := 0
	for rec, err := range st.All(Span{Prefix: "//pods/", Rev: st.Revision() + 1}) {
		if ended++; rec != nil || !errors.Is(err, errFutureRev) {
			t.Errorf("a revision to come: %v, %v", rec, err)
		}
	}
	if ended != 1 {
		t.Errorf("an error comes %d times", ended)
	}
}

func TestStoreOlderThan(t *testing.T) {
	st := tempStore(t)
	for i := range 10 {
		mustWrite(t, st, OpCreate, fmt.Sprintf("//events/x/%d", i), 0, "")
	}
	mustWrite(t, st, OpUpdate, "//events/x/3", 4, "")
	mustWrite(t, st, OpDelete, "//events/x/4", 5, "")
	var got []string
	for next, more := "", true; more; more = next != "" {
		records, n, err := st.OlderThan("//events/", 8, 2, next)
		if err != nil || len(records) > 2 {
			t.Fatal(records, err)
		}
		for _, r := range records {
			got = append(got, r.Key[len("//events/x/"):])
		}
		next = n
	}
	if want := "0 1 2 5 6 7"; strings.Join(got, " ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

func FuzzStoreRecord(f *testing.F) {
	r := Record{Key: "//pods/x/a", Rev: 7, CreateRev: 3, PrevRev: 5, Deleting: true}
	f.Add(int64(7), encodeRecord(&r, []byte(`{"r":""}`), 6, 0))
	f.Add(int64(1), []byte{})
	f.Fuzz(func(t *testing.T, rev int64, b []byte) {
		recordKey(b)
		r, key, err := decodeRecord(rev, b)
		if err != nil {
			return
		}
		r.Key = string(key)
		if again := encodeRecord(&r, r.JSON, -1, 0); b[0] < 4 && !bytes.Equal(again, b) {
			t.Errorf("%x decodes to %+v, which encodes to %x", b, r, again)
		}
	})
}

func FuzzStoreKeyPrefixes(f *testing.F) {
	for _, key := range []string{"//pods/x/a", "/apps/sets//a", "/", "", "////", "/a/b/c/d/e", "//a/b/", "///b/c"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		resource, namespace, ok := keyPrefixes(key)
		parts := strings.Split(key, "/")
		if want := len(parts) == 5 && parts[0] == "" && parts[2] != "" && parts[4] != "" && len(key) <= keyLengthMax; ok != want {
			t.Fatalf("keyPrefixes(%q): ok is %v", key, ok)
		}
		if ok && (resource != strings.Join(parts[:3], "/")+"/" || namespace != strings.Join(parts[:4], "/")+"/") {
			t.Errorf("keyPrefixes(%q) = %q, %q", key, resource, namespace)
		}
	})
}

// benchRecord is about 1 KiB, like a typical object.
var benchRecord, benchRevAt = storeDoc(strings.Repeat("0123456789abcdef", 61))

// benchWriters distributes b.N writes over n goroutines and reports the time for one.
func benchWriters(b *testing.B, n int, write func(i int) error) {
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ResetTimer()
	for range n {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				if err := write(int(i)); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkStoreCommit(b *testing.B) {
	for _, n := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("writers=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			st := openTestStore(b, filepath.Join(b.TempDir(), "a.db"))
			benchWriters(b, n, func(i int) error {
				_, err := st.Commit(context.Background(), Change{Op: OpCreate, Key: benchKey(i), JSON: benchRecord, RevAt: benchRevAt})
				return err
			})
			b.ReportMetric(float64(st.Stats().Writes)/float64(st.Stats().Commits), "writes/commit")
		})
		b.Run(fmt.Sprintf("raw=%d", n), func(b *testing.B) { benchRaw(b, n) })
	}
}

func benchKey(i int) string {
	return fmt.Sprintf("//pods/namespace-%02d/app-%06d", i%50, i*7919%1_000_003)
}

// benchRaw writes the same bytes with plain bbolt. The number of writes in a commit is half the
// number of writers.
func benchRaw(b *testing.B, writers int) {
	db, err := bbolt.Open(filepath.Join(b.TempDir(), "raw.db"), 0o600, &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	db.Update(initBuckets)
	value := make([]byte, recordHeader+30+len(benchRecord)+6)
	b.ResetTimer()
	for i := 0; i < b.N; {
		err := db.Update(func(tx *bbolt.Tx) error {
			revs, keys := tx.Bucket(boltfile.Buckets[boltfile.InRev]), tx.Bucket(boltfile.Buckets[boltfile.InKeys])
			revs.FillPercent = 0.95
			for range max(1, writers/2) {
				i++
				revs.Put(revKey(int64(i)), value)
				keys.Put([]byte(benchKey(i)), value[:keyStateSize])
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

// benchStore returns a store with objects that were created in nearly this order of keys.
func benchStore(b *testing.B, objects int, key func(i int) string) *Store {
	st := tempStore(b)
	benchWrites(b, st, OpCreate, objects, key)
	return st
}

func benchWrites(b *testing.B, st *Store, op ChangeOp, n int, key func(i int) string) {
	var wg sync.WaitGroup
	for w := range 64 {
		wg.Go(func() {
			for i := w; i < n; i += 64 {
				c := Change{Op: op, Key: key(i), JSON: benchRecord, RevAt: benchRevAt}
				if old, err := st.Get(c.Key); err == nil {
					c.Expect = old.Rev
				}
				if _, err := st.Commit(context.Background(), c); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// BenchmarkStoreList lists objects that were created in the order of their names and objects that
// were created in random order, as in an old cluster. It also lists both at the revision before
// each object was changed once.
func BenchmarkStoreList(b *testing.B) {
	const objects = 10_000
	ordered := func(i int) string { return fmt.Sprintf("//pods/namespace-01/app-%06d", i) }
	for name, key := range map[string]func(int) string{"in order": ordered, "scattered": benchKey} {
		st := benchStore(b, objects, key)
		old := st.Revision()
		b.Run(name, func(b *testing.B) { benchList(b, st, Span{Prefix: "//pods/"}) })
		benchWrites(b, st, OpUpdate, objects, key)
		b.Run(name+", long ago", func(b *testing.B) { benchList(b, st, Span{Prefix: "//pods/", Rev: old}) })
	}
}

func benchList(b *testing.B, st *Store, sp Span) {
	b.ReportAllocs()
	var c Chunk
	n := 0
	for b.Loop() {
		for sp.Start = ""; ; sp.Start = c.Next {
			if err := st.Chunk(sp, &c); err != nil {
				b.Fatal(err)
			}
			if n += len(c.Records); c.Next == "" {
				break
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/object")
}

func BenchmarkStoreRead(b *testing.B) {
	const objects = 10_000
	st := benchStore(b, objects, benchKey)
	b.Run("get", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if _, err := st.Get(benchKey(i % objects)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("countAt", func(b *testing.B) {
		for b.Loop() {
			if n, err := st.CountAt("//pods/", "", st.Revision()); n != objects || err != nil {
				b.Fatal(n, err)
			}
		}
	})
	for name, after := range map[string]int64{"events from the ring": objects - 1000, "events from the file": 1} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var evs []Event
			for b.Loop() {
				var err error
				if evs, _, err = st.Events("//pods/", after, 1000, evs[:0]); err != nil || len(evs) < 200 {
					b.Fatal(len(evs), err)
				}
			}
		})
	}
}

func BenchmarkStoreOpen(b *testing.B) {
	path := filepath.Join(b.TempDir(), "a.db")
	st := openTestStore(b, path)
	st.File.Db.NoSync = true
	var wg sync.WaitGroup
	for w := range 64 {
		wg.Go(func() {
			for i := w; i < 100_000; i += 64 {
				storeWrite(st, OpCreate, benchKey(i), 0, "")
			}
		})
	}
	wg.Wait()
	st.Close()
	for b.Loop() {
		st := openTestStore(b, path)
		b.StopTimer()
		st.Close()
		b.StartTimer()
	}
}
