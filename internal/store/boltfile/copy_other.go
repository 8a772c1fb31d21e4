//go:build !linux

package boltfile

import (
	"errors"
	"os"
)

// shareBlocks is implemented only on Linux. On other systems the file is copied.
func shareBlocks(_, _ *os.File) error { return errors.ErrUnsupported }
