package boltfile

// This file delays all changes to the data file until the next checkpoint.
//
// The kernel writes a changed page of a file to the disk after about thirty seconds. If there is a
// commit every few seconds, it usually changes the same few pages. The kernel would write all of
// these pages twice a minute. This is not necessary, because the log contains the commits until the
// next checkpoint. Therefore bbolt's mapping of the file is private (copy on write), and a commit
// changes the pages in the mapping instead of the file. Readers need not know, because they read
// the mapping.
//
//	                 mapping, which readers and bbolt see            data file
//	commit           the changed pages, in memory of the process     unchanged, except for the note
//	checkpoint                                                       the changed pages that are in use, then a sync
//	after it         the same pages of the file again
//
// The mapping and the file agree in all other pages. If a changed page is free again at the time of
// the checkpoint, it is not written. The copy is kept in memory, because it may still be used by a
// reader.
//
// Space on the disk is reserved before a page beyond the end of the file is changed. So the commit
// fails if the disk is full, and not the checkpoint, which must not fail. If the file system cannot
// reserve space, such a page is written to the file immediately.
//
// While the overlay is closed, bbolt writes to the file. The overlay is closed if there is no log,
// or if the system does not support private mappings.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"

	"go.etcd.io/bbolt"
)

// reserveStep is the minimum number of pages that are added to the file. Fewer pages are added if
// the disk is full.
const reserveStep = 64

// privateMax is the maximum size of the free pages that are kept in memory after a checkpoint. If
// this limit is exceeded, the checkpoint writes the free pages as well.
const privateMax = 4 << 20

// An overlay has the pages that differ between bbolt's mapping and the data file. Only the writer
// uses it.
type overlay struct {
	file     *os.File
	pageSize int
	mapped   []byte         // the private mapping, or nil if the overlay is closed
	high     uint64         // number of pages that have space on the disk
	turn     int            // number of checkpoints since the overlay was opened
	private  map[uint64]int // changed pages, and the turn in which each was last changed
	changed  int            // number of pages that were changed in this turn
}

// newOverlay returns a closed overlay and makes sure that bbolt uses it for all writes. The overlay
// stays closed if the system does not support it.
func newOverlay(db *bbolt.DB, file *os.File) (*overlay, error) {
	o := &overlay{file: file, pageSize: db.Info().PageSize, private: map[uint64]int{}}
	write := reflect.ValueOf(db).Elem().FieldByName("ops").FieldByName("writeAt")
	if !write.IsValid() || write.Type() != reflect.TypeOf(o.writeAt) {
		return nil, fmt.Errorf("bbolt has no function that writes its pages")
	}
	reflect.NewAt(write.Type(), write.Addr().UnsafePointer()).Elem().Set(reflect.ValueOf(o.writeAt))
	return o, nil
}

// open makes the first size bytes of bbolt's mapping private. high is the number of pages in the
// file.
func (o *overlay) open(db *bbolt.DB, size int64, high uint64) {
	if o.pageSize%os.Getpagesize() != 0 {
		return
	}
	mapped := mapping(db, int(size))
	if mapPrivately(o.file, mapped) == nil {
		o.mapped, o.high, o.turn, o.changed = mapped, high, 0, 0
	}
}

// writeAt is bbolt's function for writing pages.
func (o *overlay) writeAt(b []byte, at int64) (n int, err error) {
	if err := o.reserve(at + int64(len(b))); err != nil {
		return 0, err
	}
	for n < len(b) && o.mapped != nil {
		id := uint64(at+int64(n)) / uint64(o.pageSize)
		if id >= o.high {
			break
		}
		o.change(id)
		n += copy(o.mapped[at+int64(n):][:o.pageSize], b[n:])
	}
	if n == len(b) {
		return n, nil
	}
	more, err := o.file.WriteAt(b[n:], at+int64(n))
	if n += more; n == len(b) {
		o.high = max(o.high, uint64(at+int64(n))/uint64(o.pageSize))
	}
	return n, err
}

// reserve extends the file to the given size. It fails if the disk is full. It does nothing if the
// file system cannot reserve space; then new pages are written to the file.
func (o *overlay) reserve(size int64) error {
	have := int64(o.high) * int64(o.pageSize)
	if o.mapped == nil || size <= have {
		return nil
	}
	more := max(size-have, reserveStep*int64(o.pageSize))
	err := reserveSpace(o.file, have, more)
	if err != nil && IsDiskFull(err) {
		more = size - have
		err = reserveSpace(o.file, have, more)
	}
	if err == nil {
		o.high += uint64(more) / uint64(o.pageSize)
	} else if !IsDiskFull(err) {
		err = nil
	}
	return err
}

