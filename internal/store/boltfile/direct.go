package boltfile

// This file writes records of the log in sectors of 512 bytes, past the kernel's page cache. With
// the cache, each sync would write a whole block of 4096 bytes, even if the record is much smaller.
//
//	sectors    |        1        |        2        |        3        |
//	before     | record 7             ]
//	record 8                     | end of 7, again [ record 8   ] 0  |      sector 2 is written
//
// Direct writes only replace bytes that the file already has, and are only worth it for a record of
// less than a block: they wait for the disk, while bbolt's commit can begin during the sync of a
// record in the cache. All other writes go through the cache. So do all records if the system, the
// file system or the disk cannot write sectors.

import (
	"errors"
	"os"
	"syscall"
	"unsafe"
)

const (
	logSector   = 512
	directAlign = 4096                   // of the buffer in memory
	directSize  = logBlock + 2*logSector // of the longest direct write, with the sectors at both ends
)

// A sectorFile is a file whose sectors are written directly, if possible.
type sectorFile struct {
	cached *os.File // writes through the page cache
	direct *os.File // nil if direct writes are impossible
	buf    []byte   // aligned
	at     int64    // offset of the last written sector, or -1 if it is unknown
	begun  []byte   // the content of that sector up to the trailing zeros
}

// openSectors opens a file, which is also open as cached, for direct writes.
func openSectors(path string, cached *os.File) sectorFile {
	direct, err := openDirect(path)
	if err != nil {
		direct = nil
	}
	return sectorFile{cached: cached, direct: direct, at: -1}
}

func (s *sectorFile) close() error {
	if s.direct == nil {
		return nil
	}
	return s.direct.Close()
}

// writeAt writes b to the file. For a direct write, it replaces whole sectors, which must end at or
// before limit. The bytes before b in the first sector are not changed. It fills the rest of the
// last sector with zeros.
func (s *sectorFile) writeAt(b []byte, at, limit int64) (int, error) {
	lead := at % logSector
	end := (at + int64(len(b)) + logSector - 1) / logSector * logSector
	known := lead == 0 || s.at == at-lead && int64(len(s.begun)) <= lead
	s.at, at = -1, at-lead
	if s.direct == nil || len(b) > logBlock || end > limit || !known {
		return s.cached.WriteAt(b, at+lead)
	}
	sectors := s.buffer(int(end - at))
	clear(sectors[:lead])
	copy(sectors[:lead], s.begun)
	n := int(lead) + copy(sectors[lead:], b)
	clear(sectors[n:])
	if _, err := s.direct.WriteAt(sectors, at); err != nil {
		if !errors.Is(err, syscall.EINVAL) {
			return 0, err
		}
		_ = s.close()
		s.direct = nil
		return s.cached.WriteAt(b, at+lead)
	}
	s.at = at + int64(n/logSector*logSector)
	s.begun = append(s.begun[:0], sectors[n/logSector*logSector:n]...)
	return len(b), nil
}

// buffer returns an aligned buffer of n bytes, at most directSize.
func (s *sectorFile) buffer(n int) []byte {
	if s.buf == nil {
		b := make([]byte, directSize+directAlign)
		skip := -uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (directAlign - 1)
		s.buf = b[skip:]
	}
	return s.buf[:n]
}
