//go:build !noetcd

package etcd

// This file writes. One change is one Txn: nothing else of etcd's is needed, and as many are in flight as there are writers.
//
//	create   mod(key) = 0, and mod(namespace) = the revision at which the replica saw it, not going away    put
//	update   mod(key) = Change.Expect                                                                     put
//	delete   mod(key) = Change.Expect                                                                     delete
//
// What the Txn finds when its precondition does not hold is read in its other branch, so that the answer is right however far behind the
// replica is; and the replica is awaited before the answer, so that whoever tries again, and reads it, tries with what was in the way.
//
// A Txn of which nothing was heard may have been carried out or not. Nobody tries it again here; the client's library does where it knows
// that it never left.

import (
	"context"
	"fmt"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"apilet/internal/etcd/layout"
	"apilet/internal/store"
)

const (
	parentRounds = 16   // of a create whose namespace changes all the time
	parentsKnown = 1024 // namespaces
)

// propose carries a change out and returns its revision.
func (c *Cluster) propose(ctx context.Context, change store.Change) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	key, err := c.lay.EtcdKey(change.Key)
	if err != nil {
		return 0, err
	}
	op, own := clientv3.OpDelete(key), &ownWrite{author: change.Author, settled: make(chan struct{})}
	if change.Op != store.OpDelete {
		value, err := c.lay.Encode(change.Key, change.JSON)
		if err != nil {
			return 0, err
		}
		own.value, own.stored = value, layout.Stored{JSON: change.JSON, RevAt: change.RevAt, Deleting: change.Deleting}
		op = clientv3.OpPut(key, string(value))
	}
	c.own.add(key, own)
	carryOut := c.change
	if change.Op == store.OpCreate {
		carryOut = c.create
	}
	rev, err := carryOut(ctx, change, key, op, own)
	own.settle(0)                             // if nothing came of it
	if err != nil || rev <= c.st.Revision() { // its event has been here already
		c.own.remove(key, own)
	}
	return rev, err
}

