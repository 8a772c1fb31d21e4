package scan

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apilet/internal/limits"
	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/selector"
	"apilet/internal/store"
	"apilet/internal/store/storetest"
)

// keysOf reads all keys of a span in chunks of two objects.
func keysOf(t *testing.T, sc *Scan, span store.Span) (keys []string) {
	t.Helper()
	for span.Items = 2; ; {
		err := sc.Read(t.Context(), span, func(c *store.Chunk) error {
			for _, rec := range c.Records {
				keys = append(keys, fmt.Sprintf("%s@%d", strings.TrimPrefix(rec.Key, span.Prefix), rec.Rev))
			}
			span.Rev, span.Start = c.Rev, c.Next
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if span.Start == "" {
			return keys
		}
	}
}

// TestChunksShowOneRevision: objects that are written during the scan do not appear in it.
func TestChunksShowOneRevision(t *testing.T) {
	t.Parallel()
	st := storetest.Open(t, filepath.Join(t.TempDir(), "a.db"))
	const prefix = "//configmaps/default/"
	for _, name := range []string{"a", "b", "c"} {
		storetest.MustWrite(t, st, store.OpCreate, prefix+name, 0, "old")
	}
	old := st.Revision()
	storetest.MustWrite(t, st, store.OpUpdate, prefix+"c", old, "new")
	storetest.MustWrite(t, st, store.OpCreate, prefix+"d", 0, "new")
	source, res := NewSource(st, nil), scheme.NewRegistry().Lookup("", "v1", "configmaps")
	sc := source.NewScan(httptest.NewRecorder(), res)
	defer sc.Release()
	first := old - 2
	want := []string{fmt.Sprint("a@", first), fmt.Sprint("b@", first+1), fmt.Sprint("c@", first+2)}
	if got := keysOf(t, sc, store.Span{Prefix: prefix, Rev: old}); !slices.Equal(got, want) {
		t.Errorf("at the old revision: %q, want %q", got, want)
	}
	want = append(want[:2], fmt.Sprint("c@", old+1), fmt.Sprint("d@", old+2))
	if got := keysOf(t, sc, store.Span{Prefix: prefix}); !slices.Equal(got, want) {
		t.Errorf("now: %q, want %q", got, want)
	}
	weigh := func(stored int) int { return stored }
	for at, want := range map[int64]string{0: "new", old: "old"} {
		of := source
		if at != 0 {
			of = source.AsOf(at)
		}
		rec, err := of.Get(t.Context(), httptest.NewRecorder(), prefix+"c", weigh)
		if err != nil || !strings.Contains(string(rec.JSON), `"data":"`+want+`"`) {
			t.Errorf("c as of %d: %s, %v", at, rec.JSON, err)
		}
	}
}

// TestScansWaitForASlot checks that a scan waits for a slot until its context ends. A scan with
// NoSlot does not need a slot.
func TestScansWaitForASlot(t *testing.T) {
	t.Parallel()
	st := storetest.Open(t, filepath.Join(t.TempDir(), "a.db"))
	source, res := NewSource(st, nil), scheme.NewRegistry().Lookup("", "v1", "configmaps")
	for range cap(source.Slots) {
		source.Slots <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	sc, used := source.NewScan(httptest.NewRecorder(), res), false
	defer sc.Release()
	use := func(*store.Chunk) error { used = true; return nil }
	if err := sc.Read(ctx, store.Span{}, use); !errors.Is(err, context.Canceled) || used {
		t.Errorf("without a slot: %v, used %v", err, used)
	}
	sc.NoSlot = true
	if err := sc.Read(t.Context(), store.Span{Prefix: "//configmaps/"}, use); err != nil || !used {
		t.Errorf("a scan that needs no slot: %v, used %v", err, used)
	}
	if len(source.Slots) != cap(source.Slots) {
		t.Error("a slot was returned that the scan did not hold")
	}
}

// TestLargeObjectsAreWeighed: the memory of large objects is reserved, and their buffers are not reused.
func TestLargeObjectsAreWeighed(t *testing.T) {
	t.Parallel()
	st := storetest.Open(t, filepath.Join(t.TempDir(), "a.db"))
	const prefix = "//configmaps/default/"
	storetest.MustWrite(t, st, store.OpCreate, prefix+"small", 0, "x")
	large := storetest.MustWrite(t, st, store.OpCreate, prefix+"z-large", 0, strings.Repeat("x", limits.Large))
	sc := NewSource(st, nil).NewScan(httptest.NewRecorder(), scheme.NewRegistry().Lookup("", "v1", "configmaps"))
	keysOf(t, sc, store.Span{Prefix: prefix})
	if want := 2 * len(large.JSON); sc.Large != want {
		t.Errorf("the large object needs %d bytes, want %d", sc.Large, want)
	}
	sc.Release()
	if sc.chunk != nil {
		t.Error("the chunk is kept")
	}
	events := []store.Event{{Record: large, Prev: large.JSON}, {Record: store.Record{JSON: []byte("{}")}}}
	if got, want := SizeOfLargeEvents(events), 3*len(large.JSON); got != want {
		t.Errorf("the events need %d bytes, want %d", got, want)
	}
}

// TestPodsOfANodeComeFromTheIndex: other selectors, other types and the past do not use it.
func TestPodsOfANodeComeFromTheIndex(t *testing.T) {
	t.Parallel()
	st := storetest.Open(t, filepath.Join(t.TempDir(), "a.db"))
	for name, nodeName := range map[string]string{"a": "n1", "b": "n2", "c": "n1"} {
		doc := []byte(`{"metadata":{"resourceVersion":""},"spec":{"nodeName":"` + nodeName + `"}}`)
		change := store.Change{Op: store.OpCreate, Key: podKeys + "default/" + name, JSON: doc, RevAt: strings.Index(string(doc), `""`) + 1}
		if _, err := st.Commit(t.Context(), change); err != nil {
			t.Fatal(err)
		}
	}
	source, types := NewSource(st, nil), scheme.NewRegistry()
	keys := func(s *Source, resource, fields string) []string {
		terms, err := selector.Parse("", fields)
		if err != nil {
			t.Fatal(err)
		}
		m, err := terms.Compile(types.Lookup("", "v1", resource), &request.Info{Verb: "list", Version: "v1", Resource: resource})
		if err != nil {
			t.Fatal(err)
		}
		found, _ := s.Keys(t.Context(), &m, 0)
		return found
	}
	if got := keys(source, "pods", "spec.nodeName=n1"); !slices.Equal(got, []string{podKeys + "default/a", podKeys + "default/c"}) {
		t.Errorf("Pods of n1: %q", got)
	}
	for name, got := range map[string][]string{
		"another field": keys(source, "pods", "metadata.name=a"),
		"another type":  keys(source, "configmaps", "metadata.name=a"),
		"the past":      keys(source.AsOf(st.Revision()), "pods", "spec.nodeName=n1"),
	} {
		if got != nil {
			t.Errorf("%s: %q", name, got)
		}
	}
}
