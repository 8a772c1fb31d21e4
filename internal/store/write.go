package store

// This file implements the writer. It contains the queue, the group commits, the checks of each
// change and the code that writes the records. See store.go for the order in which changes become
// visible.

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"apilet/internal/store/boltfile"
)

// Commit makes one change durable and returns the written record. ctx only limits the wait in the
// queue. Once the writer has started to process the change, Commit waits for the result.
func (st *Store) Commit(ctx context.Context, c Change) (Record, error) {
	if c.Author == (Author{}) && st.Opts.Author != nil {
		c.Author = st.Opts.Author(ctx)
	}
	if c.Damaged {
		var err error
		if c.Expect, err = st.findDamaged(ctx, c.Key); err != nil {
			return Record{}, err
		}
	}
	return st.mode.commit(st, ctx, c)
}

func (st *Store) commitOnce(ctx context.Context, c Change) (Record, error) {
	e := st.pendingWrites.Get().(*pendingWrite)
	e.Change = c
	err := st.submit(ctx, e)
	rec := e.rec
	if e.state.Load() == writeTaken {
		*e = pendingWrite{answer: e.answer}
		st.pendingWrites.Put(e)
	}
	return rec, err
}

// maintain runs job in the next transaction of the writer.
func (st *Store) maintain(ctx context.Context, job func(*boltfile.WriteTx) error) error {
	return st.submit(ctx, &pendingWrite{job: job, answer: make(chan struct{}, 1)})
}

// PingWriter returns nil after the writer has processed an empty job. It serves as a liveness
// check. An error that prevents writes to the file does not matter. While the writer is blocked in
// a commit, PingWriter does not return, even if ctx ends.
func (st *Store) PingWriter(ctx context.Context) error {
	err := st.submit(ctx, &pendingWrite{proof: true, answer: make(chan struct{}, 1)})
	if errors.Is(err, errClosed) || ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return fmt.Errorf("the writer of the data file does not respond: %w", err)
	}
	return nil
}

// raiseCompact sets CompactRev to rev. It writes rev to the disk first, because a reader that finds
// a deleted version must also see the new CompactRev.
func (st *Store) raiseCompact(ctx context.Context, rev int64) error {
	err := st.maintain(ctx, func(l *boltfile.WriteTx) error { return l.PutMetaInt("compact", rev) })
	if err == nil {
		st.compactRev.Store(rev)
	}
	return err
}

func (st *Store) submit(ctx context.Context, e *pendingWrite) error {
	select {
	case st.queue <- e:
		if e.Queued != nil {
			e.Queued()
		}
	case <-ctx.Done():
		return ctx.Err()
	case <-st.closing:
		return errClosed
	}
	var err error
	select {
	case <-e.answer:
		return e.err
	case <-ctx.Done():
		err = ctx.Err()
	case <-st.stopped:
		err = errClosed
	}
	if e.state.CompareAndSwap(writeQueued, writeAbandoned) {
		return err
	}
	<-e.answer
	return e.err
}

// write is the main loop of the writer goroutine.
func (st *Store) write() {
	defer close(st.stopped)
	batch := make([]*pendingWrite, 0, writeBatchMax)
	var p batchPacer
	for {
		select {
		case e := <-st.queue:
			expected, patience := p.next()
			batch = st.gather(batch[:0], e)
			if here := len(batch); here < expected {
				batch = st.collect(batch, expected, patience)
				p.observe(expected-here, len(batch)-here)
			}
			start := time.Now()
			st.commitBatch(batch)
			p.size, p.waiting, p.ended, p.took = len(batch), len(st.queue), time.Now(), time.Since(start)
			clear(batch)
		case <-st.closing:
			return
		}
	}
}

