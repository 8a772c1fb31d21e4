package kubetest

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
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
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

// Object is the interface of all Go types of the API.
type Object interface {
	metav1.Object
	runtime.Object
}

// Filled returns an object of a Go type with deterministic values in all fields except for
// managedFields and schemas.
func Filled(t reflect.Type) Object {
	obj := reflect.New(t).Interface().(Object)
	fillValue(reflect.ValueOf(obj).Elem())
	obj.SetManagedFields(nil)
	return obj
}

// fillValue sets all fields in v to deterministic values.
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
	// JSONSchemaProps is recursive.
	case *metav1.TypeMeta, *metav1.ManagedFieldsEntry, *apiextensionsv1.JSONSchemaProps:
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

// Builtin returns the scheme of the Go types that Decode supports.
var Builtin = sync.OnceValue(func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		admissionv1.AddToScheme, appsv1.AddToScheme, autoscalingv1.AddToScheme, autoscalingv2.AddToScheme, batchv1.AddToScheme,
		certificatesv1.AddToScheme, coordinationv1.AddToScheme, corev1.AddToScheme, discoveryv1.AddToScheme, eventsv1.AddToScheme,
		flowcontrolv1.AddToScheme, flowcontrolv1beta3.AddToScheme, networkingv1.AddToScheme, nodev1.AddToScheme, policyv1.AddToScheme,
		rbacv1.AddToScheme, resourcev1.AddToScheme, schedulingv1.AddToScheme, storagemigrationv1.AddToScheme, storagev1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return scheme
})

// ReadDocuments reads a YAML file with several documents and converts each to JSON.
func ReadDocuments(t testing.TB, file string) (docs [][]byte) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range strings.Split(string(text), "\n---\n") {
		j, err := yaml.YAMLToJSON([]byte(doc))
		if err != nil {
			t.Fatalf("%s: %v in %s", file, err, doc)
		}
		docs = append(docs, j)
	}
	return docs
}

// Decode decodes a document into the Go type of its kind.
func Decode(t testing.TB, doc []byte) runtime.Object {
	t.Helper()
	obj, err := TryDecode(doc)
	if err != nil {
		t.Fatalf("%v: %s", err, doc)
	}
	return obj
}

// TryDecode is like Decode, but returns an error for an invalid document.
func TryDecode(doc []byte) (runtime.Object, error) {
	var tm metav1.TypeMeta
	if err := json.Unmarshal(doc, &tm); err != nil {
		return nil, err
	}
	obj, err := Builtin().New(tm.GroupVersionKind())
	if err == nil {
		err = json.Unmarshal(doc, obj)
	}
	return obj, err
}

// Envelope encodes an object as protobuf with the envelope of the API: the magic bytes, the kind,
// and the encoded object.
func Envelope(t testing.TB, apiVersion, kind string, obj any) []byte {
	raw, err := obj.(interface{ Marshal() ([]byte, error) }).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	unknown := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: apiVersion, Kind: kind}, Raw: raw}
	data, err := unknown.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte("k8s\x00"), data...)
}

// ProtoField encodes a length-delimited field of a protobuf message.
func ProtoField(number int, content []byte) []byte {
	out := AppendVarint(nil, number<<3|2)
	return append(AppendVarint(out, len(content)), content...)
}

// AppendVarint appends a number in protobuf's varint encoding.
func AppendVarint(to []byte, n int) []byte {
	for ; n >= 0x80; n >>= 7 {
		to = append(to, byte(n)|0x80)
	}
	return append(to, byte(n))
}

// Must returns b and panics if err is not nil. It is for encodings that cannot fail.
func Must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}
