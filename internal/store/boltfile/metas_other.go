//go:build !unix

package boltfile

import "os"

// mapStart maps nothing: reads look into the file.
func mapStart(*os.File, int) []byte { return nil }

func unmap([]byte) {}

// diskUse is how many bytes of the disk a file has, about.
func diskUse(info os.FileInfo) int64 { return info.Size() }
