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
//	room below it            deletes and compaction alone: ErrDiskFull to the others, until the room is a quarter of the reserve above it. What deletes
//	                         have superseded is compacted at once, and not at the next round (Maintenance.Yields), so that it is room for the next
//	                         delete, which waits for that if it must, and in the end for a create
//
// Free pages count because the file does not shrink: what compaction gives back is there, and nowhere else. Half of them, and not beside what the file
// system has, because they may lie scattered, and a document of several pages, and its neighbours, want them in a row. There is no reserve where the
// free space is not known (Windows, some BSDs), none for an ephemeral file, which keeps nothing, and none for a replica, whose deletes are written
// elsewhere: a write fails when the disk is full.
//
// The quota is kept here, too. It is there so that the disk is never full: by default 2 GiB, as etcd's, or half of the file system where that is less.

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"

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

// measure notes in a stage what its transaction may take.
func (st *Store) measure(s *stage, tx *bbolt.Tx) {
	s.full = st.Opts.Quota > 0 && st.usedBytes(tx) > st.Opts.Quota
	s.spare = st.spare()
	scarce := st.scarce(s.spare)
	st.File.TellRoom(s.spare, scarce)
	if st.low.Store(scarce); scarce {
		s.spare = min(s.spare, -1)
	}
}

// makesRoom tells what is on its way out.
func (c *Change) makesRoom() bool { return c.Op == OpDelete || c.Deleting }

// refusal is why a change that takes room is not made, nil when it is; its room is taken then.
func (s *stage) refusal(e *pendingWrite) error {
	if e.makesRoom() {
		return nil
	}
	if s.full {
		return ErrQuota
	}
	if s.spare == math.MaxInt64 {
		return nil
	}
	page := int64(s.page)
	takes := int64(len(e.JSON))/page*page + pagesOfChange*page
	if s.spare < takes {
		return ErrDiskFull
	}
	s.spare -= takes
	return nil
}

// noteRoom keeps what a batch has shown of the disk: whether a commit failed for want of room, and whether there is less than the reserve. Compaction
// does not call for compaction.
func (st *Store) noteRoom(batch []*pendingWrite, s *stage, err error) {
	if !slices.ContainsFunc(batch, asked) {
		return
	}
	switch {
	case err == ErrDiskFull:
		st.diskFailed.Store(true)
	case err == nil:
		st.diskFailed.Store(false)
	}
	if slices.ContainsFunc(batch, func(e *pendingWrite) bool { return e.err == ErrDiskFull }) {
		st.low.Store(true)
	} else if err != ErrDiskFull && (s == nil || s.spare >= 0) {
		return
	}
	st.rooms.call()
}

// asked tells a write that somebody has asked for from maintenance.
func asked(e *pendingWrite) bool { return e.job == nil && !e.proof }

// oneByOne commits the members of a batch for which, together, the disk had no room: one of them alone may fit.
func (st *Store) oneByOne(batch []*pendingWrite) {
	for i := range batch {
		st.commitBatch(batch[i : i+1])
	}
}

// ---- Deletes that wait for compaction

// A roomMaker is who compacts when deletes are short of room.
type roomMaker struct {
	short chan struct{} // a token once they are; capacity 1, so that the writer never waits

	mu     sync.Mutex    // guards what follows
	active bool          // somebody reads short
	made   chan struct{} // closed after the next compaction for want of room
}

func newRoomMaker() roomMaker {
	return roomMaker{short: make(chan struct{}, 1), made: make(chan struct{})}
}

// begin says that short is read until end is called.
func (m *roomMaker) begin() (end func()) {
	m.set(true)
	return func() { m.set(false) }
}

// set says whether short is read, and releases the deletes that wait.
func (m *roomMaker) set(active bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.active = active
	close(m.made)
	m.made = make(chan struct{})
}

// next is closed after the next compaction for want of room; nil where nobody makes any.
func (m *roomMaker) next() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.active {
		return nil
	}
	return m.made
}

// call asks for a compaction.
func (m *roomMaker) call() {
	select {
	case m.short <- struct{}{}:
	default: // it is asked for already
	}
}

// commitInRoom commits a change, and tries again after a compaction when it makes room and there is none.
func (st *Store) commitInRoom(ctx context.Context, c Change) (rec Record, err error) {
	if !c.makesRoom() {
		return st.commitOnce(ctx, c)
	}
	for range roomTries {
		made := st.rooms.next()
		if rec, err = st.commitOnce(ctx, c); err != ErrDiskFull || made == nil {
			return rec, err
		}
		select {
		case <-made:
		case <-ctx.Done():
			return rec, err
		case <-st.closing:
			return rec, err
		}
	}
	return rec, err
}
