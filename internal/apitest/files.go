package apitest

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// TempFile writes text to a file of that name in a folder of its own, which goes with the test.
func TempFile(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	WriteFile(t, path, []byte(text))
	return path
}

// WriteFile makes a file that its owner alone may read.
func WriteFile(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// ReadFile returns what is in a file that has to be there.
func ReadFile(t testing.TB, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// Chmod changes who may read a file.
func Chmod(t testing.TB, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// NeedsModes skips a test about who may read a file where files do not say that.
func NeedsModes(t testing.TB) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("files have no modes here")
	}
}
