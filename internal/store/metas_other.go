//go:build !unix

package store

import "os"

// mapMetas does nothing where memory is mapped in another way: hasMeta reads the file.
func (f *dataFile) mapMetas(*os.File, int) {}
