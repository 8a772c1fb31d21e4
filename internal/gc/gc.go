// Package gc works off what deletion leaves behind, as the garbage collector and the namespace controller of kube-controller-manager do
// (pkg/controller/garbagecollector, pkg/controller/namespace):
//
//	what is there                                   what follows
//	-------------                                   ------------
//	a dependent whose owners are all gone           it is deleted, in the background
//	a dependent with an owner left and one gone     it loses the reference to the one that is gone
//	an owner, deleted in the foreground             its dependents are deleted; once none blocks it, it goes, too
//	an owner, deleted as orphaning                  its dependents lose their references to it, then it goes
//	a namespace that is being deleted               after a second its pods are deleted, then all else in it, then it goes
//	an Event older than --event-ttl                 it is deleted
//	an owner in another namespace than a reference  a Warning event at the dependent, which is treated as if the owner were absent
//
//	col := &gc.Collector{Store: st, Maintenance: up, Types: reg, Writer: wr, EventTTL: time.Hour, Grace: gc.NamespaceGrace, Stands: troubles.Tell}
//	go col.Run(ctx)
//
// Two loops are readers of the store's event log like any watcher: the reaper follows owners, the emptier namespaces. Each finds out at its
// start what there is to do, then sleeps until a commit, looks at what was written and does what follows, several objects at once.
//
// Invariants: nothing that they know is kept: it all follows from the store, so they may be stopped at any point. What they do not know is
// left alone: an object is deleted only after each of its owners has been looked up and not been found, with the owner's uid.
//
// A worked example: Deployment d owns ReplicaSet r, which owns Pod p. DELETE d removes it at revision 10. The reaper reads the tombstone,
// finds r among the dependents of d's uid, looks r up, finds no owner of its references, and deletes it at 11, which leads to p.
package gc

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tidwall/gjson"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"apilet/internal/registry"
	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

const (
	NamespaceRange = "//namespaces/" // what all keys of Namespaces start with
	eventRange     = "//events/"
	podRange       = "//pods/"

	apiServiceRange = "/apiregistration.k8s.io/apiservices/"

	CollectorName  = "kube-controller-manager" // field manager of the collector's updates
	CollectorSeats = 128                       // objects that are worked on at once, so that their commits share an fsync
	reapBatch      = 1024                      // objects that are worked on between two looks at the log
	soundMax       = 1024                      // references whose owners are remembered
	reapTries      = 10                        // attempts at an object that others write to
	retryFirst     = time.Second               // until what failed is tried again; doubled each time up to
	retryLast      = time.Minute
	refreshEvery   = time.Second // at most so often a namespace that waits is looked through because something in it changed

	// NamespaceGrace is how long a namespace that is deleted is left alone, for those who finalize it themselves right after: suites that
	// were written against a control plane without controllers DELETE it, GET it and PUT its /finalize, and would meet 409 or 404 if it
	// changed or went in between. These three took 7 ms at worst of 300 times on two cores with 25 busy processes, and three kubectls in
	// a row take half a second. kube-controller-manager waits five seconds, which is long for whoever waits behind kubectl delete; a shorter
	// time for namespaces with nothing in them would be wrong just for the suites, whose namespaces are mostly that.
	NamespaceGrace = time.Second
)

// A Collector deletes what nobody asks for by name.
type Collector struct {
	Store       *store.Store       // whose log it follows
	Maintenance *store.Maintenance // knows which revision was current when
	Types       *scheme.Registry   // what references speak of
	Writer      *registry.Writer   // deletes and updates, like a request
	EventTTL    time.Duration      // --event-ttl: an Event not written for so long is deleted
	Grace       time.Duration      // NamespaceGrace
	Elsewhere   Elsewhere          // nil: there are no other servers

	// Stands is told how something stands that is tried again when it has failed; nil: it is well (troubles.Log.Tell).
	Stands func(what string, err error)

	// Begin makes the record of a write that the collector makes by itself: by whom, and what is asked, as if it came over HTTP. The function
	// that it returns is told how the write ended. Nil: nobody hears of such writes.
	Begin func(ctx context.Context, by request.User, info request.Info) (context.Context, func(error))
}

// Run collects until ctx ends.
func (gc *Collector) Run(ctx context.Context) {
	var loops sync.WaitGroup
	loops.Go(func() { gc.KeepUp(ctx, "collecting dependents", (&reaper{gc: gc}).run) })
	loops.Go(func() { gc.KeepUp(ctx, "emptying namespaces", (&emptier{gc: gc}).run) })
	loops.Wait()
}

// KeepUp starts a loop over when it has ended: it could not read, or what it knows is not to be trusted (ErrCompacted).
func (gc *Collector) KeepUp(ctx context.Context, what string, follow func(context.Context) error) {
	for ctx.Err() == nil {
		began := time.Now()
		err := follow(ctx)
		if ctx.Err() != nil || errors.Is(err, store.ErrCompacted) {
			continue
		}
		if time.Since(began) > retryLast { // it has worked meanwhile
			gc.Stands(what, nil)
		}
		gc.Stands(what, err)
		select {
		case <-ctx.Done():
		case <-time.After(retryFirst):
		}
	}
}

// ---- Who depends on whom ----

// A graph knows the dependents of each owner's uid, be the owner there or not. Uids are kept as 64 bits of hash: who falls together
// with another gets a needless look, or waits for it. Keys are most of what it costs, about 100 bytes for each reference.
//
// Who holds an owner's deletion in the foreground back is counted apart, by what the references say of the owner: its kind, and by their own
// namespace where it is. Whoever knows a uid of another namespace, or puts it beside another kind, holds nothing back.
type graph struct {
	seed   maphash.Seed
	owners map[ownerID][]string // sorted keys of dependents
	claims map[claimID]int      // how many references block, by what they mean
}

// A claimID is the hash of an owner's uid and kind, and of a namespace or anywhere.
type claimID uint64

// anywhere stands for all namespaces: no namespace is called so.
const anywhere = "*"

type ownerID uint64

// An edge is a reference without the name, which only looking the owner up needs.
type edge struct {
	owner        ownerID
	blocks       bool
	claim, cited claimID // of the owner in the dependent's namespace, and anywhere
}

