package apitest

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// TempFile writes text to a file of that name in a temporary folder, and returns its path.
func TempFile(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	WriteFile(t, path, []byte(text))
	return path
}

// WriteFile writes a file that only its owner can read.
func WriteFile(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// ReadFile returns the content of a file. It fails the test if the file does not exist.
func ReadFile(t testing.TB, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// Chmod changes the mode of a file.
func Chmod(t testing.TB, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// NeedsModes skips a test on systems without file modes.
func NeedsModes(t testing.TB) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("files have no modes here")
	}
}
