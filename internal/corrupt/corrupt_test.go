package corrupt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"apilet/internal/scheme"
	"apilet/internal/store"
)

// openStore opens an ephemeral store. The caller may close it earlier.
func openStore(t *testing.T, options store.Options) *store.Store {
	t.Helper()
	options.Ephemeral = true
	st, err := store.Open("", options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

// commit stores a document that has its resourceVersion empty, and returns its record.
func commit(t *testing.T, st *store.Store, op store.ChangeOp, key, doc string, expect int64) store.Record {
	t.Helper()
	const field = `"resourceVersion":"`
	rec, err := st.Commit(t.Context(), store.Change{Op: op, Key: key, JSON: []byte(doc), RevAt: strings.Index(doc, field) + len(field), Expect: expect})
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

const sound, broken = `{"metadata":{"name":"a","resourceVersion":""}}`, `{"metadata":{"name":"a","resourceVersion":""}]`

// TestVersionsAreKnown: only the version that was noted is unreadable, each version is logged once,
// and the number of them has a bound.
func TestVersionsAreKnown(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	st := openStore(t, store.Options{})
	lost := NewObjects(st, zerolog.New(&log))
	first := commit(t, st, store.OpCreate, "//configmaps/shop/a", broken, 0)
	if lost.Has(&first) {
		t.Error("an object is known before it was noted")
	}
	for range 3 {
		lost.Add(&first, errors.New("broken"))
	}
	if n := strings.Count(log.String(), "cannot be read"); n != 1 || !lost.Has(&first) || lost.Count() != 1 {
		t.Errorf("%d log lines, known %v, count %d; want 1, true, 1", n, lost.Has(&first), lost.Count())
	}
	if err := lost.Check(); err == nil || strings.Contains(err.Error(), "shop") {
		t.Errorf("the health check says %v; want an error without names", err)
	}
	second := commit(t, st, store.OpUpdate, first.Key, sound, first.Rev)
	if lost.Has(&second) || lost.Has(&store.Record{Key: "//configmaps/shop/b"}) {
		t.Error("another version, or another object, is known as unreadable")
	}
	if lost.Count() != 0 || lost.Has(&first) || lost.Check() != nil {
		t.Error("a version that was replaced is still counted")
	}
	for i := range unreadableMax + 3 {
		lost.Add(&store.Record{Key: fmt.Sprint("//configmaps/shop/", i), Rev: 7}, errors.New("broken"))
	}
	if len(lost.known) != unreadableMax {
		t.Errorf("%d versions are remembered, want %d", len(lost.known), unreadableMax)
	}
	var none *Objects
	if none.Add(&first, nil); none.Has(&first) {
		t.Error("a nil one knows an object")
	}
}

// TestSealedObjectsAreCountedUntilTheyOpen: an object whose key is missing stays counted, and also
// when the store fails otherwise.
func TestSealedObjectsAreCountedUntilTheyOpen(t *testing.T) {
	t.Parallel()
	var missing atomic.Bool
	var tried atomic.Int64
	var log bytes.Buffer
	var lost *Objects
	st := openStore(t, store.Options{Sealing: &store.Sealing{
		Encrypts: func(string) bool { return true },
		Seal:     func(_ string, json []byte) ([]byte, error) { return append([]byte("sealed"), json...), nil },
		Open: func(_ string, sealed []byte) ([]byte, bool, error) {
			if tried.Add(1); missing.Load() {
				return nil, false, errors.New("no key")
			}
			return bytes.TrimPrefix(sealed, []byte("sealed")), false, nil
		},
		OnOpenError: func(key string, err error) { lost.AddSealed(key, err) },
	}})
	lost = NewObjects(st, zerolog.New(&log))
	const objects = sealedTried + 3
	var recs []store.Record
	for i := range objects {
		recs = append(recs, commit(t, st, store.OpCreate, fmt.Sprint("//secrets/shop/", i), sound, 0))
	}
	missing.Store(true)
	for range 2 {
		for i := range recs {
			if _, err := st.Get(recs[i].Key); !errors.Is(err, store.ErrSealed) {
				t.Fatalf("got %v, want ErrSealed", err)
			}
		}
	}
	tried.Store(0)
	if n := lost.CountSealed(); n != objects || tried.Load() != sealedTried || strings.Count(log.String(), "cannot be decrypted") != objects {
		t.Errorf("counted %d after %d tries, log %s; want %d after %d, one line each", n, tried.Load(), log.String(), objects, sealedTried)
	}
	if err := lost.Check(); err == nil || strings.Contains(err.Error(), "shop") {
		t.Errorf("the health check says %v; want an error without names", err)
	}
	missing.Store(false)
	if _, err := st.Commit(t.Context(), store.Change{Op: store.OpDelete, Key: recs[0].Key, Expect: recs[0].Rev, JSON: []byte(sound), RevAt: 40}); err != nil {
		t.Fatal(err)
	}
	missing.Store(true)
	for range objects {
		lost.CountSealed() // tries some of them, in any order, and forgets the deleted one
	}
	apart := len(recs) - lost.CountSealed()
	for i := range 2 * sealedMax {
		lost.AddSealed(fmt.Sprint("//secrets/other/", i), errors.New("no key"))
	}
	if apart > 1 || len(lost.sealed) != sealedMax {
		t.Errorf("%d objects were forgotten, %d are remembered; want at most 1, and %d", apart, len(lost.sealed), sealedMax)
	}
	missing.Store(false)
	if n := lost.CountSealed(); n != 0 || lost.Check() != nil {
		t.Errorf("counted %d with the key back, want 0", n)
	}
	missing.Store(true)
	_, _ = st.Get(recs[1].Key)
	st.Close()
	if n := lost.CountSealed(); n != 1 {
		t.Errorf("counted %d when the store cannot be read, want 1: nobody knows that it opens", n)
	}
}

// TestSurveyEndsWithItsContext checks that a survey of a large store does not continue when the
// server stops.
func TestSurveyEndsWithItsContext(t *testing.T) {
	t.Parallel()
	st := openStore(t, store.Options{})
	const objects = 3000
	for i := range objects {
		commit(t, st, store.OpCreate, fmt.Sprint("//configmaps/shop/", i), sound, 0)
	}
	decoded := 0
	ctx, cancel := context.WithCancel(t.Context())
	err := NewObjects(st, zerolog.Nop()).Scan(ctx, func(string, []byte) error {
		decoded++
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) || decoded == objects {
		t.Errorf("got %v after %d objects", err, decoded)
	}
	st.Close()
	if err := NewObjects(st, zerolog.Nop()).Scan(t.Context(), NewDecodeCheck(scheme.NewRegistry())); err == nil {
		t.Error("a store that cannot be read was surveyed")
	}
}

// TestMarkedRaw: the change keeps the document as it is, with a deletionTimestamp and an empty
// place for the resourceVersion.
func TestMarkedRaw(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_900_000_000, 0)
	for doc, ok := range map[string]bool{
		`{"metadata":{"name":"a","resourceVersion":""},"spec":{"x":1}}`:                        true,
		`{"metadata":{"resourceVersion":"123","name":"a"}}`:                                    true,
		`{"metadata":{"labels":{"resourceVersion":"9"},"resourceVersion":"7"}}`:                true,
		`{"metadata":{"annotations":{"a":"\",\"resourceVersion\":\"9"},"resourceVersion":""}}`: true,
		`{"metadata":{"name":"a"}}`:                                                            false,
		`{"metadata":{}}`:                                                                      false,
		`{"metadata":{"resourceVersion":5}}`:                                                   false,
		`{"metadata":{"labels":{"resourceVersion":"9"}}}`:                                      false,
		`{"kind":"A","metadata":{"resourceVersion":""}}`:                                       false,
		`{"metadata":null}`:                                                                    false,
		`{"metadata":{"name":"cut off`:                                                         false,
		`["metadata"]`:                                                                         false,
		``:                                                                                     false,
		`{"metadata":{}, "spec":{}, "metadata":{"resourceVersion":"9"}}`:                       false,
	} {
		change, got := MarkDeletingRaw(&store.Record{Key: "//pods/a/b", Rev: 4, JSON: []byte(doc)}, now)
		if got != ok {
			t.Errorf("%s: %v, want %v", doc, got, ok)
		}
		if !got {
			continue
		}
		var was, is map[string]map[string]any
		if err := errors.Join(json.Unmarshal([]byte(doc), &was), json.Unmarshal(change.JSON, &is)); err != nil {
			t.Errorf("%s: %v in %s", doc, err, change.JSON)
			continue
		}
		was["metadata"]["deletionTimestamp"], was["metadata"]["resourceVersion"] = "2030-03-17T17:46:40Z", ""
		if fmt.Sprint(was) != fmt.Sprint(is) {
			t.Errorf("%s: became %s", doc, change.JSON)
		}
		if place := change.JSON[:change.RevAt]; !bytes.HasSuffix(place, []byte(`"resourceVersion":"`)) || change.JSON[change.RevAt] != '"' {
			t.Errorf("%s: the revision would be written behind %s", doc, place)
		}
		if change.Op != store.OpUpdate || change.Expect != 4 || !change.Deleting {
			t.Errorf("%s: %+v", doc, change)
		}
	}
}

// TestContentOf: deleting an object that cannot be read takes along its own content. The objects of
// a built-in type belong to no definition, whatever its name is.
func TestContentOf(t *testing.T) {
	t.Parallel()
	reg := scheme.NewRegistry()
	st := openStore(t, store.Options{})
	for _, key := range []string{"//configmaps/shop/a", "/example.org/widgets/shop/w", "/networking.k8s.io/networkpolicies/shop/n", "/resource.k8s.io/resourceclaims/shop/r", "//pods/shop/p"} {
		commit(t, st, store.OpCreate, key, sound, 0)
	}
	namespaces := reg.Lookup("", "v1", "namespaces")
	definitions := &scheme.Resource{Group: "apiextensions.k8s.io", Version: "v1", Plural: "customresourcedefinitions"}
	for _, c := range []struct {
		res         *scheme.Resource
		name        string
		any, served bool
	}{
		{namespaces, "shop", true, true},
		{namespaces, "sho", false, true},
		{namespaces, "shops", false, true},
		{definitions, "widgets.example.org", true, false},
		{definitions, "gadgets.example.org", false, false},
		{definitions, "networkpolicies.networking.k8s.io", false, false},
		{definitions, "resourceclaims.resource.k8s.io", false, false},
		{definitions, "pods", false, false},
		{definitions, "pods.", false, false},
		{reg.Lookup("", "v1", "pods"), "p", false, false},
	} {
		inside := ContentOf(reg, c.res, c.name)
		if inside.Any(st) != c.any || inside.Served != c.served {
			t.Errorf("%s %q: content %v, emptied by others %v; want %v, %v", c.res.Plural, c.name, inside.Any(st), inside.Served, c.any, c.served)
		}
	}
	if inside := ContentOf(reg, namespaces, "shop"); slices.Contains(inside.Prefixes, "//nodes//") || !slices.Contains(inside.Prefixes, "//pods/shop/") {
		t.Errorf("the prefixes of a namespace: %v", inside.Prefixes)
	}
}