// newGraph is a graph without objects.
func newGraph() graph {
	return graph{seed: maphash.MakeSeed(), owners: map[ownerID][]string{}, claims: map[claimID]int{}}
}

// claim is what a reference in a namespace means, or what an owner there is to it.
func (g *graph) claim(uid, group, kind, namespace string) claimID {
	var h maphash.Hash
	h.SetSeed(g.seed)
	for _, part := range [...]string{uid, group, kind, namespace} {
		_, _ = h.WriteString(part)
		_ = h.WriteByte(0) // neither ever fails
	}
	return claimID(h.Sum64())
}

func (g *graph) id(uid string) ownerID { return ownerID(maphash.String(g.seed, uid)) }

// edges reads the references of an object in a namespace. A second reference to an owner adds nothing, and one to the object itself holds
// nothing back.
func (g *graph) edges(self ownerID, namespace, references string) (edges []edge) {
	list := gjson.Parse(references).Array()
	var places map[claimID]int // nil for a few, where a look at all is quicker
	if len(list) > 8 {
		places = make(map[claimID]int, len(list))
	}
	for _, ref := range list {
		uid, kind := ref.Get("uid").String(), ref.Get("kind").String()
		group, _, hasGroup := strings.Cut(ref.Get("apiVersion").String(), "/")
		if !hasGroup {
			group = ""
		}
		e := edge{g.id(uid), ref.Get("blockOwnerDeletion").Bool(), g.claim(uid, group, kind, namespace), g.claim(uid, group, kind, anywhere)}
		at, found := places[e.cited]
		if places == nil {
			at = slices.IndexFunc(edges, func(other edge) bool { return other.cited == e.cited })
			found = at >= 0
		}
		switch {
		case e.owner == self:
		case found:
			edges[at].blocks = edges[at].blocks || e.blocks
		default:
			if places != nil {
				places[e.cited] = len(edges)
			}
			edges = append(edges, e)
		}
	}
	return edges
}

func (g *graph) link(key string, e edge) {
	if e.blocks {
		g.claims[e.claim]++
		g.claims[e.cited]++
	}
	keys := g.owners[e.owner]
	if at, found := slices.BinarySearch(keys, key); !found {
		g.owners[e.owner] = slices.Insert(keys, at, key)
	}
}

func (g *graph) unlink(key string, e edge) {
	if e.blocks {
		g.release(e.claim)
		g.release(e.cited)
	}
	keys := g.owners[e.owner]
	at, found := slices.BinarySearch(keys, key)
	switch {
	case !found:
	case len(keys) == 1:
		delete(g.owners, e.owner)
	default:
		g.owners[e.owner] = slices.Delete(keys, at, at+1)
	}
}

func (g *graph) release(c claimID) {
	if g.claims[c]--; g.claims[c] <= 0 {
		delete(g.claims, c)
	}
}

// referencesOf cuts metadata.ownerReferences out of an object's JSON, "" when there are none. Every write of the server comes by here,
// so most objects are let through after a search for the word.
func referencesOf(object []byte) string {
	if !bytes.Contains(object, []byte(`"ownerReferences":[{`)) {
		return ""
	}
	return gjson.GetBytes(object, "metadata.ownerReferences").Raw
}

func decodeReferences(references string) (owners []metav1.OwnerReference, err error) {
	if references != "" {
		err = json.Unmarshal([]byte(references), &owners)
	}
	return owners, err
}

// uidOf is metadata.uid of a stored object.
func uidOf(object []byte) string { return gjson.GetBytes(object, "metadata.uid").String() }

func finalizersOf(object []byte) (names []string) {
	for _, name := range gjson.GetBytes(object, "metadata.finalizers").Array() {
		names = append(names, name.String())
	}
	return names
}

// kinds finds resources by what keys and references call them, in one state of the registry.
type kinds struct {
	catalog *scheme.Catalog
	byBase  map[string]*scheme.Resource
	byKind  map[kindName]*scheme.Resource
}

type kindName struct{ apiVersion, kind string }

// newKinds are the types of one state of the registry, by key and by kind.
func newKinds(c *scheme.Catalog) *kinds {
	k := &kinds{catalog: c, byBase: map[string]*scheme.Resource{}, byKind: map[kindName]*scheme.Resource{}}
	for _, res := range c.Sorted {
		if res.Virtual {
			continue
		}
		k.byKind[kindName{res.APIVersion(), res.Kind}] = res
		if k.byBase[res.Base] == nil || res.StoresAsIs() {
			k.byBase[res.Base] = res
		}
	}
	return k
}

// ---- The reaper ----

// A reaper works off owner references. One goroutine runs it; between two looks at the log it lets others examine objects, and changes
// nothing that they read.
type reaper struct {
	gc      *Collector
	kinds   *kinds
	graph   graph
	log     *store.Follower     // of everything: the graph shows what it has shown
	waiting map[ownerID]string  // keys of owners that are being deleted in the foreground
	sound   map[string]struct{} // namespaces and references whose owners are there; forgotten whenever anything goes
	gone    map[string]struct{} // uids of owners whose dependents are still among the dirty
	dirty   map[string]struct{} // keys of objects to examine
	reports *reports            // the events that were written; outlives the graph

	mu     sync.Mutex          // guards what follows while objects are examined
	parked map[string]struct{} // keys of objects that name a kind that is not served
	failed map[string]struct{} // keys of objects to examine again later
	err    error               // why one of them is
	lost   bool                // an object of the graph has become unreadable: what it says of owners counts no longer
	pause  time.Duration       // until then
	due    time.Time           // when that is; zero when no time has been set
}

var (
	errUnserved = errors.New("the kind is not served")      // examine: of an object or of one of its owners
	errReplaced = errors.New("another object has the name") // a change of an object that is gone
)

// run reads what there is, then the log.
func (rp *reaper) run(ctx context.Context) error {
	rp.log = rp.gc.Store.Follow(store.Everything)
	for ctx.Err() == nil {
		if err := rp.catchUp(ctx); err != nil {
			return err
		}
		if len(rp.dirty) > 0 {
			rp.work(ctx)
			if rp.lost {
				return store.ErrCompacted // begin anew, without what cannot be read any more
			}
			continue
		}
		rp.dirty, rp.gone = map[string]struct{}{}, map[string]struct{}{} // a map never shrinks
		rp.waitForWork(ctx)
	}
	return ctx.Err()
}

