package fieldmanager

// The way of track.go is compared with the general algorithm, write by write and byte by byte: for every built-in kind, for custom resources
// with and without schemas, by many managers, through several versions.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"

	"apilet/internal/apitest/kubetest"
	"apilet/internal/scheme"
)

// everyKind is a manager for each built-in kind, and an object with all that the kind can have.
func everyKind(t testing.TB) map[*Manager]string {
	kinds := map[*Manager]string{}
	for _, res := range scheme.Builtins {
		goType := res.ExpectedBody("").Wire
		if goType == nil || res.Virtual {
			continue
		}
		var doc map[string]any
		if err := kjson.UnmarshalCaseSensitivePreserveInts(mustJSON(t, kubetest.Filled(goType)), &doc); err != nil {
			t.Fatal(err)
		}
		doc["apiVersion"], doc["kind"] = res.APIVersion(), res.Kind
		o := &Manager{Kind: res.GroupVersionKind(), GoType: goType, Status: res.Subresource("status") != nil, Versions: []string{"x.io/v0"}}
		hostile := strings.Trim(string(mustJSON(t, "text \"resourceVersion\":\"7\" <ü>")), `"`)
		kinds[o] = strings.ReplaceAll(string(mustJSON(t, distinct(doc))), hostile, "text")
	}
	return kinds
}

// distinct leaves out elements of lists that are as the one before.
func distinct(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name := range v {
			v[name] = distinct(v[name])
		}
	case []any:
		for i := range v {
			v[i] = distinct(v[i])
		}
		return slices.CompactFunc(v, func(a, b any) bool { return reflect.DeepEqual(a, b) })
	}
	return v
}

func TestWritesOfEveryKindAreTrackedAsByTheGeneralMachine(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	var tally shortWays
	kinds := everyKind(t)
	if len(kinds) < 60 {
		t.Errorf("only %d kinds", len(kinds))
	}
	for o, text := range kinds {
		var live scheme.Object
		for range 5 {
			tally.bodies = map[string]map[string]any{}
			manager, sub := fmt.Sprint("m", rnd.IntN(3)), ""
			if o.Status && live != nil && rnd.IntN(3) == 0 {
				sub = "status"
			}
			live = tally.update(t, rnd, o, live, text, manager, sub)
		}
		if t.Failed() {
			return
		}
	}
	if tally.updated < tally.updates*2/3 {
		t.Errorf("the fast path was hardly taken: %+v", tally)
	}
}

// writtenBy is one write that has to be tracked as the general algorithm does, and the fast path.
func writtenBy(t testing.TB, o *Manager, old, next scheme.Object, manager, sub string) scheme.Object {
	t.Helper()
	general, err := o.manager(sub)
	if err != nil {
		t.Fatal(err)
	}
	var before scheme.Object
	if old != nil {
		before = old.DeepCopyObject().(scheme.Object)
	}
	other := o.stamp(next.DeepCopyObject().(scheme.Object))
	if _, err := general.Update(o.orNew(before), other, manager); err != nil {
		t.Fatal(err)
	}
	o.Counters = &Counters{}
	if err := o.Update(old, next, manager, sub); err != nil {
		t.Fatal(err)
	}
	if got, want := asWritten(t, next), asWritten(t, other); got != want {
		t.Fatal(whereDifferent(got, want))
	}
	if o.Counters.Short.Load() != 1 {
		t.Fatalf("%s %q: the general algorithm was asked", manager, sub)
	}
	return asStored(t, o, next)
}

