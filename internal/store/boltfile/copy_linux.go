package boltfile

import (
	"os"
	"syscall"
)

const ficlone = 0x40049409 // ioctl_ficlone(2)

// shareBlocks replaces the content of to with the content of from. Until one of the files is
// modified, they share their blocks. Most file systems do not support it.
func shareBlocks(to, from *os.File) error {
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, to.Fd(), ficlone, from.Fd()); errno != 0 {
		return errno
	}
	return nil
}