// forget begins a graph anew, and looks all owners up: one may have gone unseen.
func (rp *reaper) forget() {
	*rp = reaper{gc: rp.gc, log: rp.log, kinds: newKinds(rp.gc.Types.Current.Load()), graph: newGraph(), waiting: map[ownerID]string{},
		sound: map[string]struct{}{}, gone: map[string]struct{}{}, dirty: map[string]struct{}{}, parked: map[string]struct{}{}, failed: map[string]struct{}{},
		reports: cmp.Or(rp.reports, &reports{})}
}

// catchUp brings the graph up to date.
func (rp *reaper) catchUp(ctx context.Context) error {
	if c := rp.gc.Types.Current.Load(); rp.kinds != nil && c != rp.kinds.catalog {
		rp.kinds = newKinds(c)
		maps.Copy(rp.dirty, rp.parked)
		clear(rp.parked)
	}
	return rp.log.CatchUp(ctx, rp.forget, rp.apply)
}

// apply draws one event into the graph and notes whom it concerns. Events of kind Event have owners in name only.
func (rp *reaper) apply(ev *store.Event) {
	if strings.HasPrefix(ev.Key, eventRange) {
		return
	}
	if strings.HasPrefix(ev.Key, apiServiceRange) { // whose a type is may have changed
		maps.Copy(rp.dirty, rp.parked)
		clear(rp.parked)
	}
	before, after := referencesOf(ev.Prev), ""
	if !ev.Deleted {
		after = referencesOf(ev.JSON)
	}
	if before != after {
		rp.relink(ev, before, after)
	}
	switch {
	case ev.Deleted:
		rp.removed(ev)
	case ev.Deleting:
		rp.applyDeletion(ev)
	}
}

func (rp *reaper) relink(ev *store.Event, before, after string) {
	self := rp.graph.id(uidOf(ev.JSON))
	namespace, _ := scheme.NamespacedName(ev.Key)
	were := rp.graph.edges(self, namespace, before)
	for _, e := range were {
		rp.graph.unlink(ev.Key, e)
	}
	for _, e := range rp.graph.edges(self, namespace, after) {
		rp.graph.link(ev.Key, e)
	}
	for _, e := range were {
		last := rp.graph.claims[e.claim] == 0 || rp.graph.claims[e.cited] == 0
		if owner := rp.waiting[e.owner]; owner != "" && e.blocks && last {
			rp.dirty[owner] = struct{}{}
		}
	}
	if after != "" && !ev.Deleting && !rp.isSound(ev.Key, after) {
		rp.dirty[ev.Key] = struct{}{}
	}
}

// isSound says that all owners are there, so that nothing is to be done. Most objects come with the references of one before them, and
// what was found for that one holds until the log tells of an owner's end: if it ended later than that, its event will find this object in
// the graph.
func (rp *reaper) isSound(key, references string) bool {
	namespace, _ := scheme.NamespacedName(key)
	what := namespace + references
	if _, known := rp.sound[what]; known {
		return true
	}
	owners, err := decodeReferences(references)
	if err != nil {
		return false
	}
	for i := range owners {
		if state, err := rp.lookUp(&owners[i], namespace); err != nil || state != ownerSolid {
			return false
		}
	}
	if len(rp.sound) >= soundMax {
		clear(rp.sound)
	}
	rp.sound[what] = struct{}{}
	return true
}

// removed lets go of an object that is gone. Its dependents leave the graph in one step: one by one they would be cut out of the middle.
func (rp *reaper) removed(ev *store.Event) {
	uid := uidOf(ev.JSON)
	id := rp.graph.id(uid)
	clear(rp.sound)
	delete(rp.waiting, id)
	delete(rp.parked, ev.Key)
	left := rp.graph.owners[id]
	if len(left) == 0 {
		return
	}
	rp.gone[uid] = struct{}{}
	rp.markDirty(left)
	delete(rp.graph.owners, id)
}

// applyDeletion notes an owner that waits for the collector.
func (rp *reaper) applyDeletion(ev *store.Event) {
	finalizers := finalizersOf(ev.JSON)
	foreground := slices.Contains(finalizers, metav1.FinalizerDeleteDependents)
	id := rp.graph.id(uidOf(ev.JSON))
	if foreground && rp.waiting[id] == "" {
		clear(rp.sound)
		rp.waiting[id] = ev.Key
		rp.markDirty(rp.graph.owners[id])
	}
	if !foreground {
		delete(rp.waiting, id)
	}
	if foreground || slices.Contains(finalizers, metav1.FinalizerOrphanDependents) {
		rp.dirty[ev.Key] = struct{}{}
	}
}

func (rp *reaper) markDirty(keys []string) {
	for _, key := range keys {
		rp.dirty[key] = struct{}{}
	}
}

// work examines some of the objects that are due.
func (rp *reaper) work(ctx context.Context) {
	batch := make([]string, 0, min(len(rp.dirty), reapBatch))
	for key := range rp.dirty {
		if len(batch) == reapBatch {
			break
		}
		delete(rp.dirty, key)
		batch = append(batch, key)
	}
	_ = registry.Parallel(batch, CollectorSeats, func(key string) error {
		if err := rp.examine(ctx, key); err != nil {
			rp.postpone(key, err)
		}
		return nil
	})
}

// postpone keeps an object for later: until the registry changes, or for some time.
func (rp *reaper) postpone(key string, err error) {
	rp.mu.Lock()
	defer rp.mu.Unlock()
	if errors.Is(err, errUnserved) {
		rp.parked[key] = struct{}{}
		return
	}
	rp.failed[key], rp.err = struct{}{}, err
}

