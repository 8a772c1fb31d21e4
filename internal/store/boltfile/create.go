package boltfile

// This file creates data files. After a power failure, the new file is either complete or does not
// exist. It also defragments files and explains errors of bbolt.

import (
	"apilet/internal/atomicfile"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// dbOptions returns the options to open a file for reading and writing. The freelist is kept in
// memory and only written at a clean close. Otherwise each commit would write 8 bytes for each free
// page, which would be most of its cost. The lowest free page is used first, so that many commits
// use the same few pages (wal.go).
func dbOptions() *bbolt.Options {
	o := &bbolt.Options{Timeout: time.Second, NoFreelistSync: true, FreelistType: bbolt.FreelistArrayType}
	switch { // only address space; growing the mapping later waits for all readers
	case runtime.GOOS == "windows": // Windows would grow the file to this size
	case strconv.IntSize == 64:
		o.InitialMmapSize = 1 << 30
	default:
		o.InitialMmapSize = 128 << 20
	}
	return o
}

// Create creates the data file at path with atomicfile.PlaceFile. fill must write the initial
// content.
func Create(path string, fill func(*bbolt.DB) error) error {
	return atomicfile.PlaceFile(path, func(temp string) error { return fillFile(temp, fill) })
}

// fillFile creates a file and truncates it after its last page. This is necessary because bbolt
// grows a file by up to 16 MiB in advance.
func fillFile(path string, fill func(*bbolt.DB) error) error {
	options := &bbolt.Options{Timeout: time.Second, NoSync: true, NoGrowSync: true, FreelistType: bbolt.FreelistMapType}
	db, err := bbolt.Open(path, 0o600, options)
	if err != nil {
		return err
	}
	var used int64
	err = errors.Join(fill(db), db.View(func(tx *bbolt.Tx) error { used = tx.Size(); return nil }), db.Close())
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(file.Truncate(used), file.Sync(), file.Close())
}

// Pack rewrites a file to remove its free pages. The server must not be running. It keeps the old
// file if the new one is not smaller.
func Pack(path string, seen *Progress) error {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	src, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second, ReadOnly: true})
	if err != nil {
		return ExplainOpen(path, err)
	}
	defer src.Close()
	packed := path + ".defrag"
	os.Remove(packed) // left by a run that was killed
	defer os.Remove(packed)
	before, err := os.Stat(path)
	if err != nil {
		return err
	}
	seen.Begin("bytes written, of a file with", before.Size())
	err = Create(packed, func(dst *bbolt.DB) error {
		defer followSize(dst.Path(), seen)()
		return RecoverFaults(func() error { return bbolt.Compact(dst, src, 16<<20) })
	})
	if err == nil {
		err = src.Close() // Windows cannot replace an open file
	}
	if err != nil {
		return err
	}
	if after, err := os.Stat(packed); err != nil || after.Size() >= before.Size() {
		return err
	}
	return errors.Join(os.Rename(packed, path), atomicfile.SyncDir(filepath.Dir(path)))
}

// followSize reports the growing size of a file until stop is called.
func followSize(path string, seen *Progress) (stop func()) {
	ended := make(chan struct{}) // closed by stop
	go func() {
		for {
			select {
			case <-ended:
				return
			case <-time.After(200 * time.Millisecond):
			}
			if info, err := os.Stat(path); err == nil {
				seen.Set(info.Size())
			}
		}
	}()
	return func() { close(ended) }
}

// ErrInUse is returned if another process has the file open.
var ErrInUse = errors.New("is in use by another process: stop that one first, or choose another file")

// ExplainOpen adds advice to an error of bbolt.Open.
func ExplainOpen(path string, err error) error {
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return fmt.Errorf("%s %w", path, ErrInUse)
	case errors.Is(err, ErrDamaged):
		return fmt.Errorf("%s: %w", path, err)
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrVersionMismatch), errors.Is(err, berrors.ErrChecksum),
		strings.Contains(err.Error(), "file size too small"):
		return fmt.Errorf("%s is not an apilet data file, or its first pages are lost: choose another file, or restore a backup (%w)", path, err)
	}
	return fmt.Errorf("cannot open %s: %w", path, err)
}

// IsDiskFull reports whether err means that the disk is full, so that a failed commit has changed
// nothing. bbolt converts some of these errors to text.
func IsDiskFull(err error) bool {
	for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG} {
		if errors.Is(err, full) || strings.Contains(err.Error(), full.Error()) {
			return true
		}
	}
	return strings.Contains(err.Error(), "not enough space on the disk")
}
