package validation

import (
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func BenchmarkValidateConfigMap(b *testing.B) {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Data: map[string]string{"a": "b", "c.conf": "d"}}
	b.ReportAllocs()
	for b.Loop() {
		ValidateCreate(cm)
	}
}

// A mistake in a long expression takes the compiler a square of its length to draw. What an answer has no room for is not compiled.
func TestMistakesOfPoliciesHaveABound(t *testing.T) {
	const n = 40
	expression := strings.Repeat("'", 14_000)
	policy := &admissionv1.ValidatingAdmissionPolicy{}
	for range n {
		policy.Spec.Validations = append(policy.Spec.Validations, admissionv1.Validation{Expression: expression})
	}
	errs := ValidateCreate(policy)
	compiled := 0
	for _, err := range errs {
		if strings.HasPrefix(err.Detail, "compilation failed") {
			compiled++
		}
	}
	if compiled < 2 || compiled >= n || len(errs) < n {
		t.Errorf("%d of %d validations were compiled, %d mistakes", compiled, n, len(errs))
	}
}
