package clients

// This file tests informers. They must receive the first list and all later events, even if the
// server is restarted or has already compacted the revision.

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/features"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"

	"apilet/apilettest"
)

const streamingGate = "KUBE_FEATURE_WatchListClient"

// firstList returns the kind of request that informers of this process start with.
func firstList() string {
	if features.FeatureGates().Enabled(features.WatchListClient) {
		return "streaming list"
	}
	return "list"
}

func TestInformersDoWithoutStreamingLists(t *testing.T) {
	t.Parallel()
	if os.Getenv(streamingGate) != "" {
		t.Skip("this is the other half already")
	}
	half := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestInformer|^TestReflector", "-test.v")
	half.Env = append(os.Environ(), streamingGate+"=false", "APILET="+apilettest.Program(t))
	out, err := half.CombinedOutput()
	if t.Logf("%s", out); err != nil {
		t.Error(err)
	}
}

// ---- Fixtures ----

// seen receives an informer's events, as "add NAME", "update NAME", "delete NAME".
type seen struct {
	events chan string
}

func (s seen) OnAdd(obj any, _ bool)     { s.tell("add", obj) }
func (s seen) OnUpdate(_, obj any)       { s.tell("update", obj) }
func (s seen) OnDelete(obj any)          { s.tell("delete", obj) }
func (s seen) tell(what string, obj any) { s.events <- what + " " + nameOf(obj) }

func nameOf(obj any) string {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	return obj.(metav1.Object).GetName()
}

// expect waits for events in this order. Other events may come between them.
func (s seen) expect(t *testing.T, events ...string) {
	t.Helper()
	limit := time.After(patience)
	var got []string
	for _, want := range events {
		for ev := ""; ev != want; {
			select {
			case ev = <-s.events:
				got = append(got, ev)
			case <-limit:
				t.Fatalf("no %q; the last events are %q", want, got[max(0, len(got)-8):])
			}
		}
	}
}

// createMaps creates n ConfigMaps called PREFIX-0000 and so on.
func createMaps(t *testing.T, cs kubernetes.Interface, prefix string, n int) {
	t.Helper()
	errs, gate := make(chan error, n), make(chan struct{}, 32)
	for i := range n {
		gate <- struct{}{}
		go func() {
			defer func() { <-gate }()
			_, err := cs.CoreV1().ConfigMaps(ns).Create(t.Context(), configMap(fmt.Sprintf("%s-%04d", prefix, i)), metav1.CreateOptions{})
			errs <- err
		}()
	}
	for range n {
		check(t, "create", <-errs)
	}
}

func setData(t *testing.T, cs kubernetes.Interface, name, value string) {
	t.Helper()
	_, err := cs.CoreV1().ConfigMaps(ns).Patch(t.Context(), name, types.MergePatchType, []byte(`{"data":{"k":"`+value+`"}}`), metav1.PatchOptions{})
	check(t, "patch "+name, err)
}

func remove(t *testing.T, cs kubernetes.Interface, name string) {
	t.Helper()
	check(t, "delete "+name, cs.CoreV1().ConfigMaps(ns).Delete(t.Context(), name, metav1.DeleteOptions{}))
}

// ---- Informers ----

func TestInformerOfObjectsGoesOn(t *testing.T) {
	t.Parallel()
	goesOn(t, protobuf, func(config *rest.Config) cache.SharedIndexInformer {
		return informers.NewSharedInformerFactory(must(kubernetes.NewForConfig(config)), 0).Core().V1().ConfigMaps().Informer()
	})
}

func TestInformerOfMetadataGoesOn(t *testing.T) {
	t.Parallel()
	goesOn(t, "", func(config *rest.Config) cache.SharedIndexInformer {
		factory := metadatainformer.NewSharedInformerFactory(must(metadata.NewForConfig(config)), 0)
		return factory.ForResource(corev1.SchemeGroupVersion.WithResource("configmaps")).Informer()
	})
}

func goesOn(t *testing.T, contentType string, informer func(*rest.Config) cache.SharedIndexInformer) {
	t.Run("where it was, after a restart", func(t *testing.T) {
		t.Parallel()
		s := startOnFile(t)
		afterRestart(t, s, synced(t, s, contentType, informer))
	})
	t.Run("with a new list, after a crash and a compaction", func(t *testing.T) {
		t.Parallel()
		s := startOnFile(t)
		afterCompaction(t, s, synced(t, s, contentType, informer))
	})
}

// A listener is an informer of ConfigMaps that has synced and received changes.
type listener struct {
	cache.SharedIndexInformer
	tap  *tap
	told seen
}

