package store

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"apilet/internal/apitest"
	"apilet/internal/store/boltfile"
)

// TestProgressIsTold uses a period of a nanosecond, which corresponds to a second for a large file.
func TestProgressIsTold(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	st := openTestStore(t, path)
	for i := range 200 {
		mustWrite(t, st, OpCreate, fmt.Sprintf("//pods/x/%d", i), 0, "{}")
	}
	backup := &Progress{}
	if err := mustUpkeep(t, st).Backup(t.Context(), filepath.Join(t.TempDir(), "copy.db"), backup); err != nil {
		t.Fatal(err)
	}
	if got := backup.String(); got != "objects 200 of 200 (100 %)" {
		t.Errorf("backup: %q", got)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	check, defrag := &Progress{}, &Progress{}
	var told apitest.Log
	stop := check.Show(&told, "apilet check", time.Nanosecond)
	if _, err := CheckObjects(path, Inspection{}, check); err != nil {
		t.Fatal(err)
	}
	apitest.WaitFor(t, "the last line", func() bool { return strings.Contains(told.String(), "apilet check: objects 200\n") })
	stop()
	looked := &Progress{}
	if _, err := boltfile.Vet(path, true, looked, func(*boltfile.Pages) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if got := looked.String(); !regexp.MustCompile(`^page [1-9]\d* of \d+ \(\d+ %\)$`).MatchString(got) {
		t.Errorf("check: %q", got)
	}
	if err := Defrag(path, defrag); err != nil {
		t.Fatal(err)
	}
	if got := defrag.String(); !regexp.MustCompile(`^bytes written, of a file with \d+ of \d+ `).MatchString(got) {
		t.Errorf("defrag: %q", got)
	}
}
