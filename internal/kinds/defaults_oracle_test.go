package kinds_test

// This file holds what the server fills in against the answers of a kube-apiserver.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"apilet/internal/admission"
	"apilet/internal/admission/plugins"
	"apilet/internal/apitest/kubetest"
	"apilet/internal/kinds/defaults"
	"apilet/internal/kinds/strategy"
	"apilet/internal/kinds/validation"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// stripAnswer removes what another chapter decides: identity, times, allocated addresses and ports, protection finalizers.
func stripAnswer(t testing.TB, answer []byte) []byte {
	t.Helper()
	var obj map[string]any
	if err := json.Unmarshal(answer, &obj); err != nil {
		t.Fatal(err)
	}
	m := obj["metadata"].(map[string]any)
	if uid, ok := m["uid"].(string); ok && uid != kubetest.FixedUID {
		if err := json.Unmarshal(bytes.ReplaceAll(answer, []byte(uid), []byte(kubetest.FixedUID)), &obj); err != nil {
			t.Fatal(err)
		}
		m = obj["metadata"].(map[string]any)
	}
	for _, key := range []string{"uid", "creationTimestamp", "managedFields", "resourceVersion", "generation", "namespace", "finalizers"} {
		delete(m, key)
	}
	spec, _ := obj["spec"].(map[string]any)
	if obj["kind"] == "Service" && spec["clusterIP"] != "None" {
		delete(spec, "clusterIP")
		delete(spec, "clusterIPs")
	}
	if obj["kind"] == "Service" {
		delete(spec, "healthCheckNodePort")
		ports, _ := spec["ports"].([]any)
		for _, p := range ports {
			delete(p.(map[string]any), "nodePort")
		}
	}
	if obj["kind"] == "CertificateSigningRequest" {
		for _, key := range []string{"username", "uid", "groups", "extra"} {
			delete(spec, key)
		}
	}
	if status, ok := obj["status"].(map[string]any); ok {
		delete(status, "lastPhaseTransitionTime")
		conditions, _ := status["conditions"].([]any)
		for _, c := range conditions {
			delete(c.(map[string]any), "lastTransitionTime")
		}
	}
	stripped, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	return stripped
}

// rowOf finds an object's type in the table.
func rowOf(t testing.TB, obj runtime.Object) *scheme.Resource {
	t.Helper()
	gvk := obj.GetObjectKind().GroupVersionKind()
	for _, res := range scheme.NewRegistry().All() {
		if res.GroupVersionKind() == gvk {
			return res
		}
	}
	t.Fatalf("%v is not served", gvk)
	return nil
}

