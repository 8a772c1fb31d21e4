package fieldmanager

// This file is the short way of an ordinary update: the library is shown what differs between two objects, instead of both whole.

// Most writes change little of an object, and the bookkeeping of managedFields asks only for what changed. So it is asked about narrowed
// objects: copies of the old and the new one that leave out what is the same in both. A Deployment of twenty containers whose status
// counts up becomes
//
//	old  {"metadata":{},"spec":{},"status":{"replicas":1}}        entries that stay out of it: kubectl's, which owns nothing
//	new  {"metadata":{},"spec":{},"status":{"replicas":2}}        called replicas below something called status
//
// Why the answer is the same: a write moves ownership path by path. What it adds, changes or removes is found by comparing both objects
// at each path, and each entry gains or loses just those paths; a path where the objects agree is in none of these sets, and how its
// neighbours compare does not depend on it. Three things have to be kept for that. An object that holds members is there on the same
// sides as before (an object that comes or goes whole is itself a change): only structs and maps that both sides have are entered. Lists
// are kept whole, since their elements are told apart by keys. And what is called equal is equal to the last bit.

import (
	"bytes"
	"cmp"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"apilet/internal/scheme"
)

// A narrowing is how two versions of an object differ.
type diff struct {
	types *smd.Schema
	paths [][]string // of members that differ, the outermost name first
}

// newDiff returns what differs between two objects of one type, and where.
func newDiff(types *typed.ParseableType, old, next scheme.Object) (before, after scheme.Object, paths [][]string) {
	n := &diff{types: types.Schema}
	if u, ok := old.(*unstructured.Unstructured); ok {
		a, b := n.maps(u.Object, next.(*unstructured.Unstructured).Object, nil)
		return &unstructured.Unstructured{Object: a}, &unstructured.Unstructured{Object: b}, n.paths
	}
	a, b := reflect.ValueOf(old).Elem(), reflect.ValueOf(next).Elem()
	outA, outB := reflect.New(a.Type()), reflect.New(b.Type())
	n.structs(types.TypeRef, [2]reflect.Value{a, b}, [2]reflect.Value{outA.Elem(), outB.Elem()}, nil)
	return outA.Interface().(scheme.Object), outB.Interface().(scheme.Object), n.paths
}

// structs copies the fields in which two structs differ. A field without a schema of its own (kind and apiVersion stand in one) is
// copied in any case, and makes no path.
func (n *diff) structs(t smd.TypeRef, in, out [2]reflect.Value, path []string) {
	atom, _ := n.types.Resolve(t)
	for i := range in[0].NumField() {
		a, b := in[0].Field(i), in[1].Field(i)
		name, _, _ := strings.Cut(in[0].Type().Field(i).Tag.Get("json"), ",")
		field, known := atom.Map.FindField(name)
		if known && reflect.DeepEqual(a.Interface(), b.Interface()) {
			continue
		}
		inner, outer := [2]reflect.Value{a, b}, [2]reflect.Value{out[0].Field(i), out[1].Field(i)}
		switch {
		case known && ownEntries(path, name):
			continue
		case known && a.Kind() == reflect.Struct && n.enters(field.Type):
			n.structs(field.Type, inner, outer, append(path, name))
			if outer[0].IsZero() == a.IsZero() && outer[1].IsZero() == b.IsZero() {
				continue
			} // else it would be left out of the JSON of one side
		case known:
			n.differs(path, name)
		}
		outer[0].Set(a)
		outer[1].Set(b)
	}
}

func (n *diff) differs(path []string, name string) {
	n.paths = append(n.paths, append(slices.Clone(path), name))
}

// ownEntries tells metadata.managedFields, which nobody owns.
func ownEntries(path []string, name string) bool {
	return name == "managedFields" && len(path) == 1 && path[0] == "metadata"
}

// enters tells whether a member is told apart by its own members.
func (n *diff) enters(t smd.TypeRef) bool {
	atom, _ := n.types.Resolve(t)
	return atom.Map != nil && atom.Map.ElementRelationship != smd.Atomic && len(atom.Map.Fields) > 0
}

// maps copies the members in which two custom resources differ, level 0, or their metadata, spec or status, level 1. What both have as a
// map stays one, be it empty.
func (n *diff) maps(a, b map[string]any, path []string) (before, after map[string]any) {
	before, after = map[string]any{}, map[string]any{}
	for name, old := range a {
		next, both := b[name]
		innerA, isMapA := old.(map[string]any)
		innerB, isMapB := next.(map[string]any)
		switch {
		case isMapA && isMapB && len(path) == 0:
			before[name], after[name] = n.maps(innerA, innerB, []string{name})
		case both && reflect.DeepEqual(old, next), ownEntries(path, name):
		default:
			n.differs(path, name)
			before[name] = old
			if both {
				after[name] = next
			}
		}
	}
	for name, next := range b {
		if _, both := a[name]; !both && !ownEntries(path, name) {
			n.differs(path, name)
			after[name] = next
		}
	}
	return before, after
}

// maxOwnedPaths is for how many members an entry's fields are searched; with more of them every entry counts as involved.
const maxOwnedPaths = 100

// involved sorts out the entries that may own something at or below one of the paths, and those of the manager that writes.
func involved(entries []metav1.ManagedFieldsEntry, manager string, paths [][]string) (in, out []metav1.ManagedFieldsEntry) {
	for _, entry := range entries {
		owns := func(path []string) bool { return mayOwn(&entry, path) }
		if len(paths) > maxOwnedPaths || entry.Manager == cmp.Or(manager, "unknown") || slices.ContainsFunc(paths, owns) {
			in = append(in, entry)
		} else {
			out = append(out, entry)
		}
	}
	return in, out
}

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

// writtenAsIs says that every JSON encoder writes a string the same way.
func writtenAsIs(text string) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || strings.IndexByte(`"\<>&`, c) >= 0 {
			return false
		}
	}
	return true
}

// sortEntries brings entries in the order in which they are written: applies first, then by age.
func sortEntries(entries []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	seconds := func(e metav1.ManagedFieldsEntry) int64 {
		if e.Time == nil {
			return 0
		}
		return e.Time.Unix()
	}
	slices.SortFunc(entries, func(a, b metav1.ManagedFieldsEntry) int {
		return cmp.Or(cmp.Compare(a.Operation, b.Operation), cmp.Compare(seconds(a), seconds(b)), cmp.Compare(a.Manager, b.Manager),
			cmp.Compare(a.APIVersion, b.APIVersion), cmp.Compare(a.Subresource, b.Subresource))
	})
	return entries
}
