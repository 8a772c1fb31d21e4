//go:build !unix

package boltfile

import "os"

// mapStart returns nil, so reads use the file.
func mapStart(*os.File, int) []byte { return nil }

func unmap([]byte) {}

// diskUse returns the approximate disk usage of a file in bytes.
func diskUse(info os.FileInfo) int64 { return info.Size() }
