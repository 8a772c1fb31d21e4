package fieldmanager

// This file compares the old and the new state of an object and marks the fields that a write
// sets or removes.
//
// Both objects are walked once in parallel along the schema. The library does the same after the
// objects are converted to maps:
//
//	value is in         marked fields
//	one object          the value and everything in it, down to atomic values
//	both, as a leaf     the value, if it differs: scalars, atomic lists, maps and structs, an empty list or map against null
//	both, otherwise     its contents: members by name, elements of a list by their keys or values, in any order
//
// A Go value is compared as the JSON that it is encoded to. omitempty and omitzero omit a member,
// and a nil pointer, list or map is null. If a type implements json.Marshaler, the encoded values
// are compared (times, quantities). The plan is built only once for a type. The walk fails
// (failed) if the library might return a different result: for duplicate elements, names that
// JSON encoders escape, and lists longer than maxApplyElements.

import (
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// A comparison is a parallel walk along two objects.
type comparison struct {
	types  *smd.Schema
	nodes  difference
	depth  int
	failed bool
	key    []byte // scratch
}

// comparisons pools comparisons, because most writes mark only a few dozen nodes.
var comparisons = sync.Pool{New: func() any { return &comparison{nodes: make(difference, 0, 64)} }}

const maxKeptNodes = 1024 // Comparisons with more nodes are not returned to the pool.

func (c *comparison) release() {
	if cap(c.nodes) > maxKeptNodes {
		return
	}
	clear(c.nodes[:cap(c.nodes)])
	*c = comparison{nodes: c.nodes[:0], key: c.key[:0]}
	comparisons.Put(c)
}

// open starts the node of a member or an element. close must be called at the end, and removes
// the node if there is no difference.
func (c *comparison) open(kind byte, text string) (at int) {
	c.nodes = append(c.nodes, diffNode{fieldNode: fieldNode{kind: kind, text: text}})
	c.depth++
	if kind == 'f' && !writtenAsIs(text) {
		c.failed = true
	}
	return len(c.nodes) - 1
}

func (c *comparison) close(at int, was, is bool) {
	c.depth--
	switch {
	case !was:
		c.nodes[at].change = written
	case !is:
		c.nodes[at].change = removed
	}
	if c.nodes[at].change == unchanged && len(c.nodes) == at+1 {
		c.nodes = c.nodes[:at]
		return
	}
	c.nodes[at].end = int32(len(c.nodes))
}

// leaf marks the open node as changed. The object itself is never marked.
func (c *comparison) leaf(at int) {
	if at >= 0 {
		c.nodes[at].change = written
	}
}

// ---- plans

// A plan describes how to compare the values of a Go type.
type plan struct {
	form       form
	whole      bool // owned as a whole (atomic)
	t          reflect.Type
	ref        smd.TypeRef
	marshals   *value.TypeReflectCacheEntry
	comparable bool        // equal values are equal by Go's ==
	lists      bool        // may contain lists or maps, so the length must be checked
	fields     []planField // of a struct, by name
	elem       *plan       // of a list or map
	keys       []planKey   // the keys to identify the elements of a list
}

type form uint8

const (
	formUnknown  form = iota // values of this type cannot be compared
	formScalar               // string, bool, int, float
	formBytes                // base64
	formMarshals             // has its own JSON encoding
	formStruct
	formMap
	formList
)

type planField struct {
	name      string
	index     []int
	omitEmpty bool
	omitZero  func(reflect.Value) bool
	plan      *plan
}

type planKey struct {
	name  string
	field *planField // nil if the elements lack the field
	def   any
}

// A planner makes plans. If the type is recursive, the plan is still made only once.
type planner struct {
	types *smd.Schema
	made  map[plannedType]*plan
}

type plannedType struct {
	t        reflect.Type
	name     string
	relation smd.ElementRelationship
}

// commonPlans returns a new map with the plans for ObjectMeta and the nested types. The plans are
// shared by all kinds and must not be modified.
func commonPlans() map[plannedType]*plan { return maps.Clone(objectMetaPlans()) }

var objectMetaPlans = sync.OnceValue(func() map[plannedType]*plan {
	t := reflect.TypeFor[metav1.ObjectMeta]()
	planner := planner{types: commonTypes().out, made: map[plannedType]*plan{}}
	planner.plan(t, namedType(goTypeName(t)))
	return planner.made
})

func (pl *planner) plan(t reflect.Type, ref smd.TypeRef) *plan {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	p := &plan{t: t, ref: ref}
	if ref.NamedType != nil {
		at := plannedType{t: t, name: *ref.NamedType}
		if ref.ElementRelationship != nil {
			at.relation = *ref.ElementRelationship
		}
		if known := pl.made[at]; known != nil {
			return known
		}
		pl.made[at] = p
	}
	atom, ok := pl.types.Resolve(ref)
	if !ok {
		return p
	}
	p.lists = true // the default, in case the type is recursive
	pl.fill(p, atom)
	return p
}

// fill sets the form of a plan. A Go type that does not match the schema has an unknown form.
func (pl *planner) fill(p *plan, atom smd.Atom) {
	scalar := atom.Scalar != nil && atom.Map == nil && atom.List == nil
	if entry := value.TypeReflectEntryOf(p.t); entry.CanConvertToUnstructured() {
		p.form, p.marshals, p.comparable, p.lists, p.whole = formMarshals, entry, p.t.Comparable(), !scalar, scalar
		return
	}
	switch kind := p.t.Kind(); {
	case scalar && (kind == reflect.String || kind == reflect.Bool || kind >= reflect.Int && kind <= reflect.Int64 || kind == reflect.Float32 || kind == reflect.Float64):
		p.form, p.lists, p.whole = formScalar, false, true
	case scalar && kind == reflect.Slice && p.t.Elem().Kind() == reflect.Uint8:
		p.form, p.lists, p.whole = formBytes, false, true
	case scalar || atom.Scalar != nil:
	case kind == reflect.Struct && atom.Map != nil && atom.List == nil:
		p.form, p.whole = formStruct, atom.Map.ElementRelationship == smd.Atomic
		p.fields = pl.fields(p.t, atom.Map, nil)
		slices.SortFunc(p.fields, func(a, b planField) int { return strings.Compare(a.name, b.name) })
		p.lists = slices.ContainsFunc(p.fields, func(f planField) bool { return f.plan.lists })
	case kind == reflect.Map && p.t.Key().Kind() == reflect.String && atom.Map != nil && atom.List == nil && len(atom.Map.Fields) == 0:
		p.form, p.whole, p.elem = formMap, atom.Map.ElementRelationship == smd.Atomic, pl.plan(p.t.Elem(), atom.Map.ElementType)
	case kind == reflect.Slice && atom.List != nil && atom.Map == nil:
		p.form, p.whole, p.elem = formList, atom.List.ElementRelationship == smd.Atomic, pl.plan(p.t.Elem(), atom.List.ElementType)
		pl.keys(p, atom.List.Keys)
	}
}

// fields returns the fields of a struct, including embedded structs. Fields that the schema lacks
// have an unknown form.
func (pl *planner) fields(t reflect.Type, atom *smd.Map, path []int) (fields []planField) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		index := append(slices.Clone(path), i)
		switch {
		case name == "-":
			continue
		case name == "" && f.Anonymous && f.Type.Kind() == reflect.Struct:
			fields = append(fields, pl.fields(f.Type, atom, index)...)
			continue
		case name == "":
			name = f.Name
		}
		field := planField{name: name, index: index, plan: &plan{t: f.Type, lists: true}}
		for option := range strings.SplitSeq(options, ",") {
			field.omitEmpty = field.omitEmpty || option == "omitempty"
			if option == "omitzero" {
				field.omitZero = value.OmitZeroFunc(f.Type)
			}
		}
		if declared, known := atom.FindField(name); known && f.IsExported() {
			field.plan = pl.plan(f.Type, declared.Type)
		}
		fields = append(fields, field)
	}
	return fields
}

