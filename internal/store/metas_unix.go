//go:build unix

package store

import (
	"os"
	"runtime"
	"syscall"
)

// mapMetas maps the two meta pages, for as long as there is f. This map never moves, as bbolt's does when the file grows, and so needs no lock.
func (f *dataFile) mapMetas(file *os.File, pageSize int) {
	metas, err := syscall.Mmap(int(file.Fd()), 0, 2*pageSize, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return // hasMeta reads them
	}
	f.metas = metas
	runtime.AddCleanup(f, func(metas []byte) { _ = syscall.Munmap(metas) }, metas)
}
