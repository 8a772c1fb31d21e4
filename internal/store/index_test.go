package store

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

// TestIndexFindsWhatAScanFinds writes and compacts randomly, and uses an index to find the Pods of
// a node, at the current and at earlier revisions. The index must return all keys that a scan
// finds. At the current revision it must not return others.
func TestIndexFindsWhatAScanFinds(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	t.Logf("seed %d", seed)
	st := openFollowed(t)
	up, pods, revs, found := mustUpkeep(t, st), st.NewIndex("//pods/", "spec.nodeName"), map[string]int64{}, 0
	write := func() {
		key, node := fmt.Sprintf("//%s/a/%d", []string{"pods", "leases"}[random.IntN(2)], random.IntN(300)), ""
		if random.IntN(3) > 0 {
			node = fmt.Sprintf(`,"nodeName":"node-%d"`, random.IntN(8))
		}
		document := fmt.Sprintf(`{"metadata":{"resourceVersion":""},"spec":{"x":%q%s}}`, strings.Repeat("x", random.IntN(2000)), node)
		change := Change{Op: OpUpdate, Key: key, Expect: revs[key], JSON: []byte(document), RevAt: strings.Index(document, `""`) + 1}
		switch {
		case revs[key] == 0:
			change.Op = OpCreate
		case random.IntN(3) == 0:
			change = Change{Op: OpDelete, Key: key, Expect: revs[key]}
		}
		rec, err := st.Commit(t.Context(), change)
		if err != nil {
			t.Fatal(err)
		}
		if revs[key] = rec.Rev; rec.Deleted {
			delete(revs, key)
		}
	}
	for round := range 40 {
		for range 120 {
			write()
		}
		if round%9 == 8 {
			if _, err := up.Compact(t.Context(), st.Revision()-int64(random.IntN(100))); err != nil {
				t.Fatal(err)
			}
		}
		node := fmt.Sprintf("node-%d", random.IntN(9))
		rev := st.Revision() - int64(random.IntN(50))
		keys, ok := pods.Keys(t.Context(), node, rev)
		if !ok {
			continue // it was just created
		}
		want, got := nodesPods(t, st, Span{Prefix: "//pods/", Rev: rev}, node), nodesPods(t, st, Span{Prefix: "//pods/", Rev: rev, Keys: keys}, node)
		if !slices.Equal(got, want) {
			t.Fatalf("round %d, %s at %d of %d: %v, want %v", round, node, rev, st.Revision(), got, want)
		}
		newest := st.Revision()
		if keys, _ := pods.Keys(t.Context(), node, newest); !slices.Equal(keys, nodesPods(t, st, Span{Prefix: "//pods/", Rev: newest}, node)) {
			t.Fatalf("round %d, %s now: %v, and that is not what a scan finds", round, node, keys)
		}
		found += len(want)
	}
	if found < 100 {
		t.Errorf("%d objects were found in all", found)
	}
}

// nodesPods returns the keys of all Pods in the span that are bound to the node.
func nodesPods(t testing.TB, st *Store, sp Span, node string) (keys []string) {
	t.Helper()
	for rec, err := range st.All(sp) {
		if err != nil {
			t.Fatal(err)
		}
		if gjson.GetBytes(rec.JSON, "spec.nodeName").String() == node {
			keys = append(keys, strings.Clone(rec.Key))
		}
	}
	return keys
}

// TestIndexForgetsWhoLeftLongAgo checks that the index is not used for revisions that it does not
// cover.
func TestIndexForgetsWhoLeftLongAgo(t *testing.T) {
	t.Parallel()
	st := openFollowed(t)
	pods := st.NewIndex("//pods/", "spec.nodeName")
	before := st.Revision()
	rec := mustWrite(t, st, OpCreate, "//pods/a/b", 0, "x")
	if _, ok := pods.Keys(t.Context(), "node-1", before); ok {
		t.Error("it knows of a time before it was made")
	}
	if keys, ok := pods.Keys(t.Context(), "", rec.Rev); !ok || len(keys) != 1 {
		t.Errorf("of no node: %q, %t", keys, ok)
	}
	pods.former = make([]formerKey, maxFormerKeys)
	for i := range pods.former {
		pods.former[i].rev = rec.Rev
	}
	gone := mustWrite(t, st, OpDelete, rec.Key, rec.Rev, "")
	if keys, ok := pods.Keys(t.Context(), "", gone.Rev); !ok || len(keys) != 0 {
		t.Errorf("after its end: %q, %t", keys, ok)
	}
	if _, ok := pods.Keys(t.Context(), "", rec.Rev-1); ok {
		t.Error("it knows of what it has forgotten")
	}
}

// BenchmarkPodsOfANode finds ten Pods among ten thousand, by a scan and by the index.
func BenchmarkPodsOfANode(b *testing.B) {
	st := openFollowed(b)
	for i := range 10_000 {
		document := fmt.Sprintf(`{"metadata":{"resourceVersion":"","managedFields":%q},"spec":{"nodeName":"node-%d"}}`, strings.Repeat("x", 2000), i%1000)
		change := Change{Op: OpCreate, Key: fmt.Sprintf("//pods/a/%05d", i), JSON: []byte(document), RevAt: strings.Index(document, `""`) + 1}
		if _, err := st.Commit(b.Context(), change); err != nil {
			b.Fatal(err)
		}
	}
	rev := st.Revision()
	b.Run("all", func(b *testing.B) {
		for b.Loop() {
			nodesPods(b, st, Span{Prefix: "//pods/", Rev: rev}, "node-7")
		}
	})
	b.Run("index", func(b *testing.B) {
		pods := st.NewIndex("//pods/", "spec.nodeName")
		for b.Loop() {
			keys, ok := pods.Keys(b.Context(), "node-7", rev)
			if found := nodesPods(b, st, Span{Prefix: "//pods/", Rev: rev, Keys: keys}, "node-7"); !ok || len(found) != 10 {
				b.Fatal(found)
			}
		}
	})
}