// waitForWork sleeps until the next commit, or until what failed is due.
func (rp *reaper) waitForWork(ctx context.Context) {
	if len(rp.failed) == 0 {
		rp.pause = 0
		rp.gc.Stands("collecting dependents", nil)
	} else {
		if rp.due.IsZero() {
			rp.pause = min(max(2*rp.pause, retryFirst), retryLast)
			rp.due = time.Now().Add(rp.pause)
			rp.gc.Stands("collecting dependents", rp.err)
		}
	}
	if rp.log.Wait(ctx, rp.due, nil); !rp.due.IsZero() && !time.Now().Before(rp.due) {
		maps.Copy(rp.dirty, rp.failed)
		clear(rp.failed)
		rp.due = time.Time{}
	}
}

// ---- Examining an object ----

// An item is an object as it is stored now.
type item struct {
	res             *scheme.Resource
	namespace, name string
	uid             types.UID
	rec             store.Record
}

func (rp *reaper) item(key string) (it item, err error) {
	base, namespace, name, _ := scheme.SplitKey(key)
	it = item{res: rp.kinds.byBase[base], namespace: namespace, name: name}
	if it.res == nil {
		return it, errUnserved
	}
	if it.rec, err = rp.gc.Store.Get(key); err == nil {
		it.uid = types.UID(uidOf(it.rec.JSON))
	} else if errors.Is(err, store.ErrDamaged) {
		rp.mu.Lock()
		defer rp.mu.Unlock()
		rp.lost = true
	}
	return it, err
}

// examine does what an object's owners, or its own deletion, ask for.
func (rp *reaper) examine(ctx context.Context, key string) (err error) {
	for range reapTries {
		if err = rp.examineOnce(ctx, key); !apierrors.IsConflict(err) {
			break
		}
	}
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, errReplaced) || registry.Hopeless(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// examineOnce sees the newest object but an older graph. Only what is decided from the graph alone has to wait for it to catch up; the
// object's event will then bring it here again.
func (rp *reaper) examineOnce(ctx context.Context, key string) error {
	it, err := rp.item(key)
	if err != nil {
		return err
	}
	if !it.rec.Deleting {
		return rp.ownerStateOf(ctx, &it)
	}
	finalizers := finalizersOf(it.rec.JSON)
	switch {
	case it.rec.Rev > rp.log.Rev():
		return nil
	case slices.Contains(finalizers, metav1.FinalizerOrphanDependents):
		return rp.orphan(ctx, &it)
	case slices.Contains(finalizers, metav1.FinalizerDeleteDependents) && !rp.isBlocked(&it):
		return rp.removeFinalizer(ctx, &it, metav1.FinalizerDeleteDependents)
	}
	return nil
}

func (rp *reaper) dependentsOf(uid types.UID) []string {
	return rp.graph.owners[rp.graph.id(string(uid))]
}

// isBlocked says that a dependent where one may be, in the owner's namespace or of an owner in none, holds its deletion back.
func (rp *reaper) isBlocked(owner *item) bool {
	namespace := anywhere
	if owner.res.Namespaced {
		namespace = owner.namespace
	}
	return rp.graph.claims[rp.graph.claim(string(owner.uid), owner.res.Group, owner.res.Kind, namespace)] > 0
}

// ownerState is what a reference leads to.
type ownerState int

const (
	ownerAbsent  ownerState = iota // no such object, or one of another uid
	ownerWaiting                   // it is being deleted in the foreground
	ownerSolid
)

// ownerStateOf keeps, loosens or deletes an object, depending on its owners. A reference that cannot be looked up keeps the object.
func (rp *reaper) ownerStateOf(ctx context.Context, it *item) error {
	owners, err := decodeReferences(referencesOf(it.rec.JSON))
	if err != nil || len(owners) == 0 {
		return err
	}
	var drop []types.UID
	solid, waiting := false, false
	var absent []metav1.OwnerReference // without the owners whose deletion the log has just shown
	for i := range owners {
		if it.misplaced(&owners[i], rp.kinds) {
			rp.reportInvalidNamespace(ctx, it, owners[i:i+1])
			return nil
		}
		state, err := rp.lookUp(&owners[i], it.namespace)
		if err != nil {
			return err
		}
		if _, gone := rp.gone[string(owners[i].UID)]; state == ownerAbsent && !gone {
			absent = append(absent, owners[i])
		}
		if state == ownerWaiting && !rp.isWaiting(owners[i].UID) {
			return nil
		}
		solid, waiting = solid || state == ownerSolid, waiting || state == ownerWaiting
		if state != ownerSolid {
			drop = append(drop, owners[i].UID)
		}
	}
	rp.reportInvalidNamespace(ctx, it, absent)
	switch {
	case solid && len(drop) == 0:
		return nil
	case solid:
		return rp.dropReferences(ctx, it, drop)
	case waiting && len(rp.dependentsOf(it.uid)) > 0:
		return rp.deleteInForeground(ctx, it)
	}
	return rp.delete(ctx, it, propagationOf(finalizersOf(it.rec.JSON)))
}

// isWaiting says that the graph, too, knows of an owner's deletion in the foreground, and so of all that was there before it. A graph that
// lags may lack the object's own dependents: without them it would go in the background, and its owner before they do. The owner's event
// will bring the object here again.
func (rp *reaper) isWaiting(owner types.UID) bool {
	return rp.waiting[rp.graph.id(string(owner))] != ""
}

// misplaced says that an object of no namespace names an owner that is in one: nobody can tell which. Such an object stays.
func (it *item) misplaced(ref *metav1.OwnerReference, k *kinds) bool {
	owner := k.byKind[kindName{ref.APIVersion, ref.Kind}]
	return owner != nil && owner.Namespaced && it.namespace == ""
}

// lookUp finds the object that a reference names: in the dependent's own namespace, or in none.
func (rp *reaper) lookUp(ref *metav1.OwnerReference, namespace string) (ownerState, error) {
	if _, gone := rp.gone[string(ref.UID)]; gone {
		return ownerAbsent, nil
	}
	res := rp.kinds.byKind[kindName{ref.APIVersion, ref.Kind}]
	if res == nil {
		return ownerAbsent, errUnserved
	}
	if !res.Namespaced {
		namespace = ""
	}
	rec, err := rp.gc.Store.Get(res.Key(namespace, ref.Name))
	switch {
	case errors.Is(err, store.ErrNotFound):
		return ownerAbsent, rp.isServedHere(res)
	case err != nil:
		return ownerAbsent, err
	case uidOf(rec.JSON) == "": // it stands for one that cannot be read, and may be this
		return ownerSolid, nil
	case uidOf(rec.JSON) != string(ref.UID):
		return ownerAbsent, rp.isServedHere(res)
	case rec.Deleting && slices.Contains(finalizersOf(rec.JSON), metav1.FinalizerDeleteDependents):
		return ownerWaiting, nil
	}
	return ownerSolid, nil
}

// isServedHere is an error where an APIService has another server answer for a type's group version, though this one has the type, too: what that one has
// is in no store of ours. It is asked of the store, since whoever follows APIServices may not have heard yet.
func (rp *reaper) isServedHere(res *scheme.Resource) error {
	rec, err := rp.gc.Store.Get(apiServiceRange + "/" + res.Version + "." + res.Group)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case err == nil && gjson.GetBytes(rec.JSON, "spec.service").IsObject():
		return errUnserved
	}
	return err
}

