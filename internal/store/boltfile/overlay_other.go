//go:build !linux

package boltfile

import (
	"errors"
	"os"
)

// mapPrivately is not implemented, so the overlay stays closed.
func mapPrivately(*os.File, []byte) error { return errors.ErrUnsupported }

func dropPrivate([]byte) error { return errors.ErrUnsupported }

func reserveSpace(*os.File, int64, int64) error { return errors.ErrUnsupported }

func forgetCached(*os.File) {}
