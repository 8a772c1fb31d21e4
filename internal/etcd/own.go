//go:build !noetcd

package etcd

// This file is used to detect whether an event received from the watch was caused by a write of
// this server. If so, there is no need to decode the event, and the author of the write is known.
//
// The event usually arrives before the response to the Txn, which alone proves the origin. If the
// value is identical to that of a write in progress, the event is attributed to that write. Only
// another server that made the same change to the same version in the same second could have
// written the same value. This does not work for deletions, which have no value, because two
// servers may delete the same version at the same time. Therefore, the event of a deletion waits
// briefly for the response to the Txn.

import (
	"bytes"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"apilet/internal/etcd/layout"
	"apilet/internal/store"
)

const settleTimeout = time.Second // how long an event waits for the response to its Txn

// An pendingWrite is a pending write of this server.
type pendingWrite struct {
	value    []byte // nil for a deletion
	stored   layout.Document
	author   store.Author
	eventRev int64 // revision of the event attributed to this write; guarded by pendingWrites.mu

	once    sync.Once
	settled chan struct{} // closed when rev is set
	rev     int64         // 0 if the Txn failed or its outcome is unknown
}

// settle sets the revision of the change. Only the first call has an effect.
func (own *pendingWrite) settle(rev int64) {
	own.once.Do(func() {
		own.rev = rev
		close(own.settled)
	})
}

// committedAt reports whether the change was committed at the given revision. If there is no
// response to the Txn yet, known is false.
func (own *pendingWrite) committedAt(rev int64) (same, known bool) {
	select {
	case <-own.settled:
		return own.rev == rev, true
	default:
		return false, false
	}
}

// pendingWrites keeps track of the writes by this server that have not been added to the replica
// yet.
type pendingWrites struct {
	mu    sync.Mutex                 // guards byKey
	byKey map[string][]*pendingWrite // by key in etcd
}

func (o *pendingWrites) add(key string, own *pendingWrite) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byKey == nil {
		o.byKey = map[string][]*pendingWrite{}
	}
	o.byKey[key] = append(o.byKey[key], own)
}

func (o *pendingWrites) remove(key string, own *pendingWrite) {
	o.mu.Lock()
	defer o.mu.Unlock()
	left := slices.DeleteFunc(o.byKey[key], func(other *pendingWrite) bool { return other == own })
	if len(left) == 0 {
		delete(o.byKey, key)
		return
	}
	o.byKey[key] = left
}

// forget removes all writes. It is called after the replica has been filled, because their events
// will not be received.
func (o *pendingWrites) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.byKey)
}

// find returns the write that caused an event, or nil if another server did. The caller removes the
// write after the replica has stored the event. If the replica cannot store it, the event arrives
// again.
func (o *pendingWrites) find(kv *mvccpb.KeyValue, deleted bool) *pendingWrite {
	likely := o.candidates(kv, deleted)
	if len(likely) == 0 {
		return nil
	}
	own := likely[0]
	if len(likely) > 1 || deleted {
		own = o.awaitWriter(kv, likely)
	}
	if own != nil {
		o.mu.Lock()
		own.eventRev = kv.ModRevision
		o.mu.Unlock()
	}
	return own
}

// awaitWriter waits for the Txns of several candidates. A candidate that is still unsettled after
// the time limit is attributed to another server.
func (o *pendingWrites) awaitWriter(kv *mvccpb.KeyValue, likely []*pendingWrite) *pendingWrite {
	late := time.NewTimer(settleTimeout)
	defer late.Stop()
	for _, own := range likely {
		select {
		case <-own.settled:
		case <-late.C:
			late.Reset(0)
		}
		same, known := own.committedAt(kv.ModRevision)
		if same {
			return own
		}
		if !known {
			o.remove(string(kv.Key), own)
		}
	}
	return nil
}

// candidates returns the writes that may have caused an event, or only one if it is certain.
func (o *pendingWrites) candidates(kv *mvccpb.KeyValue, deleted bool) (found []*pendingWrite) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, own := range o.byKey[string(kv.Key)] {
		same, known := own.committedAt(kv.ModRevision)
		if same {
			return []*pendingWrite{own}
		}
		if !known && (own.eventRev == 0 || own.eventRev == kv.ModRevision) && (own.value == nil) == deleted && bytes.Equal(own.value, kv.Value) {
			found = append(found, own)
		}
	}
	return found
}
