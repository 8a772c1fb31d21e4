package node

// This file is the graph, and how it follows the log. It answers one question: is there a way from this object to that node? A way has at
// most three steps (secret, volume, claim, pod on the node), so there is nothing to search: each object that something leads to counts, for
// each node, by how many ways.
//
//	pod a on n1 refers to claim c       c: n1 1
//	volume v is claim c's, has secret s c leads on to v and s     v: n1 1     s: n1 1
//	pod b on n1 refers to s             s: n1 2
//	pod a goes                          c, v: none     s: n1 1
//
// An object is known by its key in the store, and forgotten when nothing mentions it any more.

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

// A graph is not safe for concurrent use.
type graph struct {
	nodes   map[string]*kubelet
	objects map[string]*object // that something refers to
	holders map[string]*holder // pods, attachments and slices that are a node's
	volumes map[string]*volume // that are a claim's
}

// A kubelet is a node, known while something is its.
type kubelet struct {
	name    string
	holders int
}

// A holder is an object of a node, with what it refers to.
type holder struct {
	node    *kubelet
	objects []*object
}

// A volume connects what it consists of, itself among it, with its claim.
type volume struct {
	claim   *object
	objects []*object
}

// An object is what a pod or a volume refers to.
type object struct {
	key      string
	mentions int              // by holders and volumes
	ways     map[*kubelet]int // to each node
	onward   []*object        // of a claim: what its volumes consist of
}

func newGraph() *graph {
	return &graph{nodes: map[string]*kubelet{}, objects: map[string]*object{}, holders: map[string]*holder{}, volumes: map[string]*volume{}}
}

// leads answers the question.
func (g *graph) leads(key, node string) bool {
	if h := g.holders[key]; h != nil {
		return h.node.name == node
	}
	n, o := g.nodes[node], g.objects[key]
	return n != nil && o != nil && o.ways[n] > 0
}

// hold makes an object a node's, with what it refers to; it replaces what was known of the object.
func (g *graph) hold(key, node string, refers []string) {
	g.release(key)
	n := g.nodes[node]
	if n == nil {
		n = &kubelet{name: strings.Clone(node)}
		g.nodes[n.name] = n
	}
	n.holders++
	h := &holder{node: n, objects: g.mention(refers)}
	for _, o := range h.objects {
		o.open(n)
	}
	g.holders[strings.Clone(key)] = h
}

// release forgets an object of a node.
func (g *graph) release(key string) {
	h := g.holders[key]
	if h == nil {
		return
	}
	for _, o := range h.objects {
		o.shut(h.node)
	}
	g.forget(h.objects)
	if h.node.holders--; h.node.holders == 0 {
		delete(g.nodes, h.node.name)
	}
	delete(g.holders, key)
}

// attach makes a volume a claim's, with what it consists of; it replaces what was known of the volume.
func (g *graph) attach(key, claim string, parts []string) {
	g.detach(key)
	v := &volume{claim: g.mention([]string{claim})[0], objects: g.mention(append(parts, key))}
	for _, o := range v.objects {
		v.claim.onward = append(v.claim.onward, o)
		for n := range v.claim.ways {
			o.open(n)
		}
	}
	g.volumes[strings.Clone(key)] = v
}

// detach forgets a volume.
func (g *graph) detach(key string) {
	v := g.volumes[key]
	if v == nil {
		return
	}
	for _, o := range v.objects {
		at := slices.Index(v.claim.onward, o)
		v.claim.onward = slices.Delete(v.claim.onward, at, at+1)
		for n := range v.claim.ways {
			o.shut(n)
		}
	}
	g.forget(v.objects)
	g.forget([]*object{v.claim})
	delete(g.volumes, key)
}

// mention finds or makes objects, each once.
func (g *graph) mention(keys []string) []*object {
	slices.Sort(keys)
	keys = slices.Compact(keys)
	found := make([]*object, len(keys))
	for i, key := range keys {
		o := g.objects[key]
		if o == nil {
			o = &object{key: strings.Clone(key), ways: map[*kubelet]int{}}
			g.objects[o.key] = o
		}
		o.mentions++
		found[i] = o
	}
	return found
}

func (g *graph) forget(objects []*object) {
	for _, o := range objects {
		if o.mentions--; o.mentions == 0 {
			delete(g.objects, o.key)
		}
	}
}

// open adds a way to a node.
func (o *object) open(n *kubelet) {
	if o.ways[n]++; o.ways[n] == 1 {
		for _, next := range o.onward {
			next.open(n)
		}
	}
}

