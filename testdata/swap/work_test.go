package swap

// This file contains the clients that use the proxy. The clients record their requests and compare
// the results with the stored objects at the end. If the connection is closed before the response,
// the client reads the object to determine the result.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

var (
	configMaps  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	namespaces  = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	pods        = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	services    = schema.GroupVersionResource{Version: "v1", Resource: "services"}
	quotas      = schema.GroupVersionResource{Version: "v1", Resource: "resourcequotas"}
	addresses   = schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "ipaddresses"}
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	rockets     = schema.GroupVersionResource{Group: "fleet.example.com", Version: "v1", Resource: "rockets"}
	oldRockets  = schema.GroupVersionResource{Group: "fleet.example.com", Version: "v1beta1", Resource: "rockets"}
)

// A book contains a client and its results.
type book struct {
	w      *world
	name   string
	client dynamic.Interface // through the proxy, over separate connections

	mu       sync.Mutex // guards the fields below
	done     int        // requests with a response
	lost     int        // requests without a response
	problems []string
}

func (w *world) book(name string) *book { return &book{w: w, name: name, client: w.at(w.door.Addr())} }

func (b *book) wrong(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.problems = append(b.problems, b.name+": "+fmt.Sprintf(format, args...))
}

// ask repeats a request if the connection was closed or the server was starting or stopping. It
// returns other errors.
func (b *book) ask(what string, request func(context.Context) error) error {
	for begin := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		err := request(ctx)
		cancel()
		var status apierrors.APIStatus
		answered := err == nil || errors.As(err, &status) && status.Status().Code < 500 && status.Status().Code != 429
		b.mu.Lock()
		if answered {
			b.done++
		} else {
			b.lost++
		}
		b.mu.Unlock()
		if answered {
			return err
		}
		if time.Since(begin) > settling {
			b.wrong("%s: %v", what, err)
			return err
		}
	}
}

// each calls do in a loop until the test ends.
func (b *book) each(pause time.Duration, do func(n int)) {
	for n := 0; b.w.over.Err() == nil; n++ {
		do(n)
		time.Sleep(pause)
	}
}

func object(apiVersion, kind, name string, more map[string]any) *unstructured.Unstructured {
	o := map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name}}
	for key, value := range more {
		o[key] = value
	}
	return &unstructured.Unstructured{Object: o}
}

// create creates an object. It returns an error if the object already exists.
func (b *book) create(at dynamic.ResourceInterface, o *unstructured.Unstructured) (made *unstructured.Unstructured, err error) {
	tries := 0
	err = b.ask("create "+o.GetName(), func(ctx context.Context) (err error) {
		tries++
		// the object was created, but the response was lost
		if made, err = at.Create(ctx, o, metav1.CreateOptions{FieldManager: "swap"}); apierrors.IsAlreadyExists(err) && tries > 1 {
			made, err = at.Get(ctx, o.GetName(), metav1.GetOptions{})
		}
		return err
	})
	return made, err
}

// remove deletes an object.
func (b *book) remove(at dynamic.ResourceInterface, name string) error {
	return b.ask("delete "+name, func(ctx context.Context) error {
		if err := at.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	})
}

func (b *book) get(at dynamic.ResourceInterface, name string) (o *unstructured.Unstructured, err error) {
	err = b.ask("get "+name, func(ctx context.Context) (err error) {
		o, err = at.Get(ctx, name, metav1.GetOptions{})
		return err
	})
	return o, err
}

func (b *book) patch(at dynamic.ResourceInterface, name, body string, sub ...string) (o *unstructured.Unstructured, err error) {
	err = b.ask("patch "+name, func(ctx context.Context) (err error) {
		o, err = at.Patch(ctx, name, types.MergePatchType, []byte(body), metav1.PatchOptions{FieldManager: "swap"}, sub...)
		return err
	})
	return o, err
}

func (b *book) list(at dynamic.ResourceInterface) (items []unstructured.Unstructured) {
	var list *unstructured.UnstructuredList
	err := b.ask("list", func(ctx context.Context) (err error) {
		list, err = at.List(ctx, metav1.ListOptions{})
		return err
	})
	if err != nil {
		b.wrong("list: %v", err)
		return nil
	}
	return list.Items
}

