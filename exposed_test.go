package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"apilet/internal/auth/certs"
)

const couldRead = "others could read this file"

// needsModes skips where files have none.
func needsModes(t *testing.T) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("files have no modes here")
	}
}

func mustChmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// TestDataFileIsForTheServerAlone: and of the files of flags those are named that everybody may read.
func TestDataFileIsForTheServerAlone(t *testing.T) {
	t.Parallel()
	needsModes(t)
	dir, lines := t.TempDir(), &logLines{}
	data, tokens, private := filepath.Join(dir, "db"), writeTemp(t, "tokens", "s3cret,bob,1\n"), writeTemp(t, "private", "t0ken,ann,2\n")
	mustChmod(t, tokens, 0o644)
	mustChmod(t, private, 0o640)
	s := startTest(t, onFile(data), func(c *config) { c.log, c.auth.TokenFile = zerolog.New(lines), tokens })
	if log := lines.String(); strings.Contains(log, couldRead) || !strings.Contains(log, "everybody on this machine may read this file") || !strings.Contains(log, tokens) {
		t.Errorf("at the first start: %s", log)
	}
	s.halt()
	mustChmod(t, data, 0o644)
	s.conf.auth.TokenFile = private
	s.restart()
	if got := certs.ModeOf(data); got != 0o600 {
		t.Errorf("the data file has mode %o", got)
	}
	if log := lines.String(); strings.Count(log, couldRead) != 1 || strings.Contains(log, private) {
		t.Errorf("at the second start: %s", log)
	}
	if got := certs.ModeOf(tokens); got != 0o644 {
		t.Errorf("somebody else's file has mode %o now", got)
	}
}
