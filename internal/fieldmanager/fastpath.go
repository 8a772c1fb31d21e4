package fieldmanager

// This file handles the most common cases of apply. Either the object is created, or the manager
// applies the same fields again, possibly with other values or more fields. The general algorithm
// is not needed, which would build a tree of the fields for each of the managers.
//
//	apply   {"spec":{"replicas":3,"template":…}}     by "deploy", whose entry has exactly these fields
//	live    {"spec":{"replicas":2,"template":…}}
//
//	1. encode the fields of the body in the format of managedFields; no field was withdrawn if the result
//	   equals deploy's entry or extends it
//	2. walk the body and the live object in parallel and set the values that differ: spec.replicas
//	3. check whether another manager may own one of these fields; that may be a conflict, which the general
//	   algorithm decides
//
// The result is the same for these reasons. A field is removed only if the new fields of the
// manager lack one of the old fields. The entries of the other managers are only updated if one of their fields changes. In all other cases the result is the same as merging the values
// of each path. If the member or element is in both objects, the values are merged. A scalar, an
// atomic list or an atomic map is replaced. If a case is not that simple (the order of a merged
// list, a null, a duplicate element, a name or value of an unusual type, any error), the
// functions here return ok = false, and the general algorithm decides. So they may support few
// cases, but they must be correct.

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"apilet/internal/bounded"
)

// maxReapplyElements limits the lists that are merged here, because matching their elements takes
// quadratic time.
const maxReapplyElements = 100

// appliedParts returns the parts of the body. The result wanted does not include fields that are
// ignored by the server. The result owned only includes the fields that will be owned by the
// manager. resets are the paths that must not be changed by this request. The body is not
// modified.
func appliedParts(body map[string]any, resets [][]string) (wanted, owned map[string]any, ok bool) {
	meta, isMap := body["metadata"].(map[string]any)
	if _, sent := meta["managedFields"]; sent || !isMap {
		return nil, nil, false
	}
	wanted, meta = maps.Clone(body), maps.Clone(meta)
	wanted["metadata"] = meta
	if nullStamp(body) {
		delete(meta, "creationTimestamp")
	}
	for _, path := range resets {
		if !dropReset(wanted, path) {
			return nil, nil, false
		}
	}
	owned, meta = maps.Clone(wanted), maps.Clone(meta)
	delete(owned, "apiVersion")
	delete(owned, "kind")
	for _, name := range unownedMeta {
		delete(meta, name)
	}
	if owned["metadata"] = meta; len(meta) == 0 {
		delete(owned, "metadata")
	}
	return wanted, owned, len(owned) > 0
}

// nullStamp reports whether creationTimestamp is null, as generators write it. It is handled as a
// change to the time, which is reverted later.
func nullStamp(body map[string]any) bool {
	meta, _ := body["metadata"].(map[string]any)
	stamp, sent := meta["creationTimestamp"]
	return sent && stamp == nil
}

// dropReset removes an empty object at path, which generators write. It returns false if the path
// has any other value.
func dropReset(body map[string]any, path []string) bool {
	for _, name := range path[:len(path)-1] {
		body, _ = body[name].(map[string]any)
	}
	last := path[len(path)-1]
	member, found := body[last]
	inner, isMap := member.(map[string]any)
	if found && isMap && len(inner) == 0 && len(path) == 1 {
		delete(body, last)
		return true
	}
	return !found
}

// ---- FieldsV1 of a body

// fieldsOf returns the FieldsV1 of an apply's body.
func fieldsOf(types *typed.ParseableType, owned map[string]any) (fields []byte, ok bool) {
	return appendFields(make([]byte, 0, 4<<10), fieldsAt{types.Schema, types.TypeRef, false}, owned)
}

// fieldsAt is the current position of appendFields. If own is true, the field itself is owned,
// not only the nested fields.
type fieldsAt struct {
	types *smd.Schema
	t     smd.TypeRef
	own   bool
}