// A batchPacer decides how long the next commit should wait for more changes. It is based on the
// last commit. Writers that just got an answer are likely to write again soon, and other writers
// are already waiting. If the next commit started with only the waiting ones, the two groups would
// alternate forever, and each commit would have half of the writers. To avoid this, the next commit
// waits for both groups, but not longer than the last commit took. This reduces the number of
// commits and the processor time by half, since most of the time is spent in the kernel to write to
// the disk. The throughput is the same.
//
// This works for writers that return in time. If a writer is slow, for example a client on a
// network, waiting for it would only delay the others. If fewer than half of the missing writers
// arrive during a wait, the following waits are shortened to a third. At first, only one wait is
// shortened, then three, and so on up to 63. After that, the full wait is used again.
type batchPacer struct {
	size, waiting int
	ended         time.Time
	took          time.Duration

	// futileWaits is the number of waits to shorten after the last failed wait. short is the number
	// of shortened waits that are left.
	futileWaits, short int
}

// maxFutileWaits is the maximum number of shortened waits after a failed one.
const maxFutileWaits = 63

// next returns the number of changes that the next commit should wait for, and the maximum time to
// wait.
func (p *batchPacer) next() (expected int, patience time.Duration) {
	patience = p.took
	if p.short > 0 {
		patience /= 3
	}
	patience = min(patience, maxCommitDelay) - time.Since(p.ended)
	if patience <= 0 {
		return 0, 0
	}
	return min(p.size+p.waiting, writeBatchMax), patience
}

// observe records a wait for missing writers of which came arrived.
func (p *batchPacer) observe(missing, came int) {
	switch {
	case p.short > 0:
		p.short--
	case 2*came >= missing:
		p.futileWaits = 0
	default:
		p.futileWaits = min(2*p.futileWaits+1, maxFutileWaits)
		p.short = p.futileWaits
	}
}

// collect adds changes to the batch until it has the expected size or the timer has expired.
func (st *Store) collect(batch []*pendingWrite, expected int, patience time.Duration) []*pendingWrite {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for len(batch) < expected {
		select {
		case e := <-st.queue:
			batch = st.gather(batch, e)
		case <-timer.C:
			return batch
		case <-st.closing:
			return batch
		}
	}
	return batch
}

// gather takes all pending changes without waiting for more. An idle store therefore answers a
// single writer immediately. In a busy store the next batch grows while the previous one is written
// to the disk.
func (st *Store) gather(batch []*pendingWrite, e *pendingWrite) []*pendingWrite {
	for {
		if e.state.CompareAndSwap(writeQueued, writeTaken) {
			batch = append(batch, e)
		}
		if len(batch) == writeBatchMax {
			return batch
		}
		select {
		case e = <-st.queue:
		default:
			return batch
		}
	}
}

// commitBatch commits a batch, publishes the changes and notifies the callers. If a precondition
// fails, only that member fails.
func (st *Store) commitBatch(batch []*pendingWrite) {
	if !slices.ContainsFunc(batch, func(e *pendingWrite) bool { return !e.proof }) {
		answer(batch, nil)
		return
	}
	start, full := time.Now(), false
	var s *stage
	err := st.File.Update(func(l *boltfile.WriteTx) (err error) {
		clear(st.marks)
		if s, err = newStageWith(l, st.marks); err != nil {
			return err
		}
		s.table, s.ring, s.now, s.guard.Exclusive = &st.authors, &st.log, st.commitTime(), true
		s.last, s.sharedRevision, s.sealing = st.mode.last, &st.shared, st.Opts.Sealing
		s.allowance = st.measure(l.Tx)
		full = s.full || s.spare < 0
		return st.put(s, batch)
	})
	if err == ErrDiskFull && len(batch) > 1 {
		st.commitSeparately(batch)
		return
	}
	st.recordRoom(batch, s, err)
	if slices.ContainsFunc(batch, isRequested) {
		st.reportOutcome(batch, err, full)
	}
	if err != nil && !errors.Is(err, errUnchanged) {
		for _, e := range batch {
			e.err = err
		}
		answer(batch, nil)
		return
	}
	st.authors.publish(s.added)
	answer(batch, st.publish(batch, time.Since(start)))
}

