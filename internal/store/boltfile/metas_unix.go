//go:build unix

package boltfile

import (
	"os"
	"syscall"
)

// mapStart maps the first n bytes of a file for reading. It returns nil on failure.
func mapStart(file *os.File, n int) []byte {
	start, _ := syscall.Mmap(int(file.Fd()), 0, n, syscall.PROT_READ, syscall.MAP_SHARED)
	return start
}

func unmap(mapped []byte) { _ = syscall.Munmap(mapped) }

// diskUse returns the disk usage of a file in bytes.
func diskUse(info os.FileInfo) int64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Blocks * 512
	}
	return info.Size()
}
