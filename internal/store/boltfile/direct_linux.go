package boltfile

import (
	"os"
	"syscall"
)

// openDirect opens a file for direct writes of sectors.
func openDirect(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|syscall.O_DIRECT, 0)
}
