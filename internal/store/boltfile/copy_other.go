//go:build !linux

package boltfile

import (
	"errors"
	"os"
)

// shareBlocks is for Linux: elsewhere the file is copied.
func shareBlocks(_, _ *os.File) error { return errors.ErrUnsupported }
