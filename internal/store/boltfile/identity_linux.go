package boltfile

import (
	"os"
	"syscall"
	"time"
)

// identity returns the inode and the ctime of a file. The ctime is the time of the last change to
// the content or the attributes. It cannot be set by users.
func identity(info os.FileInfo) (inode uint64, changed time.Time, known bool) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, changed, false
	}
	return s.Ino, time.Unix(int64(s.Ctim.Sec), int64(s.Ctim.Nsec)), true
}
