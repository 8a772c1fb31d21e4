package kinds_test

import (
	"encoding/json"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"apilet/internal/kinds/defaults"
)

// A null in a Secret's data is an empty value by the time that anybody reads it.
func TestNullsInDataAreEmptyValues(t *testing.T) {
	for _, obj := range []runtime.Object{&corev1.Secret{}, &corev1.ConfigMap{}} {
		sent := `{"data":{"k":null},"binaryData":{"k":null}}`
		if err := json.Unmarshal([]byte(sent), obj); err != nil {
			t.Fatal(err)
		}
		defaults.Set(obj)
		var got struct{ Data, BinaryData map[string]*string }
		text, err := json.Marshal(obj)
		if err == nil {
			err = json.Unmarshal(text, &got)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, data := range []map[string]*string{got.Data, got.BinaryData} {
			if value, sent := data["k"]; sent && (value == nil || *value != "") {
				t.Errorf("%T: %s", obj, text)
			}
		}
		if got.Data == nil {
			t.Errorf("%T has no data: %s", obj, text)
		}
	}
}

// An annotation that stands for a field of earlier versions may be invalid. Objects from other servers are not checked before.
func TestObjectsThatCannotBeConvertedGetDefaults(t *testing.T) {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{appsv1.DeprecatedRollbackTo: "no number"}}}
	defaults.Set(d)
	if d.Spec.Replicas == nil || d.Annotations[appsv1.DeprecatedRollbackTo] != "no number" {
		t.Errorf("got %+v", d)
	}
}
