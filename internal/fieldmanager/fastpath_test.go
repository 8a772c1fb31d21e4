package fieldmanager

// The fast paths of diff.go and fastpath.go are compared with the general algorithm: random objects, written by random managers in random
// ways, each write made both ways. Whatever the fast path answers has to be the same to the byte.

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
	"apilet/internal/kinds/defaults"
	"apilet/internal/scheme"
)

// ownershipsToCompare are kinds with all that lists and maps can mean, and an object of each.
func ownershipsToCompare() map[*Manager]string {
	custom := map[string]any{"type": "object", "properties": map[string]any{
		"spec": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": map[string]any{
			"whole": map[string]any{"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": map[string]any{"type": "string"}},
			"set":   map[string]any{"type": "array", "x-kubernetes-list-type": "set", "items": map[string]any{"type": "string"}},
			"list": map[string]any{"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"k"},
				"items": map[string]any{"type": "object", "properties": map[string]any{"k": map[string]any{"type": "string"}, "v": map[string]any{"type": "integer"}}}},
		}},
		"status": map[string]any{"type": "object", "additionalProperties": map[string]any{"type": "integer"}},
	}}
	return map[*Manager]string{
		{Kind: appsv1.SchemeGroupVersion.WithKind("Deployment"), GoType: reflect.TypeFor[appsv1.Deployment](), Status: true}: kubetest.DeploymentJSON(2),
		{Kind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), GoType: reflect.TypeFor[corev1.ConfigMap]()}: `{"apiVersion":"v1","kind":"ConfigMap",
			"metadata":{"name":"c","labels":{"a":"b"},"annotations":{"x":"<y>"},"finalizers":["a/b","c/d"],"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"1"}]},
			"data":{"a":"1","b":"2"},"binaryData":{"z":"AAEC"},"immutable":true}`,
		{Kind: corev1.SchemeGroupVersion.WithKind("Pod"), GoType: reflect.TypeFor[corev1.Pod](), Status: true}: `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","labels":{"a":"b"}},
			"spec":{"nodeSelector":{"a":"b"},"hostNetwork":true,"tolerations":[{"key":"a","operator":"Exists","tolerationSeconds":3}],"imagePullSecrets":[{"name":"s"}],
			"volumes":[{"name":"v","emptyDir":{}},{"name":"w","configMap":{"name":"c","items":[{"key":"k","path":"p"}]}}],"securityContext":{},
			"initContainers":[{"name":"i","image":"j"}],
			"containers":[{"name":"a","image":"x","args":["1","2"],"resources":{"limits":{"cpu":"1000m","memory":64},"requests":{"cpu":"1"}},"volumeMounts":[{"name":"v","mountPath":"/v"}],
			"env":[{"name":"E","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}},{"name":"F","value":"f"}],"ports":[{"containerPort":80},{"containerPort":80,"protocol":"UDP"},{"containerPort":9}],
			"livenessProbe":{"httpGet":{"path":"/","port":"http"},"periodSeconds":10}}]},
			"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"},{"type":"Initialized","status":"True","lastTransitionTime":"2020-01-01T00:00:00Z"}],"podIPs":[{"ip":"1.2.3.4"}]}}`,
		{Kind: corev1.SchemeGroupVersion.WithKind("Service"), GoType: reflect.TypeFor[corev1.Service](), Status: true}: `{"apiVersion":"v1","kind":"Service","metadata":{"name":"s"},
			"spec":{"selector":{"a":"b"},"ports":[{"name":"x","port":80,"targetPort":8080},{"name":"y","port":81,"targetPort":"web","protocol":"UDP"}],"externalIPs":["1.2.3.4"]},"status":{"loadBalancer":{"ingress":[{"ip":"1.1.1.1"}]}}}`,
		{Kind: schema.GroupVersionKind{Group: "x.io", Version: "v1", Kind: "X"}, Schema: custom, Status: true}: `{"apiVersion":"x.io/v1","kind":"X","metadata":{"name":"x","labels":{"a":"b"}},
			"spec":{"whole":{"a":"b","c":"d"},"set":["a","b"],"list":[{"k":"a","v":1},{"k":"b","v":2}],"free":{"a":{"b":[1,{"c":2}]}},"n":1.5},"status":{"n":1,"m":2}}`,
	}
}

