//go:build unix

package store

import (
	"errors"
	"fmt"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestStoreGoesOnAfterAFullDisk(t *testing.T) {
	out, err := storeChild("limit", filepath.Join(t.TempDir(), "a.db")).CombinedOutput()
	if err != nil || !strings.Contains(string(out), ": TestStoreChild") {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// childFillsTheDisk simulates a full disk by a limit on the size of files.
func childFillsTheDisk(t *testing.T, path string) {
	signal.Ignore(syscall.SIGXFSZ)
	st, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	mustWrite(t, st, OpCreate, "//pods/x/first", 0, "")
	unlimited := syscall.Rlimit{}
	syscall.Getrlimit(syscall.RLIMIT_FSIZE, &unlimited)
	limit := unlimited
	limit.Cur = 18 << 20
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Skip(err)
	}
	st.File.Db.NoSync = true // for speed
	for i := 0; err == nil && i < 20_000; i++ {
		_, err = storeWrite(st, OpCreate, fmt.Sprintf("//pods/x/%d", i), 0, strings.Repeat("x", 2000))
	}
	st.File.Db.NoSync = false
	if !errors.Is(err, ErrDiskFull) {
		t.Fatalf("got %v", err)
	}
	rev := st.Revision()
	if _, err := storeWrite(st, OpCreate, "//pods/x/again", 0, strings.Repeat("x", 1<<20)); !errors.Is(err, ErrDiskFull) {
		t.Errorf("again: %v", err)
	}
	if _, err := st.Get("//pods/x/first"); err != nil || st.Revision() != rev {
		t.Errorf("get: %v, revision %d, was %d", err, st.Revision(), rev)
	}
	syscall.Setrlimit(syscall.RLIMIT_FSIZE, &unlimited)
	mustWrite(t, st, OpDelete, "//pods/x/0", 2, "")
	if rec := mustWrite(t, st, OpCreate, "//pods/x/more", 0, strings.Repeat("x", 4<<20)); rec.Rev != rev+2 {
		t.Errorf("revision %d, want %d", rec.Rev, rev+2)
	}
	if _, err := mustUpkeep(t, st).Compact(t.Context(), st.Revision()); err != nil {
		t.Error(err)
	}
	if err := st.Close(); err != nil {
		t.Error(err)
	}
	if rep, err := Check(path); err != nil || len(rep.Problems) > 0 {
		t.Errorf("check: %v, %v", err, rep.Problems)
	}
}