func appendFields(out []byte, at fieldsAt, v any) ([]byte, bool) {
	atom, _ := at.types.Resolve(at.t)
	switch v := v.(type) {
	case map[string]any:
		if atom.Map == nil || atom.Scalar != nil {
			return out, false
		}
		if atom.Map.ElementRelationship != smd.Atomic && len(v) > 0 {
			return appendMembers(out, at, atom.Map, v)
		}
	case []any:
		if atom.List == nil || atom.Scalar != nil {
			return out, false
		}
		if atom.List.ElementRelationship != smd.Atomic {
			return appendElements(out, at, atom.List, v)
		}
	default:
		if atom.Map != nil || atom.List != nil || !fits(atom.Scalar, v) {
			return out, false
		}
	}
	return append(out, "{}"...), true
}

// fits reports whether a value has the right type. It returns false for floats and null, which
// are left to the general algorithm.
func fits(scalar *smd.Scalar, v any) bool {
	if scalar == nil {
		return false
	}
	switch v.(type) {
	case string:
		return *scalar == smd.String || *scalar == smd.Untyped
	case int64:
		return *scalar == smd.Numeric || *scalar == smd.Untyped
	case bool:
		return *scalar == smd.Boolean
	}
	return false
}

func appendMembers(out []byte, at fieldsAt, t *smd.Map, members map[string]any) ([]byte, bool) {
	out = append(out, '{')
	if at.own {
		out = append(out, `".":{},`...)
	}
	ok := true
	names := make([]string, 0, len(members))
	for name := range members {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		field, known := t.FindField(name)
		inner := fieldsAt{at.types, field.Type, false}
		if !known {
			inner.t, inner.own = t.ElementType, true
		}
		if inner.t == (smd.TypeRef{}) || !writtenAsIs(name) {
			return out, false
		}
		out = append(append(append(out, `"f:`...), name...), `":`...)
		if out, ok = appendFields(out, inner, members[name]); !ok {
			return out, false
		}
		out = append(out, ',')
	}
	out[len(out)-1] = '}'
	return out, true
}

func appendElements(out []byte, at fieldsAt, t *smd.List, elements []any) ([]byte, bool) {
	keys := make([]elementKey, len(elements))
	for i, element := range elements {
		var ok bool
		if keys[i], ok = keyOfWanted(at.types, t, element); !ok {
			return out, false
		}
		keys[i].index = i
	}
	slices.SortFunc(keys, compareKeys)
	out = append(out, '{')
	if at.own {
		out = append(out, `".":{},`...)
	}
	for i, key := range keys {
		if i > 0 && key.text == keys[i-1].text {
			return out, false
		}
		out = append(append(append(out, '"'), key.text...), `":`...)
		var ok bool
		if out, ok = appendFields(out, fieldsAt{at.types, t.ElementType, true}, elements[key.index]); !ok {
			return out, false
		}
		out = append(out, ',')
	}
	out[len(out)-1] = '}'
	return out, len(elements) > 0 // an empty list is not owned in this case
}

// An elementKey identifies an element of a list. It has the text in managedFields and the values
// to sort by.
type elementKey struct {
	text   string
	values []any // string or int64
	index  int
}

func compareKeys(a, b elementKey) int {
	for i, v := range a.values {
		var order int
		switch v := v.(type) {
		case string:
			order = cmp.Compare(v, b.values[i].(string))
		case int64:
			order = cmp.Compare(v, b.values[i].(int64))
		}
		if order != 0 {
			return order
		}
	}
	return 0
}

