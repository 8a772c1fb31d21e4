package fieldmanager

import (
	"encoding/json"
	"errors"
	"os"
	"path"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"

	"apilet/internal/apitest/kubetest"
	"apilet/internal/patch"
	"apilet/internal/scheme"
)

// builtInTypes are the Go types of every kind in the groups of k8s.io/api that are generally available.
func builtInTypes(t testing.TB) map[string]reflect.Type {
	known := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		admissionregistrationv1.AddToScheme, appsv1.AddToScheme, autoscalingv1.AddToScheme, autoscalingv2.AddToScheme, batchv1.AddToScheme,
		certificatesv1.AddToScheme, coordinationv1.AddToScheme, corev1.AddToScheme, discoveryv1.AddToScheme, eventsv1.AddToScheme,
		flowcontrolv1.AddToScheme, networkingv1.AddToScheme, nodev1.AddToScheme, policyv1.AddToScheme, rbacv1.AddToScheme,
		resourcev1.AddToScheme, schedulingv1.AddToScheme, storagev1.AddToScheme, storagemigrationv1.AddToScheme,
	} {
		if err := add(known); err != nil {
			t.Fatal(err)
		}
	}
	types := map[string]reflect.Type{}
	for kind, goType := range known.AllKnownTypes() {
		if _, ok := reflect.New(goType).Interface().(scheme.Object); ok && strings.HasPrefix(goType.PkgPath(), "k8s.io/api/") {
			types[kind.String()] = goType
		}
	}
	return types
}

func TestTypesMeanWhatOpenAPISays(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/relations.tsv")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if f := strings.Split(strings.TrimSuffix(line, "\n"), "\t"); len(f) == 3 && !strings.HasPrefix(line, "#") {
			want[f[0]+"."+f[1]] = f[2]
		}
	}
	got := map[string]string{}
	known := map[string]bool{}
	for _, goType := range builtInTypes(t) {
		for _, def := range typesOf(goType, nil).Schema.Types {
			if def.Map == nil || def.Name == untypedName || def.Name == deducedName {
				continue
			}
			name := openAPIName(def.Name)
			known[name] = true
			if def.Map.ElementRelationship == smd.Atomic {
				got[name+"."] = "atomic"
			}
			for _, f := range def.Map.Fields {
				switch {
				case f.Type.Inlined.List != nil && f.Type.Inlined.List.ElementRelationship == smd.Associative:
					got[name+"."+f.Name] = "set"
					if keys := f.Type.Inlined.List.Keys; len(keys) > 0 {
						got[name+"."+f.Name] = strings.Join(keys, ",")
					}
				case f.Type.Inlined.Map != nil && f.Type.Inlined.Map.ElementRelationship == smd.Atomic:
					got[name+"."+f.Name] = "atomic"
				case f.Type.ElementRelationship != nil:
					got[name+"."+f.Name] = "granular"
				}
			}
		}
	}
	for key, relation := range want {
		name := key[:strings.LastIndex(key, ".")]
		if known[name] && got[key] != relation && !(relation == "granular" && got[key] == "") {
			t.Errorf("%s: got %q, want %q", key, got[key], relation)
		}
	}
	for key, relation := range got {
		if want[key] == "" {
			t.Errorf("%s: got %q, want nothing", key, relation)
		}
	}
	if len(known) < 400 {
		t.Errorf("only %d types seen", len(known))
	}
}

// openAPIName turns k8s.io/api/core/v1.Pod into io.k8s.api.core.v1.Pod.
func openAPIName(goName string) string {
	path := strings.Split(goName, "/")
	host := strings.Split(path[0], ".")
	slices.Reverse(host)
	return strings.Join(append(host, path[1:]...), ".")
}

// A recordedWrite is one request and what kube-apiserver 1.37 made of it; requests to one object follow each other.
type recordedWrite struct {
	ID, Kind, Subresource, Manager, Body string
	Type                                 string // media type of a PATCH, or create
	Force                                bool
	Schema                               map[string]any // the first line: of the custom resource
	Status                               *metav1.Status
	After                                json.RawMessage
}

