package registry

// This file refuses early what the store would refuse late: a new object in a namespace that is not there, or that is going. kube-apiserver
// asks between the body's decoding and all that follows (defaults, admission, validation), and its answers show that. The namespaces that
// were there when somebody last looked are kept by name, so that a create does not read one; a name that is wrongly among them costs nothing
// but time, since the commit looks again, in its transaction.

import (
	"context"
	"errors"
	"strings"

	"apilet/internal/scheme"
	"apilet/internal/store"
)

// maxKnownNamespaces bounds the names that are kept; all are forgotten above it.
const maxKnownNamespaces = 10000

func (k *knownNamespaces) has(name string) bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	_, known := k.names[name]
	return known
}

func (k *knownNamespaces) add(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.names == nil || len(k.names) >= maxKnownNamespaces {
		k.names = map[string]struct{}{}
	}
	k.names[name] = struct{}{}
}

// forget is told of what was written: anything about a namespace makes it unknown.
func (k *knownNamespaces) forget(key string) {
	if name, isNamespace := strings.CutPrefix(key, NamespaceKey("")); isNamespace {
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.names, name)
	}
}

// refuseEarly is checkNamespace before a new object has cost anything.
func (wr *Writer) refuseEarly(ctx context.Context, res *scheme.Resource, obj scheme.Object) error {
	name := obj.GetNamespace()
	if !res.Namespaced || wr.ProvisionsNamespaces || wr.namespaces.has(name) {
		return nil
	}
	if rec, err := wr.Store.Get(NamespaceKey(name)); err == nil && !rec.Deleting {
		wr.namespaces.add(name)
		return nil
	}
	return wr.checkNamespace(ctx, res, obj) // in a replica, one that was made elsewhere may be new
}

// checkNamespace says whether objects may be created in the object's namespace. The store checks it again, in the same transaction
// as the create; asking here first gives the better of two errors, and dry runs their answer.
func (wr *Writer) checkNamespace(ctx context.Context, res *scheme.Resource, obj scheme.Object) error {
	if !res.Namespaced {
		return nil
	}
	rec, err := wr.Store.GetNewest(ctx, NamespaceKey(obj.GetNamespace()))
	switch {
	case errors.Is(err, store.ErrNotFound):
		return store.ErrParentMissing
	case err == nil && rec.Deleting:
		return store.ErrParentDeleting
	}
	return err
}

func isNamespaces(res *scheme.Resource) bool { return res.Group == "" && res.Plural == "namespaces" }
