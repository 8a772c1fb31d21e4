package apilettest

// This file locates the program. If the program has to be built, the result is cached, because a
// build takes minutes. A file lock prevents parallel test binaries from building it more than once.

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// found is the program that this test binary has found.
var found struct {
	mu   sync.Mutex // guards the other fields; held during a build
	done bool
	path string
	err  error
}

// Program returns the path of apilet. It looks for the program in this order:
//
//   - the path in the environment variable APILET
//   - if this package is part of a checkout of apilet (a replace directive in go.mod), a program built from the checkout
//   - apilet in PATH
//   - the program of this module's version in the user's cache folder; if it is missing, Program builds it with the go
//     command, outside of the test's module
func Program(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("APILET"); path != "" {
		path, err := filepath.Abs(path)
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	found.mu.Lock()
	defer found.mu.Unlock()
	if !found.done {
		ctx, cancel := patience(t)
		defer cancel()
		found.path, found.err = find(ctx)
		found.done = ctx.Err() == nil // the next test can retry if this one ended early
	}
	if found.err != nil {
		t.Fatal(found.err)
	}
	return found.path
}

// find looks for the program in a checkout, in PATH and in the cache.
func find(ctx context.Context) (string, error) {
	own := reflect.TypeFor[Server]().PkgPath()
	module := strings.TrimSuffix(own, "/apilettest")
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no folder for the program apilet; set APILET to its path: %w", err)
	}
	b := builder{out: os.Stderr, cache: filepath.Join(cache, "apilet")}
	if folder := checkout(module); folder != "" {
		return b.fromCheckout(ctx, folder)
	}
	if path, err := exec.LookPath("apilet"); err == nil {
		return filepath.Abs(path)
	}
	version, err := moduleVersion(ctx, own)
	if err != nil {
		return "", fmt.Errorf("apilet is not in PATH, and its version is unknown; set APILET to its path: %w", err)
	}
	return b.fromVersion(ctx, module, version)
}

// checkout returns the folder of apilet's module if this package was compiled from a folder in it,
// else an empty string.
func checkout(module string) string {
	_, file, _, _ := runtime.Caller(0)
	folder := filepath.Dir(filepath.Dir(file))
	text, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	if !filepath.IsAbs(folder) || err != nil || !bytes.HasPrefix(text, []byte("module "+module+"\n")) {
		return ""
	}
	return folder
}

// moduleVersion returns the version of a module that the test's module requires. A test binary does
// not contain it.
func moduleVersion(ctx context.Context, module string) (string, error) {
	var complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Version}}", module)
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	version := strings.TrimSpace(string(out))
	if err == nil && version == "" {
		err = errors.New("it has no version")
	}
	if err != nil {
		return "", fmt.Errorf("go list -m %s: %w\n%s", module, err, complaint.Bytes())
	}
	return version, nil
}

// ---- Build ----

// builder builds apilet and caches the result.
type builder struct {
	out   *os.File // receives a line before a long build
	cache string
}

// buildFlags match the flags of apilet's releases. The resulting program is independent of the
// folder of its sources.
var buildFlags = []string{"-trimpath", "-tags=grpcnotrace", "-ldflags=-s -w"}

// fromVersion returns the program of a version. It builds the program if the cache does not have
// it.
func (b builder) fromVersion(ctx context.Context, module, version string) (string, error) {
	folder := filepath.Join(b.cache, version)
	path := filepath.Join(folder, executable)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return path, b.locked(ctx, folder, func(work string) error {
		if _, err := os.Stat(path); err == nil { // another test binary has built it
			return nil
		}
		b.announce(module+"@"+version, folder)
		args := slices.Concat([]string{"install", "-mod=readonly"}, buildFlags, []string{module + "@" + version})
		if err := goCommand(ctx, work, append(hostEnviron(), "GOBIN="+work), args...); err != nil {
			return err
		}
		return os.Rename(filepath.Join(work, executable), path)
	})
}

// fromCheckout builds the program of a checkout. The go command decides whether it has changed.
func (b builder) fromCheckout(ctx context.Context, source string) (string, error) {
	sum := sha256.Sum256([]byte(source))
	folder := filepath.Join(b.cache, "checkout-"+hex.EncodeToString(sum[:6]))
	path := filepath.Join(folder, executable)
	return path, b.locked(ctx, folder, func(work string) error {
		if _, err := os.Stat(path); err != nil {
			b.announce(source, folder)
		}
		// GOTMPDIR is on the file system of the cache, so the go command replaces a program that runs.
		args := slices.Concat([]string{"build"}, buildFlags, []string{"-o", path, "."})
		return goCommand(ctx, source, append(hostEnviron(), "GOTMPDIR="+work), args...)
	})
}

// announce prints a line before a build, which may take minutes.
func (b builder) announce(source, folder string) {
	fmt.Fprintf(b.out, "apilettest: building %s into %s; the first build takes minutes\n", source, folder)
}

// locked calls build with a temporary folder inside of a folder. Other test binaries wait
// meanwhile.
func (b builder) locked(ctx context.Context, folder string, build func(work string) error) (err error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	unlock, err := lock(ctx, filepath.Join(folder, "lock"))
	if err != nil {
		return err
	}
	defer unlock()
	const prefix = "build-"
	if err := removeAll(folder, prefix); err != nil { // left by a process that was killed
		return err
	}
	work, err := os.MkdirTemp(folder, prefix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	return build(work)
}

// removeAll removes the entries of a folder that start with a prefix.
func removeAll(folder, prefix string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), prefix) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(folder, entry.Name())))
		}
	}
	return err
}

var errLocked = errors.New("another test binary builds apilet")

// lock locks a file. It waits while another process holds the lock. The kernel releases the lock
// when its process exits.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	var failure error
	err = poll(ctx, nil, func() error {
		unlock, failure = tryLock(path)
		if errors.Is(failure, errLocked) {
			return failure
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return unlock, failure
}

// goCommand runs the go command in a folder.
func goCommand(ctx context.Context, folder string, env []string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = folder, env
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return fmt.Errorf("go %s: the test ended before the build; repeat the test, or build the program without it",
			strings.Join(args, " "))
	}
	if err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// hostEnviron returns the environment for a static program that runs on this machine.
func hostEnviron() []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "GOOS=") || strings.HasPrefix(kv, "GOARCH=")
	})
	return append(env, "CGO_ENABLED=0", "GOWORK=off")
}
