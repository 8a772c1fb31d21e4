package response

// This file writes lists. A small list is sent as a whole. The beginning of a large list is sent
// while its later items are still being read.

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"apilet/internal/limits"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// ListBuffer is the number of bytes that a list collects if it must be read to its end before its
// head is written.
const ListBuffer = 1 << 20

// A ListWriter encodes the items of a list and writes the list. The caller adds items, writes the
// whole list with Whole, or writes it in parts with Begin, Flush and End.
type ListWriter struct {
	v       *View
	items   []byte // encoded items that were not written yet
	bare    bool   // the next item is the first and needs no separator
	coming  int64  // bytes of the measured items that will be added later
	promise int64  // bytes of the items that Content-Length includes and that were not written yet
	out     io.Writer
	finish  func()
	tail    []byte
}

var itemBuffers = sync.Pool{New: func() any { return new([]byte) }}

// NewListWriter returns a ListWriter without items. The caller must call Release.
func (v *View) NewListWriter() *ListWriter {
	return &ListWriter{v: v, items: (*itemBuffers.Get().(*[]byte))[:0], bare: true}
}

// Release returns the buffer to its pool. Oversized buffers are left to the garbage collector.
func (l *ListWriter) Release() {
	if cap(l.items) <= 4*ListBuffer {
		items := l.items
		itemBuffers.Put(&items)
	}
}

// Len returns the number of bytes that were not written yet.
func (l *ListWriter) Len() int { return len(l.items) }

// Room returns the number of bytes to collect before the head is sent. A limited list must find its
// end before that, and a list with a length prefix must find its length. Other lists only need to
// know whether they are small enough to be sent as a whole.
func (l *ListWriter) Room(limited bool) int {
	if limited || l.v.HasListLength() {
		return ListBuffer
	}
	return GzipThreshold
}

// Add appends an item. If it fails, the list is unchanged.
func (l *ListWriter) Add(rec *store.Record) error {
	before := len(l.items)
	if !l.bare {
		l.items = append(l.items, l.v.Separator()...)
	}
	items, err := l.v.AppendItem(l.items, rec)
	if err != nil {
		l.items = items[:before]
		return err
	}
	l.items, l.bare = items, false
	return nil
}

// Measure counts the bytes of an item that will be added later, for a format with a length prefix.
func (l *ListWriter) Measure(rec *store.Record) error {
	scratch := itemBuffers.Get().(*[]byte)
	defer itemBuffers.Put(scratch)
	item, err := l.v.AppendProtobufItem((*scratch)[:0], rec)
	if err == nil {
		l.coming += int64(len(item))
	}
	*scratch = item[:0]
	return err
}

// Whole writes the complete list. The caller must have added all items.
func (l *ListWriter) Whole(w http.ResponseWriter, r *http.Request, meta ListMeta) error {
	head, tail, err := l.ends(meta, true)
	if err != nil {
		return err
	}
	l.setHeader(w)
	if l.v.Media.Format == scheme.JSONFormat && (l.v.Media.Pretty || WantsPretty(r)) {
		limits.ForceReserve(r.Context(), w, l.v.EstimateSize(r, len(l.items)))
		WriteJSON(w, r, http.StatusOK, bytes.TrimSuffix(slices.Concat(head, l.items, tail), []byte("\n")))
		return nil
	}
	l.shrink()
	l.items = append(l.items, tail...) // saves a write
	size := len(head) + len(l.items)
	if !ShouldCompress(r, size) {
		w.Header().Set("Content-Length", strconv.Itoa(size))
	}
	out, finish := Compress(w, r, size)
	defer finish()
	for _, part := range [][]byte{head, l.items} {
		if _, err := out.Write(part); err != nil {
			return ErrAborted
		}
	}
	return nil
}

// Begin writes the head of a list. If it succeeds, the caller must call Close.
func (l *ListWriter) Begin(w http.ResponseWriter, r *http.Request, meta ListMeta) error {
	head, tail, err := l.ends(meta, false)
	if err != nil {
		return err
	}
	l.setHeader(w)
	l.promise, l.tail = int64(len(l.items))+l.coming, tail
	if l.v.HasListLength() && !ShouldCompress(r, ListBuffer) {
		w.Header().Set("Content-Length", strconv.FormatInt(int64(len(head)+len(tail))+l.promise, 10))
	}
	l.out, l.finish = Compress(w, r, ListBuffer)
	if _, err := l.out.Write(head); err != nil {
		l.finish()
		return ErrAborted
	}
	return nil
}

// Flush writes the items that were added.
func (l *ListWriter) Flush() error {
	l.promise -= int64(len(l.items))
	if _, err := l.out.Write(l.items); err != nil {
		return ErrAborted
	}
	if l.items = l.items[:0]; cap(l.items) > 2*ListBuffer { // the buffer has grown for a large object
		l.items = nil
	}
	return nil
}

// End writes the remaining items and the end of the list.
func (l *ListWriter) End() error {
	if l.promise -= int64(len(l.items)); l.v.HasListLength() && l.promise != 0 {
		return ErrAborted // the Content-Length is wrong
	}
	l.items = append(l.items, l.tail...)
	_, err := l.out.Write(l.items)
	return err
}

// Close ends the compression. It must be called after Begin, even if the list is incomplete.
func (l *ListWriter) Close() { l.finish() }

func (l *ListWriter) setHeader(w http.ResponseWriter) {
	w.Header().Set("Content-Type", l.v.ContentType())
	w.Header().Set("Cache-Control", "no-cache, private")
}

// ends returns the bytes before and after the items. complete is set if all items were added.
func (l *ListWriter) ends(meta ListMeta, complete bool) (head, tail []byte, err error) {
	if l.v.HasListLength() {
		return l.v.ProtobufListEnds(meta, int64(len(l.items))+l.coming)
	}
	head, tail = l.v.AppendListHead(nil, meta), l.v.ListTail(meta)
	if complete && l.bare {
		head, tail = l.v.EmptyListEnds(head, tail)
	}
	return head, tail, nil
}

// shrink replaces an oversized buffer from the pool with a smaller one, because no memory was
// reserved for the excess.
func (l *ListWriter) shrink() {
	if cap(l.items) <= limits.Large || cap(l.items) <= 2*len(l.items) {
		return
	}
	wide := l.items
	l.items = append(make([]byte, 0, len(wide)+512), wide...)
	itemBuffers.Put(&wide)
}
