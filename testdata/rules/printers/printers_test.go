// Package printers compares the tables of apilet's built-in types (internal/kinds/printers) with
// those of k8s.io/kubernetes/pkg/printers/internalversion, which would add 226 packages and 7 MB to
// the server.
package printers

import (
	"cmp"
	"encoding/json"
	"flag"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/kubernetes/pkg/apis/storage"
	kubernetes "k8s.io/kubernetes/pkg/printers"
	handlers "k8s.io/kubernetes/pkg/printers/internalversion"

	"apilet/internal/kinds/defaults"
	"apilet/internal/kinds/printers"
	"apilet/internal/scheme"
	"apilet/internal/scheme/internalversion"
)

var (
	objects = flag.Int("objects", 300, "how many `objects` of each type are generated")
	seed    = flag.Uint64("seed", 1, "seed of the generator")
)

// TestTablesAgree generates objects of all built-in types and compares the columns, cells and
// conditions.
func TestTablesAgree(t *testing.T) {
	theirs := kubernetes.NewTableGenerator().With(handlers.AddHandlers)
	withTables := 0
	for _, res := range scheme.NewRegistry().All() {
		if res.GoType == nil || res.Kind == "APIService" || res.Kind == "CSIStorageCapacity" {
			// kube-aggregator prints APIServices, and the table of CSIStorageCapacities is not used
			continue
		}
		if _, err := theirs.GenerateTable(internalversion.From(newObject(res)), kubernetes.GenerateOptions{Wide: true}); err != nil {
			if !printers.NullIfEmpty(res) {
				t.Errorf("%s %s has no table in Kubernetes", res.APIVersion(), res.Kind)
			}
			continue
		}
		withTables++
		t.Run(res.APIVersion()+" "+res.Kind, func(t *testing.T) { compare(t, res, theirs) })
	}
	if withTables < 45 {
		t.Errorf("%d types with tables; want at least 45", withTables)
	}
}

func newObject(res *scheme.Resource) scheme.Object {
	return reflect.New(res.GoType).Interface().(scheme.Object)
}

func compare(t *testing.T, res *scheme.Resource, theirs kubernetes.TableGenerator) {
	now := time.Now()
	g := generator{rand.New(rand.NewPCG(*seed, *seed)), now}
	compared, differ := 0, 0
	for range *objects {
		obj := newObject(res)
		g.fill(reflect.ValueOf(obj).Elem(), 0)
		obj.SetName(cmp.Or(obj.GetName(), "a"))
		defaults.Set(obj)
		// stored Services have both fields
		if svc, ok := obj.(*corev1.Service); ok && svc.Spec.ClusterIP != "" {
			svc.Spec.ClusterIPs = append([]string{svc.Spec.ClusterIP}, svc.Spec.ClusterIPs...)
		}
		want := tableOf(t, theirs, obj)
		if want == nil {
			continue
		}
		compared++
		if got := printers.ColumnsOf(res); !reflect.DeepEqual(got, want.ColumnDefinitions) {
			t.Fatalf("got columns %+v\nwant %+v", got, want.ColumnDefinitions)
		}
		got, row := encode(t, printers.CellsOf(res, obj, now)), encode(t, want.Rows[0].Cells)
		conditions, wantConditions := printers.RowConditionsOf(obj), want.Rows[0].Conditions
		if got == row && slices.Equal(conditions, wantConditions) {
			continue
		}
		if differ++; differ <= 3 {
			t.Errorf("got  %s %v\nwant %s %v\nof %.3000s", got, conditions, row, wantConditions, encode(t, obj))
		}
	}
	if differ > 0 || compared < *objects/2 {
		t.Errorf("%d of %d objects differ", differ, compared)
	}
}

// tableOf returns Kubernetes' table of an object. It returns nil if Kubernetes panics, which it
// does for some objects that are not valid.
func tableOf(t *testing.T, theirs kubernetes.TableGenerator, obj scheme.Object) (table *metav1.Table) {
	defer func() {
		if recover() != nil {
			table = nil
		}
	}()
	internal := internalversion.From(obj.DeepCopyObject())
	if class, ok := internal.(*storage.StorageClass); ok { // only lists show the default class
		internal = &storage.StorageClassList{Items: []storage.StorageClass{*class}}
	}
	table, err := theirs.GenerateTable(internal, kubernetes.GenerateOptions{Wide: true})
	if err != nil || len(table.Rows) != 1 {
		t.Errorf("%v, %d rows", err, len(table.Rows))
		return nil
	}
	return table
}

