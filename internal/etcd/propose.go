//go:build !noetcd

package etcd

// This file writes. One change is one Txn: nothing else of etcd's is needed, and as many are in flight as there are writers.
//
//	create   mod(key) = 0, and mod(namespace) = the revision at which the replica saw it, not going away;   put
//	         of a custom resource also mod(definition)
//	update   mod(key) = Change.Expect                                                                     put
//	delete   mod(key) = Change.Expect                                                                     delete
//
// What a change takes along (Change.With) are more preconditions and puts of the same Txn: updates of other keys. If only one of those is in the way,
// whoever asked for them is asked again, as long as patience lasts.
//
// What the Txn finds when its precondition does not hold is read in its other branch, so that the answer is right however far behind the
// replica is; and the replica is awaited before the answer, so that whoever tries again, and reads it, tries with what was in the way.
//
// A Txn of which nothing was heard may have been carried out or not. Nobody tries it again here; the client's library does where it knows
// that it never left.

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"apilet/internal/etcd/layout"
	"apilet/internal/store"
)

const dependencyRounds = 16 // of a create whose namespace, or definition, changes all the time

// A proposal is a change on its way, and what goes with it.
type proposal struct {
	store.Change
	key  string // etcd's
	op   clientv3.Op
	own  *ownWrite
	with []*proposal // updates, in the same Txn
}

// errAlone says that a change could have been carried out, but not what goes with it.
var errAlone = errors.New("what goes with the change has changed")

// propose carries a change out and returns its revision. While only what goes with it is in its way it is tried again.
func (c *Cluster) propose(ctx context.Context, change store.Change) (rev int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
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
		c.own.add(p.key, p.own)
	}
	if change.Op == store.OpCreate {
		rev, err = c.create(ctx, p)
	} else {
		rev, err = c.change(ctx, p)
	}
	p.settle(0)                               // if nothing came of it
	if err != nil || rev <= c.st.Revision() { // its event has been here already
		for _, p := range all {
			c.own.remove(p.key, p.own)
		}
	}
	return rev, err
}

func (c *Cluster) prepare(change store.Change) (*proposal, error) {
	key, err := c.lay.EtcdKey(change.Key)
	if err != nil {
		return nil, err
	}
	p := &proposal{Change: change, key: key, op: clientv3.OpDelete(key), own: &ownWrite{author: change.Author, settled: make(chan struct{})}}
	if change.Op != store.OpDelete {
		value, err := c.lay.Encode(change.Key, change.JSON)
		if err != nil {
			return nil, err
		}
		p.own.value, p.own.stored = value, layout.Stored{JSON: change.JSON, RevAt: change.RevAt, Deleting: change.Deleting}
		p.op = clientv3.OpPut(key, string(value))
	}
	return p, nil
}

// settle says under which revision the proposal is in the log; 0: it is not.
func (p *proposal) settle(rev int64) {
	p.own.settle(rev)
	for _, other := range p.with {
		other.own.settle(rev)
	}
}

// change carries an update or a delete out.
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

// create carries a create out. What it depends on may change while it lasts; only what goes is in its way.
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
			c.needed.put(d.key, at)
			moved, d.at = moved || at != d.at, at
		}
		if found(answer, 0) != nil || !moved {
			return 0, c.taken(ctx, p, answer)
		}
		if round == dependencyRounds {
			return 0, fmt.Errorf("%s changes all the time", needed[len(needed)-1].key)
		}
	}
	return 0, err
}

// A dependency is an object that has to be there, and to stay, when another one is created: its namespace, the definition of its type.
type dependency struct {
	key, etcdKey string
	at           int64 // its mod revision
	isParent     bool
}

// dependenciesOf finds what a create depends on.
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

// taken is the answer to a create of what is there already, or that could not take along what goes with it.
func (c *Cluster) taken(ctx context.Context, p *proposal, answer *clientv3.TxnResponse) error {
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

// dependencyAt is the mod revision of what a create depends on, as far as is known here: if it is another one, the Txn says so. etcd is asked
// before a create is refused.
func (c *Cluster) dependencyAt(ctx context.Context, d *dependency) (int64, error) {
	if at, ok := c.needed.get(d.key); ok {
		return at, nil
	}
	if rec, err := c.st.Get(d.key); err == nil && !rec.Deleting {
		c.needed.put(d.key, rec.Rev)
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

// liveDependency is the mod revision of what a create depends on, as it was found at a revision.
func (c *Cluster) liveDependency(ctx context.Context, d *dependency, kv *mvccpb.KeyValue, at int64) (int64, error) {
	if kv != nil && !c.deleting(d.key, kv) {
		return kv.ModRevision, nil
	}
	if err := c.reach(ctx, at); err != nil {
		return 0, failed(err)
	}
	switch {
	case !d.isParent:
		return 0, store.ErrTypeEnding
	case kv == nil:
		return 0, store.ErrParentMissing
	}
	return 0, store.ErrParentDeleting
}

func (c *Cluster) deleting(key string, kv *mvccpb.KeyValue) bool {
	stored, err := c.lay.Decode(key, kv.Value)
	return err == nil && stored.Deleting
}

// commit is one Txn: the proposal's change and what goes with it if the preconditions of all hold, the reads if not.
func (c *Cluster) commit(ctx context.Context, p *proposal, holds []clientv3.Cmp, reads ...clientv3.Op) (*clientv3.TxnResponse, error) {
	ops := []clientv3.Op{p.op} // the change first: whoever reads the events of the revision hears of it first
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
