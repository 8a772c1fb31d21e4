//go:build !noetcd

package etcd

// This file writes changes. One change is one Txn. It uses no other operation of etcd, and any
// number of writers can have a Txn in flight.
//
//	create   mod(key) = 0, and mod(namespace) = the revision at which the replica saw it, not being deleted;   put
//	         for a custom resource also mod(definition)
//	update   mod(key) = Change.Expect                                                                     put
//	delete   mod(key) = Change.Expect                                                                     delete
//
// The additional updates of a change (Change.With) are included in the same Txn as additional
// preconditions and puts for other keys. If one of the additional preconditions is the only one
// that fails, Change.With is called again and the Txn is retried until it times out.
//
// If a precondition fails, the Txn reads the current values in its other branch, so the result is
// correct even if the replica is behind. Before the error is returned, the replica catches up. This
// ensures that a client that reads the object again will see the change that caused the conflict.
//
// If a Txn gets no response, its outcome is unknown. It is not repeated here. The etcd client
// repeats a request only if it knows that it was never sent.

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"apilet/internal/etcd/layout"
	"apilet/internal/store"
)

// maximum number of retries if the namespace or definition keeps changing
const dependencyRounds = 16

// A proposal is a pending change including its additional updates.
type proposal struct {
	store.Change
	key  string // key in etcd
	op   clientv3.Op
	own  *pendingWrite
	with []*proposal // additional updates in the same Txn
}

// errAlone reports that only the preconditions of the additional updates failed.
var errAlone = errors.New("what goes with the change has changed")

// propose writes the given change to etcd and returns the new revision. It tries again if only an
// additional update was in conflict.
func (c *Cluster) propose(ctx context.Context, change store.Change) (rev int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	for {
		if rev, err = c.proposeOnce(ctx, change); err != errAlone {
			return rev, err
		}
	}
}

func (c *Cluster) proposeOnce(ctx context.Context, change store.Change) (rev int64, err error) {
	p, err := c.prepare(change)
	if err != nil {
		return 0, err
	}
	if change.With != nil {
		with, err := change.With(ctx)
		if err != nil {
			return 0, err
		}
		for _, other := range with {
			other.Author = change.Author
			prepared, err := c.prepare(other)
			if err != nil {
				return 0, err
			}
			p.with = append(p.with, prepared)
		}
	}
	all := append([]*proposal{p}, p.with...)
	for _, p := range all {
		c.pending.add(p.key, p.own)
	}
	if change.Op == store.OpCreate {
		rev, err = c.create(ctx, p)
	} else {
		rev, err = c.change(ctx, p)
	}
	p.settle(0)                               // if the Txn failed
	if err != nil || rev <= c.st.Revision() { // the event has already arrived
		for _, p := range all {
			c.pending.remove(p.key, p.own)
		}
	}
	return rev, err
}

func (c *Cluster) prepare(change store.Change) (*proposal, error) {
	key, err := c.lay.EtcdKey(change.Key)
	if err != nil {
		return nil, err
	}
	p := &proposal{Change: change, key: key, op: clientv3.OpDelete(key), own: &pendingWrite{author: change.Author, settled: make(chan struct{})}}
	if change.Op != store.OpDelete {
		value, err := c.lay.Encode(change.Key, change.JSON)
		if err != nil {
			return nil, err
		}
		p.own.value, p.own.stored = value, layout.Document{JSON: change.JSON, RevAt: change.RevAt, Deleting: change.Deleting}
		p.op = clientv3.OpPut(key, string(value))
	}
	return p, nil
}

// settle records the revision at which the proposal was committed, or 0 if it was not.
func (p *proposal) settle(rev int64) {
	p.own.settle(rev)
	for _, other := range p.with {
		other.own.settle(rev)
	}
}

// change executes an update or a delete.
func (c *Cluster) change(ctx context.Context, p *proposal) (int64, error) {
	answer, err := c.commit(ctx, p, []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(p.key), "=", p.Expect)}, clientv3.OpGet(p.key))
	if err != nil || answer.Succeeded {
		return revisionOf(answer), err
	}
	p.settle(0)
	if err := c.reach(ctx, answer.Header.Revision); err != nil {
		return 0, failed(err)
	}
	switch kv := found(answer, 0); {
	case kv == nil:
		return 0, store.ErrNotFound
	case kv.ModRevision == p.Expect:
		return 0, errAlone
	}
	return 0, store.ErrConflict
}

// create executes a create. It is retried if a dependency has been modified in the meantime, but
// fails if the dependency is being deleted.
func (c *Cluster) create(ctx context.Context, p *proposal) (int64, error) {
	needed, err := c.dependenciesOf(ctx, p)
	for round := 0; err == nil; round++ {
		holds := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(p.key), "=", 0)}
		reads := []clientv3.Op{clientv3.OpGet(p.key)}
		for _, d := range needed {
			holds, reads = append(holds, clientv3.Compare(clientv3.ModRevision(d.etcdKey), "=", d.at)), append(reads, clientv3.OpGet(d.etcdKey))
		}
		answer, err := c.commit(ctx, p, holds, reads...)
		if err != nil || answer.Succeeded {
			return revisionOf(answer), err
		}
		moved := false
		for i, d := range needed {
			at, err := c.liveDependency(ctx, d, found(answer, 1+i), answer.Header.Revision)
			if err != nil {
				return 0, err
			}
			c.dependencies.put(d.key, at)
			moved, d.at = moved || at != d.at, at
		}
		if found(answer, 0) != nil || !moved {
			return 0, c.createConflict(ctx, p, answer)
		}
		if round == dependencyRounds {
			return 0, fmt.Errorf("%s changes all the time", needed[len(needed)-1].key)
		}
	}
	return 0, err
}

