package kubeconfig_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"apilet/internal/atomicfile"
)

// A file that is there is replaced whole: a reader finds the old content or the new one, never a part.
func Example_saveFile() {
	dir, _ := os.MkdirTemp("", "example")
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "ca.key")
	for _, content := range []string{"old", "new"} {
		if err := atomicfile.SaveFile(path, []byte(content)); err != nil {
			fmt.Println(err)
		}
	}
	content, _ := os.ReadFile(path)
	files, _ := os.ReadDir(dir)
	fmt.Printf("%s, %d file", content, len(files))
	// Output: new, 1 file
}

// PlaceFile never replaces, and a fill that fails leaves nothing behind.
func Example_placeFile() {
	dir, _ := os.MkdirTemp("", "example")
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "backup.db")
	err := atomicfile.PlaceFile(path, func(temp string) error { return errors.New("the connection broke") })
	files, _ := os.ReadDir(dir)
	fmt.Println(err != nil, len(files))

	fill := func(temp string) error { return os.WriteFile(temp, []byte("whole"), 0o600) }
	fmt.Println(atomicfile.PlaceFile(path, fill))
	fmt.Println(errors.Is(atomicfile.PlaceFile(path, fill), fs.ErrExist))
	// Output:
	// true 0
	// <nil>
	// true
}
