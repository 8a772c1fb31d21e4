package store

// This file keeps room for deletes. On a disk without any room a delete fails as every write does, since its tombstone has to be written, and so
// nobody could make room. Hence the last part of the disk is kept for what makes room: below it creates and updates are refused as on a full disk,
// while deletes, updates of what is being deleted, and compaction go on.
//
//	room     = what the file system has free for this process, without what the write-ahead log may still grow by; or half of the data file's own free
//	           pages, where that is more
//	reserve  = a sixteenth of the file system, at most 64 MiB
//
//	room above the reserve   everything is written; a change takes what it needs from what is above
//	room below it            deletes and compaction alone: ErrDiskFull to the others, until the room is a quarter of the reserve above it. History
//	                         is compacted immediately, and not at the next round (Maintenance.makeRoom). That makes room for the next delete, which
//	                         waits for it if it must, and in the end for a create
//
// Free pages count because the file does not shrink: what compaction gives back is there, and nowhere else. Half of them, and not beside what the file
// system has, because they may lie scattered, and a document of several pages, and its neighbours, want them in a row. There is no reserve where the
// free space is not known (Windows, some BSDs), none for an ephemeral file, which keeps nothing, and none for a replica, whose deletes are written
// elsewhere: a write fails when the disk is full.
//
// The quota is kept here, too. Above it the same writes are refused, and the same compaction makes room. It is there so that the disk is never full: by default 2 GiB, as etcd's, or half of the file system where that is less.

import (
	"fmt"
	"math"

	"go.etcd.io/bbolt"
)

const (
	reserveShare = 16 // of the file system: one part in so many
	reserveMax   = 64 << 20

	defaultQuota = 2 << 30 // etcd's
	quotaShare   = 2       // of the file system: one part in so many

	scatteredShare = 2 // of the free pages, one in so many counts
	pagesOfChange  = 4 // that a change copies beside the ones of its document, about
	resumeShare    = 4 // of the reserve: creates are taken again above it by one part in so many
	sliceWhenLow   = 8 // dead revisions deleted in one transaction while the disk has no room
	roomTries      = 5 // of a delete for which there is no room: each but the first after a compaction
)

// A Room is how much the data file may grow.
type Room struct {
	DiskBytes, DiskFree int64 // of the file system, and what is free of that for this process; 0, 0: nobody knows
	Reserve             int64 // of the room, for deletes; 0: none
	Used, Quota         int64 // bytes of the data file without its free pages, and how many there may be; Quota 0: no limit
	Refusal             error // what a create is refused with now: ErrDiskFull, ErrQuota, or nil
}

// Room looks how much room there is.
func (st *Store) Room() Room {
	stats := st.Stats()
	r := Room{Reserve: st.reserve, Used: stats.FileBytes - stats.FreeBytes, Quota: max(0, st.Opts.Quota)}
	r.DiskFree, r.DiskBytes, _ = st.File.DiskSpace()
	switch {
	case st.diskFailed.Load() || st.scarce(st.spare()):
		r.Refusal = ErrDiskFull
	case r.Quota > 0 && r.Used > r.Quota:
		r.Refusal = ErrQuota
	}
	return r
}

// HasRoom is ErrDiskFull while nothing but deletes can be written for want of room on the disk.
func (st *Store) HasRoom() error {
	if r := st.Room(); r.Refusal == ErrDiskFull {
		return fmt.Errorf("%s: %w", st.File.Path, ErrDiskFull)
	}
	return nil
}

// WithinQuota is ErrQuota while nothing but deletes can be written because of the quota.
func (st *Store) WithinQuota() error {
	if r := st.Room(); r.Quota > 0 && r.Used > r.Quota {
		return fmt.Errorf("%s: %d of %d bytes: %w", st.File.Path, r.Used, r.Quota, ErrQuota)
	}
	return nil
}

// limit decides at the opening what the quota and the reserve are.
func (st *Store) limit() {
	_, size, known := st.File.DiskSpace()
	known = known && size > 0
	if !st.mode.bounded { // nor has it a reserve
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

// spare is how much of the room lies above the reserve; below 0 there is less.
func (st *Store) spare() int64 {
	if st.reserve == 0 {
		return math.MaxInt64
	}
	free, _, known := st.File.DiskSpace()
	if !known {
		return math.MaxInt64
	}
	return max(free-st.File.LogMayTake(), st.File.ReadyBytes()/scatteredShare) - st.reserve
}

// scarce tells whether creates and updates are refused with so much to spare.
func (st *Store) scarce(spare int64) bool {
	if st.low.Load() {
		return spare < st.reserve/resumeShare
	}
	return spare < pagesOfChange*int64(st.File.PageSize())
}

// An allowance is what one transaction may take.
type allowance struct {
	page  int   // bytes of one
	full  bool  // above the quota
	spare int64 // how much of the disk's room creates and updates may still take
}

// measure looks what a transaction may take, and tells the log.
func (st *Store) measure(tx *bbolt.Tx) allowance {
	used := tx.Size() - st.File.FreeBytes() // as of the last commit
	a := allowance{page: st.File.PageSize(), full: st.Opts.Quota > 0 && used > st.Opts.Quota, spare: st.spare()}
	scarce := st.scarce(a.spare)
	st.File.TellRoom(a.spare, scarce)
	if st.low.Store(scarce); scarce {
		a.spare = min(a.spare, -1)
	}
	return a
}

// refusal is why a change that takes room is not made, nil when it is; its room is taken then.
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
