package clients

// This file tests clients that use protobuf, including a client that does not support JSON.

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A formTap counts responses by media type.
type formTap struct {
	mu    sync.Mutex // guards forms
	forms map[string]int
}

// watching attaches the tap to a client's configuration.
func (p *formTap) watching(config *rest.Config) *rest.Config {
	p.forms = map[string]int{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(r)
			if err == nil {
				p.mu.Lock()
				defer p.mu.Unlock()
				p.forms[response.Header.Get("Content-Type")]++
			}
			return response, err
		})
	})
	return config
}

// others returns the media types other than protobuf.
func (p *formTap) others() (others []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for form := range p.forms {
		if !strings.HasPrefix(form, protobuf) {
			others = append(others, form)
		}
	}
	return others
}

// TestEveryKnownTypeIsReadInProtobuf checks that all resources known to client-go can be read and
// watched in protobuf.
func TestEveryKnownTypeIsReadInProtobuf(t *testing.T) {
	t.Parallel()
	s := startEphemeral(t)
	var tap formTap
	config := tap.watching(s.config(protobuf))
	config.AcceptContentTypes = protobuf
	config.QPS = -1
	cs := must(kubernetes.NewForConfig(config))
	groups, err := cs.Discovery().ServerPreferredResources()
	check(t, "discovery", err)
	tap.mu.Lock()
	tap.forms = map[string]int{} // discovery uses JSON, as client-go requests
	tap.mu.Unlock()
	listed := 0
	for _, group := range groups {
		gv := must(schema.ParseGroupVersion(group.GroupVersion))
		for _, r := range group.APIResources {
			if !scheme.Scheme.Recognizes(gv.WithKind(r.Kind)) || !strings.Contains(r.Verbs.String(), "list") {
				continue
			}
			listed++
			readAsProtobuf(t, cs, gv, r)
		}
	}
	if listed < 50 {
		t.Errorf("%d resources", listed)
	}
	if others := tap.others(); others != nil {
		t.Errorf("answers came as %v, too", others)
	}
}

// readAsProtobuf lists and watches a resource and tries to get an object that does not exist.
func readAsProtobuf(t *testing.T, cs *kubernetes.Clientset, gv schema.GroupVersion, r metav1.APIResource) {
	t.Helper()
	root := "/apis/" + gv.String()
	if gv.Group == "" {
		root = "/api/" + gv.Version
	}
	get := func(path string) *rest.Request { return cs.CoreV1().RESTClient().Get().AbsPath(root + path) }
	list, err := get("/" + r.Name).Do(t.Context()).Get()
	check(t, "list "+r.Name, err)
	if !meta.IsListType(list) {
		t.Errorf("%s: a list of %T", r.Name, list)
	}
	lone := "/" + r.Name + "/nope"
	if r.Namespaced {
		lone = "/namespaces/" + ns + lone
	}
	if _, err := get(lone).Do(t.Context()).Get(); !apierrors.IsNotFound(err) {
		t.Errorf("%s: %v, want NotFound", lone, err)
	}
	if !strings.Contains(r.Verbs.String(), "watch") {
		return
	}
	w, err := get("/"+r.Name).Param("watch", "true").Param("allowWatchBookmarks", "true").Param("sendInitialEvents", "true").
		Param("resourceVersionMatch", "NotOlderThan").Watch(t.Context())
	check(t, "watch "+r.Name, err)
	defer w.Stop()
	for {
		select {
		case ev := <-w.ResultChan():
			if ev.Type == watch.Bookmark {
				return
			}
			if ev.Type != watch.Added || ev.Object.GetObjectKind().GroupVersionKind().Kind != "" && ev.Object.GetObjectKind().GroupVersionKind().Kind != r.Kind {
				t.Errorf("%s: %s %T", r.Name, ev.Type, ev.Object)
			}
		case <-time.After(patience):
			t.Fatalf("%s: no bookmark", r.Name)
		}
	}
}

// TestMetadataClientReadsProtobuf reads built-in types and custom resources with a metadata client,
// both in protobuf.
func TestMetadataClientReadsProtobuf(t *testing.T) {
	t.Parallel()
	s := startEphemeral(t)
	createMaps(t, s.typed(), "cm", 3)
	var tap formTap
	mc := must(metadata.NewForConfig(tap.watching(s.config(protobuf))))
	list, err := mc.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace(ns).List(t.Context(), metav1.ListOptions{LabelSelector: "!none"})
	check(t, "list", err)
	if len(list.Items) < 3 || list.Items[0].UID == "" {
		t.Errorf("%+v", list.Items)
	}
	if others := tap.others(); others != nil {
		t.Errorf("answers came as %v", others)
	}
}

// TestControllerRuntimeReadsProtobuf checks that controller-runtime uses protobuf for types that
// support it and JSON for other types.
func TestControllerRuntimeReadsProtobuf(t *testing.T) {
	t.Parallel()
	s := startEphemeral(t)
	var tap formTap
	config := tap.watching(s.config(""))
	c := must(client.New(config, client.Options{}))
	tap.mu.Lock()
	tap.forms = map[string]int{}
	tap.mu.Unlock()
	check(t, "create", c.Create(t.Context(), deployment("d")))
	got := deployment("d")
	check(t, "get", c.Get(t.Context(), client.ObjectKeyFromObject(got), got))
	got.Spec.Replicas = nil
	check(t, "update", c.Update(t.Context(), got))
	check(t, "list", c.List(t.Context(), &corev1.PodList{}))
	check(t, "delete", c.Delete(t.Context(), got))
	tap.mu.Lock()
	sealed := tap.forms[protobuf]
	tap.mu.Unlock()
	if sealed < 5 {
		t.Errorf("%d answers came as protobuf, others as %v", sealed, tap.others())
	}
	dc := must(dynamic.NewForConfig(s.config("")))
	u, err := dc.Resource(corev1.SchemeGroupVersion.WithResource("namespaces")).Get(t.Context(), ns, metav1.GetOptions{})
	check(t, "the dynamic client, which has JSON alone", err)
	if u.GetName() != ns {
		t.Errorf("%v", u)
	}
}
