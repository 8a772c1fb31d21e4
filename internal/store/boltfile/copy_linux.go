package boltfile

import (
	"os"
	"syscall"
)

const ficlone = 0x40049409 // ioctl_ficlone(2)

// shareBlocks makes to share the blocks of from until one of the files is written. Most file
// systems do not support it.
func shareBlocks(to, from *os.File) error {
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, to.Fd(), ficlone, from.Fd()); errno != 0 {
		return errno
	}
	return nil
}
