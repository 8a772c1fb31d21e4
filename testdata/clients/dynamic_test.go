package clients

// This file tests clients without Go types: both kinds of discovery, the RESTMapper, and the
// dynamic, metadata and scale clients.

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/scale"
)

func mapper(dc discovery.DiscoveryInterface) meta.RESTMapper {
	deferred := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(dc))
	return restmapper.NewShortcutExpander(deferred, dc, nil)
}

func TestDiscoveryIsTheSameInBothForms(t *testing.T) {
	t.Parallel()
	s := startEphemeral(t)
	aggregated := discovery.NewDiscoveryClientForConfigOrDie(s.config(""))
	legacy := aggregated.WithLegacy()
	forms := map[string][]string{}
	for name, dc := range map[string]discovery.DiscoveryInterface{"aggregated": aggregated, "legacy": legacy} {
		_, lists, err := dc.ServerGroupsAndResources()
		check(t, name, err)
		for _, list := range lists {
			for _, r := range list.APIResources {
				slices.Sort(r.Verbs)
				forms[name] = append(forms[name], fmt.Sprint(list.GroupVersion, r.Name, r.Kind, r.Namespaced, r.Verbs, r.ShortNames, r.Categories))
			}
		}
		slices.Sort(forms[name])
		mapsNames(t, dc)
	}
	if !slices.Equal(forms["aggregated"], forms["legacy"]) {
		t.Errorf("aggregated\n%q\nlegacy\n%q", forms["aggregated"], forms["legacy"])
	}
	if v, err := aggregated.ServerVersion(); err != nil || v.Minor != "37" {
		t.Errorf("version %v, %v", v, err)
	}
}

// mapsNames uses the RESTMapper like kubectl, with short names and kinds.
func mapsNames(t *testing.T, dc discovery.DiscoveryInterface) {
	t.Helper()
	m := mapper(dc)
	for short, want := range map[string]string{"cm": "configmaps", "deploy": "deployments", "po": "pods", "netpol": "networkpolicies", "leases": "leases", "pdb": "poddisruptionbudgets"} {
		if got, err := m.ResourceFor(schema.GroupVersionResource{Resource: short}); err != nil || got.Resource != want {
			t.Errorf("%s is %v (%v), want %s", short, got, err, want)
		}
	}
	mapping, err := m.RESTMapping(schema.GroupKind{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"})
	check(t, "mapping", err)
	if mapping.Resource.Version != "v2" || mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		t.Errorf("HorizontalPodAutoscaler is %v, %s", mapping.Resource, mapping.Scope.Name())
	}
	if _, err := m.RESTMapping(schema.GroupKind{Group: "example.com", Kind: "Widget"}); !meta.IsNoMatchError(err) {
		t.Errorf("an unknown kind: %v, want a NoMatchError", err)
	}
	if all, _ := restmapper.NewDiscoveryCategoryExpander(dc).Expand("all"); !slices.Contains(all, schema.GroupResource{Group: "apps", Resource: "deployments"}) {
		t.Errorf("category all is %v", all)
	}
}

func TestDynamicClient(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), startEphemeral(t)
	config := s.config("")
	dc := discovery.NewDiscoveryClientForConfigOrDie(config)
	mapping := must(mapper(dc).RESTMapping(schema.GroupKind{Group: "networking.k8s.io", Kind: "Ingress"}))
	c := must(dynamic.NewForConfig(config)).Resource(mapping.Resource).Namespace(ns)
	w, err := c.Watch(ctx, metav1.ListOptions{})
	check(t, "watch", err)
	defer w.Stop()
	ingress := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
		"metadata": map[string]any{"name": "i"},
		"spec":     map[string]any{"defaultBackend": map[string]any{"service": map[string]any{"name": "s", "port": map[string]any{"number": int64(80)}}}}}}
	made, err := c.Create(ctx, ingress, metav1.CreateOptions{})
	check(t, "create", err)
	check(t, "set", unstructured.SetNestedField(made.Object, "t", "spec", "defaultBackend", "service", "name"))
	updated, err := c.Update(ctx, made, metav1.UpdateOptions{})
	check(t, "update", err)
	if updated.GetGeneration() != 2 {
		t.Errorf("generation %d, want 2", updated.GetGeneration())
	}
	_, err = c.Patch(ctx, "i", types.MergePatchType, []byte(`{"status":{"loadBalancer":{"ingress":[{"ip":"10.0.0.1"}]}}}`), metav1.PatchOptions{}, "status")
	check(t, "patch status", err)
	list, err := c.List(ctx, metav1.ListOptions{Limit: 1})
	check(t, "list", err)
	if ips, _, _ := unstructured.NestedSlice(list.Items[0].Object, "status", "loadBalancer", "ingress"); len(ips) != 1 || list.Items[0].GetKind() != "Ingress" {
		t.Errorf("listed %v", list.Items[0].Object)
	}
	applied := ingress.DeepCopy()
	unstructured.RemoveNestedField(applied.Object, "spec")
	applied.SetLabels(map[string]string{"by": "apply"})
	_, err = c.Apply(ctx, "i", applied, metav1.ApplyOptions{FieldManager: "tester"})
	check(t, "apply", err)
	check(t, "delete", c.Delete(ctx, "i", metav1.DeleteOptions{}))
	if _, err := c.Get(ctx, "i", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get: %v, want NotFound", err)
	}
	if events := watched(t, w); !slices.Equal(slices.Compact(events), []watch.EventType{watch.Added, watch.Modified, watch.Deleted}) {
		t.Errorf("watched %v", events)
	}
}

