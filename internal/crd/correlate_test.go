package crd

import (
	"slices"
	"testing"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	celmodel "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	celcommon "k8s.io/apiserver/pkg/cel/common"
)

// A remembered schema says what the library's says, and says it of the same parts when it is asked again.
func TestRememberedSchemas(t *testing.T) {
	t.Parallel()
	text := structuralschema.Structural{Generic: structuralschema.Generic{Type: "string"}}
	keys := "map"
	item := structuralschema.Structural{Generic: structuralschema.Generic{Type: "object"}, Properties: map[string]structuralschema.Structural{"k": text, "v": text}}
	whole := &structuralschema.Structural{
		Generic: structuralschema.Generic{Type: "object"},
		Properties: map[string]structuralschema.Structural{
			"list": {Generic: structuralschema.Generic{Type: "array"}, Items: &item, Extensions: structuralschema.Extensions{XListType: &keys, XListMapKeys: []string{"k"}}},
			"map":  {Generic: structuralschema.Generic{Type: "object"}, AdditionalProperties: &structuralschema.StructuralOrBool{Structural: &text}},
			"any":  {Generic: structuralschema.Generic{Type: "object"}, AdditionalProperties: &structuralschema.StructuralOrBool{Bool: true}},
		},
	}
	nodes := 0
	var compare func(at string, ours, theirs celcommon.Schema)
	compare = func(at string, ours, theirs celcommon.Schema) {
		if (ours == nil) != (theirs == nil) {
			t.Fatalf("%s: %v, want %v", at, ours, theirs)
		}
		if ours == nil {
			return
		}
		nodes++
		if ours.Type() != theirs.Type() || ours.XListType() != theirs.XListType() || !slices.Equal(ours.XListMapKeys(), theirs.XListMapKeys()) {
			t.Errorf("%s differs", at)
		}
		compare(at+"[]", ours.Items(), theirs.Items())
		if ours.Items() != ours.Items() {
			t.Errorf("%s: other items", at)
		}
		if len(ours.Properties()) != len(theirs.Properties()) {
			t.Errorf("%s: %d properties", at, len(ours.Properties()))
		}
		for name, s := range theirs.Properties() {
			compare(at+"."+name, ours.Properties()[name], s)
			if ours.Properties()[name] != ours.Properties()[name] {
				t.Errorf("%s.%s: another one", at, name)
			}
		}
		a, b := ours.AdditionalProperties(), theirs.AdditionalProperties()
		if (a == nil) != (b == nil) {
			t.Fatalf("%s: additional properties %v, want %v", at, a, b)
		}
		if a != nil {
			if a.Allows() != b.Allows() || a != ours.AdditionalProperties() {
				t.Errorf("%s: other additional properties", at)
			}
			compare(at+"{}", a.Schema(), b.Schema())
		}
	}
	compare("", newCachedSchema(whole), &celmodel.Structural{Structural: whole})
	if nodes != 8 {
		t.Errorf("%d schemas compared", nodes)
	}

	old := map[string]any{"list": []any{map[string]any{"k": "a", "v": "1"}, map[string]any{"k": "b", "v": "2"}}}
	obj := map[string]any{"list": []any{map[string]any{"k": "b", "v": "2"}, map[string]any{"k": "a", "v": "3"}}}
	list := correlate(old, obj, whole).Key("list")
	if !list.Index(0).CachedDeepEqual() || list.Index(1).CachedDeepEqual() || !list.Index(1).Key("k").CachedDeepEqual() {
		t.Error("items are not found by their keys")
	}
}
