package clients31

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/pager"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"apilet/apilettest"
)

const (
	ns = "default"
	// for operations that an idle machine completes immediately
	patience = 2 * time.Minute
)

var (
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
)

func TestMain(m *testing.M) {
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	klog.SetLogger(klog.Logger{})
	ctrllog.SetLogger(klog.Logger{})
	return m.Run()
}

// serve starts a server without persistence and returns a client configuration.
func serve(t *testing.T) *rest.Config {
	t.Helper()
	return configOf(t, apilettest.Start(t))
}

// configOf returns a configuration without rate limits.
func configOf(t *testing.T, s *apilettest.Server) *rest.Config {
	t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(s.Kubeconfig())
	check(t, "kubeconfig", err)
	config.QPS = -1
	return config
}

func check(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func eventually(t testing.TB, condition string, holds func() bool) {
	t.Helper()
	apilettest.Until(t, condition, func() error {
		if !holds() {
			return errors.New("it does not hold")
		}
		return nil
	})
}

func receive[T any](t testing.TB, what string, from <-chan T) (got T) {
	t.Helper()
	select {
	case got = <-from:
	case <-time.After(patience):
		t.Fatalf("not after %v: %s", patience, what)
	}
	return got
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns}, Data: map[string]string{"k": "v"}}
}

func deployment(name string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "image:1"}}}}}}
}

// ---- Clients ----

func TestTypedClient(t *testing.T) {
	t.Parallel()
	ctx, c := t.Context(), kubernetes.NewForConfigOrDie(serve(t)).CoreV1().ConfigMaps(ns)
	m, err := c.Create(ctx, configMap("m"), metav1.CreateOptions{})
	check(t, "create", err)
	if _, err := c.Create(ctx, configMap("m"), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("create again: %v, want AlreadyExists", err)
	}
	stale := m.DeepCopy()
	m.Data["k"] = "w"
	_, err = c.Update(ctx, m, metav1.UpdateOptions{})
	check(t, "update", err)
	if _, err := c.Update(ctx, stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("update of the past: %v, want Conflict", err)
	}
	for kind, body := range map[types.PatchType]string{types.JSONPatchType: `[{"op":"add","path":"/data/a","value":"1"}]`,
		types.MergePatchType: `{"data":{"b":"1"}}`, types.StrategicMergePatchType: `{"data":{"c":"1"}}`} {
		_, err = c.Patch(ctx, "m", kind, []byte(body), metav1.PatchOptions{})
		check(t, string(kind), err)
	}
	m, err = c.Apply(ctx, applycorev1.ConfigMap("m", ns).WithData(map[string]string{"d": "1"}), metav1.ApplyOptions{FieldManager: "tester"})
	check(t, "apply", err)
	if len(m.Data) != 5 {
		t.Errorf("data %v", m.Data)
	}
	check(t, "delete", c.Delete(ctx, "m", metav1.DeleteOptions{}))
	if _, err := c.Get(ctx, "m", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get after delete: %v, want NotFound", err)
	}
}

func TestDynamicClientByDiscovery(t *testing.T) {
	t.Parallel()
	ctx, config := t.Context(), serve(t)
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(discovery.NewDiscoveryClientForConfigOrDie(config)))
	mapping, err := mapper.RESTMapping(schema.GroupKind{Group: "apps", Kind: "Deployment"})
	check(t, "mapping", err)
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace || mapping.Resource.Version != "v1" {
		t.Errorf("mapping %+v", mapping)
	}
	c := dynamic.NewForConfigOrDie(config).Resource(mapping.Resource).Namespace(ns)
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(deployment("web"))
	check(t, "convert", err)
	d := &unstructured.Unstructured{Object: content}
	d.SetGroupVersionKind(mapping.GroupVersionKind)
	d, err = c.Create(ctx, d, metav1.CreateOptions{})
	check(t, "create", err)
	if replicas, _, _ := unstructured.NestedInt64(d.Object, "spec", "replicas"); replicas != 1 {
		t.Errorf("%d replicas, want the default, 1", replicas)
	}
	d, err = c.Patch(ctx, "web", types.MergePatchType, []byte(`{"status":{"replicas":1}}`), metav1.PatchOptions{}, "status")
	check(t, "patch status", err)
	check(t, "delete collection", c.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "!none"}))
	list, err := c.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("%d left, %v", len(list.Items), err)
	}
}

// ---- Informers ----

func TestInformers(t *testing.T) {
	t.Parallel()
	config := serve(t)
	cs := kubernetes.NewForConfigOrDie(config)
	for name, informer := range map[string]cache.SharedIndexInformer{
		"typed":    informers.NewSharedInformerFactory(cs, 0).Core().V1().ConfigMaps().Informer(),
		"dynamic":  dynamicinformer.NewDynamicSharedInformerFactory(dynamic.NewForConfigOrDie(config), 0).ForResource(configMaps).Informer(),
		"metadata": metadatainformer.NewSharedInformerFactory(metadata.NewForConfigOrDie(config), 0).ForResource(configMaps).Informer(),
	} {
		t.Run(name, func(t *testing.T) { follow(t, cs, informer, name) })
	}
}

