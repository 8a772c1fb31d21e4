package scheme

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestAnswersNameTheFirstMistakes(t *testing.T) {
	some := func(n int) (errs field.ErrorList) {
		for i := range n {
			errs = append(errs, field.Invalid(field.NewPath("f").Index(i), i, "bad"))
		}
		return errs
	}
	status := func(errs field.ErrorList) (string, int) {
		s := Invalid(schema.GroupKind{Group: "g", Kind: "K"}, "n", errs).ErrStatus
		return s.Message, len(s.Details.Causes)
	}
	for _, c := range []struct {
		errs   field.ErrorList
		want   string
		causes int
	}{
		{nil, `K.g "n" is invalid`, 0},
		{some(1), `K.g "n" is invalid: f[0]: Invalid value: 0: bad`, 1},
		{append(some(1), some(2)...), `K.g "n" is invalid: [f[0]: Invalid value: 0: bad, f[1]: Invalid value: 1: bad]`, 3},
	} {
		if got, causes := status(c.errs); got != c.want || causes != c.causes {
			t.Errorf("got %s with %d causes, want %s with %d", got, causes, c.want, c.causes)
		}
	}
	if got, causes := status(some(MaxErrors)); strings.Contains(got, "more") || causes != MaxErrors {
		t.Errorf("%d mistakes are not all named: %d", MaxErrors, causes)
	}
	if got, causes := status(some(MaxErrors + 7)); !strings.HasSuffix(got, ", and 7 more]") || causes != MaxErrors+1 {
		t.Errorf("got ...%s and %d causes", got[len(got)-60:], causes)
	}
	long := some(20)
	for _, err := range long {
		err.BadValue = strings.Repeat("v", maxErrorText/4)
	}
	if got, _ := status(long); !strings.HasSuffix(got, ", and 16 more]") {
		t.Errorf("got ...%s", got[len(got)-60:])
	}
}
