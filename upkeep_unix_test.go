//go:build unix

package main

import (
	"errors"
	"fmt"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A limit on the size of files stands in for the end of the disk.
func childFillsTheDisk(t *testing.T, path string) {
	signal.Ignore(syscall.SIGXFSZ)
	st, err := openStore(path, storeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	mustWrite(t, st, opCreate, "//pods/x/first", 0, "")
	unlimited := syscall.Rlimit{}
	syscall.Getrlimit(syscall.RLIMIT_FSIZE, &unlimited)
	limit := unlimited
	limit.Cur = 18 << 20
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Skip(err)
	}
	st.db.NoSync = true // for speed
	for i := 0; err == nil && i < 20_000; i++ {
		_, err = storeWrite(st, opCreate, fmt.Sprintf("//pods/x/%d", i), 0, strings.Repeat("x", 2000))
	}
	st.db.NoSync = false
	if !errors.Is(err, errDiskFull) {
		t.Fatalf("got %v", err)
	}
	rev := st.revision()
	if _, err := storeWrite(st, opCreate, "//pods/x/again", 0, strings.Repeat("x", 1<<20)); !errors.Is(err, errDiskFull) {
		t.Errorf("again: %v", err)
	}
	if _, err := st.get("//pods/x/first"); err != nil || st.revision() != rev {
		t.Errorf("get: %v, revision %d, was %d", err, st.revision(), rev)
	}
	syscall.Setrlimit(syscall.RLIMIT_FSIZE, &unlimited)
	mustWrite(t, st, opDelete, "//pods/x/0", 2, "")
	if rec := mustWrite(t, st, opCreate, "//pods/x/more", 0, strings.Repeat("x", 4<<20)); rec.rev != rev+2 {
		t.Errorf("revision %d, want %d", rec.rev, rev+2)
	}
	if _, err := mustUpkeep(t, st).compact(t.Context(), st.revision()); err != nil {
		t.Error(err)
	}
	if err := st.close(); err != nil {
		t.Error(err)
	}
	if rep, err := checkFile(path); err != nil || len(rep.problems) > 0 {
		t.Errorf("check: %v, %v", err, rep.problems)
	}
}

func TestStoreGoesOnAfterAFullDisk(t *testing.T) {
	out, err := storeChild("limit", filepath.Join(t.TempDir(), "a.db")).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
