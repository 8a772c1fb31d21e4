package fieldmanager

// This file implements the comparison for values without a Go type. These are custom resources
// with a schema, and the parts of other objects that do not have a schema. The library validates
// the values before they are compared. If the value is not valid according to the schema, the
// comparison fails and the library is called.

import (
	"slices"
	"strconv"

	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
)

// An anyValue is a decoded JSON value, or is missing.
type anyValue struct {
	v      any
	exists bool
}

// visitAny compares a member or an element.
func (c *comparison) visitAny(kind byte, text string, t smd.TypeRef, was, is anyValue) {
	if c.failed {
		return
	}
	at := c.open(kind, text)
	c.anything(at, t, was, is)
	c.close(at, was.exists, is.exists)
}

// anything compares the values of the open node.
func (c *comparison) anything(at int, t smd.TypeRef, was, is anyValue) {
	atom, ok := c.types.Resolve(t)
	if c.failed = c.failed || !ok; c.failed {
		return
	}
	if atom, ok = onlyKind(atom, was, is); !ok {
		c.failed = true
		return
	}
	switch {
	case atom.Map != nil && atom.Map.ElementRelationship != smd.Atomic:
		c.anyMaps(at, atom.Map, was, is)
	case atom.List != nil && atom.List.ElementRelationship != smd.Atomic:
		c.anyLists(at, atom.List, was, is)
	default:
		c.check(t, was)
		c.check(t, is)
		if was.exists && is.exists && !c.equalAny(was.v, is.v) {
			c.leaf(at)
		}
	}
}

// onlyKind returns the part of atom that applies to the values. If atom allows several kinds of
// values, the actual values decide. ok is false if a value has a kind that atom does not allow,
// if the values have different kinds, and for null if atom allows several kinds.
func onlyKind(atom smd.Atom, values ...anyValue) (_ smd.Atom, ok bool) {
	several := atom.Scalar != nil && (atom.List != nil || atom.Map != nil) || atom.List != nil && atom.Map != nil
	for _, one := range values {
		if !one.exists {
			continue
		}
		switch v := one.v.(type) {
		case map[string]any:
			atom.Scalar, atom.List = nil, nil
		case []any:
			atom.Scalar, atom.Map = nil, nil
		case nil:
			if several {
				return atom, false
			}
		default:
			if atom.Map, atom.List = nil, nil; !fitsScalar(atom.Scalar, v) {
				return atom, false
			}
		}
	}
	return atom, atom.Scalar != nil || atom.List != nil || atom.Map != nil
}

func fitsScalar(scalar *smd.Scalar, v any) bool {
	if scalar == nil {
		return false
	}
	switch v.(type) {
	case string:
		return *scalar == smd.String || *scalar == smd.Untyped
	case int64, float64:
		return *scalar == smd.Numeric || *scalar == smd.Untyped
	case bool:
		return *scalar == smd.Boolean || *scalar == smd.Untyped
	}
	return false
}