// put applies a batch to its stage. It returns errUnchanged if no change is left.
func (st *Store) put(s *stage, batch []*pendingWrite) error {
	dirty := false
	for _, e := range batch {
		if e.err = s.apply(e); errors.Is(e.err, ErrDamaged) {
			e.err = st.File.Explain(e.err)
		}
		dirty = dirty || e.err == nil
	}
	if !dirty {
		return errUnchanged
	}
	return s.SetSequence(boltfile.InRev, uint64(s.rev))
}

// answer notifies the callers of a batch first and then the watchers.
func answer(batch []*pendingWrite, wake []chan struct{}) {
	for _, e := range batch {
		e.answer <- struct{}{}
	}
	for _, ch := range wake {
		close(ch)
	}
}

// reportOutcome calls Options.OnBatch. It does nothing if the result does not show whether writes
// are possible. This is the case if the batch has no changes, or if it only contains deletes that
// are allowed despite the quota or the reserve.
func (st *Store) reportOutcome(batch []*pendingWrite, err error, full bool) {
	if st.Opts.OnBatch == nil {
		return
	}
	var refused error
	for _, e := range batch {
		if refusedForSpace(e) {
			refused = e.err
		}
	}
	switch {
	case refused != nil:
		st.Opts.OnBatch(refused)
	case err == nil && !full, errors.Is(err, ErrDiskFull), errors.Is(err, ErrFileLost):
		st.Opts.OnBatch(err)
	}
}

// A stage is the newest state within one write transaction. If it rejects a change because of
// damage, it has not modified anything for that change.
type stage struct {
	*boltfile.WriteTx
	allowance
	txAuthors
	guard      *boltfile.Guard
	revs, keys boltfile.GuardedBucket
	rev        int64         // newest assigned revision
	key, place []byte        // buffers for bbolt, which copies them
	depended   [2]dependency // parent and type of the last create
	now        int64         // time in milliseconds, or 0 to omit the time
	// ring contains the committed events. It may be nil. It can be read without a lock, because
	// only the writer can modify it.
	ring *eventLog

	sealing        *Sealing                        // nil means no encryption
	last           func(json []byte) ([]byte, int) // Replica.Tombstone
	sharedRevision *atomic.Bool                    // set if a revision has several records; may be nil
}

func newStage(l *boltfile.WriteTx) (*stage, error) {
	return newStageWith(l, map[uint64]boltfile.PageMark{})
}

// newStageWith is newStage with an empty map for its guard.
func newStageWith(l *boltfile.WriteTx, marks map[uint64]boltfile.PageMark) (*stage, error) {
	g, err := l.Guard(marks)
	if err != nil {
		return nil, err
	}
	s := &stage{WriteTx: l, guard: g}
	var missing error
	s.revs, err = s.guard.Bucket(l, boltfile.InRev)
	s.keys, missing = s.guard.Bucket(l, boltfile.InKeys)
	if err = errors.Join(err, missing); err != nil {
		return nil, err
	}
	s.rev = int64(s.revs.Sequence())
	return s, nil
}

