// Package scan reads stored objects for GET, LIST and WATCH. It is the layer between the handlers,
// which choose the revision and the keys, and the store. It implements the following for all reads:
//
//	memory       large objects are read only while the request holds memory for them (package limits)
//	processors   only some lists read and encode at the same time
//	conversion   a webhook converts objects of custom types, with one call per chunk
//	damage       objects that cannot be decoded are omitted from lists and watches
//	index        the Pods of one node are found without reading the others
//
// A Source belongs to a server. A Scan is used by a single request to read its objects in chunks.
// For each chunk, the caller passes a revision and a first key. It gets both from the previous
// chunk:
//
//	sc := source.NewScan(w, res)
//	defer sc.Release()
//	for span := (store.Span{Prefix: prefix, Rev: rev}); ; {
//		err := sc.Read(ctx, span, func(c *store.Chunk) error {
//			...                                      // the objects are valid until this function returns
//			span.Rev, span.Start = c.Rev, c.Next
//			return nil
//		})
//		...
//	}
package scan

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"strings"

	"apilet/internal/corrupt"
	"apilet/internal/limits"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/selector"
	"apilet/internal/store"
)

// podKeys and podNode are the keys and the field of the index of Pods.
const podKeys, podNode = "//pods/", "spec.nodeName"

// A Source provides access to the objects of a server, either at the current revision or at an
// earlier revision.
type Source struct {
	Store   *store.Store
	At      int64            // if not 0, reads show this revision
	Corrupt *corrupt.Objects // nil when reading the past, which cannot be repaired

	// Slots limits the number of lists that read and encode concurrently to half of the processors.
	// Other lists wait for a slot. Otherwise writes would have to compete with all lists for the
	// processors. Sending is not limited.
	Slots chan struct{}

	podsByNode *store.Index // nil when reading the past
}

// NewSource returns a Source of the present.
func NewSource(st *store.Store, lost *corrupt.Objects) *Source {
	return &Source{Store: st, Corrupt: lost, Slots: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)),
		podsByNode: st.NewIndex(podKeys, podNode)}
}

// AsOf returns a Source that reads at revision rev.
func (s *Source) AsOf(rev int64) *Source {
	return &Source{Store: s.Store, At: rev, Slots: s.Slots}
}

// Newest returns the current version of an object. If s.At is set, it returns the version at that
// revision.
func (s *Source) Newest(key string) (store.Record, error) {
	if s.At != 0 {
		return s.Store.GetAt(key, s.At)
	}
	return s.Store.Get(key)
}

// Get reads an object like Newest. Large objects are read only after memory was reserved. weigh
// returns the memory that a response needs for an object of a given size.
func (s *Source) Get(ctx context.Context, w http.ResponseWriter, key string, weigh func(stored int) int) (store.Record, error) {
	if s.At == 0 {
		rec, size, err := s.Store.GetUpTo(key, limits.Large/4)
		if err != nil || size <= limits.Large/4 {
			return rec, err
		}
		if err := limits.Reserve(ctx, w, weigh(size)); err != nil {
			return rec, err
		}
	}
	rec, err := s.Newest(key)
	if n := weigh(len(rec.JSON)); err == nil && !limits.TryReserve(ctx, w, n) { // the object is from the past or has grown
		rec = store.Record{} // drop the object before waiting for memory
		if err := limits.Reserve(ctx, w, n); err != nil {
			return rec, err
		}
		return s.Newest(key)
	}
	return rec, err
}

// Keys returns the keys of the Pods on a single node, using an index. Each kubelet makes such
// requests. It returns nil if the index cannot be used. If rev is 0, Keys returns the newest
// revision as at.
func (s *Source) Keys(ctx context.Context, m *selector.Matcher, rev int64) (keys []string, at int64) {
	_, field, node := m.RequiredTerm()
	if s.podsByNode == nil || field != podNode || node == "" || !strings.HasPrefix(m.Span, podKeys) {
		return nil, rev
	}
	if at = rev; at == 0 {
		at = s.Store.Revision()
	}
	keys, ok := s.podsByNode.Keys(ctx, node, at)
	if !ok {
		return nil, rev
	}
	return keys, at
}

