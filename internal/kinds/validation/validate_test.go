package validation

import (
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"apilet/internal/scheme"
)

func BenchmarkValidateConfigMap(b *testing.B) {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Data: map[string]string{"a": "b", "c.conf": "d"}}
	b.ReportAllocs()
	for b.Loop() {
		ValidateCreate(b.Context(), corev1.SchemeGroupVersion, cm)
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
	errs := ValidateCreate(t.Context(), admissionv1.SchemeGroupVersion, policy)
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

// TestEveryTypeHasRules fails for a type whose internal type has no entry in the table, which would
// not be validated at all.
func TestEveryTypeHasRules(t *testing.T) {
	for _, res := range scheme.NewRegistry().All() {
		if res.Virtual || res.StoredType() == nil {
			continue
		}
		_, rules := rulesOf(res.NewObject())
		if rules == nil {
			t.Errorf("%s of %s/%s have no rules", res.Plural, res.Group, res.Version)
			continue
		}
		hasStatus := res.Subresource("status") != nil && !strings.HasSuffix(res.Group, "admissionregistration.k8s.io")
		if hasStatus && rules.updates["status"] == nil {
			t.Errorf("the status of %s of %s/%s has no rules", res.Plural, res.Group, res.Version)
		}
	}
}

// Lists that Kubernetes compares element by element have a maximum length.
func TestQuadraticListsAreLimited(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Tolerations: make([]corev1.Toleration, 10*maxQuadratic+1)}}
	class := &storagev1.StorageClass{AllowedTopologies: make([]corev1.TopologySelectorTerm, maxQuadratic+1)}
	node := &storagev1.CSINode{Spec: storagev1.CSINodeSpec{Drivers: make([]storagev1.CSINodeDriver, maxQuadratic+1)}}
	quota := &corev1.ResourceQuota{Spec: corev1.ResourceQuotaSpec{Scopes: make([]corev1.ResourceQuotaScope, maxQuadratic+1)}}
	selector := &corev1.ScopeSelector{MatchExpressions: make([]corev1.ScopedResourceSelectorRequirement, maxQuadratic+1)}
	selecting := &corev1.ResourceQuota{Spec: corev1.ResourceQuotaSpec{ScopeSelector: selector}}
	for _, obj := range []runtime.Object{pod, class, node, quota, selecting} {
		errs := append(ValidateCreate(t.Context(), corev1.SchemeGroupVersion, obj), ValidateUpdate(t.Context(), corev1.SchemeGroupVersion, "", obj, obj)...)
		if len(errs) != 2 || errs[0].Type != field.ErrorTypeTooMany || errs[1].Type != field.ErrorTypeTooMany {
			t.Errorf("%T: got %v, want two errors of too many items", obj, errs)
		}
	}
}
