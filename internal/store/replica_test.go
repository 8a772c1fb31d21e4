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
	"slices"
	"strings"
	"testing"
	"time"

	"apilet/internal/store/boltfile"
)

// A modelLog simulates an external log with gaps between the revisions. Some revisions change
// several keys.
type modelLog struct {
	rev     int64
	entries []Replicated
	live    map[string]int64 // CreateRev by key
}

// advance adds a revision that changes the given keys. Without keys it leaves a gap.
func (l *modelLog) advance(r *rand.Rand, keys []string) {
	l.rev++
	for _, key := range keys {
		created, there := l.live[key]
		e := Replicated{Key: key, Rev: l.rev, CreateRev: created}
		switch {
		case there && r.IntN(4) == 0:
			e.Deleted = true
			delete(l.live, key)
		case !there:
			e.CreateRev, l.live[key] = l.rev, l.rev
			fallthrough
		default:
			e.JSON, e.RevAt = storeDoc(fmt.Sprint(key, " ", l.rev))
		}
		l.entries = append(l.entries, e)
	}
}

// at returns the payloads of all keys with the prefix at the given revision.
func (l *modelLog) at(prefix string, rev int64) map[string]string {
	held := map[string]string{}
	for _, e := range l.entries {
		if e.Rev > rev || !strings.HasPrefix(e.Key, prefix) {
			continue
		}
		if delete(held, e.Key); !e.Deleted {
			held[e.Key] = string(AppendRevision(nil, e.JSON, e.RevAt, e.Rev))
		}
	}
	return held
}

func modelReplica(identity string) *Replica {
	return &Replica{Identity: identity, Lineage: [16]byte{1, 2, 3},
		Share: func(_ context.Context, _ string, fresh []byte) ([]byte, error) { return fresh, nil },
		Tombstone: func(json []byte) ([]byte, int) {
			at := bytes.Index(json, []byte(`:"`)) + 2
			return append(bytes.Clone(json[:at]), json[at+bytes.IndexByte(json[at:], '"'):]...), at
		}}
}