// A Scan reads the objects for a single request in chunks.
type Scan struct {
	// BeforeWait is called before the request waits for memory. It may be nil.
	BeforeWait func() error
	// NoSlot is set if the request waits for something else while it handles a chunk, so that it
	// must not hold a slot.
	NoSlot bool
	Large  int // bytes that the large objects of the last chunk need

	src   *Source
	w     http.ResponseWriter // the memory is reserved for its request
	base  int                 // bytes that the request needs without large objects
	chunk *store.Chunk        // nil before Read and after Release
}

// NewScan returns a Scan for the response w with objects of the type res.
func (s *Source) NewScan(w http.ResponseWriter, res *scheme.Resource) *Scan {
	return &Scan{src: s, w: w, NoSlot: res.NeedsConversion()}
}

// Reserve reserves memory for a request. The request may keep up to buffer bytes of the objects
// below prefix.
func (s *Scan) Reserve(ctx context.Context, prefix string, buffer int) error {
	_, stored, _ := s.src.Store.Count(prefix)
	if s.base = int(min(stored, int64(buffer+limits.Large))); s.base > limits.Large {
		return limits.Reserve(ctx, s.w, s.base)
	}
	return nil
}

// errNoMemory is returned if there is not enough memory for the large objects of a chunk.
var errNoMemory = errors.New("no memory for large objects")

// Read reads one chunk and passes it to use. If the chunk has large objects and no memory is free,
// Read first waits for memory and reads the chunk again.
func (s *Scan) Read(ctx context.Context, span store.Span, use func(*store.Chunk) error) error {
	for {
		err := s.inSlot(ctx, func() error { return s.read(ctx, span, use) })
		if !errors.Is(err, errNoMemory) {
			return err
		}
		s.Release()
		if s.BeforeWait != nil {
			if err := s.BeforeWait(); err != nil {
				return err
			}
		}
		if err := limits.Reserve(ctx, s.w, s.base+s.Large); err != nil {
			return err
		}
	}
}

func (s *Scan) read(ctx context.Context, span store.Span, use func(*store.Chunk) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.chunk == nil {
		s.chunk = store.ChunkPool.Get().(*store.Chunk)
	}
	if err := s.src.Store.Chunk(span, s.chunk); err != nil {
		return err
	}
	if len(s.chunk.Sealed) > 0 { // do not delete any object of the chunk
		return s.chunk.Sealed[0].Err
	}
	s.Large = sizeOfLargeRecords(s.chunk.Records)
	if s.Large > 0 && !limits.TryReserve(ctx, s.w, s.base+s.Large) {
		return errNoMemory
	}
	return use(s.chunk)
}

// inSlot waits for a slot and then calls read. It releases the slot when read returns.
func (s *Scan) inSlot(ctx context.Context, read func() error) error {
	if s.NoSlot {
		return read()
	}
	select {
	case s.src.Slots <- struct{}{}:
		defer func() { <-s.src.Slots }()
		return read()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Release returns the buffers of the last chunk to their pool. The caller should call it before it
// waits for the client. Large objects are left to the garbage collector.
func (s *Scan) Release() {
	if s.chunk == nil {
		return
	}
	if s.Large > 0 {
		*s.chunk = store.Chunk{}
	}
	store.ChunkPool.Put(s.chunk)
	s.chunk = nil
}

// sizeOfLargeRecords returns the memory that the large objects of a chunk need in the store and in the
// response.
func sizeOfLargeRecords(records []store.Record) (n int) {
	for i := range records {
		if size := len(records[i].JSON); size > limits.Large {
			n += 2 * size
		}
	}
	return n
}

// Convert converts up to most of the records if the type has a conversion webhook, with one call of
// the webhook. The caller applies selectors afterwards, because they refer to the converted
// objects.
func (s *Source) Convert(ctx context.Context, res *scheme.Resource, records []store.Record, most int) error {
	if !res.NeedsConversion() {
		return nil
	}
	var readable []*store.Record
	for i := range records {
		if len(readable) < most && !s.Corrupt.Has(&records[i]) {
			readable = append(readable, &records[i])
		}
	}
	return response.Convert(ctx, res, readable...)
}
