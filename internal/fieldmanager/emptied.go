package fieldmanager

// This file restores containers that are empty after an apply. When a manager no longer applies
// the last field of a map, structured-merge-diff 6.3.3 and later replace the map by null, even if
// the configuration or another manager still names the map itself:
//
//	manager m applies    {n: {x: 1}}    and then    {n: {}}
//	the library returns  {n: null}      with f:n in the entry of m
//	kube-apiserver 1.36  {n: {}}        with f:n in the entry of m
//
// A null would be lost or rejected, so the map is restored before the result becomes an object.
// If there is a null in the configuration, it is not replaced in a custom resource, and the
// schema decides whether it is valid. A Go type does not support null, so the map is also
// restored.

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// An applyShape is used for a single apply. It remembers both sides of the merge.
type applyShape struct {
	objectShape
	live, wanted map[string]any
}

// ObjectToTyped stores the live object. It is the first object for which duplicates are allowed.
func (s *applyShape) ObjectToTyped(obj runtime.Object, options ...typed.ValidationOptions) (*typed.TypedValue, error) {
	doc, err := s.objectShape.ObjectToTyped(obj, options...)
	if err == nil && len(options) > 0 && s.live == nil {
		s.live, _ = doc.AsValue().Unstructured().(map[string]any)
	}
	return doc, err
}

// TypedToObject restores emptied containers in the version of the request. The library also converts
// documents of other versions, only to compare them.
func (s *applyShape) TypedToObject(doc *typed.TypedValue) (runtime.Object, error) {
	members, ok := doc.AsValue().Unstructured().(map[string]any)
	if ok && members["apiVersion"] == s.Kind.GroupVersion().String() {
		(&restorer{types: s.types.Schema, keepNulls: s.GoType == nil}).restore(s.types.TypeRef, members, s.wanted, s.live)
	}
	return s.objectShape.TypedToObject(doc)
}

type restorer struct {
	types     *smd.Schema
	keepNulls bool // keep the nulls of the configuration
}

// restore replaces a null in merged by an empty map or list if the configuration or the live
// object has one in the same place.
func (r *restorer) restore(at smd.TypeRef, merged, wanted, live any) {
	atom, ok := r.types.Resolve(at)
	if !ok {
		return
	}
	switch merged := merged.(type) {
	case map[string]any:
		if atom.Map == nil || atom.Map.ElementRelationship == smd.Atomic {
			return
		}
		was, asked := membersOf(live), membersOf(wanted)
		for name, member := range merged {
			given, named := asked[name]
			if member != nil {
				ref, _ := memberType(atom.Map, name)
				r.restore(ref, member, given, was[name])
			} else if empty := emptyLike(given, was[name]); empty != nil && (!named || given != nil || !r.keepNulls) {
				merged[name] = empty
			}
		}
	case []any:
		if atom.List == nil || atom.List.ElementRelationship != smd.Associative || len(atom.List.Keys) == 0 {
			return
		}
		was, asked := r.itemsByKey(atom.List, live), r.itemsByKey(atom.List, wanted)
		for _, item := range merged {
			key := r.itemKey(atom.List, item)
			r.restore(atom.List.ElementType, item, asked[key], was[key])
		}
	}
}

// emptyLike searches the values for the first map or list. It returns an empty map or an empty list
// accordingly, or nil if there is no map or list.
func emptyLike(values ...any) any {
	for _, v := range values {
		switch v.(type) {
		case map[string]any:
			return map[string]any{}
		case []any:
			return []any{}
		}
	}
	return nil
}

func (r *restorer) itemsByKey(list *smd.List, items any) map[string]any {
	found := map[string]any{}
	elements, _ := items.([]any)
	for _, item := range elements {
		found[r.itemKey(list, item)] = item
	}
	return found
}

// itemKey returns the keys of the item as a string, including the default values.
func (r *restorer) itemKey(list *smd.List, item any) string {
	element, _ := r.types.Resolve(list.ElementType)
	var key []any
	for _, name := range list.Keys {
		v, found := membersOf(item)[name]
		if !found && element.Map != nil {
			field, _ := element.Map.FindField(name)
			v = field.Default
		}
		key = append(key, v)
	}
	return fmt.Sprintf("%#v", key)
}
