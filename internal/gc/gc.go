// Package gc deletes the objects that depend on deleted objects. It replaces the garbage collector
// and the namespace controller of kube-controller-manager (pkg/controller/garbagecollector,
// pkg/controller/namespace), and expires Events:
//
//	object                                          action
//	------                                          ------
//	a dependent whose owners are all gone           delete it in the background
//	a dependent with some of its owners gone        remove the references to the owners that are gone
//	an owner, deleted in the foreground             delete its dependents; delete it when no dependent blocks it
//	an owner, deleted as orphaning                  remove the references to it from its dependents, then delete it
//	a namespace that is being deleted               after a second delete its pods, then all other objects in it, then it
//	an Event older than --event-ttl                 delete it
//	a dependent whose owner is in another namespace write a Warning event for the dependent, and treat the owner as absent
//
//	col := &gc.Collector{Store: st, Maintenance: up, Types: reg, Writer: wr, EventTTL: time.Hour, Grace: gc.NamespaceGrace, Report: logonce.Report}
//	go col.Run(ctx)
//
// Two loops follow the store's event log in the same way as watchers. The reaper follows owners,
// and the emptier follows namespaces. Each loop starts by reading the current objects. It then
// waits for new commits and processes the changed objects concurrently.
//
// The collector has no persistent state. All its knowledge is derived from the store, so it may be
// stopped at any time. An object is only deleted if all of its owners have been looked up and do
// not exist, or have a different uid.
//
// For example, assume that Deployment d owns ReplicaSet r, which owns Pod p. DELETE d removes it at
// revision 10. The reaper reads the tombstone and finds r in the list of dependents for the uid of
// d. Since r has no other owners, it is deleted at revision 11. The same steps then delete p.
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
	NamespacePrefix = "//namespaces/" // prefix of the keys of Namespaces
	eventRange      = "//events/"
	podRange        = "//pods/"

	apiServiceRange = "/apiregistration.k8s.io/apiservices/"

	CollectorName = "kube-controller-manager" // field manager of the collector's updates
	// maximum number of objects that are processed concurrently, so their commits share an fsync
	CollectorWorkers = 128
	// maximum number of objects that are processed between two reads of the log
	reapBatch   = 1024
	intactMax   = 1024        // maximum number of cached references whose owners exist
	maxAttempts = 10          // attempts to process an object that other clients also modify
	retryFirst  = time.Second // initial delay of a retry, doubled up to retryLast
	retryLast   = time.Minute
	// minimum time between two passes over a waiting namespace because of changes in it
	refreshInterval = time.Second

	// NamespaceGrace is the time during which the collector does not touch a deleted namespace, for
	// clients that finalize it themselves. Some test suites were written for a control plane
	// without controllers. They DELETE a namespace, GET it and PUT its /finalize. They would get a
	// 409 or 404 if the namespace changed or disappeared in between. These three requests took at
	// most 7 ms in 300 runs on two cores with 25 busy processes, and three consecutive kubectl
	// commands take half a second. kube-controller-manager waits five seconds, which is long for a
	// user who waits for kubectl delete. A shorter time for empty namespaces would break these
	// suites, because most of their namespaces are empty.
	NamespaceGrace = time.Second
)

// A Collector deletes objects whose owners are gone, the contents of deleted namespaces, and
// expired Events.
type Collector struct {
	Store       *store.Store       // provides the event log
	Maintenance *store.Maintenance // maps times to revisions
	Types       *scheme.Registry   // resolves the types of references
	Writer      *registry.Writer   // executes deletes and updates in the same way as requests
	// value of --event-ttl: Events that have not been written for this duration are deleted
	EventTTL      time.Duration
	Grace         time.Duration // usually NamespaceGrace
	RemoteDeleter RemoteDeleter // nil if there are no other servers

	// Report receives the result of each retried operation. A nil error means that it succeeded
	// (logonce.Log.Report).
	Report func(what string, err error)

	// StartRequest creates the request record of one of the collector's writes, as if the user had
	// sent it over HTTP. The returned function receives the result of the write. StartRequest may
	// be nil, and then the writes are not recorded.
	StartRequest func(ctx context.Context, by request.User, info request.Info) (context.Context, func(error))
}

// Run runs the collector until ctx is done.
func (gc *Collector) Run(ctx context.Context) {
	var loops sync.WaitGroup
	loops.Go(func() { gc.RunUntilDone(ctx, "collecting dependents", (&reaper{gc: gc}).run) })
	loops.Go(func() { gc.RunUntilDone(ctx, "emptying namespaces", (&emptier{gc: gc}).run) })
	loops.Wait()
}

