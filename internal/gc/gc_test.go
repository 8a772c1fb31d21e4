package gc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/tidwall/gjson"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"apilet/internal/apitest"
	"apilet/internal/auth"
	"apilet/internal/auth/serviceaccount"
	"apilet/internal/registry"
	"apilet/internal/scheme"
	"apilet/internal/store"
	"apilet/internal/store/storetest"
)

// startReaper has a reaper that has read a store with one namespace, and reads on when it is told to.
func startReaper(t testing.TB) *reaper {
	t.Helper()
	st, err := store.Open(filepath.Join(t.TempDir(), "a.db"), store.Options{Ephemeral: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	reg := scheme.NewRegistry()
	wr := &registry.Writer{Store: st, Types: reg, Auth: &auth.Authenticator{Accounts: &serviceaccount.Tokens{}}}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := wr.Insert(t.Context(), reg.Lookup("", "v1", "namespaces"), namespace, registry.Options{Trusted: true}); err != nil {
		t.Fatal(err)
	}
	rp := &reaper{gc: &Collector{Store: st, Types: reg, Writer: wr, Report: func(string, error) {}}, log: st.Follow(store.Everything)}
	if err := rp.catchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	return rp
}

// configMap stores one in the namespace default that blocks its owner, if it has one, and returns its reference.
func (rp *reaper) configMap(t *testing.T, name string, finalizers []string, owners ...metav1.OwnerReference) metav1.OwnerReference {
	t.Helper()
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, OwnerReferences: owners, Finalizers: finalizers}}
	rec, err := rp.gc.Writer.Insert(t.Context(), rp.gc.Types.Lookup("", "v1", "configmaps"), obj, registry.Options{Trusted: true})
	if err != nil {
		t.Fatal(err)
	}
	yes := true
	return metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: name, UID: types.UID(uidOf(rec.JSON)), BlockOwnerDeletion: &yes}
}

// stored is the JSON of a ConfigMap, "" when there is none.
func (rp *reaper) stored(name string) string {
	rec, _ := rp.gc.Store.Get(rp.gc.Types.Lookup("", "v1", "configmaps").Key("default", name))
	return string(rec.JSON)
}

// rest reads the log and does what follows, until nothing does.
func (rp *reaper) rest(t *testing.T) {
	t.Helper()
	for {
		if err := rp.catchUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(rp.dirty) == 0 {
			return
		}
		rp.processBatch(t.Context())
	}
}