func TestLedgerIsThatOfKubeAPIServer(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/kube-apiserver-1.36.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	goTypes := builtInTypes(t)
	ledgers := map[string]*Manager{}
	stored := map[string]json.RawMessage{}
	var custom map[string]any
	for line := range strings.Lines(string(text)) {
		var w recordedWrite
		if err := json.Unmarshal([]byte(line), &w); err != nil {
			t.Fatal(err)
		}
		if w.Schema != nil {
			custom = w.Schema
			continue
		}
		group, kind := path.Split(w.Kind)
		version, _ := schema.ParseGroupVersion(strings.TrimSuffix(group, "/"))
		if ledgers[w.Kind] == nil {
			ledgers[w.Kind] = &Manager{Kind: version.WithKind(kind), GoType: goTypes[version.WithKind(kind).String()], Status: w.Kind != "v1/ConfigMap"}
			if ledgers[w.Kind].GoType == nil {
				ledgers[w.Kind].Schema = custom
			}
		}
		name := w.Kind + strings.SplitN(w.ID, "-", 2)[0]
		if strings.HasPrefix(w.ID, "mf-") || strings.HasPrefix(w.ID, "csa-") || kind != "ConfigMap" {
			stored[name] = replayWrite(t, ledgers[w.Kind], stored[name], w)
		} else {
			stored[w.Kind] = replayWrite(t, ledgers[w.Kind], stored[w.Kind], w)
		}
	}
}

func replayWrite(t *testing.T, o *Manager, before json.RawMessage, w recordedWrite) json.RawMessage {
	t.Helper()
	var old, next scheme.Object
	if before != nil {
		old = decodeObject(t, o, before)
	}
	var err error
	switch {
	case w.Type == string(patch.ApplyPatch):
		next, _, err = o.Apply(old, []byte(w.Body), Applier{Manager: w.Manager, Subresource: w.Subresource, Force: w.Force})
	case w.Subresource == "scale":
		next = decodeObject(t, o, w.After)
		next.SetManagedFields(replayScale(t, old, w))
	case w.Type == "create":
		next = decodeObject(t, o, w.After) // so that defaults are in place, which belong to the creator
		next.SetManagedFields(nil)
		err = o.Update(nil, next, w.Manager, "")
	default:
		zero := any(nil)
		if o.GoType != nil {
			zero = reflect.Zero(o.GoType).Interface()
		}
		result, _, patchErr := patch.Apply(patch.Kind(w.Type), before, []byte(w.Body), zero)
		if patchErr != nil {
			t.Fatalf("%s: %v", w.ID, patchErr)
		}
		next = decodeObject(t, o, result)
		err = o.Update(old, next, w.Manager, w.Subresource)
	}
	if w.Status != nil {
		var status apierrors.APIStatus
		if !errors.As(err, &status) {
			t.Errorf("%s: got %v, want %+v", w.ID, err, w.Status)
			return before
		}
		got := status.Status()
		for _, details := range []*metav1.StatusDetails{got.Details, w.Status.Details} {
			if details != nil { // by manager, as its map yields them
				slices.SortStableFunc(details.Causes, func(a, b metav1.StatusCause) int { return strings.Compare(a.Message, b.Message) })
			}
		}
		if got.Code != w.Status.Code || got.Reason != w.Status.Reason || sorted(got.Message) != sorted(w.Status.Message) || !equality.Semantic.DeepEqual(got.Details, w.Status.Details) {
			t.Errorf("%s: got %+v, want %+v", w.ID, got, w.Status)
		}
		return before
	}
	if err != nil {
		t.Errorf("%s: got %v", w.ID, err)
		return w.After
	}
	want := decodeObject(t, o, w.After)
	if got, want := entries(next), entries(want); got != want {
		t.Errorf("%s: got entries\n%s\nwant\n%s", w.ID, got, want)
	}
	if a, b := dataOf(next), dataOf(want); !equality.Semantic.DeepEqual(a, b) {
		t.Errorf("%s: got data %v, want %v", w.ID, a, b)
	}
	if old != nil {
		RestoreTimes(old, next)
	}
	if old != nil && old.GetResourceVersion() == want.GetResourceVersion() && !equality.Semantic.DeepEqual(old.GetManagedFields(), next.GetManagedFields()) {
		t.Errorf("%s: times moved without a change", w.ID)
	}
	return w.After
}

func replayScale(t *testing.T, old scheme.Object, w recordedWrite) []metav1.ManagedFieldsEntry {
	handler := NewScaleHandler(old, schema.GroupVersion{Group: "apps", Version: "v1"}, map[string][]string{"apps/v1": {"spec", "replicas"}})
	before, err := handler.ToSubresource()
	if err != nil {
		t.Fatal(err)
	}
	o := &Manager{Kind: autoscalingv1.SchemeGroupVersion.WithKind("Scale"), GoType: reflect.TypeFor[autoscalingv1.Scale]()}
	scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: old.GetName(), UID: old.GetUID(), ManagedFields: before}}
	scale.Spec.Replicas = old.(*appsv1.Deployment).DeepCopy().Status.Replicas
	next := scale.DeepCopy()
	if err := json.Unmarshal([]byte(w.Body), next); err != nil {
		t.Fatal(err)
	}
	if err := o.Update(scale, next, w.Manager, "scale"); err != nil {
		t.Fatal(err)
	}
	after, err := handler.ToParent(next.ManagedFields)
	if err != nil {
		t.Fatal(err)
	}
	return after
}

