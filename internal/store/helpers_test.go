package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"apilet/internal/apitest"
	"apilet/internal/store/boltfile"
)

func TestMain(m *testing.M) { apitest.Main(m) }

const livePage = 4096

func openTestStore(t testing.TB, path string) *Store {
	t.Helper()
	st, err := Open(path, Options{Fatal: func(err error) { t.Errorf("fatal: %v", err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

// storeDoc returns a small document and the position of its revision.
func storeDoc(payload string) (json []byte, revAt int) {
	const head = `{"metadata":{"resourceVersion":"`
	return []byte(head + `"},"data":"` + payload + `"}`), len(head)
}

func mustUpkeep(t testing.TB, st *Store) *Maintenance {
	t.Helper()
	up, err := NewMaintenance(st)
	if err != nil {
		t.Fatal(err)
	}
	return up
}

func storeWrite(st *Store, op ChangeOp, key string, expect int64, payload string) (Record, error) {
	json, at := storeDoc(payload)
	return st.Commit(context.Background(), Change{Op: op, Key: key, Expect: expect, JSON: json, RevAt: at})
}

func mustWrite(t testing.TB, st *Store, op ChangeOp, key string, expect int64, payload string) Record {
	t.Helper()
	rec, err := storeWrite(st, op, key, expect, payload)
	if err != nil {
		t.Fatalf("write %d of %s at %d: %v", op, key, expect, err)
	}
	return rec
}

// storeChild runs this test binary as the child process that TestStoreChild describes.
func storeChild(mode, path string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], "-test.run=^TestStoreChild$", "-test.v")
	cmd.Env = append(os.Environ(), "APILET_STORE_CHILD="+mode, "APILET_STORE_PATH="+path)
	return cmd
}

// verifyAcked reads the log from compactRev on. All revisions must exist and match the acknowledged
// writes.
func verifyAcked(t *testing.T, path string, acked map[int64]string) {
	t.Helper()
	if rep, err := Check(path); err != nil || len(rep.Problems) > 0 {
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

// smallFile returns the contents of a small data file that was closed. Its trees have a few levels.
func smallFile(t *testing.T, objects int, clean bool) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "small.db")
	st := openTestStore(t, path)
	for i := range objects {
		mustWrite(t, st, OpCreate, fmt.Sprintf("//pods/x/n%d", i), 0, strings.Repeat("x", 100))
	}
	for i := range objects / 2 {
		mustWrite(t, st, OpUpdate, fmt.Sprintf("//pods/x/n%d", i), int64(i+1), "y")
	}
	var used int64
	if err := st.readSnapshot(func(s *snapshot) error { used = s.Size(); return nil }); err != nil {
		t.Fatal(err)
	}
	st.Close()
	if !clean {
		unclean(t, path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b[:used]
}

// unclean removes the freelist from the file of a closed store, as if the store had not been
// closed.
func unclean(t *testing.T, path string) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoFreelistSync: true})
	if err == nil {
		err = errors.Join(db.Update(func(*bbolt.Tx) error { return nil }), db.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// copyOpen copies the file and the log of an open store, as a kill -9 would leave them. The copy
// counts as being in its original place.
func copyOpen(t testing.TB, st *Store) (path string) {
	t.Helper()
	b, err := os.ReadFile(st.File.Path)
	if err != nil {
		t.Fatal(err)
	}
	path = writeDataFile(t, b)
	if b, err = os.ReadFile(st.File.Path + boltfile.LogSuffix); err == nil {
		err = os.WriteFile(path+boltfile.LogSuffix, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	putInPlace(t, path)
	return path
}

// putInPlace updates the notes of a copied data file (boltfile/proof.go), as if a server had
// written the copy itself.
func putInPlace(t testing.TB, path string) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	inode := reflect.Indirect(reflect.ValueOf(info.Sys())).FieldByName("Ino")
	b, err := os.ReadFile(path)
	if err != nil || !inode.IsValid() {
		return
	}
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for at := 80; at < 2*livePage && at+44 <= len(b); at += livePage {
		note := b[at : at+44]
		if string(note[:8]) != "apiletNT" {
			continue
		}
		binary.BigEndian.PutUint64(note[24:], inode.Uint())
		binary.BigEndian.PutUint64(note[32:], uint64(time.Now().UnixMilli()))
		binary.BigEndian.PutUint32(note[40:], crc32.Checksum(note[:40], castagnoli))
		if _, err := file.WriteAt(note, int64(at)); err != nil {
			t.Fatal(err)
		}
	}
}

func maintainTest(t *testing.T, st *Store, fn func(l *boltfile.WriteTx) error) {
	t.Helper()
	if err := st.maintain(t.Context(), fn); err != nil && !errors.Is(err, errRefused) {
		t.Fatal(err)
	}
}

var errRefused = errors.New("nothing is to be committed")

func writeDataFile(t testing.TB, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.db")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
