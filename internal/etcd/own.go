//go:build !noetcd

package etcd

// This file knows an event of the watch again as a write of this server's own: it need not be decoded then, and who wrote it is known.
//
// The watch mostly tells it before the Txn's answer is there, which alone says whose it is. A value with the bytes of one that is on its way
// is taken for that. Nobody but another server that has made the same change of the same version in the same second could have written
// it. A deletion has no value, and two servers may well delete the same version at once: so its Txn is waited for, a moment.

import (
	"bytes"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"apilet/internal/etcd/layout"
	"apilet/internal/store"
)

const settledWithin = time.Second // a Txn, once its event is there

// An ownWrite is a change whose Txn is on its way.
type ownWrite struct {
	value  []byte // nil: a deletion
	stored layout.Stored
	author store.Author
	told   int64 // the revision of the event that tells it; guarded by ownWrites.mu

	once    sync.Once
	settled chan struct{} // closed when rev is there
	rev     int64         // 0: nothing came of it, or nobody knows
}

// settle says under which revision the change is in the log. The first word counts.
func (own *ownWrite) settle(rev int64) {
	own.once.Do(func() {
		own.rev = rev
		close(own.settled)
	})
}

// at tells whether the change is that of a revision; known is false while its Txn has no answer.
func (own *ownWrite) at(rev int64) (same, known bool) {
	select {
	case <-own.settled:
		return own.rev == rev, true
	default:
		return false, false
	}
}

// ownWrites are those that the replica does not have yet.
type ownWrites struct {
	mu    sync.Mutex             // guards byKey
	byKey map[string][]*ownWrite // by etcd's keys
}

func (o *ownWrites) add(key string, own *ownWrite) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byKey == nil {
		o.byKey = map[string][]*ownWrite{}
	}
	o.byKey[key] = append(o.byKey[key], own)
}

func (o *ownWrites) remove(key string, own *ownWrite) {
	o.mu.Lock()
	defer o.mu.Unlock()
	left := slices.DeleteFunc(o.byKey[key], func(other *ownWrite) bool { return other == own })
	if len(left) == 0 {
		delete(o.byKey, key)
		return
	}
	o.byKey[key] = left
}

// forget is for when events are left out.
func (o *ownWrites) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.byKey)
}

// find returns the write that an event tells; nil: it was another server's. The replica may not be able to take the event over, and hear it again:
// so the write is removed by who has seen to that.
func (o *ownWrites) find(kv *mvccpb.KeyValue, deleted bool) *ownWrite {
	likely := o.likely(kv, deleted)
	if len(likely) == 0 {
		return nil
	}
	own := likely[0]
	if len(likely) > 1 || deleted {
		own = o.whose(kv, likely)
	}
	if own != nil {
		o.mu.Lock()
		own.told = kv.ModRevision
		o.mu.Unlock()
	}
	return own
}

// whose waits for the Txns of writes that an event may tell. What has not been settled then counts as another's.
func (o *ownWrites) whose(kv *mvccpb.KeyValue, likely []*ownWrite) *ownWrite {
	late := time.NewTimer(settledWithin)
	defer late.Stop()
	for _, own := range likely {
		select {
		case <-own.settled:
		case <-late.C:
			late.Reset(0)
		}
		same, known := own.at(kv.ModRevision)
		if same {
			return own
		}
		if !known {
			o.remove(string(kv.Key), own)
		}
	}
	return nil
}

// likely are those that an event may tell, or the one that it does tell.
func (o *ownWrites) likely(kv *mvccpb.KeyValue, deleted bool) (found []*ownWrite) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, own := range o.byKey[string(kv.Key)] {
		same, known := own.at(kv.ModRevision)
		if same {
			return []*ownWrite{own}
		}
		if !known && (own.told == 0 || own.told == kv.ModRevision) && (own.value == nil) == deleted && bytes.Equal(own.value, kv.Value) {
			found = append(found, own)
		}
	}
	return found
}