// change records that a page of the mapping is about to differ from the file.
func (o *overlay) change(id uint64) {
	if turn, ok := o.private[id]; !ok || turn != o.turn {
		o.private[id] = o.turn
		o.changed++
	}
}

// size returns the size of the pages that were changed since the last checkpoint began.
func (o *overlay) size() int64 { return int64(o.changed) * int64(o.pageSize) }

// changedPages contains the pages that must be written by a checkpoint.
type changedPages struct {
	ids   []uint64 // in order, without the meta pages
	metas [2][metaSize]byte
}

// begin starts a new turn and returns the changed pages. The free pages of the last commit are
// given by free.
func (o *overlay) begin(free []uint64) (c changedPages) {
	if o.mapped == nil {
		return c
	}
	c = o.all()
	inUse := slices.DeleteFunc(slices.Clone(c.ids), func(id uint64) bool {
		_, ok := slices.BinarySearch(free, id)
		return ok
	})
	if (len(c.ids)-len(inUse))*o.pageSize <= privateMax {
		c.ids = inUse
	}
	o.turn++
	o.changed = 0
	return c
}

// all returns all changed pages.
func (o *overlay) all() (c changedPages) {
	for id := range o.private {
		if id >= 2 {
			c.ids = append(c.ids, id)
		}
	}
	slices.Sort(c.ids)
	for slot := range c.metas {
		copy(c.metas[slot][:], o.mapped[slot*o.pageSize:])
	}
	return c
}

// write writes the changed pages to the file. It does not overwrite the notes after the meta pages.
// It is safe to commit at the same time, because a commit does not change any pages of a
// checkpoint, except for the meta pages.
func (o *overlay) write(c changedPages) error {
	if o.mapped == nil {
		return nil
	}
	for _, id := range c.ids { // write each page separately; see lengthen
		if _, err := o.file.WriteAt(o.bytes(PageRun{id, 1}), int64(id)*int64(o.pageSize)); err != nil {
			return err
		}
	}
	for slot, meta := range c.metas {
		if _, err := o.file.WriteAt(meta[:], int64(slot*o.pageSize)); err != nil {
			return err
		}
	}
	return nil
}

// bytes returns the pages of a run in the mapping.
func (o *overlay) bytes(run PageRun) []byte {
	return o.mapped[int(run.First)*o.pageSize:][:int(run.Count)*o.pageSize]
}

// end discards the copies of all pages that have been written by a checkpoint. It keeps the copies
// of pages that have been changed since then. A copy that cannot be discarded equals the page of the
// file, so the error does not matter.
func (o *overlay) end(c changedPages) {
	_ = o.forget(slices.DeleteFunc(c.ids, func(id uint64) bool { return o.private[id] == o.turn }))
}

// forget discards the copies of the given pages. The mapping then contains the pages of the file
// again.
func (o *overlay) forget(pages []uint64) (err error) {
	for run := range runs(pages) {
		err = errors.Join(err, dropPrivate(o.bytes(run)))
	}
	for _, id := range pages {
		delete(o.private, id)
	}
	return err
}

// close writes all changed pages to the file and closes the overlay.
func (o *overlay) close() error {
	if o.mapped == nil {
		return nil
	}
	c := o.all()
	if err := o.write(c); err != nil {
		return err
	}
	if err := o.forget(append([]uint64{0, 1}, c.ids...)); err != nil {
		return err // bbolt is about to write to the file, which the mapping would not show
	}
	o.mapped = nil
	return nil
}

// runs yields the runs of adjacent pages in a sorted list.
func runs(pages []uint64) func(yield func(PageRun) bool) {
	return func(yield func(PageRun) bool) {
		for i := 0; i < len(pages); {
			run := PageRun{First: pages[i], Count: 1}
			for i++; i < len(pages) && pages[i] == run.First+run.Count; i++ {
				run.Count++
			}
			if !yield(run) {
				return
			}
		}
	}
}

// freePages returns the free pages of a commit, in order, or nil if the commit does not list them.
func (p *Pages) freePages() []uint64 {
	g := &Guard{p: p}
	if p.freelist == noFreelist || g.vetFreelist() != nil {
		return nil
	}
	b := p.mapped[int(p.freelist)*p.pageSize:]
	count, ids := uint64(binary.NativeEndian.Uint16(b[10:])), b[pageHeaderSize:]
	if count == 0xFFFF {
		count, ids = binary.NativeEndian.Uint64(ids), ids[8:]
	}
	free := make([]uint64, count)
	for i := range free {
		free[i] = binary.NativeEndian.Uint64(ids[8*i:])
	}
	return free
}
