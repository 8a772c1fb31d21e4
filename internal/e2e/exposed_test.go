package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apilet/internal/apitest"
)

const couldRead = "others could read this file"

// TestDataFileIsForTheServerAlone checks the mode of the data file. The log must name the files of
// flags that all users can read.
func TestDataFileIsForTheServerAlone(t *testing.T) {
	t.Parallel()
	apitest.NeedsModes(t)
	dir := t.TempDir()
	data, tokens, private := filepath.Join(dir, "db"), apitest.TempFile(t, "tokens", "s3cret,bob,1\n"), apitest.TempFile(t, "private", "t0ken,ann,2\n")
	apitest.Chmod(t, tokens, 0o644)
	apitest.Chmod(t, private, 0o640)
	s := startTest(t, onFile(data), "--token-auth-file="+tokens)
	if log := s.log.String(); strings.Contains(log, couldRead) || !strings.Contains(log, "every user of this machine can read this file") || !strings.Contains(log, tokens) {
		t.Errorf("at the first start: %s", log)
	}
	s.halt()
	apitest.Chmod(t, data, 0o644)
	s.flags = append(s.flags, "--token-auth-file="+private)
	s.restart()
	if got := modeOf(t, data); got != 0o600 {
		t.Errorf("the data file has mode %o", got)
	}
	if log := s.log.String(); strings.Count(log, couldRead) != 1 || strings.Contains(log, private) {
		t.Errorf("at the second start: %s", log)
	}
	if got := modeOf(t, tokens); got != 0o644 {
		t.Errorf("somebody else's file has mode %o now", got)
	}
}

func modeOf(t *testing.T, path string) os.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}