func openReplicaStore(t testing.TB, path string, replica *Replica) *Store {
	t.Helper()
	st, err := Open(path, Options{Replica: replica, Fatal: func(err error) { t.Errorf("fatal: %v", err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

// TestReplicaFollowsALog checks that the contents of a replica are correct at every revision, even
// after a compaction, a restart or a snapshot.
func TestReplicaFollowsALog(t *testing.T) {
	t.Parallel()
	for range 6 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			followLog(t, rand.New(rand.NewPCG(seed, 0)))
		})
	}
}

func followLog(t *testing.T, r *rand.Rand) {
	ctx, path := t.Context(), filepath.Join(t.TempDir(), "replica")
	log, sent := &modelLog{live: map[string]int64{}}, 0
	var keys []string
	for i := range 30 {
		keys = append(keys, fmt.Sprintf("//%s/ns%d/o%d", []string{"pods", "leases"}[i%2], i%3, i))
	}
	st := openReplicaStore(t, path, modelReplica("one"))
	fill(t, st, log, r)
	for range 120 {
		for range r.IntN(40) {
			r.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
			log.advance(r, keys[:[]int{0, 0, 1, 1, 1, 1, 1, 3, 20}[r.IntN(9)]])
		}
		switch r.IntN(12) {
		case 0:
			if _, err := mustUpkeep(t, st).Compact(ctx, st.Compacted()+r.Int64N(st.Revision()-st.Compacted()+1)); err != nil {
				t.Fatal(err)
			}
		case 1:
			if err := st.Close(); err != nil {
				t.Fatal(err)
			}
			if rep, err := Check(path); err != nil || len(rep.Problems) > 0 {
				t.Fatalf("check: %v, %v", err, rep.Problems)
			}
			st = openReplicaStore(t, path, modelReplica("one"))
		case 2: // the entries in between were missed
			fill(t, st, log, r)
			sent = len(log.entries)
		}
		sent = resumeAt(log, st, sent)
		for sent < len(log.entries) { // a message contains complete revisions
			end := min(sent+1+r.IntN(50), len(log.entries))
			for end < len(log.entries) && log.entries[end].Rev == log.entries[end-1].Rev {
				end++
			}
			if err := st.Replicate(ctx, log.entries[sent:end], log.entries[end-1].Rev); err != nil {
				t.Fatal(err)
			}
			sent = end
		}
		if err := st.Replicate(ctx, nil, log.rev); err != nil {
			t.Fatal(err)
		}
		compareWithLog(t, st, log, r)
	}
}

// resumeAt returns the position after a restart. The replica may have lost revisions that did not
// change any of its keys.
func resumeAt(log *modelLog, st *Store, sent int) int {
	for sent > 0 && log.entries[sent-1].Rev > st.Revision() {
		sent--
	}
	return sent
}

// fill loads a snapshot into a replica. Sometimes the first attempt is interrupted.
func fill(t *testing.T, st *Store, log *modelLog, r *rand.Rand) {
	t.Helper()
	ctx := t.Context()
	before := st.Revision()
	readable := log.at("//pods/", before)
	for try := range 1 + r.IntN(2) {
		if err := st.StartFill(ctx); err != nil {
			t.Fatal(err)
		}
		if filled, err := st.Filled(); err != nil || filled {
			t.Fatalf("filled: %t, %v", filled, err)
		}
		newest := map[string]Replicated{}
		for _, e := range log.entries {
			newest[e.Key] = e
		}
		var page []Replicated
		for _, e := range newest {
			if !e.Deleted {
				page = append(page, e)
			}
		}
		if try == 0 && r.IntN(2) == 0 {
			page = page[:len(page)/2]
		}
		if err := st.Fill(ctx, page); err != nil {
			t.Fatal(err)
		}
		if st.Revision() != before || before > 0 && before >= st.Compacted() && !maps.Equal(listAt(t, st, "//pods/", before), readable) {
			t.Fatal("readers see what is being filled in")
		}
		if try == 0 && r.IntN(2) == 0 {
			continue
		}
		if err := st.Fill(ctx, page); err != nil {
			t.Fatal(err)
		}
	}
	var page, gone []Replicated
	for _, e := range log.entries {
		if !e.Deleted && log.live[e.Key] != 0 {
			page = append(page, e)
		}
	}
	// the newest version of each key is sent first, and older versions are ignored
	slices.Reverse(page)
	if err := st.Fill(ctx, page); err != nil {
		t.Fatal(err)
	}
	for from := ""; ; {
		keys, next, err := st.NextFillKeys(from, 7)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			if log.live[key] == 0 {
				gone = append(gone, Replicated{Key: key, Rev: log.rev, Deleted: true})
			}
		}
		if from = next; next == "" {
			break
		}
	}
	log.rev++ // a snapshot is newer than its entries
	for i := range gone {
		gone[i].Rev = log.rev
	}
	if err := errors.Join(st.Fill(ctx, gone), st.FinishFill(ctx, log.rev)); err != nil {
		t.Fatal(err)
	}
	if st.Revision() != log.rev || st.Compacted() != log.rev {
		t.Fatalf("filled to %d, compacted to %d, the log is at %d", st.Revision(), st.Compacted(), log.rev)
	}
}

func listAt(t *testing.T, st *Store, prefix string, rev int64) map[string]string {
	t.Helper()
	held := map[string]string{}
	for rec, err := range st.All(Span{Prefix: prefix, Rev: rev, Items: 4}) {
		if err != nil {
			t.Fatalf("list of %s at %d: %v", prefix, rev, err)
		}
		held[rec.Key] = string(rec.JSON)
	}
	return held
}

func compareWithLog(t *testing.T, st *Store, log *modelLog, r *rand.Rand) {
	t.Helper()
	if st.Revision() != log.rev {
		t.Fatalf("at revision %d, the log at %d", st.Revision(), log.rev)
	}
	for _, prefix := range []string{"//pods/", "//leases/"} {
		rev := st.Compacted() + r.Int64N(log.rev-st.Compacted()+1)
		if rev > 0 {
			if got, want := listAt(t, st, prefix, rev), log.at(prefix, rev); !maps.Equal(got, want) {
				t.Fatalf("%s at %d of %d, compacted %d:\n%v\nwant\n%v", prefix, rev, log.rev, st.Compacted(), got, want)
			}
		}
		if n, _, _ := st.Count(prefix); int(n) != len(log.at(prefix, log.rev)) {
			t.Fatalf("%s: counts %d, there are %d", prefix, n, len(log.at(prefix, log.rev)))
		}
		for _, resource := range []string{prefix, Everything} {
			compareEvents(t, st, log, resource, rev, 1+r.IntN(30))
		}
	}
}

func compareEvents(t *testing.T, st *Store, log *modelLog, resource string, after int64, batch int) {
	t.Helper()
	var want, got []string
	for _, e := range log.entries {
		if e.Rev > after && strings.HasPrefix(e.Key, resource) {
			want = append(want, fmt.Sprint(e.Rev, e.Key, e.Deleted))
		}
	}
	held := log.at(resource, after)
	for at := after; at < log.rev; {
		events, upTo, err := st.Events(resource, at, batch, nil)
		if err != nil || upTo <= at {
			t.Fatalf("events of %q after %d: %v, up to %d", resource, at, err, upTo)
		}
		for _, ev := range events {
			got = append(got, fmt.Sprint(ev.Rev, ev.Key, ev.Deleted))
			if ev.Rev <= at || ev.Rev > upTo || string(ev.Prev) != held[ev.Key] && ev.PrevRev != 0 {
				t.Fatalf("event %d of %s between %d and %d: before it was %s, want %s", ev.Rev, ev.Key, at, upTo, ev.Prev, held[ev.Key])
			}
			held[ev.Key] = string(ev.JSON)
		}
		at = upTo
	}
	slices.Sort(got) // within a revision they have no order
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Fatalf("events of %q after %d:\n%v\nwant\n%v", resource, after, got, want)
	}
}

