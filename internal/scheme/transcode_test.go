package scheme

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"

	"apilet/internal/scheme/protobuf"
)

// Random objects of every type, from nearly empty to full: the bytes are those of the generated methods.
func TestTranscodingIsWhatTheTypesWrite(t *testing.T) {
	t.Parallel()
	for _, res := range NewRegistry().All() {
		compared := 0
		for seed := range int64(30) {
			obj := newOf(res.StoredType())
			randomObject(seed).Fill(obj)
			doc, revAt, err := res.EncodeStored(obj)
			if err != nil {
				continue // a time before the year 0, say
			}
			doc = []byte(string(doc[:revAt]) + "7" + string(doc[revAt:]))
			got, ok := protobuf.Transcode([]byte("before"), doc, res.StoredType())
			if !ok {
				continue // a null in a map, which nobody stores
			}
			compared++
			if want := "before" + string(generatedBytes(t, res, doc)); string(got) != want {
				t.Fatalf("%s, seed %d:\n got %q\nwant %q\nof %s", res.Kind, seed, got, want, doc)
			}
		}
		if compared < 15 {
			t.Errorf("%s: %d of 30 objects", res.Kind, compared)
		}
	}
}

func randomObject(seed int64) *randfill.Filler {
	quantities := []string{"0", "1500m", "0.5Gi", "1e3", "-2", "12345678901234567890", "100m", "128Mi", "2048Ki", "7"}
	return randfill.NewWithSeed(seed).NilChance([]float64{0.9, 0.5, 0.2}[seed%3]).NumElements(0, 3).MaxDepth(14).Funcs(
		func(raw *metav1.FieldsV1, _ randfill.Continue) {
			*raw = *metav1.NewFieldsV1(`{"f:a":{".":{},"k:{\"b\":1}":{}}}`)
		},
		func(raw *runtime.RawExtension, _ randfill.Continue) { raw.Raw = []byte(`{"a":[1,{"b":null}," "]}`) },
		func(q *apiresource.Quantity, c randfill.Continue) {
			*q = apiresource.MustParse(quantities[c.Intn(len(quantities))])
		},
		func(v *intstr.IntOrString, c randfill.Continue) {
			if *v = intstr.FromInt32(int32(c.Uint32())); c.Bool() {
				*v = intstr.FromString(c.String(0))
			}
		})
}

// Whatever the document, nothing panics, and what is taken is what the type makes of it.
func FuzzTranscode(f *testing.F) {
	res := testResource("pods")
	f.Add(`{"metadata":{"name":"a","labels":{"k":"v"}},"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":"1"}}}]},"status":{}}`)
	f.Add(`{"metadata":{"name":"\u00fc","creationTimestamp":"2026-01-02T03:04:05Z","managedFields":[{"fieldsV1":{"f:a":{}}}]},"spec":null}`)
	f.Fuzz(func(t *testing.T, doc string) {
		got, ok := protobuf.Transcode(nil, []byte(doc), res.StoredType())
		if !ok || !utf8.ValidString(doc) || !json.Valid([]byte(doc)) {
			return
		}
		if obj, err := res.DecodeStored([]byte(doc)); err == nil && obj != nil && string(got) != string(generatedBytes(t, res, []byte(doc))) {
			t.Errorf("%s became %q", doc, got)
		}
	})
}
