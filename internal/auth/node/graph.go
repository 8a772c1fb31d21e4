package node

// This file implements the graph and updates it from the store's log. The graph answers the
// question of whether there is a path from an object to a node. Paths have at most three steps
// (secret, volume, claim, pod on the node), so the graph does not search for them. It counts the
// paths from each referenced object to each node instead.
//
//	pod a on n1 refers to claim c       c: n1 1
//	volume v is claim c's, has secret s c leads on to v and s     v: n1 1     s: n1 1
//	pod b on n1 refers to s             s: n1 2
//	pod a goes                          c, v: none     s: n1 1
//
// Objects are identified by their keys in the store. An object is removed if it is no longer
// referenced.

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tidwall/gjson"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"

	"apilet/internal/scheme"
	"apilet/internal/store"
)

// A graph holds the paths from objects to nodes. It is not safe for concurrent use.
type graph struct {
	nodes   map[string]*kubelet
	objects map[string]*object // referenced objects
	holders map[string]*holder // objects that belong to a node
	volumes map[string]*volume // volumes that belong to a claim
}

// A kubelet is a node. It is removed with its last holder.
type kubelet struct {
	name    string
	holders int
}

// A holder is an object that belongs to a node. It may refer to other objects.
type holder struct {
	node    *kubelet
	objects []*object
}

// A volume connects a claim with the volume itself and its secrets.
type volume struct {
	claim   *object
	objects []*object
}

// An object is referenced by pods or volumes.
type object struct {
	key        string
	references int              // number of references from holders and volumes
	paths      map[*kubelet]int // number of paths to each node
	parts      []*object        // if it is a claim, the parts of its volumes
}

func newGraph() *graph {
	return &graph{nodes: map[string]*kubelet{}, objects: map[string]*object{}, holders: map[string]*holder{}, volumes: map[string]*volume{}}
}

// hasPath reports whether there is a path from the object to the node.
func (g *graph) hasPath(key, node string) bool {
	if h := g.holders[key]; h != nil {
		return h.node.name == node
	}
	n, o := g.nodes[node], g.objects[key]
	return n != nil && o != nil && o.paths[n] > 0
}

// addHolder records that an object belongs to a node and refers to other objects. It replaces an
// earlier record of the object.
func (g *graph) addHolder(key, node string, refers []string) {
	g.removeHolder(key)
	n := g.nodes[node]
	if n == nil {
		n = &kubelet{name: strings.Clone(node)}
		g.nodes[n.name] = n
	}
	n.holders++
	h := &holder{node: n, objects: g.reference(refers)}
	for _, o := range h.objects {
		o.addPath(n)
	}
	g.holders[strings.Clone(key)] = h
}

// removeHolder removes an object that belongs to a node.
func (g *graph) removeHolder(key string) {
	h := g.holders[key]
	if h == nil {
		return
	}
	for _, o := range h.objects {
		o.removePath(h.node)
	}
	g.forget(h.objects)
	if h.node.holders--; h.node.holders == 0 {
		delete(g.nodes, h.node.name)
	}
	delete(g.holders, key)
}

// attach records that a volume belongs to a claim and has the given parts. It replaces an earlier
// record of the volume.
func (g *graph) attach(key, claim string, parts []string) {
	g.detach(key)
	v := &volume{claim: g.reference([]string{claim})[0], objects: g.reference(append(parts, key))}
	for _, o := range v.objects {
		v.claim.parts = append(v.claim.parts, o)
		for n := range v.claim.paths {
			o.addPath(n)
		}
	}
	g.volumes[strings.Clone(key)] = v
}

// detach removes a volume.
func (g *graph) detach(key string) {
	v := g.volumes[key]
	if v == nil {
		return
	}
	for _, o := range v.objects {
		at := slices.Index(v.claim.parts, o)
		v.claim.parts = slices.Delete(v.claim.parts, at, at+1)
		for n := range v.claim.paths {
			o.removePath(n)
		}
	}
	g.forget(v.objects)
	g.forget([]*object{v.claim})
	delete(g.volumes, key)
}

// reference returns the objects with the keys, and creates the missing ones. It ignores duplicates.
func (g *graph) reference(keys []string) []*object {
	slices.Sort(keys)
	keys = slices.Compact(keys)
	found := make([]*object, len(keys))
	for i, key := range keys {
		o := g.objects[key]
		if o == nil {
			o = &object{key: strings.Clone(key), paths: map[*kubelet]int{}}
			g.objects[o.key] = o
		}
		o.references++
		found[i] = o
	}
	return found
}

func (g *graph) forget(objects []*object) {
	for _, o := range objects {
		if o.references--; o.references == 0 {
			delete(g.objects, o.key)
		}
	}
}

// addPath adds a path to a node.
func (o *object) addPath(n *kubelet) {
	if o.paths[n]++; o.paths[n] == 1 {
		for _, next := range o.parts {
			next.addPath(n)
		}
	}
}

// removePath removes a path to a node.
func (o *object) removePath(n *kubelet) {
	if o.paths[n]--; o.paths[n] == 0 {
		delete(o.paths, n)
		for _, next := range o.parts {
			next.removePath(n)
		}
	}
}

// ---- Stored objects ----

