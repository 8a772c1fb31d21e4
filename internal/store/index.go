package store

// This file finds objects by a field, where to look at all of them would be too much: the Pods of a node, for which each node asks.
//
//	pods := st.NewIndex("//pods/", "spec.nodeName")
//	rev := st.Revision()
//	if keys, ok := pods.Keys(ctx, "node-1", rev); ok {
//		err = st.Chunk(Span{Prefix: "//pods/", Keys: keys, Rev: rev}, c)
//	}
//
// The watch cache of kube-apiserver has the same index (k8s.io/kubernetes/pkg/registry/core/pod). Here it is made when somebody asks
// first, and is caught up when somebody asks again: a server without kubelets has none, and a write pays nothing.
//
// Invariant: what Keys returns has every object that had the value at that revision. It may have some that had it later or earlier: who reads them
// looks once more.

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/tidwall/gjson"
)

const indexRemembers = 4096 // keys that have left their value: a list at an older revision than they tell of reads all objects

// An Index knows the keys of the live objects of one resource by the text at a path of their JSON.
type Index struct {
	st             *Store
	resource, path string

	mu    sync.Mutex // guards what follows, and is held while the log is read
	log   *Follower
	keys  map[string]map[string]struct{} // by value
	left  []leaver                       // by revision
	floor int64                          // of who left at or before it nothing is known
}

// A leaver is a key that has its value no longer.
type leaver struct {
	rev        int64
	value, key string
}

// NewIndex is an index of which nothing is made yet. path is one of gjson.
func (st *Store) NewIndex(resource, path string) *Index {
	return &Index{st: st, resource: resource, path: path, log: st.Follow(resource)}
}

// Keys returns, in order, the keys of all objects that had a value at a revision, which is to be one that Revision has told. It is not ok where the
// revision is too old, or where some object cannot be read: then the objects themselves have to be asked.
func (x *Index) Keys(ctx context.Context, value string, rev int64) (keys []string, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.catchUp(ctx) != nil || rev < x.floor {
		return nil, false
	}
	keys = make([]string, 0, len(x.keys[value])) // not nil: there may be none
	for key := range x.keys[value] {
		keys = append(keys, key)
	}
	after, _ := slices.BinarySearchFunc(x.left, rev+1, func(l leaver, rev int64) int { return cmp.Compare(l.rev, rev) })
	for _, l := range x.left[after:] {
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
			x.see(&events[i])
		}
	}
}

// build reads all objects, and stops at one that cannot be read.
func (x *Index) build(ctx context.Context) error {
	x.keys, x.left, x.floor = map[string]map[string]struct{}{}, nil, 0
	for c, err := range x.st.Chunks(Span{Prefix: x.resource}) {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		for i := range c.Records {
			x.enter(string([]byte(c.Records[i].Key)), c.Records[i].JSON) // not all the keys of the chunk with it
		}
		x.floor = c.Rev
	}
	x.log.From(x.floor)
	return nil
}

func (x *Index) see(ev *Event) {
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
	if len(x.left) == indexRemembers {
		x.floor = x.left[indexRemembers/2-1].rev
		x.left = slices.Delete(x.left, 0, indexRemembers/2)
	}
	x.left = append(x.left, leaver{rev: rev, value: value, key: key})
}