// RunUntilDone calls follow again when it returns. This happens if it could not read the log, or if
// its state is no longer valid (ErrCompacted).
func (gc *Collector) RunUntilDone(ctx context.Context, what string, follow func(context.Context) error) {
	for ctx.Err() == nil {
		began := time.Now()
		err := follow(ctx)
		if ctx.Err() != nil || errors.Is(err, store.ErrCompacted) {
			continue
		}
		if time.Since(began) > retryLast { // it has worked in the meantime
			gc.Report(what, nil)
		}
		gc.Report(what, err)
		select {
		case <-ctx.Done():
		case <-time.After(retryFirst):
		}
	}
}

// ---- Dependents ----

// A graph maps the uid of each owner to its dependents, even if the owner does not exist. Uids are
// stored as 64-bit hashes. A collision only causes an unnecessary lookup, or a delay. Keys account
// for most of the memory, about 100 bytes per reference.
//
// The dependents that block a foreground deletion are counted separately. The counters are indexed
// by the owner's kind in the reference and by the dependent's namespace. A reference with a uid
// from another namespace or with a wrong kind therefore does not block the deletion.
type graph struct {
	seed   maphash.Seed
	owners map[ownerID][]string // sorted keys of the dependents
	claims map[claimID]int      // number of blocking references for each claim
}

// A claimID is a hash of the uid and the kind of an owner and a namespace, which may be anywhere.
type claimID uint64

// anywhere represents all namespaces. It is not a valid name of a namespace.
const anywhere = "*"

type ownerID uint64

// An edge is a reference without the owner's name, which is only needed to look up the owner.
type edge struct {
	owner  ownerID
	blocks bool
	// claims for the owner in the dependent's namespace, and in any namespace
	claim, cited claimID
}

// newGraph returns an empty graph.
func newGraph() graph {
	return graph{seed: maphash.MakeSeed(), owners: map[ownerID][]string{}, claims: map[claimID]int{}}
}

// claim returns the claimID of a reference to an owner in a namespace.
func (g *graph) claim(uid, group, kind, namespace string) claimID {
	var h maphash.Hash
	h.SetSeed(g.seed)
	for _, part := range [...]string{uid, group, kind, namespace} {
		_, _ = h.WriteString(part)
		_ = h.WriteByte(0) // hash writes never fail
	}
	return claimID(h.Sum64())
}

func (g *graph) id(uid string) ownerID { return ownerID(maphash.String(g.seed, uid)) }