func nested(o *unstructured.Unstructured, path ...string) string {
	value, _, _ := unstructured.NestedFieldNoCopy(o.Object, path...)
	return fmt.Sprint(value)
}

// ---- ConfigMaps ----

// count increments a number in an object, using the resource version as a precondition. After ten
// updates the object is deleted and created again. All acknowledged writes must be visible
// afterwards.
func (b *book) count(name string) {
	at := b.client.Resource(configMaps).Namespace("work")
	var known *unstructured.Unstructured
	n := 0
	b.each(30*time.Millisecond, func(int) {
		if known == nil {
			var err error
			if known, err = b.create(at, object("v1", "ConfigMap", name, map[string]any{"data": map[string]any{"n": fmt.Sprint(n)}})); err != nil {
				b.wrong("create: %v", err)
			}
			return
		}
		if n++; n%10 == 0 {
			if err := b.remove(at, name); err != nil {
				b.wrong("delete: %v", err)
			}
			known = nil
			return
		}
		next := known.DeepCopy()
		_ = unstructured.SetNestedField(next.Object, fmt.Sprint(n), "data", "n")
		err := b.ask("update", func(ctx context.Context) error {
			answer, err := at.Update(ctx, next, metav1.UpdateOptions{FieldManager: "swap"})
			// there is no other writer, so the object was updated and the response was lost
			if apierrors.IsConflict(err) {
				answer, err = at.Get(ctx, name, metav1.GetOptions{})
			}
			if err == nil {
				known = answer
			}
			return err
		})
		if got := nested(known, "data", "n"); err != nil || got != fmt.Sprint(n) {
			b.wrong("written was %d, and there is %s: %v", n, got, err)
			n = 0
			_, _ = fmt.Sscan(got, &n)
		}
	})
	if got, err := b.get(at, name); known == nil && !apierrors.IsNotFound(err) || known != nil && (err != nil || nested(got, "data", "n") != fmt.Sprint(n)) {
		b.wrong("the last written was %d, and there is %v: %v", n, got, err)
	}
}

// forbidden sends requests that the webhook must reject.
func (b *book) forbidden() {
	at := b.client.Resource(configMaps).Namespace("work")
	b.each(300*time.Millisecond, func(n int) {
		if _, err := b.create(at, object("v1", "ConfigMap", fmt.Sprint("forbidden-", n), nil)); !apierrors.IsForbidden(err) {
			b.wrong("what is forbidden was created: %v", err)
		}
	})
}

// marks checks that all objects were seen by the webhook.
func (b *book) marks() {
	for _, resource := range []schema.GroupVersionResource{configMaps, pods, rockets} {
		for _, o := range b.list(b.client.Resource(resource)) {
			if slices.Contains([]string{"work", "quota"}, o.GetNamespace()) && o.GetLabels()[mark] == "" {
				b.wrong("%s %s/%s of %v has no mark", resource.Resource, o.GetNamespace(), o.GetName(), o.GetCreationTimestamp())
			}
		}
	}
}

// ---- Two versions ----

// versions reads and writes Rockets in both versions.
func (b *book) versions() {
	newer, older := b.client.Resource(rockets).Namespace("work"), b.client.Resource(oldRockets).Namespace("work")
	b.each(100*time.Millisecond, func(n int) {
		name := fmt.Sprint("rocket-", n%7)
		var err error
		switch {
		case n < 7 && n%2 == 0:
			_, err = b.create(newer, object("fleet.example.com/v1", "Rocket", name, map[string]any{"spec": map[string]any{"engines": int64(n)}}))
		case n < 7:
			_, err = b.create(older, object("fleet.example.com/v1beta1", "Rocket", name, map[string]any{"spec": map[string]any{"thrust": fmt.Sprint(n, "x")}}))
		case n%2 == 0:
			_, err = b.patch(newer, name, fmt.Sprintf(`{"spec": {"engines": %d}}`, n))
		default:
			_, err = b.patch(older, name, fmt.Sprintf(`{"spec": {"thrust": "%dx"}}`, n))
		}
		if err != nil {
			b.wrong("%s: %v", name, err)
			return
		}
		one, err := b.get(newer, name)
		other, errToo := b.get(older, name)
		if err != nil || errToo != nil || nested(one, "spec", "engines") != fmt.Sprint(n) || nested(other, "spec", "thrust") != fmt.Sprint(n, "x") {
			b.wrong("%s: written was %d, read %v %v, %v %v", name, n, one, err, other, errToo)
		}
	})
	for _, s := range b.w.sides {
		at := b.w.at(s.addr)
		if one, other := b.list(at.Resource(rockets)), b.list(at.Resource(oldRockets)); len(one) != len(other) || len(one) < 7 {
			b.wrong("%s lists %d Rockets in one version and %d in the other", s.name, len(one), len(other))
		}
	}
}