// madeHere is what defaults, the plug-ins of an empty cluster and preparation make of a document.
func madeHere(t testing.TB, st *store.Store, doc []byte) (runtime.Object, []byte) {
	t.Helper()
	res := rowOf(t, kubetest.Decode(t, doc))
	obj, _, err := res.Decode(doc, "application/json", "")
	if err != nil {
		t.Fatal(err)
	}
	defaults.Set(obj)
	obj.SetUID(types.UID(kubetest.FixedUID))
	table := plugins.Table(plugins.Config{Store: st, Webhooks: &admission.Webhooks{}, Tolerations: plugins.TolerationSeconds{NotReady: 300, Unreachable: 300}})
	on, err := plugins.Select(table, nil, []string{"NamespaceLifecycle", "ServiceAccount"})
	if err != nil {
		t.Fatal(err)
	}
	a := admission.Attributes{Resource: res, Operation: admission.OpCreate, Object: obj}
	if _, err := admission.NewChain(table, on).Admit(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	strategy.PrepareForCreate(t.Context(), obj)
	if svc, ok := obj.(*corev1.Service); ok {
		validation.SetIPFamilies(svc, nil, []corev1.IPFamily{corev1.IPv4Protocol})
	}
	strategy.Canonicalize(obj)
	defaults.DropEmptyLists(obj)
	gvk := res.GroupVersionKind()
	out, err := scheme.MarshalAs(res.ConvertOut(obj), gvk.GroupVersion().String(), gvk.Kind)
	if err != nil {
		t.Fatal(err)
	}
	return obj, stripAnswer(t, out)
}

// emptyCluster is a store with the classes that every cluster has.
func emptyCluster(t *testing.T) *store.Store {
	t.Helper()
	st, err := store.Open(filepath.Join(t.TempDir(), "a.db"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	for name, value := range map[string]int{"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000} {
		const head = `{"kind":"PriorityClass","apiVersion":"scheduling.k8s.io/v1","metadata":{"resourceVersion":"`
		class := store.Change{Op: store.OpCreate, Key: scheme.NewRegistry().Lookup("scheduling.k8s.io", "v1", "priorityclasses").Key("", name), RevAt: len(head),
			JSON: fmt.Appendf(nil, `%s","name":%q},"value":%d}`, head, name, value)}
		if _, err := st.Commit(t.Context(), class); err != nil {
			t.Fatal(err)
		}
	}
	return st
}

func TestDefaultsAreKubernetes(t *testing.T) {
	t.Parallel()
	docs := kubetest.ReadDocuments(t, "../../testdata/defaults/objects.yaml")
	if *kubetest.OracleURL != "" {
		var record bytes.Buffer
		for _, doc := range docs {
			path := kubetest.CollectionPath(kubetest.Decode(t, doc).GetObjectKind().GroupVersionKind())
			code, answer := kubetest.AskOracle(t, "POST", path+"?dryRun=All", doc)
			if code != http.StatusCreated {
				t.Errorf("%s: %d %s", doc, code, answer)
				continue
			}
			fmt.Fprintf(&record, "%s\n", stripAnswer(t, answer))
		}
		if err := os.WriteFile("../../testdata/defaults/answers.jsonl", record.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile("../../testdata/defaults/answers.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	answers := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(answers) != len(docs) {
		t.Fatalf("%d objects, %d answers", len(docs), len(answers))
	}
	st := emptyCluster(t)
	for i, doc := range docs {
		obj, got := madeHere(t, st, doc)
		name := fmt.Sprintf("%s/%s", obj.GetObjectKind().GroupVersionKind().Kind, obj.(metav1.Object).GetName())
		for _, diff := range diffJSON(t, got, []byte(answers[i])) {
			t.Errorf("%s: %s", name, diff)
		}
		again := obj.DeepCopyObject()
		defaults.Set(again)
		if !equality.Semantic.DeepEqual(obj, again) {
			t.Errorf("%s: defaults are not idempotent", name)
		}
	}
}

// diffJSON lists where two documents differ. null and an absent member are the same: Go types write null for an empty creationTimestamp.
func diffJSON(t testing.TB, got, want []byte) (diffs []string) {
	t.Helper()
	var g, w any
	if err := json.Unmarshal(got, &g); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(want, &w); err != nil {
		t.Fatal(err)
	}
	var walk func(path string, g, w any)
	walk = func(path string, g, w any) {
		gm, gok := g.(map[string]any)
		wm, wok := w.(map[string]any)
		if gok && wok {
			for key := range gm {
				walk(path+"."+key, gm[key], wm[key])
			}
			for key := range wm {
				if _, both := gm[key]; !both {
					walk(path+"."+key, nil, wm[key])
				}
			}
			return
		}
		gl, gok := g.([]any)
		wl, wok := w.([]any)
		if gok && wok && len(gl) == len(wl) {
			for i := range gl {
				walk(fmt.Sprintf("%s[%d]", path, i), gl[i], wl[i])
			}
			return
		}
		if !reflect.DeepEqual(g, w) {
			diffs = append(diffs, fmt.Sprintf("%s: got %v, want %v", path, g, w))
		}
	}
	walk("", g, w)
	return diffs
}

func TestStatusIsTheLastField(t *testing.T) {
	t.Parallel()
	for gvk, goType := range kubetest.Builtin().AllKnownTypes() {
		if _, ok := goType.FieldByName("Status"); ok && goType.Field(goType.NumField()-1).Name != "Status" && goType != reflect.TypeFor[metav1.Status]() {
			t.Errorf("%s: status is not the last field", gvk)
		}
	}
}
