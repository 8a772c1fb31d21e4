package main

import (
	"context"
	"testing"

	"apilet/internal/store"
)

// storeDoc is a small document and where its revision belongs.
func storeDoc(payload string) (json []byte, revAt int) {
	const head = `{"metadata":{"resourceVersion":"`
	return []byte(head + `"},"data":"` + payload + `"}`), len(head)
}

func openTestStore(t testing.TB, path string) *store.Store {
	t.Helper()
	st, err := store.Open(path, store.Options{Fatal: func(err error) { t.Errorf("fatal: %v", err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

func mustUpkeep(t testing.TB, st *store.Store) *store.Maintenance {
	t.Helper()
	up, err := store.NewMaintenance(st)
	if err != nil {
		t.Fatal(err)
	}
	return up
}

func storeWrite(st *store.Store, op store.ChangeOp, key string, expect int64, payload string) (store.Record, error) {
	json, at := storeDoc(payload)
	return st.Commit(context.Background(), store.Change{Op: op, Key: key, Expect: expect, JSON: json, RevAt: at})
}

func mustWrite(t testing.TB, st *store.Store, op store.ChangeOp, key string, expect int64, payload string) store.Record {
	t.Helper()
	rec, err := storeWrite(st, op, key, expect, payload)
	if err != nil {
		t.Fatalf("write %d of %s at %d: %v", op, key, expect, err)
	}
	return rec
}