func encode(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A generator fills objects with values on which printers depend.
type generator struct {
	*rand.Rand
	now time.Time
}

func (g generator) fill(v reflect.Value, depth int) {
	switch x := v.Addr().Interface().(type) {
	case *metav1.TypeMeta, *[]metav1.ManagedFieldsEntry:
		return
	case *metav1.Time:
		*x = metav1.NewTime(g.time())
		return
	case *metav1.MicroTime:
		*x = metav1.NewMicroTime(g.time())
		return
	case *apiresource.Quantity:
		*x = apiresource.MustParse([]string{"0", "1", "100m", "1500m", "5Gi", "2Ki"}[g.IntN(6)])
		return
	case *intstr.IntOrString:
		*x = []intstr.IntOrString{intstr.FromInt32(80), intstr.FromString("http"), intstr.FromString("25%")}[g.IntN(3)]
		return
	case *runtime.RawExtension:
		x.Raw = []byte("{}")
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if g.IntN(3) > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			g.fill(v.Elem(), depth+1)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				g.fill(v.Field(i), depth+1)
			}
		}
	case reflect.Slice:
		g.fillSlice(v, depth)
	case reflect.Map:
		g.fillMap(v, depth)
	case reflect.String:
		v.SetString(g.text(v.Type().Name()))
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt([]int64{-1, 0, 0, 1, 2, 3, 137}[g.IntN(7)])
	case reflect.Uint8:
		v.SetUint(uint64(g.IntN(256)))
	case reflect.Bool:
		v.SetBool(g.IntN(2) == 0)
	}
}

func (g generator) fillSlice(v reflect.Value, depth int) {
	n := []int{0, 0, 1, 1, 2, 3, 4, 5}[g.IntN(8)]
	if depth > 12 {
		n = 0
	}
	if n == 0 && g.IntN(2) == 0 {
		return // nil
	}
	v.Set(reflect.MakeSlice(v.Type(), n, n))
	for i := range n {
		g.fill(v.Index(i), depth+1)
	}
}

func (g generator) fillMap(v reflect.Value, depth int) {
	if g.IntN(4) == 0 {
		return // nil
	}
	v.Set(reflect.MakeMap(v.Type()))
	for range g.IntN(4) {
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		g.fill(key, depth+1)
		g.fill(value, depth+1)
		if key.Kind() == reflect.String && g.IntN(3) == 0 {
			key.SetString(keys[g.IntN(len(keys))])
		}
		v.SetMapIndex(key, value)
	}
}

// time returns a time whose printed age does not change for hours.
func (g generator) time() time.Time {
	const day = 24 * time.Hour
	if g.IntN(10) == 0 {
		return g.now.Add(10 * day) // of a machine whose clock is ahead
	}
	if g.IntN(10) == 0 {
		return time.Time{}
	}
	return g.now.Add(-time.Duration(10+g.IntN(700))*day - 12*time.Hour).Truncate(time.Second)
}

// text returns a string of a type.
func (g generator) text(goType string) string {
	pool := words[goType]
	if pool == nil || g.IntN(10) == 0 {
		pool = words[""]
	}
	return pool[g.IntN(len(pool))]
}

// words contains values that are handled by printers, by the Go type of the field.
var words = map[string][]string{
	"": {"", "", "a", "b", "web-0", "10.0.0.1", "2001:db8::1", "None", "Completed", "Error", "PodInitializing", "CrashLoopBackOff",
		"SchedulingGated", "NodeLost", "True", "true", "False", "User", "Group", "ServiceAccount", "apps/v1", "Deployment", " spaced \n"},
	"ConditionStatus":                    {"True", "False", "Unknown"},
	"PodPhase":                           {"Pending", "Running", "Succeeded", "Failed", "Unknown"},
	"PodConditionType":                   {"Ready", "Initialized", "PodScheduled", "ContainersReady", "a"},
	"ContainerRestartPolicy":             {"Always", "OnFailure"},
	"NodeConditionType":                  {"Ready", "MemoryPressure"},
	"NodeAddressType":                    {"InternalIP", "ExternalIP", "Hostname"},
	"ComponentConditionType":             {"Healthy"},
	"ServiceType":                        {"ClusterIP", "NodePort", "LoadBalancer", "ExternalName"},
	"MetricSourceType":                   {"Resource", "Pods", "Object", "External", "ContainerResource"},
	"MetricTargetType":                   {"Utilization", "Value", "AverageValue"},
	"JobConditionType":                   {"Complete", "Failed", "Suspended", "FailureTarget", "SuccessCriteriaMet"},
	"RequestConditionType":               {"Approved", "Denied", "Failed"},
	"FlowSchemaConditionType":            {"Dangling"},
	"APIServiceConditionType":            {"Available"},
	"PersistentVolumeAccessMode":         {"ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"},
	"LabelSelectorOperator":              {"In", "NotIn", "Exists", "DoesNotExist"},
	"ResourceName":                       {"cpu", "memory", "storage", "pods", "limits.cpu", "requests.cpu", "limits.memory"},
	"PriorityLevelEnablement":            {"Exempt", "Limited"},
	"PersistentVolumeClaimPhase":         {"Pending", "Bound", "Lost"},
	"PersistentVolumeClaimConditionType": {"Resizing"},
	"UID":                                {"u"},
}

// keys contains the keys of labels and annotations that are handled by printers.
var keys = []string{"node-role.kubernetes.io/worker", "node-role.kubernetes.io/", "kubernetes.io/role",
	"storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class",
	"ingressclass.kubernetes.io/is-default-class", "volume.beta.kubernetes.io/storage-class"}
