package quota

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"apilet/internal/scheme"
	"apilet/internal/store"
	"apilet/internal/store/storetest"
)

// A bench is a store with quotas, and what a registry does with them.
type bench struct {
	testing.TB
	st     *store.Store
	types  *scheme.Registry
	quotas *Quotas
}

func newBench(t testing.TB) *bench {
	t.Helper()
	st, err := store.Open(filepath.Join(t.TempDir(), "a.db"), store.Options{Ephemeral: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	b := &bench{TB: t, st: st, types: scheme.NewRegistry()}
	b.quotas = b.fresh()
	return b
}

// fresh are the quotas as a server that has just started knows them.
func (b *bench) fresh() *Quotas {
	b.Helper()
	q, err := New(b.st, b.types)
	if err != nil {
		b.Fatal(err)
	}
	return q
}

func (b *bench) resource(obj scheme.Object) *scheme.Resource {
	plural := map[bool]string{true: "pods", false: "configmaps"}[isPod(obj)]
	if _, ok := obj.(*corev1.ResourceQuota); ok {
		plural = "resourcequotas"
	}
	return b.types.Lookup("", "v1", plural)
}

func isPod(obj scheme.Object) bool { _, ok := obj.(*corev1.Pod); return ok }

// write charges and commits a create (rev 0) or an update.
func (b *bench) write(obj, old scheme.Object, rev int64) (int64, error) {
	res := b.resource(obj)
	held, err := b.quotas.Charge(context.Background(), Write{Resource: res, Object: obj, Old: old})
	if err != nil {
		return 0, err
	}
	defer held.Release()
	json, revAt, err := res.EncodeStored(obj)
	if err != nil {
		return 0, err
	}
	c := store.Change{Op: store.OpCreate, Key: res.Key(obj.GetNamespace(), obj.GetName()), JSON: json, RevAt: revAt}
	if rev != 0 {
		c.Op, c.Expect = store.OpUpdate, rev
	}
	rec, err := b.st.Commit(context.Background(), c)
	if err == nil {
		b.quotas.OnCommit(res, &rec)
	}
	return rec.Rev, err
}

func (b *bench) remove(obj scheme.Object) {
	b.Helper()
	res := b.resource(obj)
	key := res.Key(obj.GetNamespace(), obj.GetName())
	old, err := b.st.Get(key)
	if err != nil {
		b.Fatal(err)
	}
	json, revAt, err := res.EncodeStored(obj)
	if err != nil {
		b.Fatal(err)
	}
	rec, err := b.st.Commit(context.Background(), store.Change{Op: store.OpDelete, Key: key, Expect: old.Rev, JSON: json, RevAt: revAt})
	if err != nil {
		b.Fatal(err)
	}
	b.quotas.OnCommit(res, &rec)
}

// limit makes a quota.
func (b *bench) limit(name string, hard map[corev1.ResourceName]string, scopes ...corev1.ResourceQuotaScope) *corev1.ResourceQuota {
	b.Helper()
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, UID: types.UID(name)}, Spec: corev1.ResourceQuotaSpec{Hard: list(hard), Scopes: scopes}}
	if _, err := b.write(q, nil, 0); err != nil {
		b.Fatal(err)
	}
	return q
}

func list(of map[corev1.ResourceName]string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for name, q := range of {
		l[name] = resource.MustParse(q)
	}
	return l
}

// used is what some quotas say is used.
func (b *bench) used(q *Quotas) map[string]string {
	b.Helper()
	l, err := q.openLedger(context.Background(), "a")
	if l == nil || err != nil {
		b.Fatal("no ledger", err)
	}
	defer q.mu.Unlock()
	used := map[string]string{}
	for _, lim := range l.limits {
		used[lim.name] = lim.used.String()
		if !lim.pending.equal(usage{}) {
			for name, rest := range lim.pending {
				if !rest.IsZero() {
					b.Errorf("%s: %s of %s stays promised", lim.name, rest.String(), name)
				}
			}
		}
	}
	return used
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}}
}

func pod(name, cpu string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c",
		Resources: corev1.ResourceRequirements{Requests: list(map[corev1.ResourceName]string{"cpu": cpu})}}}}}
}