// change carries an update or a delete out.
func (c *Cluster) change(ctx context.Context, change store.Change, key string, op clientv3.Op, own *ownWrite) (int64, error) {
	answer, err := c.commit(ctx, own, []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", change.Expect)}, op, clientv3.OpGet(key))
	if err != nil || answer.Succeeded {
		return revisionOf(answer), err
	}
	own.settle(0)
	if err := c.reach(ctx, answer.Header.Revision); err != nil {
		return 0, failed(err)
	}
	if found(answer, 0) == nil {
		return 0, store.ErrNotFound
	}
	return 0, store.ErrConflict
}

// create carries a create out. Its namespace may change while it lasts; only a namespace that goes is in its way.
func (c *Cluster) create(ctx context.Context, change store.Change, key string, op clientv3.Op, own *ownWrite) (int64, error) {
	free := clientv3.Compare(clientv3.ModRevision(key), "=", 0)
	if change.Parent == "" {
		answer, err := c.commit(ctx, own, []clientv3.Cmp{free}, op, clientv3.OpGet(key))
		if err != nil || answer.Succeeded {
			return revisionOf(answer), err
		}
		return 0, c.taken(ctx, change, answer, own)
	}
	parent, err := c.lay.EtcdKey(change.Parent)
	if err != nil {
		return 0, err
	}
	at, err := c.parentAt(ctx, change.Parent, parent)
	for round := 0; err == nil; round++ {
		held := clientv3.Compare(clientv3.ModRevision(parent), "=", at)
		answer, err := c.commit(ctx, own, []clientv3.Cmp{free, held}, op, clientv3.OpGet(key), clientv3.OpGet(parent))
		if err != nil || answer.Succeeded {
			return revisionOf(answer), err
		}
		if at, err = c.liveParent(ctx, change.Parent, found(answer, 1), answer.Header.Revision); err != nil {
			return 0, err
		}
		c.parents.put(change.Parent, at)
		if found(answer, 0) != nil {
			return 0, c.taken(ctx, change, answer, own)
		}
		if round == parentRounds {
			return 0, fmt.Errorf("%s changes all the time", change.Parent)
		}
	}
	return 0, err
}

// taken is the answer to a create of what is there already.
func (c *Cluster) taken(ctx context.Context, change store.Change, answer *clientv3.TxnResponse, own *ownWrite) error {
	own.settle(0)
	if err := c.reach(ctx, answer.Header.Revision); err != nil {
		return failed(err)
	}
	if c.deleting(change.Key, found(answer, 0)) {
		return store.ErrDeleting
	}
	return store.ErrExists
}

// parentAt is the mod revision of a namespace that stays, as far as is known here: if it is another one, the Txn says so. etcd is asked before
// a create is refused.
func (c *Cluster) parentAt(ctx context.Context, key, parent string) (int64, error) {
	if at, ok := c.parents.get(key); ok {
		return at, nil
	}
	if rec, err := c.st.Get(key); err == nil && !rec.Deleting {
		c.parents.put(key, rec.Rev)
		return rec.Rev, nil
	}
	answer, err := c.client.Get(ctx, parent)
	if err != nil {
		return 0, failed(err)
	}
	var kv *mvccpb.KeyValue
	if len(answer.Kvs) > 0 {
		kv = answer.Kvs[0]
	}
	return c.liveParent(ctx, key, kv, answer.Header.Revision)
}

// liveParent is the mod revision of a namespace as it was found at a revision.
func (c *Cluster) liveParent(ctx context.Context, key string, kv *mvccpb.KeyValue, at int64) (int64, error) {
	refusal := store.ErrParentMissing
	switch {
	case kv != nil && !c.deleting(key, kv):
		return kv.ModRevision, nil
	case kv != nil:
		refusal = store.ErrParentDeleting
	}
	if err := c.reach(ctx, at); err != nil {
		return 0, failed(err)
	}
	return 0, refusal
}

func (c *Cluster) deleting(key string, kv *mvccpb.KeyValue) bool {
	stored, err := c.lay.Decode(key, kv.Value)
	return err == nil && stored.Deleting
}

// commit is one Txn: op if the preconditions hold, the reads if not.
func (c *Cluster) commit(ctx context.Context, own *ownWrite, holds []clientv3.Cmp, op clientv3.Op, reads ...clientv3.Op) (*clientv3.TxnResponse, error) {
	answer, err := c.client.Txn(ctx).If(holds...).Then(op).Else(reads...).Commit()
	if err != nil {
		return nil, inDoubt{failed(err)}
	}
	if err := c.sameHistory(answer.Header, 0); err != nil {
		return nil, err
	}
	if answer.Succeeded {
		own.settle(answer.Header.Revision)
		c.expect(answer.Header.Revision)
	}
	return answer, nil
}

// inDoubt is the error of a Txn of which nobody knows what became of it.
type inDoubt struct{ error }

func (d inDoubt) Unwrap() []error { return []error{d.error, store.ErrInDoubt} }

func revisionOf(answer *clientv3.TxnResponse) int64 {
	if answer == nil {
		return 0
	}
	return answer.Header.Revision
}

// found is what a Txn's read has found; nil when nothing.
func found(answer *clientv3.TxnResponse, read int) *mvccpb.KeyValue {
	if kvs := answer.Responses[read].GetResponseRange().Kvs; len(kvs) > 0 {
		return kvs[0]
	}
	return nil
}

// knownParents are namespaces, each with a mod revision at which it was there and not going away. They may be old.
type knownParents struct {
	mu sync.Mutex // guards at
	at map[string]int64
}

func (k *knownParents) get(key string) (at int64, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	at, ok = k.at[key]
	return at, ok
}

func (k *knownParents) put(key string, at int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.at == nil || len(k.at) == parentsKnown {
		k.at = map[string]int64{}
	}
	k.at[key] = at
}
