package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"
)

// fileSize returns the size of a file including its log, if it has one.
func fileSize(t *testing.T, path string) int64 {
	t.Helper()
	size, err := DiskUsage(path)
	if err != nil {
		t.Fatal(err)
	}
	return size
}

// historyFile creates a closed data file with several versions of each object. Nothing is
// compacted.
func historyFile(t *testing.T, objects, versions int) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "a.db")
	st := openTestStore(t, path)
	payload := string(make([]byte, 1000))
	for i := range objects {
		key := fmt.Sprintf("//pods/x/%d", i)
		rev := mustWrite(t, st, OpCreate, key, 0, payload).Rev
		for range versions - 1 {
			rev = mustWrite(t, st, OpUpdate, key, rev, payload).Rev
		}
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// cutBehindPages truncates a closed file after its last page.
func cutBehindPages(t *testing.T, path string) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	var used int64
	err = db.View(func(tx *bbolt.Tx) error { used = tx.Size(); return nil })
	if err = errors.Join(err, db.Close(), os.Truncate(path, used)); err != nil {
		t.Fatal(err)
	}
}

// TestDefragNeverLeavesALargerFile checks a file without free pages. It cannot be made smaller and
// must not become larger, although bbolt allocates space in advance.
func TestDefragNeverLeavesALargerFile(t *testing.T) {
	t.Parallel()
	for _, objects := range []int{1, 20, 700, 2600} {
		path := historyFile(t, objects, 3)
		for range 2 {
			before := fileSize(t, path)
			if err := Defrag(path, nil); err != nil {
				t.Fatal(err)
			}
			if after := fileSize(t, path); after > before {
				t.Errorf("%d objects: %d bytes before, %d after", objects, before, after)
			}
			cutBehindPages(t, path)
		}
		if rep, err := Check(path); err != nil || len(rep.Problems) > 0 || rep.Objects != int64(objects) || rep.Records != int64(3*objects) {
			t.Errorf("check: %v, %+v", err, rep)
		}
		if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
			t.Errorf("left behind: %v", left)
		}
	}
}

func TestCompactFileDeletesAllHistory(t *testing.T) {
	t.Parallel()
	path := historyFile(t, 200, 5)
	versions, bytes, err := History(path)
	if err != nil || versions != 800 || bytes < 800*1000 {
		t.Errorf("history: %d versions of %d bytes, %v", versions, bytes, err)
	}
	before := fileSize(t, path)
	if err := CompactFile(path); err != nil {
		t.Fatal(err)
	}
	if err := Defrag(path, nil); err != nil {
		t.Fatal(err)
	}
	if after := fileSize(t, path); after > before/3 {
		t.Errorf("%d bytes before, %d after", before, after)
	}
	if versions, _, err := History(path); versions != 0 || err != nil {
		t.Errorf("history: %d versions, %v", versions, err)
	}
	if rep, err := Check(path); err != nil || len(rep.Problems) > 0 || rep.Objects != 200 || rep.Records != 200 || rep.Revision != 1000 || rep.Compacted != 1000 {
		t.Errorf("check: %v, %+v", err, rep)
	}
}

// TestCompactFileLeavesABackupAsItIs checks that a backup without history is not modified. Opening
// it would start a new history with other revisions.
func TestCompactFileLeavesABackupAsItIs(t *testing.T) {
	t.Parallel()
	path := historyFile(t, 20, 3)
	st := openTestStore(t, path)
	dest := filepath.Join(t.TempDir(), "backup.db")
	if err := mustUpkeep(t, st).Backup(t.Context(), dest, nil); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(dest)
	if err != nil {
		t.Fatal(err)
	}
	if err := CompactFile(dest); err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(dest); err != nil || string(after) != string(before) {
		t.Errorf("the backup has changed: %v", err)
	}
}
