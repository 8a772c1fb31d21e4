//go:build darwin || freebsd

package boltfile

import "syscall"

// diskSpace asks for the bytes that a file system has free for those who are not root, and for its size.
func diskSpace(fd uintptr) (free, size int64, known bool) {
	var s syscall.Statfs_t
	if err := syscall.Fstatfs(int(fd), &s); err != nil {
		return 0, 0, false
	}
	return max(0, int64(s.Bavail)) * int64(s.Bsize), int64(s.Blocks) * int64(s.Bsize), true
}