func synced(t *testing.T, s *server, contentType string, informer func(*rest.Config) cache.SharedIndexInformer) listener {
	t.Helper()
	ctx, cs, config := t.Context(), s.typed(), s.config(contentType)
	createMaps(t, cs, "cm", 50)
	l := listener{tap: attach(config), told: seen{make(chan string, 1000)}}
	l.SharedIndexInformer = informer(config)
	must(l.AddEventHandler(l.told))
	go l.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), l.HasSynced) {
		t.Fatal("never synced")
	}
	if n, lists := len(l.GetStore().List()), l.tap.count(firstList()); n != 50 || lists != 1 {
		t.Errorf("synced with %d objects after %d of %s; want 50 after 1", n, lists, firstList())
	}
	change(t, cs, l.told, "while it watches")
	return l
}

func afterRestart(t *testing.T, s *server, l listener) {
	s.Restart()
	change(t, s.typed(), l.told, "after a restart")
	if lists := l.tap.count(firstList()); lists != 1 {
		t.Errorf("%d of %s, want 1", lists, firstList())
	}
}

// afterCompaction disconnects the informer until the history is compacted. The informer must notice
// the changes in between.
func afterCompaction(t *testing.T, s *server, l listener) {
	cs := s.typed()
	l.tap.cut.Store(true)
	s.Kill()
	s.Restart()
	setData(t, cs, "cm-0001", "unseen")
	remove(t, cs, "cm-0002")
	createMaps(t, cs, "unseen", 1)
	unseen, err := cs.CoreV1().ConfigMaps(ns).Get(t.Context(), "unseen-0000", metav1.GetOptions{})
	check(t, "get", err)
	s.expire(t.Context(), unseen.ResourceVersion)
	l.tap.cut.Store(false)
	eventually(t, "the informer holds what the server has", func() bool {
		_, gone, _ := l.GetStore().GetByKey(ns + "/cm-0002")
		_, there, _ := l.GetStore().GetByKey(ns + "/unseen-0000")
		return !gone && there
	})
	if lists := l.tap.count(firstList()); lists < 2 {
		t.Errorf("%d of %s, want another one", lists, firstList())
	}
	change(t, cs, l.told, "after a compaction")
}

// change creates, updates and deletes an object and waits for the events of the informer.
func change(t *testing.T, cs kubernetes.Interface, told seen, value string) {
	t.Helper()
	createMaps(t, cs, "new", 1)
	setData(t, cs, "new-0000", value)
	remove(t, cs, "new-0000")
	told.expect(t, "add new-0000", "update new-0000", "delete new-0000")
}

// ---- A reflector with an expired watch ----

func TestReflectorRelistsWhenItsWatchExpired(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), startEphemeral(t, shortHistory)
	cs := s.typed()
	createMaps(t, cs, "cm", 3)
	list, err := cs.CoreV1().ConfigMaps(ns).List(ctx, metav1.ListOptions{})
	check(t, "list", err)
	setData(t, cs, "cm-0001", "later")
	s.expire(ctx, list.ResourceVersion)

	// The first list is old, as from a lagging cache.
	lists := 0
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			if lists++; lists == 1 {
				return list, nil
			}
			return cs.CoreV1().ConfigMaps(ns).List(ctx, opts)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			return cs.CoreV1().ConfigMaps(ns).Watch(ctx, opts)
		},
	}
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	go cache.NewReflector(listOnly{lw}, &corev1.ConfigMap{}, store, 0).RunWithContext(ctx)
	eventually(t, "the store holds what came later", func() bool {
		obj, ok, _ := store.GetByKey(ns + "/cm-0001")
		return ok && obj.(*corev1.ConfigMap).Data["k"] == "later"
	})
}

// listOnly is a ListWatch without streaming lists.
type listOnly struct{ *cache.ListWatch }

func (listOnly) IsWatchListSemanticsUnSupported() bool { return true }

func TestWatchOfAnExpiredRevisionEndsInGone(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), startOnFile(t)
	cs := s.typed()
	createMaps(t, cs, "cm", 1)
	old, err := cs.CoreV1().ConfigMaps(ns).Get(ctx, "cm-0000", metav1.GetOptions{})
	check(t, "get", err)
	setData(t, cs, "cm-0000", "later")
	lw := cache.NewListWatchFromClient(cs.CoreV1().RESTClient(), "configmaps", ns, fields.Everything())

	// A RetryWatcher returns all events since the revision if it is not compacted.
	fresh, err := toolswatch.NewRetryWatcherWithContext(ctx, old.ResourceVersion, lw)
	check(t, "watch", err)
	if ev := receive(t, "what happened since", fresh.ResultChan()); ev.Type != watch.Modified {
		t.Errorf("watched %v, want MODIFIED", ev)
	}
	fresh.Stop()

	s.expire(ctx, old.ResourceVersion)
	expired, err := toolswatch.NewRetryWatcherWithContext(ctx, old.ResourceVersion, lw)
	check(t, "watch", err)
	ev := receive(t, "the end of the watch", expired.ResultChan())
	if err := apierrors.FromObject(ev.Object); ev.Type != watch.Error || !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("watched %v %v, want ERROR with 410", ev.Type, err)
	}
	if _, open := <-expired.ResultChan(); open {
		t.Error("the watch goes on after 410")
	}
}
