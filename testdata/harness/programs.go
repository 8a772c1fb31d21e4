package harness

// This file finds and builds the programs that the tests start.

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// programs are the programs that this test binary has built.
var programs struct {
	mu   sync.Mutex // guards dir and built; held while a program is built
	dir  string
	done map[string]error // by environment variable
}

// Main runs the tests and removes the programs that were built for them. It returns the exit code.
func Main(m *testing.M) int {
	defer func() {
		if programs.dir != "" {
			os.RemoveAll(programs.dir)
		}
	}()
	return m.Run()
}

// Apilet returns the path of apilet: the environment variable APILET, or a program built from this repository.
func Apilet(t testing.TB) string {
	t.Helper()
	return program(t, "APILET", ".", ".")
}

// EtcdProgram returns the path of etcd: the environment variable ETCD, or a program built from its module.
func EtcdProgram(t testing.TB) string {
	t.Helper()
	return program(t, "ETCD", "testdata/etcd", "go.etcd.io/etcd/server/v3")
}

// program returns the path that an environment variable names. If it is not set, program builds the package once per test binary.
func program(t testing.TB, env, folder, pkg string) string {
	t.Helper()
	if path := os.Getenv(env); path != "" {
		path, err := filepath.Abs(path)
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	programs.mu.Lock()
	defer programs.mu.Unlock()
	if programs.done == nil {
		dir, err := os.MkdirTemp("", "apilet-harness-")
		if err != nil {
			t.Fatal(err)
		}
		programs.dir, programs.done = dir, map[string]error{}
	}
	path := filepath.Join(programs.dir, env)
	err, built := programs.done[env]
	if !built {
		err = build(path, folder, pkg)
		programs.done[env] = err
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func build(path, folder, pkg string) error {
	root, err := repository()
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-o", path, pkg)
	cmd.Dir = filepath.Join(root, folder)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", pkg, err, out)
	}
	return nil
}

// repository returns the folder of apilet's module, which contains the working directory of each test.
func repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(text, []byte("module apilet\n")) {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("no folder above has apilet's go.mod")
		}
		dir = parent
	}
}
