//go:build unix

package store

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"apilet/internal/store/boltfile"
)

// TestIrregularFilesAreRefused checks that a named pipe, a device, a socket or a directory in place
// of the file is rejected immediately. Opening a pipe would block.
func TestIrregularFilesAreRefused(t *testing.T) {
	t.Parallel()
	kinds := map[string]func(path string) error{
		"pipe":   func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"folder": func(path string) error { return os.Mkdir(path, 0o700) },
		"device": func(path string) error { return os.Symlink("/dev/zero", path) },
		"socket": func(path string) error {
			l, err := net.Listen("unix", path)
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		},
	}
	left := copyOpen(t, func() *Store {
		st := openLogged(t, filepath.Join(t.TempDir(), "a.db"))
		mustWrite(t, st, OpCreate, "//pods/x/a", 0, "a")
		return st
	}())
	follow := &Replica{Identity: "one"}
	for kind, place := range kinds {
		for title, c := range map[string]struct {
			suffix string
			open   func(path string) error
		}{
			"file, open":     {"", func(path string) error { return openAndClose(path, Options{}) }},
			"file, check":    {"", func(path string) error { _, err := Check(path); return err }},
			"file, defrag":   {"", func(path string) error { return Defrag(path, nil) }},
			"file, base":     {"", func(path string) error { return openAndClose("", Options{Ephemeral: true, Base: path}) }},
			"file, replica":  {"", func(path string) error { return openAndClose(path, Options{Replica: follow}) }},
			"log, open":      {boltfile.LogSuffix, func(path string) error { return openAndClose(path, Options{}) }},
			"log, check":     {boltfile.LogSuffix, func(path string) error { _, err := Check(path); return err }},
			"log, defrag":    {boltfile.LogSuffix, func(path string) error { return Defrag(path, nil) }},
			"replica's note": {replicaSuffix, func(path string) error { return openAndClose(path, Options{Replica: follow}) }},
		} {
			dir, err := os.MkdirTemp("", "apilet-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			path := filepath.Join(dir, "a.db")
			if b, err := os.ReadFile(left); c.suffix == boltfile.LogSuffix && os.WriteFile(path, b, 0o600) != nil || err != nil {
				t.Fatal(err)
			}
			if err := place(path + c.suffix); err != nil {
				t.Fatal(err)
			}
			if title == "file, replica" {
				if err := os.WriteFile(path+replicaSuffix, []byte("another\nrun\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.open(path); err == nil || !strings.Contains(err.Error(), "is not a regular file") {
				t.Errorf("%s as %s: %v", kind, title, err)
			}
			if _, err := os.Lstat(path + c.suffix); err != nil {
				t.Errorf("%s as %s: %v", kind, title, err)
			}
		}
	}
}

func openAndClose(path string, opts Options) error {
	st, err := Open(path, opts)
	if err == nil {
		st.Close()
	}
	return err
}