// A dependency is the namespace or the definition of an object to be created. It must exist and
// must not be deleted at the same time.
type dependency struct {
	key, etcdKey string
	at           int64 // mod revision of the object
	isParent     bool
}

// dependenciesOf returns the dependencies of a create.
func (c *Cluster) dependenciesOf(ctx context.Context, p *proposal) (all []*dependency, err error) {
	for _, d := range [...]*dependency{{key: p.Parent, isParent: true}, {key: p.Type}} {
		if d.key == "" {
			continue
		}
		if d.etcdKey, err = c.lay.EtcdKey(d.key); err != nil {
			return nil, err
		}
		if d.at, err = c.dependencyAt(ctx, d); err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

// createConflict returns the error for a create if the object already exists, or if there was a
// conflict with an additional update.
func (c *Cluster) createConflict(ctx context.Context, p *proposal, answer *clientv3.TxnResponse) error {
	p.settle(0)
	if err := c.reach(ctx, answer.Header.Revision); err != nil {
		return failed(err)
	}
	switch kv := found(answer, 0); {
	case kv == nil:
		return errAlone
	case c.deleting(p.Key, kv):
		return store.ErrDeleting
	}
	return store.ErrExists
}

// dependencyAt returns the mod revision of a dependency as known locally. If it is outdated, the
// Txn fails and returns the current one. It reads from etcd before it reports a missing dependency.
func (c *Cluster) dependencyAt(ctx context.Context, d *dependency) (int64, error) {
	if at, ok := c.dependencies.get(d.key); ok {
		return at, nil
	}
	if rec, err := c.st.Get(d.key); err == nil && !rec.Deleting {
		c.dependencies.put(d.key, rec.Rev)
		return rec.Rev, nil
	}
	answer, err := c.client.Get(ctx, d.etcdKey)
	if err != nil {
		return 0, failed(err)
	}
	var kv *mvccpb.KeyValue
	if len(answer.Kvs) > 0 {
		kv = answer.Kvs[0]
	}
	return c.liveDependency(ctx, d, kv, answer.Header.Revision)
}

// liveDependency returns the mod revision of a dependency that has been read from etcd. It returns
// an error if the dependency does not exist or is being deleted.
func (c *Cluster) liveDependency(ctx context.Context, d *dependency, kv *mvccpb.KeyValue, at int64) (int64, error) {
	if kv != nil && !c.deleting(d.key, kv) {
		return kv.ModRevision, nil
	}
	if err := c.reach(ctx, at); err != nil {
		return 0, failed(err)
	}
	switch {
	case !d.isParent:
		return 0, store.ErrTypeDeleting
	case kv == nil:
		return 0, store.ErrParentMissing
	}
	return 0, store.ErrParentDeleting
}

func (c *Cluster) deleting(key string, kv *mvccpb.KeyValue) bool {
	stored, err := c.lay.Decode(key, kv.Value)
	return err == nil && stored.Deleting
}

// commit executes a Txn that writes the change and its additional updates if all preconditions are
// met. Otherwise it performs the given reads.
func (c *Cluster) commit(ctx context.Context, p *proposal, holds []clientv3.Cmp, reads ...clientv3.Op) (*clientv3.TxnResponse, error) {
	// the change comes first, because readers of the revision receive its events in this order
	ops := []clientv3.Op{p.op}
	for _, other := range p.with {
		holds = append(holds, clientv3.Compare(clientv3.ModRevision(other.key), "=", other.Expect))
		ops = append(ops, other.op)
	}
	answer, err := c.client.Txn(ctx).If(holds...).Then(ops...).Else(reads...).Commit()
	c.noteSpace(p.Op, err)
	if err != nil {
		return nil, inDoubt{failed(err)}
	}
	if err := c.sameHistory(answer.Header, 0); err != nil {
		return nil, err
	}
	if answer.Succeeded {
		p.settle(answer.Header.Revision)
		c.noteWritten(answer.Header.Revision)
	}
	return answer, nil
}

// inDoubt is returned if it is unknown whether a Txn was executed.
type inDoubt struct{ error }

func (d inDoubt) Unwrap() []error { return []error{d.error, store.ErrInDoubt} }

func revisionOf(answer *clientv3.TxnResponse) int64 {
	if answer == nil {
		return 0
	}
	return answer.Header.Revision
}

// found returns the result of one of the Txn's reads, or nil if the key does not exist.
func found(answer *clientv3.TxnResponse, read int) *mvccpb.KeyValue {
	if kvs := answer.Responses[read].GetResponseRange().Kvs; len(kvs) > 0 {
		return kvs[0]
	}
	return nil
}
