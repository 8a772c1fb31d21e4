package swap

// This file follows types with client-go's informers through the proxy. Each event must be
// consistent with the previous one: no object is added twice, only existing objects are deleted,
// and versions never decrease. At the end an informer must have the objects that each server lists.

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// A story contains the events received by an informer.
type story struct {
	name     string
	informer cache.SharedIndexInformer
	list     func(addr string) ([]metav1.Object, error)

	mu       sync.Mutex // guards the fields below
	there    map[string]metav1.Object
	last     map[string]int64 // the newest received version of each name
	events   int
	problems []string
}

func (w *world) newStory(name string, informer cache.SharedIndexInformer, list func(addr string) ([]metav1.Object, error)) *story {
	s := &story{name: name, informer: informer, list: list, there: map[string]metav1.Object{}, last: map[string]int64{}}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { s.told("added", nil, o.(metav1.Object)) },
		UpdateFunc: func(old, o any) { s.told("updated", old.(metav1.Object), o.(metav1.Object)) },
		DeleteFunc: func(o any) {
			if unseen, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = unseen.Obj
			}
			s.told("deleted", nil, o.(metav1.Object))
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	go informer.RunWithContext(w.t.Context())
	return s
}

func (s *story) told(what string, old, o metav1.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events++
	key := o.GetNamespace() + "/" + o.GetName()
	version, err := strconv.ParseInt(o.GetResourceVersion(), 10, 64)
	wrong := func(format string, args ...any) {
		s.problems = append(s.problems, fmt.Sprintf("%s: %s %s at %d: %s", s.name, key, what, version, fmt.Sprintf(format, args...)))
	}
	was, there := s.there[key]
	created := o.GetCreationTimestamp()
	switch {
	case err != nil:
		wrong("%v", err)
	case what == "added" && there:
		wrong("it was there at %s", was.GetResourceVersion())
	case what != "added" && !there:
		wrong("it was not there")
	case version < s.last[key]:
		wrong("%d was told before", s.last[key])
	case what == "updated" && (old.GetUID() != o.GetUID() || old.GetCreationTimestamp() != created):
		wrong("it was %s of %v, and is %s of %v", old.GetUID(), old.GetCreationTimestamp(), o.GetUID(), created)
	case what == "updated" && old.GetGeneration() > o.GetGeneration():
		wrong("its generation was %d and is %d", old.GetGeneration(), o.GetGeneration())
	}
	s.last[key] = version
	if s.there[key] = o; what == "deleted" {
		delete(s.there, key)
	}
}

// judge compares the informer with the servers' lists.
func (s *story) judge(sides [2]*side) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	problems := slices.Clone(s.problems)
	for _, side := range sides {
		all, err := s.list(side.addr)
		if err != nil {
			problems = append(problems, err.Error())
			continue
		}
		rest := maps.Clone(s.there)
		for _, o := range all {
			key := o.GetNamespace() + "/" + o.GetName()
			if mine := rest[key]; mine == nil || !reflect.DeepEqual(mine, o) {
				problems = append(problems, fmt.Sprintf("%s: %s shows %s %+v, and the informer has %+v", s.name, side.name, key, o, mine))
			}
			delete(rest, key)
		}
		for key := range rest {
			problems = append(problems, fmt.Sprintf("%s: the informer has %s, and %s does not", s.name, key, side.name))
		}
	}
	return problems
}

// stories starts three informers on the current server. Two of them decode protobuf into Go types.
func (w *world) stories(when string) []*story {
	typed := func(addr string) *rest.RESTClient {
		config := w.config(addr)
		config.APIPath, config.GroupVersion, config.NegotiatedSerializer = "/api", &corev1.SchemeGroupVersion, scheme.Codecs.WithoutConversion()
		config.AcceptContentTypes, config.ContentType = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
		client, err := rest.RESTClientFor(config)
		if err != nil {
			w.t.Fatal(err)
		}
		return client
	}
	door := typed(w.door.Addr())
	ctx := context.Background()
	return []*story{
		w.newStory("ConfigMaps "+when, cache.NewSharedIndexInformer(cache.NewListWatchFromClient(door, "configmaps", "", fields.Everything()), &corev1.ConfigMap{}, 0, nil),
			func(addr string) (all []metav1.Object, err error) {
				var list corev1.ConfigMapList
				err = typed(addr).Get().Resource("configmaps").Do(ctx).Into(&list)
				for i := range list.Items {
					all = append(all, &list.Items[i])
				}
				return all, err
			}),
		w.newStory("Pods "+when, cache.NewSharedIndexInformer(cache.NewListWatchFromClient(door, "pods", "", fields.Everything()), &corev1.Pod{}, 0, nil),
			func(addr string) (all []metav1.Object, err error) {
				var list corev1.PodList
				err = typed(addr).Get().Resource("pods").Do(ctx).Into(&list)
				for i := range list.Items {
					all = append(all, &list.Items[i])
				}
				return all, err
			}),
		w.newStory("Rockets "+when, dynamicinformer.NewDynamicSharedInformerFactory(w.client, 0).ForResource(rockets.GroupVersion().WithResource("rockets")).Informer(),
			func(addr string) (all []metav1.Object, err error) {
				list, err := w.at(addr).Resource(rockets).List(ctx, metav1.ListOptions{})
				if err != nil {
					return nil, err
				}
				for i := range list.Items {
					all = append(all, &list.Items[i])
				}
				return all, nil
			}),
	}
}
