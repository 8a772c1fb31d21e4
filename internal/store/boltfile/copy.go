package boltfile

// This file copies a prepared file, so that each test may have a server of its own on the same thousand objects. The prepared file is opened for
// reading alone, under the lock that readers share: any number of copies may be made at the same time, and none while somebody writes it.
//
// Where the file system can share blocks between files (btrfs, XFS) the copy is a reference, and blocks part when they are written. Elsewhere the
// kernel copies from page cache to page cache, some 40 ms for 100 MB. Rejected: to map the prepared file privately, whose pages would part when
// they are written. bbolt writes to its file and reads from its mapping, and relies on the two being the same.

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// Copy copies the prepared file at base to a new one at path. look is Vet's. A prepared file that was not closed cleanly is refused: what is newest of
// it lies in its log.
func Copy(base, path string, look func(*Pages) error) error {
	if _, err := os.Lstat(base + LogSuffix); err == nil {
		return fmt.Errorf("%s was not closed: a server has it open, or was killed. Stop that server, or start one on the file and stop it", base)
	}
	if _, err := Vet(base, false, nil, look); err != nil {
		return err
	}
	db, from, err := openShared(base) // nobody can write it until it is closed
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
			_, err = io.Copy(to, io.LimitReader(from, size)) // what follows is no part of the file, and may be the hole of a sparse one
		}
	}
	if err == nil {
		err = signNotes(to)
	}
	return errors.Join(err, to.Close())
}
