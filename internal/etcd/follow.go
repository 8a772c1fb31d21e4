//go:build !noetcd

package etcd

// This file copies the log into the replica.
//
//	Start ──▶ follow ──▶ fill, unless the replica holds a state of the log ──▶ watch from its revision on ──┐
//	              ▲                                                                                         │
//	              └─────────── the watch ended; if compacted, the replica must be filled again ◀────────────┘
//
// Snapshots are read page by page in the order of etcd's keys, with all pages at the same revision.
// Objects that are not in the snapshot are deleted from the replica. To find them, the keys in the
// replica are compared with the keys in etcd for each resource, one page at a time. This is
// possible because the keys within a resource have the same order in both. Therefore memory is
// bounded by the size of a page.

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
	pageBytes     = 4 << 20 // approximate size of a page of a snapshot
	pageKeysMin   = 16
	pageKeysMax   = 4000
	pageKeysFirst = 200
	pageWithin    = time.Minute

	// initial delay before reopening a broken stream, doubled after each failure
	resumeFirst = 10 * time.Millisecond

	takenBytes   = 1 << 20 // maximum size of one transaction of the replica, not counting the last message
	takenChanges = 1000

	maxUnreadableLogged = 10 // maximum number of unreadable objects in the log
)

// Start begins to follow the cluster, until Close. It returns when the replica has reached the
// revision that was the newest when Start was called.
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
		giveUp() // follow has ended, so the awaited revision will not arrive
	})
	c.running.Go(func() { c.requestProgress(following) })
	for {
		rev, err := c.newest.get(waiting)
		if err == nil {
			if err = c.reach(waiting, rev); err == nil {
				c.health.note(rev, nil, rev)
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
		c.log.Warn().Err(err).Msg("cannot catch up with etcd; retrying")
		sleep(ctx, retryAfter)
	}
}

// follow keeps the replica up to date until ctx is done or there is an error that can only be
// resolved by restarting the server.
func (c *Cluster) follow(ctx context.Context) {
	refill := false
	for ctx.Err() == nil {
		err := c.followOnce(ctx, refill)
		refill = errors.Is(err, rpctypes.ErrCompacted)
		switch {
		case ctx.Err() != nil:
			return
		case refill:
			c.log.Warn().Int64("revision", c.st.Revision()).Msg("etcd has compacted past the revision of the replica; copying all objects again")
			continue
		case errors.Is(err, store.ErrDamaged):
			c.reportLost(fmt.Errorf("the replica is damaged: %w", err), true)
			return
		case errors.Is(err, errOtherHistory):
			return
		}
		why := err.Error()
		if before := c.watchError.Swap(&why); before == nil || *before != why {
			c.log.Warn().Err(err).Msg("the watch of etcd is interrupted")
		}
		sleep(ctx, retryAfter)
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

// watch copies all changes below the prefix to the replica until an error occurs. It reopens a
// broken stream.
func (c *Cluster) watch(ctx context.Context) error {
	for pause := resumeFirst; ; pause = min(2*pause, retryAfter) {
		begun, err := c.watchOnce(ctx)
		if ctx.Err() != nil || !mayResume(err) {
			return err
		}
		if begun {
			pause = resumeFirst
		}
		sleep(ctx, pause)
	}
}

// watchOnce runs watch for one stream. begun reports whether a message arrived.
func (c *Cluster) watchOnce(ctx context.Context) (received bool, err error) {
	w, err := c.openWatch(ctx, c.st.Revision()+1)
	if err != nil {
		return false, err
	}
	defer w.close()
	c.watching.Store(w)
	var t batch
	for first := range w.arrived {
		t.reset()
		err := c.addMessage(&t, first)
		for more := true; more && err == nil && t.bytes < takenBytes && len(t.changes) < takenChanges; {
			select {
			case next, ok := <-w.arrived:
				if more = ok; ok {
					err = c.addMessage(&t, next)
				}
			default:
				more = false
			}
		}
		if replicated := c.st.Replicate(ctx, t.changes, t.upTo); replicated != nil {
			return true, replicated
		}
		for _, logged := range t.own {
			c.pending.remove(logged.key, logged.own)
		}
		if err != nil {
			return true, err
		}
		// an open watch does not prove that the replica can store its events
		if t.upTo > 0 && c.watchError.Swap(nil) != nil {
			c.log.Info().Msg("the watch of etcd has resumed")
		}
	}
	return w.received.Load(), w.err
}

// A taken contains the changes from one or more messages that are written to the replica in a
// single transaction.
type batch struct {
	changes []store.Replicated
	upTo    int64 // revision of the replica after the transaction
	bytes   int
	own     []receivedWrite // our own writes in changes
}

// A receivedWrite is a write by this server for which the event has been received.
type receivedWrite struct {
	key string // key in etcd
	own *pendingWrite
}

func (t *batch) reset() {
	clear(t.changes)
	clear(t.own)
	*t = batch{changes: t.changes[:0], own: t.own[:0]}
}

// addMessage adds one message of the watch. The revision in the header is only used if the message
// has no events, because otherwise it may be higher than theirs.
func (c *Cluster) addMessage(t *batch, news *pb.WatchResponse) error {
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
			if own := c.pending.find(event.Kv, true); own != nil {
				gone.Author = own.author
				t.own = append(t.own, receivedWrite{string(event.Kv.Key), own})
			}
			t.changes = append(t.changes, gone)
		default:
			change, own, err := c.replicated(key, event.Kv)
			if err != nil {
				return err
			}
			t.changes = append(t.changes, change)
			if own != nil {
				t.own = append(t.own, receivedWrite{string(event.Kv.Key), own})
			}
		}
	}
	return nil
}

// replicated converts a key and value from etcd into a change of the replica. If the value was
// written by this server, it also returns the corresponding pendingWrite. If an object cannot be
// decoded, it is replaced with a stand-in that causes an error for every reader. If the provider of
// the encryption key is unavailable, replicated returns an error.
func (c *Cluster) replicated(key string, kv *mvccpb.KeyValue) (store.Replicated, *pendingWrite, error) {
	change := store.Replicated{Key: key, Rev: kv.ModRevision, CreateRev: kv.CreateRevision}
	own := c.pending.find(kv, false)
	var stored layout.Document
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

func (c *Cluster) decode(key string, kv *mvccpb.KeyValue) (layout.Document, error) {
	stored, err := c.lay.Decode(key, kv.Value)
	if encryption.IsUnavailable(err) {
		return stored, err
	}
	if err != nil {
		switch n := c.unreadable.Add(1); {
		case n < maxUnreadableLogged:
			c.log.Error().Err(err).Str("key", string(kv.Key)).Msg("an object in etcd cannot be read")
		case n == maxUnreadableLogged:
			c.log.Error().Msg("more objects in etcd cannot be read: /readyz shows their number, a GET the reason")
		}
	}
	return stored, nil
}

// ---- Filling

// fill replaces the contents of the replica with a snapshot of etcd.
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
	c.pending.forget()
	c.log.Info().Int("objects", objects).Int("checked", kept).Int64("revision", at).Stringer("took", time.Since(begun).Round(time.Millisecond)).Msg("the replica of etcd is complete")
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

// removeOthers deletes the objects from the replica that etcd does not have at a revision. It
// returns the number of keys in the replica that were compared.
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

// removeOthersOf is called by removeOthers for the leading keys that belong to the same resource.
// It returns the number of those keys.
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
