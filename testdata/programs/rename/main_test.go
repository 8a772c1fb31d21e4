package main

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

const root = "../../.."

// copyTree copies the files of the working tree that git knows, with uncommitted changes.
func copyTree(t *testing.T) (folder string) {
	t.Helper()
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Skip("no git on this machine")
	}
	folder = t.TempDir()
	for _, name := range strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		if err := copyFile(filepath.Join(root, name), filepath.Join(folder, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err) // a file that does not exist was removed and is not committed yet
		}
	}
	return folder
}

func copyFile(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, text, info.Mode().Perm())
}

// contents returns the files of a folder.
func contents(t *testing.T, folder string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		all[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestRenameThereAndBack renames a copy of this tree. No import has the old path then. The second
// renaming restores each byte.
func TestRenameThereAndBack(t *testing.T) {
	t.Parallel()
	folder := copyTree(t)
	before := contents(t, folder)
	from, err := modulePath(folder)
	if err != nil {
		t.Fatal(err)
	}
	changed, err := rename(folder, "example.com/team/server")
	if err != nil || changed < 100 {
		t.Fatalf("%d files are changed, %v", changed, err)
	}
	for path, text := range contents(t, folder) {
		if strings.HasSuffix(path, ".go") {
			wantNoImport(t, path, text, from)
		}
		if filepath.Base(path) == "go.mod" && regexp.MustCompile(`(?m)(^|\s)`+from+`(/|\s)`).MatchString(text) {
			t.Errorf("%s has the old path:\n%s", path, text)
		}
	}
	if _, err := rename(folder, from); err != nil {
		t.Fatal(err)
	}
	for path, text := range contents(t, folder) {
		if before[path] != text {
			t.Errorf("%s is not what it was", path)
		}
	}
}

func wantNoImport(t *testing.T, path, text, from string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.ImportsOnly)
	if err != nil {
		return // test data
	}
	for _, spec := range file.Imports {
		if old := strings.Trim(spec.Path.Value, `"`); old == from || strings.HasPrefix(old, from+"/") {
			t.Errorf("%s imports %s", path, old)
		}
	}
}

func TestRules(t *testing.T) {
	t.Parallel()
	r := newRenaming("", "apilet", "b.io/x")
	for _, c := range []struct {
		rule     func([]byte) ([]byte, error)
		old, new string
	}{
		{r.inModuleFile, "module apilet-x\n\nrequire apilet/y v0.0.0\n\nreplace apilet => ../..\n", "module apilet-x\n\nrequire b.io/x/y v0.0.0\n\nreplace b.io/x => ../..\n"},
		{r.inPatch, "-\t\"apilet/internal/a\"\n+\tb \"apilet/internal/b\"\n+\ts := \"apilet/internal/c\"\n", "-\t\"b.io/x/internal/a\"\n+\tb \"b.io/x/internal/b\"\n+\ts := \"apilet/internal/c\"\n"},
		{r.inSource, "package p\n\nimport (\n\t\"apilet/z\"\n\t\"c.io/y\"\n)\n\nconst s = \"apilet/z\"\n", "package p\n\nimport (\n\t\"b.io/x/z\"\n\t\"c.io/y\"\n)\n\nconst s = \"apilet/z\"\n"},
		{r.inSource, "package p\n\nimport (\n\t\"a.io/z\"\n\tq \"apilet\"\n\t\"aq.io/z\"\n)\n", "package p\n\nimport (\n\t\"a.io/z\"\n\t\"aq.io/z\"\n\tq \"b.io/x\"\n)\n"},
		{r.inSource, "this is no Go file", "this is no Go file"},
	} {
		if got, err := c.rule([]byte(c.old)); err != nil || string(got) != c.new {
			t.Errorf("%q became %q, %v; want %q", c.old, got, err, c.new)
		}
	}
	if got := r.inText([]byte("go get apilet/apilettest@v1; see apilettest and x/apilet/apilettest (apilet/apilettest, `apilet/apilettest`)")); string(got) != "go get b.io/x/apilettest@v1; see apilettest and x/apilet/apilettest (b.io/x/apilettest, `b.io/x/apilettest`)" {
		t.Errorf("the text became %s", got)
	}
}

func TestWrongPaths(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"", "-flag", "a b", "https://example.com/apilet", "example.com/", "Example.com/apilet"} {
		if _, err := rename(root, path); err == nil {
			t.Errorf("%q was accepted", path)
		}
	}
}

// ---- A project that downloads apilettest ----

const (
	releasedPath    = "example.com/apilet"
	releasedVersion = "v0.1.0"
)

