// Package atomicfile makes files that are there whole or not at all, whatever moment the power goes: content goes into a temporary file
// beside the name, is synced, gets the name in one step, and the folder is synced.
//
//	err := atomicfile.SaveFile("ca.key", pem) // mode 0600; replaces what was there
//
// [PlaceFile] never replaces; its fill writes and syncs what may be gigabytes. Both leave nothing behind when they fail.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// PlaceFile makes the file at path, complete and synced, or leaves nothing there: fill writes and syncs the file of a temporary name.
// An existing file is never replaced (fs.ErrExist).
func PlaceFile(path string, fill func(temp string) error) error {
	dir := filepath.Dir(path)
	if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("cannot make %s: its folder is not there: make that first (%w)", path, err)
	}
	if _, err := os.Lstat(path); err == nil { // the link below decides, but nobody should wait for that
		return fmt.Errorf("cannot make %s: %w", path, fs.ErrExist)
	}
	temp, err := os.CreateTemp(dir, ".apilet-*.tmp") // mode 0600
	if err != nil {
		return fmt.Errorf("cannot make %s: %w", path, err)
	}
	defer os.Remove(temp.Name())
	if err := errors.Join(temp.Chmod(0o600), temp.Close()); err != nil && runtime.GOOS != "windows" { // an umask may have taken from it
		return fmt.Errorf("cannot make %s: %w", path, err)
	}
	if err := fill(temp.Name()); err != nil {
		return fmt.Errorf("cannot make %s: %w", path, err)
	}
	// A link fails where the name is taken, so of two processes that start at once one wins. Simple file systems have no links.
	if err := os.Link(temp.Name(), path); err != nil {
		if _, statErr := os.Lstat(path); statErr == nil {
			return fmt.Errorf("cannot make %s: %w", path, fs.ErrExist)
		}
		if err := os.Rename(temp.Name(), path); err != nil {
			return fmt.Errorf("cannot make %s: %w", path, err)
		}
	}
	return SyncDir(dir)
}

// SyncDir makes a name in dir durable. Windows has no such call.
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

// SaveFile makes or replaces a file that its owner alone may read. After a power cut it is there whole, as before, or not at all.
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
