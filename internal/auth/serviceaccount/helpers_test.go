package serviceaccount

import (
	"testing"

	"apilet/internal/store"
)

func openTestStore(t testing.TB, path string) *store.Store {
	t.Helper()
	st, err := store.Open(path, store.Options{Fatal: func(err error) { t.Errorf("fatal: %v", err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}
