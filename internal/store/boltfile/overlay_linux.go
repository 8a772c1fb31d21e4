package boltfile

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapPrivately replaces a mapping of a file with a private mapping at the same address. Only the
// changed pages use memory. If the system does not allow a private mapping, for example because it
// would have to reserve memory for the whole mapping, the old mapping is not changed.
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
func dropPrivate(pages []byte) error { return unix.Madvise(pages, unix.MADV_DONTNEED) }

// reserveSpace extends a file by some bytes that are allocated on the disk.
func reserveSpace(file *os.File, from, size int64) error {
	return unix.Fallocate(int(file.Fd()), 0, from, size)
}

// forgetCached removes the first pages of a file from the kernel's page cache. The kernel will then
// read each page separately. If pages are cached together, they are all written to the disk if any
// of them is changed. This is important because each note changes a meta page.
func forgetCached(file *os.File) { _ = unix.Fadvise(int(file.Fd()), 0, 64<<10, unix.FADV_DONTNEED) }
