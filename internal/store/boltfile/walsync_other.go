//go:build !linux

package boltfile

import (
	"os"

	"go.etcd.io/bbolt"
)

// syncFile waits until the data written to a file is on the disk.
func syncFile(file *os.File) error { return file.Sync() }

// syncPages waits until the data file is on the disk.
func syncPages(db *bbolt.DB, _ uint64, _ PageRun) error { return db.Sync() }
