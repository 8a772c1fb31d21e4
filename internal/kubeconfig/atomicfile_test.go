package kubeconfig_test

import (
	"os"
	"path/filepath"
	"testing"

	"apilet/internal/apitest"
	"apilet/internal/atomicfile"
)

func TestSavedFileIsWholeOrAsBefore(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, content := range []string{"one", "two"} {
		if err := atomicfile.SaveFile(path, []byte(content)); err != nil || string(apitest.ReadFile(t, path)) != content {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.SaveFile(filepath.Join(dir, "d"), nil); err == nil {
		t.Error("a folder was replaced")
	}
	if err := atomicfile.SaveFile(filepath.Join(dir, "none", "f"), nil); !os.IsNotExist(err) {
		t.Errorf("in a folder that is not there: %v", err)
	}
	if files, _ := os.ReadDir(dir); len(files) != 2 {
		t.Errorf("left behind: %v", files)
	}
}
