package store

import (
	"os"
	"syscall"
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
