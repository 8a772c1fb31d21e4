package certs

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/rs/zerolog"
)

func writeTemp(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// mustReadFile reads a file that has to be there.
func mustReadFile(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// openTestCerts opens a certificate folder for hosts, and returns what it has logged.
func openTestCerts(t *testing.T, dir string, hosts ...string) (*Folder, string, error) {
	t.Helper()
	log := &logLines{}
	f, err := OpenCertFolder(dir, func() []string { return append(hosts, "localhost") }, zerolog.New(log))
	return f, log.String(), err
}

func mustWriteFile(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

const couldRead = "others could read this file"

// needsModes skips where files have none.
func needsModes(t *testing.T) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("files have no modes here")
	}
}

func mustChmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// logLines keeps what a server logs.
type logLines struct {
	mu    sync.Mutex // guards lines
	lines bytes.Buffer
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.String()
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.Write(p)
}
