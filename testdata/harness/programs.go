package harness

// This file finds or builds etcd.

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// etcdModule is the folder of the module that chooses etcd's version, relative to the root of the
// repository.
const etcdModule = "testdata/etcd"

// etcd is the program that this test binary has built.
var etcd struct {
	mu   sync.Mutex // guards the other fields; held during a build
	dir  string     // parent folder of path, or empty
	path string
	err  error
}

// Main runs the tests and removes the program if one was built. It returns the exit code.
func Main(m *testing.M) int {
	defer func() {
		if etcd.dir != "" {
			os.RemoveAll(etcd.dir)
		}
	}()
	return m.Run()
}

// EtcdProgram returns the path of etcd: the environment variable ETCD, or a program that it builds
// once per test binary.
func EtcdProgram(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("ETCD"); path != "" {
		path, err := filepath.Abs(path)
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	etcd.mu.Lock()
	defer etcd.mu.Unlock()
	if etcd.dir == "" {
		dir, err := os.MkdirTemp("", "apilet-harness-")
		if err != nil {
			t.Fatal(err)
		}
		etcd.dir, etcd.path = dir, filepath.Join(dir, "etcd")
		etcd.err = buildEtcd(etcd.path)
	}
	if etcd.err != nil {
		t.Fatal(etcd.err)
	}
	return etcd.path
}

func buildEtcd(path string) error {
	folder, err := findAbove(etcdModule)
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-o", path, "go.etcd.io/etcd/server/v3")
	cmd.Dir = folder
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// findAbove returns a folder of the repository, which contains the working directory of each test.
func findAbove(folder string) (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		path := filepath.Join(dir, folder)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("no folder above has %s", folder)
		}
		dir = parent
	}
}
