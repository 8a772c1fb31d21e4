// Package atomicfile writes files atomically: after a power failure a file is complete or does not
// exist. The content is written to a temporary file in the same folder and synced, the temporary
// file is renamed or linked to its name, and the folder is synced.
//
//	err := atomicfile.SaveFile("ca.key", pem) // mode 0600; replaces an existing file
//
// [PlaceFile] does not replace existing files. It calls a function to write and sync the content,
// which may be large. Both remove the temporary file if they fail.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// PlaceFile creates the file at path, complete and synced, or leaves nothing there. fill must write
// and sync the temporary file. An existing file is never replaced (fs.ErrExist).
func PlaceFile(path string, fill func(temp string) error) error {
	dir := filepath.Dir(path)
	if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("cannot create %s: its folder does not exist (%w)", path, err)
	}
	// the link below decides, but this check avoids a useless fill
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("cannot create %s: %w", path, fs.ErrExist)
	}
	temp, err := os.CreateTemp(dir, ".apilet-*.tmp") // mode 0600
	if err != nil {
		return fmt.Errorf("cannot create %s: %w", path, err)
	}
	defer os.Remove(temp.Name())
	// an umask may have removed bits
	if err := errors.Join(temp.Chmod(0o600), temp.Close()); err != nil && runtime.GOOS != "windows" {
		return fmt.Errorf("cannot create %s: %w", path, err)
	}
	if err := fill(temp.Name()); err != nil {
		return fmt.Errorf("cannot create %s: %w", path, err)
	}
	// Link fails if the name exists, so that one of two concurrent processes succeeds. Simple
	// file systems do not support links.
	if err := os.Link(temp.Name(), path); err != nil {
		if _, statErr := os.Lstat(path); statErr == nil {
			return fmt.Errorf("cannot create %s: %w", path, fs.ErrExist)
		}
		if err := os.Rename(temp.Name(), path); err != nil {
			return fmt.Errorf("cannot create %s: %w", path, err)
		}
	}
	return SyncDir(dir)
}

// SyncDir makes the names in dir durable. It does nothing on Windows.
func SyncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// SaveFile creates or replaces a file that only its owner can read. After a power failure the file
// has the new or the old content.
func SaveFile(path string, content []byte) error {
	temp, err := os.CreateTemp(filepath.Dir(path), ".apilet-*.tmp") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name())
	_, err = temp.Write(content)
	if err = errors.Join(err, temp.Sync(), temp.Close()); err != nil {
		return err
	}
	if err := os.Rename(temp.Name(), path); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}