// TestOwnersOnOtherServersAreNotAbsent: what another server has is in no store of ours, whether this one has a type of that name or not. Nothing is deleted for
// it, nor loses a reference, until the type is this server's again.
func TestOwnersOnOtherServersAreNotAbsent(t *testing.T) {
	t.Parallel()
	rp := startReaper(t)
	apiServices := rp.gc.Types.Lookup("apiregistration.k8s.io", "v1", "apiservices")
	if got := apiServices.Key("", "v1.apps"); got != apiServiceRange+"/v1.apps" {
		t.Fatalf("the key of an APIService is %s", got)
	}
	port := int32(443)
	taken := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1.apps"}, Spec: apiregistrationv1.APIServiceSpec{Group: "apps", Version: "v1",
		GroupPriorityMinimum: 1, VersionPriority: 1, Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "apps", Port: &port}}}
	if _, err := rp.gc.Writer.Insert(t.Context(), apiServices, taken, registry.Options{Trusted: true}); err != nil {
		t.Fatal(err)
	}
	here := rp.configMap(t, "here", nil)
	theirs := []metav1.OwnerReference{{APIVersion: "stars.example.com/v1", Kind: "Star", Name: "sun", UID: "star-1"}, {APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "web-1"}}
	for i, owner := range theirs {
		rp.configMap(t, fmt.Sprintf("one%d", i), nil, owner)
		rp.configMap(t, fmt.Sprintf("two%d", i), nil, here, owner)
	}
	rp.configMap(t, "gone", nil, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "never", UID: "never-1"})
	rp.rest(t)
	if _, _, err := rp.gc.Writer.Delete(t.Context(), rp.gc.Types.Lookup("", "v1", "configmaps"), "default", "here", &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	rp.rest(t)
	if rp.stored("gone") != "" {
		t.Error("an owner of this server's that is not there is no owner: the test proves nothing")
	}
	for i := range theirs {
		if n := len(gjson.Get(rp.stored(fmt.Sprintf("one%d", i)), "metadata.ownerReferences").Array()); n != 1 {
			t.Errorf("a ConfigMap that another server's %s owns has %d owners", theirs[i].Kind, n)
		}
		if n := len(gjson.Get(rp.stored(fmt.Sprintf("two%d", i)), "metadata.ownerReferences").Array()); n != 2 {
			t.Errorf("one that it owns with another, which is gone, has %d", n)
		}
	}
	if _, _, err := rp.gc.Writer.Delete(t.Context(), apiServices, "", "v1.apps", &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	rp.rest(t)
	if rp.stored("one0") == "" || rp.stored("one1") != "" {
		t.Errorf("when Deployments are this server's again: %q, %q", rp.stored("one0"), rp.stored("one1"))
	}
}

// TestNamespacesThatWaitForOtherServersAskSeldom: a server that is away, or keeps something, is asked after a second, then two, up to a minute; at once when
// something happens in the namespace, or an APIService changes.
func TestNamespacesThatWaitForOtherServersAskSeldom(t *testing.T) {
	t.Parallel()
	rp := startReaper(t)
	asked, away := 0, true
	rp.gc.RemoteDeleter = func(context.Context, string) <-chan Remaining {
		asked++
		said := make(chan Remaining, 1)
		if said <- (Remaining{}); away {
			<-said
			said <- Remaining{Err: errors.New("away")}
		}
		return said
	}
	e := &emptier{gc: rp.gc}
	e.begin()
	if err := e.catchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	namespaces := rp.gc.Types.Lookup("", "v1", "namespaces")
	waits := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "waits"}}
	if _, err := rp.gc.Writer.Insert(t.Context(), namespaces, waits, registry.Options{Trusted: true}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := rp.gc.Writer.Delete(t.Context(), namespaces, "", "waits", &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := e.catchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	em := e.namespaces["waits"]
	var after []time.Duration
	for range 9 {
		e.empty(t.Context(), "waits", em)
		after = append(after, em.due().Sub(em.last))
	}
	const s = time.Second
	if want := []time.Duration{s, 2 * s, 4 * s, 8 * s, 16 * s, 32 * s, 60 * s, 60 * s, 60 * s}; asked != 9 || !slices.Equal(after, want) {
		t.Errorf("asked %d times, after %v, want %v", asked, after, want)
	}
	for _, key := range []string{"//configmaps/waits/a", apiServiceRange + "/v1.example.com"} {
		em.pause = 60 * s
		if e.markChanged(&store.Event{Record: store.Record{Key: key}}); em.due().Sub(em.last) != s {
			t.Errorf("%s changed: it waits for %v", key, em.due().Sub(em.last))
		}
	}
	away = false
	if e.empty(t.Context(), "waits", em); !em.done {
		t.Error("the server is back, and the namespace still there")
	}
}

// TestForegroundWaitsForWhatTheGraphDoesNotKnowYet: an owner's deletion in the foreground goes down a chain whose lower end is written
// while the reaper reads of its upper end.
func TestForegroundWaitsForWhatTheGraphDoesNotKnowYet(t *testing.T) {
	t.Parallel()
	rp := startReaper(t)
	owner := rp.configMap(t, "c0", nil)
	owner = rp.configMap(t, "c1", nil, owner)
	upTo := rp.gc.Store.Revision()
	for i := 2; i < 5; i++ {
		var finalizers []string
		if i == 4 {
			finalizers = []string{"test/hold"}
		}
		owner = rp.configMap(t, fmt.Sprintf("c%d", i), finalizers, owner)
	}
	foreground := metav1.DeletePropagationForeground
	configMaps := rp.gc.Types.Lookup("", "v1", "configmaps")
	if _, _, err := rp.gc.Writer.Delete(t.Context(), configMaps, "default", "c0", &metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		t.Fatal(err)
	}

	events, pos, err := rp.gc.Store.Events(store.Everything, rp.log.Rev(), int(upTo-rp.log.Rev()), nil)
	if err != nil || pos != upTo {
		t.Fatalf("read up to %d, want %d: %v", pos, upTo, err)
	}
	for i := range events {
		rp.apply(&events[i])
	}
	rp.log.From(pos)
	if _, dirty := rp.dirty[configMaps.Key("default", "c1")]; !dirty {
		t.Fatal("c1 is not looked at while the graph lags: the test proves nothing")
	}
	rp.processBatch(context.Background())
	rp.rest(t)

	for i := range 5 {
		name := fmt.Sprintf("c%d", i)
		if got := rp.stored(name); !gjson.Get(got, "metadata.deletionTimestamp").Exists() {
			t.Errorf("%s is not waiting: %s", name, got)
		}
	}
}

// BenchmarkGraph measures what 100,000 pods with owners cost in memory, and reading them at the start.
func BenchmarkGraph(b *testing.B) {
	for _, each := range []int{1, 3, 100} {
		b.Run(fmt.Sprintf("pods-of-an-owner=%d", each), func(b *testing.B) {
			const pods = 100_000
			events := make([]store.Event, pods)
			var uid string
			for i := range events {
				if i%each == 0 {
					uid = uuid.NewString()
				}
				pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "registry.example/app:1"}}}}
				pod.Namespace, pod.Name, pod.UID = "default", fmt.Sprintf("application-7d4b9c6f8d-%06d", i), types.UID(uuid.NewString())
				pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "application-7d4b9c6f8d", UID: types.UID(uid)}}
				doc, _ := json.Marshal(pod)
				events[i].Record = store.Record{Key: "//pods/default/" + pod.Name, Rev: int64(i + 1), CreateRev: int64(i + 1), JSON: doc}
			}
			heap := func() float64 {
				var m runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&m)
				return float64(m.HeapAlloc)
			}
			owner := startReaper(b).gc
			for b.Loop() {
				before, start := heap(), time.Now()
				rp := &reaper{gc: owner, kinds: newKinds(owner.Types.Current.Load()), graph: newGraph(), dirty: map[string]struct{}{}}
				for i := range events {
					ev := events[i]
					ev.Key = strings.Clone(ev.Key)
					rp.apply(&ev)
				}
				b.ReportMetric(float64(time.Since(start).Nanoseconds())/pods, "ns/pod")
				b.ReportMetric((heap()-before)/pods, "B/pod-while-dirty")
				rp.dirty = nil
				b.ReportMetric((heap()-before)/pods, "B/pod")
				runtime.KeepAlive(rp)
			}
		})
	}
}

