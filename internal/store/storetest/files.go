package storetest

// This file creates data files, inspects them without the store, and writes to a store without a
// server.

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"apilet/internal/store"
)

// Doc returns a small document and the offset of its revision.
func Doc(payload string) (json []byte, revAt int) {
	const head = `{"metadata":{"resourceVersion":"`
	return []byte(head + `"},"data":"` + payload + `"}`), len(head)
}

// Open opens a store and closes it at the end of the test.
func Open(t testing.TB, path string) *store.Store {
	t.Helper()
	st, err := store.Open(path, store.Options{Fatal: func(err error) { t.Errorf("fatal: %v", err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

// Maintain returns the Maintenance of a store.
func Maintain(t testing.TB, st *store.Store) *store.Maintenance {
	t.Helper()
	up, err := store.NewMaintenance(st)
	if err != nil {
		t.Fatal(err)
	}
	return up
}

// Write commits one change.
func Write(st *store.Store, op store.ChangeOp, key string, expect int64, payload string) (store.Record, error) {
	json, at := Doc(payload)
	return st.Commit(context.Background(), store.Change{Op: op, Key: key, Expect: expect, JSON: json, RevAt: at})
}

// MustWrite is like Write, but ends the test if the write fails.
func MustWrite(t testing.TB, st *store.Store, op store.ChangeOp, key string, expect int64, payload string) store.Record {
	t.Helper()
	rec, err := Write(st, op, key, expect, payload)
	if err != nil {
		t.Fatalf("write %d of %s at %d: %v", op, key, expect, err)
	}
	return rec
}

// VerifyAcked checks the file and reads the log from the oldest available revision on. It ends the
// test if a revision is missing, or if a revision in acked has another key than in acked. The log
// may contain revisions that are not in acked, because a process can be killed before it
// acknowledges a write.
func VerifyAcked(t testing.TB, path string, acked map[int64]string) {
	t.Helper()
	if rep, err := store.Check(path); err != nil || len(rep.Problems) > 0 {
		t.Fatalf("check: %v, %v", err, rep.Problems)
	}
	st := Open(t, path)
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

// UsedBytes returns the size of the pages in a data file, without the preallocated space at its
// end.
func UsedBytes(t testing.TB, b []byte) (size int64) {
	t.Helper()
	db, err := bbolt.Open(WriteFile(t, b), 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.View(func(tx *bbolt.Tx) error { size = tx.Size(); return nil }); err != nil {
		t.Fatal(err)
	}
	return size
}

// WriteFile writes a data file with the content b to a temporary directory and returns its path.
func WriteFile(t testing.TB, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.db")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// SetFormat changes the format of a data file.
func SetFormat(t testing.TB, path string, format int64) {
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

// Unpack returns the content of a gzip file.
func Unpack(t testing.TB, name string) []byte {
	packed, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	unpacked, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	file, err := io.ReadAll(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

const livePage = 4096

// ZeroPages overwrites all pages of an open file that contain a text with zeros. This includes
// earlier copies of the text.
func ZeroPages(t testing.TB, path, text string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	content, zeroed := readFile(t, path), 0
	for at := 0; at+livePage <= len(content); at += livePage {
		if !bytes.Contains(content[at:at+livePage], []byte(text)) {
			continue
		}
		if _, err := file.WriteAt(make([]byte, livePage), int64(at)); err != nil {
			t.Fatal(err)
		}
		zeroed++
	}
	if zeroed == 0 {
		t.Fatalf("no page has %s", text)
	}
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}
