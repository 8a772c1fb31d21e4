package kinds_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	batchv1beta1 "k8s.io/api/batch/v1beta1"
	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	flowcontrolv1beta3 "k8s.io/api/flowcontrol/v1beta3"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/randfill"

	"apilet/internal/kinds/printers"
	"apilet/internal/scheme"
)

// columnTypes knows the Go type of each kind that has columns, in every version that kube-apiserver 1.37 can serve.
func columnTypes(t testing.TB) map[schema.GroupVersionKind]reflect.Type {
	known := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		admissionv1.AddToScheme, appsv1.AddToScheme, autoscalingv1.AddToScheme,
		autoscalingv2.AddToScheme, batchv1.AddToScheme, batchv1beta1.AddToScheme, certificatesv1.AddToScheme, certificatesv1beta1.AddToScheme,
		apiextensionsv1.AddToScheme, coordinationv1.AddToScheme,
		corev1.AddToScheme, discoveryv1.AddToScheme, eventsv1.AddToScheme, flowcontrolv1.AddToScheme, flowcontrolv1beta3.AddToScheme,
		networkingv1.AddToScheme, nodev1.AddToScheme, policyv1.AddToScheme, rbacv1.AddToScheme,
		resourcev1.AddToScheme, schedulingv1.AddToScheme, storagev1.AddToScheme, storagemigrationv1.AddToScheme,
	} {
		if err := add(known); err != nil {
			t.Fatal(err)
		}
	}
	types := known.AllKnownTypes()
	for gvk, goType := range types {
		if _, ok := reflect.New(goType).Interface().(scheme.Object); !ok {
			delete(types, gvk)
		}
	}
	for gvk := range types { // beta versions that are served in the Go types of the stable one
		for _, version := range []string{"v1beta1", "v1beta2"} {
			beta := gvk.GroupKind().WithVersion(version)
			if _, ok := types[beta]; !ok && gvk.Version == "v1" && (gvk.Group == "resource.k8s.io" || gvk.Group == "storage.k8s.io") {
				types[beta] = types[gvk]
			}
		}
	}
	return types
}

// testdata/columns/definitions.txt is what kube-apiserver 1.37 sends for each kind. A description is kept as its first words and a
// checksum of all of it.
func TestColumnsAreThoseOfKubernetes(t *testing.T) {
	types := columnTypes(t)
	want, err := os.ReadFile("testdata/columns/definitions.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, paragraph := range strings.Split(strings.TrimSpace(string(want)), "\n\n") {
		title, columns, _ := strings.Cut(paragraph, "\n")
		apiVersion, kind, _ := strings.Cut(title, " ")
		gvk := schema.FromAPIVersionAndKind(apiVersion, kind)
		res := &scheme.Resource{Group: gvk.Group, GoType: types[gvk]}
		if res.GoType == nil {
			t.Errorf("%s: no Go type", title)
			continue
		}
		if got := describeColumns(printers.ColumnsOf(res)); got != columns {
			t.Errorf("%s: got columns\n%s\nwant\n%s", title, got, columns)
		}
	}
}

func describeColumns(columns []metav1.TableColumnDefinition) string {
	var lines []string
	for _, c := range columns {
		lines = append(lines, fmt.Sprintf("\t%s | %s | %s | %d | %08x %.40s", c.Name, c.Type, c.Format, c.Priority,
			crc32.ChecksumIEEE([]byte(c.Description)), strings.Split(c.Description, "\n")[0]))
	}
	return strings.Join(lines, "\n")
}

