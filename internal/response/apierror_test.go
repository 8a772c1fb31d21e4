package response_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"apilet/internal/apierror"
)

func TestAnswersNameTheFirstMistakes(t *testing.T) {
	some := func(n int) (errs field.ErrorList) {
		for i := range n {
			errs = append(errs, field.Invalid(field.NewPath("f").Index(i), i, "bad"))
		}
		return errs
	}
	status := func(errs field.ErrorList) (string, int) {
		s := apierror.Invalid(schema.GroupKind{Group: "g", Kind: "K"}, "n", errs).ErrStatus
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
	if got, causes := status(some(apierror.MaxErrors)); strings.Contains(got, "more") || causes != apierror.MaxErrors {
		t.Errorf("%d mistakes are not all named: %d", apierror.MaxErrors, causes)
	}
	if got, causes := status(some(apierror.MaxErrors + 7)); !strings.HasSuffix(got, ", and 7 more]") || causes != apierror.MaxErrors+1 {
		t.Errorf("got ...%s and %d causes", got[len(got)-60:], causes)
	}
	long := some(20)
	for _, err := range long {
		err.BadValue = strings.Repeat("v", apierror.MaxErrorText/4)
	}
	if got, _ := status(long); !strings.HasSuffix(got, ", and 16 more]") {
		t.Errorf("got ...%s", got[len(got)-60:])
	}
}

func TestJoinedErrorsReadLikeAggregates(t *testing.T) {
	if err := apierror.Join([]error{nil, nil}); err != nil {
		t.Errorf("nothing is wrong, and got %v", err)
	}
	a, b := errors.New("a"), errors.New("b")
	for _, errs := range [][]error{{a}, {nil, a, a}, {a, b, nil, a}} {
		if got, want := apierror.Join(errs).Error(), utilerrors.NewAggregate(errs).Error(); got != want {
			t.Errorf("%v: got %s, want %s", errs, got, want)
		}
	}
	var many []error
	for i := range apierror.MaxErrors + 7 {
		many = append(many, fmt.Errorf("e%d", i))
	}
	if got := apierror.Join(many).Error(); !strings.HasSuffix(got, ", e999, and 7 more]") {
		t.Errorf("got ...%s", got[len(got)-60:])
	}
}

// Go prints a rule of three characters with eighty: a list of them in one mistake made an answer of 26 MB.
func TestOneMistakeHasABound(t *testing.T) {
	err := apierror.Invalid(schema.GroupKind{Kind: "Job"}, "j", field.ErrorList{field.Invalid(field.NewPath("spec"), strings.Repeat("ä", 1<<20), "is long")})
	if said := err.ErrStatus.Message; len(said) > apierror.MaxErrorText+100 || !strings.Contains(said, "...") || !strings.HasSuffix(said, ": is long") || !utf8.ValidString(said) {
		t.Errorf("%d bytes: %.100s", len(said), said)
	}
}

func TestForeignCodesAreFinalCodesOfHTTP(t *testing.T) {
	t.Parallel()
	for code, want := range map[int]int{-1: 502, 0: 502, 99: 502, 100: 502, 101: 502, 199: 502, 200: 200, 304: 304, 418: 418, 599: 599, 600: 502, 999: 502, 1 << 40: 502} {
		if got := apierror.UpstreamCode(code); got != want {
			t.Errorf("ForeignCode(%d) = %d, want %d", code, got, want)
		}
	}
}