// TestReaperOutlivesCompaction: dependents go whose owner went while the log was compacted, and the graph has nothing that is not there.
func TestReaperOutlivesCompaction(t *testing.T) {
	t.Parallel()
	rp := startReaper(t)
	remove := func(name string) {
		t.Helper()
		background := metav1.DeletePropagationBackground
		options := &metav1.DeleteOptions{PropagationPolicy: &background}
		if _, _, err := rp.gc.Writer.Delete(t.Context(), rp.gc.Types.Lookup("", "v1", "configmaps"), "default", name, options); err != nil {
			t.Fatal(err)
		}
	}
	owner, kept := rp.configMap(t, "owner", nil), rp.configMap(t, "kept", nil)
	rp.configMap(t, "child", nil, owner)
	rp.configMap(t, "gone", nil, kept)
	rp.configMap(t, "stays", nil, kept)
	rp.rest(t)
	remove("owner")
	remove("gone")
	storetest.Forget(t, rp.gc.Store)
	rp.rest(t)
	if rp.stored("child") != "" || rp.stored("stays") == "" {
		t.Error("the wrong dependents are there")
	}
	keys := rp.gc.Types.Lookup("", "v1", "configmaps").Key
	if got := rp.dependentsOf(kept.UID); !slices.Equal(got, []string{keys("default", "stays")}) {
		t.Errorf("dependents are %q", got)
	}
	if got := rp.dependentsOf(owner.UID); len(got) > 0 {
		t.Errorf("an owner that has gone has dependents %q", got)
	}
}