func (s *stage) apply(e *pendingWrite) (err error) {
	if e.proof {
		return errUnchanged
	}
	if e.job != nil {
		if err := s.guard.VetMeta(); err != nil {
			return err
		}
		s.guard.Exclusive, s.depended = false, [2]dependency{}
		return e.job(s.WriteTx)
	}
	if e.feed != nil {
		return s.applyFeed(e.feed)
	}
	var ok bool
	if e.resource, e.namespace, ok = keyPrefixes(e.Key); !ok {
		return fmt.Errorf("key %q is not /group/resource/namespace/name", e.Key)
	}
	if e.RevAt < 0 || e.RevAt > len(e.JSON) || int64(len(e.JSON)) > math.MaxInt32-2*keyLengthMax {
		return fmt.Errorf("key %q: no place %d in %d bytes of JSON", e.Key, e.RevAt, len(e.JSON))
	}
	if e.Damaged {
		return s.authored(e, s.discard(e))
	}
	if e.was, err = s.state(e.Key); err != nil {
		if v, _ := s.keys.Get(s.key); v != nil && e.Op == OpCreate {
			return ErrExists // even if it is damaged
		}
		return err
	}
	e.rec = Record{Key: e.Key, Rev: s.rev + 1, CreateRev: s.rev + 1, PrevRev: e.was.rev, Deleted: e.Op == OpDelete,
		Deleting: e.Deleting, Time: s.now}
	if e.Op == OpCreate {
		err = s.checkCreate(e)
	} else {
		err = s.checkChange(e)
	}
	return s.authored(e, err)
}

// authored writes a change if err, the result of its checks, is nil.
func (s *stage) authored(e *pendingWrite, err error) error {
	if err == nil {
		e.rec.Author, err = s.author(e.Author, e.Op, e.rec.Rev)
	}
	if err != nil {
		return err
	}
	return s.write(e)
}

// state returns the state of the given key. If the key does not exist, it returns the zero state.
func (s *stage) state(key string) (keyState, error) {
	s.key = append(s.key[:0], key...)
	v, err := s.keys.Get(s.key)
	if v == nil {
		return keyState{}, err
	}
	return decodeKeyState(s.key, v)
}

// A dependency contains the state of a key that must exist to create an object. Consecutive creates
// often depend on the same key.
type dependency struct {
	key string // "" means none
	is  keyState
}

func (d *dependency) state(s *stage, key string) (is keyState, err error) {
	if d.key == key {
		return d.is, nil
	}
	*d = dependency{}
	if is, err = s.state(key); err == nil {
		*d = dependency{key, is}
	}
	return is, err
}

// checkCreate checks the parent first, because the namespace admission of Kubernetes precedes the
// write to its storage.
func (s *stage) checkCreate(e *pendingWrite) error {
	if e.Parent != "" {
		parent, err := s.depended[0].state(s, e.Parent)
		switch {
		case err != nil:
			return err
		case !parent.live():
			return ErrParentMissing
		case parent.flags&flagDeleting != 0:
			return ErrParentDeleting
		}
	}
	if e.Type != "" {
		made, err := s.depended[1].state(s, e.Type)
		switch {
		case err != nil:
			return err
		case !made.live() || made.flags&flagDeleting != 0:
			return ErrTypeDeleting
		}
	}
	switch {
	case e.was.live() && e.was.flags&flagDeleting != 0:
		return ErrDeleting
	case e.was.live():
		return ErrExists
	}
	return s.refusal(&e.Change)
}

// checkChange checks an update or delete and copies the fields that it inherits from the replaced
// version.
func (s *stage) checkChange(e *pendingWrite) error {
	switch {
	case !e.was.live():
		return ErrNotFound
	case e.was.rev != e.Expect:
		return ErrConflict
	}
	if err := s.refusal(&e.Change); err != nil {
		return err
	}
	if s.ring != nil { // recent records are in memory for watchers and need not be read, checked or copied
		if at := s.ring.find(e.was.rev); at != nil && at.Key == e.Key {
			e.rec.CreateRev, e.replaced = at.CreateRev, at.JSON
			return nil
		}
	}
	old, err := s.newest(e)
	if err != nil {
		return err
	}
	e.rec.CreateRev = old.CreateRev
	e.replaced, err = s.sealing.copyOf(&old, e.Key)
	return err
}

// newest returns the record that e.was refers to. Its JSON points into the file.
func (s *stage) newest(e *pendingWrite) (old Record, err error) {
	b, err := s.record(e.was.rev, e.Key)
	if err != nil {
		return old, err
	}
	old, key, err := decodeRecord(e.was.rev, b)
	if err == nil && string(key) != e.Key {
		err = damagedRecord(e.was.rev, nil)
	}
	return old, err
}

