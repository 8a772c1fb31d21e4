package fieldmanager

// This file builds the types of a kind for structured-merge-diff. The type of a list determines
// whether the elements can be owned separately. For example, containers are identified by name,
// but tolerations are a single value. The Go types declare it in their patchMergeKey tags. If it
// is only declared in a comment (+listType, +listMapKey, +mapType, +structType, +default), it is
// in the tables of package listtypes. For a custom resource, the schema is used.

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"apilet/internal/scheme/listtypes"
)

// typesOf returns the types for a Go type, or for the schema of a custom resource.
func typesOf(goType reflect.Type, crd map[string]any) *typed.ParseableType {
	if goType == nil && crd == nil {
		return &typed.DeducedParseableType
	}
	if goType != nil {
		common := commonTypes()
		b := &typeBuilder{seen: maps.Clone(common.seen), out: &smd.Schema{Types: slices.Clone(common.out.Types)}}
		return &typed.ParseableType{Schema: b.out, TypeRef: b.ref(goType)}
	}
	b := newTypeBuilder()
	root := b.fromSchema(crd, false)
	b.addObjectFields(root.Map, true)
	return &typed.ParseableType{Schema: b.out, TypeRef: smd.TypeRef{Inlined: root}}
}

type typeBuilder struct {
	out *smd.Schema
	// the struct types that are already added, because a type may be recursive
	seen map[reflect.Type]bool
}

func newTypeBuilder() *typeBuilder {
	return &typeBuilder{seen: map[reflect.Type]bool{}, out: &smd.Schema{Types: []smd.TypeDef{
		{Name: untypedName, Atom: untypedAtom(untypedName, smd.Atomic)},
		{Name: deducedName, Atom: untypedAtom(deducedName, smd.Separable)},
	}}}
}

// commonTypes returns a builder with the types of ObjectMeta, which are used by all built-in
// objects. The caller must not modify it.
var commonTypes = sync.OnceValue(func() *typeBuilder {
	b := newTypeBuilder()
	b.ref(reflect.TypeFor[metav1.ObjectMeta]())
	return b
})

// The names are used if the type is not declared. An untyped value is atomic. If the value is a
// map and deduced, the members are merged.
const untypedName, deducedName = "untyped", "deduced"

func untypedAtom(inner string, relation smd.ElementRelationship) smd.Atom {
	scalar, whole := smd.Untyped, untypedName
	return smd.Atom{
		Scalar: &scalar,
		List:   &smd.List{ElementType: smd.TypeRef{NamedType: &whole}, ElementRelationship: smd.Atomic},
		Map:    &smd.Map{ElementType: smd.TypeRef{NamedType: &inner}, ElementRelationship: relation},
	}
}

func namedType(name string) smd.TypeRef { return smd.TypeRef{NamedType: &name} }

func scalarType(s smd.Scalar) smd.TypeRef { return smd.TypeRef{Inlined: smd.Atom{Scalar: &s}} }

// ref returns the type of the JSON encoding of a Go type.
func (b *typeBuilder) ref(t reflect.Type) smd.TypeRef {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if described, ok := reflect.Zero(t).Interface().(interface{ OpenAPISchemaType() []string }); ok {
		if len(described.OpenAPISchemaType()) == 0 {
			return namedType(deducedName)
		}
		// times and quantities are strings, but clients may also send numbers
		return scalarType(smd.Untyped)
	}
	switch t {
	case reflect.TypeFor[runtime.RawExtension]():
		return namedType(untypedName)
	case reflect.TypeFor[metav1.FieldsV1]():
		return namedType(deducedName)
	}
	switch t.Kind() {
	case reflect.Bool:
		return scalarType(smd.Boolean)
	case reflect.String:
		return scalarType(smd.String)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return scalarType(smd.String) // base64
		}
		return smd.TypeRef{Inlined: smd.Atom{List: &smd.List{ElementType: b.ref(t.Elem()), ElementRelationship: smd.Atomic}}}
	case reflect.Map:
		return smd.TypeRef{Inlined: smd.Atom{Map: &smd.Map{ElementType: b.ref(t.Elem())}}}
	case reflect.Struct:
		b.addStruct(t)
		return namedType(goTypeName(t))
	case reflect.Interface:
		return namedType(deducedName)
	}
	return scalarType(smd.Numeric)
}

func (b *typeBuilder) addStruct(t reflect.Type) {
	if b.seen[t] {
		return
	}
	b.seen[t] = true
	fields := &smd.Map{}
	if listtypes.IsAtomic(t) {
		fields.ElementRelationship = smd.Atomic
	}
	b.addFields(fields, t)
	b.out.Types = append(b.out.Types, smd.TypeDef{Name: goTypeName(t), Atom: smd.Atom{Map: fields}})
}

