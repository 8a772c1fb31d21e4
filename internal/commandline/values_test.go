package commandline

import (
	"errors"
	"slices"
	"testing"
)

func TestListsHaveNoEmptyElement(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{"": nil, "a": {"a"}, "a,b": {"a", "b"}, `"a{1,2}",b`: {"a{1,2}", "b"}, " a": {" a"}} {
		if got, err := SplitList(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("SplitList(%q) = %q, %v, want %q", text, got, err, want)
		}
	}
	for _, text := range []string{",", "a,", ",a", "a,,b", "a, ", " ", `""`, `a,""`} {
		if got, err := SplitList(text); !errors.Is(err, ErrEmptyElement) {
			t.Errorf("SplitList(%q) = %q, %v, want %v", text, got, err, ErrEmptyElement)
		}
	}
	for _, text := range []string{"a\nb", `a"b`, `"a`} {
		if got, err := SplitList(text); err == nil {
			t.Errorf("SplitList(%q) = %q, want an error", text, got)
		}
	}
}
