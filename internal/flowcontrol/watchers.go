package flowcontrol

// This file counts watches, because a write needs seats for the events that it causes.

import (
	"strings"
	"sync"
)

// A watchTarget identifies a resource, one of its namespaces, or a single object.
type watchTarget struct{ group, resource, namespace, name string }

// WatcherCounts counts the running watches by their targets. It is safe for concurrent use.
type WatcherCounts struct {
	mu sync.Mutex // guards n
	n  map[watchTarget]int
}

// Register counts a watch until the returned function is called.
func (wc *WatcherCounts) Register(dig *Digest, fieldSelector string) func() {
	if dig.Resource == "pods" && demandsNode(fieldSelector) {
		return func() {} // the watch of a kubelet receives only the events of its node
	}
	key := watchTarget{dig.Group, dig.Resource, dig.Namespace, dig.Name}
	add := func(n int) {
		wc.mu.Lock()
		defer wc.mu.Unlock()
		if wc.n == nil {
			wc.n = map[watchTarget]int{}
		}
		if wc.n[key] += n; wc.n[key] == 0 {
			delete(wc.n, key)
		}
	}
	add(1)
	return func() { add(-1) }
}

// demandsNode reports whether a field selector selects the pods of a single node.
func demandsNode(fieldSelector string) bool {
	for term := range strings.SplitSeq(fieldSelector, ",") {
		field, node, _ := strings.Cut(term, "=")
		if field == "spec.nodeName" && strings.TrimPrefix(node, "=") != "" {
			return true
		}
	}
	return false
}

// Interested returns the number of watches that may receive the event of a write to the target of a
// request. For a POST, the name of the new object is not known yet.
func (wc *WatcherCounts) Interested(group, resource, namespace, name string) int {
	wc.mu.Lock()
	defer wc.mu.Unlock()
	key := watchTarget{group: group, resource: resource}
	n := wc.n[key]
	if namespace != "" {
		key.namespace = namespace
		n += wc.n[key]
	}
	if name != "" {
		key.name = name
		n += wc.n[key]
	}
	return n
}

// Len returns the number of targets that are watched.
func (wc *WatcherCounts) Len() int {
	wc.mu.Lock()
	defer wc.mu.Unlock()
	return len(wc.n)
}
