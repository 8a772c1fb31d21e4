//go:build !linux

package boltfile

import "os"

// syncFile waits until what was written to a file is on the disk.
func syncFile(file *os.File) error { return file.Sync() }

// syncPages waits until the data file is on the disk.
func (w *wal) syncPages(uint64, PageRun) error { return w.db.Sync() }