// testdata/columns/cells.jsonl has one object a line, and the row that kube-apiserver 1.37 printed for it at the time it says.
func TestCellsAreThoseOfKubernetes(t *testing.T) {
	types := columnTypes(t)
	f, err := os.Open("testdata/columns/cells.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var want struct {
			Now               time.Time
			Object            json.RawMessage
			Cells, Conditions json.RawMessage
		}
		var kind metav1.TypeMeta
		mustUnmarshal(t, lines.Bytes(), &want)
		mustUnmarshal(t, want.Object, &kind)
		goType := types[kind.GroupVersionKind()]
		if goType == nil {
			t.Errorf("no Go type for %v", kind)
			continue
		}
		obj := reflect.New(goType).Interface().(scheme.Object)
		mustUnmarshal(t, want.Object, obj)
		if got := mustMarshal(t, printers.CellsOf(&scheme.Resource{GoType: goType}, obj, want.Now)); !bytes.Equal(got, compact(t, want.Cells)) {
			t.Errorf("%s %s:\n got %s\nwant %s", kind.Kind, obj.GetName(), got, want.Cells)
		}
		conditions := mustMarshal(t, printers.RowConditionsOf(obj))
		if want.Conditions == nil {
			want.Conditions = []byte("null")
		}
		if !bytes.Equal(conditions, compact(t, want.Conditions)) {
			t.Errorf("%s %s: got conditions %s, want %s", kind.Kind, obj.GetName(), conditions, want.Conditions)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
}

func mustUnmarshal(t *testing.T, data []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
}

func mustMarshal(t *testing.T, v any) []byte {
	t.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		t.Fatal(err)
	}
	return bytes.TrimSpace(b.Bytes())
}

// compact puts an object's members in the order in which Go writes them.
func compact(t *testing.T, data []byte) []byte {
	t.Helper()
	var conditions []metav1.TableRowCondition
	if json.Unmarshal(data, &conditions) == nil {
		return mustMarshal(t, conditions)
	}
	var cells []any
	mustUnmarshal(t, data, &cells)
	return mustMarshal(t, cells)
}

func TestCustomResourcesShowNameAndAge(t *testing.T) {
	now := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	obj := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "w", "creationTimestamp": "2026-01-01T00:00:00Z"}}}
	for _, test := range []struct {
		group, columns string
		cells          []any
	}{
		{"x.io", "Name Age", []any{"w", "24h"}},
	} {
		res := &scheme.Resource{Group: test.group}
		var titles []string
		for _, c := range printers.ColumnsOf(res) {
			titles = append(titles, c.Name)
		}
		if got := strings.Join(titles, " "); got != test.columns {
			t.Errorf("group %s: got columns %s, want %s", test.group, got, test.columns)
		}
		if got := printers.CellsOf(res, obj, now); !slices.Equal(got, test.cells) {
			t.Errorf("group %s: got %v, want %v", test.group, got, test.cells)
		}
	}
}

// TestEveryObjectCanBeShown tries sparse objects, where pointers are nil and lists empty, and objects full of nonsense.
func TestEveryObjectCanBeShown(t *testing.T) {
	seed := rand.Int64()
	t.Logf("seed %d", seed)
	for gvk, goType := range columnTypes(t) {
		for round := range 20 {
			obj := reflect.New(goType).Interface().(scheme.Object)
			if round > 0 {
				filler := randfill.NewWithSeed(seed+int64(round)).NilChance(float64(round%5)/5).NumElements(0, 4).MaxDepth(14)
				filler.Funcs(func(raw *runtime.RawExtension, _ randfill.Continue) { raw.Raw = []byte("{}") }).Fill(obj)
			}
			checkRow(t, gvk, goType, obj)
		}
	}
}

func checkRow(t *testing.T, gvk schema.GroupVersionKind, goType reflect.Type, obj scheme.Object) {
	t.Helper()
	res := &scheme.Resource{GoType: goType}
	cells := printers.CellsOf(res, obj, time.Now())
	if len(cells) < len(printers.ColumnsOf(res)) {
		t.Fatalf("%v: %d cells for %d columns: %v", gvk, len(cells), len(printers.ColumnsOf(res)), cells)
	}
	for i, cell := range cells {
		switch cell.(type) {
		case string, int64, bool:
		default:
			t.Fatalf("%v: cell %d is a %T", gvk, i, cell)
		}
	}
}

func BenchmarkPodRow(b *testing.B) {
	now := time.Now()
	started := &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(now.Add(-time.Hour))}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-0", CreationTimestamp: metav1.NewTime(now.Add(-77 * time.Hour))},
		Spec:   corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "a"}, {Name: "b"}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.7"}}
	for _, name := range []string{"a", "b"} {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: name, Ready: true, RestartCount: 2,
			State:                corev1.ContainerState{Running: started},
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: started.StartedAt}}})
	}
	res := &scheme.Resource{GoType: reflect.TypeFor[corev1.Pod]()}
	b.ReportAllocs()
	for b.Loop() {
		printers.CellsOf(res, p, now)
	}
}