// TestReplicaProposes checks that a proposal returns when the replica has received the change, and
// that rejected proposals are not stored.
func TestReplicaProposes(t *testing.T) {
	t.Parallel()
	replica := modelReplica("one")
	st := openReplicaStore(t, filepath.Join(t.TempDir(), "replica"), replica)
	ctx := t.Context()
	if err := errors.Join(st.StartFill(ctx), st.FinishFill(ctx, 10)); err != nil {
		t.Fatal(err)
	}
	arrived := make(chan Replicated)
	replica.Propose = func(_ context.Context, c Change) (int64, error) {
		if c.Op != OpCreate {
			return 0, ErrConflict
		}
		go func() { arrived <- Replicated{Key: c.Key, Rev: 17, CreateRev: 17, JSON: c.JSON, RevAt: c.RevAt} }()
		return 17, nil
	}
	replica.Newest = func(context.Context) (int64, error) { return 17, nil }
	answered := make(chan Record)
	go func() { answered <- mustWrite(t, st, OpCreate, "//pods/ns/a", 0, "x") }()
	change := <-arrived
	select {
	case rec := <-answered:
		t.Fatalf("%v was answered before the replica had it", rec)
	default:
	}
	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	if _, err := st.Current(short); err == nil || st.Revision() != 10 {
		t.Errorf("%v: the newest state at revision %d", err, st.Revision())
	}
	if err := st.Replicate(ctx, []Replicated{change}, 17); err != nil {
		t.Fatal(err)
	}
	want := `{"metadata":{"resourceVersion":"17"},"data":"x"}`
	if rec := <-answered; rec.Rev != 17 || rec.CreateRev != 17 || string(rec.JSON) != want {
		t.Errorf("answered %+v", rec)
	}
	if rev, err := st.Current(ctx); err != nil || rev != 17 {
		t.Errorf("current: %d, %v", rev, err)
	}
	if _, err := storeWrite(st, OpUpdate, "//pods/ns/a", 17, "y"); err != ErrConflict {
		t.Errorf("a lost race: %v", err)
	}
	if err := st.WaitUpcoming(ctx, 18, time.Hour); err == nil {
		t.Error("a revision that the log has not reached comes")
	}
}

