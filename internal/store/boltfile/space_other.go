//go:build !linux && !darwin && !freebsd

package boltfile

// diskSpace is not implemented on this system.
func diskSpace(uintptr) (free, size int64, known bool) { return 0, 0, false }