// put adds a stored object to the graph. If the object cannot be decoded, it has no paths.
func (g *graph) put(res *scheme.Resource, key string, doc []byte) {
	if res.Plural == "pods" && gjson.GetBytes(doc, "spec.nodeName").String() == "" {
		g.removeHolder(key) // most new pods have no node and need not be decoded
		return
	}
	obj, err := res.DecodeStored(doc)
	if err != nil {
		g.drop(res, key)
		return
	}
	switch obj := obj.(type) {
	case *corev1.Pod:
		g.addHolder(key, obj.Spec.NodeName, podRefers(obj))
	case *corev1.PersistentVolume:
		if claim := obj.Spec.ClaimRef; claim != nil {
			g.attach(key, keyOf("", "persistentvolumeclaims", claim.Namespace, claim.Name), volumeSecrets(obj))
			return
		}
		g.detach(key)
	case *storagev1.VolumeAttachment:
		g.setHolder(key, obj.Spec.NodeName)
	case *resourcev1.ResourceSlice:
		node := ""
		if obj.Spec.NodeName != nil {
			node = *obj.Spec.NodeName
		}
		g.setHolder(key, node)
	case *certificatesv1.PodCertificateRequest:
		g.setHolder(key, string(obj.Spec.NodeName))
	}
}

// If node is empty, setHolder is like removeHolder. Otherwise it is like addHolder without
// references. If node is empty, the object is removed.
func (g *graph) setHolder(key, node string) {
	if node == "" {
		g.removeHolder(key)
		return
	}
	g.addHolder(key, node, nil)
}

// drop removes a deleted object from the graph.
func (g *graph) drop(res *scheme.Resource, key string) {
	if res.Plural == "persistentvolumes" {
		g.detach(key)
		return
	}
	g.removeHolder(key)
}

// sameReferences reports whether two versions of a pod refer to the same objects. Most writes of
// pods only change the status.
func sameReferences(before, after []byte) bool {
	for _, path := range [...]string{"spec", "status.resourceClaimStatuses", "status.extendedResourceClaimStatus"} {
		if gjson.GetBytes(before, path).Raw != gjson.GetBytes(after, path).Raw {
			return false
		}
	}
	return true
}

// ---- Following the log ----

const retryAfter = time.Minute // after a failed read

// A liveGraph is a graph that follows the store.
type liveGraph struct {
	store *store.Store
	read  func(error) // called with the result of reading everything, and with errors
	kinds []*scheme.Resource

	mu    sync.RWMutex // guards the fields below
	log   *store.Follower
	graph *graph    // nil before the first use
	retry time.Time // time of the next attempt if a read has failed, or zero
}

func newLiveGraph(st *store.Store, types *scheme.Registry, read func(error)) *liveGraph {
	l := &liveGraph{store: st, read: read, kinds: []*scheme.Resource{types.Lookup("", "v1", "pods"), types.Lookup("", "v1", "persistentvolumes"),
		types.Lookup(storagev1.GroupName, "v1", "volumeattachments"), types.Lookup(resourcev1.GroupName, "v1", "resourceslices"),
		scheme.Stable(certificatesv1.GroupName, "podcertificaterequests")}}
	l.log = l.follow()
	return l
}

func (l *liveGraph) follow() *store.Follower {
	bases := make([]string, len(l.kinds))
	for i, res := range l.kinds {
		bases[i] = res.Base
	}
	return l.store.Follow(bases...)
}

// hasPath reports whether there is a path from the object to the node in the current state of the
// store.
func (l *liveGraph) hasPath(key, node string) bool {
	l.mu.RLock()
	if l.upToDate() {
		defer l.mu.RUnlock()
		return l.graph.hasPath(key, node)
	}
	l.mu.RUnlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.catchUpLocked()
	return l.graph.hasPath(key, node)
}

// upToDate reports whether the graph contains all writes. The caller must hold l.mu for reading or
// writing.
func (l *liveGraph) upToDate() bool { return l.graph != nil && l.retry.IsZero() && !l.log.HasNext() }

// catchUpLocked reads the rest of the log, or all objects if the log no longer contains all
// changes. If an error occurs, the graph contains the objects that could be read.
func (l *liveGraph) catchUpLocked() {
	anew := !l.retry.IsZero()
	err := l.log.CatchUp(context.Background(), func() { l.graph, anew = newGraph(), true }, l.apply)
	l.retry = time.Time{}
	if err != nil {
		l.retry = time.Now().Add(retryAfter)
	}
	if anew || err != nil {
		l.read(err)
	}
}

func (l *liveGraph) apply(ev *store.Event) {
	res := l.kinds[slices.IndexFunc(l.kinds, func(res *scheme.Resource) bool { return strings.HasPrefix(ev.Key, res.Base) })]
	switch {
	case ev.Deleted:
		l.graph.drop(res, ev.Key)
	case ev.Prev != nil && res.Plural == "pods" && sameReferences(ev.Prev, ev.JSON):
	default:
		l.graph.put(res, ev.Key, ev.JSON)
	}
}

// run updates the graph until ctx is done.
func (l *liveGraph) run(ctx context.Context) {
	for news := l.follow(); ctx.Err() == nil; { // l.log is guarded by l.mu, so this needs its own follower
		news.From(l.store.Revision())
		news.Wait(ctx, l.step(), nil)
	}
}

// step updates the graph. It returns the time of the next attempt after an error, or zero.
func (l *liveGraph) step() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.catchUpLocked()
	return l.retry
}
