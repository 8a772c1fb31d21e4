package fieldmanager

// This file merges an apply configuration without an owner, which is the mutation of an admission
// policy. Lists and maps are merged as in an apply. Atomic values must not be named, because the
// parts that the policy does not repeat would be lost.

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// Merge returns live merged with the fields of wanted, which has the same kind. goType is the
// struct type of the subresource's body, or o.GoType for the object itself. The maps are not
// modified, but values are shared with the result.
func (o *Manager) Merge(live, wanted map[string]any, goType reflect.Type) (map[string]any, error) {
	if longest(live) > maxApplyElements || longest(wanted) > maxApplyElements {
		return nil, errLongList
	}
	types := o.typesFor(goType)
	configuration, err := types.FromUnstructured(wanted)
	if err != nil {
		return nil, fmt.Errorf("failed to convert patch object to typed object: %w", err)
	}
	if atomics := findAtomics(nil, configuration.Schema(), configuration.TypeRef(), configuration.AsValue()); len(atomics) > 0 {
		return nil, fmt.Errorf("invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: %s", strings.Join(atomics, ", "))
	}
	object, err := types.FromUnstructured(live, typed.AllowDuplicates)
	if err != nil {
		return nil, fmt.Errorf("failed to convert original object to typed object: %w", err)
	}
	merged, err := object.Merge(configuration)
	if err != nil {
		return nil, fmt.Errorf("failed to merge patch: %w", err)
	}
	members, ok := merged.AsValue().Unstructured().(map[string]any)
	if !ok {
		return nil, errors.New("failed to convert typed object to object: the document is no object")
	}
	return members, nil
}

// typesFor returns the types for the object or the body of a subresource. It builds the former at
// the first use.
func (o *Manager) typesFor(goType reflect.Type) *typed.ParseableType {
	if goType != o.GoType {
		return typesOf(goType, nil)
	}
	o.ready()
	return o.types
}

// findAtomics returns the paths of atomic lists and maps in v.
func findAtomics(path fieldpath.Path, types *smd.Schema, at smd.TypeRef, v value.Value) (found []string) {
	atom, ok := types.Resolve(at)
	if !ok {
		return nil
	}
	if v.IsMap() && atom.Map != nil {
		if atom.Map.ElementRelationship == smd.Atomic {
			found = append(found, path.String())
		}
		v.AsMap().Iterate(func(key string, member value.Value) bool {
			if field, ok := atom.Map.FindField(key); ok {
				found = append(found, findAtomics(append(path[:len(path):len(path)], fieldpath.PathElement{FieldName: &key}), types, field.Type, member)...)
			}
			return true
		})
	}
	if v.IsList() && atom.List != nil {
		if atom.List.ElementRelationship == smd.Atomic {
			found = append(found, path.String())
		}
		for i, list := 0, v.AsList(); i < list.Length(); i++ {
			found = append(found, findAtomics(append(path[:len(path):len(path)], fieldpath.PathElement{Index: &i}), types, atom.List.ElementType, list.At(i))...)
		}
	}
	return found
}