// keyOf builds a key from its parts, sorted by name. part returns nil if the element omits a key.
// The schema determines the type of each part.
func keyOf(types *smd.Schema, t *smd.List, part func(name string) any) (key elementKey, ok bool) {
	if len(t.Keys) == 0 {
		text, isString := part("").(string)
		return elementKey{text: `v:\"` + text + `\"`, values: []any{text}}, isString && writtenAsIs(text)
	}
	element, _ := types.Resolve(t.ElementType)
	if element.Map == nil {
		return key, false
	}
	names := t.Keys
	if !slices.IsSorted(names) {
		names = slices.Sorted(slices.Values(names))
	}
	text := append(make([]byte, 0, 64), `k:{`...)
	key.values = make([]any, 0, len(names))
	for _, name := range names {
		field, _ := element.Map.FindField(name)
		v := part(name)
		if v == nil {
			v = field.Default
		}
		text = append(append(append(text, `\"`...), name...), `\":`...)
		switch v := v.(type) {
		case string:
			if !writtenAsIs(v) {
				return key, false
			}
			text = append(append(append(text, `\"`...), v...), `\"`...)
		case int64:
			text = strconv.AppendInt(text, v, 10)
		default:
			return key, false
		}
		key.values, text = append(key.values, v), append(text, ',')
	}
	text[len(text)-1] = '}'
	key.text = string(text)
	return key, true
}

func keyOfWanted(types *smd.Schema, t *smd.List, element any) (elementKey, bool) {
	members, isMap := element.(map[string]any)
	if isMap == (len(t.Keys) == 0) {
		return elementKey{}, false
	}
	return keyOf(types, t, func(name string) any {
		if name == "" {
			return element
		}
		return members[name]
	})
}

// keyOfLive returns the key of an element of a Go slice. A zero value may be omitted in the JSON,
// so its default is used.
func keyOfLive(types *smd.Schema, t *smd.List, element reflect.Value) (elementKey, bool) {
	return keyOf(types, t, func(name string) any {
		part := element
		if name != "" {
			part = value.TypeReflectEntryOf(element.Type()).Fields()[name].GetFrom(element)
		}
		for part.Kind() == reflect.Pointer && !part.IsNil() {
			part = part.Elem()
		}
		switch {
		case part.IsZero():
			return nil
		case part.Kind() == reflect.String:
			return part.String()
		case part.CanInt():
			return part.Int()
		}
		return nil
	})
}

// ---- the merge

// A merger writes the body of an apply into a live object of a Go type. It fails if a decision is
// necessary, and leaves the object partially written. It also fails if it would set a zero value
// to zero, because the member may have been absent, which is a different state.
type merger struct {
	types      *smd.Schema
	others     []metav1.ManagedFieldsEntry // entries of the other managers
	replaced   int                         // number of values replaced so far
	changed    bool                        // a value differed from the body
	addsFields bool                        // whether fields are added to the entry
	since      *metav1.Time                // time of the applier's entry
}

// merge writes wanted into live, which is at path. t is the type of live.
func (m *merger) merge(t smd.TypeRef, live reflect.Value, wanted any, path []string) bool {
	if live.Kind() == reflect.Pointer {
		if live.IsNil() {
			return m.replace(live, wanted, path)
		}
		live = live.Elem()
	}
	atom, _ := m.types.Resolve(t)
	members, isMap := wanted.(map[string]any)
	elements, isList := wanted.([]any)
	switch {
	case isMap && atom.Map != nil && atom.Map.ElementRelationship == smd.Atomic, isList && atom.List != nil && atom.List.ElementRelationship == smd.Atomic:
		return m.leaf(live, wanted, path)
	case isMap && atom.Map != nil && live.Kind() == reflect.Struct:
		return m.mergeStruct(atom.Map, live, members, path)
	case isMap && atom.Map != nil && live.Kind() == reflect.Map:
		return m.mergeMap(atom.Map, live, members, path)
	case isList && atom.List != nil && live.Kind() == reflect.Slice:
		return m.mergeList(atom.List, live, elements, path)
	case isMap || isList:
		return false
	}
	return m.scalar(live, wanted, path)
}

func (m *merger) mergeStruct(t *smd.Map, live reflect.Value, members map[string]any, path []string) bool {
	if len(members) == 0 {
		return !live.IsZero()
	}
	fields := value.TypeReflectEntryOf(live.Type()).Fields()
	for name, member := range members {
		field, known := t.FindField(name)
		place := fields[name]
		if !known || place == nil || !m.merge(field.Type, place.GetFrom(live), member, append(path, name)) {
			return false
		}
	}
	return true
}

