package store

// This file implements replicas of an external log. The log is accessed through Options.Replica.
//
//	Commit ──Propose──▶ the log ──Replicate──▶ bbolt, event log, counts, currentRev ──▶ Commit's answer, watchers
//	         (external)           in log order, with the log's revisions
//
// For readers, a replica works like a store that uses its own log. There are three differences.
//
// Revisions may have gaps, because the log also contains other entries. Code that walks the bucket
// rev must continue with the next existing record.
//
// Several keys may change in one revision. In this case, the first record is stored with the
// revision as its key. For all other records, the key is the revision followed by the key of the
// object. Readers always see either all changes of a revision or none. Kubernetes servers write
// each object separately, but etcd deletes expired Events in groups of up to a thousand. If a
// revision contains many more changes (`etcdctl del --prefix`), it is treated as compacted. This
// means that readers do not have to keep all changes in memory. Readers before it start again. A
// Change can also change several keys (Change.With).
//
// A replica may have to be filled from a snapshot of the log's state, initially or if the log no
// longer has the entries that the replica has to follow. Readers continue during that time. New
// versions are stored with revisions above currentRev, so they are not visible to readers. They
// refer to the previous versions as usual. FinishFill makes all new versions visible in a single
// transaction. In the same transaction, all earlier revisions are marked as compacted.
//
// Nothing is synced while a replica is open, because lost data can be read from the log again.
// After a power failure, however, an unsynced file may have any content, even one that looks
// intact. Therefore a small file, PATH.replica, records the history to which the replica belongs
// and the boot of the machine in which it is open. If the machine was restarted before the replica
// was closed, the replica is discarded and filled again. If only the process was killed, nothing is
// lost, since the kernel has all written data.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"strings"
	"time"

	"apilet/internal/atomicfile"
	"apilet/internal/store/boltfile"
)

const catchUpTimeout = 10 * time.Second // maximum time that a request waits for a revision of the log

// revisionMax is the maximum number of changes in a revision. If a revision contains more changes,
// it is treated as compacted.
const revisionMax = 2048

// ---- Following

// Current waits until the store contains all writes that were committed before the call. It returns
// the revision of the store. It does not wait if the store uses its own log.
func (st *Store) Current(ctx context.Context) (int64, error) {
	rev, err := st.mode.newest(st, ctx)
	if err == nil {
		err = st.waitRevisionTimeout(ctx, rev)
	}
	return st.Revision(), err
}

// waitRevisionTimeout is like WaitRevision, but fails with Replica.Behind after a time limit. For
// example, a replica cannot make progress if the disk is full.
func (st *Store) waitRevisionTimeout(ctx context.Context, rev int64) error {
	behind := st.mode.behind
	if behind == nil || st.Revision() >= rev {
		return st.WaitRevision(ctx, rev)
	}
	limited, cancel := context.WithTimeout(ctx, catchUpTimeout)
	defer cancel()
	err := st.WaitRevision(limited, rev)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return behind
	}
	return err
}