// keys sets the keys of the list.
func (pl *planner) keys(p *plan, names []string) {
	if len(names) > 0 && p.elem.form != formStruct { // or its plan is not complete yet
		p.form = formUnknown
		return
	}
	elem, _ := pl.types.Resolve(p.elem.ref)
	for _, name := range slices.Sorted(slices.Values(names)) {
		key := planKey{name: name}
		if declared, known := elem.Map.FindField(name); known {
			key.def = declared.Default
		}
		for i := range p.elem.fields {
			if p.elem.fields[i].name == name {
				key.field = &p.elem.fields[i]
			}
		}
		p.keys = append(p.keys, key)
	}
}

// of returns the field of a struct, or the zero Value if the JSON omits it.
func (f *planField) of(v reflect.Value) reflect.Value {
	if !v.IsValid() {
		return v
	}
	for _, i := range f.index {
		v = v.Field(i)
	}
	if f.omitEmpty && isEmpty(v) || f.omitZero != nil && f.omitZero(v) {
		return reflect.Value{}
	}
	return v
}

// isEmpty reports whether omitempty omits v.
func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Array, reflect.String, reflect.Map, reflect.Slice:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}

// ---- the walk along values of Go types

// visit compares a member or an element. A missing value is invalid.
func (c *comparison) visit(kind byte, text string, p *plan, was, is reflect.Value) {
	if c.failed {
		return
	}
	at := c.open(kind, text)
	c.values(at, p, was, is)
	c.close(at, was.IsValid(), is.IsValid())
}

