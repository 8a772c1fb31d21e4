package boltfile

import (
	"os"
	"syscall"
	"unsafe"

	"go.etcd.io/bbolt"
)

// syncFile waits until what was written to a file is on the disk, and of its inode what is needed to find it.
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

// syncPages waits until the data file's pages are on the disk, but for some of which no byte counts: msync takes a range, which fsync does not. A checkpoint is
// pinned meanwhile, so that bbolt's mapping stays where it is. The last one of those pages is synced, too: the file is as long as it says then.
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
