package crd

import (
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Each descent of a path visits all that is below all that was found, each union doubles it: such a cell took seconds, or for ever.
func TestColumnsHaveABound(t *testing.T) {
	deep := any("bottom")
	for range 900 {
		deep = map[string]any{"a": deep}
	}
	for name, c := range map[string]struct {
		path   string
		object map[string]any
		want   any
	}{
		"an ordinary path":      {".spec.size", map[string]any{"spec": map[string]any{"size": "small"}}, "small"},
		"a descent":             {"..size", map[string]any{"spec": map[string]any{"size": "small"}}, "small"},
		"two descents":          {"..spec..size", map[string]any{"spec": map[string]any{"size": "small"}}, "small"},
		"a union":               {".l[0,1]", map[string]any{"l": []any{"a", "b"}}, "a"},
		"a deep object":         {"..bottom", map[string]any{"spec": deep, "bottom": "x"}, "x"},
		"six descents, deep":    {strings.Repeat("..a", 6), map[string]any{"spec": deep}, nil},
		"unions of unions":      {".l" + strings.Repeat("[0,0]", 40), map[string]any{"l": []any{"a"}}, nil},
		"many, and one descent": {"..l" + strings.Repeat("[0,0,0]", 20), map[string]any{"l": []any{"a"}}, nil},
	} {
		columns := compileColumns([]apiextensionsv1.CustomResourceColumnDefinition{{Name: "C", Type: "string", JSONPath: c.path}})
		if len(columns) != 2 {
			t.Errorf("%s: %q is no path", name, c.path)
			continue
		}
		if got := columns[1].cell(&unstructured.Unstructured{Object: c.object}, time.Now()); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