// values compares the values of the open node.
func (c *comparison) values(at int, p *plan, was, is reflect.Value) {
	was, is = pointedTo(was), pointedTo(is)
	switch {
	case p.form == formUnknown:
		c.failed = true
	case p.form == formMarshals && !p.whole:
		c.anything(at, p.ref, c.anyOf(p, was), c.anyOf(p, is))
	case p.whole || isNull(was) && isNull(is):
		c.wholes(at, p, was, is)
	case p.form == formStruct:
		c.structs(at, p, was, is)
	case p.form == formMap:
		c.maps(at, p, was, is)
	case p.form == formList:
		c.lists(at, p, was, is)
	}
}

// pointedTo follows pointers. It returns nil pointers unchanged.
func pointedTo(v reflect.Value) reflect.Value {
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	return v
}

// isNull reports whether a valid value is encoded as null.
func isNull(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice:
		return v.IsNil()
	}
	return false
}

// wholes compares a leaf.
func (c *comparison) wholes(at int, p *plan, was, is reflect.Value) {
	if was.IsValid() && is.IsValid() && c.equal(p, was, is) {
		return
	}
	c.bound(p, was)
	c.bound(p, is)
	if was.IsValid() && is.IsValid() {
		c.leaf(at)
	}
}

// structs compares two structs member by member. Members that omitempty or omitzero omits are
// missing. If all members of both structs are missing, the encoded values are {} or null. In this
// case, the struct itself is marked as changed if one is {} and the other is null.
func (c *comparison) structs(at int, p *plan, was, is reflect.Value) {
	nullWas, nullIs := isNull(was), isNull(is)
	if nullWas {
		was = reflect.Value{}
	}
	if nullIs {
		is = reflect.Value{}
	}
	empty := true
	for i := range p.fields {
		f := &p.fields[i]
		a, b := f.of(was), f.of(is)
		if !a.IsValid() && !b.IsValid() {
			continue
		}
		empty = false
		if c.depth == 1 && f.name == "managedFields" && c.nodes[at].text == "metadata" {
			continue // managedFields have no owner
		}
		c.visit('f', f.name, f.plan, a, b)
	}
	if empty && (was.IsValid() && nullIs || nullWas && is.IsValid()) {
		c.leaf(at)
	}
}

// isDecided checks whether the collections are too long, empty or equal. It reports whether the
// elements need not be compared.
func (c *comparison) isDecided(at int, p *plan, was, is reflect.Value, lenWas, lenIs int) bool {
	both := was.IsValid() && is.IsValid()
	switch {
	case lenWas > maxApplyElements || lenIs > maxApplyElements:
		c.failed = true
		return true
	case lenWas == 0 && lenIs == 0:
		if both && isNull(was) != isNull(is) {
			c.leaf(at)
		}
		return true
	}
	return both && c.equal(p, was, is)
}

// maps compares two maps member by member, sorted by name.
func (c *comparison) maps(at int, p *plan, was, is reflect.Value) {
	lenWas, lenIs := lengthOf(was), lengthOf(is)
	if c.isDecided(at, p, was, is, lenWas, lenIs) {
		return
	}
	names := make([]string, 0, lenWas+lenIs)
	key := reflect.New(p.t.Key()).Elem() // reused for all members to avoid an allocation for each
	if lenWas > 0 {
		for iter := was.MapRange(); iter.Next(); {
			key.SetIterKey(iter)
			names = append(names, key.String())
		}
	}
	if lenIs > 0 {
		for iter := is.MapRange(); iter.Next(); {
			if key.SetIterKey(iter); lenWas == 0 || !was.MapIndex(key).IsValid() {
				names = append(names, key.String())
			}
		}
	}
	slices.Sort(names)
	for _, name := range names {
		key.SetString(name)
		var a, b reflect.Value
		if lenWas > 0 {
			a = was.MapIndex(key)
		}
		if lenIs > 0 {
			b = is.MapIndex(key)
		}
		c.visit('f', name, p.elem, a, b)
	}
}

