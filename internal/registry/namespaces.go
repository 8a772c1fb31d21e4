package registry

// This file rejects a new object early if its namespace does not exist or is being deleted.
// kube-apiserver checks this after decoding the body and before defaulting, admission and
// validation, and its responses depend on that order. The names of existing namespaces are cached,
// so a create does not have to read its namespace. An outdated name in the cache is harmless,
// because the commit checks the namespace again in its transaction.

import (
	"context"
	"errors"
	"strings"

	"apilet/internal/scheme"
	"apilet/internal/store"
)

// maxKnownNamespaces limits the number of cached names. If the cache is full, it is cleared.
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

// forget removes a namespace from the cache if key is the key of a Namespace.
func (k *knownNamespaces) forget(key string) {
	if name, isNamespace := strings.CutPrefix(key, NamespaceKey("")); isNamespace {
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.names, name)
	}
}

// checkNamespaceCached is like checkNamespace, but uses the cache. It is called before a new object
// is processed.
func (wr *Writer) checkNamespaceCached(ctx context.Context, res *scheme.Resource, obj scheme.Object) error {
	name := obj.GetNamespace()
	if !res.Namespaced || wr.ProvisionsNamespaces || wr.namespaces.has(name) {
		return nil
	}
	if rec, err := wr.Store.Get(NamespaceKey(name)); err == nil && !rec.Deleting {
		wr.namespaces.add(name)
		return nil
	}
	// it may have just been created by another server
	return wr.checkNamespace(ctx, res, obj)
}

// checkNamespace reports whether objects may be created in the object's namespace. The store checks
// it again in the transaction of the create. The early check returns the more useful of two errors,
// and also covers dry runs.
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