func TestManyUpdatersAreMerged(t *testing.T) {
	t.Parallel()
	o := &Manager{Kind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), GoType: reflect.TypeFor[corev1.ConfigMap](), Versions: []string{"v0"}}
	live := writtenBy(t, o, nil, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Data: map[string]string{"first": ""}}, "m", "")
	for i := range 40 {
		next := live.DeepCopyObject().(*corev1.ConfigMap)
		next.Data[fmt.Sprint("k", i)] = "v"
		if entries := next.ManagedFields; i%5 == 3 {
			entries[i%len(entries)].APIVersion = "v0"
		}
		live = writtenBy(t, o, live, next, fmt.Sprint("m", i%37), "")
	}
	ancient := slices.ContainsFunc(live.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool { return e.Manager == ancientChanges })
	if len(live.GetManagedFields()) != maxUpdateManagers || !ancient {
		t.Errorf("got %d entries: %s", len(live.GetManagedFields()), asWritten(t, live))
	}
}

// More entries than any object ever has, which would take half a minute to merge, mean those of the object as it is.
func TestEntriesThatAClientSendsHaveABound(t *testing.T) {
	t.Parallel()
	o := &Manager{Kind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), GoType: reflect.TypeFor[corev1.ConfigMap]()}
	old := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Data: map[string]string{"a": "1"}}
	if err := o.Update(nil, old, "first", ""); err != nil {
		t.Fatal(err)
	}
	for _, count := range []int{maxSentUpdates, maxSentUpdates + 1} {
		next := old.DeepCopy()
		next.Data["b"], next.ManagedFields = "2", nil
		for i := range count {
			next.ManagedFields = append(next.ManagedFields, metav1.ManagedFieldsEntry{Manager: fmt.Sprint("m", i), Operation: metav1.ManagedFieldsOperationUpdate,
				APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: fmt.Appendf(nil, `{"f:data":{"f:a%d":{}}}`, i)}})
		}
		if err := o.Update(old, next, "second", ""); err != nil {
			t.Fatal(err)
		}
		var managers []string
		for _, e := range next.ManagedFields {
			managers = append(managers, e.Manager)
		}
		slices.Sort(managers)
		if taken := count <= maxSentUpdates; slices.Contains(managers, ancientChanges) != taken || !slices.Contains(managers, "second") || slices.Contains(managers, "first") == taken {
			t.Errorf("%d entries became those of %v", count, managers)
		}
	}
}

// Nor are more fields than a tracked object has. The library would insert each before all others, for half a minute.
func TestFieldsThatAClientSendsHaveABound(t *testing.T) {
	t.Parallel()
	o := &Manager{Kind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), GoType: reflect.TypeFor[corev1.ConfigMap]()}
	for _, count := range []int{100, maxFieldNodes, 200_000} {
		var set bytes.Buffer
		set.WriteString(`{"f:data":{`)
		for i := count; i > 0; i-- {
			fmt.Fprintf(&set, `"f:k%06d":{},`, i)
		}
		set.Truncate(set.Len() - 1)
		set.WriteString("}}")
		next := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "sent", Operation: metav1.ManagedFieldsOperationUpdate,
			APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: set.Bytes()}}}}, Data: map[string]string{"k000001": "1"}}
		if err := o.Update(nil, next, "second", ""); err != nil {
			t.Fatal(err)
		}
		taken := slices.ContainsFunc(next.ManagedFields, func(e metav1.ManagedFieldsEntry) bool { return e.Manager == "sent" })
		if taken != (count < maxFieldNodes) {
			t.Errorf("%d fields were taken: %v", count, taken)
		}
	}
}

