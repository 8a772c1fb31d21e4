//go:build darwin || freebsd

package boltfile

import "syscall"

// diskSpace returns the free space of a file system for users other than root, and its total size,
// in bytes.
func diskSpace(fd uintptr) (free, size int64, known bool) {
	var s syscall.Statfs_t
	if err := syscall.Fstatfs(int(fd), &s); err != nil {
		return 0, 0, false
	}
	return max(0, int64(s.Bavail)) * int64(s.Bsize), int64(s.Blocks) * int64(s.Bsize), true
}
