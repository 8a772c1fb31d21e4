//go:build !noetcd

package etcd

// This file brings the log into the replica.
//
//	Start ──▶ follow ──▶ fill, unless the replica shows a state of the log ──▶ watch from its revision on ──┐
//	              ▲                                                                                        │
//	              └─────────── the watch ended; compacted: the replica has to be filled again ◀─────────────┘
//
// A snapshot is read in pages, all at one revision, by etcd's keys. What the replica has and the snapshot has not is deleted there: its keys
// are compared with etcd's, a page at a time, resource by resource, within which both have the same order. So memory is bounded by a page.

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"apilet/internal/encryption"
	"apilet/internal/etcd/layout"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

const (
	pageBytes     = 4 << 20 // of a snapshot's page, about
	pageKeysMin   = 16
	pageKeysMax   = 4000
	pageKeysFirst = 200
	pageWithin    = time.Minute

	resumeFirst = 10 * time.Millisecond // a stream that broke is opened again after, or twice the time before

	takenBytes   = 1 << 20 // in one transaction of the replica's, and the message that goes beyond it
	takenChanges = 1000

	unreadableTold = 10 // objects, in the log
)

// Start begins to follow, until Close, and returns when the replica shows what was newest when it was called.
func (c *Cluster) Start(ctx context.Context, st *store.Store) error {
	if c == nil {
		return nil
	}
	c.st = st
	c.started.Store(true)
	following, stop := context.WithCancel(context.Background())
	c.stop = stop
	waiting, giveUp := context.WithCancel(ctx)
	defer giveUp()
	c.running.Go(func() {
		c.follow(following)
		giveUp() // nobody brings the revision that is waited for
	})
	c.running.Go(func() { c.keepUp(following) })
	for {
		rev, err := c.newest.get(waiting)
		if err == nil {
			if err = c.reach(waiting, rev); err == nil {
				c.seen.note(rev, nil, rev)
				return nil
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		select {
		case err := <-c.lost:
			return err
		default:
		}
		c.log.Warn().Err(err).Msg("cannot catch up with etcd; trying again")
		rest(ctx, retryAfter)
	}
}

// follow keeps the replica up until ctx ends, or nothing helps.
func (c *Cluster) follow(ctx context.Context) {
	refill := false
	for ctx.Err() == nil {
		err := c.followOnce(ctx, refill)
		refill = errors.Is(err, rpctypes.ErrCompacted)
		switch {
		case ctx.Err() != nil:
			return
		case refill:
			c.log.Warn().Int64("revision", c.st.Revision()).Msg("etcd has compacted past the revision of the replica; filling it anew")
			continue
		case errors.Is(err, store.ErrDamaged):
			c.lose(fmt.Errorf("the replica is damaged: %w", err), true)
			return
		case errors.Is(err, errOtherHistory):
			return
		}
		why := err.Error()
		if before := c.trouble.Swap(&why); before == nil || *before != why {
			c.log.Warn().Err(err).Msg("following etcd is interrupted")
		}
		rest(ctx, retryAfter)
	}
}

func (c *Cluster) followOnce(ctx context.Context, refill bool) error {
	filled, err := c.st.Filled()
	if err == nil && (refill || !filled) {
		err = c.fill(ctx)
	}
	if err != nil {
		return err
	}
	return c.watch(ctx)
}

// watch takes over what happens below the prefix. It ends with an error; a stream that breaks is none.
func (c *Cluster) watch(ctx context.Context) error {
	for pause := resumeFirst; ; pause = min(2*pause, retryAfter) {
		begun, err := c.watchOnce(ctx)
		if ctx.Err() != nil || !mayResume(err) {
			return err
		}
		if begun {
			pause = resumeFirst
		}
		rest(ctx, pause)
	}
}

// watchOnce is watch as long as one stream lasts. begun: something came.
func (c *Cluster) watchOnce(ctx context.Context) (begun bool, err error) {
	w, err := c.openWatch(ctx, c.st.Revision()+1)
	if err != nil {
		return false, err
	}
	defer w.close()
	c.watching.Store(w)
	var t taken
	for first := range w.arrived {
		t.reset()
		err := c.take(&t, first)
		for more := true; more && err == nil && t.bytes < takenBytes && len(t.changes) < takenChanges; {
			select {
			case next, ok := <-w.arrived:
				if more = ok; ok {
					err = c.take(&t, next)
				}
			default:
				more = false
			}
		}
		if replicated := c.st.Replicate(ctx, t.changes, t.upTo); replicated != nil {
			return true, replicated
		}
		for _, told := range t.own {
			c.own.remove(told.key, told.own)
		}
		if err != nil {
			return true, err
		}
		if t.upTo > 0 && c.trouble.Swap(nil) != nil { // that the watch has begun does not show that the replica can take what it brings
			c.log.Info().Msg("following etcd again")
		}
	}
	return w.begun.Load(), w.err
}

// What is taken is what goes into the replica in one transaction: whole messages, as they came.
type taken struct {
	changes []store.Replicated
	upTo    int64 // of the last message: the revision that the replica shows then
	bytes   int
	own     []toldWrite // this server's among them
}

type toldWrite struct {
	key string // etcd's
	own *ownWrite
}

func (t *taken) reset() {
	clear(t.changes)
	clear(t.own)
	*t = taken{changes: t.changes[:0], own: t.own[:0]}
}

// take adds one message of the watch. Its header may be ahead of its events, unless it has none.
func (c *Cluster) take(t *taken, news *pb.WatchResponse) error {
	if err := refusal(news); err != nil {
		return err
	}
	if err := c.sameHistory(news.Header, 0); err != nil {
		return err
	}
	if isProgress(news) {
		t.upTo = max(t.upTo, news.Header.Revision)
	}
	for _, event := range news.Events {
		t.upTo = event.Kv.ModRevision
		t.bytes += len(event.Kv.Key) + len(event.Kv.Value)
		key, ok := c.lay.StoreKey(string(event.Kv.Key))
		switch {
		case !ok:
			c.noteMaster(event)
		case event.Type == mvccpb.Event_DELETE:
			gone := store.Replicated{Key: key, Rev: event.Kv.ModRevision, Deleted: true}
			if own := c.own.find(event.Kv, true); own != nil {
				gone.Author = own.author
				t.own = append(t.own, toldWrite{string(event.Kv.Key), own})
			}
			t.changes = append(t.changes, gone)
		default:
			change, own, err := c.replicated(key, event.Kv)
			if err != nil {
				return err
			}
			t.changes = append(t.changes, change)
			if own != nil {
				t.own = append(t.own, toldWrite{string(event.Kv.Key), own})
			}
		}
	}
	return nil
}

// replicated is an object as etcd has it, and the write of this server's that made it so, nil if it was another's. An object that cannot be read
// has a stand-in, which says so wherever it is read.
// That whoever has its key does not answer now is an error.
func (c *Cluster) replicated(key string, kv *mvccpb.KeyValue) (store.Replicated, *ownWrite, error) {
	change := store.Replicated{Key: key, Rev: kv.ModRevision, CreateRev: kv.CreateRevision}
	own := c.own.find(kv, false)
	var stored layout.Stored
	if own != nil {
		stored, change.Author = own.stored, own.author
	} else {
		var err error
		if stored, err = c.decode(key, kv); err != nil {
			return change, nil, err
		}
	}
	change.Deleting, change.JSON, change.RevAt, change.Stale = stored.Deleting, stored.JSON, stored.RevAt, stored.Stale
	return change, own, nil
}

func (c *Cluster) decode(key string, kv *mvccpb.KeyValue) (layout.Stored, error) {
	stored, err := c.lay.Decode(key, kv.Value)
	if encryption.IsAway(err) {
		return stored, err
	}
	if err != nil {
		switch n := c.unreadable.Add(1); {
		case n < unreadableTold:
			c.log.Error().Err(err).Str("key", string(kv.Key)).Msg("an object in etcd cannot be read")
		case n == unreadableTold:
			c.log.Error().Msg("more objects in etcd cannot be read: /readyz says how many, a GET why")
		}
	}
	return stored, nil
}

// ---- Filling

// fill brings the state of the log into the replica, as of one revision.
func (c *Cluster) fill(ctx context.Context) error {
	begun, kept := time.Now(), 0
	if err := c.st.StartFill(ctx); err != nil {
		return err
	}
	at, objects := int64(0), 0
	from, end, limit := c.lay.Prefix(), clientv3.GetPrefixRangeEnd(c.lay.Prefix()), int64(pageKeysFirst)
	for more := true; more; {
		page, err := c.get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(limit), clientv3.WithRev(at))
		if err != nil {
			return err
		}
		if at == 0 {
			if at = page.Header.Revision; at < c.st.Revision() {
				return c.sameHistory(page.Header, c.st.Revision())
			}
		}
		changes, bytes, err := c.pageChanges(page.Kvs)
		if err != nil {
			return err
		}
		if err := c.st.Fill(ctx, changes); err != nil {
			return err
		}
		if objects += len(changes); len(page.Kvs) > 0 {
			from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
			limit = min(max(int64(pageBytes/(bytes/len(page.Kvs)+1)), pageKeysMin), pageKeysMax)
		}
		more = page.More
	}
	kept, err := c.removeOthers(ctx, at)
	if err != nil {
		return err
	}
	if err := c.st.FinishFill(ctx, at); err != nil {
		return err
	}
	c.own.forget()
	c.log.Info().Int("objects", objects).Int("checked", kept).Int64("revision", at).Stringer("took", time.Since(begun).Round(time.Millisecond)).Msg("the replica is filled")
	return nil
}

func (c *Cluster) pageChanges(kvs []*mvccpb.KeyValue) (changes []store.Replicated, bytes int, err error) {
	changes = make([]store.Replicated, 0, len(kvs))
	for _, kv := range kvs {
		bytes += len(kv.Key) + len(kv.Value)
		if key, ok := c.lay.StoreKey(string(kv.Key)); ok {
			change, _, err := c.replicated(key, kv)
			if err != nil {
				return nil, 0, err
			}
			changes = append(changes, change)
		}
	}
	return changes, bytes, nil
}

func (c *Cluster) get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, pageWithin)
	defer cancel()
	answer, err := c.client.Get(ctx, key, opts...)
	if err != nil {
		return nil, err
	}
	return answer, c.sameHistory(answer.Header, 0)
}

