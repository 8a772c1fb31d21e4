package main

// These tests damage files and set clocks wrong. A damaged file may be refused, and what is damaged in it may be reported; what must
// never happen is a panic, an object that is shown other than it was written, or one that is missing while `apilet check` finds nothing.
//
//	APILET_DAMAGES=10000 go test -run TestDamagedFiles -v .   # the long version, with counts

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"apilet/internal/commandline"
	"apilet/internal/store"
)

func TestDamagedFiles(t *testing.T) { runCampaign(t, "TestDamageChild", "400") }

// runCampaign runs a campaign in a child: what kills it is named by the last line that it wrote.
func runCampaign(t *testing.T, child, rounds string) {
	rounds = cmp.Or(os.Getenv("APILET_DAMAGES"), rounds)
	cmd := exec.Command(os.Args[0], "-test.run=^"+child+"$", "-test.v", "-test.timeout=3h")
	cmd.Env = append(os.Environ(), "APILET_DAMAGE_CHILD="+rounds, "TMPDIR="+t.TempDir())
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var last, summary string
	var said []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		switch text := lines.Text(); {
		case strings.HasPrefix(text, "round "):
			last = text
		case strings.HasPrefix(text, "summary "):
			summary = text
		default:
			said = append(said, text)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v in %s\n%s\n%.3000s", err, last, strings.Join(said, "\n"), errs.String())
	}
	t.Log(summary)
}

// ---- Lost files

// A client is told what has happened to the file, the probes too, and nothing is answered 201 that would be gone at exit.
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
	if err := (backupSource{server: s.url}).download(saved); err != nil {
		t.Error(err)
	}
	startTest(t, onFile(saved)).want(200, "GET", maps+"/kept", "")
	os.Rename(path+".away", path)
	s.want(201, "POST", maps, configMap("refused"))
}

// ---- Files of others

// What is not ours, or of a format that this version does not know, is refused by name and left as it is.
func TestForeignFilesAreLeftAlone(t *testing.T) {
	t.Parallel()
	withFormat := func(format int64) []byte {
		path := filepath.Join(t.TempDir(), "a.db")
		st := openTestStore(t, path)
		mustWrite(t, st, store.OpCreate, "//pods/x/a", 0, "")
		st.Db.Update(func(tx *bbolt.Tx) error { return store.PutMetaInt(tx, "format", format) })
		st.Close()
		b, _ := os.ReadFile(path)
		return b
	}
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
		"a newer format":    {withFormat(store.StoreFormat + 1), fmt.Sprintf("has format %d and this version of apilet reads format %d", store.StoreFormat+1, store.StoreFormat)},
		"an older format":   {withFormat(store.StoreFormat - 1), fmt.Sprintf("has format %d and this version of apilet reads format %d", store.StoreFormat-1, store.StoreFormat)},
		"etcd, or any bolt": {plainBytes, "is a bbolt file of another program"},
		"SQLite":            {append([]byte("SQLite format 3\x00\x10\x00\x01\x01\x00\x40\x20\x20"), make([]byte, 8172)...), "not an apilet data file"},
		"nothing":           {nil, "is empty (0 bytes)"},
		"noise":             {bytes.Repeat([]byte("\x9d\x01kube"), 9000), "not an apilet data file"},
	} {
		path := writeDataFile(t, c.content)
		for command, do := range map[string]func() error{
			"serve":  func() error { _, err := store.Open(path, store.Options{}); return err },
			"check":  func() error { _, err := store.Check(path); return err },
			"defrag": func() error { return store.Defrag(path, nil) },
			"backup": func() error {
				return (&config{data: path}).runBackup(commandline.Call{Args: []string{path + ".copy"}, Errors: io.Discard})
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