// propagationOf honours a finalizer that already says what shall become of an object's own dependents.
func propagationOf(finalizers []string) metav1.DeletionPropagation {
	switch {
	case slices.Contains(finalizers, metav1.FinalizerOrphanDependents):
		return metav1.DeletePropagationOrphan
	case slices.Contains(finalizers, metav1.FinalizerDeleteDependents):
		return metav1.DeletePropagationForeground
	}
	return metav1.DeletePropagationBackground
}

// delete deletes the object that was examined, and no other version of it: somebody may just have given it an owner.
func (rp *reaper) delete(ctx context.Context, it *item, policy metav1.DeletionPropagation) error {
	rev := strconv.FormatInt(it.rec.Rev, 10)
	options := &metav1.DeleteOptions{PropagationPolicy: &policy, Preconditions: &metav1.Preconditions{UID: &it.uid, ResourceVersion: &rev}}
	t := registry.Target{Resource: it.res.AsStored(), Namespace: it.namespace, Name: it.name}
	ctx, done := rp.gc.begin(ctx, garbageCollector, "delete", t)
	_, _, err := rp.gc.Writer.Delete(ctx, it.res.AsStored(), it.namespace, it.name, options)
	done(err)
	return err
}

// deleteInForeground hands an owner's deletion on to an object that is an owner itself. In a circle the two would wait for each other:
// an object with a dependent that is already waiting stops to hold its owners back first.
func (rp *reaper) deleteInForeground(ctx context.Context, it *item) error {
	for _, key := range rp.dependentsOf(it.uid) {
		dependent, err := rp.item(key)
		if err != nil || !dependent.rec.Deleting {
			continue
		}
		if !slices.Contains(finalizersOf(dependent.rec.JSON), metav1.FinalizerDeleteDependents) {
			continue
		}
		if err := rp.unblock(ctx, it); err != nil {
			return err
		}
		break
	}
	return rp.delete(ctx, it, metav1.DeletePropagationForeground)
}

// ---- Changing an object ----

// change edits an object if it is still the one that was examined, and remembers what became of it.
func (rp *reaper) change(ctx context.Context, it *item, edit func(scheme.Object)) error {
	t := registry.Target{Resource: it.res.AsStored(), Namespace: it.namespace, Name: it.name}
	ctx, done := rp.gc.begin(ctx, garbageCollector, "patch", t)
	rec, _, err := rp.gc.Writer.Modify(ctx, t, registry.Options{Manager: CollectorName}, func(old scheme.Object, _ *store.Record) (scheme.Object, error) {
		if old.GetUID() != it.uid {
			return nil, errReplaced
		}
		obj := old.DeepCopyObject().(scheme.Object)
		edit(obj)
		return obj, nil
	})
	done(err)
	if err == nil {
		it.rec = rec
	}
	return err
}

// dropReferences removes the references to owners. That of one that is waiting goes, too, or it would wait for ever.
func (rp *reaper) dropReferences(ctx context.Context, it *item, owners []types.UID) error {
	return rp.change(ctx, it, func(obj scheme.Object) {
		var kept []metav1.OwnerReference // nil, not empty, when none is left
		dropped := make(map[types.UID]bool, len(owners))
		for _, uid := range owners {
			dropped[uid] = true
		}
		for _, ref := range obj.GetOwnerReferences() {
			if !dropped[ref.UID] {
				kept = append(kept, ref)
			}
		}
		obj.SetOwnerReferences(kept)
	})
}

// unblock lets an object's owners go before it does.
func (rp *reaper) unblock(ctx context.Context, it *item) error {
	return rp.change(ctx, it, func(obj scheme.Object) {
		references := obj.GetOwnerReferences()
		for i := range references {
			if references[i].BlockOwnerDeletion != nil {
				no := false
				references[i].BlockOwnerDeletion = &no
			}
		}
		obj.SetOwnerReferences(references)
	})
}

// removeFinalizer lets an owner go, as far as the collector is concerned.
func (rp *reaper) removeFinalizer(ctx context.Context, it *item, name string) error {
	return rp.change(ctx, it, func(obj scheme.Object) {
		var kept []string
		for _, finalizer := range obj.GetFinalizers() {
			if finalizer != name {
				kept = append(kept, finalizer)
			}
		}
		obj.SetFinalizers(kept)
	})
}

