package crd

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
)

// However many mistakes an object has, so many are looked for. What an update may keep hides none that it brings.
func TestMistakesOfAnObjectHaveABound(t *testing.T) {
	t.Parallel()
	word := apiextensions.JSONSchemaProps{Type: "string", Pattern: "^[a-z]+$"}
	keyed, keys := "map", []string{"k"}
	props := &apiextensions.JSONSchemaProps{Type: "object", Properties: map[string]apiextensions.JSONSchemaProps{
		"list": {Type: "array", Items: &apiextensions.JSONSchemaPropsOrArray{Schema: &word}},
		"map":  {Type: "object", AdditionalProperties: &apiextensions.JSONSchemaPropsOrBool{Allows: true, Schema: &word}},
		"keyed": {Type: "array", XListType: &keyed, XListMapKeys: keys, Items: &apiextensions.JSONSchemaPropsOrArray{Schema: &apiextensions.JSONSchemaProps{
			Type: "object", Required: keys, Properties: map[string]apiextensions.JSONSchemaProps{"k": {Type: "string"}, "word": word}}}},
		"word": word,
	}}
	structural, err := structuralschema.NewStructural(props)
	if err != nil {
		t.Fatal(err)
	}
	_, schema, err := schemavalidation.NewSchemaValidator(props)
	if err != nil {
		t.Fatal(err)
	}
	const many = mistakesMax + 100
	list, items, members := make([]any, many), make([]any, many), map[string]any{}
	for i := range many {
		list[i], items[i] = fmt.Sprint(i), map[string]any{"k": fmt.Sprint(i), "word": fmt.Sprint(i)}
		members[fmt.Sprint("m", i)] = fmt.Sprint(i)
	}
	for name, obj := range map[string]map[string]any{"list": {"list": list}, "map": {"map": members}, "keyed": {"keyed": items}, "all": {"list": list, "map": members, "keyed": items}} {
		if errs := schemavalidation.ValidateCustomResource(nil, obj, schemaValidator(schema)); len(errs) != mistakesMax {
			t.Errorf("%s: %d mistakes", name, len(errs))
		}
	}
	update := func(obj, old map[string]any) int {
		return len(schemavalidation.ValidateCustomResourceUpdate(nil, obj, old, schemaValidator(schema), schemavalidation.WithRatcheting(correlate(old, obj, structural))))
	}
	old := map[string]any{"list": list, "map": members, "keyed": items}
	for _, c := range []struct {
		title string
		obj   map[string]any
		want  int
	}{
		{"as before", map[string]any{"list": list, "map": members, "keyed": items}, 0},
		{"one more", map[string]any{"list": list, "map": members, "keyed": items, "word": "1"}, 1},
		{"one more item", map[string]any{"list": list, "map": members, "keyed": append(items[:many:many], map[string]any{"k": "x", "word": "1"})}, 1},
		{"a longer list", map[string]any{"list": append(list[:many:many], "1"), "map": members, "keyed": items}, mistakesMax},
	} {
		if got := update(c.obj, old); got != c.want {
			t.Errorf("%s: %d mistakes, want %d", c.title, got, c.want)
		}
	}
	if errs := schemavalidation.ValidateCustomResource(nil, old, schemaValidator(nil)); errs != nil {
		t.Errorf("without a schema: %v", errs)
	}
}

// What is left out is not taken for good: neither of an alternative whose other one has used up the bound, nor of one that must not hold. (The
// library hands its alternatives no options, so that nothing is left out there. Should it begin to, this tells.)
func TestBoundedMistakesOfAlternatives(t *testing.T) {
	t.Parallel()
	list := func(pattern string) apiextensions.JSONSchemaProps {
		word := apiextensions.JSONSchemaProps{Pattern: pattern}
		return apiextensions.JSONSchemaProps{Properties: map[string]apiextensions.JSONSchemaProps{
			"list": {Items: &apiextensions.JSONSchemaPropsOrArray{Schema: &word}}}}
	}
	whole := apiextensions.JSONSchemaProps{Type: "object", Properties: map[string]apiextensions.JSONSchemaProps{"list": {
		Type: "array", Items: &apiextensions.JSONSchemaPropsOrArray{Schema: &apiextensions.JSONSchemaProps{Type: "string"}}}}}
	small, capital, digit := list("^[a-z]$"), list("^[A-Z]$"), list("^[0-9]$")
	for title, c := range map[string]struct {
		alternatives func(*apiextensions.JSONSchemaProps)
		good         []string // which words may be in the list
	}{
		"any": {func(s *apiextensions.JSONSchemaProps) { s.AnyOf = []apiextensions.JSONSchemaProps{small, capital} }, []string{"a", "A"}},
		"one": {func(s *apiextensions.JSONSchemaProps) {
			s.OneOf = []apiextensions.JSONSchemaProps{small, capital, digit}
		}, []string{"a", "A", "1"}},
		"none": {func(s *apiextensions.JSONSchemaProps) {
			s.AnyOf, s.Not = []apiextensions.JSONSchemaProps{small, capital, digit}, &capital
		}, []string{"a", "1"}},
	} {
		props := whole
		c.alternatives(&props)
		_, schema, err := schemavalidation.NewSchemaValidator(&props)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{"a", "A", "1", "!"} {
			for _, length := range []int{1, mistakesMax + 1} {
				items := make([]any, length)
				for i := range items {
					items[i] = word
				}
				errs := schemavalidation.ValidateCustomResource(nil, map[string]any{"list": items}, schemaValidator(schema))
				switch good := slices.Contains(c.good, word); {
				case !good && len(errs) == 0:
					t.Errorf("%s: %d of %q pass", title, length, word)
				case good && len(errs) > 0:
					t.Errorf("%s: %d of %q: %v", title, length, word, errs)
				}
			}
		}
	}
}
