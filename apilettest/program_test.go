package apilettest

// The go command of these tests is a link to this test binary, with the environment variable fakeGo
// set.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// pretendToBuild is a go command whose install writes a program into GOBIN. It appends its
// arguments to a file.
func pretendToBuild(log string) (code int) {
	f, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = fmt.Fprintln(f, strings.Join(os.Args[1:], " "))
	}
	if err == nil && os.Args[1] == "install" {
		err = os.WriteFile(filepath.Join(os.Getenv("GOBIN"), executable), []byte("program"), 0o755)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// useFakeGo puts the fake go command into a folder, and returns the environment that uses it, and
// the file with its calls.
func useFakeGo(t *testing.T) (env []string, calls string) {
	t.Helper()
	bin := t.TempDir()
	own, err := os.Executable()
	if err == nil {
		err = os.Symlink(own, filepath.Join(bin, "go"))
	}
	if err != nil {
		t.Fatal(err)
	}
	calls = filepath.Join(t.TempDir(), "calls")
	return []string{"PATH=" + bin + string(os.PathListSeparator) + os.Getenv("PATH"), fakeGo + "=" + calls}, calls
}

// TestParallelTestBinariesBuildOnce starts several test binaries that need the same version at the
// same time.
func TestParallelTestBinariesBuildOnce(t *testing.T) {
	if cache := os.Getenv(child); cache != "" {
		path, err := builder{out: os.Stdout, cache: cache}.fromVersion(t.Context(), "example.com/apilet", "v1.2.3")
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("program: %s\n", path)
		return
	}
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("a test binary named go.exe is not a go command")
	}
	env, calls := useFakeGo(t)
	cache := t.TempDir()
	if err := os.MkdirAll(filepath.Join(cache, "v1.2.3", "build-killed"), 0o755); err != nil {
		t.Fatal(err)
	}
	const n = 5
	outputs := make(chan string, n)
	for range n {
		go func() {
			cmd := exec.Command(os.Args[0], "-test.run=^TestParallelTestBinariesBuildOnce$")
			cmd.Env = append(append(os.Environ(), env...), child+"="+cache)
			out, err := cmd.CombinedOutput()
			outputs <- fmt.Sprintln(string(out), err)
		}()
	}
	want := filepath.Join(cache, "v1.2.3", executable)
	announced := 0
	for range n {
		out := <-outputs
		if !strings.Contains(out, "program: "+want+"\n") {
			t.Errorf("a child printed %s, want the path %s", out, want)
		}
		announced += strings.Count(out, "building example.com/apilet@v1.2.3")
	}
	text, err := os.ReadFile(calls)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Count(text, []byte("\n")) != 1 || !bytes.HasPrefix(text, []byte("install ")) || !bytes.Contains(text, []byte(" example.com/apilet@v1.2.3\n")) || announced != 1 {
		t.Errorf("the go command ran with\n%sand the build was announced %d times; want one build", text, announced)
	}
	entries, err := os.ReadDir(filepath.Dir(want))
	if err != nil || len(entries) != 2 {
		t.Errorf("the cache has %v, %v; want the program and the lock", entries, err)
	}
}

// TestTheTestsEndDoesNotWaitForTheLock holds the lock of a version.
func TestTheTestsEndDoesNotWaitForTheLock(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	unlock, err := lock(t.Context(), filepath.Join(folder, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = builder{}.locked(ctx, folder, func(string) error { t.Error("the build runs"); return nil })
	if !errors.Is(err, errLocked) {
		t.Errorf("got %v, want %v", err, errLocked)
	}
}

func TestProgramIsTheOneInTheEnvironment(t *testing.T) {
	t.Setenv("APILET", "some/program")
	if path := Program(t); !filepath.IsAbs(path) || !strings.HasSuffix(path, filepath.FromSlash("/some/program")) {
		t.Errorf("got %s", path)
	}
}

func TestTheCheckoutIsTheModuleAbove(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("compares with a path that has slashes")
	}
	above, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	if _, file, _, _ := runtime.Caller(0); !filepath.IsAbs(file) {
		above = "" // with -trimpath the test binary has no folder
	}
	module := strings.TrimSuffix(reflect.TypeFor[Server]().PkgPath(), "/apilettest")
	if got := checkout(module); got != above {
		t.Errorf("got %q, want %q", got, above)
	}
	if got := checkout("example.com/apilet"); got != "" {
		t.Errorf("got %q for another module", got)
	}
}

// TestTheBuildIsForThisMachine runs in the environment of a test for another platform.
func TestTheBuildIsForThisMachine(t *testing.T) {
	t.Setenv("GOARCH", "mips")
	t.Setenv("GOOS", "plan9")
	env := hostEnviron()
	for _, kv := range []string{"GOARCH=mips", "GOOS=plan9"} {
		if slices.Contains(env, kv) {
			t.Errorf("the environment has %s", kv)
		}
	}
}
