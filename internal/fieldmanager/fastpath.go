package fieldmanager

// This file answers the two commonest applies: one that makes an object, and one that says again what its manager has said before, perhaps
// with other values, or more fields. Neither needs the general algorithm, which builds a tree of each manager's fields and walks all objects a dozen times.
//
//
//	apply   {"spec":{"replicas":3,"template":…}}     by "deploy", whose entry names just these fields
//	live    {"spec":{"replicas":2,"template":…}}
//
//	1. write down the fields that the body names, in the form of managedFields: the same bytes as deploy's entry has, or what that
//	   names and some more, so nothing was withdrawn
//	2. walk body and live object side by side and set what differs: spec.replicas
//	3. look whether anybody else may own what is set; if so, it may be a conflict, and that is for the general algorithm
//
// Why the answer is the same: fields are removed only when the manager's new fields lack one of the old, and the other managers' entries
// change only where a field changes that they name. With both excluded, an apply is a merge, and a merge goes path by path: a member or
// an element that both sides have is merged with its like, a value or an atomic list or map is replaced. Where that takes a decision (the
// order of a merged list, a null, an element that comes twice, a name or a value of a strange type, all errors) the functions here answer
// ok = false, and the general algorithm decides. So they may be ignorant, but not wrong.

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

// maxReapplyElements bounds a list whose elements are told apart here, by comparing each with each.
const maxReapplyElements = 100

// appliedParts takes an apply's body apart: body without what the server ignores, and of that what belongs to the manager. resets are
// paths that this kind of write does not touch. The body itself is not changed.
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

// nullStamp tells a creationTimestamp of null, as manifests are generated with. It counts as a change of the time, which the server undoes.
func nullStamp(body map[string]any) bool {
	meta, _ := body["metadata"].(map[string]any)
	stamp, sent := meta["creationTimestamp"]
	return sent && stamp == nil
}

// dropReset removes an empty object at path, which manifests are generated with; false if there is more than that.
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

// ---- the fields of a body, as managedFields write them

// fieldsOf returns the FieldsV1 of an apply's body.
func fieldsOf(types *typed.ParseableType, owned map[string]any) (fields []byte, ok bool) {
	return appendFields(make([]byte, 0, 4<<10), fieldsAt{types.Schema, types.TypeRef, false}, owned)
}

// fieldsAt is where appendFields is. own: the place itself is owned, not just what it holds.
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

// fits tells a value of the right type. A whole number in a float's clothes is left to the general algorithm, as null is.
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
	return out, len(elements) > 0 // nobody owns an empty list of this kind
}

// An elementKey tells the elements of a list apart: its text in managedFields, and the values that it sorts by.
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

// keyOf builds a key from its parts in the order of their names; part returns nil for one that is absent. The type of each part follows
// from the schema.
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

// keyOfLive is the key of an element of a Go slice. What is zero there may be absent: then its default counts.
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

// A merger writes a body into a live object of a Go type. It gives up, the object half written, where it has to decide something: also
// where a zero value is to become zero, since it may have been absent before, and absent is another thing.
type merger struct {
	types    *smd.Schema
	others   []metav1.ManagedFieldsEntry // of the other managers
	replaced int                         // values so far
	changed  bool                        // something was not as wanted
	grown    bool                        // the applier's entry lacks some of the fields
	since    *metav1.Time                // of that entry
}

// merge writes wanted into live, which is at path; t is live's type.
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
		inner.Set(old) // the elements of a Go map cannot be changed in place
		if !m.merge(t.ElementType, inner, member, append(path, name)) {
			return false
		}
		live.SetMapIndex(key, inner)
	}
	return true
}

// mergeList merges elements that are all there, in the same order.
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

// leaf replaces a value that is owned whole if it reads otherwise. 1 and 1000m are not the same, as in the general algorithm.
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

// replace sets what is at path, unless another manager may own something there.
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

// maxOwnedPaths is for how many members an entry's fields are searched; with more of them every entry counts as involved.
const maxOwnedPaths = 100

// mayOwn is false for an entry that owns neither the member at path nor anything in it: a name of the path stands nowhere in its fields.
// True means nothing, the name may stand elsewhere.
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
