package fieldmanager

// This file compares an object as it was with what it becomes, and marks the fields that a write sets or removes.
//
// Both are walked once, side by side, along the schema, as the library compares them after it has turned them into maps:
//
//	what is there      marked
//	on one side        it and all that is in it, down to what is owned whole
//	on both, a leaf    if it reads otherwise: scalars, atomic lists, maps and structs, an empty list or map against null
//	on both, or not    what is in it: members by name, elements of a list by their keys or values, in whatever order
//
// A Go value stands for the JSON that it becomes: omitempty and omitzero leave a member out, a nil pointer, list or map is null, and what
// has a JSON form of its own (times, quantities) is compared by that. How, is planned once for each type. What may go another way in the
// library (an element that comes twice, a name that encoders escape, a list beyond maxApplyElements) ends the walk: failed.

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

// A comparison is a walk along two objects.
type comparison struct {
	types  *smd.Schema
	nodes  difference
	depth  int
	failed bool
	key    []byte // scratch
}

// comparisons are those that nobody walks: most writes mark a few dozen nodes, and make none for it.
var comparisons = sync.Pool{New: func() any { return &comparison{nodes: make(difference, 0, 64)} }}

const maxKeptNodes = 1024 // in a comparison that waits for the next

func (c *comparison) release() {
	if cap(c.nodes) > maxKeptNodes {
		return
	}
	clear(c.nodes[:cap(c.nodes)])
	*c = comparison{nodes: c.nodes[:0], key: c.key[:0]}
	comparisons.Put(c)
}

// open begins the node of a member or an element; close ends it, and forgets it if nothing differs there.
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

// leaf marks the innermost open node: what is there on both sides reads otherwise. The object itself belongs to nobody.
func (c *comparison) leaf(at int) {
	if at >= 0 {
		c.nodes[at].change = written
	}
}

// ---- plans

// A plan is how values of a Go type are compared at one place of the schema.
type plan struct {
	form       form
	whole      bool // owned as one: atomic
	t          reflect.Type
	ref        smd.TypeRef
	marshals   *value.TypeReflectCacheEntry
	comparable bool        // Go's == is true for equal values alone
	lists      bool        // may hold lists or maps, which have to be counted
	fields     []planField // of a struct, by name
	elem       *plan       // of a list or map
	keys       []planKey   // of a list whose elements are told apart by them, by name
}

type form uint8

const (
	formUnknown  form = iota // what no plan was made for; failed, if it is there
	formScalar               // string, bool, int, float
	formBytes                // base64
	formMarshals             // has a JSON form of its own
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
	field *planField // nil if the elements have none
	def   any
}

// A planner makes plans, those of a recursive type once.
type planner struct {
	types *smd.Schema
	made  map[plannedType]*plan
}

type plannedType struct {
	t        reflect.Type
	name     string
	relation smd.ElementRelationship
}

// commonPlans returns a new map with the plans of ObjectMeta and of the types that it contains. Plans are
// immutable, so that all kinds share them.
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
	p.lists = true // until it is known: a type may hold itself
	pl.fill(p, atom)
	return p
}

// fill decides on a plan's form, which has to be what the schema says.
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

// fields are those of a struct and of what it embeds. A field that the schema does not have is of unknown form.
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

// keys finds what tells the elements of a list apart.
func (pl *planner) keys(p *plan, names []string) {
	if len(names) > 0 && p.elem.form != formStruct { // or not planned yet
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

// of returns the field of a struct; nothing if it is left out of the JSON.
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

// isEmpty is what omitempty leaves out.
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

// visit compares a member or an element that is there on one side at least; an invalid value is not.
func (c *comparison) visit(kind byte, text string, p *plan, was, is reflect.Value) {
	if c.failed {
		return
	}
	at := c.open(kind, text)
	c.values(at, p, was, is)
	c.close(at, was.IsValid(), is.IsValid())
}

// values compares what is at the open node.
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

// pointedTo follows pointers; a nil one stays.
func pointedTo(v reflect.Value) reflect.Value {
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	return v
}

// isNull tells a value that is there, as null.
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

// structs compares member by member. Structs without any are leaves, as null is.
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
			continue // nobody owns them
		}
		c.visit('f', f.name, f.plan, a, b)
	}
	if empty && (was.IsValid() && nullIs || nullWas && is.IsValid()) {
		c.leaf(at)
	}
}

// settled deals with collections that are too long, empty or equal: nobody has to look into them.
func (c *comparison) settled(at int, p *plan, was, is reflect.Value, lenWas, lenIs int) bool {
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

// maps compares member by member, in the order of their names.
func (c *comparison) maps(at int, p *plan, was, is reflect.Value) {
	lenWas, lenIs := lengthOf(was), lengthOf(is)
	if c.settled(at, p, was, is, lenWas, lenIs) {
		return
	}
	names := make([]string, 0, lenWas+lenIs)
	key := reflect.New(p.t.Key()).Elem() // of one member after the other: reflect would make memory for each
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

// lengthOf is 0 for what is null or not there.
func lengthOf(v reflect.Value) int {
	if !v.IsValid() || isNull(v) {
		return 0
	}
	return v.Len()
}

// An element is one of a list that is there on one side or both.
type element struct {
	fieldNode
	was, is int // -1: not there
}

// lists compares element by element, told apart by their keys, or by their values in a set.
func (c *comparison) lists(at int, p *plan, was, is reflect.Value) {
	lenWas, lenIs := lengthOf(was), lengthOf(is)
	if c.settled(at, p, was, is, lenWas, lenIs) {
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

// matched sorts elements, and makes one of two that are the same on both sides; two on one side are the library's.
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

// nameOf is what an element is called in a path.
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

// keyNode ends a key; an element that has none cannot be told apart.
func (c *comparison) keyNode() fieldNode {
	if len(c.key) == 1 {
		c.failed = true
	}
	c.key = append(c.key, '}')
	return fieldNode{kind: 'k', text: string(c.key)}
}

// appendDefault writes what stands for a key that an element omits; nothing does if the schema has no default for it.
func (c *comparison) appendDefault(name string, def any) {
	if def != nil {
		c.keyName(name)
		c.key = c.appendAnyScalar(c.key, def)
	}
}

// appendScalar writes a value as it stands in a path.
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

// equal says that two values that are there become the same JSON. It has counted all lists and maps in them if so.
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

// bound looks for lists and maps that are too long.
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

// microTimeIn is the time with microseconds that a value is. Each renewal of a Lease has four of them to compare, and the library, which
// knows how metav1.Time is written, makes JSON of these and reads it again.
func microTimeIn(v reflect.Value) (t *metav1.MicroTime, ok bool) {
	if v.CanAddr() {
		t, ok = v.Addr().Interface().(*metav1.MicroTime)
	}
	return t, ok
}

// anyOf is the JSON form of a value that has one of its own.
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

// longest is how many elements the longest list or map in value has.
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

// maxApplyElements bounds a list or map in an object whose fields are tracked: the time to tell its elements apart grows with the square.
// An apply is refused above it, another write goes without managedFields.
const maxApplyElements = 20000
