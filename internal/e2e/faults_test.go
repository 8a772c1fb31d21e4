package e2e

// These tests remove the data file of a server, and start servers with other files.

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"apilet/internal/store"
	"apilet/internal/store/storetest"
)

// ---- Lost files

// Clients and health checks get an error that describes the lost file. No write is acknowledged
// that would be lost when the server stops.
func TestClientsAreToldOfALostFile(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("a file in use cannot be removed")
	}
	path := filepath.Join(t.TempDir(), "a.db")
	s := startTest(t, onFile(path))
	maps := s.namespace("lost")
	s.want(201, "POST", maps, configMap("kept"))
	os.Rename(path, path+".away")
	if a := s.want(500, "POST", maps, configMap("refused")); !strings.Contains(a.get("message").String(), "data file was removed or replaced") {
		t.Errorf("got %s", a.failure())
	}
	if a := s.send("GET", "/readyz", ""); a.code != 500 {
		t.Errorf("/readyz: %d %s", a.code, a.body)
	}
	s.want(200, "GET", maps+"/kept", "")
	saved := filepath.Join(t.TempDir(), "saved.db")
	if err := tryCommand(t, "backup", "--server", s.url, saved); err != nil {
		t.Error(err)
	}
	startTest(t, onFile(saved)).want(200, "GET", maps+"/kept", "")
	os.Rename(path+".away", path)
	s.want(201, "POST", maps, configMap("refused"))
}

// ---- Foreign files

// If a file belongs to another program, or has an unknown format, the error names it. The file does
// not change.
func TestForeignFilesAreLeftAlone(t *testing.T) {
	t.Parallel()
	withFormat := func(format int64) []byte {
		path := filepath.Join(t.TempDir(), "a.db")
		st := storetest.Open(t, path)
		storetest.MustWrite(t, st, store.OpCreate, "//pods/x/a", 0, "")
		st.Close()
		storetest.SetFormat(t, path, format)
		b, _ := os.ReadFile(path)
		return b
	}
	const ours = int64(store.Format)
	plain := filepath.Join(t.TempDir(), "plain.db")
	db, err := bbolt.Open(plain, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	db.Update(func(tx *bbolt.Tx) error { _, err := tx.CreateBucket([]byte("users")); return err })
	db.Close()
	plainBytes, _ := os.ReadFile(plain)
	for title, c := range map[string]struct {
		content []byte
		want    string
	}{
		"a newer format":    {withFormat(ours + 2), fmt.Sprintf("has format %d, and this version of apilet reads format %d", ours+2, ours)},
		"an older format":   {withFormat(ours - 1), fmt.Sprintf("has format %d, and this version of apilet reads format %d", ours-1, ours)},
		"no known format":   {withFormat(0), fmt.Sprintf("has format 0, and this version of apilet reads format %d", ours)},
		"etcd, or any bolt": {plainBytes, "is a bbolt file of another program"},
		"SQLite":            {append([]byte("SQLite format 3\x00\x10\x00\x01\x01\x00\x40\x20\x20"), make([]byte, 8172)...), "not an apilet data file"},
		"nothing":           {nil, "is empty (0 bytes)"},
		"noise":             {bytes.Repeat([]byte("\x9d\x01kube"), 9000), "not an apilet data file"},
	} {
		path := storetest.WriteFile(t, c.content)
		for command, do := range map[string]func() error{
			"serve":  func() error { _, err := store.Open(path, store.Options{}); return err },
			"check":  func() error { _, err := store.Check(path); return err },
			"defrag": func() error { return store.Defrag(path, nil) },
			"backup": func() error {
				return tryCommand(t, "backup", "--data", path, path+".copy")
			},
		} {
			if err := do(); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s of %s: got %v, want %s", command, title, err, c.want)
			}
		}
		if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, c.content) {
			t.Errorf("%s: the file has changed (%v)", title, err)
		}
		if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
			t.Errorf("%s: left %v", title, left)
		}
	}
}
