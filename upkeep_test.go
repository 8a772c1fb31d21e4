package main

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"apilet/internal/store"
)

// verifyAcked reads the log from compactRev on: no revision may be missing, and each has to be what was acknowledged under it.
func verifyAcked(t *testing.T, path string, acked map[int64]string) {
	t.Helper()
	if rep, err := store.Check(path); err != nil || len(rep.Problems) > 0 {
		t.Fatalf("check: %v, %v", err, rep.Problems)
	}
	st := openTestStore(t, path)
	defer st.Close()
	next := st.Compacted() + 1
	for at := st.Compacted(); at < st.Revision(); {
		evs, upTo, err := st.Events("//pods/", at, 1000, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range evs {
			if ev.Rev != next || acked[ev.Rev] != "" && acked[ev.Rev] != ev.Key {
				t.Fatalf("event %d of %s, want event %d of %q", ev.Rev, ev.Key, next, acked[next])
			}
			next++
		}
		at = upTo
	}
	for rev := range acked {
		if rev > st.Revision() {
			t.Errorf("acknowledged revision %d is lost: revision is %d", rev, st.Revision())
		}
	}
}

// usedBytes is how much of a data file has pages: the rest is room to grow.
func usedBytes(t *testing.T, b []byte) (size int64) {
	t.Helper()
	db, err := bbolt.Open(writeDataFile(t, b), 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.View(func(tx *bbolt.Tx) error { size = tx.Size(); return nil }); err != nil {
		t.Fatal(err)
	}
	return size
}

func writeDataFile(t testing.TB, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.db")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// formatOf is the format that a data file says it has.
func formatOf(path string) (format int64, err error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return 0, err
	}
	err = db.View(func(tx *bbolt.Tx) error {
		format = int64(binary.BigEndian.Uint64(tx.Bucket([]byte("meta")).Get([]byte("format"))))
		return nil
	})
	return format, errors.Join(err, db.Close())
}

func setFormat(t *testing.T, path string, format int64) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte("meta")).Put([]byte("format"), binary.BigEndian.AppendUint64(nil, uint64(format)))
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

// currentFormat is the format of new data files.
func currentFormat(t *testing.T) int64 {
	t.Helper()
	path := filepath.Join(t.TempDir(), "new.db")
	st, err := store.Open(path, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	st.Close()
	format, err := formatOf(path)
	if err != nil {
		t.Fatal(err)
	}
	return format
}
