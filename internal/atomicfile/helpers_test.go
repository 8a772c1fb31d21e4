package atomicfile

import (
	"os"
	"testing"
)

// mustReadFile reads a file that has to be there.
func mustReadFile(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}