func (m *merger) mergeMap(t *smd.Map, live reflect.Value, members map[string]any, path []string) bool {
	if live.Len() == 0 {
		return m.replace(live, members, path)
	}
	for name, member := range members {
		key := reflect.ValueOf(name).Convert(live.Type().Key())
		inner := reflect.New(live.Type().Elem()).Elem()
		old := live.MapIndex(key)
		if !old.IsValid() {
			if !m.replace(inner, member, append(path, name)) {
				return false
			}
			live.SetMapIndex(key, inner)
			continue
		}
		inner.Set(old) // the elements of a Go map cannot be modified in place
		if !m.merge(t.ElementType, inner, member, append(path, name)) {
			return false
		}
		live.SetMapIndex(key, inner)
	}
	return true
}

// mergeList merges elements that all exist in live, in the same order.
func (m *merger) mergeList(t *smd.List, live reflect.Value, elements []any, path []string) bool {
	if live.Len() == 0 {
		return m.replace(live, elements, path)
	}
	if live.Len() > maxReapplyElements {
		return false
	}
	known := make([]string, 0, live.Len())
	for i := range live.Len() {
		key, ok := keyOfLive(m.types, t, live.Index(i))
		if !ok || slices.Contains(known, key.text) {
			return false
		}
		known = append(known, key.text)
	}
	next := 0
	for _, element := range elements {
		key, ok := keyOfWanted(m.types, t, element)
		skip := slices.Index(known[next:], key.text)
		if !ok || skip < 0 || !m.merge(t.ElementType, live.Index(next+skip), element, path) {
			return false
		}
		next += skip + 1
	}
	return true
}

func (m *merger) scalar(live reflect.Value, wanted any, path []string) bool {
	switch v := wanted.(type) {
	case string:
		if live.Kind() == reflect.String && live.String() == v {
			return v != ""
		}
	case int64:
		if live.CanInt() && live.Int() == v {
			return v != 0
		}
	case bool:
		if live.Kind() == reflect.Bool && live.Bool() == v {
			return v
		}
	}
	return m.leaf(live, wanted, path)
}

// leaf replaces an atomic value if it differs. As in the general algorithm, 1 and 1000m differ.
func (m *merger) leaf(live reflect.Value, wanted any, path []string) bool {
	var present any
	text, err := json.Marshal(live.Interface())
	if err == nil {
		err = kjson.UnmarshalCaseSensitivePreserveInts(text, &present)
	}
	if err == nil && reflect.DeepEqual(present, wanted) {
		return !live.IsZero()
	}
	return m.replace(live, wanted, path)
}

// replace sets the value unless it may be owned by another manager.
func (m *merger) replace(live reflect.Value, wanted any, path []string) bool {
	mayOwnIt := func(e metav1.ManagedFieldsEntry) bool { return mayOwn(&e, path) }
	m.replaced++
	if len(m.others) > 0 && m.replaced > maxOwnedPaths || slices.ContainsFunc(m.others, mayOwnIt) {
		return false
	}
	m.changed = true
	text, err := json.Marshal(wanted)
	if err != nil {
		return false
	}
	fresh := reflect.New(live.Type())
	strictErrs, err := bounded.UnmarshalStrict(text, fresh.Interface())
	live.Set(fresh.Elem())
	return err == nil && len(strictErrs) == 0
}

// maxOwnedPaths limits the number of paths to search for in the entries. If more values are replaced, replace fails.
const maxOwnedPaths = 100

// mayOwn returns false if the entry owns neither the member at path nor anything in it, because
// some name of the path does not occur in its fields. A result of true is inconclusive, because
// the name may occur elsewhere.
func mayOwn(entry *metav1.ManagedFieldsEntry, path []string) bool {
	if entry.FieldsV1 == nil {
		return false
	}
	fields := entry.FieldsV1.GetRawBytes()
	for _, name := range path {
		if writtenAsIs(name) && !bytes.Contains(fields, []byte(`"f:`+name+`"`)) {
			return false
		}
	}
	return true
}
