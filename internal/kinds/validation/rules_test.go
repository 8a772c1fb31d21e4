package validation

import (
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// A body of three megabytes has room for a million mistakes.
func TestMistakesAreNotAllKept(t *testing.T) {
	const made = 25 * mistakesKept / 10
	var c Checker
	for i := range made {
		c.Invalid(field.NewPath("spec", "ports").Index(i), "name", strconv.Itoa(i), "is wrong")
	}
	kept := map[*field.Error]bool{}
	for _, err := range c.Errs {
		kept[err] = true
	}
	if len(c.Errs) != made || len(kept) != mistakesKept {
		t.Errorf("of %d mistakes %d are counted and %d are kept, want all and %d", made, len(c.Errs), len(kept), mistakesKept)
	}
	if first := c.Errs[mistakesKept-1].BadValue; first != strconv.Itoa(mistakesKept-1) {
		t.Errorf("the last one kept is that of %v", first)
	}
}
