package bounded

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// weighed is what a document takes, by its walk as JSON.
func weighed(doc string, t reflect.Type) int64 {
	w := weightScan{doc: []byte(doc), left: weightMax}
	w.value(weightsOf(t).shape, 0)
	return weightMax - w.left
}

// element returns the weight of a list's element of so many bytes.
func element(bytes int64) int64 { return max(bytes, elementWeight) }

// The weight of a document is that of the structs, lists and maps that decoding it makes, in JSON, protobuf and decoded.
func TestWeightsAreThoseOfTheGoTypes(t *testing.T) {
	pod, container, size := reflect.TypeFor[corev1.Pod](), element(int64(reflect.TypeFor[corev1.Container]().Size())), func(t reflect.Type) int64 { return int64(t.Size()) }
	for doc, want := range map[string]int64{
		`{}`: 0, `{"spec":{}}`: 0, `{"metadata":{"name":"a, [{},{}]"}}`: 0, `{"unknown":{"containers":[{},{}]}}`: 0,
		`{"spec":{"containers":[{},{}]}}`:                                             2 * container,
		"{ \"spec\" : {\n\"containers\" :\t[ {} , {\"name\":\"\\\"],[\"}, null ]}}":   3 * container,
		`{"spec":{"containers":[{"ports":[{},{}],"args":["a","b"]}],"nodeName":"n"}}`: container + 2*element(size(reflect.TypeFor[corev1.ContainerPort]())) + 2*element(16),
		`{"spec":{"securityContext":{},"volumes":[{"emptyDir":{}}]}}`:                 size(reflect.TypeFor[corev1.PodSecurityContext]()) + element(size(reflect.TypeFor[corev1.Volume]())) + size(reflect.TypeFor[corev1.EmptyDirVolumeSource]()),
		`{"metadata":{"labels":{"a":"b","c":"d"}}}`:                                   2 * element(mapWeight+16),
		`{"spec":{"containers":[{"resources":{"limits":{"cpu":"1"}}}]}} [{},{}]`:      container + element(mapWeight+size(reflect.TypeFor[corev1.ResourceList]().Elem())),
		`{"spec":{"containers":{"a":{},"b":{}},"initContainers":[`:                    0,
		`{"spec":{"containers":[{}`:                                                   container, `{"spec":{"containers":["`: container, `{"spec":"` + "\\": 0, `[`: 0, ``: 0, `}`: 0,
	} {
		if got := weighed(doc, pod); got != want {
			t.Errorf("%s: %d, want %d", doc, got, want)
		}
		var value map[string]any
		object := &corev1.Pod{}
		if json.Unmarshal([]byte(doc), &value) != nil || json.Unmarshal([]byte(doc), object) != nil || strings.Contains(doc, "null") {
			continue
		}
		left := int64(weightMax)
		if weightsOf(pod).shape.weighDecoded(value, &left); weightMax-left != want {
			t.Errorf("%s decoded: %d, want %d", doc, weightMax-left, want)
		}
		wire, err := object.Marshal()
		if left = weightMax; err != nil || weightsOf(pod).shape.weighWire(wire, &left) != nil || weightMax-left < want {
			t.Errorf("%s in protobuf: %d, want %d at least (%v)", doc, weightMax-left, want, err)
		}
	}
	schema := int64(reflect.TypeFor[apiextensionsv1.JSONSchemaProps]().Size())
	if got := weighed(`{"items":{"allOf":[{},{"items":[{},{}]}]},"properties":{"a":{"not":{}}}}`, reflect.TypeFor[apiextensionsv1.JSONSchemaProps]()); got < 6*schema {
		t.Errorf("a schema with seven in it: %d, want %d at least", got, 6*schema)
	}
	deep := strings.Repeat(`{"not":`, 1<<20)
	if weighed(deep, reflect.TypeFor[apiextensionsv1.JSONSchemaProps]()) == 0 {
		t.Error("a schema of a million levels weighs nothing")
	}
}

// A document of empty elements is refused before anything is made of it, in each form; a text of as many commas is a text.
func TestNoBodyBecomesGigabytes(t *testing.T) {
	obj := &corev1.Pod{}
	for range 200_000 {
		obj.Spec.Containers = append(obj.Spec.Containers, corev1.Container{})
	}
	wire, err := obj.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if err := UnmarshalWire(&corev1.Pod{}, wire); !IsTooLarge(err) {
		t.Errorf("protobuf: %v", err)
	}
	if _, err := UnmarshalStrict([]byte(`{"spec":{"containers":[`+strings.Repeat("{},", 200_000)+`{}]}}`), &corev1.Pod{}); !IsTooLarge(err) {
		t.Errorf("JSON: %v", err)
	}
	many := make([]any, 200_000)
	for i := range many {
		many[i] = map[string]any{}
	}
	if err := FromUnstructured(map[string]any{"spec": map[string]any{"containers": many}}, &corev1.Pod{}, false); !IsTooLarge(err) {
		t.Errorf("decoded: %v", err)
	}
	if _, err := UnmarshalStrict([]byte(`{"data":{"a":"`+strings.Repeat("{},", 1<<20)+`"}}`), &corev1.ConfigMap{}); err != nil {
		t.Errorf("a text: %v", err)
	}
}

// BenchmarkWeight is what the walk costs beside the decoder, for a body of three megabytes.
func BenchmarkWeight(b *testing.B) {
	doc := []byte(`{"spec":{"containers":[{"name":"c","env":[` + strings.TrimSuffix(strings.Repeat(`{"name":"A","value":"b"},`, 120_000), ",") + `]}]}}`)
	for what, run := range map[string]func(){
		"walk":   func() { _ = checkWeight(doc, reflect.TypeFor[corev1.Pod]()) },
		"decode": func() { _, _ = UnmarshalStrict(doc, &corev1.Pod{}) },
	} {
		b.Run(what, func(b *testing.B) {
			b.SetBytes(int64(len(doc)))
			for b.Loop() {
				run()
			}
		})
	}
}