func (c *comparison) anyMaps(at int, t *smd.Map, was, is anyValue) {
	old, _ := was.v.(map[string]any)
	next, _ := is.v.(map[string]any)
	if c.emptyOrLong(at, len(old), len(next), was, is) {
		return
	}
	names := make([]string, 0, max(len(old), len(next)))
	for name := range old {
		names = append(names, name)
	}
	for name := range next {
		if _, both := old[name]; !both {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		ref, known := memberType(t, name)
		if c.failed = c.failed || !known; c.failed {
			return
		}
		var a, b anyValue
		a.v, a.exists = old[name]
		b.v, b.exists = next[name]
		if c.depth == 1 && name == "managedFields" && c.nodes[at].text == "metadata" {
			continue // managedFields have no owner
		}
		c.visitAny('f', name, ref, a, b)
	}
}

// emptyOrLong checks whether both lists or maps are empty, in which case they are leaves, and
// fails if they are too long. It reports whether the caller is done.
func (c *comparison) emptyOrLong(at, lenWas, lenIs int, was, is anyValue) bool {
	if max(lenWas, lenIs) > maxApplyElements {
		c.failed = true
	}
	if lenWas == 0 && lenIs == 0 && was.exists && is.exists && (was.v == nil) != (is.v == nil) {
		c.leaf(at)
	}
	return c.failed || lenWas == 0 && lenIs == 0
}

// memberType returns the type of a map's member.
func memberType(t *smd.Map, name string) (ref smd.TypeRef, known bool) {
	if field, declared := t.FindField(name); declared {
		return field.Type, true
	}
	return t.ElementType, t.ElementType != smd.TypeRef{}
}

func (c *comparison) anyLists(at int, t *smd.List, was, is anyValue) {
	old, _ := was.v.([]any)
	next, _ := is.v.([]any)
	if c.emptyOrLong(at, len(old), len(next), was, is) {
		return
	}
	elements := make([]element, 0, len(old)+len(next))
	for i := range old {
		elements = append(elements, element{fieldNode: c.anyName(t, old[i]), was: i, is: -1})
	}
	for i := range next {
		elements = append(elements, element{fieldNode: c.anyName(t, next[i]), was: -1, is: i})
	}
	for _, e := range c.matched(elements) {
		var a, b anyValue
		if e.was >= 0 {
			a = anyValue{old[e.was], true}
		}
		if e.is >= 0 {
			b = anyValue{next[e.is], true}
		}
		c.visitAny(e.kind, e.text, t.ElementType, a, b)
	}
}

// anyName returns the path element of a list's element.
func (c *comparison) anyName(t *smd.List, v any) fieldNode {
	if len(t.Keys) == 0 {
		c.key = c.appendAnyScalar(c.key[:0], v)
		return fieldNode{kind: 'v', text: string(c.key)}
	}
	members, isMap := v.(map[string]any)
	elem, _ := c.types.Resolve(t.ElementType)
	if !isMap || elem.Map == nil {
		c.failed = true
		return fieldNode{}
	}
	c.key = append(c.key[:0], '{')
	for _, name := range slices.Sorted(slices.Values(t.Keys)) {
		part, there := members[name]
		if !there {
			field, _ := elem.Map.FindField(name)
			c.appendDefault(name, field.Default)
			continue
		}
		c.keyName(name)
		c.key = c.appendAnyScalar(c.key, part)
	}
	return c.keyNode()
}

// appendAnyScalar writes a value as paths contain it.
func (c *comparison) appendAnyScalar(out []byte, v any) []byte {
	switch v := v.(type) {
	case string:
		return c.appendString(out, v)
	case bool:
		return strconv.AppendBool(out, v)
	case int:
		return c.appendInt(out, int64(v))
	case int64:
		return c.appendInt(out, v)
	case float64: // a default in a schema
		if n := int64(v); float64(n) == v {
			return c.appendInt(out, n)
		}
	}
	c.failed = true
	return out
}

func (c *comparison) appendInt(out []byte, n int64) []byte {
	if !exact(n) {
		c.failed = true
	}
	return strconv.AppendInt(out, n, 10)
}

// check validates an atomic value as the library does. It fails if the schema lacks a field or if
// a value has the wrong type.
func (c *comparison) check(t smd.TypeRef, v anyValue) {
	if c.failed || !v.exists {
		return
	}
	atom, ok := c.types.Resolve(t)
	if ok {
		atom, ok = onlyKind(atom, v)
	}
	if !ok {
		c.failed = true
		return
	}
	switch v := v.v.(type) {
	case map[string]any:
		c.failed = len(v) > maxApplyElements
		for name, member := range v {
			ref, known := memberType(atom.Map, name)
			if c.failed = c.failed || !known; c.failed {
				return
			}
			c.check(ref, anyValue{member, true})
		}
	case []any:
		c.checkList(atom.List, v)
	}
}

func (c *comparison) checkList(t *smd.List, list []any) {
	if c.failed = len(list) > maxApplyElements; c.failed {
		return
	}
	if t.ElementRelationship == smd.Associative {
		elements := make([]element, len(list))
		for i := range list {
			elements[i] = element{fieldNode: c.anyName(t, list[i]), was: i, is: -1}
		}
		c.matched(elements)
	}
	for _, member := range list {
		c.check(t.ElementType, anyValue{member, true})
	}
}

// equalAny compares decoded JSON as the library does, so that 1 equals 1.0.
func (c *comparison) equalAny(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		other, ok := b.(map[string]any)
		if !ok || len(a) != len(other) {
			return false
		}
		for name, x := range a {
			if y, there := other[name]; !there || !c.equalAny(x, y) {
				return false
			}
		}
		return true
	case []any:
		other, ok := b.([]any)
		return ok && slices.EqualFunc(a, other, c.equalAny)
	case int64:
		if other, ok := b.(float64); ok {
			return float64(a) == other
		}
	case float64:
		if other, ok := b.(int64); ok {
			return a == float64(other)
		}
	}
	switch b.(type) {
	case map[string]any, []any:
		return false
	}
	return a == b
}