// edges returns the references of an object in a namespace. It ignores repeated references to the
// same owner, and references of an object to itself.
func (g *graph) edges(self ownerID, namespace, references string) (edges []edge) {
	list := gjson.Parse(references).Array()
	var places map[claimID]int // nil for short lists, where a linear search is faster
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

// referencesOf returns the raw JSON of metadata.ownerReferences, or "" if there are no references.
// It is called for every write of the server, so it first searches for the field name.
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

// uidOf returns metadata.uid of a stored object.
func uidOf(object []byte) string { return gjson.GetBytes(object, "metadata.uid").String() }

func finalizersOf(object []byte) (names []string) {
	for _, name := range gjson.GetBytes(object, "metadata.finalizers").Array() {
		names = append(names, name.String())
	}
	return names
}

// kinds is an index of the resource types by key prefix and by kind.
type kinds struct {
	catalog *scheme.Catalog
	byBase  map[string]*scheme.Resource
	byKind  map[kindName]*scheme.Resource
}

type kindName struct{ apiVersion, kind string }

// newKinds returns the index for a version of the type registry.
func newKinds(c *scheme.Catalog) *kinds {
	k := &kinds{catalog: c, byBase: map[string]*scheme.Resource{}, byKind: map[kindName]*scheme.Resource{}}
	for _, res := range c.Sorted {
		if res.Virtual {
			continue
		}
		k.byKind[kindName{res.APIVersion(), res.Kind}] = res
		if k.byBase[res.Base] == nil || res.ServesStorageVersion() {
			k.byBase[res.Base] = res
		}
	}
	return k
}

// ---- The reaper ----

// A reaper processes owner references. A single goroutine runs it. The objects are examined by
// other goroutines while the log is not being read. The reaper does not modify any fields that are
// used by these goroutines.
type reaper struct {
	gc      *Collector
	kinds   *kinds
	graph   graph
	log     *store.Follower    // follows all keys
	waiting map[ownerID]string // keys of owners that are being deleted in the foreground
	// cache of references to existing owners, by namespace; cleared after every deletion
	intactReferences map[string]struct{}
	deletedOwners    map[string]struct{} // uids of owners that have been deleted, but have dirty dependents
	dirty            map[string]struct{} // keys of objects to examine
	reports          *reports            // written events; kept when the graph is rebuilt

	mu     sync.Mutex          // guards the following fields while objects are examined
	parked map[string]struct{} // keys of objects with references to kinds that are not served
	failed map[string]struct{} // keys of objects to examine again later
	err    error               // the error of one of the failed objects
	// lost is set if an object in the graph can no longer be read, so the graph must be rebuilt.
	lost  bool
	pause time.Duration // current delay of retries
	due   time.Time     // time of the next retry, or zero if it is not scheduled
}

var (
	// returned by examine if the kind of the object or of an owner is not served
	errNotServed = errors.New("the kind is not served")
	// returned by change if the object has been replaced
	errReplaced = errors.New("another object has the name")
)

// run reads the existing objects and then follows the log.
func (rp *reaper) run(ctx context.Context) error {
	rp.log = rp.gc.Store.Follow(store.Everything)
	for ctx.Err() == nil {
		if err := rp.catchUp(ctx); err != nil {
			return err
		}
		if len(rp.dirty) > 0 {
			rp.processBatch(ctx)
			if rp.lost {
				return store.ErrCompacted // rebuild the graph without the unreadable objects
			}
			continue
		}
		// new maps, because a map never shrinks
		rp.dirty, rp.deletedOwners = map[string]struct{}{}, map[string]struct{}{}
		rp.waitForWork(ctx)
	}
	return ctx.Err()
}

// reset resets the graph. All owners are then looked up again, because deletions may have been
// missed.
func (rp *reaper) reset() {
	*rp = reaper{gc: rp.gc, log: rp.log, kinds: newKinds(rp.gc.Types.Current.Load()), graph: newGraph(), waiting: map[ownerID]string{},
		intactReferences: map[string]struct{}{}, deletedOwners: map[string]struct{}{}, dirty: map[string]struct{}{}, parked: map[string]struct{}{}, failed: map[string]struct{}{},
		reports: cmp.Or(rp.reports, &reports{})}
}

// catchUp updates the graph.
func (rp *reaper) catchUp(ctx context.Context) error {
	if c := rp.gc.Types.Current.Load(); rp.kinds != nil && c != rp.kinds.catalog {
		rp.kinds = newKinds(c)
		maps.Copy(rp.dirty, rp.parked)
		clear(rp.parked)
	}
	return rp.log.CatchUp(ctx, rp.reset, rp.apply)
}

// apply updates the graph for one event and marks the affected objects. It ignores objects of kind
// Event.
func (rp *reaper) apply(ev *store.Event) {
	if strings.HasPrefix(ev.Key, eventRange) {
		return
	}
	if strings.HasPrefix(ev.Key, apiServiceRange) { // the type may now be served by a different server
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
	if after != "" && !ev.Deleting && !rp.hasAllOwners(ev.Key, after) {
		rp.dirty[ev.Key] = struct{}{}
	}
}

// hasAllOwners reports whether all owners exist. If so, there is nothing to do. The result is
// cached, because most objects have the same references as a previous object. It is valid until the
// log contains the deletion of an owner. If an owner is deleted later, its event finds this object
// in the graph.
func (rp *reaper) hasAllOwners(key, references string) bool {
	namespace, _ := scheme.NamespacedName(key)
	what := namespace + references
	if _, known := rp.intactReferences[what]; known {
		return true
	}
	owners, err := decodeReferences(references)
	if err != nil {
		return false
	}
	for i := range owners {
		if state, err := rp.lookUp(&owners[i], namespace); err != nil || state != ownerPresent {
			return false
		}
	}
	if len(rp.intactReferences) >= intactMax {
		clear(rp.intactReferences)
	}
	rp.intactReferences[what] = struct{}{}
	return true
}

// removed removes a deleted object from the graph. It removes all dependents in one step, because
// removing them one by one from a sorted slice would be slow.
func (rp *reaper) removed(ev *store.Event) {
	uid := uidOf(ev.JSON)
	id := rp.graph.id(uid)
	clear(rp.intactReferences)
	delete(rp.waiting, id)
	delete(rp.parked, ev.Key)
	left := rp.graph.owners[id]
	if len(left) == 0 {
		return
	}
	rp.deletedOwners[uid] = struct{}{}
	rp.markDirty(left)
	delete(rp.graph.owners, id)
}

// applyDeletion records an owner that waits for the collector.
func (rp *reaper) applyDeletion(ev *store.Event) {
	finalizers := finalizersOf(ev.JSON)
	foreground := slices.Contains(finalizers, metav1.FinalizerDeleteDependents)
	id := rp.graph.id(uidOf(ev.JSON))
	if foreground && rp.waiting[id] == "" {
		clear(rp.intactReferences)
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

// processBatch examines a batch of dirty objects.
func (rp *reaper) processBatch(ctx context.Context) {
	batch := make([]string, 0, min(len(rp.dirty), reapBatch))
	for key := range rp.dirty {
		if len(batch) == reapBatch {
			break
		}
		delete(rp.dirty, key)
		batch = append(batch, key)
	}
	_ = registry.Parallel(batch, CollectorWorkers, func(key string) error {
		if err := rp.examine(ctx, key); err != nil {
			rp.postpone(key, err)
		}
		return nil
	})
}

// postpone schedules an object for later, either after the type registry changes or after a delay.
func (rp *reaper) postpone(key string, err error) {
	rp.mu.Lock()
	defer rp.mu.Unlock()
	if errors.Is(err, errNotServed) {
		rp.parked[key] = struct{}{}
		return
	}
	rp.failed[key], rp.err = struct{}{}, err
}

// waitForWork waits for the next commit, or for the next retry of failed objects.
func (rp *reaper) waitForWork(ctx context.Context) {
	if len(rp.failed) == 0 {
		rp.pause = 0
		rp.gc.Report("collecting dependents", nil)
	} else {
		if rp.due.IsZero() {
			rp.pause = min(max(2*rp.pause, retryFirst), retryLast)
			rp.due = time.Now().Add(rp.pause)
			rp.gc.Report("collecting dependents", rp.err)
		}
	}
	if rp.log.Wait(ctx, rp.due, nil); !rp.due.IsZero() && !time.Now().Before(rp.due) {
		maps.Copy(rp.dirty, rp.failed)
		clear(rp.failed)
		rp.due = time.Time{}
	}
}

// ---- Examining an object ----

// An item is the current version of a stored object.
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
		return it, errNotServed
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

// examine processes an object according to the state of its owners and its own deletion.
func (rp *reaper) examine(ctx context.Context, key string) (err error) {
	for range maxAttempts {
		if err = rp.examineOnce(ctx, key); !apierrors.IsConflict(err) {
			break
		}
	}
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, errReplaced) || registry.IsPermanent(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// examineOnce reads the newest version of the object, but the graph may be older. Decisions that
// depend only on the graph have to wait until the graph is up to date. The object's event then
// schedules the object again.
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

// isBlocked reports whether a dependent blocks the owner's deletion. The dependents of a namespaced
// owner must be in its namespace.
func (rp *reaper) isBlocked(owner *item) bool {
	namespace := anywhere
	if owner.res.Namespaced {
		namespace = owner.namespace
	}
	return rp.graph.claims[rp.graph.claim(string(owner.uid), owner.res.Group, owner.res.Kind, namespace)] > 0
}

// ownerState is the state of the owner in a reference.
type ownerState int

const (
	ownerAbsent  ownerState = iota // the object does not exist or has a different uid
	ownerWaiting                   // it is being deleted in the foreground
	ownerPresent
)

// ownerStateOf checks the owners of an object. Depending on the result, it deletes the object or
// removes some of the references. If a reference cannot be looked up, the object is kept.
func (rp *reaper) ownerStateOf(ctx context.Context, it *item) error {
	owners, err := decodeReferences(referencesOf(it.rec.JSON))
	if err != nil || len(owners) == 0 {
		return err
	}
	var drop []types.UID
	solid, waiting := false, false
	// excludes owners whose deletion was just read from the log
	var absent []metav1.OwnerReference
	for i := range owners {
		if it.hasNamespacedOwner(&owners[i], rp.kinds) {
			rp.reportInvalidNamespace(ctx, it, owners[i:i+1])
			return nil
		}
		state, err := rp.lookUp(&owners[i], it.namespace)
		if err != nil {
			return err
		}
		if _, gone := rp.deletedOwners[string(owners[i].UID)]; state == ownerAbsent && !gone {
			absent = append(absent, owners[i])
		}
		if state == ownerWaiting && !rp.isWaiting(owners[i].UID) {
			return nil
		}
		solid, waiting = solid || state == ownerPresent, waiting || state == ownerWaiting
		if state != ownerPresent {
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

// isWaiting reports whether the graph also contains the owner's foreground deletion, and therefore
// all earlier changes. An older graph might not contain the dependents of the object. In this case,
// the object would be deleted in the background and the owner would be deleted before the
// dependents. The owner's event schedules the object again.
func (rp *reaper) isWaiting(owner types.UID) bool {
	return rp.waiting[rp.graph.id(string(owner))] != ""
}

// hasNamespacedOwner reports whether a cluster-scoped object refers to a namespaced owner, whose
// namespace is unknown. Such an object is kept.
func (it *item) hasNamespacedOwner(ref *metav1.OwnerReference, k *kinds) bool {
	owner := k.byKind[kindName{ref.APIVersion, ref.Kind}]
	return owner != nil && owner.Namespaced && it.namespace == ""
}

// lookUp looks up the owner in the dependent's namespace, or at cluster scope.
func (rp *reaper) lookUp(ref *metav1.OwnerReference, namespace string) (ownerState, error) {
	if _, gone := rp.deletedOwners[string(ref.UID)]; gone {
		return ownerAbsent, nil
	}
	res := rp.kinds.byKind[kindName{ref.APIVersion, ref.Kind}]
	if res == nil {
		return ownerAbsent, errNotServed
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
	case uidOf(rec.JSON) == "": // the original object could not be read, but may have been the owner
		return ownerPresent, nil
	case uidOf(rec.JSON) != string(ref.UID):
		return ownerAbsent, rp.isServedHere(res)
	case rec.Deleting && slices.Contains(finalizersOf(rec.JSON), metav1.FinalizerDeleteDependents):
		return ownerWaiting, nil
	}
	return ownerPresent, nil
}

// isServedHere returns an error if another server serves the type's group version through an
// APIService, although this server also has the type. The other server's objects are not in this
// store. It reads the APIService from the store, because the followers of APIServices may lag
// behind.
func (rp *reaper) isServedHere(res *scheme.Resource) error {
	rec, err := rp.gc.Store.Get(apiServiceRange + "/" + res.Version + "." + res.Group)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case err == nil && gjson.GetBytes(rec.JSON, "spec.service").IsObject():
		return errNotServed
	}
	return err
}

// propagationOf returns the policy of an existing finalizer for the object's own dependents.
func propagationOf(finalizers []string) metav1.DeletionPropagation {
	switch {
	case slices.Contains(finalizers, metav1.FinalizerOrphanDependents):
		return metav1.DeletePropagationOrphan
	case slices.Contains(finalizers, metav1.FinalizerDeleteDependents):
		return metav1.DeletePropagationForeground
	}
	return metav1.DeletePropagationBackground
}

// delete deletes exactly the examined version of the object, because a client may just have added
// an owner.
func (rp *reaper) delete(ctx context.Context, it *item, policy metav1.DeletionPropagation) error {
	rev := strconv.FormatInt(it.rec.Rev, 10)
	options := &metav1.DeleteOptions{PropagationPolicy: &policy, Preconditions: &metav1.Preconditions{UID: &it.uid, ResourceVersion: &rev}}
	t := registry.Target{Resource: it.res.AsStored(), Namespace: it.namespace, Name: it.name}
	ctx, done := rp.gc.begin(ctx, garbageCollector, "delete", t)
	_, _, err := rp.gc.Writer.Delete(ctx, it.res.AsStored(), it.namespace, it.name, options)
	done(err)
	return err
}

// deleteInForeground deletes an object that is itself an owner in the foreground. If there is a
// cycle, the owners would wait for each other. To break the cycle, an object with a dependent that
// is already waiting first stops blocking its owners.
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

// change edits an object if it is still the examined one, and updates the item.
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

// dropReferences removes references to owners. This includes waiting owners, because the reference
// would delay their deletion forever.
func (rp *reaper) dropReferences(ctx context.Context, it *item, owners []types.UID) error {
	return rp.change(ctx, it, func(obj scheme.Object) {
		var kept []metav1.OwnerReference // nil instead of empty if none is left
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

// unblock allows the object's owners to be deleted before the object.
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

// removeFinalizer removes a finalizer from an owner.
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

// orphan removes the references from an owner's dependents, and then the finalizer of the owner.
func (rp *reaper) orphan(ctx context.Context, it *item) error {
	err := registry.Parallel(rp.dependentsOf(it.uid), CollectorWorkers, func(key string) error {
		dependent, err := rp.item(key)
		if err == nil {
			err = rp.dropReferences(ctx, &dependent, []types.UID{it.uid})
		}
		if errors.Is(err, store.ErrNotFound) || errors.Is(err, errNotServed) || errors.Is(err, errReplaced) || registry.IsPermanent(err) || apierrors.IsNotFound(err) {
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

// An emptier deletes the contents of terminating namespaces. A single goroutine runs it.
type emptier struct {
	gc         *Collector
	log        *store.Follower                  // follows namespaces
	rest       *store.Follower                  // follows all keys while namespaces are being deleted
	namespaces map[string]*terminatingNamespace // terminating namespaces, by name
}

// A RemoteDeleter asynchronously deletes the objects of a namespace on other servers. It sends the
// remaining objects to the returned channel, which is buffered. The channel is nil if there are no
// other servers.
type RemoteDeleter func(ctx context.Context, namespace string) <-chan Remaining

// Remaining contains information about the remaining objects of a namespace on other servers.
type Remaining struct {
	Objects, Finalizers map[string]int // counts by name of the resource or of the finalizer
	Err                 error          // error if the remaining objects cannot be determined
	Errors              []error
}

// An emptying contains the state of a terminating namespace. It is not safe for concurrent use.
type terminatingNamespace struct {
	remote   <-chan Remaining // not nil while the objects on other servers are being determined
	changed  bool             // the contents have changed since the last pass
	graceEnd time.Time        // end of the grace period
	last     time.Time        // time of the last pass
	// delay of the next request to other servers that were unavailable or had objects left; doubled
	// up to retryLast
	pause time.Duration
	waits []string // prefixes that contained objects in the last pass
	done  bool     // the namespace is empty, but there may be other finalizers
}

// run reads the namespaces that are being deleted and then follows the log. While there are such
// namespaces, all keys are followed in order to detect changes to their contents.
func (e *emptier) run(ctx context.Context) error {
	e.begin()
	for ctx.Err() == nil {
		if err := e.catchUp(ctx); err != nil {
			return err
		}
		if e.processDue(ctx) {
			continue
		}
		log := e.rest
		if len(e.namespaces) == 0 {
			log = e.log
		}
		log.Wait(ctx, e.refresh(), nil)
	}
	return ctx.Err()
}

func (e *emptier) begin() {
	e.log, e.rest, e.namespaces = e.gc.Store.Follow(NamespacePrefix), e.gc.Store.Follow(store.Everything), map[string]*terminatingNamespace{}
}

func (e *emptier) catchUp(ctx context.Context) error {
	now := e.gc.Store.Revision()
	if err := e.log.CatchUp(ctx, func() { clear(e.namespaces) }, e.apply); err != nil {
		return err
	}
	skip := func() {
		e.rest.From(now)
		for _, em := range e.namespaces {
			em.changed = true
		}
	}
	if len(e.namespaces) == 0 {
		skip()
		return nil
	}
	return e.rest.CatchUp(ctx, skip, e.markChanged)
}

// markChanged marks a namespace as changed if there was a change to its contents. After a change to
// an APIService, it resets the delays of all namespaces.
func (e *emptier) markChanged(ev *store.Event) {
	namespace, _ := scheme.NamespacedName(ev.Key)
	if em := e.namespaces[namespace]; em != nil {
		em.changed, em.pause = true, 0
	}
	if strings.HasPrefix(ev.Key, apiServiceRange) {
		for _, em := range e.namespaces {
			em.pause = 0
		}
	}
}

// apply records that a namespace is being deleted or has been deleted.
func (e *emptier) apply(ev *store.Event) {
	_, name := scheme.NamespacedName(ev.Key)
	switch {
	case ev.Deleted:
		delete(e.namespaces, name)
	case ev.Deleting:
		em := e.namespaces[name]
		if em == nil {
			em = &terminatingNamespace{changed: true, graceEnd: time.Now().Add(e.gc.Grace)}
			e.namespaces[strings.Clone(name)] = em
		}
		if isFinalized(ev.JSON) { // the client has already finalized it
			em.graceEnd = time.Time{}
		}
	}
}

func isFinalized(namespace []byte) bool {
	return gjson.GetBytes(namespace, "spec.finalizers.0").Raw == ""
}

// due returns the time of the next pass over a changed namespace.
func (em *terminatingNamespace) due() time.Time {
	switch {
	case em.last.IsZero():
		return em.graceEnd
	case em.remote != nil: // the result of the other servers may be available by then
		return em.last.Add(refreshInterval)
	}
	return em.last.Add(max(refreshInterval, em.pause))
}

// processDue processes the namespaces that are due. It reports whether there were any.
func (e *emptier) processDue(ctx context.Context) bool {
	var due []string
	for name, em := range e.namespaces {
		if em.changed && !em.done && (!time.Now().Before(em.due()) || e.arePreviousGone(em)) {
			due = append(due, name)
		}
	}
	_ = registry.Parallel(due, registry.DeleteWorkers, func(name string) error {
		e.empty(ctx, name, e.namespaces[name])
		return nil
	})
	return len(due) > 0
}

// arePreviousGone reports whether there are no more objects left from the previous pass.
func (e *emptier) arePreviousGone(em *terminatingNamespace) bool {
	for _, prefix := range em.waits {
		if objects, _, _ := e.gc.Store.Count(prefix); objects > 0 {
			return false
		}
	}
	return len(em.waits) > 0
}

// refresh returns the time at which the next namespace is due, or zero if no namespace has changed.
func (e *emptier) refresh() (first time.Time) {
	for _, em := range e.namespaces {
		if em.changed && !em.done && (first.IsZero() || em.due().Before(first)) {
			first = em.due()
		}
	}
	return first
}

// empty deletes the contents of a namespace and reports the remaining objects. If nothing remains,
// it releases the namespace.
func (e *emptier) empty(ctx context.Context, name string, em *terminatingNamespace) {
	em.changed, em.last, em.waits = false, time.Now(), nil
	rest := newRemains()
	e.clear(ctx, name, rest)
	if rest.isClear() && !e.deleteRemote(ctx, name, em, rest) {
		return // the next pass follows when the result is known
	}
	err := e.report(ctx, name, rest)
	if err == nil && rest.isClear() {
		err = e.release(ctx, name)
		em.done = err == nil
	}
	if err = errors.Join(append(rest.errs, rest.remote.Err, err)...); ctx.Err() == nil {
		if err != nil {
			err = errors.New(truncate(err.Error()))
		}
		e.gc.Report("emptying namespace "+name, err)
		em.changed = em.changed || err != nil || !rest.remote.isClear()
	}
	if em.pause = min(max(2*em.pause, refreshInterval), retryLast); rest.remote.isClear() {
		em.pause = 0
	}
	for res := range rest.objects {
		em.waits = append(em.waits, res.KeyPrefix(name))
	}
}

// remains contains information about objects that could not be deleted immediately.
type remains struct {
	mu         sync.Mutex
	objects    map[*scheme.Resource]int
	finalizers map[string]int
	errs       []error
	remote     Remaining
}

func (rest *remains) isClear() bool {
	return len(rest.objects) == 0 && len(rest.errs) == 0 && rest.remote.isClear()
}

func (r *Remaining) isClear() bool { return len(r.Objects) == 0 && r.Err == nil && len(r.Errors) == 0 }

// deleteRemote starts the deletion on other servers, and reports whether the remaining objects
// there are known. It does not block, because a server that does not respond must not delay other
// namespaces.
func (e *emptier) deleteRemote(ctx context.Context, name string, em *terminatingNamespace, rest *remains) (known bool) {
	if em.remote == nil {
		if e.gc.RemoteDeleter == nil {
			return true
		}
		if em.remote = e.gc.RemoteDeleter(ctx, name); em.remote == nil {
			return true
		}
	}
	select {
	case rest.remote = <-em.remote:
		em.remote = nil
		rest.errs = append(rest.errs, rest.remote.Errors...)
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

// clear deletes the pods of a namespace. The other objects are deleted when there are no pods left,
// because they may be needed for the termination of the pods.
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

// clearOf deletes all objects of a resource in the given namespace.
func (e *emptier) clearOf(ctx context.Context, res *scheme.Resource, namespace string, rest *remains) {
	if objects, _, _ := e.gc.Store.Count(res.KeyPrefix(namespace)); objects == 0 {
		return
	}
	found, failed := 0, error(nil)
	var err error
	for c, unread := range e.gc.Store.Chunks(store.Span{Prefix: res.KeyPrefix(namespace), SkipDamaged: true}) {
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
		failed = cmp.Or(failed, registry.Parallel(records, CollectorWorkers, func(rec store.Record) error {
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

// remove deletes one object unless it is already being deleted. If the object remains, rec is set
// to its newest version. A pod on a missing node is deleted without a grace period, because no
// kubelet would terminate it.
func (e *emptier) remove(ctx context.Context, res *scheme.Resource, rec *store.Record) (gone bool, err error) {
	namespace, name := scheme.NamespacedName(rec.Key)
	background := metav1.DeletePropagationBackground
	options := &metav1.DeleteOptions{PropagationPolicy: &background}
	if node := nodeOf(rec); node != "" {
		if _, err := e.gc.Store.Get("//nodes//" + node); errors.Is(err, store.ErrNotFound) {
			options.GracePeriodSeconds = new(int64)
		}
	}
	if rec.Deleting && options.GracePeriodSeconds == nil && res.CheckReadable(rec.JSON) == nil {
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

// report writes the remaining contents of a namespace to its status, in the words of Kubernetes'
// namespace controller. (Kubernetes does not report pods while it waits for them.)
func (e *emptier) report(ctx context.Context, name string, rest *remains) error {
	t := registry.Target{Resource: e.gc.Types.Lookup("", "v1", "namespaces"), Name: name, Subresource: "status"}
	ctx, done := e.gc.begin(ctx, namespaceController, "update", t)
	_, _, err := e.gc.Writer.Modify(ctx, t, registry.Options{Manager: CollectorName}, func(old scheme.Object, _ *store.Record) (scheme.Object, error) {
		ns := old.DeepCopyObject().(*corev1.Namespace)
		if ns.DeletionTimestamp == nil { // another namespace of the same name
			return ns, nil
		}
		for _, condition := range rest.conditions() {
			setNamespaceCondition(&ns.Status, condition)
		}
		return ns, nil
	})
	done(err)
	if apierrors.IsNotFound(err) || registry.IsPermanent(err) {
		return nil
	}
	return err
}

// namespaceVerdicts defines the conditions of a terminating namespace. The second condition cannot
// fail here. The first can fail only for other servers, because the types of this server are known.
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

// conditions returns the conditions that describe the remaining contents.
func (rest *remains) conditions() (conditions []corev1.NamespaceCondition) {
	problems := rest.problems()
	for _, verdict := range namespaceVerdicts {
		c := corev1.NamespaceCondition{Type: verdict.kind, Status: corev1.ConditionFalse, Reason: verdict.good, Message: verdict.goodText}
		if found := problems[verdict.kind]; len(found) > 0 {
			slices.Sort(found)
			c.Status, c.Reason = corev1.ConditionTrue, verdict.bad
			c.Message = truncate(strings.Replace(verdict.badText, "%d", strconv.Itoa(len(found)), 1) + strings.Join(found, ", "))
		}
		conditions = append(conditions, c)
	}
	return conditions
}

// maxReport limits the text of a condition or log line, in bytes. It may include names and messages
// from other servers.
const maxReport = 8 << 10

// truncate returns at most maxReport bytes of the text.
func truncate(text string) string {
	if len(text) <= maxReport {
		return text
	}
	return strings.ToValidUTF8(text[:maxReport], "") + "..."
}

func (rest *remains) problems() map[corev1.NamespaceConditionType][]string {
	var errs, objects, finalizers, unknown []string
	if rest.remote.Err != nil {
		unknown = append(unknown, rest.remote.Err.Error())
	}
	for what, n := range rest.remote.Objects {
		objects = append(objects, fmt.Sprintf("%s has %d resource instances", what, n))
	}
	for name, n := range rest.remote.Finalizers {
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

// setNamespaceCondition sets a condition. Its transition time is the time of the last change
// between True and False.
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

// release removes the finalizer of an empty namespace. After that, the namespace is deleted unless
// there are other finalizers.
func (e *emptier) release(ctx context.Context, name string) error {
	t := registry.Target{Resource: e.gc.Types.Lookup("", "v1", "namespaces"), Name: name, Subresource: "finalize"}
	ctx, done := e.gc.begin(ctx, namespaceController, "update", t)
	_, _, err := e.gc.Writer.Modify(ctx, t, registry.Options{Manager: CollectorName}, func(old scheme.Object, _ *store.Record) (scheme.Object, error) {
		ns := old.DeepCopyObject().(*corev1.Namespace)
		if ns.DeletionTimestamp == nil { // another namespace of the same name
			return ns, nil
		}
		ns.Spec.Finalizers = slices.DeleteFunc(ns.Spec.Finalizers, func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
		return ns, nil
	})
	done(err)
	if registry.IsPermanent(err) {
		_, _, err = e.gc.Writer.Delete(ctx, t.Resource, "", name, &metav1.DeleteOptions{})
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// ---- Expired Events ----

// ExpireEvents deletes Events that were last written before EventTTL. The store maps the time to a
// revision.
func (gc *Collector) ExpireEvents(ctx context.Context) error {
	if gc.EventTTL <= 0 {
		return nil
	}
	limit := gc.Maintenance.RevisionBefore(gc.Store.Now().Add(-gc.EventTTL))
	var failed error // first error; the other Events are still deleted
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

// expire deletes an expired Event unless it has been updated or has finalizers.
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

// begin starts the record of a write by an account. The caller must call done with the result of
// the write.
func (gc *Collector) begin(ctx context.Context, account, verb string, t registry.Target) (_ context.Context, done func(error)) {
	if gc.StartRequest == nil {
		return ctx, func(error) {}
	}
	res := t.Resource
	info := request.Info{ResourceRequest: true, Verb: verb, APIPrefix: "apis", Group: res.Group, Version: res.Version, Namespace: t.Namespace,
		Resource: res.Plural, Subresource: t.Subresource, Name: t.Name}
	if res.Group == "" {
		info.APIPrefix = "api"
	}
	return gc.StartRequest(ctx, request.User{Name: account}.WithImplicitGroups(""), info)
}