// TestAsManyAsThereIsRoomFor: of 64 writers at once, some of whose commits fail, exactly as many get through as the quota allows.
func TestAsManyAsThereIsRoomFor(t *testing.T) {
	b := newBench(t)
	b.limit("q", map[corev1.ResourceName]string{"configmaps": "50", "count/configmaps": "50"})
	var through, refused atomic.Int64
	var writers sync.WaitGroup
	for i := range 64 {
		writers.Go(func() {
			for range i % 3 { // is charged, and comes to nothing
				held, err := b.quotas.Charge(context.Background(), Write{Resource: b.resource(configMap("")), Object: configMap("fails")})
				if err == nil {
					held.Release()
				}
			}
			switch _, err := b.write(configMap(fmt.Sprint("c", i)), nil, 0); {
			case err == nil:
				through.Add(1)
			case apierrors.IsForbidden(err):
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	writers.Wait()
	if through.Load() != 50 || refused.Load() != 14 {
		t.Errorf("%d through, %d refused", through.Load(), refused.Load())
	}
	if got := b.used(b.quotas)["q"]; got != "configmaps=50,count/configmaps=50" {
		t.Error(got)
	}
}

// TestLedgerFollowsTheStore does what comes to mind to pods and quotas, and compares the ledger with one that is counted from nothing.
func TestLedgerFollowsTheStore(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	b := newBench(t)
	all := map[corev1.ResourceName]string{"pods": "9", "count/pods": "12", "requests.cpu": "20"}
	b.limit("all", all)
	b.limit("ends", all, corev1.ResourceQuotaScopeTerminating)
	b.limit("stays", map[corev1.ResourceName]string{"pods": "7"}, corev1.ResourceQuotaScopeNotTerminating)
	pods, revs := map[string]*corev1.Pod{}, map[string]int64{}
	deadline := int64(5)
	for i := range 3000 {
		name := fmt.Sprint("p", rnd.IntN(15))
		p := pods[name]
		switch {
		case p == nil:
			p = pod(name, fmt.Sprint(1+rnd.IntN(4)))
			if rnd.IntN(3) == 0 {
				p.Spec.ActiveDeadlineSeconds = &deadline
			}
			rev, err := b.write(p, nil, 0)
			if err == nil {
				pods[name], revs[name] = p, rev
			} else if !apierrors.IsForbidden(err) {
				t.Fatal(err)
			}
		case rnd.IntN(3) == 0:
			b.remove(p)
			delete(pods, name)
		default:
			next := p.DeepCopy()
			switch rnd.IntN(4) {
			case 0:
				next.Status.Phase = corev1.PodSucceeded
			case 1:
				next.Spec.ActiveDeadlineSeconds = &deadline
			case 2:
				next.Spec.Containers[0].Resources.Requests["cpu"] = resource.MustParse(fmt.Sprint(1 + rnd.IntN(4)))
			case 3:
				at := metav1.NewTime(time.Now().Add(time.Duration(rnd.IntN(3)-1) * time.Hour))
				next.DeletionTimestamp, next.DeletionGracePeriodSeconds = &at, new(int64)
			}
			rev, err := b.write(next, p, revs[name])
			if err == nil {
				pods[name], revs[name] = next, rev
			} else if !apierrors.IsForbidden(err) {
				t.Fatal(err)
			}
		}
		if i%50 == 0 || i == 2999 {
			if got, want := b.used(b.quotas), b.used(b.fresh()); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("step %d: %v, counted anew %v", i, got, want)
			}
		}
	}
}

// TestChargeWaitsForPromises: a write that has room only if another fails waits for that, no longer than its context lasts.
func TestChargeWaitsForPromises(t *testing.T) {
	b := newBench(t)
	b.limit("q", map[corev1.ResourceName]string{"configmaps": "1"})
	w := Write{Resource: b.resource(configMap("")), Object: configMap("c")}
	first, err := b.quotas.Charge(context.Background(), w)
	if first == nil || err != nil {
		t.Fatal(first, err)
	}
	dry := w
	dry.DryRun = true
	if held, err := b.quotas.Charge(context.Background(), dry); held != nil || err != nil {
		t.Errorf("a dry run waits, or is promised something: %v %v", held, err)
	}
	hurried, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := b.quotas.Charge(hurried, w); !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), "resource quota evaluation timed out") {
		t.Errorf("without patience: %v", err)
	}
	second := make(chan error)
	go func() {
		_, err := b.quotas.Charge(context.Background(), w)
		second <- err
	}()
	first.Release()
	if err := <-second; err != nil {
		t.Errorf("the room that the first gave back: %v", err)
	}
}

// TestOverduePodIsFree: a pod that should be gone ceases to count when its time is over, though nothing happens to it.
func TestOverduePodIsFree(t *testing.T) {
	b := newBench(t)
	b.limit("q", map[corev1.ResourceName]string{"pods": "1", "count/pods": "5"})
	p := pod("p", "1")
	rev, err := b.write(p, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	at, grace := metav1.NewTime(time.Now().Add(time.Hour)), int64(30)
	dying := p.DeepCopy()
	dying.DeletionTimestamp, dying.DeletionGracePeriodSeconds = &at, &grace
	if rev, err = b.write(dying, p, rev); err != nil {
		t.Fatal(err)
	}
	if got := b.used(b.quotas)["q"]; got != "count/pods=1,pods=1" {
		t.Error("while it has time:", got)
	}
	l, err := b.quotas.openLedger(context.Background(), "a")
	if err != nil || l.nextExpiryLocked().Sub(at.Time.Truncate(time.Second)) != 30*time.Second {
		t.Error("it ceases to count at", l.nextExpiryLocked(), "deleted at", at, err)
	}
	l.expirePodsLocked(b.quotas, at.Add(31*time.Second))
	if got := l.limits[0].used.String(); got != "count/pods=1,pods=0" || len(l.deleting) != 0 {
		t.Error("after that:", got)
	}
	b.quotas.mu.Unlock()
	labelled := dying.DeepCopy()
	labelled.Labels = map[string]string{"a": "b"}
	labelled.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(-time.Hour)}
	if _, err = b.write(labelled, dying, rev); err != nil {
		t.Fatal(err)
	}
	if got := b.used(b.quotas)["q"]; got != "count/pods=1,pods=0" {
		t.Error("after another write to it:", got)
	}
	b.remove(labelled)
	if got := b.used(b.quotas)["q"]; got != "count/pods=0,pods=0" {
		t.Error("when it has gone:", got)
	}
}

// TestLedgerGoesWithTheLastQuota, and with it all that is remembered of the namespace.
func TestLedgerGoesWithTheLastQuota(t *testing.T) {
	b := newBench(t)
	quotas := []*corev1.ResourceQuota{b.limit("q", map[corev1.ResourceName]string{"configmaps": "1"}), b.limit("r", map[corev1.ResourceName]string{"pods": "1"})}
	if _, err := b.write(configMap("c"), nil, 0); err != nil {
		t.Fatal(err)
	}
	for _, q := range quotas {
		if b.quotas.namespaces.Load() != 1 {
			t.Error("the ledger went too early")
		}
		b.remove(q)
	}
	if b.quotas.namespaces.Load() != 0 || len(b.quotas.ledgers) != 0 {
		t.Error("the ledger stays")
	}
	if held, err := b.quotas.Charge(context.Background(), Write{Resource: b.resource(configMap("")), Object: configMap("d")}); held != nil || err != nil {
		t.Error(held, err)
	}
}

// TestRoomGrowsWithTheQuota: who waits or comes after a change of spec.hard goes by that, and nothing is counted again.
func TestRoomGrowsWithTheQuota(t *testing.T) {
	b := newBench(t)
	q := b.limit("q", map[corev1.ResourceName]string{"configmaps": "1"})
	if _, err := b.write(configMap("c"), nil, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := b.write(configMap("d"), nil, 0); !apierrors.IsForbidden(err) || err.Error() !=
		`configmaps "d" is forbidden: exceeded quota: q, requested: configmaps=1, used: configmaps=1, limited: configmaps=1` {
		t.Error(err)
	}
	rec, _ := b.st.Get(b.resource(q).Key("a", "q"))
	wider := q.DeepCopy()
	wider.Spec.Hard["configmaps"] = resource.MustParse("2")
	if _, err := b.write(wider, q, rec.Rev); err != nil {
		t.Fatal(err)
	}
	if l := b.quotas.ledgerOf("a"); !l.counted {
		t.Error("it is counted again")
	}
	if _, err := b.write(configMap("d"), nil, 0); err != nil {
		t.Error(err)
	}
}

// TestStatusIsWritten: once for many changes, and again when somebody else has written it.
func TestStatusIsWritten(t *testing.T) {
	b := newBench(t)
	q := b.limit("q", map[corev1.ResourceName]string{"configmaps": "9", "unknown.example.com/x": "1"})
	written := make(chan corev1.ResourceQuotaStatus, 100)
	save := func(_ context.Context, namespace, name string, change func(*corev1.ResourceQuota)) error {
		stored := q.DeepCopy()
		change(stored)
		written <- stored.Status
		return nil
	}
	for i := range 5 {
		if _, err := b.write(configMap(fmt.Sprint("c", i)), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.quotas.round(context.Background(), save); err != nil {
		t.Fatal(err)
	}
	if _, err := b.quotas.round(context.Background(), save); err != nil || len(written) != 1 {
		t.Errorf("written %d times, %v", len(written), err)
	}
	if got := <-written; usage(got.Used).String() != "configmaps=5" || usage(got.Hard).String() != "configmaps=9,unknown.example.com/x=1" {
		t.Errorf("%v", got)
	}
	failing := func(context.Context, string, string, func(*corev1.ResourceQuota)) error { return errors.New("no room") }
	b.remove(configMap("c0"))
	if _, err := b.quotas.round(context.Background(), failing); err == nil {
		t.Error("the failure is not told")
	}
	if _, err := b.quotas.round(context.Background(), save); err != nil || len(written) != 1 {
		t.Errorf("not tried again: %v", err)
	}
}

func TestNamesOfQuotas(t *testing.T) {
	for name, want := range map[corev1.ResourceName]bool{"cpu": true, "limits.memory": true, "requests.example.com/gpu": true, "example.com/gpu": false,
		"hugepages-2Mi": true, "requests.hugepages-1Gi": true, "limits.hugepages-1Gi": false, "requests.storage": false, "requests.kubernetes.io/x": false,
		"requests.deviceclass.resource.kubernetes.io/c": true, "limits.example.com/gpu": false} {
		if got := isPodName(name); got != want {
			t.Errorf("pods use %s: got %v", name, got)
		}
	}
	for name, want := range map[corev1.ResourceName]bool{"requests.storage": true, "gold.storageclass.storage.k8s.io/requests.storage": true,
		"gold.storageclass.storage.k8s.io/persistentvolumeclaims": true, "gold.storageclass.storage.k8s.io/pods": false} {
		if got := isClaimName(name); got != want {
			t.Errorf("claims use %s: got %v", name, got)
		}
	}
	for key, want := range map[string]string{"//pods/a/b": "//pods/", "/apps/deployments/a/b": "/apps/deployments/", "//namespaces//a": "//namespaces/"} {
		if got := baseOf(key); got != want {
			t.Errorf("%s: %s", key, got)
		}
	}
}

// TestWithoutQuotaNothingIsAllocated: in a server with no quota, and in a namespace without one.
func TestWithoutQuotaNothingIsAllocated(t *testing.T) {
	b := newBench(t)
	elsewhere := configMap("c")
	elsewhere.Namespace = "b"
	w := Write{Resource: b.resource(elsewhere), Object: elsewhere}
	for _, name := range []string{"q", "r"} {
		if n := testing.AllocsPerRun(100, func() {
			held, err := b.quotas.Charge(context.Background(), w)
			if held.Release(); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%v allocations", n)
		}
		b.limit(name, map[corev1.ResourceName]string{"configmaps": "1"})
	}
}

// BenchmarkCharge is what a write pays: where no quota is, where others have one, and for an object that is counted, or measured.
func BenchmarkCharge(b *testing.B) {
	for _, c := range []struct {
		name, namespace string
		hard            map[corev1.ResourceName]string
		obj             scheme.Object
	}{{"no-quota", "a", nil, configMap("c")}, {"elsewhere", "b", map[corev1.ResourceName]string{"pods": "9"}, configMap("c")},
		{"counted", "a", map[corev1.ResourceName]string{"configmaps": "9"}, configMap("c")},
		{"measured", "a", map[corev1.ResourceName]string{"pods": "9", "requests.cpu": "9"}, pod("p", "1")}} {
		b.Run(c.name, func(b *testing.B) {
			bench := newBench(b)
			if c.hard != nil {
				bench.limit("q", c.hard)
			}
			c.obj.SetNamespace(c.namespace)
			w := Write{Resource: bench.resource(c.obj), Object: c.obj}
			b.ReportAllocs()
			for b.Loop() {
				held, err := bench.quotas.Charge(context.Background(), w)
				if err != nil {
					b.Fatal(err)
				}
				held.Release()
			}
		})
	}
}

// TestLedgerOutlivesCompaction: what the log no longer tells is counted anew.
func TestLedgerOutlivesCompaction(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.limit("q", map[corev1.ResourceName]string{"configmaps": "9"})
	expect := func(want string) {
		t.Helper()
		if got := fmt.Sprint(b.used(b.quotas)); got != want {
			t.Errorf("used is %s, want %s", got, want)
		}
	}
	write := func(name string) {
		if _, err := b.write(configMap(name), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	write("x")
	write("y")
	expect("map[q:configmaps=2]")
	b.remove(configMap("x"))
	storetest.Forget(t, b.st)
	expect("map[q:configmaps=1]")
	write("z")
	expect("map[q:configmaps=2]")

	quota, err := b.st.Get(quotaBase + "a/q")
	if err != nil {
		t.Fatal(err)
	}
	doc, revAt := scheme.WithoutRevision(quota.JSON)
	if _, err := b.st.Commit(context.Background(), store.Change{Op: store.OpDelete, Key: quota.Key, Expect: quota.Rev, JSON: doc, RevAt: revAt}); err != nil {
		t.Fatal(err)
	}
	storetest.Forget(t, b.st)
	if l, err := b.quotas.openLedger(context.Background(), "a"); l != nil || err != nil {
		t.Errorf("a quota that has gone holds: %v", err)
	}
}

// TestClaimsAreCountedAsTheyGrow: a claim counts by its request or by what a growth that has not ended was given, in whole bytes, for its class also; and a
// negative request, which would make room for others, is refused.
func TestClaimsAreCountedAsTheyGrow(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.limit("q", map[corev1.ResourceName]string{"requests.storage": "10Gi"})
	claim := func(size, allocated, class, beta string) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "c"}}
		if size != "" {
			c.Spec.Resources.Requests = list(map[corev1.ResourceName]string{corev1.ResourceStorage: size})
		}
		if allocated != "" {
			c.Status.AllocatedResources = list(map[corev1.ResourceName]string{corev1.ResourceStorage: allocated})
		}
		if class != "" {
			c.Spec.StorageClassName = &class
		}
		if beta != "" {
			c.Annotations = map[string]string{corev1.BetaStorageClassAnnotation: strings.Trim(beta, "-")}
		}
		return c
	}
	for _, c := range []struct {
		claim *corev1.PersistentVolumeClaim
		want  string
		err   string
	}{
		{claim("1Gi", "", "", ""), "requests.storage=1Gi", ""},
		{claim("1Gi", "3Gi", "", ""), "requests.storage=3Gi", ""},
		{claim("3Gi", "1Gi", "", ""), "requests.storage=3Gi", ""},
		{claim("100m", "", "", ""), "requests.storage=1", ""},
		{claim("1Gi", "", "fast", ""), "fast.storageclass.storage.k8s.io/persistentvolumeclaims=1,fast.storageclass.storage.k8s.io/requests.storage=1Gi,requests.storage=1Gi", ""},
		{claim("1Gi", "", "fast", "old"), "old.storageclass.storage.k8s.io/persistentvolumeclaims=1,old.storageclass.storage.k8s.io/requests.storage=1Gi,requests.storage=1Gi", ""},
		{claim("1Gi", "", "fast", "-"), "requests.storage=1Gi", ""},
		{claim("", "", "", ""), "", ""},
		{claim("11Gi", "", "", ""), "requests.storage=11Gi", "exceeded quota: q"},
		{claim("1Gi", "11Gi", "", ""), "requests.storage=11Gi", "exceeded quota: q"},
		{claim("-1Gi", "", "", ""), "requests.storage=-1Gi", "quota usage is negative for resource(s): requests.storage"},
	} {
		if got := claimUsage(c.claim, time.Now()).String(); got != c.want {
			t.Errorf("%v counts as %s, want %s", c.claim, got, c.want)
		}
		held, err := b.quotas.Charge(t.Context(), Write{Resource: b.types.Lookup("", "v1", "persistentvolumeclaims"), Object: c.claim})
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%v: %v, want %q", c.claim, err, c.err)
		}
		held.Release()
	}
}

// TestScopesOfClaims: a claim is in the scope of each class that it has, had or is on its way to.
func TestScopesOfClaims(t *testing.T) {
	t.Parallel()
	claim := func(spec, current, target string) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{}
		if spec != "" {
			c.Spec.VolumeAttributesClassName = &spec
		}
		if current != "" {
			c.Status.CurrentVolumeAttributesClassName = &current
		}
		if target != "" {
			c.Status.ModifyVolumeStatus = &corev1.ModifyVolumeStatus{TargetVolumeAttributesClassName: target}
		}
		return c
	}
	const classes = corev1.ResourceQuotaScopeVolumeAttributesClass
	one := func(operator corev1.ScopeSelectorOperator, values ...string) corev1.ResourceQuotaSpec {
		return corev1.ResourceQuotaSpec{ScopeSelector: &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{{ScopeName: classes, Operator: operator, Values: values}}}}
	}
	for _, c := range []struct {
		spec  corev1.ResourceQuotaSpec
		claim *corev1.PersistentVolumeClaim
		want  bool
	}{
		{one(corev1.ScopeSelectorOpIn, "gold"), claim("gold", "", ""), true},
		{one(corev1.ScopeSelectorOpIn, "gold"), claim("iron", "gold", ""), true},
		{one(corev1.ScopeSelectorOpIn, "gold"), claim("iron", "iron", "gold"), true},
		{one(corev1.ScopeSelectorOpIn, "gold"), claim("iron", "iron", "iron"), false},
		{one(corev1.ScopeSelectorOpIn, "gold"), claim("", "", ""), false},
		{one(corev1.ScopeSelectorOpIn), claim("gold", "", ""), false}, // cannot be read
		{one(corev1.ScopeSelectorOpNotIn, "gold"), claim("iron", "", ""), true},
		{one(corev1.ScopeSelectorOpNotIn, "gold"), claim("", "", ""), true},
		{one(corev1.ScopeSelectorOpNotIn, "gold"), claim("gold", "", ""), false},
		{one(corev1.ScopeSelectorOpExists), claim("", "", "gold"), true},
		{one(corev1.ScopeSelectorOpExists), claim("", "", ""), false},
		{one(corev1.ScopeSelectorOpDoesNotExist), claim("", "", ""), true},
		{one(corev1.ScopeSelectorOpDoesNotExist), claim("gold", "", ""), false},
		{corev1.ResourceQuotaSpec{Scopes: []corev1.ResourceQuotaScope{classes}}, claim("gold", "", ""), true},
		{corev1.ResourceQuotaSpec{Scopes: []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort}}, claim("gold", "", ""), false},
	} {
		if got := claimInScope(c.claim, &requirementsOf(&c.spec)[0], time.Now()); got != c.want {
			t.Errorf("%+v, %+v: %v", c.spec, c.claim, got)
		}
	}
}

// TestChargeEndsWithItsRequest: a write that waits for what others have been promised is refused when its request ends, and holds nothing back.
func TestChargeEndsWithItsRequest(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.limit("q", map[corev1.ResourceName]string{"configmaps": "1"})
	w := Write{Resource: b.types.Lookup("", "v1", "configmaps"), Object: configMap("a")}
	held, err := b.quotas.Charge(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w.Object = configMap("b")
	if promise, err := b.quotas.Charge(ctx, w); err == nil || promise != nil || !strings.Contains(err.Error(), "quota evaluation timed out") {
		t.Errorf("got %v, %v", promise, err)
	}
	held.Release()
	if promise, err := b.quotas.Charge(t.Context(), w); err != nil {
		t.Errorf("after the promise was given back: %v", err)
	} else {
		promise.Release()
	}
}