// shut takes one away.
func (o *object) shut(n *kubelet) {
	if o.ways[n]--; o.ways[n] == 0 {
		delete(o.ways, n)
		for _, next := range o.onward {
			next.shut(n)
		}
	}
}

// ---- What is stored ----

// put takes in an object as it is stored. What cannot be read leads nowhere.
func (g *graph) put(res *scheme.Resource, key string, doc []byte) {
	if res.Plural == "pods" && gjson.GetBytes(doc, "spec.nodeName").String() == "" {
		g.release(key) // most new pods have none: nothing of theirs has to be decoded
		return
	}
	obj, err := res.DecodeStored(doc)
	if err != nil {
		g.drop(res, key)
		return
	}
	switch obj := obj.(type) {
	case *corev1.Pod:
		g.hold(key, obj.Spec.NodeName, podRefers(obj))
	case *corev1.PersistentVolume:
		if claim := obj.Spec.ClaimRef; claim != nil {
			g.attach(key, keyOf("", "persistentvolumeclaims", claim.Namespace, claim.Name), volumeSecrets(obj))
			return
		}
		g.detach(key)
	case *storagev1.VolumeAttachment:
		g.own(key, obj.Spec.NodeName)
	case *resourcev1.ResourceSlice:
		node := ""
		if obj.Spec.NodeName != nil {
			node = *obj.Spec.NodeName
		}
		g.own(key, node)
	case *certificatesv1.PodCertificateRequest:
		g.own(key, string(obj.Spec.NodeName))
	}
}

// own is hold for what refers to nothing, and may be nobody's.
func (g *graph) own(key, node string) {
	if node == "" {
		g.release(key)
		return
	}
	g.hold(key, node, nil)
}

// drop forgets an object that was stored.
func (g *graph) drop(res *scheme.Resource, key string) {
	if res.Plural == "persistentvolumes" {
		g.detach(key)
		return
	}
	g.release(key)
}

// same says that two versions of a pod refer to the same: most writes of pods are of their status.
func same(before, after []byte) bool {
	for _, path := range [...]string{"spec", "status.resourceClaimStatuses", "status.extendedResourceClaimStatus"} {
		if gjson.GetBytes(before, path).Raw != gjson.GetBytes(after, path).Raw {
			return false
		}
	}
	return true
}

// ---- Following the log ----

const retryAfter = time.Minute // what could not be read is read anew

// A liveGraph keeps up with the store.
type liveGraph struct {
	store *store.Store
	read  func(error) // is told what came of reading everything
	kinds []*scheme.Resource

	mu    sync.RWMutex // guards what follows, and is held while the graph is read anew
	log   *store.Follower
	graph *graph    // nil before it is first needed
	retry time.Time // something could not be read: it is tried again then; zero when all is there
}

func newLiveGraph(st *store.Store, types *scheme.Registry, read func(error)) *liveGraph {
	l := &liveGraph{store: st, read: read, kinds: []*scheme.Resource{types.Lookup("", "v1", "pods"), types.Lookup("", "v1", "persistentvolumes"),
		types.Lookup(storagev1.GroupName, "v1", "volumeattachments"), types.Lookup(resourcev1.GroupName, "v1", "resourceslices"),
		types.Lookup(certificatesv1.GroupName, "v1", "podcertificaterequests")}}
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

// leads answers by what is stored now.
func (l *liveGraph) leads(key, node string) bool {
	l.mu.RLock()
	if l.upToDate() {
		defer l.mu.RUnlock()
		return l.graph.leads(key, node)
	}
	l.mu.RUnlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.catchUpLocked()
	return l.graph.leads(key, node)
}

// upToDate says that nothing has happened since the log was read. l.mu is held, in either way.
func (l *liveGraph) upToDate() bool { return l.graph != nil && l.retry.IsZero() && !l.log.Behind() }

// catchUpLocked reads the log to its end, or everything where the log no longer tells. Where something cannot be read the rest holds.
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
	case ev.Prev != nil && res.Plural == "pods" && same(ev.Prev, ev.JSON):
	default:
		l.graph.put(res, ev.Key, ev.JSON)
	}
}

// run keeps the graph up to date until ctx ends.
func (l *liveGraph) run(ctx context.Context) {
	for news := l.follow(); ctx.Err() == nil; { // since l.log is for who holds l.mu
		news.From(l.store.Revision())
		news.Wait(ctx, l.step(), nil)
	}
}

// step reads on. What it returns is when there is something to try again; zero: never.
func (l *liveGraph) step() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.catchUpLocked()
	return l.retry
}
