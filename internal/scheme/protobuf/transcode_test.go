package protobuf

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What the server does not store like this is refused, and left to the type.
func TestTranscodingLeavesOddDocumentsToTheType(t *testing.T) {
	t.Parallel()
	pod := reflect.TypeFor[corev1.Pod]()
	for _, doc := range []string{"", "{", "[]", "null", `"x"`, "{}}", `{"metadata":{}`, `{"metadata":{},}`, `{"metadata": {}}`, `{"metadata":{},"metadata":{}}`, `{"metadata":[]}`,
		`{"metadata":{"name":7}}`, `{"metadata":{"name":"a}}`, `{"metadata":{"name":"\ud"}}`, `{"metadata":{"generation":1.5}}`, `{"metadata":{"generation":"1"}}`,
		`{"metadata":{"generation":99999999999999999999}}`, `{"metadata":{"labels":{"b":"","a":""}}}`, `{"metadata":{"labels":{"a":null}}}`, `{"metadata":{"labels":7}}`,
		`{"metadata":{"finalizers":[null]}}`, `{"metadata":{"finalizers":["a",]}}`, `{"metadata":{"creationTimestamp":"today"}}`, `{"spec":{"hostNetwork":"yes"}}`,
		`{"spec":{"hostNetwork":tru}}`, `{"spec":{"priority":3000000000}}`, `{"spec":{"containers":[{"resources":{"limits":{"cpu":"x"}}}]}}`, `{"spec":{"containers":{}}}`,
	} {
		if got, ok := Transcode([]byte("before"), []byte(doc), pod); ok || string(got) != "before" {
			t.Errorf("%s became %q", doc, got)
		}
	}
	if _, ok := Transcode(nil, []byte(`{}`), reflect.TypeFor[metav1.Table]()); ok {
		t.Error("a Table became protobuf")
	}
}

func TestQuantitiesKnownToBeCanonical(t *testing.T) {
	t.Parallel()
	known := 0
	for _, unit := range []string{"", "m", "k", "M", "G", "Ki", "Mi", "Gi", "Ti", "n", "e3", ".5", "x"} {
		for _, number := range []string{"0", "00", "1", "01", "7", "100", "999", "1000", "1024", "2000", "2048", "123456789", "999999999", "1234567890", "-1", "+1", ""} {
			text := number + unit
			if !canonical([]byte(text)) {
				continue
			}
			known++
			if q, err := apiresource.ParseQuantity(text); err != nil || q.String() != text {
				t.Errorf("%q is written %q, %v", text, q.String(), err)
			}
		}
	}
	if known < 50 {
		t.Errorf("%d are known", known)
	}
}
