package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
)

// TestLongChains tests an object that has been changed, deleted and recreated thousands of times.
// The correct version must be returned for every revision, even if the history is compacted at the
// same time. The memory for its waypoints must be limited.
func TestLongChains(t *testing.T) {
	t.Parallel()
	st, rnd := tempStore(t), rand.New(rand.NewPCG(7, 7))
	up := mustUpkeep(t, st)
	was := []string{""} // by revision; "" means deleted
	for rev := int64(0); rev < 6000; rev++ {
		payload := fmt.Sprint("p", rev)
		op := OpUpdate
		switch {
		case was[rev] == "":
			op = OpCreate
		case rnd.IntN(1000) == 0:
			op, payload = OpDelete, ""
		}
		mustWrite(t, st, op, "//pods/x/a", rev, payload)
		was = append(was, payload)
	}
	check := func(rev int64) {
		t.Helper()
		rec, err := st.GetAt("//pods/x/a", rev)
		switch {
		case rev < st.Compacted():
			if !errors.Is(err, ErrCompacted) {
				t.Fatalf("at %d: %v", rev, err)
			}
		case was[rev] == "":
			if !errors.Is(err, ErrNotFound) {
				t.Fatalf("at %d: %v, %s", rev, err, rec.JSON)
			}
		case err != nil || rec.Rev != rev || !strings.Contains(string(rec.JSON), `"`+was[rev]+`"`):
			t.Fatalf("at %d: %v, %d %s", rev, err, rec.Rev, rec.JSON)
		}
	}
	for i := range 3000 {
		check(1 + rnd.Int64N(6000))
		if i == 1500 {
			if _, err := up.Compact(t.Context(), 2500); err != nil {
				t.Fatal(err)
			}
		}
	}
	if st.chains.n == 0 || st.chains.n > 6000/waypointEvery*2 {
		t.Errorf("%d places are remembered", st.chains.n)
	}
	walk := func(rev int64) (steps int) {
		err := st.readSnapshot(func(s *snapshot) error {
			_, err := s.at("//pods/x/a", rev)
			steps = s.steps
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return steps
	}
	rev := int64(2600)
	for was[rev] == "" || was[rev+1] == "" {
		rev++
	}
	if steps := walk(rev); steps > 3*waypointEvery {
		t.Errorf("the second walk to %d takes %d steps", rev, steps)
	}
}

// TestReadsOfThePastAreCut checks that the size of a chunk is limited if the objects have long
// chains, and that all objects are returned.
func TestReadsOfThePastAreCut(t *testing.T) {
	t.Parallel()
	const keys, versions = 5, chainStepsMax/4 + 1000
	st := tempStore(t)
	for k := range keys {
		mustWrite(t, st, OpCreate, fmt.Sprintf("//pods/x/p%d", k), 0, "first")
	}
	var group sync.WaitGroup
	for k := range int64(keys) {
		group.Go(func() {
			rev := k + 1
			for range versions {
				rec, err := storeWrite(st, OpUpdate, fmt.Sprintf("//pods/x/p%d", k), rev, "later")
				if err != nil {
					t.Error(err)
					return
				}
				rev = rec.Rev
			}
		})
	}
	group.Wait()
	list := func() (chunks, objects int) {
		var c Chunk
		for sp := (Span{Prefix: "//pods/", Rev: keys}); ; sp.Start = c.Next {
			if err := st.Chunk(sp, &c); err != nil {
				t.Fatal(err)
			}
			for _, r := range c.Records {
				if !strings.Contains(string(r.JSON), "first") {
					t.Errorf("%s at %d is %s", r.Key, keys, r.JSON)
				}
			}
			chunks, objects = chunks+1, objects+len(c.Records)
			if c.Next == "" {
				return chunks, objects
			}
		}
	}
	if chunks, objects := list(); objects != keys || chunks != 2 {
		t.Errorf("%d objects in %d chunks", objects, chunks)
	}
	if chunks, objects := list(); objects != keys || chunks != 1 {
		t.Errorf("the second time: %d objects in %d chunks", objects, chunks)
	}
	if n, err := st.CountAt("//pods/", "", keys); n != keys || err != nil {
		t.Errorf("counted %d, %v", n, err)
	}
}

// TestWaypointsAreBounded checks that the memory is limited for any number of keys.
func TestWaypointsAreBounded(t *testing.T) {
	t.Parallel()
	var w waypoints
	passed := make([]int64, waypointsMax)
	for i := range passed {
		passed[i] = int64(len(passed) - i)
	}
	for i := range 2 * wayKeysMax {
		w.add(fmt.Append(nil, "//pods/x/", i), passed[:10+i%100])
		if i%500 == 0 {
			w.add(fmt.Append(nil, "//pods/y/", i), passed) // longer than the limit
		}
		if w.n > waypointsMax || len(w.of) > wayKeysMax {
			t.Fatalf("%d places of %d keys", w.n, len(w.of))
		}
	}
	sum := 0
	for _, list := range w.of {
		sum += len(list)
	}
	if sum != w.n || w.n < waypointsMax/2 {
		t.Errorf("%d places, %d are counted", sum, w.n)
	}
}

// TestEventsOfLeavesOut checks that events are not read from the file if they are excluded by the
// filter.
func TestEventsOfLeavesOut(t *testing.T) {
	t.Parallel()
	st := tempStore(t)
	var last AuthorID
	for i := range 6000 {
		agent := "many"
		if i%1000 == 5 {
			agent = "few"
		}
		rec := writeAs(t, st, fmt.Sprintf("//pods/x/p%05d", i), Author{User: "u", Agent: agent, Verb: "create"})
		if agent == "few" {
			last = rec.Author
		}
	}
	var got []int64
	asked := 0
	for after := int64(0); after < 1500; {
		evs, upTo, err := st.EventsOf(Everything, func(key []byte, by AuthorID) bool {
			asked++
			return by == last && strings.HasPrefix(string(key), "//pods/x/")
		}, after, 100, nil)
		if err != nil || upTo <= after {
			t.Fatal(upTo, err)
		}
		for _, ev := range evs {
			got = append(got, ev.Rev)
		}
		after = upTo
	}
	if fmt.Sprint(got) != "[6 1006]" || asked < 1500 {
		t.Errorf("got %v, asked about %d", got, asked)
	}
}
