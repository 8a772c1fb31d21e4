//go:build !linux

package boltfile

import (
	"errors"
	"os"
)

// openDirect is not implemented.
func openDirect(string) (*os.File, error) { return nil, errors.ErrUnsupported }
