package validation

import (
	"slices"
	"testing"

	batchv1beta1 "k8s.io/api/batch/v1beta1"
	flowcontrolv1beta3 "k8s.io/api/flowcontrol/v1beta3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"apilet/internal/kinds/defaults"
)

// A deprecated version gets the defaults and the rules of its successor.
func TestDeprecatedVersions(t *testing.T) {
	cron := &batchv1beta1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: batchv1beta1.CronJobSpec{Schedule: "often"}}
	defaults.Set(cron)
	if cron.Spec.ConcurrencyPolicy != batchv1beta1.AllowConcurrent || cron.Name != "c" {
		t.Errorf("got %+v", cron)
	}
	if errs := ValidateCreate(t.Context(), batchv1beta1.SchemeGroupVersion, cron); !slices.ContainsFunc(errs, func(err *field.Error) bool { return err.Field == "spec.schedule" }) {
		t.Errorf("got %v", errs)
	}
	for _, annotations := range []map[string]string{nil, {flowcontrolv1beta3.PriorityLevelPreserveZeroConcurrencySharesKey: ""}} {
		level := &flowcontrolv1beta3.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "l", Annotations: annotations}}
		level.Spec.Type = flowcontrolv1beta3.PriorityLevelEnablementLimited
		level.Spec.Limited = &flowcontrolv1beta3.LimitedPriorityLevelConfiguration{LimitResponse: flowcontrolv1beta3.LimitResponse{Type: "Reject"}}
		defaults.Set(level)
		defaults.Set(level)
		want := int32(30)
		if annotations != nil {
			want = 0
		}
		if got := level.Spec.Limited.NominalConcurrencyShares; got != want || len(level.Annotations) != len(annotations) {
			t.Errorf("%d shares, want %d; %v", got, want, level.Annotations)
		}
		if errs := ValidateCreate(t.Context(), flowcontrolv1beta3.SchemeGroupVersion, level); len(errs) > 0 {
			t.Error(errs)
		}
	}
}