// TestGoGet renames a copy of this tree and publishes its modules on a proxy of files. A new
// project in an empty folder gets apilettest from there and runs a test. The first test builds
// apilet, the second one does not.
func TestGoGet(t *testing.T) {
	if os.Getenv("APILET_GO_GET") == "" {
		t.Skip("builds a program")
	}
	tree, work := copyTree(t), t.TempDir()
	if _, err := rename(tree, releasedPath); err != nil {
		t.Fatal(err)
	}
	proxy := filepath.Join(work, "proxy")
	publish(t, proxy, tree)
	publish(t, proxy, filepath.Join(tree, "apilettest"))
	p := &project{t: t, folder: filepath.Join(work, "mine"), env: projectEnviron(t, work, proxy)}
	p.write("mine_test.go", projectTest)

	p.run("go", "mod", "init", "example.com/mine")
	p.run("go", "get", releasedPath+"/apilettest@"+releasedVersion)
	if out := p.run("go", "test", "-v", "-timeout=30m", "."); !strings.Contains(out, "building "+releasedPath+"@"+releasedVersion) {
		t.Errorf("the first test did not build apilet:\n%s", out)
	}
	if out := p.run("go", "test", "-v", "-count=1", "."); strings.Contains(out, "building ") {
		t.Errorf("the second test built apilet:\n%s", out)
	}
	if graph := strings.TrimSpace(p.run("go", "list", "-m", "all")); graph != "example.com/mine\n"+releasedPath+"/apilettest "+releasedVersion {
		t.Errorf("the project has more modules than its own and apilettest:\n%s", graph)
	}
	p.run("go", "install", releasedPath+"@"+releasedVersion)
	if out := p.run(filepath.Join(work, "bin", "apilet"), "version"); !strings.Contains(out, releasedVersion) {
		t.Errorf("the installed program has another version than %s:\n%s", releasedVersion, out)
	}
}

// projectTest is the test of the new project. It uses the standard library only.
const projectTest = `package mine

import (
	"testing"

	"` + releasedPath + `/apilettest"
)

func TestServer(t *testing.T) {
	s := apilettest.Start(t)
	response, err := s.Client().Get(s.URL() + "/api/v1/namespaces/default")
	if err != nil || response.StatusCode != 200 {
		t.Fatal(response, err)
	}
	response.Body.Close()
}
`

// A project is a module in a folder of its own.
type project struct {
	t      *testing.T
	folder string
	env    []string
}

func (p *project) write(name, text string) {
	p.t.Helper()
	err := os.MkdirAll(p.folder, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(p.folder, name), []byte(text), 0o644)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// run runs a command in the project and returns its output.
func (p *project) run(name string, args ...string) string {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), name, args...)
	cmd.Dir, cmd.Env = p.folder, p.env
	begun := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		p.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	p.t.Logf("%s %s: %.1f s, %.1f s of CPU time", filepath.Base(name), strings.Join(args, " "), time.Since(begun).Seconds(),
		(cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds())
	return string(out)
}

// projectEnviron returns an environment with the proxy and without any apilet. Other modules come
// from this machine's module cache.
func projectEnviron(t *testing.T, work, proxy string) []string {
	t.Helper()
	settings, err := exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE", "GOCACHE", "GOPROXY").Output()
	if err != nil {
		t.Fatal(err)
	}
	values := strings.Split(string(settings), "\n")
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "APILET") })
	path := slices.DeleteFunc(filepath.SplitList(os.Getenv("PATH")), func(folder string) bool {
		_, err := os.Stat(filepath.Join(folder, "apilet"))
		return err == nil
	})
	return append(env, "PATH="+strings.Join(path, string(os.PathListSeparator)), "GOMODCACHE="+overlay(t, values[0], filepath.Join(work, "modules")), "GOCACHE="+values[1],
		"XDG_CACHE_HOME="+filepath.Join(work, "cache"), "GOBIN="+filepath.Join(work, "bin"), "GOPROXY=file://"+(&url.URL{Path: filepath.ToSlash(proxy)}).EscapedPath()+","+values[2],
		"GOSUMDB=off", "GOFLAGS=-modcacherw -trimpath", "GOWORK=off", "CGO_ENABLED=0")
}

// overlay returns a module cache that refers to another one. The modules of example.com are written
// into the overlay only.
func overlay(t *testing.T, under, folder string) string {
	t.Helper()
	for _, part := range []string{"", "cache", "cache/download"} {
		if err := os.MkdirAll(filepath.Join(folder, part), 0o755); err != nil {
			t.Fatal(err)
		}
		entries, err := os.ReadDir(filepath.Join(under, part))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if name := filepath.Join(part, entry.Name()); name != "cache" && name != filepath.FromSlash("cache/download") && entry.Name() != "example.com" {
				if err := os.Symlink(filepath.Join(under, name), filepath.Join(folder, name)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return folder
}

// publish writes the module in a folder as the files of a module proxy.
func publish(t *testing.T, proxy, folder string) {
	t.Helper()
	module, err := modulePath(folder)
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	archive, err := moduleZip(module+"@"+releasedVersion, folder)
	if err != nil {
		t.Fatal(err)
	}
	versions := filepath.Join(proxy, filepath.FromSlash(module), "@v")
	if err := os.MkdirAll(versions, 0o755); err != nil {
		t.Fatal(err)
	}
	for end, content := range map[string][]byte{
		"list":                    []byte(releasedVersion + "\n"),
		releasedVersion + ".mod":  mod,
		releasedVersion + ".zip":  archive,
		releasedVersion + ".info": fmt.Appendf(nil, `{"Version": %q, "Time": "2026-01-01T00:00:00Z"}`, releasedVersion),
	} {
		if err := os.WriteFile(filepath.Join(versions, end), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%s: %d bytes", module, len(archive))
}

// moduleZip returns the files of a module without those of other modules inside of its folder.
func moduleZip(prefix, folder string) ([]byte, error) {
	var archive bytes.Buffer
	w := zip.NewWriter(&archive)
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil && path != folder {
				return fs.SkipDir
			}
			return nil
		}
		name, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		out, err := w.Create(prefix + "/" + filepath.ToSlash(name))
		if err != nil {
			return err
		}
		_, err = io.Copy(out, bytes.NewReader(text))
		return err
	})
	err = errors.Join(err, w.Close())
	return archive.Bytes(), err
}