// write stores the record and the key state. Both are stored in a single allocation. It is used by
// bbolt until the commit and by the event log after that.
func (s *stage) write(e *pendingWrite) error {
	value := encodeRecord(&e.rec, e.JSON, e.RevAt, keyStateSize)
	size := len(e.rec.JSON)
	if s.sealing != nil && s.sealing.Seal != nil && size > 0 {
		var err error
		if value, size, err = s.sealing.record(&e.rec, value); err != nil {
			return err
		}
	}
	key := recordKey(value)
	e.is = keyState{rev: e.rec.Rev, size: size, flags: flagsOf(&e.rec)}
	state := appendKeyState(value[len(value):], key, e.is)
	e.rec.JSON = slices.Clip(e.rec.JSON)
	s.place = binary.BigEndian.AppendUint64(s.place[:0], uint64(e.rec.Rev))
	if e.usesLongKey {
		s.place = append(s.place, key...)
	}
	if err := s.revs.Put(s.place, slices.Clip(value)); err != nil {
		return err
	}
	if err := s.keys.Put(key, state); err != nil { // not due to damage, because the path to the key was already vetted
		return err
	}
	for i := range s.depended {
		if d := &s.depended[i]; d.key == e.Key {
			d.is = e.is
		}
	}
	s.rev = max(s.rev, e.rec.Rev)
	if e.Op == OpCreate {
		e.rec.PrevRev = 0 // hide the tombstone before it
	}
	return nil
}

// publish makes a committed batch visible and returns the channels to close.
func (st *Store) publish(batch []*pendingWrite, took time.Duration) (wake []chan struct{}) {
	st.mu.Lock()
	defer st.mu.Unlock()
	rev := st.currentRev.Load()
	for _, e := range batch {
		if e.job != nil || e.proof || e.err != nil {
			continue
		}
		if e.feed != nil {
			wake, rev = st.publishFeed(e.feed, wake), e.feed.upTo
			continue
		}
		rev = e.rec.Rev
		if ch := st.log.append(e.resource, Event{Record: e.rec, Prev: e.replaced}); ch != nil {
			wake = append(wake, ch)
		}
		st.recount(e)
		st.stat.Writes++
	}
	if ch := st.log.wakeAll(); ch != nil {
		wake = append(wake, ch)
	}
	st.currentRev.Store(rev)
	st.revisionWaiters.release(rev)
	st.stat.observeCommit(took)
	return wake
}

// recount updates the tallies and removes empty ones, because namespaces are created and deleted.
// The caller must hold mu.
func (st *Store) recount(e *pendingWrite) {
	var d tally
	if e.was.live() {
		d.objects, d.bytes = -1, -int64(e.was.size)
	}
	if e.is.live() {
		d.objects, d.bytes = d.objects+1, d.bytes+int64(e.is.size)
	}
	st.total.objects, st.total.bytes = st.total.objects+d.objects, st.total.bytes+d.bytes
	for _, prefix := range [...]string{e.resource, e.namespace} {
		t := st.tally(prefix)
		t.objects, t.bytes = t.objects+d.objects, t.bytes+d.bytes
		if t.objects == 0 {
			delete(st.tallies, prefix)
		}
	}
}

// author returns the number of the author of a change.
func (s *stage) author(a Author, op ChangeOp, rev int64) (AuthorID, error) {
	if a == (Author{}) || s.table == nil {
		return 0, nil
	}
	if a.Verb == "" {
		a.Verb = [...]string{OpCreate: "create", OpUpdate: "update", OpDelete: "delete"}[op]
	}
	return s.number(s.WriteTx, s.guard, a, rev)
}

// commitTime returns the time of a commit in milliseconds. It must be called by the writer only.
func (st *Store) commitTime() int64 {
	now := st.Now().UnixMilli()
	if now < st.lastTime && st.lastTime-now < clockSlack.Milliseconds() {
		now = st.lastTime
	}
	st.lastTime = now
	return now
}

