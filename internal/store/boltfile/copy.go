package boltfile

// This file copies a prepared file, so that each test can have its own server with the same
// thousand objects. The prepared file is opened read-only, with the lock that readers share.
// Several copies can be made concurrently, but none while a process writes the file.
//
// If the file system can share blocks between files (btrfs, XFS), the copy only refers to the
// blocks, and they are separated when they are written. Otherwise the kernel copies from page cache
// to page cache, which takes about 40 ms for 100 MB. Rejected alternative: a private mapping of the
// prepared file with copy-on-write pages. bbolt writes to its file and reads from its mapping, and
// requires both to be the same.

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// Copy copies the prepared file at base to a new file at path. look has the same meaning as in Vet.
// Copy fails if the prepared file was not closed cleanly, because its newest commits are then only
// in its log.
func Copy(base, path string, look func(*Pages) error) error {
	if _, err := os.Lstat(base + LogSuffix); err == nil {
		return fmt.Errorf("%s was not closed: a server has it open, or was killed. Stop that server, or start one on the file and stop it", base)
	}
	if _, err := Vet(base, false, nil, look); err != nil {
		return err
	}
	db, from, err := openShared(base) // no process can write the file until db is closed
	if err != nil {
		return err
	}
	defer db.Close()
	tree, err := readMetas(from)
	if err != nil {
		return ExplainOpen(base, err)
	}
	size := int64(tree.high) * int64(tree.pageSize)
	to, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if shareBlocks(to, from) != nil {
		if _, err = from.Seek(0, io.SeekStart); err == nil {
			_, err = io.Copy(to, io.LimitReader(from, size)) // the rest is not part of the database, and may be a hole of a sparse file
		}
	}
	if err == nil {
		err = signNotes(to)
	}
	return errors.Join(err, to.Close())
}