func (b *typeBuilder) addFields(out *smd.Map, t reflect.Type) {
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" && f.Anonymous {
			b.addFields(out, f.Type)
		}
		if name == "" || name == "-" {
			continue
		}
		key := listtypes.TypeName(t) + "." + name
		field := smd.StructField{Name: name, Type: b.ref(f.Type), Default: listtypes.Defaults[key]}
		relate(&field.Type, cmp.Or(listtypes.Relations[key], listtypes.RelationFromTags(f.Tag)))
		if field.Default == nil && !strings.Contains(options, "omitempty") && f.Type.Comparable() && field.Type.Inlined.Scalar != nil {
			field.Default = zeroOf(f.Type)
		}
		out.Fields = append(out.Fields, field)
	}
}

// zeroOf returns the default of a member that is always encoded, because it may be a key of a
// list.
func zeroOf(t reflect.Type) any {
	switch t.Kind() {
	case reflect.String:
		return ""
	case reflect.Bool:
		return false
	case reflect.Int32, reflect.Int64:
		return 0
	}
	return nil
}

func goTypeName(t reflect.Type) string { return t.PkgPath() + "." + t.Name() }

// relate sets the type of a list or map. The relation is atomic, granular, set, or the keys of
// the list.
func relate(t *smd.TypeRef, relation string) {
	switch list, members := t.Inlined.List, t.Inlined.Map; {
	case relation == "":
	case list != nil && relation == "set":
		list.ElementRelationship = smd.Associative
	case list != nil && relation != "atomic":
		list.ElementRelationship, list.Keys = smd.Associative, strings.Split(relation, ",")
	case members != nil && relation == "atomic":
		members.ElementRelationship = smd.Atomic
	case t.NamedType != nil && relation == "granular":
		separable := smd.Separable
		t.ElementRelationship = &separable
	}
}

// fromSchema converts the schema of a custom resource. If preserve is true, unknown fields are
// allowed by a parent.
func (b *typeBuilder) fromSchema(s map[string]any, preserve bool) smd.Atom {
	preserve = preserve || s["x-kubernetes-preserve-unknown-fields"] == true
	switch s["type"] {
	case "object":
		return smd.Atom{Map: b.mapFromSchema(s, preserve)}
	case "array":
		return smd.Atom{List: b.listFromSchema(s, preserve)}
	case "boolean":
		return scalarType(smd.Boolean).Inlined
	case "integer", "number":
		return scalarType(smd.Numeric).Inlined
	case "string":
		if s["format"] == nil || s["format"] == "byte" {
			return scalarType(smd.String).Inlined
		}
		return scalarType(smd.Untyped).Inlined
	}
	return smd.Atom{Scalar: scalarType(smd.Untyped).Inlined.Scalar, List: b.listFromSchema(s, preserve), Map: b.mapFromSchema(s, preserve)}
}

func (b *typeBuilder) mapFromSchema(s map[string]any, preserve bool) *smd.Map {
	out := &smd.Map{}
	properties, _ := s["properties"].(map[string]any)
	for name, property := range properties {
		inner, _ := property.(map[string]any)
		out.Fields = append(out.Fields, smd.StructField{Name: name, Default: inner["default"],
			Type: smd.TypeRef{Inlined: b.fromSchema(inner, preserve)}})
	}
	switch additional := s["additionalProperties"].(type) {
	case map[string]any:
		out.ElementType = smd.TypeRef{Inlined: b.fromSchema(additional, preserve)}
	case bool:
		if additional {
			out.ElementType = namedType(deducedName)
		}
	default:
		if preserve || len(properties) == 0 {
			out.ElementType = namedType(deducedName)
		}
	}
	if s["x-kubernetes-map-type"] == "atomic" {
		out.ElementRelationship = smd.Atomic
	}
	if s["x-kubernetes-embedded-resource"] == true {
		b.addObjectFields(out, false)
	}
	return out
}

func (b *typeBuilder) listFromSchema(s map[string]any, preserve bool) *smd.List {
	out := &smd.List{ElementType: namedType(untypedName), ElementRelationship: smd.Atomic}
	if items, ok := s["items"].(map[string]any); ok {
		out.ElementType = smd.TypeRef{Inlined: b.fromSchema(items, preserve)}
	}
	switch s["x-kubernetes-list-type"] {
	case "set":
		out.ElementRelationship = smd.Associative
	case "map":
		out.ElementRelationship = smd.Associative
		keys, _ := s["x-kubernetes-list-map-keys"].([]any)
		for _, key := range keys {
			out.Keys = append(out.Keys, fmt.Sprint(key))
		}
	}
	return out
}

// addObjectFields adds apiVersion, kind and metadata. At the root they replace the schema's
// declarations.
func (b *typeBuilder) addObjectFields(out *smd.Map, root bool) {
	for name, t := range map[string]smd.TypeRef{
		"apiVersion": scalarType(smd.String), "kind": scalarType(smd.String), "metadata": b.ref(reflect.TypeFor[metav1.ObjectMeta]()),
	} {
		same := func(f smd.StructField) bool { return f.Name == name }
		if root {
			out.Fields = slices.DeleteFunc(out.Fields, same)
		}
		if !slices.ContainsFunc(out.Fields, same) {
			out.Fields = append(out.Fields, smd.StructField{Name: name, Type: t})
		}
	}
}
