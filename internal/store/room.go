package store

// This file reserves disk space for deletes. A delete writes a tombstone. On a full disk it would
// fail like every other write, so that clients could not free any space. Therefore the last part of
// the disk is reserved. If only the reserved space is left, creates and updates fail as if the disk
// were full. Deletes and compaction are still allowed. Updates are also allowed if the object is
// being deleted.
//
//	room     = free space of the file system for this process, minus the possible growth of the write-ahead log;
//	           or half of the free pages in the data file, if that is more
//	reserve  = a sixteenth of the file system, at most 64 MiB
//
//	room above the reserve   all writes are accepted; a change takes its space from the part above the reserve
//	room below the reserve   only deletes and compaction; other writes fail with ErrDiskFull until the room exceeds the
//	                         reserve by a quarter. History is compacted immediately, and not at the next round
//	                         (Maintenance.makeRoom). This makes room for the next delete, which waits if necessary,
//	                         and finally for a create
//
// Free pages count because the data file does not shrink: compaction only adds to its free pages.
// Only half of them count, and they are not added to the free space of the file system. The free
// pages may be scattered, but a large document and its neighbors need consecutive pages. There is
// no reserve if the free space is unknown (Windows, some BSDs) or if the file is ephemeral. A
// replica does not need a reserve, because deletes are written to its log. In these cases a write
// fails when the disk is full.
//
// This file also enforces the quota. If the quota is exceeded, the same writes fail and the same
// compaction is started. The quota keeps the disk from becoming full. The default is 2 GiB (as in
// etcd) or half of the file system, whichever is smaller.

import (
	"fmt"
	"math"

	"go.etcd.io/bbolt"
)

const (
	reserveShare = 16 // the reserve is this fraction of the file system
	reserveMax   = 64 << 20

	defaultQuota = 2 << 30 // as in etcd
	quotaShare   = 2       // the quota is at most this fraction of the file system

	scatteredShare = 2 // this fraction of the free pages counts
	pagesOfChange  = 4 // approximate number of pages copied for a change, without the document itself
	// If creates have been refused, they are allowed again when the room exceeds the reserve by
	// this fraction of the reserve.
	resumeShare   = 4
	lowSpaceSlice = 8 // number of dead revisions to delete in a transaction if the disk is full
	// roomAttempts is the maximum number of attempts to delete an object if there is no room. Each
	// retry waits for a compaction.
	roomAttempts = 5
)

// A Room describes how much space is available for the data file.
type Room struct {
	DiskBytes, DiskFree int64 // size of the file system, and its free space for this process; both 0 if unknown
	Reserve             int64 // bytes of the room reserved for deletes, or 0
	// Used is the size of the data file without the free pages. Quota is the limit for Used, or 0
	// if there is no limit.
	Used, Quota int64
	// Refusal is the error that a create would return now. It is ErrDiskFull, ErrQuota or nil.
	Refusal error
}

// Room returns the current room.
func (st *Store) Room() Room {
	stats := st.Stats()
	r := Room{Reserve: st.reserve, Used: stats.FileBytes - stats.FreeBytes, Quota: max(0, st.Opts.Quota)}
	r.DiskFree, r.DiskBytes, _ = st.File.DiskSpace()
	switch {
	case st.diskFailed.Load() || st.isRoomScarce(st.freeRoom()):
		r.Refusal = ErrDiskFull
	case r.Quota > 0 && r.Used > r.Quota:
		r.Refusal = ErrQuota
	}
	return r
}

// HasRoom returns ErrDiskFull if only deletes are accepted because the disk is full.
func (st *Store) HasRoom() error {
	if r := st.Room(); r.Refusal == ErrDiskFull {
		return fmt.Errorf("%s: %w", st.File.Path, ErrDiskFull)
	}
	return nil
}

// WithinQuota returns ErrQuota if only deletes are accepted because of the quota.
func (st *Store) WithinQuota() error {
	if r := st.Room(); r.Quota > 0 && r.Used > r.Quota {
		return fmt.Errorf("%s: %d of %d bytes: %w", st.File.Path, r.Used, r.Quota, ErrQuota)
	}
	return nil
}

// limit sets the quota and the reserve when the store is opened.
func (st *Store) limit() {
	_, size, known := st.File.DiskSpace()
	known = known && size > 0
	if !st.mode.bounded { // there is no reserve either
		st.Opts.Quota = -1
		return
	}
	if st.Opts.Quota == 0 && !st.Opts.Ephemeral {
		st.Opts.Quota = defaultQuota
		if known {
			st.Opts.Quota = min(defaultQuota, size/quotaShare)
		}
	}
	if known && !st.Opts.Ephemeral {
		st.reserve = min(size/reserveShare, reserveMax)
	}
	if r := st.Room(); st.Opts.Warn != nil && r.Quota > 0 && r.Used > r.Quota/10*8 {
		st.Opts.Warn(fmt.Sprintf("%s: %d of the %d bytes that --quota-backend-bytes allows are used: above all of them nothing but deletes is taken. Delete objects, or raise it", st.File.Path, r.Used, r.Quota))
	}
}

// freeRoom returns the part of the room above the reserve. It is negative if the room is smaller
// than the reserve.
func (st *Store) freeRoom() int64 {
	if st.reserve == 0 {
		return math.MaxInt64
	}
	free, _, known := st.File.DiskSpace()
	if !known {
		return math.MaxInt64
	}
	return max(free-st.File.LogHeadroom(), st.File.ReusableBytes()/scatteredShare) - st.reserve
}

// isRoomScarce reports whether creates and updates are refused for this value of spare.
func (st *Store) isRoomScarce(spare int64) bool {
	if st.roomLow.Load() {
		return spare < st.reserve/resumeShare
	}
	return spare < pagesOfChange*int64(st.File.PageSize())
}

// An allowance defines how much space can be used by a transaction.
type allowance struct {
	page  int   // page size in bytes
	full  bool  // the quota is exceeded
	spare int64 // number of bytes available for creates and updates
}

// measure returns the allowance of a transaction and passes the free space to the write-ahead log.
func (st *Store) measure(tx *bbolt.Tx) allowance {
	used := tx.Size() - st.File.FreeBytes() // as of the last commit
	a := allowance{page: st.File.PageSize(), full: st.Opts.Quota > 0 && used > st.Opts.Quota, spare: st.freeRoom()}
	scarce := st.isRoomScarce(a.spare)
	st.File.SetFreeSpace(a.spare, scarce)
	if st.roomLow.Store(scarce); scarce {
		a.spare = min(a.spare, -1)
	}
	return a
}

// refusal returns an error if a create or update must be refused for lack of space. Otherwise it
// subtracts the change from the allowance.
func (a *allowance) refusal(c *Change) error {
	if c.makesRoom() {
		return nil
	}
	if a.full {
		return ErrQuota
	}
	if a.spare == math.MaxInt64 {
		return nil
	}
	page := int64(a.page)
	takes := int64(len(c.JSON))/page*page + pagesOfChange*page
	if a.spare < takes {
		return ErrDiskFull
	}
	a.spare -= takes
	return nil
}