// randomly changes a JSON value here and there, each place with the given chance; sometimes into what is not allowed.
func randomly(rnd *rand.Rand, v any, chance float64) any {
	hit := rnd.Float64() < chance
	switch v := v.(type) {
	case map[string]any:
		for _, name := range sortedNames(v) {
			switch {
			case name == "apiVersion" || name == "kind" || name == "metadata" || name == "name" && rnd.IntN(20) > 0:
				if meta, ok := v[name].(map[string]any); ok {
					v[name] = randomly(rnd, meta, chance)
				}
			case rnd.Float64() < chance && rnd.IntN(3) == 0:
				delete(v, name)
			case rnd.Float64() < chance && rnd.IntN(6) == 0:
				v[name] = map[string]any{}
			default:
				v[name] = randomly(rnd, v[name], chance)
			}
		}
	case []any:
		for i := range v {
			v[i] = randomly(rnd, v[i], chance)
		}
		if hit && len(v) > 0 {
			i := rnd.IntN(len(v))
			switch rnd.IntN(4) {
			case 0:
				return slices.Delete(v, i, i+1)
			case 1:
				v[0], v[i] = v[i], v[0]
			case 2:
				return append(v, cloneJSON(v[i]))
			}
		}
	case string:
		if hit {
			return []string{"", v + "2", v + "<", v}[rnd.IntN(4)]
		}
	case int64:
		if hit {
			return v * int64(rnd.IntN(3))
		}
	case bool:
		return v != hit
	}
	return v
}

