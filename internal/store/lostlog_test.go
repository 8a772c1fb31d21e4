package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apilet/internal/store/boltfile"
)

// TestLogLostWhileInUse checks that writes after the log was removed, replaced or truncated under a
// running store are not lost once they are acknowledged.
func TestLogLostWhileInUse(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(log string) error{
		"removed":         os.Remove,
		"cut to nothing":  func(log string) error { return os.Truncate(log, 0) },
		"cut to its head": func(log string) error { return os.Truncate(log, headsBytes) },
		"cut by a byte": func(log string) error {
			info, err := os.Stat(log)
			if err != nil {
				return err
			}
			return os.Truncate(log, info.Size()-1)
		},
		"moved away": func(log string) error { return os.Rename(log, log+".old") },
		"replaced": func(log string) error {
			b, err := os.ReadFile(log)
			if err != nil {
				return err
			}
			if err := os.WriteFile(log+".new", b[:headsBytes], 0o600); err != nil {
				return err
			}
			return os.Rename(log+".new", log)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "a.db")
			told := 0
			st, err := Open(path, Options{LogBytes: 64 << 10, Fatal: func(err error) { t.Errorf("fatal: %v", err) }, Warn: func(text string) {
				if strings.Contains(text, "was removed, replaced or cut while in use") {
					told++
				}
			}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { st.Close() })
			for i := range 20 {
				mustWrite(t, st, OpCreate, fmt.Sprintf("//pods/x/n%d", i), 0, "a")
			}
			if err := lose(path + boltfile.LogSuffix); err != nil {
				t.Fatal(err)
			}
			acked := st.Revision()
			for i := range 30 {
				if _, err := storeWrite(st, OpCreate, fmt.Sprintf("//pods/x/m%d", i), 0, "a"); err == nil {
					acked = st.Revision()
				} else if name != "replaced" {
					t.Fatal(err)
				}
				left := copyOpen(t, st)
				// the file is complete, but the log belongs to another file
				if name == "replaced" && i < 4 {
					os.Remove(left + boltfile.LogSuffix)
				}
				again := openTestStore(t, left)
				if again.Revision() != acked {
					t.Fatalf("write %d: revision %d after a kill, acknowledged %d", i, again.Revision(), acked)
				}
				again.Close()
				if name == "replaced" && i == 3 {
					os.Remove(path + boltfile.LogSuffix)
				}
			}
			if told == 0 || acked < 40 {
				t.Errorf("told %d times; revision %d", told, acked)
			}
		})
	}
}

// TestLogLostDuringACommit removes the log after the record is synced and before the write is
// acknowledged.
func TestLogLostDuringACommit(t *testing.T) {
	t.Parallel()
	st := openLogged(t, filepath.Join(t.TempDir(), "a.db"))
	mustWrite(t, st, OpCreate, "//pods/x/a", 0, "a")
	maintainTest(t, st, func(*boltfile.WriteTx) error {
		sync := st.File.Disk().Sync
		st.File.Disk().Sync = func() error { return errors.Join(sync(), os.Remove(st.File.Path+boltfile.LogSuffix)) }
		return errRefused
	})
	mustWrite(t, st, OpCreate, "//pods/x/b", 0, "b")
	b, err := os.ReadFile(st.File.Path)
	if err != nil {
		t.Fatal(err)
	}
	if again := openTestStore(t, writeDataFile(t, b)); again.Revision() != 2 {
		t.Errorf("revision %d after a kill", again.Revision())
	}
}

// TestForeignLogRefusesWritesUntilItIsGone replaces the log by an older log of the same file.
func TestForeignLogRefusesWritesUntilItIsGone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	log := path + boltfile.LogSuffix
	var warned []string
	st, err := Open(path, Options{LogBytes: 64 << 10, Fatal: func(err error) { t.Errorf("fatal: %v", err) }, Warn: func(text string) { warned = append(warned, text) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	mustWrite(t, st, OpCreate, "//pods/x/a", 0, "a")
	old, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	mustWrite(t, st, OpCreate, "//pods/x/b", 0, "a")
	if err := errors.Join(os.Remove(log), os.WriteFile(log, old, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Commit(t.Context(), Change{Op: OpCreate, Key: "//pods/x/c", JSON: []byte("{}")}); !errors.Is(err, ErrFileLost) || !errors.Is(st.File.Writable(), ErrFileLost) {
		t.Errorf("a write beside a foreign log: %v, writable: %v; want ErrFileLost", err, st.File.Writable())
	}
	if err := os.Remove(log); err != nil {
		t.Fatal(err)
	}
	if err := st.File.Writable(); err != nil {
		t.Errorf("writable without the foreign log: %v", err)
	}
	mustWrite(t, st, OpCreate, "//pods/x/c", 0, "a")
	for _, key := range []string{"//pods/x/a", "//pods/x/b", "//pods/x/c"} {
		if _, err := st.Get(key); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	if len(warned) == 0 {
		t.Error("no warning about the lost log")
	}
}
