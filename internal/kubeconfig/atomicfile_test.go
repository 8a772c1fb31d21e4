package kubeconfig_test

import (
	"errors"
	"io/fs"
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

// TestPlacedFileReplacesNothing, also if the name is taken while the file is written, and leaves no temporary file.
func TestPlacedFileReplacesNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	write := func(name, content string) error { return os.WriteFile(name, []byte(content), 0o600) }
	err := atomicfile.PlaceFile(path, func(temp string) error {
		return errors.Join(write(temp, "ours"), write(path, "another's"))
	})
	if !errors.Is(err, fs.ErrExist) || string(apitest.ReadFile(t, path)) != "another's" {
		t.Errorf("got %v, the file has %q", err, apitest.ReadFile(t, path))
	}
	if err := atomicfile.PlaceFile(filepath.Join(dir, "none", "f"), func(temp string) error { return write(temp, "") }); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a folder that does not exist: %v", err)
	}
	if err := atomicfile.PlaceFile(filepath.Join(dir, "gone"), func(temp string) error { return os.Remove(temp) }); err == nil {
		t.Error("nothing was placed, and no error")
	}
	if files, _ := os.ReadDir(dir); len(files) != 1 {
		t.Errorf("left behind: %v", files)
	}
}