// WaitUpcoming waits until the store has reached the given revision, which may already be visible
// in another replica. It waits for at most patience. If the log has not reached the revision, it
// returns an error without waiting.
func (st *Store) WaitUpcoming(ctx context.Context, rev uint64, patience time.Duration) error {
	switch {
	case rev <= uint64(st.Revision()):
		return nil
	case rev > math.MaxInt64:
		return errFutureRev
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if newest, err := st.mode.newest(st, ctx); err == nil && uint64(newest) < rev {
		return errFutureRev
	}
	return st.WaitRevision(ctx, int64(rev))
}

// Changed reports whether the newest revision of a key in the log differs from rev, which a reader
// of the store has seen. rev 0 means that the key does not exist. With its own log the store
// returns false, because the commit checks the revision.
func (st *Store) Changed(ctx context.Context, key string, rev int64) (bool, error) {
	if !st.mode.others {
		return false, nil
	}
	if _, err := st.Current(ctx); err != nil {
		return false, err
	}
	rec, err := st.Get(key)
	if errors.Is(err, ErrNotFound) {
		return rev != 0, nil
	}
	return err == nil && rec.Rev != rev, err
}

// GetNewest is like Get. If the object is missing or is being deleted, a replica first catches up
// with the log. Callers use it if they reject a request in these cases.
func (st *Store) GetNewest(ctx context.Context, key string) (Record, error) {
	rec, err := st.Get(key)
	if err == nil && !rec.Deleting {
		return rec, err
	}
	if _, err := st.Current(ctx); err != nil {
		return Record{}, err
	}
	return st.Get(key)
}

// WaitRevision waits until the store shows rev.
func (st *Store) WaitRevision(ctx context.Context, rev int64) error {
	reached := st.revisionReached(rev)
	if reached == nil {
		return nil
	}
	select {
	case <-reached:
		return nil
	case <-ctx.Done():
		st.mu.Lock()
		defer st.mu.Unlock()
		st.revisionWaiters.forget(reached)
		return ctx.Err()
	case <-st.closing:
		return errClosed
	}
}

// revisionReached returns a channel that is closed when the store reaches rev, or nil if it already
// has.
func (st *Store) revisionReached(rev int64) chan struct{} {
	if st.currentRev.Load() >= rev {
		return nil
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.currentRev.Load() >= rev {
		return nil
	}
	return st.revisionWaiters.add(rev)
}

// propose is the Commit of a replica. A change in the log is committed, even if it does not arrive
// here in time.
func (st *Store) propose(ctx context.Context, c Change) (Record, error) {
	if c.Queued != nil {
		c.Queued()
	}
	if _, _, ok := keyPrefixes(c.Key); !ok {
		return Record{}, fmt.Errorf("key %q is not /group/resource/namespace/name", c.Key)
	}
	rev, err := st.Opts.Replica.Propose(ctx, c)
	if err != nil {
		return Record{}, err
	}
	if st.waitRevisionTimeout(ctx, rev) == nil {
		st.mu.RLock()
		at := st.log.findKey(rev, c.Key)
		if at != nil {
			defer st.mu.RUnlock()
			return at.Record, nil
		}
		st.mu.RUnlock()
	}
	rec := Record{Key: c.Key, Rev: rev, CreateRev: rev, PrevRev: c.Expect, Deleted: c.Op == OpDelete, Deleting: c.Deleting,
		JSON: AppendRevision(nil, c.JSON, c.RevAt, rev)}
	if old, err := st.Get(c.Key); err == nil && c.Op == OpUpdate {
		rec.CreateRev = old.CreateRev
	}
	return rec, nil
}

// Replicate applies the changes of the log between the store's revision and upTo, in log order. All
// changes with the same revision must be passed in a single call. Calls must not overlap.
func (st *Store) Replicate(ctx context.Context, changes []Replicated, upTo int64) error {
	if len(changes) == 0 {
		st.advance(upTo)
		return nil
	}
	f := &feed{changes: changes, upTo: max(upTo, changes[len(changes)-1].Rev)}
	return st.submit(ctx, &pendingWrite{feed: f, answer: make(chan struct{}, 1)})
}

// advance publishes a revision without any changes. It is not written to the file, because the log
// reports it again after a restart.
func (st *Store) advance(rev int64) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if rev <= st.currentRev.Load() {
		return
	}
	st.log.newest = rev
	st.currentRev.Store(rev)
	st.revisionWaiters.release(rev)
}

// applyFeed writes the changes of a feed and skips changes that the file already contains.
func (s *stage) applyFeed(f *feed) error {
	before := s.rev
	f.members = make([]pendingWrite, 0, len(f.changes))
	begun := 0 // index of the revision's first change
	for i := range f.changes {
		c := &f.changes[i]
		if c.Rev != f.changes[begun].Rev {
			begun = i
		}
		if i-begun == revisionMax && f.kind == feedFollow {
			f.compact = c.Rev
		}
		if err := s.applyReplicated(f, c); err != nil {
			return err
		}
	}
	switch f.kind {
	case feedFill:
		s.rev = before
		return nil
	case feedFinish:
		f.compact = f.upTo
	}
	s.rev = max(s.rev, f.upTo)
	if f.compact == 0 {
		return nil
	}
	if err := s.guard.VetMeta(); err != nil {
		return err
	}
	return errors.Join(s.PutMetaInt("compact", f.compact), s.WriteTx.Remove(boltfile.InMeta, []byte("filling")))
}

func (s *stage) applyReplicated(f *feed, c *Replicated) (err error) {
	f.members = append(f.members, pendingWrite{Change: Change{Op: OpUpdate, Key: c.Key, Deleting: c.Deleting, JSON: c.JSON, RevAt: c.RevAt}})
	m := &f.members[len(f.members)-1]
	leaveOut := func() error {
		f.members = f.members[:len(f.members)-1]
		return nil
	}
	var ok bool
	if m.resource, m.namespace, ok = keyPrefixes(c.Key); !ok {
		return leaveOut()
	}
	if m.was, err = s.state(c.Key); err != nil {
		return err
	}
	if m.was.rev >= c.Rev || c.Deleted && !m.was.live() {
		return leaveOut()
	}
	m.rec = Record{Key: c.Key, Rev: c.Rev, CreateRev: c.CreateRev, PrevRev: m.was.rev, Deleted: c.Deleted, Deleting: c.Deleting, Stale: c.Stale}
	if f.kind == feedFollow {
		m.rec.Time = s.now
	}
	if c.CreateRev == c.Rev {
		m.Op = OpCreate
	}
	if m.was.live() {
		old, err := s.newest(m)
		if err != nil {
			return err
		}
		if m.replaced, err = s.sealing.copyOf(&old, c.Key); err != nil { // the old version is unknown, and the log cannot wait
			m.rec.Lost = true
		}
		if c.Deleted {
			m.Op, m.rec.CreateRev, m.rec.Deleting = OpDelete, old.CreateRev, false
			if m.JSON, m.RevAt = nil, -1; !m.rec.Lost {
				m.JSON, m.RevAt = s.last(m.replaced)
			}
		}
	}
	if m.rec.Author, err = s.author(c.Author, m.Op, c.Rev); err != nil {
		return err
	}
	place, err := s.freeKey(c.Rev, []byte(c.Key))
	if err != nil {
		return err
	}
	m.usesLongKey = len(place) > 8
	return s.write(m)
}

// publishFeed publishes the changes of a committed feed, but it does not update currentRev. The
// caller must hold mu.
func (st *Store) publishFeed(f *feed, wake []chan struct{}) []chan struct{} {
	if f.kind == feedFill {
		f.upTo = st.currentRev.Load()
		return wake
	}
	if f.compact > st.compactRev.Load() {
		st.compactRev.Store(f.compact)
	}
	if f.kind == feedFinish {
		return st.publishFill(f, wake)
	}
	for i := range f.members {
		m := &f.members[i]
		if ch := st.log.append(m.resource, Event{Record: m.rec, Prev: m.replaced}); ch != nil {
			wake = append(wake, ch)
		}
		st.recount(m)
		st.stat.Writes++
	}
	st.log.newest = f.upTo
	return wake
}

// ---- Filling

// StartFill begins to fill the replica from a snapshot of the log. Readers are not affected.
func (st *Store) StartFill(ctx context.Context) error {
	return st.maintain(ctx, func(l *boltfile.WriteTx) error { return l.PutMetaInt("filling", 1) })
}

// Filled reports whether the replica contains a complete state of the log. It returns false if the
// replica was never filled or if the last fill was interrupted.
func (st *Store) Filled() (filled bool, err error) {
	err = st.readSnapshot(func(s *snapshot) error {
		filled = s.revs.Sequence > 0 && boltfile.MetaInt(s.meta(), "filling") == 0
		return nil
	})
	return filled, err
}

// Fill applies a part of the snapshot. A key that is not in the snapshot must be passed as a
// deletion. NextFillKeys returns the existing keys.
func (st *Store) Fill(ctx context.Context, changes []Replicated) error {
	if len(changes) == 0 {
		return nil
	}
	return st.submit(ctx, &pendingWrite{feed: &feed{kind: feedFill, changes: changes}, answer: make(chan struct{}, 1)})
}

// NextFillKeys returns at most max live keys, beginning with from, including keys that have been
// filled. next is "" at the end.
func (st *Store) NextFillKeys(from string, max int) (keys []string, next string, err error) {
	err = st.readSnapshot(func(s *snapshot) (err error) {
		keys = keys[:0]
		next, err = s.each("", from, func(key []byte, state keyState) (bool, error) {
			if !state.live() {
				return true, nil
			}
			if len(keys) == max {
				return false, nil
			}
			keys = append(keys, string(key))
			return true, nil
		})
		return err
	})
	return keys, next, err
}

// FinishFill publishes the snapshot at revision rev. All earlier revisions count as compacted.
func (st *Store) FinishFill(ctx context.Context, rev int64) error {
	return st.submit(ctx, &pendingWrite{feed: &feed{kind: feedFinish, upTo: rev}, answer: make(chan struct{}, 1)})
}

// BeginAt makes the current state the beginning of the file's history. The next revision is above
// rev, and all earlier revisions count as compacted. rev must not be below the store's revision.
func (st *Store) BeginAt(ctx context.Context, rev int64) error { return st.FinishFill(ctx, rev) }

// publishFill resets the event log and the counts. The caller must hold mu.
func (st *Store) publishFill(f *feed, wake []chan struct{}) []chan struct{} {
	for _, t := range st.log.topics {
		if t.wake != nil {
			wake = append(wake, t.wake)
		}
	}
	st.log = newEventLog(f.upTo)
	st.tallies, st.total = map[string]*tally{}, tally{}
	if err := st.readSnapshot(st.countKeys); err != nil {
		st.File.Explain(err)
	}
	return wake
}

// ---- The file

const (
	replicaSuffix = ".replica"
	closedCleanly = "closed"
	distrusted    = "distrusted"
)

// Invalidate is called if the log has been replaced. The replica will be discarded when it is
// opened the next time.
func (st *Store) Invalidate() { st.distrusted.Store(true) }

// openReplica opens the file of a replica. If the file cannot be trusted, it is replaced by a new
// one.
func openReplica(path string, opts Options, open func(path string, opts Options) (*Store, error)) (*Store, error) {
	if opts.Ephemeral {
		return open(path, opts)
	}
	marked, err := boltfile.ReadSmall(path + replicaSuffix)
	ours := err == nil // a replica, which may be discarded
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	identity, run, _ := strings.Cut(strings.TrimSpace(string(marked)), "\n")
	boot := machineRun()
	var doubt string
	switch {
	case !ours:
	case identity != opts.Replica.Identity:
		doubt = "it is of another history"
	case run == distrusted:
		doubt = "its log is not what it was"
	case run != closedCleanly && (run != boot || boot == ""):
		doubt = "it was not closed before the machine was"
	}
	if doubt != "" {
		if err := discard(path, doubt, opts.Warn); err != nil {
			return nil, err
		}
	}
	note := func(run string) error {
		return atomicfile.SaveFile(path+replicaSuffix, []byte(opts.Replica.Identity+"\n"+run+"\n"))
	}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		// Write the note before creating the file. If a file has no note, it may not be a replica.
		if err := note(boot); err != nil {
			return nil, err
		}
	}
	st, err := open(path, opts)
	if errors.Is(err, ErrDamaged) && ours {
		if err = discard(path, err.Error(), opts.Warn); err == nil {
			st, err = open(path, opts)
		}
	}
	if err != nil {
		return nil, err
	}
	st.closed = func() error {
		if st.distrusted.Load() {
			return note(distrusted)
		}
		return note(closedCleanly)
	}
	if err := note(boot); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	return st, nil
}

// discard removes the file of a replica. It returns an error if the file is in use.
func discard(path, why string, warn func(string)) error {
	if err := boltfile.Regular(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	format := int64(0)
	err := boltfile.Peek(path, func(p *boltfile.Pages) error {
		if meta, ok := p.Bucket(boltfile.InMeta); ok {
			format = boltfile.MetaInt(meta, "format")
		}
		return nil
	})
	switch {
	case errors.Is(err, boltfile.ErrInUse):
		return err
	case isOwnFormat(format):
		return fmt.Errorf("%s contains objects that are not from an etcd cluster: choose another file for --etcd-servers", path)
	}
	if err = os.Remove(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && warn != nil {
		warn(path + " is thrown away and filled anew: " + why)
	}
	return err
}

// machineRun returns the boot ID of the machine, or "" if none exists.
func machineRun() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}

// syncReplica is the first step of closing a replica. All later commits are synced.
func (st *Store) syncReplica() error {
	if st.Opts.Ephemeral || st.File.Failed() {
		return nil
	}
	return st.File.SyncAlways()
}
