package boltfile

import (
	"os"
	"syscall"
	"unsafe"

	"go.etcd.io/bbolt"
)

// syncFile waits until the data written to a file, and the metadata needed to read it, are on the
// disk.
func syncFile(file *os.File) error {
	for {
		if err := syscall.Fdatasync(int(file.Fd())); err != syscall.EINTR {
			if err != nil {
				return &os.PathError{Op: "fdatasync", Path: file.Name(), Err: err}
			}
			return nil
		}
	}
}

// syncPages syncs the first pages of the data file, up to high. It does not sync the pages in but.
// It uses msync, because fsync does not support ranges. The mapping cannot move, because a
// checkpoint is pinned. The last page in but is also synced to make sure that the file has its full
// length.
func syncPages(db *bbolt.DB, high uint64, but PageRun) error {
	page := uint64(db.Info().PageSize)
	if but.Count < 2 || page%uint64(os.Getpagesize()) != 0 {
		return db.Sync()
	}
	all := mapping(db, int(high*page))
	for _, part := range [][]byte{all[:but.First*page], all[(but.First+but.Count-1)*page:]} {
		if _, _, failed := syscall.Syscall(syscall.SYS_MSYNC, uintptr(unsafe.Pointer(unsafe.SliceData(part))), uintptr(len(part)), syscall.MS_SYNC); failed != 0 {
			return &os.PathError{Op: "msync", Path: db.Path(), Err: failed}
		}
	}
	return nil
}
