//go:build !linux

package boltfile

import (
	"os"
	"time"
)

// identity always returns false on this system, so a file that was not closed is read completely.
func identity(os.FileInfo) (inode uint64, changed time.Time, known bool) { return 0, changed, false }
