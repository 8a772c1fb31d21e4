package defaults

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/apitest/kubetest"
	"apilet/internal/scheme"
)

// BenchmarkVet is what a write pays to be read back for certain: the look through its bytes, beside decoding them.
func BenchmarkVet(b *testing.B) {
	res := scheme.NewRegistry().Lookup("", "v1", "pods")
	var pod corev1.Pod
	if err := json.Unmarshal([]byte(kubetest.PodOf("p", "")), &pod); err != nil {
		b.Fatal(err)
	}
	Set(&pod)
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
			res.Vet(stored)
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.SetBytes(int64(len(stored)))
		for b.Loop() {
			_, _ = res.DecodeStored(stored)
		}
	})
}