// TestOnlyReplicasWaitForTheFuture checks that only a replica waits for a later revision, because
// the file of a normal store is not changed by other processes.
func TestOnlyReplicasWaitForTheFuture(t *testing.T) {
	t.Parallel()
	st := tempStore(t)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := st.WaitUpcoming(over, uint64(st.Revision()), time.Hour); err != nil {
		t.Errorf("the current revision: %v", err)
	}
	// it would return a different error after an hour
	if err := st.WaitUpcoming(t.Context(), uint64(st.Revision())+1, time.Hour); !errors.Is(err, errFutureRev) {
		t.Errorf("the next revision: %v", err)
	}
}

// loopRoot turns the root page of a file into a branch whose only child is that page.
func loopRoot(t *testing.T, path string) {
	t.Helper()
	var root int64
	if err := boltfile.Peek(path, func(p *boltfile.Pages) error {
		root = int64(p.Top())
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	size := int64(os.Getpagesize())
	page := make([]byte, size)
	binary.NativeEndian.PutUint64(page, uint64(root))
	binary.NativeEndian.PutUint16(page[8:], 1)  // a branch
	binary.NativeEndian.PutUint16(page[10:], 1) // with one element
	binary.NativeEndian.PutUint32(page[16:], 16)
	binary.NativeEndian.PutUint64(page[24:], uint64(root))
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = file.WriteAt(page, root*size); errors.Join(err, file.Close()) != nil {
		t.Fatal(err)
	}
}

// TestReplicaFiles checks that a file is discarded if it belongs to another history or may be
// incomplete, and never if it is not a replica.
func TestReplicaFiles(t *testing.T) {
	t.Parallel()
	ctx, path := t.Context(), filepath.Join(t.TempDir(), "replica")
	reopen := func(identity string) int64 {
		st := openReplicaStore(t, path, modelReplica(identity))
		rev := st.Revision()
		if err := errors.Join(st.StartFill(ctx), st.FinishFill(ctx, rev+10), st.Close()); err != nil {
			t.Fatal(err)
		}
		return rev
	}
	note := func(text string) {
		if err := os.WriteFile(path+replicaSuffix, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i, step := range []struct {
		change func()
		as     string
		want   int64
	}{
		{func() {}, "one", 0},
		{func() {}, "one", 10},
		{func() {}, "two", 0},
		{func() {}, "two", 10},
		{func() { note("two\nsome other run\n") }, "two", 0},
		{func() { note("two\n" + machineRun() + "\n") }, "two", 10}, // its process was killed
		{func() { note("two\ndistrusted\n") }, "two", 0},
		{func() { note("") }, "two", 0},
		{func() { loopRoot(t, path) }, "three", 0}, // a torn copy
	} {
		if step.change(); machineRun() == "" && i == 5 {
			step.want = 0
		}
		if got := reopen(step.as); got != step.want {
			t.Errorf("step %d: revision %d, want %d", i, got, step.want)
		}
	}
	if _, err := Open(path, Options{}); err == nil || !strings.Contains(err.Error(), "--etcd-servers") {
		t.Errorf("a replica as a file of its own: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	own := openTestStore(t, path)
	mustWrite(t, own, OpCreate, "//pods/ns/a", 0, "precious")
	own.Close()
	for _, identity := range []string{"two", "three"} { // the note next to it still exists
		if _, err := Open(path, Options{Replica: modelReplica(identity)}); err == nil || !strings.Contains(err.Error(), "not from an etcd cluster") {
			t.Errorf("somebody's own file as a replica: %v", err)
		}
	}
	if rec, err := openTestStore(t, path).Get("//pods/ns/a"); err != nil || !bytes.Contains(rec.JSON, []byte("precious")) {
		t.Errorf("%+v %v", rec, err)
	}
}