func TestCustomResourcesAreTrackedTheShortWay(t *testing.T) {
	t.Parallel()
	kind := schema.GroupVersionKind{Group: "x.io", Version: "v1", Kind: "X"}
	for _, o := range []*Manager{{Kind: kind, Status: true}, {Kind: kind, Status: true, Schema: map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true,
		"properties": map[string]any{"ports": map[string]any{"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"port", "protocol"},
			"items": map[string]any{"type": "object", "properties": map[string]any{"port": map[string]any{"type": "integer"},
				"protocol": map[string]any{"type": "string", "default": "TCP"}}}}}}}} {
		var live scheme.Object
		for i, text := range []string{
			`{"metadata":{"name":"x","labels":{"a":"b"}},"spec":{"a":{"b":[1,{"c":2.5}],"d":{}},"e":true},"ports":[{"port":80},{"port":443,"protocol":"TCP"},{"port":80,"protocol":"UDP"}]}`,
			`{"metadata":{"name":"x","labels":{"a":"c"}},"spec":{"a":{"b":[1,{"c":3}],"d":{"e":1}}},"ports":[{"port":443},{"port":9}]}`,
			`{"metadata":{"name":"x"},"spec":{"a":{}},"ports":[],"status":{"a":1}}`,
		} {
			next := decodeObject(t, o, []byte(text))
			live = writtenBy(t, o, live, next, fmt.Sprint("m", i), []string{"", "", "status"}[i])
		}
	}
}

