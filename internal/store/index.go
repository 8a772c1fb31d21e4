package store

// This file implements an index that is used to find objects by the value of a field without
// reading all objects. For example, a kubelet uses it to list the Pods that are assigned to its
// node.
//
//	pods := st.NewIndex("//pods/", "spec.nodeName")
//	rev := st.Revision()
//	if keys, ok := pods.Keys(ctx, "node-1", rev); ok {
//		err = st.Chunk(Span{Prefix: "//pods/", Keys: keys, Rev: rev}, c)
//	}
//
// The watch cache of kube-apiserver has the same index (k8s.io/kubernetes/pkg/registry/core/pod).
// In this package, the index is created by the first request and updated by later requests. It is
// not created if there are no kubelets. It does not make writes more expensive.
//
// Keys must return all objects that had the value at the given revision. It may also return objects
// that had the value at a different time. Callers must therefore check the objects.

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/tidwall/gjson"
)

// maxFormerKeys is the maximum number of remembered keys that no longer have their value. If the
// revision of a list is older than these keys, the list has to read all objects.
const maxFormerKeys = 4096

// An Index maps the values of a JSON field to the keys of the live objects that have this value. It
// is limited to a single resource.
type Index struct {
	st             *Store
	resource, path string

	// mu guards the fields below. It is also held while reading the log.
	mu     sync.Mutex
	log    *Follower
	keys   map[string]map[string]struct{} // by value
	former []formerKey                    // by revision
	floor  int64                          // oldest revision for which former is complete
}

// A formerKey is a key that has been removed from the index, together with its old value.
type formerKey struct {
	rev        int64
	value, key string
}

// NewIndex returns an index that is not built yet. path is a gjson path.
func (st *Store) NewIndex(resource, path string) *Index {
	return &Index{st: st, resource: resource, path: path, log: st.Follow(resource)}
}

// Keys returns the sorted keys of all objects that had the value at rev, which must be a result of
// Revision. ok is false if rev is too old or if an object cannot be read; then the caller must read
// all objects.
func (x *Index) Keys(ctx context.Context, value string, rev int64) (keys []string, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.catchUp(ctx) != nil || rev < x.floor {
		return nil, false
	}
	keys = make([]string, 0, len(x.keys[value])) // not nil, even if it is empty
	for key := range x.keys[value] {
		keys = append(keys, key)
	}
	after, _ := slices.BinarySearchFunc(x.former, rev+1, func(l formerKey, rev int64) int { return cmp.Compare(l.rev, rev) })
	for _, l := range x.former[after:] {
		if l.value == value {
			keys = append(keys, l.key)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys), true
}

func (x *Index) catchUp(ctx context.Context) error {
	for {
		events, reset, err := x.log.Next(ctx)
		if reset {
			err = x.build(ctx)
		}
		if err != nil {
			x.log.From(-1)
			return err
		}
		if len(events) == 0 && !reset {
			return nil
		}
		for i := range events {
			x.apply(&events[i])
		}
	}
}

// build reads all objects. It returns an error if an object cannot be read.
func (x *Index) build(ctx context.Context) error {
	x.keys, x.former, x.floor = map[string]map[string]struct{}{}, nil, 0
	for c, err := range x.st.Chunks(Span{Prefix: x.resource}) {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		for i := range c.Records {
			x.enter(string([]byte(c.Records[i].Key)), c.Records[i].JSON) // do not retain all keys of the chunk
		}
		x.floor = c.Rev
	}
	x.log.From(x.floor)
	return nil
}

func (x *Index) apply(ev *Event) {
	if len(ev.Prev) > 0 {
		x.leave(ev.Key, ev.Prev, ev.Rev)
	}
	if ev.Deleted {
		x.leave(ev.Key, ev.JSON, ev.Rev)
	} else {
		x.enter(ev.Key, ev.JSON)
	}
}

func (x *Index) valueIn(json []byte) string { return gjson.GetBytes(json, x.path).String() }

func (x *Index) enter(key string, json []byte) {
	value := x.valueIn(json)
	if x.keys[value] == nil {
		x.keys[value] = map[string]struct{}{}
	}
	x.keys[value][key] = struct{}{}
}

func (x *Index) leave(key string, json []byte, rev int64) {
	value := x.valueIn(json)
	if _, ok := x.keys[value][key]; !ok {
		return
	}
	if delete(x.keys[value], key); len(x.keys[value]) == 0 {
		delete(x.keys, value)
	}
	if len(x.former) == maxFormerKeys {
		x.floor = x.former[maxFormerKeys/2-1].rev
		x.former = slices.Delete(x.former, 0, maxFormerKeys/2)
	}
	x.former = append(x.former, formerKey{rev: rev, value: value, key: key})
}