// discard checks a change to an object whose newest version, at the expected revision, is damaged.
func (s *stage) discard(e *pendingWrite) error {
	s.key = append(s.key[:0], e.Key...)
	v, err := s.keys.Get(s.key)
	if err != nil {
		return err
	}
	if v == nil {
		return ErrNotFound
	}
	if e.was, err = decodeKeyState(s.key, v); err != nil {
		e.was = keyState{rev: max(e.Expect, 1)} // treat the key as live
	} else if !e.was.live() {
		return ErrNotFound
	} else if e.was.rev != e.Expect {
		return ErrConflict
	}
	e.rec = Record{Key: e.Key, Rev: s.rev + 1, PrevRev: e.Expect, CreateRev: e.Expect, Deleted: e.Op == OpDelete, Deleting: e.Deleting, Lost: true, Time: s.now}
	if e.Op == OpDelete {
		e.JSON, e.RevAt = nil, -1
	}
	return nil
}

// freeKey returns the bucket key for a record. If another key already has a record at that
// revision, it returns a longer key and sets "shared".
func (s *stage) freeKey(rev int64, key []byte) ([]byte, error) {
	short := revKey(rev)
	b, err := s.revs.Get(short)
	if err != nil || b == nil || bytes.Equal(recordKey(b), key) {
		return short, err
	}
	if s.sharedRevision != nil {
		s.sharedRevision.Store(true)
	}
	if err := s.guard.VetMeta(); err != nil {
		return nil, err
	}
	return longKey(rev, key), s.PutMetaInt("shared", 1)
}

// record returns the record of a key at a revision, like snapshot.record.
func (s *stage) record(rev int64, key string) ([]byte, error) {
	b, err := s.revs.Get(revKey(rev))
	if err != nil || b != nil && string(recordKey(b)) == key {
		return b, err
	}
	long, err := s.revs.Get(longKey(rev, []byte(key)))
	if err != nil || long == nil {
		return b, err
	}
	return long, nil
}

// recordRoom records the state of the disk after a batch: whether the commit failed because the
// disk was full, and whether there is less room than the reserve. It requests a compaction if a
// write was refused for lack of space, and after each delete while other writes would be refused.
// It does nothing if the batch only contains maintenance jobs.
func (st *Store) recordRoom(batch []*pendingWrite, s *stage, err error) {
	if !slices.ContainsFunc(batch, isRequested) {
		return
	}
	switch {
	case err == ErrDiskFull:
		st.diskFailed.Store(true)
	case err == nil:
		st.diskFailed.Store(false)
	}
	if slices.ContainsFunc(batch, func(e *pendingWrite) bool { return e.err == ErrDiskFull }) {
		st.roomLow.Store(true)
	}
	if err == ErrDiskFull || s != nil && (s.full || s.spare < 0) || slices.ContainsFunc(batch, refusedForSpace) {
		st.rooms.call()
	}
}

func refusedForSpace(e *pendingWrite) bool { return e.err == ErrDiskFull || e.err == ErrQuota }

// isRequested reports whether the write was requested by a client or by the log of a replica. It
// returns false for maintenance jobs.
func isRequested(e *pendingWrite) bool { return e.job == nil && !e.proof }

// commitSeparately commits each member of a batch separately. It is called if the disk does not
// have enough space for the whole batch.
func (st *Store) commitSeparately(batch []*pendingWrite) {
	for i := range batch {
		st.commitBatch(batch[i : i+1])
	}
}

// commitInRoom commits a change. If there is no room for a change that frees space, it is retried
// after a compaction.
func (st *Store) commitInRoom(ctx context.Context, c Change) (rec Record, err error) {
	if !c.makesRoom() {
		return st.commitOnce(ctx, c)
	}
	for range roomAttempts {
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