func TestOnlyCanonicalSetsAreRead(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"f:a":{}}`, `{"f:a":{".":{},"f:b":{}},"f:c":{"f:d":{}}}`, `{"f:":{}}`,
		`{"f:a":{"k:{\"n\":80,\"p\":\"TCP\"}":{},"k:{\"n\":443}":{},"k:{\"n\":443,\"p\":\"TCP\"}":{".":{},"f:n":{}},"v:1":{},"v:20":{},"v:\"a\"":{},"v:\"a-b\"":{},"v:false":{},"v:true":{}}}`,
	} {
		s, ok := parseFields(text, false)
		if got := string(s.append(nil)); !ok || got != text {
			t.Errorf("%s became %s, %v", text, got, ok)
		}
	}
	for _, text := range []string{
		``, `{}`, `null`, `{"f:a":{} }`, `{"f:a":{".":{}}}`, `{".":{},"f:a":{}}`, `{"f:b":{},"f:a":{}}`, `{"f:a":{},"f:a":{}}`, `{"f:a":{}}x`, `{"f:a":{}`,
		`{"f:<":{}}`, `{"f:\u0061":{}}`, `{"f:ä":{}}`, `{"i:0":{}}`, `{"x:a":{}}`, `{"v:1.0":{}}`, `{"v:01":{}}`, `{"v:-0":{}}`, `{"v:null":{}}`, `{"v:9007199254740992":{}}`,
		`{"k:{\"b\":1,\"a\":1}":{}}`, `{"k:{}":{}}`, `{"k:{\"a\":[]}":{}}`, `{"v:\"b\"":{},"v:\"a\"":{}}`, `{"v:\"a\"":{},"v:1":{}}`, `{"v:1":{},"f:a":{}}`,
	} {
		if s, ok := parseFields(text, false); ok {
			t.Errorf("%s was read: %v", text, s)
		}
	}
	const mixed = `{"f:b":{"k:{\"n\":443}":{".":{},"f:n":{}},"k:{\"n\":80}":{}},"f:a":{"v:2":{},"v:1":{}}}`
	if s, ok := parseFields(mixed, true); !ok || string(s.append(nil)) != `{"f:a":{"v:1":{},"v:2":{}},"f:b":{"k:{\"n\":80}":{},"k:{\"n\":443}":{".":{},"f:n":{}}}}` {
		t.Errorf("%s became %s", mixed, s.append(nil))
	}
	if _, ok := parseFields(`{"f:b":{},"f:a":{},"f:b":{}}`, true); ok {
		t.Errorf("a name was read twice")
	}
}

// FuzzUpdate: what a client sends instead of an object and of its entries is tracked as by the general algorithm, whichever way it goes.
func FuzzUpdate(f *testing.F) {
	for _, o := range []string{
		`{"metadata":{"name":"d","labels":{"a":"b"}},"spec":{"replicas":2,"selector":{"matchLabels":{"a":"b"}},"template":{"spec":{"containers":[{"name":"a","ports":[{"containerPort":80}]}]}}}}`,
		`{"metadata":{"name":"d","finalizers":["a/b"]},"spec":{"s":[1,"a",true],"m":[{"k":1},{"k":"x"}],"w":{"a":null},"free":[{"a":1.5}]},"status":{"replicas":1}}`,
		`{"metadata":{"name":"d"},"spec":{"s":[],"m":null}}`,
		`{"metadata":{"name":"l"},"spec":{"holderIdentity":"n","acquireTime":"2026-01-02T03:04:05.678901+02:00","renewTime":"0001-01-01T00:00:00Z"}}`,
	} {
		f.Add(o, o, `{"f:spec":{"f:replicas":{}}}`, "")
		f.Add(`{"metadata":{"name":"d"}}`, o, `{"f:spec":{".":{},"f:m":{"k:{\"k\":1}":{".":{},"f:k":{}}},"f:s":{"v:1":{},"v:\"a\"":{}}}}`, "status")
	}
	kinds := []*Manager{
		{Kind: appsv1.SchemeGroupVersion.WithKind("Deployment"), GoType: reflect.TypeFor[appsv1.Deployment](), Status: true},
		{Kind: coordinationv1.SchemeGroupVersion.WithKind("Lease"), GoType: reflect.TypeFor[coordinationv1.Lease]()},
		{Kind: schema.GroupVersionKind{Group: "x.io", Version: "v1", Kind: "X"}, Status: true, Schema: map[string]any{"type": "object", "properties": map[string]any{
			"spec": map[string]any{"type": "object", "properties": map[string]any{
				"s": map[string]any{"type": "array", "x-kubernetes-list-type": "set", "items": map[string]any{"x-kubernetes-int-or-string": true}},
				"m": map[string]any{"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"k"},
					"items": map[string]any{"type": "object", "properties": map[string]any{"k": map[string]any{"x-kubernetes-int-or-string": true}}}},
				"w":    map[string]any{"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": map[string]any{"type": "string"}},
				"free": map[string]any{"x-kubernetes-preserve-unknown-fields": true},
			}},
			"status": map[string]any{"type": "object", "properties": map[string]any{"replicas": map[string]any{"type": "integer"}}},
		}}},
	}
	f.Fuzz(func(t *testing.T, was, is, fields, sub string) {
		if sub != "" {
			sub = "status"
		}
		for _, o := range kinds {
			old, next := fuzzed(o, was), fuzzed(o, is)
			if old == nil || next == nil {
				continue
			}
			old.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "x", Operation: "Update", APIVersion: o.Kind.GroupVersion().String(),
				FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields), Time: &metav1.Time{}}})
			general, err := o.manager(sub)
			if err != nil {
				t.Fatal(err)
			}
			other := next.DeepCopyObject().(scheme.Object)
			if _, err := general.Update(o.orNew(old.DeepCopyObject().(scheme.Object)), o.stamp(other), "u"); err != nil {
				other.SetManagedFields(nil)
			}
			if err := o.Update(old, next, "u", sub); err != nil {
				t.Fatal(err)
			}
			if got, want := asWritten(t, next), asWritten(t, other); got != want {
				t.Fatal(whereDifferent(got, want))
			}
		}
	})
}

// fuzzed is an object that a server could have decoded, or nil.
func fuzzed(o *Manager, text string) scheme.Object {
	obj := o.orNew(nil)
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		if json.Unmarshal([]byte(text), obj) != nil {
			return nil
		}
		return obj
	}
	if kjson.UnmarshalCaseSensitivePreserveInts([]byte(text), &u.Object) != nil || u.Object == nil {
		return nil
	}
	if err := coerceMetadata(u); err != nil {
		return nil
	}
	return u
}

// coerceMetadata makes an object's metadata what a server that decodes it makes of it.
func coerceMetadata(u *unstructured.Unstructured) error {
	meta, found, _, err := objectmeta.GetObjectMetaWithOptions(u.Object, objectmeta.ObjectMetaOptions{})
	if err != nil || !found {
		return err
	}
	return objectmeta.SetObjectMeta(u.Object, meta)
}
