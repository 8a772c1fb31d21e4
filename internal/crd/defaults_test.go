package crd

import (
	"encoding/json"
	"strings"
	"testing"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"apilet/internal/registry"
)

// What defaults would make of an object is known before it is made, wherever they stand.
func TestDefaultsHaveABound(t *testing.T) {
	t.Parallel()
	text := func(length int) structuralschema.Structural {
		return structuralschema.Structural{Generic: structuralschema.Generic{Type: "string", Default: structuralschema.JSON{Object: strings.Repeat("d", length)}}}
	}
	object := func(properties map[string]structuralschema.Structural, fallback any) structuralschema.Structural {
		return structuralschema.Structural{Generic: structuralschema.Generic{Type: "object", Default: structuralschema.JSON{Object: fallback}}, Properties: properties}
	}
	item := object(map[string]structuralschema.Structural{"a": text(10_000)}, nil)
	nested := structuralschema.Structural{Generic: structuralschema.Generic{Type: "array", Default: structuralschema.JSON{Object: many(100)}}, Items: &item}
	s := object(map[string]structuralschema.Structural{
		"list":   {Generic: structuralschema.Generic{Type: "array"}, Items: &item},
		"nulls":  {Generic: structuralschema.Generic{Type: "array"}, Items: new(text(10_000))},
		"map":    {Generic: structuralschema.Generic{Type: "object"}, AdditionalProperties: &structuralschema.StructuralOrBool{Structural: &item}},
		"nested": {Generic: structuralschema.Generic{Type: "array"}, Items: new(object(map[string]structuralschema.Structural{"of": nested}, nil))},
	}, nil)
	for _, c := range []struct {
		title, body string
		good        bool
	}{
		{"nothing", `{}`, true},
		{"a few", `{"list":[{}` + strings.Repeat(",{}", 900) + `],"map":{"a":{}}}`, true},
		{"a list", `{"list":[{}` + strings.Repeat(",{}", 1000) + `]}`, false},
		{"a list that has all", `{"list":[{"a":"x"}` + strings.Repeat(`,{"a":"x"}`, 1000) + `]}`, true},
		{"nulls", `{"nulls":[null` + strings.Repeat(",null", 1000) + `]}`, false},
		{"a map", `{"map":{"a":{}` + entries(1000) + `}}`, false},
		{"defaults of defaults", `{"nested":[{},{},{},{},{},{},{},{},{},{}]}`, false},
		{"fewer of them", `{"nested":[{},{},{},{},{},{},{},{}]}`, true},
	} {
		var sent map[string]any
		if err := json.Unmarshal([]byte(c.body), &sent); err != nil {
			t.Fatal(c.title, err)
		}
		before, want := runtime.DeepCopyJSON(sent), runtime.DeepCopyJSON(sent)
		defaulting.Default(want, &s)
		full, _ := json.Marshal(want)
		if good := len(full) <= registry.MaxStored; good != c.good {
			t.Fatalf("%s: %d bytes", c.title, len(full))
		}
		if err := fillDefaults(sent, &s); (err == nil) != c.good || err != nil && !apierrors.IsRequestEntityTooLargeError(err) {
			t.Errorf("%s: %v", c.title, err)
		}
		if !c.good {
			want = before
		}
		wanted, _ := json.Marshal(want)
		if got, _ := json.Marshal(sent); string(got) != string(wanted) {
			t.Errorf("%s: %.200s", c.title, got)
		}
	}
}

// many are so many empty objects.
func many(n int) (list []any) {
	for range n {
		list = append(list, map[string]any{})
	}
	return list
}

func entries(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(`,"m`)
		b.WriteString(strings.Repeat("x", i%7))
		b.WriteString(strings.Repeat("y", i/7))
		b.WriteString(`":{}`)
	}
	return b.String()
}