// TestEmptierOutlivesCompaction: it knows which namespaces are being deleted, and looks through all of them.
func TestEmptierOutlivesCompaction(t *testing.T) {
	t.Parallel()
	rp := startReaper(t)
	namespaces := rp.gc.Types.Lookup("", "v1", "namespaces")
	for _, name := range []string{"old", "new"} {
		obj := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := rp.gc.Writer.Insert(t.Context(), namespaces, obj, registry.Options{Trusted: true}); err != nil {
			t.Fatal(err)
		}
	}
	end := func(name string) {
		t.Helper()
		if _, _, err := rp.gc.Writer.Delete(t.Context(), namespaces, "", name, &metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	e := &emptier{gc: rp.gc}
	e.begin()
	expect := func(want string) {
		t.Helper()
		if err := e.catchUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, name := range slices.Sorted(maps.Keys(e.namespaces)) {
			got += fmt.Sprintf("%s %v ", name, e.namespaces[name].changed)
			e.namespaces[name].changed = false
		}
		if got != want {
			t.Errorf("open are %q, want %q", got, want)
		}
	}
	expect("")
	end("old")
	expect("old true ")
	expect("old false ")
	rp.configMap(t, "elsewhere", nil)
	expect("old false ")
	storetest.Forget(t, rp.gc.Store)
	expect("old true ") // something may have happened in it
	rec, err := rp.gc.Store.Get(NamespacePrefix + "/old")
	if err == nil {
		_, err = rp.gc.Store.Commit(t.Context(), registry.Tombstone(&rec))
	}
	if err != nil {
		t.Fatal(err)
	}
	end("new")
	storetest.Forget(t, rp.gc.Store)
	expect("new true ")
}

// TestConditionsOfNamespacesAreBounded: other servers choose names and messages in them.
func TestConditionsOfNamespacesAreBounded(t *testing.T) {
	t.Parallel()
	rest := newRemains()
	for i := range 10_000 {
		rest.errs = append(rest.errs, fmt.Errorf("thing %d is refused", i))
	}
	rest.remote = Remaining{Objects: map[string]int{strings.Repeat("é", 1<<20): 1}, Finalizers: map[string]int{strings.Repeat("x", 1<<20): 1}, Err: errors.New("away")}
	for _, c := range rest.conditions() {
		if len(c.Message) > maxReport+3 || !utf8.ValidString(c.Message) {
			t.Errorf("%s has a message of %d bytes", c.Type, len(c.Message))
		}
		if c.Type == corev1.NamespaceDeletionDiscoveryFailure && !strings.HasSuffix(c.Message, "1 failing: away") {
			t.Errorf("%s: %s", c.Type, c.Message)
		}
	}
}

// TestSearchesForOwnersAreLimited: a hundred at once, then ten a second.
func TestSearchesForOwnersAreLimited(t *testing.T) {
	var rs reports
	now := time.Now()
	take := func() (n int) {
		for n < 1000 && rs.allowSearch(now) {
			n++
		}
		return n
	}
	for i, want := range []int{100, 10, 10} {
		if got := take(); got != want {
			t.Errorf("second %d: %d searches, want %d", i, got, want)
		}
		now = now.Add(time.Second)
	}
}

// TestFailuresAreTriedAgain lets a collector begin while nothing can be written.
func TestFailuresAreTriedAgain(t *testing.T) {
	t.Parallel()
	rp := startReaper(t)
	collector := rp.gc
	namespaces, maps := collector.Types.Lookup("", "v1", "namespaces"), collector.Types.Lookup("", "v1", "configmaps")
	failed := make(chan string, 100)
	collector.Report = func(what string, err error) {
		if err == nil {
			return
		}
		select {
		case failed <- what:
		default:
		}
	}
	insert := func(res *scheme.Resource, obj scheme.Object) {
		t.Helper()
		if _, err := collector.Writer.Insert(t.Context(), res, obj, registry.Options{Trusted: true}); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(res *scheme.Resource, namespace, name string, policy metav1.DeletionPropagation) {
		t.Helper()
		if _, _, err := collector.Writer.Delete(t.Context(), res, namespace, name, &metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
			t.Fatal(err)
		}
	}
	rp.configMap(t, "child", nil, rp.configMap(t, "a", nil))
	rp.configMap(t, "orphan", nil, rp.configMap(t, "b", nil))
	insert(namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	insert(maps, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "x"}})
	remove(maps, "default", "a", metav1.DeletePropagationBackground)
	remove(maps, "default", "b", metav1.DeletePropagationOrphan)
	remove(namespaces, "", "n", metav1.DeletePropagationBackground)
	full := store.ErrDiskFull
	collector.Store.File.Refusal.Store(&full)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		collector.Run(ctx)
	}()
	for missing := []string{"emptying namespace n", "collecting dependents"}; len(missing) > 0; {
		what := <-failed
		missing = slices.DeleteFunc(missing, func(name string) bool { return name == what })
	}
	collector.Store.File.Refusal.Store(nil)
	apitest.WaitFor(t, "everything that was deleted to go", func() bool {
		_, err := collector.Store.Get(namespaces.Key("", "n"))
		orphan := rp.stored("orphan")
		return rp.stored("child") == "" && rp.stored("b") == "" && errors.Is(err, store.ErrNotFound) &&
			orphan != "" && !gjson.Get(orphan, "metadata.ownerReferences").Exists()
	})
	cancel()
	<-done
}