// removeOthers deletes from the replica what etcd does not have at a revision. It returns how many keys it has compared.
func (c *Cluster) removeOthers(ctx context.Context, at int64) (compared int, err error) {
	for from := ""; ; {
		keys, next, err := c.st.NextFillKeys(from, pageKeysMax)
		if err != nil {
			return compared, err
		}
		for len(keys) > 0 {
			n, err := c.removeOthersOf(ctx, at, keys)
			if err != nil {
				return compared, err
			}
			compared, keys = compared+n, keys[n:]
		}
		if from = next; next == "" {
			return compared, nil
		}
	}
}

// removeOthersOf looks at the first keys, those of one resource, and returns how many they are.
func (c *Cluster) removeOthersOf(ctx context.Context, at int64, keys []string) (n int, err error) {
	base, _, _, _ := scheme.SplitKey(keys[0])
	there, first, last := map[string]bool{}, "", ""
	for ; n < len(keys); n++ {
		if of, _, _, _ := scheme.SplitKey(keys[n]); of != base {
			break
		}
		if last, err = c.lay.EtcdKey(keys[n]); err != nil {
			return 0, err
		}
		if first == "" {
			first = last
		}
	}
	for more := true; more; {
		page, err := c.get(ctx, first, clientv3.WithRange(last+"\x00"), clientv3.WithKeysOnly(), clientv3.WithRev(at), clientv3.WithLimit(pageKeysMax))
		if err != nil {
			return 0, err
		}
		for _, kv := range page.Kvs {
			if key, ok := c.lay.StoreKey(string(kv.Key)); ok {
				there[key] = true
			}
			first = string(kv.Key) + "\x00"
		}
		more = page.More
	}
	var gone []store.Replicated
	for _, key := range keys[:n] {
		if !there[key] {
			gone = append(gone, store.Replicated{Key: key, Rev: at, Deleted: true})
		}
	}
	return n, c.st.Fill(ctx, gone)
}