// ---- A quota ----

const (
	quotaMaps = 8
	quotaPods = 5
	// maximum number of ConfigMaps in a namespace without deletions
	quotaFull = 100
)

// fill creates objects until the quota is exceeded. It sometimes deletes an object.
func (b *book) fill(who int) {
	maps, some := b.client.Resource(configMaps).Namespace("quota"), b.client.Resource(pods).Namespace("quota")
	var mine []string
	refused := 0
	b.each(60*time.Millisecond, func(n int) {
		name := fmt.Sprint("q", who, "-", n)
		at, o := maps, object("v1", "ConfigMap", name, nil)
		if n%3 == 0 {
			at, o = some, object("v1", "Pod", name, map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "i"}}}})
		}
		if len(mine) > 3 || rand.IntN(3) == 0 && len(mine) > 0 {
			_ = b.remove(maps, mine[0])
			_ = b.remove(some, mine[0])
			mine = mine[1:]
		}
		switch _, err := b.create(at, o); {
		case err == nil:
			mine = append(mine, name)
		case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota"):
			refused++
		case !apierrors.IsConflict(err): // kube-apiserver gives up after three conflicts
			b.wrong("create: %v", err)
		}
	})
	if refused == 0 {
		b.wrong("the quota has refused nothing")
	}
}

// fillUp creates objects until the quota is exceeded. Without deletions no controller lowers the
// usage, so the quota must never be exceeded.
func (b *book) fillUp(who int) {
	at := b.client.Resource(configMaps).Namespace("full")
	made, refused := 0, 0
	b.each(time.Second, func(n int) {
		switch _, err := b.create(at, object("v1", "ConfigMap", fmt.Sprint("f", who, "-", n), nil)); {
		case err == nil:
			made++
		case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota"):
			refused++
		case !apierrors.IsConflict(err):
			b.wrong("create: %v", err)
		}
	})
	b.w.t.Logf("%s: %d made, %d refused", b.name, made, refused)
}

// measure checks the quota. If objects are deleted, kube-controller-manager may reduce the usage
// while another object is being created. The quota may therefore be exceeded by one object, with
// any server. Such cases are counted but are not errors.
func (b *book) measure() {
	looks, over, most := 0, 0, 0
	b.each(200*time.Millisecond, func(int) {
		looks++
		maps, some := b.list(b.client.Resource(configMaps).Namespace("quota")), b.list(b.client.Resource(pods).Namespace("quota"))
		live := slices.DeleteFunc(some, func(p unstructured.Unstructured) bool {
			return slices.Contains([]string{"Succeeded", "Failed"}, nested(&p, "status", "phase"))
		})
		if len(maps) > quotaMaps || len(live) > quotaPods {
			over++
			most = max(most, len(maps)-quotaMaps, len(live)-quotaPods)
		}
		if full := b.list(b.client.Resource(configMaps).Namespace("full")); len(full) > quotaFull {
			b.wrong("there are %d ConfigMaps of %d", len(full), quotaFull)
		}
	})
	b.w.t.Logf("where things are deleted, too, there was more than may be in %d of %d looks, by %d at most", over, looks, most)
}

// release deletes an object. The deletion also corrects the usage if a create was charged but its
// server was killed before it was executed.
func (b *book) release() {
	for _, r := range []schema.GroupVersionResource{configMaps, pods} {
		at := b.client.Resource(r).Namespace("quota")
		if all := b.list(at); len(all) > 0 {
			_ = b.remove(at, all[len(all)-1].GetName())
		}
	}
}

