package boltfile

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapPrivately replaces a mapping of a file by a private one at the same address. Memory is needed
// only for the pages that are changed in it. If the system refuses the new mapping, for example
// because it reserves memory for all of it, the old one stays.
func mapPrivately(file *os.File, mapped []byte) error {
	size, to := uintptr(len(mapped)), unsafe.Pointer(unsafe.SliceData(mapped))
	from, err := unix.MmapPtr(int(file.Fd()), 0, nil, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		return err
	}
	if _, err = unix.MremapPtr(from, size, to, size, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED); err != nil {
		return errors.Join(err, unix.MunmapPtr(from, size))
	}
	return nil
}

// dropPrivate replaces changed pages of a private mapping by those of the file.
func dropPrivate(pages []byte) { _ = unix.Madvise(pages, unix.MADV_DONTNEED) }

// reserveSpace extends a file by some bytes that are allocated on the disk.
func reserveSpace(file *os.File, from, size int64) error {
	return unix.Fallocate(int(file.Fd()), 0, from, size)
}

// forgetCached removes the first pages of a file from the kernel's page cache, which then reads
// them one by one. Pages that were written together are also written to the disk together when one
// of them changes, as the meta page does with each note.
func forgetCached(file *os.File) { _ = unix.Fadvise(int(file.Fd()), 0, 64<<10, unix.FADV_DONTNEED) }
