package datafile_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"apilet/internal/apitest"
	"apilet/internal/commandline"
	"apilet/internal/datafile/datacmd"
	"apilet/internal/store"
)

// run runs a command of the table, and returns what it prints.
func run(args ...string) (out, errs string, code int) {
	var stdout, stderr strings.Builder
	program := commandline.Program{Name: "apilet", Commands: func() []commandline.Command {
		serve := commandline.Command{ArgCounts: []int{0}, Run: func(commandline.Call) error { return nil }}
		return append([]commandline.Command{serve}, datacmd.Commands(func(io.Writer) zerolog.Logger { return zerolog.Nop() })...)
	}, Version: func(io.Writer) error { return nil }}
	code = program.Run(args, &stdout, &stderr)
	return stdout.String(), stderr.String(), code
}

// fill makes a data file with ConfigMaps, all but one in ten of which are deleted again, and leaves it open.
func fill(t *testing.T, path string, objects int) *store.Store {
	t.Helper()
	st, err := store.Open(path, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	commit := func(op store.ChangeOp, i int, expect int64) int64 {
		body := fmt.Sprintf(`{"metadata":{"name":"m%d","namespace":"x","resourceVersion":""},"data":{"k":"%s"}}`, i, strings.Repeat("x", 500))
		rec, err := st.Commit(t.Context(), store.Change{Op: op, Key: fmt.Sprintf("//configmaps/x/m%d", i), Expect: expect, JSON: []byte(body),
			RevAt: strings.Index(body, `""`) + 1})
		if err != nil {
			t.Fatal(err)
		}
		return rec.Rev
	}
	for i := range objects {
		if rev := commit(store.OpCreate, i, 0); i%10 > 0 {
			commit(store.OpDelete, i, rev)
		}
	}
	return st
}

// want runs a command that has to succeed.
func want(t *testing.T, args ...string) string {
	t.Helper()
	out, errs, code := run(args...)
	if code != 0 {
		t.Fatalf("apilet %q: %d %s", args, code, errs)
	}
	return out
}

func TestFileIsCheckedCopiedAndMadeSmaller(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	st := fill(t, path, 200)
	up, err := store.NewMaintenance(st)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := up.Compact(t.Context(), st.Revision()); err != nil {
		t.Fatal(err)
	}
	st.Close()
	if out := want(t, "check", "--data", path); !strings.Contains(out, "revision 380, compacted to 380, 20 objects, 20 records") {
		t.Error(out)
	}
	before := apitest.ReadFile(t, path)
	out := want(t, "defrag", "--data", path)
	after := apitest.ReadFile(t, path)
	if len(after) >= len(before) {
		t.Errorf("%d bytes, were %d", len(after), len(before))
	}
	if sizes := fmt.Sprintf("%s: %d bytes before, %d bytes after\n", path, len(before), len(after)); out != sizes {
		t.Errorf("got %q, want %q", out, sizes)
	}
	dest := filepath.Join(t.TempDir(), "copy.db")
	want(t, "backup", "--data", path, dest)
	for _, file := range []string{path, dest} {
		if out := want(t, "check", "--data", file); !strings.Contains(out, " 20 objects, ") {
			t.Error(out)
		}
	}
	if _, errs, code := run("backup", "--data", path, dest); code != 1 || !strings.Contains(errs, "file already exists") {
		t.Errorf("over another file: %d %s", code, errs)
	}
}

func TestDefragSaysThatCompactionWouldFreeMore(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	fill(t, path, 200).Close()
	if out := want(t, "defrag", "--data", path); !strings.Contains(out, "\n360 old versions (") || !strings.Contains(out, "--compact") {
		t.Error(out)
	}
	before := len(apitest.ReadFile(t, path))
	out := want(t, "defrag", "--compact", "--data", path)
	after := len(apitest.ReadFile(t, path))
	if after > before/2 || out != fmt.Sprintf("%s: %d bytes before, %d bytes after\n", path, before, after) {
		t.Errorf("%d bytes, were %d: %s", after, before, out)
	}
	if out := want(t, "check", "--data", path); !strings.Contains(out, "revision 380, compacted to 380, 20 objects, 20 records") {
		t.Error(out)
	}
}

// A server that was killed leaves a log. Its commits are in the packed file, and its bytes count as the file's.
func TestDefragTakesOverTheLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	killed, path := filepath.Join(dir, "killed.db"), filepath.Join(dir, "a.db")
	fill(t, killed, 100)
	size := 0
	for _, suffix := range []string{"", "-wal"} {
		content := apitest.ReadFile(t, killed+suffix)
		size += len(content)
		if err := os.WriteFile(path+suffix, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out := want(t, "defrag", "--compact", "--data", path)
	if after := len(apitest.ReadFile(t, path)); !strings.HasPrefix(out, fmt.Sprintf("%s: %d bytes before, %d bytes after\n", path, size, after)) {
		t.Error(out)
	}
	if _, err := os.Stat(path + "-wal"); err == nil {
		t.Error("the log is still there")
	}
	if out := want(t, "check", "--data", path); !strings.Contains(out, " 10 objects, 10 records") {
		t.Error(out)
	}
}

func TestFileThatAServerHasOpenIsLeftAlone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	fill(t, path, 10)
	dest := filepath.Join(t.TempDir(), "copy.db")
	for _, args := range [][]string{{"check"}, {"defrag"}, {"backup", dest}, {"migrate", "--etcd-servers", "http://127.0.0.1:1"}} {
		args = append(args[:1:1], append([]string{"--data", path}, args[1:]...)...)
		if out, errs, code := run(args...); code != 1 || !strings.Contains(errs, "in use") {
			t.Errorf("apilet %q: %d %s %s", args, code, out, errs)
		}
	}
	if _, err := os.Stat(dest); err == nil {
		t.Error("there is a backup")
	}
}

func TestWhatIsNoDataFileIsSaidSo(t *testing.T) {
	t.Parallel()
	missing, text := filepath.Join(t.TempDir(), "none.db"), apitest.TempFile(t, "text.db", strings.Repeat("no data file\n", 2000))
	for _, command := range []string{"check", "defrag"} {
		for _, path := range []string{missing, text} {
			if out, errs, code := run(command, "--data", path); code != 1 || errs == "" {
				t.Errorf("%s of %s: %d %s", command, filepath.Base(path), code, out)
			}
		}
	}
	if content := apitest.ReadFile(t, text); !bytes.HasPrefix(content, []byte("no data file\n")) || len(content) != 26000 {
		t.Error("what was no data file has changed")
	}
	if _, errs, code := run("migrate", "--data", missing); code != 1 || !strings.Contains(errs, "--etcd-servers") {
		t.Errorf("migrate to nowhere: %d %s", code, errs)
	}
	if _, errs, code := run("migrate", "--data", missing, "--etcd-servers", "http://127.0.0.1:1"); code != 1 || errs == "" {
		t.Errorf("migrate of nothing: %d %s", code, errs)
	}
	if _, err := os.Stat(missing); err == nil {
		t.Error("a command has made the file that was missing")
	}
}

// What did not arrive whole does not get the name, nor is anything else left in the folder.
func TestBrokenDownloadLeavesNothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	fill(t, path, 40).Close()
	whole := apitest.ReadFile(t, path)
	damaged := bytes.ReplaceAll(whole, []byte("xxxx"), []byte("xxyx"))
	for title, c := range map[string]struct {
		answer func(w http.ResponseWriter)
		want   string
	}{
		"cut off": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", fmt.Sprint(len(whole)))
			w.Write(whole[:len(whole)/2])
		}, "EOF"},
		"aborted": {func(w http.ResponseWriter) {
			w.Write(whole[:len(whole)/2])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, "EOF"},
		"cut off where nobody sees it": {func(w http.ResponseWriter) { w.Write(whole[:4096*3]) }, "sent a damaged backup"},
		"damaged":                      {func(w http.ResponseWriter) { w.Write(damaged) }, "sent a damaged backup"},
		"a proxy's page":               {func(w http.ResponseWriter) { w.Write([]byte("<html>")) }, "sent a damaged backup"},
		"an error":                     {func(w http.ResponseWriter) { w.WriteHeader(502) }, "502 Bad Gateway"},
		"a refusal":                    {func(w http.ResponseWriter) { w.WriteHeader(403); io.WriteString(w, `{"message":"not you"}`) }, "403 Forbidden: not you"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { c.answer(w) }))
		dir := t.TempDir()
		_, errs, code := run("backup", "--server", server.URL, filepath.Join(dir, "copy.db"))
		if code != 1 || !strings.Contains(errs, c.want) {
			t.Errorf("%s: got %d %s, want %s", title, code, errs, c.want)
		}
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("%s: left %v", title, left)
		}
		server.Close()
	}
}