func sortedNames(m map[string]any) (names []string) {
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func cloneJSON(v any) (out any) {
	text, _ := json.Marshal(v)
	_ = kjson.UnmarshalCaseSensitivePreserveInts(text, &out)
	return out
}

// asStored is what a server keeps of a written object, its times long ago.
func asStored(t testing.TB, o *Manager, obj scheme.Object) scheme.Object {
	out := decodeObject(t, o, mustJSON(t, obj))
	entries := out.GetManagedFields()
	for i := range entries {
		entries[i].Time = &metav1.Time{Time: time.Unix(1_600_000_000+int64(i), 0)}
	}
	out.SetManagedFields(entries)
	out.SetUID("1")
	return out
}

func mustJSON(t testing.TB, v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// asWritten is an object as JSON, but of its new times only that they are new.
func asWritten(t testing.TB, obj scheme.Object) string {
	obj = obj.DeepCopyObject().(scheme.Object)
	entries := obj.GetManagedFields()
	for i := range entries {
		if entries[i].Time != nil && entries[i].Time.Year() > 2020 {
			entries[i].Time = &metav1.Time{Time: time.Unix(2_000_000_000, 0)}
		}
	}
	obj.SetManagedFields(sortEntries(entries))
	return string(mustJSON(t, obj))
}

func whereDifferent(got, want string) string {
	i := 0
	for i < min(len(got), len(want)) && got[i] == want[i] {
		i++
	}
	around := func(s string) string { return s[max(0, i-100):min(len(s), i+100)] }
	return "got  " + around(got) + "\nwant " + around(want)
}

func TestShortWaysAnswerAsTheGeneralMachine(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	var tally shortWays
	for o, text := range ownershipsToCompare() {
		o.Versions = []string{"x.io/v0"}
		for range 6 {
			var live scheme.Object
			tally.bodies = map[string]map[string]any{}
			for range 12 {
				live = tally.write(t, rnd, o, live, text)
			}
			if t.Failed() {
				return
			}
		}
	}
	tally.bodies = nil
	if tally.updated < tally.updates/2 || tally.applied < tally.applies/20 {
		t.Errorf("the fast paths were hardly taken: %+v", tally)
	}
}

// TestApplyOfMoreFieldsIsShort: what a manager adds to what it has applied needs no general algorithm, what it leaves out or puts into a list does.
func TestApplyOfMoreFieldsIsShort(t *testing.T) {
	t.Parallel()
	o := &Manager{Kind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), GoType: reflect.TypeFor[corev1.ConfigMap]()}
	var live scheme.Object
	for _, c := range []struct {
		body  string
		short bool
	}{
		{`{"data":{"a":"1"}}`, true},
		{`{"data":{"a":"1","b":"2"}}`, true},
		{`{"data":{"a":"1","b":"3","c":"4"},"immutable":true}`, true},
		{`{"metadata":{"labels":{"x":"y"}},"data":{"a":"1","b":"3","c":"4"},"immutable":true}`, true},
		{`{"metadata":{"labels":{"x":"y"}},"data":{"a":"1","b":"3"},"immutable":true}`, false},
		{`{"metadata":{"labels":{"x":"y"}},"data":{"a":"1","b":"3","d":"5"},"immutable":true}`, true},
		{`{"metadata":{"labels":{"x":"y"}},"data":{"a":"1","b":"3","e":"5"},"immutable":true}`, false},
	} {
		wanted := &unstructured.Unstructured{}
		if err := kjson.UnmarshalCaseSensitivePreserveInts([]byte(c.body), &wanted.Object); err != nil {
			t.Fatal(err)
		}
		wanted.SetGroupVersionKind(o.Kind)
		wanted.SetName("c")
		general, err := o.manager("")
		if err != nil {
			t.Fatal(err)
		}
		var before scheme.Object
		if live != nil {
			before = live.DeepCopyObject().(scheme.Object)
		}
		short, ok := o.applyFast(live, wanted, Applier{Manager: "m"})
		if ok != c.short {
			t.Errorf("%s: the fast path is taken: %v, want %v", c.body, ok, c.short)
		}
		result, err := general.Apply(o.orNew(before), wanted, "m", false)
		if err != nil {
			t.Fatal(err)
		}
		if want := asWritten(t, result.(scheme.Object)); ok && asWritten(t, short) != want {
			t.Errorf("%s: %s", c.body, whereDifferent(asWritten(t, short), want))
		}
		live = asStored(t, o, result.(scheme.Object))
	}
}

// shortWays counts who took which way.
type shortWays struct {
	updates, updated, applies, applied, refused int
	bodies                                      map[string]map[string]any // what each manager applied last to the object at hand
}

// write makes one random write to live both ways and returns what becomes of it.
func (tally *shortWays) write(t *testing.T, rnd *rand.Rand, o *Manager, live scheme.Object, text string) scheme.Object {
	manager, sub := fmt.Sprint("m", rnd.IntN([]int{3, 3, 3, 30}[rnd.IntN(4)])), ""
	if o.Status && live != nil && rnd.IntN(3) == 0 {
		sub = "status"
	}
	general, err := o.manager(sub)
	if err != nil {
		t.Fatal(err)
	}
	if rnd.IntN(2) == 0 {
		return tally.update(t, rnd, o, live, text, manager, sub)
	}
	body := tally.body(rnd, manager, sub, text)
	by := Applier{Manager: manager, Subresource: sub, Force: rnd.IntN(2) == 0}
	wanted := &unstructured.Unstructured{Object: cloneJSON(body).(map[string]any)}
	tally.applies++
	var before string
	if live != nil {
		before = asWritten(t, live)
	}
	short, ok := o.applyFast(live, wanted, by)
	if !reflect.DeepEqual(any(wanted.Object), cloneJSON(body)) || live != nil && asWritten(t, live) != before {
		t.Fatalf("the fast path changed what it was given")
	}
	var copied scheme.Object
	if live != nil {
		copied = live.DeepCopyObject().(scheme.Object)
	}
	result, err := general.Apply(o.orNew(copied), wanted, manager, by.Force)
	if !ok {
		if err != nil {
			tally.refused++
			return live
		}
		defaults.Set(result)
		return asStored(t, o, result.(scheme.Object))
	}
	tally.applied++
	if err != nil {
		t.Fatalf("%s\napplied by %+v to %s\n%s\nis refused: %v", mustJSON(t, body), by, o.Kind, before, err)
	}
	want := result.(scheme.Object)
	defaults.Set(short) // as the write does, whether or not anything changed
	defaults.Set(want)
	if live != nil {
		RestoreTimes(live, short)
		RestoreTimes(live, want)
	}
	if got, want := asWritten(t, short), asWritten(t, want); got != want {
		t.Fatalf("%s\napplied by %+v to\n%s\n%s", mustJSON(t, body), by, before, whereDifferent(got, want))
	}
	return asStored(t, o, short)
}

// body is often a manager's last one, with other values.
func (tally *shortWays) body(rnd *rand.Rand, manager, sub, text string) map[string]any {
	body := tally.bodies[manager+sub]
	if body == nil || rnd.IntN(4) == 0 {
		body = applyBody(rnd, text, sub)
	} else {
		body = otherValues(rnd, body).(map[string]any)
	}
	tally.bodies[manager+sub] = cloneJSON(body).(map[string]any)
	return body
}

// otherValues changes a value here and there, and no member.
func otherValues(rnd *rand.Rand, v any) any {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range sortedNames(v) {
			if name != "apiVersion" && name != "kind" && name != "name" {
				v[name] = otherValues(rnd, v[name])
			}
		}
		return v
	case []any:
		for i := range v {
			v[i] = otherValues(rnd, v[i])
		}
		return v
	}
	return randomly(rnd, v, 0.03)
}

// applyBody is a part of an object, or now and then no such thing.
func applyBody(rnd *rand.Rand, text, sub string) map[string]any {
	var body map[string]any
	_ = kjson.UnmarshalCaseSensitivePreserveInts([]byte(text), &body)
	drop := "status"
	if sub == "status" {
		drop = "spec"
	}
	if rnd.IntN(10) > 0 {
		delete(body, drop)
	}
	meta := body["metadata"].(map[string]any)
	delete(meta, "uid")
	delete(meta, "resourceVersion")
	if rnd.IntN(5) == 0 {
		meta["creationTimestamp"] = nil
		body[drop] = map[string]any{}
	}
	return randomly(rnd, body, []float64{0, 0.02, 0.02, 0.1}[rnd.IntN(4)]).(map[string]any)
}