// used compares the quota's usage with the existing objects, as each server returns them.
func (b *book) used() (problems []string) {
	for _, s := range b.w.sides {
		at := b.w.at(s.addr)
		q, err := b.get(at.Resource(quotas).Namespace("quota"), "few")
		if err != nil {
			return []string{err.Error()}
		}
		maps, some := b.list(at.Resource(configMaps).Namespace("quota")), b.list(at.Resource(pods).Namespace("quota"))
		if nested(q, "status", "used", "count/configmaps") != fmt.Sprint(len(maps)) || nested(q, "status", "used", "pods") != fmt.Sprint(len(some)) {
			problems = append(problems, fmt.Sprintf("quota: %s says %s, and there are %d ConfigMaps and %d Pods", s.name, nested(q, "status"), len(maps), len(some)))
		}
	}
	return problems
}

// ---- Namespaces ----

// rounds creates a namespace with several objects and deletes the namespace.
func (b *book) rounds() {
	b.each(5*time.Second, func(n int) {
		name := fmt.Sprint("round-", n)
		if _, err := b.create(b.client.Resource(namespaces), object("v1", "Namespace", name, nil)); err != nil {
			b.wrong("%v", err)
		}
		in := func(r schema.GroupVersionResource) dynamic.ResourceInterface {
			return b.client.Resource(r).Namespace(name)
		}
		for i := range 3 {
			one := fmt.Sprint("thing-", i)
			_, err1 := b.create(in(configMaps), object("v1", "ConfigMap", one, nil))
			_, err2 := b.create(in(rockets), object("fleet.example.com/v1", "Rocket", one, map[string]any{"spec": map[string]any{"engines": int64(1)}}))
			_, err3 := b.create(in(services), object("v1", "Service", one, map[string]any{"spec": map[string]any{"ports": []any{map[string]any{"port": int64(80)}}}}))
			_, err4 := b.create(in(deployments), object("apps/v1", "Deployment", one, map[string]any{"spec": map[string]any{"replicas": int64(1),
				"selector": map[string]any{"matchLabels": map[string]any{"app": one}}, "template": map[string]any{"metadata": map[string]any{
					"labels": map[string]any{"app": one}}, "spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "i"}}}}}}))
			if err := errors.Join(err1, err2, err3, err4); err != nil {
				b.wrong("%v", err)
			}
		}
		if err := b.remove(b.client.Resource(namespaces), name); err != nil {
			b.wrong("%v", err)
		}
	})
}

// remains returns the namespaces that have not been deleted and any keys that are left in deleted
// namespaces.
func (b *book) remains() (problems []string) {
	for _, one := range b.list(b.client.Resource(namespaces)) {
		if strings.HasPrefix(one.GetName(), "round-") {
			problems = append(problems, "namespaces: "+one.GetName()+" is "+nested(&one, "status"))
		}
	}
	keys, err := b.w.keys()
	if err != nil {
		return append(problems, err.Error())
	}
	for _, key := range keys {
		if strings.Contains(key, "/round-") {
			problems = append(problems, "namespaces: etcd has "+key)
		}
	}
	return problems
}

// ---- Services ----

// ports creates Services with node ports and deletes some.
func (b *book) ports(who int) {
	at := b.client.Resource(services).Namespace("work")
	var mine []string
	b.each(100*time.Millisecond, func(n int) {
		name := fmt.Sprint("s", who, "-", n)
		if len(mine) > 20 {
			_ = b.remove(at, mine[0])
			mine = mine[1:]
		}
		if _, err := b.create(at, object("v1", "Service", name, map[string]any{"spec": map[string]any{"type": "NodePort",
			"ports": []any{map[string]any{"name": "a", "port": int64(80)}, map[string]any{"name": "b", "port": int64(81)}}}})); err != nil {
			b.wrong("create: %v", err)
			return
		}
		mine = append(mine, name)
	})
}

// shared returns addresses and ports that are used by more than one Service, and IPAddresses that
// do not belong to a Service.
func (b *book) shared() (problems []string) {
	owner, ofAddress := map[string]string{}, map[string]string{}
	for _, s := range b.list(b.client.Resource(services)) {
		name := s.GetNamespace() + "/" + s.GetName()
		own := []string{nested(&s, "spec", "clusterIP")}
		ofAddress[own[0]] = name
		list, _, _ := unstructured.NestedSlice(s.Object, "spec", "ports")
		for _, port := range list {
			if n, ok := port.(map[string]any)["nodePort"]; ok {
				own = append(own, fmt.Sprint("port ", n))
			}
		}
		for _, one := range own {
			if owner[one] != "" {
				problems = append(problems, fmt.Sprintf("services: %s is of %s and %s", one, owner[one], name))
			}
			owner[one] = name
		}
	}
	for _, a := range b.list(b.client.Resource(addresses)) {
		ref, _, _ := unstructured.NestedStringMap(a.Object, "spec", "parentRef")
		if of := ref["namespace"] + "/" + ref["name"]; ofAddress[a.GetName()] != of {
			problems = append(problems, fmt.Sprintf("services: IPAddress %s is of %s, and the Service's is %q", a.GetName(), of, ofAddress[a.GetName()]))
		}
		delete(ofAddress, a.GetName())
	}
	for address, name := range ofAddress {
		if address != "None" {
			problems = append(problems, fmt.Sprintf("services: %s of %s has no IPAddress", address, name))
		}
	}
	return problems
}

// ---- Unchanged fields ----

// stay changes a StatefulSet without Pods in three ways. Only one of the changes increases the
// generation. Another manager's field must keep its owner.
func (b *book) stay() {
	at := b.client.Resource(statefulSets).Namespace("work")
	first, err := b.create(at, object("apps/v1", "StatefulSet", "steady", map[string]any{"spec": map[string]any{"replicas": int64(0), "serviceName": "steady",
		"selector": map[string]any{"matchLabels": map[string]any{"app": "steady"}}, "template": map[string]any{"metadata": map[string]any{
			"labels": map[string]any{"app": "steady"}}, "spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "i"}}}}}}))
	if err != nil {
		b.wrong("%v", err)
		return
	}
	owned := object("apps/v1", "StatefulSet", "steady", map[string]any{"spec": map[string]any{"minReadySeconds": int64(7)}})
	apply := func(o *unstructured.Unstructured, manager string) error {
		return b.ask("apply", func(ctx context.Context) error {
			_, err := at.Apply(ctx, "steady", o, metav1.ApplyOptions{FieldManager: manager})
			return err
		})
	}
	if err := apply(owned, "owner"); err != nil {
		b.wrong("%v", err)
	}
	generation := first.GetGeneration() + 1
	b.each(100*time.Millisecond, func(n int) {
		var o *unstructured.Unstructured
		var err error
		switch n % 5 {
		case 0:
			generation++
			o, err = b.patch(at, "steady", fmt.Sprintf(`{"spec": {"revisionHistoryLimit": %d}}`, 1000+n))
		case 1:
			o, err = b.patch(at, "steady", fmt.Sprintf(`{"metadata": {"annotations": {"n": "%d"}}}`, n))
		case 2:
			o, err = b.patch(at, "steady", fmt.Sprintf(`{"status": {"collisionCount": %d}}`, n), "status")
		case 3:
			if err := apply(owned, "owner"); err != nil {
				b.wrong("an apply that changes nothing: %v", err)
			}
			o, err = b.get(at, "steady")
		default:
			other := object("apps/v1", "StatefulSet", "steady", map[string]any{"spec": map[string]any{"minReadySeconds": int64(8)}})
			if err := apply(other, "thief"); !apierrors.IsConflict(err) {
				b.wrong("a field of another manager was taken: %v", err)
			}
			o, err = b.get(at, "steady")
		}
		if err != nil {
			b.wrong("%v", err)
			return
		}
		managers := map[string]bool{}
		for _, entry := range o.GetManagedFields() {
			managers[entry.Manager+" "+string(entry.Operation)+" "+entry.Subresource] = true
		}
		created, was := o.GetCreationTimestamp(), first.GetCreationTimestamp()
		if o.GetUID() != first.GetUID() || !created.Equal(&was) || o.GetGeneration() != generation || !managers["swap Update "] || !managers["owner Apply "] ||
			nested(o, "spec", "minReadySeconds") != "7" {
			b.wrong("after %d changes it should be of generation %d, with managers %v: %v", n, generation, managers, o)
			generation = o.GetGeneration()
		}
	})
}