func TestMetadataClient(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), startEphemeral(t)
	cs := s.typed()
	createMaps(t, cs, "cm", 3)
	c := must(metadata.NewForConfig(s.config(""))).Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace(ns)
	w, err := c.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=cm-0000"})
	check(t, "watch", err)
	defer w.Stop()
	list, err := c.List(ctx, metav1.ListOptions{})
	check(t, "list", err)
	if len(list.Items) != 3 || list.Items[0].Name != "cm-0000" || list.ResourceVersion == "" {
		t.Errorf("listed %+v", list)
	}
	one, err := c.Patch(ctx, "cm-0000", types.MergePatchType, []byte(`{"metadata":{"labels":{"by":"metadata"}}}`), metav1.PatchOptions{})
	check(t, "patch", err)
	if got, err := c.Get(ctx, "cm-0000", metav1.GetOptions{}); err != nil || got.Labels["by"] != "metadata" || got.ResourceVersion != one.ResourceVersion {
		t.Errorf("got %+v, %v", got, err)
	}
	check(t, "delete", c.Delete(ctx, "cm-0000", metav1.DeleteOptions{}))
	for ev := range w.ResultChan() {
		if _, ok := ev.Object.(*metav1.PartialObjectMetadata); !ok {
			t.Fatalf("watched %v %T", ev.Type, ev.Object)
		}
		if ev.Type == watch.Deleted {
			break
		}
	}
	check(t, "deletecollection", c.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	if list, err := c.List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("%d left, %v", len(list.Items), err)
	}
}

func TestScaleClientFindsTheScaleOfAnything(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), startEphemeral(t)
	config := s.config("")
	dc := discovery.NewDiscoveryClientForConfigOrDie(config)
	c := must(scale.NewForConfig(config, mapper(dc), dynamic.LegacyAPIPathResolverFunc, scale.NewDiscoveryScaleKindResolver(dc)))
	_, err := s.typed().AppsV1().Deployments(ns).Create(ctx, deployment("web"), metav1.CreateOptions{})
	check(t, "create", err)
	what := schema.GroupResource{Group: "apps", Resource: "deployments"}
	got, err := c.Scales(ns).Get(ctx, what, "web", metav1.GetOptions{})
	check(t, "get scale", err)
	got.Spec.Replicas = 7
	got, err = c.Scales(ns).Update(ctx, what, got, metav1.UpdateOptions{})
	check(t, "update scale", err)
	if got.Spec.Replicas != 7 || got.Status.Selector != "app=web" {
		t.Errorf("scale %+v", got)
	}
}