// lengthOf returns 0 for null and for missing values.
func lengthOf(v reflect.Value) int {
	if !v.IsValid() || isNull(v) {
		return 0
	}
	return v.Len()
}

// An element is in the old list, in the new list, or in both.
type element struct {
	fieldNode
	was, is int // index, or -1 if it is missing
}

// lists compares two lists element by element. The elements are matched by the keys, or by the
// values in a set.
func (c *comparison) lists(at int, p *plan, was, is reflect.Value) {
	lenWas, lenIs := lengthOf(was), lengthOf(is)
	if c.isDecided(at, p, was, is, lenWas, lenIs) {
		return
	}
	elements := make([]element, 0, lenWas+lenIs)
	for i := range lenWas {
		elements = append(elements, element{fieldNode: c.nameOf(p, was.Index(i)), was: i, is: -1})
	}
	for i := range lenIs {
		elements = append(elements, element{fieldNode: c.nameOf(p, is.Index(i)), was: -1, is: i})
	}
	for _, e := range c.matched(elements) {
		var a, b reflect.Value
		if e.was >= 0 {
			a = was.Index(e.was)
		}
		if e.is >= 0 {
			b = is.Index(e.is)
		}
		c.visit(e.kind, e.text, p.elem, a, b)
	}
}

// matched sorts the elements and merges each pair of matching elements from both sides. It fails
// if one side contains an element twice.
func (c *comparison) matched(elements []element) []element {
	if c.failed {
		return nil
	}
	slices.SortStableFunc(elements, func(a, b element) int { return compareNodes(&a.fieldNode, &b.fieldNode) })
	out := elements[:0]
	for _, e := range elements {
		if n := len(out) - 1; n < 0 || compareNodes(&out[n].fieldNode, &e.fieldNode) != 0 {
			out = append(out, e)
		} else if out[n].is < 0 && e.was < 0 {
			out[n].is = e.is
		} else {
			c.failed = true
		}
	}
	return out
}

// nameOf returns the path element of a list's element.
func (c *comparison) nameOf(p *plan, v reflect.Value) fieldNode {
	v = pointedTo(v)
	if len(p.keys) == 0 {
		c.key = c.appendScalar(c.key[:0], p.elem, v)
		return fieldNode{kind: 'v', text: string(c.key)}
	}
	if p.elem.form != formStruct || isNull(v) {
		c.failed = true
		return fieldNode{}
	}
	c.key = append(c.key[:0], '{')
	for i := range p.keys {
		k := &p.keys[i]
		var part reflect.Value
		if k.field != nil {
			part = k.field.of(v)
		}
		if !part.IsValid() {
			c.appendDefault(k.name, k.def)
			continue
		}
		c.keyName(k.name)
		c.key = c.appendScalar(c.key, k.field.plan, pointedTo(part))
	}
	return c.keyNode()
}

func (c *comparison) keyName(name string) {
	if len(c.key) > 1 {
		c.key = append(c.key, ',')
	}
	c.key = append(append(append(c.key, `\"`...), name...), `\":`...)
}

// keyNode completes a key. It fails if the element has no keys.
func (c *comparison) keyNode() fieldNode {
	if len(c.key) == 1 {
		c.failed = true
	}
	c.key = append(c.key, '}')
	return fieldNode{kind: 'k', text: string(c.key)}
}

// appendDefault appends the default value if the key is omitted. Without a default the key is
// omitted.
func (c *comparison) appendDefault(name string, def any) {
	if def != nil {
		c.keyName(name)
		c.key = c.appendAnyScalar(c.key, def)
	}
}

// appendScalar writes a value as paths contain it.
func (c *comparison) appendScalar(out []byte, p *plan, v reflect.Value) []byte {
	switch kind := v.Kind(); {
	case p.form != formScalar:
	case kind == reflect.String:
		return c.appendString(out, v.String())
	case kind == reflect.Bool:
		return strconv.AppendBool(out, v.Bool())
	case v.CanInt() && exact(v.Int()):
		return strconv.AppendInt(out, v.Int(), 10)
	}
	c.failed = true
	return out
}

func (c *comparison) appendString(out []byte, text string) []byte {
	if !writtenAsIs(text) {
		c.failed = true
	}
	return append(append(append(out, `\"`...), text...), `\"`...)
}

// ---- values that are owned whole

