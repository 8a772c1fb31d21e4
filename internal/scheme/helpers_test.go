package scheme

import (
	"reflect"
	"testing"
	"time"

	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"apilet/internal/scheme/protobuf"
)

// generatedBytes are a document's protobuf by way of its Go type.
func generatedBytes(t testing.TB, res *Resource, doc []byte) []byte {
	t.Helper()
	obj, err := res.DecodeStored(doc)
	if err != nil {
		t.Fatalf("%v: %s", err, doc)
	}
	m, err := protobuf.AsMessage(obj)
	if err != nil {
		t.Fatal(err)
	}
	want, err := protobuf.AppendMessage(nil, m, m.Size())
	if err != nil {
		t.Fatal(err)
	}
	return want
}

func customFoo() *Resource {
	return &Resource{Group: "x.io", Version: "v1", Kind: "Foo", Plural: "foos", Singular: "foo", StorageGroup: "x.io", Namespaced: true,
		Verbs: []string{"create", "get", "list"}}
}

// fillValue sets everything in v to something, the same each time.
func fillValue(v reflect.Value) {
	switch x := v.Addr().Interface().(type) {
	case *metav1.Time:
		*x = metav1.Unix(1700000000, 0)
		return
	case *metav1.MicroTime:
		*x = metav1.MicroTime{Time: time.Unix(1700000000, 123456000)}
		return
	case *apiresource.Quantity:
		*x = apiresource.MustParse("5Mi")
		return
	case *intstr.IntOrString:
		*x = intstr.FromString("50%")
		return
	case *runtime.RawExtension:
		x.Raw = []byte(`{"a":1}`)
		return
	case *metav1.FieldsV1:
		*x = *metav1.NewFieldsV1("{}")
		return
	case *metav1.TypeMeta, *metav1.ManagedFieldsEntry:
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillValue(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			fillValue(v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fillValue(v.Index(0))
		fillValue(v.Index(1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fillValue(key)
		fillValue(value)
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString(`text "resourceVersion":"7" <ü>`)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint8:
		v.SetUint(7)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(1.5)
	}
}

func filled(t reflect.Type) Object {
	obj := NewOf(t)
	fillValue(reflect.ValueOf(obj).Elem())
	obj.SetManagedFields(nil)
	return obj
}

func protoEnvelope(t testing.TB, res *Resource, obj any) []byte {
	raw, err := obj.(interface{ Marshal() ([]byte, error) }).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	unknown := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: res.APIVersion(), Kind: res.Kind}, Raw: raw}
	data, err := unknown.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte("k8s\x00"), data...)
}

// testResource finds a resource by plural name alone, the custom resource foos of x.io included.
func testResource(plural string) *Resource {
	reg := NewRegistry()
	reg.ReplaceCustom([]*Resource{customFoo()})
	var found *Resource
	for _, res := range reg.All() {
		if res.Plural == plural && (found == nil || res.Version == "v1") {
			found = res
		}
	}
	return found
}

// protoField is a length-delimited field of a protobuf message.
func protoField(number int, content []byte) []byte {
	out := appendVarint(nil, number<<3|2)
	return append(appendVarint(out, len(content)), content...)
}

func appendVarint(to []byte, n int) []byte {
	for ; n >= 0x80; n >>= 7 {
		to = append(to, byte(n)|0x80)
	}
	return append(to, byte(n))
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}