func decodeObject(t testing.TB, o *Manager, text []byte) scheme.Object {
	obj := o.orNew(nil)
	if u, ok := obj.(*unstructured.Unstructured); ok {
		if err := kjson.UnmarshalCaseSensitivePreserveInts(text, &u.Object); err != nil {
			t.Fatal(err)
		}
	} else if err := json.Unmarshal(text, obj); err != nil {
		t.Fatal(err)
	}
	return obj
}

// sorted brings the lines of a message in one order: upstream lists several type errors as its maps yield them.
func sorted(message string) string {
	lines := strings.Split(message, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func dataOf(obj scheme.Object) any {
	if cm, ok := obj.(*corev1.ConfigMap); ok {
		return cm.Data
	}
	return nil
}

// entries prints managedFields without times.
func entries(obj scheme.Object) string {
	var lines []string
	for _, e := range obj.GetManagedFields() {
		lines = append(lines, strings.Join([]string{e.Manager, string(e.Operation), e.APIVersion, e.Subresource, string(e.FieldsV1.GetRawBytes())}, " "))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestOwnershipServesManyAtOnce(t *testing.T) {
	t.Parallel()
	o := &Manager{Kind: appsv1.SchemeGroupVersion.WithKind("Deployment"), GoType: reflect.TypeFor[appsv1.Deployment](), Status: true}
	body := strings.NewReplacer(`"uid":"1",`, ``, `"resourceVersion":"7",`, ``).Replace(kubetest.DeploymentJSON(2))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			live, _, err := o.Apply(nil, []byte(body), Applier{Manager: "m", Subresource: []string{"", "status"}[i%2]})
			if err == nil {
				err = o.Update(live, live.DeepCopyObject().(scheme.Object), "u", "")
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func FuzzApply(f *testing.F) {
	for _, body := range []string{
		kubetest.DeploymentJSON(1), `{"apiVersion":"apps/v1","kind":"Deployment","metadata":"x"}`, `null`, `[]`, "a: &x [*x]",
		`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d","managedFields":1,"annotations":[1]},"spec":{"template":{"spec":{"containers":[null,{"name":["x"]},{"name":null,"ports":[{"containerPort":{}}]}]}}}}`,
		`{"apiVersion":"x.io/v1","kind":"X","spec":{"m":[{"k":1},{"k":"1"},{"k":null}],"s":[1,"1",null,[1],{}]}}`,
		"apiVersion: apps/v1\nkind: Deployment\nspec: {1: 2, true: no, ~: ~}\n",
	} {
		f.Add(body, `{"f:spec":{"f:replicas":{}}}`)
		f.Add(body, `{"f:spec":{"k:{\"name\":1}":{".":{}},"v:[":{}}}`)
	}
	built := &Manager{Kind: appsv1.SchemeGroupVersion.WithKind("Deployment"), GoType: reflect.TypeFor[appsv1.Deployment](), Status: true}
	custom := &Manager{Kind: schema.GroupVersionKind{Group: "x.io", Version: "v1", Kind: "X"}, Schema: map[string]any{"type": "object", "properties": map[string]any{
		"spec": map[string]any{"type": "object", "properties": map[string]any{
			"s": map[string]any{"type": "array", "x-kubernetes-list-type": "set", "items": map[string]any{"x-kubernetes-int-or-string": true}},
			"m": map[string]any{"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"k"},
				"items": map[string]any{"type": "object", "properties": map[string]any{"k": map[string]any{"x-kubernetes-preserve-unknown-fields": true}}}},
		}}}}}
	f.Fuzz(func(t *testing.T, body, fields string) {
		for _, o := range []*Manager{built, custom} {
			live := decodeObject(t, o, []byte(kubetest.DeploymentJSON(1)))
			live.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "x", Operation: "Update", APIVersion: o.Kind.GroupVersion().String(),
				FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields)}})
			next := live.DeepCopyObject().(scheme.Object)
			if err := o.Update(live, next, "u", ""); err != nil {
				t.Fatal(err)
			}
			_, _, err := o.Apply(live, []byte(body), Applier{Manager: "m"})
			var status apierrors.APIStatus
			if err != nil && !errors.As(err, &status) {
				t.Fatalf("%s: %v is no Status", body, err)
			}
		}
	})
}
