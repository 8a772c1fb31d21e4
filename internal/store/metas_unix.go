//go:build unix

package store

import (
	"os"
	"syscall"
)

// mapStart maps the first n bytes of a file for reading; nil where that cannot be done.
func mapStart(file *os.File, n int) []byte {
	start, _ := syscall.Mmap(int(file.Fd()), 0, n, syscall.PROT_READ, syscall.MAP_SHARED)
	return start
}

func unmap(mapped []byte) { _ = syscall.Munmap(mapped) } // of what was mapped
