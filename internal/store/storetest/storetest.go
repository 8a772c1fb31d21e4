// Package storetest has helpers for tests of several packages that use a store.
//
//	storetest.Forget(t, st) // resets followers that have not read the log
package storetest

import (
	"context"
	"errors"
	"strings"
	"testing"

	"apilet/internal/store"
)

const quiet = "//storetest/" // a resource without followers

// Forget fills the log with unrelated events and compacts it, so that it no longer contains earlier
// events.
func Forget(t testing.TB, st *store.Store) {
	t.Helper()
	up, err := store.NewMaintenance(st)
	if err != nil {
		t.Fatal(err)
	}
	before, last := st.Revision(), store.Record{}
	change := store.Change{Op: store.OpCreate, Key: quiet + "ns/much", RevAt: len(`{"metadata":{"resourceVersion":"`),
		JSON: []byte(`{"metadata":{"resourceVersion":""},"data":"` + strings.Repeat("much", 50_000) + `"}`)}
	for range 50 { // 10 MB: more than the log keeps in memory
		if last, err = st.Commit(context.Background(), change); err != nil {
			t.Fatal(err)
		}
		change.Op, change.Expect = store.OpUpdate, last.Rev
	}
	change = store.Change{Op: store.OpDelete, Key: change.Key, Expect: last.Rev, JSON: []byte(`{"metadata":{"resourceVersion":""}}`), RevAt: change.RevAt}
	if _, err := st.Commit(context.Background(), change); err != nil {
		t.Fatal(err)
	}
	if _, err := up.Compact(context.Background(), st.Revision()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := st.Events(store.Everything, before, 1, nil); !errors.Is(err, store.ErrCompacted) {
		t.Fatalf("the log still tells what came after %d: %v", before, err)
	}
}
