package validation

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/validate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/randfill"

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
		rules, _ := rulesFor(res.NewObject())
		if rules == nil {
			t.Errorf("%s of %s/%s have no rules", res.Plural, res.Group, res.Version)
			continue
		}
		if res.Subresource("status") != nil && rules.updates["status"] == nil {
			t.Errorf("the status of %s of %s/%s has no rules", res.Plural, res.Group, res.Version)
		}
	}
}

// Lists that Kubernetes compares element by element have a maximum length.
func TestQuadraticListsAreLimited(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Tolerations: make([]corev1.Toleration, maxTolerations+1)}}
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

// TestJobsWithoutCompletions: Kubernetes' rules for the success policy read spec.completions.
func TestJobsWithoutCompletions(t *testing.T) {
	indexed, indexes := batchv1.IndexedCompletion, "0-1"
	spec := batchv1.JobSpec{CompletionMode: &indexed, SuccessPolicy: &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededIndexes: &indexes}}}}
	spec.Parallelism = new(int32)
	spec.BackoffLimit = new(int32)
	job := &batchv1.Job{Spec: spec}
	cron := &batchv1.CronJob{Spec: batchv1.CronJobSpec{JobTemplate: batchv1.JobTemplateSpec{Spec: spec}}}
	for _, obj := range []runtime.Object{job, cron} {
		gv := batchv1.SchemeGroupVersion
		for _, errs := range []field.ErrorList{ValidateCreate(t.Context(), gv, obj), ValidateUpdate(t.Context(), gv, "", obj, obj)} {
			if !slices.ContainsFunc(errs, func(err *field.Error) bool {
				return err.Type == field.ErrorTypeRequired && strings.HasSuffix(err.Field, "completions")
			}) {
				t.Errorf("%T: got %v, want an error for completions", obj, errs)
			}
		}
	}
}

// Updates that kube-apiserver refuses with a diff are refused without one if the objects are long.
func TestLongDiffsAreNotMade(t *testing.T) {
	pod := func(image string, words ...string) *corev1.Pod {
		c := corev1.Container{Name: "c", Image: image, Args: append(words, make([]string, maxDiffLines)...)}
		return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{c}}}
	}
	forbidden := func(sub string, obj, old runtime.Object) bool {
		errs := ValidateUpdate(t.Context(), corev1.SchemeGroupVersion, sub, obj, old)
		return len(errs) == 1 && errs[0].Type == field.ErrorTypeForbidden && strings.HasSuffix(errs[0].Detail, tooLongToShow)
	}
	if !forbidden("", pod("i", "a"), pod("i", "b")) {
		t.Error("a Pod with other arguments was not refused")
	}
	if forbidden("", pod("i", "a"), pod("j", "a")) {
		t.Error("a Pod with another image was refused")
	}
	debug := func(words ...string) *corev1.Pod {
		c := corev1.EphemeralContainerCommon{Name: "d", Args: append(words, make([]string, maxDiffLines)...)}
		return &corev1.Pod{Spec: corev1.PodSpec{EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: c}}}}
	}
	if !forbidden("ephemeralcontainers", debug("a"), debug("b")) {
		t.Error("a changed ephemeral container was not refused")
	}
	claim := func(mode corev1.PersistentVolumeAccessMode) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{AccessModes: slices.Repeat([]corev1.PersistentVolumeAccessMode{mode}, maxDiffLines)}}
	}
	if !forbidden("", claim("a"), claim("b")) {
		t.Error("a claim with other access modes was not refused")
	}
}

// The rules of statuses and policies that depend on more than one field.
func TestStatusesAndPolicies(t *testing.T) {
	attachment := &storagev1.VolumeAttachment{}
	attachment.Status.AttachError = &storagev1.VolumeError{Message: strings.Repeat("x", 2000)}
	policy := &admissionv1.ValidatingAdmissionPolicy{}
	policy.Status.TypeChecking = &admissionv1.TypeChecking{ExpressionWarnings: []admissionv1.ExpressionWarning{{FieldRef: "a[", Warning: ""}}}
	policy.Status.Conditions = []metav1.Condition{{Type: "A", Status: "Odd", Reason: "R", LastTransitionTime: metav1.Now()}}
	nameless := &admissionv1.ValidatingAdmissionPolicy{Spec: admissionv1.ValidatingAdmissionPolicySpec{AuditAnnotations: []admissionv1.AuditAnnotation{{Key: "k", ValueExpression: "'x'"}}}}
	failure := admissionv1.FailurePolicyType("a\x00<")
	nameless.Spec.FailurePolicy = &failure
	for _, c := range []struct {
		name string
		errs field.ErrorList
		want string
	}{
		{"attachment", ValidateUpdate(t.Context(), storagev1.SchemeGroupVersion, "status", attachment, attachment), "status.attachError.message: Too long"},
		{"warning", ValidateUpdate(t.Context(), admissionv1.SchemeGroupVersion, "status", policy, policy), "expressionWarnings[0].warning: Required value"},
		{"path", ValidateUpdate(t.Context(), admissionv1.SchemeGroupVersion, "status", policy, policy), `fieldRef: Invalid value: "a[": invalid JSONPath`},
		{"condition", ValidateUpdate(t.Context(), admissionv1.SchemeGroupVersion, "status", policy, policy), "status.conditions[0].status: Unsupported value"},
		{"key", ValidateCreate(t.Context(), admissionv1.SchemeGroupVersion, nameless), `key: Invalid value: "k": requires metadata.name be non-empty`},
		{"enum", ValidateCreate(t.Context(), admissionv1.SchemeGroupVersion, nameless), `failurePolicy: Unsupported value: "a\u0000\u003c"`},
	} {
		if !slices.ContainsFunc(c.errs, func(err *field.Error) bool { return strings.Contains(err.Error(), c.want) }) {
			t.Errorf("%s: got %v, want %s", c.name, c.errs, c.want)
		}
	}
}

// The declarative rules of types that are written often are not run. This test fails if one of them has an error to report.
func TestRulesThatAreNotRunReportNothing(t *testing.T) {
	t.Parallel()
	tested := map[reflect.Type]bool{}
	for _, res := range scheme.NewRegistry().All() {
		if res.Virtual || res.StoredType() == nil {
			continue
		}
		rules, internal := rulesFor(res.NewObject())
		if rules == nil || !rules.unreported {
			continue
		}
		tested[reflect.TypeOf(internal)] = true
		ctx := withRequest(t.Context(), schema.GroupVersion{Group: res.Group, Version: res.Version}, "")
		for seed := range int64(300) {
			filler := randfill.NewWithSeed(seed).NilChance(float64(seed%5)/5).NumElements(0, 4).MaxDepth(14)
			filler.Funcs(func(raw *runtime.RawExtension, _ randfill.Continue) { raw.Raw = []byte("{}") })
			obj, old := res.NewObject(), res.NewObject()
			filler.Fill(obj)
			filler.Fill(old)
			_, before := rulesFor(old)
			_, after := rulesFor(obj)
			for _, old := range []runtime.Object{nil, before} {
				errs := declaredErrors(ctx, "", nil, after, old)
				if errs = validate.FilterEnforcedDeclarativeErrors(ctx, errs, true); len(errs) > 0 {
					t.Fatalf("%s of %s, seed %d: %v", res.Plural, res.Group, seed, errs)
				}
			}
		}
	}
	if len(tested) != 6 {
		t.Errorf("tested %v", tested)
	}
}
