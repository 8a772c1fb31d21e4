package main

import (
	"context"
	"errors"
)

// Sentinels of the store, and when they come.
var (
	errNotFound       = errors.New("key not found")                     // get, update, delete: no live object has the key
	errExists         = errors.New("key already exists")                // create: a live object has the key
	errDeleting       = errors.New("key already exists, being deleted") // create: a live object has the key and is marked as deleting
	errConflict       = errors.New("key has changed")                   // update, delete: the newest revision is not the expected one
	errParentMissing  = errors.New("parent not found")                  // create: change.parent is no live object
	errParentDeleting = errors.New("parent is being deleted")           // create: change.parent is marked as deleting
	errCompacted      = errors.New("revision has been compacted")       // a read below compactRev
	errFutureRev      = errors.New("revision is in the future")         // a read above currentRev
	errDiskFull       = errors.New("no space left on the disk")         // a write: nothing changed, writes work again once there is room
	errQuota          = errors.New("database space exceeded")           // a write (but a delete) above --quota-backend-bytes
	errClosed         = errors.New("store is closed")                   // a write after close
)

// storeOptions configure openStore.
type storeOptions struct {
	ephemeral bool  // no fsync; the file is removed at close
	quota     int64 // bytes; 0 means none
}

// A record is one version of one object. Its json is the object without kind and apiVersion, resourceVersion included.
type record struct {
	key       string
	rev       int64 // the revision that wrote this version
	createRev int64 // the revision that created the object
	prevRev   int64 // the version that this one replaced, 0 for a create
	deleted   bool  // a tombstone; json is the last state, with the tombstone's revision as resourceVersion
	deleting  bool  // the object carries a deletionTimestamp
	json      []byte
}

type changeOp int

const (
	opCreate changeOp = iota
	opUpdate
	opDelete
)

// A change is one requested write. json is final but for the decimal revision, which the writer inserts at json[revAt]
// (json holds `"resourceVersion":""` there; a tombstone's json too).
type change struct {
	op       changeOp
	key      string
	expect   int64  // opUpdate, opDelete: the newest revision of key must be this one
	parent   string // opCreate: this key must be live and not deleting; "" for none
	deleting bool   // the new state carries a deletionTimestamp
	json     []byte
	revAt    int
	prev     []byte // opUpdate, opDelete: the json of revision expect, for watchers with selectors
}

// store is an MVCC store of opaque JSON documents in one bbolt file.
type store struct{}

func openStore(path string, opts storeOptions) (*store, error) { panic("skeleton") }
func (st *store) close() error                                 { panic("skeleton") }

// commit makes one change durable and returns the record as written. ctx ends the wait for the writer's queue only:
// once the writer has taken the change its answer is awaited.
func (st *store) commit(ctx context.Context, c change) (record, error) { panic("skeleton") }

func (st *store) revision() int64  { panic("skeleton") } // currentRev: newest committed revision
func (st *store) compacted() int64 { panic("skeleton") } // compactRev: reads below it answer errCompacted; 0 at first

// get returns the newest version of a live object, errNotFound otherwise.
func (st *store) get(key string) (record, error) { panic("skeleton") }

// A span names what chunk reads: keys with prefix, from start on (inclusive; "" is the first), as they were at rev
// (0: at the newest revision, which chunk then fills into chunk.rev), at most items objects and about bytes bytes
// (0: 500 and 1 MiB).
type span struct {
	prefix, start string
	rev           int64
	items, bytes  int
}

// A chunk is what one short read transaction copied out; its records' json slices share buf. Reusable.
type chunk struct {
	rev     int64
	records []record
	next    string // where the next chunk starts, "" at the end
	buf     []byte
}

// chunk fills c with live objects in key order. errCompacted, errFutureRev.
func (st *store) chunk(s span, c *chunk) error { panic("skeleton") }

// count returns how many live objects, and bytes of JSON, a prefix holds now. The prefix is that of a resource
// (`/group/resource/`) or of a namespace in it (`/group/resource/namespace/`). rev is the revision that both belong to.
func (st *store) count(prefix string) (objects, bytes, rev int64) { panic("skeleton") }

// countAt counts the live objects at revision rev among the keys with prefix from start on: a walk over keys alone.
func (st *store) countAt(prefix, start string, rev int64) (int64, error) { panic("skeleton") }

// An event is a record with the JSON that it replaced (nil for a create; for a tombstone the json before it).
type event struct {
	record
	prev []byte
}

// events returns, in revision order, the events of one resource (`/group/resource/`) after revision after: at most max (and about
// 1 MiB when they come from disk). upTo is the revision up to which dst is complete. errCompacted when after < compactRev.
func (st *store) events(resource string, after int64, max int, dst []event) (evs []event, upTo int64, err error) {
	panic("skeleton")
}

// wake returns a channel that is closed at the next commit that touches the resource. Take it before reading events.
func (st *store) wake(resource string) <-chan struct{} { panic("skeleton") }

// secret returns the value kept under name in meta, made by fresh at the first call and durable before it is returned.
func (st *store) secret(name string, fresh func() []byte) ([]byte, error) { panic("skeleton") }

// lineage tells files of different history apart (a restored backup draws a new one).
func (st *store) lineage() [16]byte { panic("skeleton") }