// equal reports whether two values are encoded to the same JSON. If they are equal, it has
// checked the lengths of all lists and maps.
func (c *comparison) equal(p *plan, a, b reflect.Value) bool {
	a, b = pointedTo(a), pointedTo(b)
	if nullA, nullB := isNull(a), isNull(b); nullA || nullB {
		return nullA && nullB
	}
	switch p.form {
	case formScalar:
		switch a.Kind() {
		case reflect.String:
			return a.String() == b.String()
		case reflect.Bool:
			return a.Bool() == b.Bool()
		case reflect.Float32, reflect.Float64:
			return a.Float() == b.Float()
		}
		return a.Int() == b.Int()
	case formBytes:
		return string(a.Bytes()) == string(b.Bytes())
	case formMarshals:
		return p.comparable && a.Equal(b) || c.equalAny(c.anyOf(p, a).v, c.anyOf(p, b).v)
	case formStruct:
		for i := range p.fields {
			f := &p.fields[i]
			x, y := f.of(a), f.of(b)
			if x.IsValid() != y.IsValid() || x.IsValid() && !c.equal(f.plan, x, y) {
				return false
			}
		}
		return true
	case formList:
		return c.equalLists(p, a, b)
	case formMap:
		return c.equalMaps(p, a, b)
	}
	c.failed = true
	return true
}

func (c *comparison) equalLists(p *plan, a, b reflect.Value) bool {
	if a.Len() != b.Len() {
		return false
	}
	c.count(a)
	for i := range a.Len() {
		if !c.equal(p.elem, a.Index(i), b.Index(i)) {
			return false
		}
	}
	return true
}

func (c *comparison) equalMaps(p *plan, a, b reflect.Value) bool {
	if a.Len() != b.Len() {
		return false
	}
	c.count(a)
	switch m := a.Interface().(type) {
	case map[string]string:
		return maps.Equal(m, b.Interface().(map[string]string))
	case corev1.ResourceList:
		if maps.Equal(m, b.Interface().(corev1.ResourceList)) {
			return true
		}
	}
	for iter := a.MapRange(); iter.Next(); {
		if y := b.MapIndex(iter.Key()); !y.IsValid() || !c.equal(p.elem, iter.Value(), y) {
			return false
		}
	}
	return true
}

// bound fails if v contains a list or map that is too long.
func (c *comparison) bound(p *plan, v reflect.Value) {
	if v = pointedTo(v); !p.lists || !v.IsValid() || isNull(v) {
		return
	}
	switch p.form {
	case formStruct:
		for i := range p.fields {
			c.bound(p.fields[i].plan, p.fields[i].of(v))
		}
	case formList:
		if c.count(v); p.elem.lists {
			for i := range v.Len() {
				c.bound(p.elem, v.Index(i))
			}
		}
	case formMap:
		if c.count(v); p.elem.lists {
			for iter := v.MapRange(); iter.Next(); {
				c.bound(p.elem, iter.Value())
			}
		}
	case formMarshals:
		c.failed = c.failed || longest(c.anyOf(p, v).v) > maxApplyElements
	case formUnknown:
		c.failed = true
	}
}

func (c *comparison) count(v reflect.Value) {
	if v.Len() > maxApplyElements {
		c.failed = true
	}
}

// microTimeIn returns the MicroTime in v. If a Lease is renewed, four of them must be compared.
// The library has a fast path for metav1.Time, but encodes and decodes a MicroTime as JSON.
func microTimeIn(v reflect.Value) (t *metav1.MicroTime, ok bool) {
	if v.CanAddr() {
		t, ok = v.Addr().Interface().(*metav1.MicroTime)
	}
	return t, ok
}

// anyOf returns the JSON value of a type with its own encoding.
func (c *comparison) anyOf(p *plan, v reflect.Value) anyValue {
	if !v.IsValid() || isNull(v) {
		return anyValue{nil, v.IsValid()}
	}
	if t, ok := microTimeIn(v); ok {
		if t.IsZero() {
			return anyValue{nil, true}
		}
		return anyValue{t.UTC().Format(metav1.RFC3339Micro), true}
	}
	out, err := p.marshals.ToUnstructured(v)
	if err != nil {
		c.failed = true
	}
	return anyValue{out, true}
}

// longest returns the length of the longest list or map in value.
func longest(value any) int {
	n := 0
	switch value := value.(type) {
	case []any:
		n = len(value)
		for _, element := range value {
			n = max(n, longest(element))
		}
	case map[string]any:
		n = len(value)
		for _, member := range value {
			n = max(n, longest(member))
		}
	}
	return n
}

// maxApplyElements limits the length of lists and maps if the fields are tracked, because it
// takes quadratic time to match the elements. Above the limit an apply fails, and other writes
// drop managedFields.
const maxApplyElements = 20000
