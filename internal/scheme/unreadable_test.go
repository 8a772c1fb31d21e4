package scheme

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	kresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/apitest/kubetest"
)

// TestLeavesEncodeWhatTheyDecode names every Go type within the built-in ones that writes its own JSON: these alone could write what they do
// not read, and inspect has to know how. A new one has to be looked at.
func TestLeavesEncodeWhatTheyDecode(t *testing.T) {
	t.Parallel()
	known := map[string]string{
		"v1.Time": "years", "v1.MicroTime": "years", "v1.Duration": "its longest and shortest read back", "resource.Quantity": "what it parses is made canonical",
		"intstr.IntOrString": "a kind that is neither is an error", "v1.FieldsV1": "raw JSON: depth", "runtime.RawExtension": "raw JSON: depth",
		"v1.JSON": "raw JSON: depth", "v1.JSONSchemaPropsOrBool": "depth", "v1.JSONSchemaPropsOrArray": "depth", "v1.JSONSchemaPropsOrStringArray": "depth",
		"v1.JSONSchemaProps": "depth",
	}
	seen := map[reflect.Type]bool{}
	marshaler := reflect.TypeFor[json.Marshaler]()
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice || typ.Kind() == reflect.Map {
			typ = typ.Elem()
		}
		if seen[typ] {
			return
		}
		seen[typ] = true
		if typ.Implements(marshaler) || reflect.PointerTo(typ).Implements(marshaler) {
			if known[typ.String()] == "" {
				t.Errorf("%s writes its own JSON: does it read all that it writes?", typ)
			}
			return
		}
		if typ.Kind() == reflect.Struct {
			for i := range typ.NumField() {
				walk(typ.Field(i).Type)
			}
		}
	}
	for _, res := range Builtins {
		if t := res.StoredType(); t != nil {
			walk(t)
		}
	}
	var back metav1.Duration
	for _, d := range []time.Duration{math.MinInt64, math.MaxInt64, 1} {
		text := kubetest.Must(json.Marshal(metav1.Duration{Duration: d}))
		if err := json.Unmarshal(text, &back); err != nil || back.Duration != d {
			t.Errorf("%s: %v, %v", text, back, err)
		}
	}
	for _, text := range []string{"1e400000000", "-9e99", "1e-400000", "123456789012345678901234567890", "0.0000000001", "1Ei", "9223372036854775808Ki", ""} {
		var q, again kresource.Quantity
		if q.Unmarshal(kubetest.ProtoField(1, []byte(text))) != nil {
			continue
		}
		encoded := kubetest.Must(json.Marshal(q))
		if err := json.Unmarshal(encoded, &again); err != nil {
			t.Errorf("%s: %s: %v", text, encoded, err)
		}
	}
}

// BenchmarkVet is what a write pays to be read back for certain: the look through its bytes, beside decoding them.
func BenchmarkVet(b *testing.B) {
	res := NewRegistry().Lookup("", "v1", "pods")
	var pod corev1.Pod
	if err := json.Unmarshal([]byte(kubetest.PodOf("p", "")), &pod); err != nil {
		b.Fatal(err)
	}
	pod.Annotations = map[string]string{"a": strings.Repeat("x", 400)}
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m", FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:metadata":{"f:annotations":{".":{},"f:a":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:image":{},"f:name":{}}}}}`)}}}
	stored, _, err := res.EncodeStored(&pod)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("encode and vet", func(b *testing.B) {
		for b.Loop() {
			_, _, _ = res.EncodeStored(&pod)
		}
	})
	b.Run("vet", func(b *testing.B) {
		b.SetBytes(int64(len(stored)))
		for b.Loop() {
			res.checkStorable(stored)
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.SetBytes(int64(len(stored)))
		for b.Loop() {
			_, _ = res.DecodeStored(stored)
		}
	})
}