// follow syncs an informer, and receives the creation, change and deletion of an object.
func follow(t *testing.T, cs kubernetes.Interface, informer cache.SharedIndexInformer, name string) {
	ctx, c := t.Context(), cs.CoreV1().ConfigMaps(ns)
	_, err := c.Create(ctx, configMap("before-"+name), metav1.CreateOptions{})
	check(t, "create", err)
	go informer.Run(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("never synced")
	}
	held := func(name string) metav1.Object {
		obj, ok, _ := informer.GetStore().GetByKey(ns + "/" + name)
		if !ok {
			return nil
		}
		return obj.(metav1.Object)
	}
	if held("before-"+name) == nil {
		t.Error("synced without what was there")
	}
	_, err = c.Create(ctx, configMap(name), metav1.CreateOptions{})
	check(t, "create", err)
	eventually(t, "it comes", func() bool { return held(name) != nil })
	_, err = c.Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
	check(t, "patch", err)
	eventually(t, "it changes", func() bool { return held(name).GetLabels()["a"] == "b" })
	check(t, "delete", c.Delete(ctx, name, metav1.DeleteOptions{}))
	eventually(t, "it goes", func() bool { return held(name) == nil })
}

// TestPagerAcrossAnExpiry lists in pages while the revision of the first page is compacted. The
// pager then requests a full list. The remaining pages come from a restarted server with a short
// history.
func TestPagerAcrossAnExpiry(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), apilettest.Start(t, apilettest.Data(filepath.Join(t.TempDir(), "apilet.db")))
	c := kubernetes.NewForConfigOrDie(configOf(t, s)).CoreV1().ConfigMaps(ns)
	for i := range 100 {
		_, err := c.Create(ctx, configMap(fmt.Sprintf("m-%02d", i)), metav1.CreateOptions{})
		check(t, "create", err)
	}
	pages := 0
	p := pager.New(func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		list, err := c.List(ctx, opts)
		if pages++; pages == 2 && err == nil {
			s.Kill()
			s.Restart("--compaction-interval=1s")
			cs := kubernetes.NewForConfigOrDie(configOf(t, s))
			c = cs.CoreV1().ConfigMaps(ns)
			expire(t, cs, list.ResourceVersion)
		}
		return list, err
	})
	p.PageSize, p.PageBufferSize = 20, 0
	list, _, err := p.List(ctx, metav1.ListOptions{})
	check(t, "pager", err)
	if n := meta.LenList(list); n != 100 || pages != 4 {
		t.Errorf("%d objects after %d requests; want 100 after 2 pages, a 410 and a full list", n, pages)
	}
}

// expire writes until revision rv is compacted.
func expire(t *testing.T, cs kubernetes.Interface, rv string) {
	n := 0
	eventually(t, "revision "+rv+" is compacted", func() bool {
		n++
		patch := fmt.Sprintf(`{"metadata":{"annotations":{"turn":"%d"}}}`, n)
		_, err := cs.CoreV1().Namespaces().Patch(t.Context(), "kube-public", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		check(t, "patch", err)
		time.Sleep(100 * time.Millisecond)
		_, err = cs.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{ResourceVersion: rv, ResourceVersionMatch: metav1.ResourceVersionMatchExact})
		return apierrors.IsResourceExpired(err)
	})
}

// ---- Leaders and events ----

func TestLeaderElection(t *testing.T) {
	t.Parallel()
	cs, leading := kubernetes.NewForConfigOrDie(serve(t)), make(chan string, 2)
	run := func(id string) (resign func()) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{ReleaseOnCancel: true,
				Lock: &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Name: "leader", Namespace: ns}, Client: cs.CoordinationV1(),
					LockConfig: resourcelock.ResourceLockConfig{Identity: id}},
				LeaseDuration: 5 * time.Second, RenewDeadline: 4 * time.Second, RetryPeriod: 200 * time.Millisecond,
				Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) { leading <- id }, OnStoppedLeading: func() {}}})
		}()
		return func() {
			cancel()
			<-done
		}
	}
	resign := map[string]func(){"a": run("a"), "b": run("b")}
	first := receive(t, "somebody leads", leading)
	resign[first]()
	// immediately or when the lease has expired, because this version of client-go does not release
	// a lease while it is being renewed
	second := receive(t, "the other one leads", leading)
	if second == first {
		t.Errorf("%s leads after it resigned", first)
	}
	resign[second]()
}

func TestEvents(t *testing.T) {
	t.Parallel()
	ctx, cs := t.Context(), kubernetes.NewForConfigOrDie(serve(t))
	m, err := cs.CoreV1().ConfigMaps(ns).Create(ctx, configMap("m"), metav1.CreateOptions{})
	check(t, "create", err)
	older := record.NewBroadcaster()
	defer older.Shutdown()
	older.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: cs.CoreV1().Events("")})
	recorder := older.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "tester"})
	recorder.Event(m, corev1.EventTypeNormal, "Older", "told")
	recorder.Event(m, corev1.EventTypeNormal, "Older", "told")
	newer := events.NewBroadcaster(&events.EventSinkImpl{Interface: cs.EventsV1()})
	defer newer.Shutdown()
	check(t, "start", newer.StartRecordingToSinkWithContext(ctx))
	newer.NewRecorder(scheme.Scheme, "example.com/tester").Eventf(m, nil, corev1.EventTypeNormal, "Newer", "Testing", "told")
	eventually(t, "both groups have both events", func() bool {
		core, err := cs.CoreV1().Events(ns).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=m"})
		check(t, "list", err)
		other, err := cs.EventsV1().Events(ns).List(ctx, metav1.ListOptions{})
		check(t, "list", err)
		counted := false
		for _, ev := range core.Items {
			counted = counted || ev.Reason == "Older" && ev.Count == 2
		}
		return counted && len(core.Items) == 2 && len(other.Items) == 2
	})
}
