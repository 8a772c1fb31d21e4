package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"apilet/internal/apitest"
)

func openFollowed(t testing.TB) *Store {
	t.Helper()
	st, err := Open("", Options{Ephemeral: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

// A followed is a Follower that keeps track of the revision of every key.
type followed struct {
	*Follower
	known  map[string]int64
	resets int
	last   map[string]int64 // last revision of each resource since the reset
}

func newFollowed(st *Store, resources ...string) *followed {
	return &followed{Follower: st.Follow(resources...), known: map[string]int64{}, last: map[string]int64{}}
}

func (f *followed) catchUp(t testing.TB) {
	t.Helper()
	for {
		log := f.walking == len(f.resources)
		events, reset, err := f.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if reset {
			f.resets++
			clear(f.known)
			clear(f.last)
		} else if len(events) == 0 {
			return
		}
		for i := range events {
			f.see(t, &events[i], log)
		}
	}
}

// see records an event of the log, or an object.
func (f *followed) see(t testing.TB, ev *Event, log bool) {
	t.Helper()
	resource, _, _ := keyPrefixes(ev.Key)
	if log && ev.Rev < f.last[resource] {
		t.Fatalf("%s of revision %d is shown after revision %d", ev.Key, ev.Rev, f.last[resource])
	}
	if f.last[resource] = max(ev.Rev, f.last[resource]); log && !ev.Deleted && f.known[ev.Key] != ev.PrevRev {
		t.Fatalf("%s of revision %d follows %d, and %d was shown", ev.Key, ev.Rev, ev.PrevRev, f.known[ev.Key])
	}
	if f.known[ev.Key] = ev.Rev; ev.Deleted {
		delete(f.known, ev.Key)
	}
}

// expect compares the known objects with the stored ones.
func (f *followed) expect(t testing.TB) {
	t.Helper()
	stored := map[string]int64{}
	for _, resource := range f.resources {
		for rec, err := range f.st.All(Span{Prefix: max(resource, "/")}) {
			if err != nil {
				t.Fatal(err)
			}
			stored[strings.Clone(rec.Key)] = rec.Rev
		}
	}
	if !maps.Equal(stored, f.known) {
		t.Fatalf("%q: knows %d objects, stored are %d", f.resources, len(f.known), len(stored))
	}
	if f.Rev() != f.st.Revision() || f.HasNext() {
		t.Fatalf("%q: has come to %d of %d", f.resources, f.Rev(), f.st.Revision())
	}
}

// TestFollowersKnowWhatIsStored writes and compacts randomly. Followers that read occasionally must
// know the stored objects, although compactions often overtake the slower ones.
func TestFollowersKnowWhatIsStored(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	t.Logf("seed %d", seed)
	st := openFollowed(t)
	up := mustUpkeep(t, st)
	quick, slow, few := newFollowed(st, "//pods/"), newFollowed(st, "//nodes/", "//pods/"), newFollowed(st, Everything)
	revs := map[string]int64{}
	write := func() {
		key, payload := fmt.Sprintf("//%s/a/%d", []string{"pods", "nodes", "leases"}[random.IntN(3)], random.IntN(400)), strings.Repeat("x", random.IntN(6000))
		switch rev := revs[key]; {
		case rev == 0:
			revs[key] = mustWrite(t, st, OpCreate, key, 0, payload).Rev
		case random.IntN(3) == 0:
			mustWrite(t, st, OpDelete, key, rev, "")
			delete(revs, key)
		default:
			revs[key] = mustWrite(t, st, OpUpdate, key, rev, payload).Rev
		}
	}
	for round := range 60 {
		for range 200 {
			write()
		}
		quick.catchUp(t)
		quick.expect(t)
		if round%9 == 8 {
			if _, err := up.Compact(context.Background(), st.Revision()-int64(random.IntN(100))); err != nil {
				t.Fatal(err)
			}
		}
		for i, f := range []*followed{slow, few} {
			if round%(10+10*i) == 9 {
				f.catchUp(t)
				f.expect(t)
			}
		}
	}
	if quick.resets != 1 || slow.resets < 3 || few.resets < 2 {
		t.Errorf("%d, %d and %d resets", quick.resets, slow.resets, few.resets)
	}
}

// TestFollowerIsCompactedWhileItReadsObjects checks that the follower restarts.
func TestFollowerIsCompactedWhileItReadsObjects(t *testing.T) {
	t.Parallel()
	st := openFollowed(t)
	for i := range 2 * chunkItems {
		mustWrite(t, st, OpCreate, fmt.Sprintf("//pods/a/%04d", i), 0, "")
	}
	f := newFollowed(st, "//pods/")
	for range 2 { // the reset, and a chunk
		if _, _, err := f.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if f.Rev() != -1 || !f.HasNext() {
		t.Errorf("it has seen half, and says that it is at %d", f.Rev())
	}
	mustWrite(t, st, OpDelete, "//pods/a/0000", 1, "")
	if _, err := mustUpkeep(t, st).Compact(context.Background(), st.Revision()); err != nil {
		t.Fatal(err)
	}
	f.catchUp(t)
	f.expect(t)
	if f.resets != 1 {
		t.Errorf("%d resets", f.resets)
	}
}

// TestFollowerGoesOnFromARevision checks that the follower receives exactly the later events.
func TestFollowerGoesOnFromARevision(t *testing.T) {
	t.Parallel()
	st := openFollowed(t)
	for i := range 10 {
		mustWrite(t, st, OpCreate, fmt.Sprintf("//pods/a/%d", i), 0, "")
	}
	f := newFollowed(st, "//pods/")
	if f.Rev() != -1 {
		t.Errorf("a new one is at %d", f.Rev())
	}
	f.From(7)
	f.catchUp(t)
	apitest.Expect(t, fmt.Sprint(f.known), "map[//pods/a/7:8 //pods/a/8:9 //pods/a/9:10]")
	f.From(-1)
	f.catchUp(t)
	f.expect(t)
	if f.resets != 1 {
		t.Errorf("%d resets", f.resets)
	}
}

// TestFollowerGoesOnAfterAnError checks that a failed read is repeated later.
func TestFollowerGoesOnAfterAnError(t *testing.T) {
	t.Parallel()
	st := openFollowed(t)
	mustWrite(t, st, OpCreate, "//pods/a/x", 0, "")
	f := newFollowed(st, "//pods/")
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.CatchUp(over, func() {}, func(*Event) { t.Error("it reads, though nobody waits for it") }); !errors.Is(err, context.Canceled) {
		t.Errorf("its context is over: %v", err)
	}
	f.catchUp(t)
	f.expect(t)
}

// TestFollowerWaits checks that the follower waits until a write or another reason to wake up.
func TestFollowerWaits(t *testing.T) {
	t.Parallel()
	st := openFollowed(t)
	f := newFollowed(st, "//pods/", "//nodes/", "//leases/", "//secrets/")
	never, far := context.Background(), time.Now().Add(time.Hour)
	f.Wait(never, far, nil) // nothing has been read yet
	for i, resource := range f.resources {
		f.catchUp(t)
		done := make(chan struct{})
		go func() { f.Wait(never, far, nil); close(done) }()
		mustWrite(t, st, OpCreate, "//configmaps/a/"+fmt.Sprint(i), 0, "")
		select {
		case <-done:
			t.Error("it is woken by what it does not follow")
		default:
		}
		mustWrite(t, st, OpCreate, resource+"a/x", 0, "")
		<-done
		f.Wait(never, far, nil) // writes before the wait count
	}
	f.catchUp(t)
	f.expect(t)
	f.Wait(never, time.Now().Add(time.Millisecond), nil)
	closed := make(chan struct{})
	close(closed)
	f.Wait(never, far, closed)
	over, cancel := context.WithCancel(never)
	cancel()
	f.Wait(over, time.Time{}, nil)
}

// TestFollowingEverything reads the events of all resources: the oldest from the file, and the
// newest from the ring. Each must appear exactly once.
func TestFollowingEverything(t *testing.T) {
	t.Parallel()
	st := openFollowed(t)
	log := st.Follow(Everything)
	log.From(st.Revision())
	start := st.Revision()
	for i := range ringEvents + 10 {
		mustWrite(t, st, OpCreate, fmt.Sprintf("//configmaps/default/%d", i), 0, "")
		if i == 5 {
			mustWrite(t, st, OpCreate, "//nodes//n", 0, "")
		}
	}
	seen := start
	err := log.CatchUp(t.Context(), func() { t.Error("what the file has is read anew") }, func(ev *Event) {
		if seen++; ev.Rev != seen {
			t.Fatalf("revision %d comes after %d", ev.Rev, seen-1)
		}
	})
	if pos := log.Rev(); err != nil || pos != st.Revision() || seen != pos || log.HasNext() {
		t.Errorf("read up to %d, saw up to %d of %d: %v", pos, seen, st.Revision(), err)
	}
	mustWrite(t, st, OpCreate, "//nodes//m", 0, "")
	log.Wait(t.Context(), time.Time{}, nil)
}