// orphan frees an owner's dependents, then the owner.
func (rp *reaper) orphan(ctx context.Context, it *item) error {
	err := registry.Parallel(rp.dependentsOf(it.uid), CollectorSeats, func(key string) error {
		dependent, err := rp.item(key)
		if err == nil {
			err = rp.dropReferences(ctx, &dependent, []types.UID{it.uid})
		}
		if errors.Is(err, store.ErrNotFound) || errors.Is(err, errUnserved) || errors.Is(err, errReplaced) || registry.Hopeless(err) || apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	return rp.removeFinalizer(ctx, it, metav1.FinalizerOrphanDependents)
}

// ---- Namespaces ----

// An emptier deletes what is in namespaces that are being deleted, and then lets them go. One goroutine runs it.
type emptier struct {
	gc   *Collector
	log  *store.Follower      // of namespaces
	rest *store.Follower      // of everything, while some are being deleted
	open map[string]*emptying // by name: namespaces that are being deleted
}

// An Elsewhere deletes what other servers have in a namespace, in its own time, and says what is left by the channel, which has room for that; nil: there
// are none.
type Elsewhere func(ctx context.Context, namespace string) <-chan Rest

// A Rest is what is left of a namespace on other servers.
type Rest struct {
	Objects, Finalizers map[string]int // by what they are called
	Unknown             error          // whether there is something cannot be found out
	Failed              []error
}

// An emptying is one of them. Whoever empties it has it to itself.
type emptying struct {
	abroad  <-chan Rest   // what other servers still have is found out
	changed bool          // something happened in it since it was last looked through
	begins  time.Time     // it is left alone until then
	last    time.Time     // when it was last looked through
	pause   time.Duration // until other servers are asked again that had something left, or were away; doubled each time up to retryLast
	waits   []string      // ranges that held objects then
	done    bool          // it is empty; others hold it back, if anybody
}

// run reads which namespaces are being deleted, then the log: all of it while there are some, since everything in them matters.
func (e *emptier) run(ctx context.Context) error {
	e.begin()
	for ctx.Err() == nil {
		if err := e.catchUp(ctx); err != nil {
			return err
		}
		if e.work(ctx) {
			continue
		}
		log := e.rest
		if len(e.open) == 0 {
			log = e.log
		}
		log.Wait(ctx, e.refresh(), nil)
	}
	return ctx.Err()
}

func (e *emptier) begin() {
	e.log, e.rest, e.open = e.gc.Store.Follow(NamespaceRange), e.gc.Store.Follow(store.Everything), map[string]*emptying{}
}

func (e *emptier) catchUp(ctx context.Context) error {
	now := e.gc.Store.Revision()
	if err := e.log.CatchUp(ctx, func() { clear(e.open) }, e.apply); err != nil {
		return err
	}
	skip := func() {
		e.rest.From(now)
		for _, em := range e.open {
			em.changed = true
		}
	}
	if len(e.open) == 0 {
		skip()
		return nil
	}
	return e.rest.CatchUp(ctx, skip, e.note)
}

// note has a namespace looked through in which something happened, and those that wait for other servers when one of these comes or goes.
func (e *emptier) note(ev *store.Event) {
	namespace, _ := scheme.NamespacedName(ev.Key)
	if em := e.open[namespace]; em != nil {
		em.changed, em.pause = true, 0
	}
	if strings.HasPrefix(ev.Key, apiServiceRange) {
		for _, em := range e.open {
			em.pause = 0
		}
	}
}

// apply notes a namespace's deletion, and its end.
func (e *emptier) apply(ev *store.Event) {
	_, name := scheme.NamespacedName(ev.Key)
	switch {
	case ev.Deleted:
		delete(e.open, name)
	case ev.Deleting:
		em := e.open[name]
		if em == nil {
			em = &emptying{changed: true, begins: time.Now().Add(e.gc.Grace)}
			e.open[strings.Clone(name)] = em
		}
		if isFinalized(ev.JSON) { // nobody is going to do it now
			em.begins = time.Time{}
		}
	}
}

func isFinalized(namespace []byte) bool {
	return gjson.GetBytes(namespace, "spec.finalizers.0").Raw == ""
}

// due is when a namespace in which something happened is to be looked through.
func (em *emptying) due() time.Time {
	switch {
	case em.last.IsZero():
		return em.begins
	case em.abroad != nil: // it may be known by then
		return em.last.Add(refreshEvery)
	}
	return em.last.Add(max(refreshEvery, em.pause))
}

// work looks through the namespaces that are due, if there are any.
func (e *emptier) work(ctx context.Context) bool {
	var due []string
	for name, em := range e.open {
		if em.changed && !em.done && (!time.Now().Before(em.due()) || e.settled(em)) {
			due = append(due, name)
		}
	}
	_ = registry.Parallel(due, registry.DeleteWorkers, func(name string) error {
		e.empty(ctx, name, e.open[name])
		return nil
	})
	return len(due) > 0
}

// settled says that all a namespace waited for is gone.
func (e *emptier) settled(em *emptying) bool {
	for _, prefix := range em.waits {
		if objects, _, _ := e.gc.Store.Count(prefix); objects > 0 {
			return false
		}
	}
	return len(em.waits) > 0
}

// refresh is when the next namespace is due, and zero if nothing has happened in any.
func (e *emptier) refresh() (first time.Time) {
	for _, em := range e.open {
		if em.changed && !em.done && (first.IsZero() || em.due().Before(first)) {
			first = em.due()
		}
	}
	return first
}

// empty deletes what is in a namespace, tells what remains, and lets the namespace go if that is nothing.
func (e *emptier) empty(ctx context.Context, name string, em *emptying) {
	em.changed, em.last, em.waits = false, time.Now(), nil
	rest := newRemains()
	e.clear(ctx, name, rest)
	if rest.isClear() && !e.lookAbroad(ctx, name, em, rest) {
		return // it is looked through again when that is known
	}
	err := e.report(ctx, name, rest)
	if err == nil && rest.isClear() {
		err = e.release(ctx, name)
		em.done = err == nil
	}
	if err = errors.Join(append(rest.errs, rest.abroad.Unknown, err)...); ctx.Err() == nil {
		if err != nil {
			err = errors.New(shortened(err.Error()))
		}
		e.gc.Stands("emptying namespace "+name, err)
		em.changed = em.changed || err != nil || !rest.abroad.isClear()
	}
	if em.pause = min(max(2*em.pause, refreshEvery), retryLast); rest.abroad.isClear() {
		em.pause = 0
	}
	for res := range rest.objects {
		em.waits = append(em.waits, res.KeyPrefix(name))
	}
}

// remains is what a look through a namespace found that could not be deleted at once.
type remains struct {
	mu         sync.Mutex
	objects    map[*scheme.Resource]int
	finalizers map[string]int
	errs       []error
	abroad     Rest
}

func (rest *remains) isClear() bool {
	return len(rest.objects) == 0 && len(rest.errs) == 0 && rest.abroad.isClear()
}

func (r *Rest) isClear() bool { return len(r.Objects) == 0 && r.Unknown == nil && len(r.Failed) == 0 }

// lookAbroad has other servers delete what they have in a namespace, and says whether it is known what is left there. It waits for nobody: a server
// that hangs is not to hold other namespaces back.
func (e *emptier) lookAbroad(ctx context.Context, name string, em *emptying, rest *remains) (known bool) {
	if em.abroad == nil {
		if e.gc.Elsewhere == nil {
			return true
		}
		if em.abroad = e.gc.Elsewhere(ctx, name); em.abroad == nil {
			return true
		}
	}
	select {
	case rest.abroad = <-em.abroad:
		em.abroad = nil
		rest.errs = append(rest.errs, rest.abroad.Failed...)
		return true
	default:
		em.changed = true
		return false
	}
}

func newRemains() *remains {
	return &remains{objects: map[*scheme.Resource]int{}, finalizers: map[string]int{}}
}

func (rest *remains) add(res *scheme.Resource, rec *store.Record) {
	rest.mu.Lock()
	defer rest.mu.Unlock()
	rest.objects[res]++
	for _, name := range finalizersOf(rec.JSON) {
		rest.finalizers[name]++
	}
}

// clear deletes the pods of a namespace, and when there are none (they may need what is beside them to end well) all the rest.
func (e *emptier) clear(ctx context.Context, namespace string, rest *remains) {
	rows := newKinds(e.gc.Types.Current.Load()).byBase
	e.clearOf(ctx, rows[podRange], namespace, rest)
	if len(rest.objects) > 0 || len(rest.errs) > 0 {
		return
	}
	for _, res := range rows {
		if res.Namespaced {
			e.clearOf(ctx, res, namespace, rest)
		}
	}
}

// clearOf deletes one resource's objects in a namespace.
func (e *emptier) clearOf(ctx context.Context, res *scheme.Resource, namespace string, rest *remains) {
	if objects, _, _ := e.gc.Store.Count(res.KeyPrefix(namespace)); objects == 0 {
		return
	}
	found, failed := 0, error(nil)
	var err error
	for c, unread := range e.gc.Store.Chunks(store.Span{Prefix: res.KeyPrefix(namespace), Sound: true}) {
		if err = cmp.Or(unread, ctx.Err()); err != nil {
			break
		}
		records := slices.Clone(c.Records)
		for _, key := range c.Damaged {
			records = append(records, store.Record{Key: key})
		}
		if len(c.Sealed) > 0 {
			failed = cmp.Or(failed, c.Sealed[0].Err)
		}
		found += len(records)
		failed = cmp.Or(failed, registry.Parallel(records, CollectorSeats, func(rec store.Record) error {
			gone, err := e.remove(ctx, res, &rec)
			if err == nil && !gone {
				rest.add(res, &rec)
			}
			return err
		}))
	}
	err = cmp.Or(err, failed)
	if objects, _, _ := e.gc.Store.Count(res.KeyPrefix(namespace)); err == nil && found == 0 && objects > 0 {
		err = fmt.Errorf("%d %s lie on a page of the data file that is damaged", objects, res.Plural)
	}
	if err != nil {
		rest.errs = append(rest.errs, err)
	}
}

// remove deletes one object, unless that has been done and something holds it back; rec is then its newest state. A pod on a node that
// is not there has no kubelet that would ever end it.
func (e *emptier) remove(ctx context.Context, res *scheme.Resource, rec *store.Record) (gone bool, err error) {
	namespace, name := scheme.NamespacedName(rec.Key)
	background := metav1.DeletePropagationBackground
	options := &metav1.DeleteOptions{PropagationPolicy: &background}
	if node := nodeOf(rec); node != "" {
		if _, err := e.gc.Store.Get("//nodes//" + node); errors.Is(err, store.ErrNotFound) {
			options.GracePeriodSeconds = new(int64)
		}
	}
	if rec.Deleting && options.GracePeriodSeconds == nil && res.Readable(rec.JSON) == nil {
		return false, nil
	}
	ctx, done := e.gc.begin(ctx, namespaceController, "delete", registry.Target{Resource: res.AsStored(), Namespace: namespace, Name: name})
	now, gone, err := e.gc.Writer.Delete(ctx, res.AsStored(), namespace, name, options)
	done(err)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err == nil {
		*rec = now
	}
	return gone, err
}

func nodeOf(rec *store.Record) string {
	if !strings.HasPrefix(rec.Key, podRange) {
		return ""
	}
	return gjson.GetBytes(rec.JSON, "spec.nodeName").String()
}

// report writes what remains of a namespace into its status, in the words of Kubernetes' namespace controller. (That one says nothing
// about pods while it waits for them.)
func (e *emptier) report(ctx context.Context, name string, rest *remains) error {
	t := registry.Target{Resource: e.gc.Types.Lookup("", "v1", "namespaces"), Name: name, Subresource: "status"}
	ctx, done := e.gc.begin(ctx, namespaceController, "update", t)
	_, _, err := e.gc.Writer.Modify(ctx, t, registry.Options{Manager: CollectorName}, func(old scheme.Object, _ *store.Record) (scheme.Object, error) {
		ns := old.DeepCopyObject().(*corev1.Namespace)
		if ns.DeletionTimestamp == nil { // another one of that name
			return ns, nil
		}
		for _, condition := range rest.conditions() {
			setNamespaceCondition(&ns.Status, condition)
		}
		return ns, nil
	})
	done(err)
	if apierrors.IsNotFound(err) || registry.Hopeless(err) {
		return nil
	}
	return err
}

// namespaceVerdicts are the conditions of a namespace that is being deleted, and what they say when all is well and when it is not. The
// second cannot go wrong here, and the first only for other servers: this one knows its own resources.
var namespaceVerdicts = []struct {
	kind                         corev1.NamespaceConditionType
	good, goodText, bad, badText string
}{
	{corev1.NamespaceDeletionDiscoveryFailure, "ResourcesDiscovered", "All resources successfully discovered",
		"DiscoveryFailed", "Discovery failed for some groups, %d failing: "},
	{kind: corev1.NamespaceDeletionGVParsingFailure, good: "ParsedGroupVersions", goodText: "All legacy kube types successfully parsed"},
	{corev1.NamespaceDeletionContentFailure, "ContentDeleted", "All content successfully deleted, may be waiting on finalization",
		"ContentDeletionFailed", "Failed to delete all resource types, %d remaining: "},
	{corev1.NamespaceContentRemaining, "ContentRemoved", "All content successfully removed",
		"SomeResourcesRemain", "Some resources are remaining: "},
	{corev1.NamespaceFinalizersRemaining, "ContentHasNoFinalizers", "All content-preserving finalizers finished",
		"SomeFinalizersRemain", "Some content in the namespace has finalizers remaining: "},
}

// conditions say what remains.
func (rest *remains) conditions() (conditions []corev1.NamespaceCondition) {
	problems := rest.problems()
	for _, verdict := range namespaceVerdicts {
		c := corev1.NamespaceCondition{Type: verdict.kind, Status: corev1.ConditionFalse, Reason: verdict.good, Message: verdict.goodText}
		if found := problems[verdict.kind]; len(found) > 0 {
			slices.Sort(found)
			c.Status, c.Reason = corev1.ConditionTrue, verdict.bad
			c.Message = shortened(strings.Replace(verdict.badText, "%d", strconv.Itoa(len(found)), 1) + strings.Join(found, ", "))
		}
		conditions = append(conditions, c)
	}
	return conditions
}

// maxReport bounds the text of a condition or log line, in bytes. Other servers choose the names and messages in it.
const maxReport = 8 << 10

// shortened returns at most maxReport bytes of the text.
func shortened(text string) string {
	if len(text) <= maxReport {
		return text
	}
	return strings.ToValidUTF8(text[:maxReport], "") + "..."
}

func (rest *remains) problems() map[corev1.NamespaceConditionType][]string {
	var errs, objects, finalizers, unknown []string
	if rest.abroad.Unknown != nil {
		unknown = append(unknown, rest.abroad.Unknown.Error())
	}
	for what, n := range rest.abroad.Objects {
		objects = append(objects, fmt.Sprintf("%s has %d resource instances", what, n))
	}
	for name, n := range rest.abroad.Finalizers {
		finalizers = append(finalizers, fmt.Sprintf("%s in %d resource instances", name, n))
	}
	for _, err := range rest.errs {
		errs = append(errs, err.Error())
	}
	for res, n := range rest.objects {
		objects = append(objects, fmt.Sprintf("%s.%s has %d resource instances", res.Plural, res.Group, n))
	}
	for name, n := range rest.finalizers {
		finalizers = append(finalizers, fmt.Sprintf("%s in %d resource instances", name, n))
	}
	return map[corev1.NamespaceConditionType][]string{corev1.NamespaceDeletionDiscoveryFailure: unknown, corev1.NamespaceDeletionContentFailure: errs,
		corev1.NamespaceContentRemaining: objects, corev1.NamespaceFinalizersRemaining: finalizers}
}

// setNamespaceCondition puts a condition in its place. Its time is that of the last change between True and False.
func setNamespaceCondition(status *corev1.NamespaceStatus, c corev1.NamespaceCondition) {
	c.LastTransitionTime = metav1.Now().Rfc3339Copy()
	for i := range status.Conditions {
		if old := &status.Conditions[i]; old.Type == c.Type {
			if old.Status == c.Status {
				c.LastTransitionTime = old.LastTransitionTime
			}
			*old = c
			return
		}
	}
	status.Conditions = append(status.Conditions, c)
}

// release removes the finalizer that kept an empty namespace, which then goes unless it has finalizers of its own.
func (e *emptier) release(ctx context.Context, name string) error {
	t := registry.Target{Resource: e.gc.Types.Lookup("", "v1", "namespaces"), Name: name, Subresource: "finalize"}
	ctx, done := e.gc.begin(ctx, namespaceController, "update", t)
	_, _, err := e.gc.Writer.Modify(ctx, t, registry.Options{Manager: CollectorName}, func(old scheme.Object, _ *store.Record) (scheme.Object, error) {
		ns := old.DeepCopyObject().(*corev1.Namespace)
		if ns.DeletionTimestamp == nil { // another one of that name
			return ns, nil
		}
		ns.Spec.Finalizers = slices.DeleteFunc(ns.Spec.Finalizers, func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
		return ns, nil
	})
	done(err)
	if registry.Hopeless(err) {
		_, _, err = e.gc.Writer.Delete(ctx, t.Resource, "", name, &metav1.DeleteOptions{})
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// ---- Events that have grown old ----

// ExpireEvents deletes Events that were last written longer ago than EventTTL. The store knows which revision was current then.
func (gc *Collector) ExpireEvents(ctx context.Context) error {
	if gc.EventTTL <= 0 {
		return nil
	}
	limit := gc.Maintenance.RevisionBefore(gc.Store.Now().Add(-gc.EventTTL))
	var failed error // one of them; the others are deleted
	for start := ""; limit > 0 && ctx.Err() == nil; {
		records, next, err := gc.Store.OlderThan(eventRange, limit, 500, start)
		if err != nil {
			return err
		}
		failed = cmp.Or(failed, registry.Parallel(records, registry.DeleteWorkers, func(rec store.Record) error { return gc.expire(ctx, &rec) }))
		if start = next; next == "" {
			break
		}
	}
	return failed
}

// expire deletes one old Event, unless it has been written again or something holds it back.
func (gc *Collector) expire(ctx context.Context, rec *store.Record) error {
	if len(finalizersOf(rec.JSON)) > 0 {
		return nil
	}
	_, err := gc.Store.Commit(ctx, registry.Tombstone(rec))
	if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// begin starts the record of one write by an account. done is to be told how the write ended.
func (gc *Collector) begin(ctx context.Context, account, verb string, t registry.Target) (_ context.Context, done func(error)) {
	if gc.Begin == nil {
		return ctx, func(error) {}
	}
	res := t.Resource
	info := request.Info{ResourceRequest: true, Verb: verb, APIPrefix: "apis", Group: res.Group, Version: res.Version, Namespace: t.Namespace,
		Resource: res.Plural, Subresource: t.Subresource, Name: t.Name}
	if res.Group == "" {
		info.APIPrefix = "api"
	}
	return gc.Begin(ctx, request.User{Name: account}.Completed(""), info)
}