func (tally *shortWays) update(t *testing.T, rnd *rand.Rand, o *Manager, live scheme.Object, text, manager, sub string) scheme.Object {
	general, err := o.manager(sub)
	if err != nil {
		t.Fatal(err)
	}
	var doc any
	if live != nil {
		text = string(mustJSON(t, live))
	}
	_ = kjson.UnmarshalCaseSensitivePreserveInts([]byte(text), &doc)
	entries := doc.(map[string]any)["metadata"].(map[string]any)["managedFields"]
	doc = randomly(rnd, doc, []float64{0, 0.02, 0.1}[rnd.IntN(3)])
	if edited := [][]any{nil, {}, {map[string]any{}}}; rnd.IntN(20) == 0 {
		entries = edited[rnd.IntN(3)]
	} else if list, _ := entries.([]any); len(list) > 0 && rnd.IntN(20) == 0 {
		entries = list[1:]
	} else if len(list) > 0 && rnd.IntN(8) == 0 { // somebody wrote through another version, or one that is gone
		if entry, ok := list[rnd.IntN(len(list))].(map[string]any); ok {
			entry["apiVersion"] = []string{"x.io/v0", "x.io/v0", "x.io/gone"}[rnd.IntN(3)]
		}
	}
	doc.(map[string]any)["metadata"].(map[string]any)["managedFields"] = entries
	one := o.orNew(nil)
	if u, ok := one.(*unstructured.Unstructured); ok {
		u.Object = doc.(map[string]any)
		if err := coerceMetadata(u); err != nil {
			return live
		}
	} else if kjson.UnmarshalCaseSensitivePreserveInts(mustJSON(t, doc), one) != nil {
		return live
	} else {
		defaults.Set(one)
	}
	other := one.DeepCopyObject().(scheme.Object)
	tally.updates++
	var before scheme.Object
	if live != nil {
		before = live.DeepCopyObject().(scheme.Object)
	}
	if _, err := general.Update(o.orNew(before), o.stamp(other), manager); err != nil {
		other.SetManagedFields(nil)
	}
	o.Counters = &Counters{}
	if err := o.Update(live, one, manager, sub); err != nil {
		t.Fatal(err)
	}
	tally.updated += int(o.Counters.Short.Load())
	if got, want := asWritten(t, one), asWritten(t, other); got != want {
		t.Fatalf("%s %q updated\n%s\n%s", manager, sub, text, whereDifferent(got, want))
	}
	if before != nil && asWritten(t, before) != asWritten(t, live) {
		t.Fatalf("the old object changed")
	}
	if len(one.GetManagedFields()) == 0 {
		return live
	}
	return asStored(t, o, one)
}

// BenchmarkApplyDeployment20: CPU time of one apply of 20 containers, without what every write costs (reading and storing the object),
// and of the same by the general algorithm.
func BenchmarkApplyDeployment20(b *testing.B) {
	o := &Manager{Kind: appsv1.SchemeGroupVersion.WithKind("Deployment"), GoType: reflect.TypeFor[appsv1.Deployment](), Status: true}
	body := strings.NewReplacer(`"uid":"1",`, ``, `"resourceVersion":"7",`, ``, `,"status":{}`, ``).Replace(kubetest.DeploymentJSON(20))
	by := Applier{Manager: "m"}
	live, _, err := o.Apply(nil, []byte(body), by)
	if err != nil {
		b.Fatal(err)
	}
	defaults.Set(live)
	live = asStored(b, o, live)
	for _, c := range []struct {
		name string
		live scheme.Object
		body string
	}{{"first", nil, body}, {"unchanged", live, body}, {"one-change", live, strings.Replace(body, `"replicas":2`, `"replicas":3`, 1)}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			stop := apitest.ProcessorTime(b)
			for b.Loop() {
				merged, _, err := o.Apply(c.live, []byte(c.body), by)
				if err != nil {
					b.Fatal(err)
				}
				defaults.Set(merged)
			}
			stop()
		})
		b.Run(c.name+"/general", func(b *testing.B) {
			general, _ := o.manager("")
			stop := apitest.ProcessorTime(b)
			for b.Loop() {
				wanted, _, err := decodeApply([]byte(c.body))
				if err != nil {
					b.Fatal(err)
				}
				merged, err := general.Apply(o.orNew(c.live), wanted, by.Manager, false)
				if err != nil {
					b.Fatal(err)
				}
				defaults.Set(merged)
			}
			stop()
		})
	}
}
