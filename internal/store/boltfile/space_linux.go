package boltfile

import "syscall"

// diskSpace returns the free space of a file system for users other than root, and its total size,
// in bytes.
func diskSpace(fd uintptr) (free, size int64, known bool) {
	var s syscall.Statfs_t
	if err := syscall.Fstatfs(int(fd), &s); err != nil {
		return 0, 0, false
	}
	block := int64(s.Frsize)
	if block == 0 {
		block = int64(s.Bsize)
	}
	return int64(s.Bavail) * block, int64(s.Blocks) * block, true
}
