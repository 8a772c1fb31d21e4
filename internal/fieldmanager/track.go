package fieldmanager

// This file updates the entries after a create, update or patch without the general algorithm.
// The writer becomes the only owner of the fields that the write sets. Removed fields lose all
// their owners.
//
//	entries   kubectl {f:replicas, f:image}   controller {f:status}
//	write     by hpa: replicas 2 to 5                                  compare.go marks spec.replicas
//	entries   kubectl {f:image}               controller {f:status}   hpa {f:replicas}
//
// All steps operate on sets (fieldset.go). Marked fields are removed from each entry, and the
// fields that were set are added to the writer's entry. Unmodified entries keep their bytes. The
// result is identical to the library's, byte by byte. The library is called if an entry is not in
// the library's format, if an entry has an earlier version or schema, or if the walk of
// compare.go has failed.

import (
	"bytes"
	"cmp"
	"encoding/json"
	"reflect"
	"slices"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"apilet/internal/scheme"
)

// maxUpdateManagers is the maximum number of entries of updates. Above it the oldest entries are
// merged.
const maxUpdateManagers = 10

// maxSentUpdates limits the number of update entries in a request. It takes quadratic time to
// merge the oldest entries. For 30,000 entries, which can be sent in a single body, it would be
// half a minute.
const maxSentUpdates = 1000

// tooCostly reports whether the library would need quadratic time for the entries, because there
// are too many updates or too many fields. No real object has that many. If the names are in
// descending order, the library inserts every name at the start. For 200,000 names, which can be
// sent in a single body, it would take half a minute.
func tooCostly(entries []metav1.ManagedFieldsEntry) bool {
	updates, fields := 0, 0
	for i := range entries {
		if entries[i].Operation == metav1.ManagedFieldsOperationUpdate {
			updates++
		}
		if set := entries[i].FieldsV1; set != nil {
			fields += bytes.Count(set.GetRawBytes(), []byte("{"))
		}
	}
	return updates > maxSentUpdates || fields > maxFieldNodes
}

// An owner is an entry of managedFields with its parsed fields.
type owner struct {
	entry  metav1.ManagedFieldsEntry
	fields fieldSet
	stale  bool // entry.FieldsV1 differs from fields
}

// track returns the entries of next after a write by manager to a subresource. ok is false if the
// library must decide.
func (o *Manager) track(old, next scheme.Object, manager, subresource string) (entries []metav1.ManagedFieldsEntry, ok bool) {
	isNew := isNil(old)
	entries, ok = liveEntries(old, next, isNew, subresource)
	if !ok || !utf8.ValidString(manager) || !utf8.ValidString(subresource) {
		return nil, false
	}
	if len(entries) == 0 && !isNew && old.GetUID() != "" {
		return nil, true // an object without entries remains untracked
	}
	owners, foreign, ok := o.owners(entries)
	if !ok {
		return nil, false
	}
	c := comparisons.Get().(*comparison)
	defer c.release()
	c.types = o.types.Schema
	if !o.compare(c, old, next, foreign) {
		return nil, false
	}
	whole := c.nodes
	seen := whole.without(o.resetPaths(subresource))
	owners = o.removeChanged(owners, seen, whole)
	if gained := seen.gained(); len(gained) > 0 {
		owners = o.addToWriter(owners, gained, cmp.Or(manager, "unknown"), subresource)
	}
	if owners, ok = capped(owners); !ok {
		return nil, false
	}
	return encoded(owners), true
}

// liveEntries returns the entries before the write. These are the entries in the request, or the
// entries of the old object if there are none.
func liveEntries(old, next scheme.Object, isNew bool, subresource string) (entries []metav1.ManagedFieldsEntry, ok bool) {
	if !isNew {
		entries = old.GetManagedFields()
	}
	sent := next.GetManagedFields()
	switch {
	case len(entries) > maxEntries || len(sent) > maxEntries:
		return nil, false
	case subresource != "" || sent == nil:
		return entries, true
	case len(sent) == 0 || len(sent) == 1 && reflect.DeepEqual(sent[0], metav1.ManagedFieldsEntry{}):
		return nil, true // the client drops all entries
	}
	return sent, true
}

// maxEntries is far more than any real object has.
const maxEntries = 100

// owners parses the entries. It returns true for foreign if there are entries of other versions.
func (o *Manager) owners(entries []metav1.ManagedFieldsEntry) (owners []owner, foreign, ok bool) {
	own := o.Kind.GroupVersion().String()
	owners = make([]owner, 0, len(entries)+1)
	for i := range entries {
		e := &entries[i]
		switch {
		case e.FieldsV1 == nil || e.FieldsType != "FieldsV1":
			return nil, false, false
		case e.Operation != metav1.ManagedFieldsOperationApply && e.Operation != metav1.ManagedFieldsOperationUpdate:
			return nil, false, false
		case !utf8.ValidString(e.Manager) || !utf8.ValidString(e.Subresource):
			return nil, false, false
		case e.APIVersion != own:
			if foreign = true; o.ConvertTo != nil || !slices.Contains(o.Versions, e.APIVersion) {
				return nil, false, false
			}
		}
		if slices.ContainsFunc(owners, func(other owner) bool { return sameOwner(&other.entry, e) }) {
			return nil, false, false
		}
		fields := o.fieldsOf(e.FieldsV1.GetRawBytes())
		if fields == nil {
			return nil, false, false
		}
		owners = append(owners, owner{entry: *e, fields: fields})
	}
	return owners, foreign, true
}

// sameOwner reports whether the library identifies two entries. The version matters only for
// updates.
func sameOwner(a, b *metav1.ManagedFieldsEntry) bool {
	return a.Manager == b.Manager && a.Operation == b.Operation && a.Subresource == b.Subresource &&
		(a.APIVersion == b.APIVersion || a.Operation == metav1.ManagedFieldsOperationApply)
}

// maxRead limits the total length of the cached sets. If an object is written often, or if there
// are many similar objects, the number of different sets is small.
const maxRead = 64 << 10

// fieldsOf parses the set of an entry. The result is cached because the same sets are parsed
// again and again. The caller must not modify the result. nil means that the library must parse
// it.
func (o *Manager) fieldsOf(text []byte) fieldSet {
	o.mu.Lock()
	known := o.read[string(text)]
	o.mu.Unlock()
	if known != nil {
		return known
	}
	own := string(text)
	fields, ok := parseFields(own, o.GoType == nil)
	if !ok || !o.conform(fields) {
		return nil
	}
	if len(own) > maxRead/4 {
		return fields
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.readSize += len(own); o.read == nil || o.readSize > maxRead {
		o.read, o.readSize = map[string]fieldSet{}, len(own)
	}
	o.read[own] = fields
	return fields
}

// conform reports whether a set matches the schema, so that no path leads into an atomic value. A
// change of the schema may cause a mismatch.
func (o *Manager) conform(s fieldSet) bool {
	at, ok := o.types.Schema.Resolve(o.types.TypeRef)
	return ok && at.Map != nil && at.Map.ElementRelationship != smd.Atomic && conformMembers(o.types.Schema, at.Map, s, 0, int32(len(s)), "")
}

func conformMembers(types *smd.Schema, t *smd.Map, s fieldSet, i, end int32, parent string) bool {
	if scalar := t.ElementType.Inlined.Scalar; t.ElementType.NamedType == nil && scalar != nil && *scalar == smd.Untyped && t.Fields == nil {
		return true // the library does not check their members
	}
	for ; i < end; i = s[i].end {
		ref := t.ElementType
		if s[i].kind == 'f' {
			if parent == "metadata" && s[i].text == "managedFields" {
				return false
			}
			ref, _ = memberType(t, s[i].text)
		}
		if ref != (smd.TypeRef{}) && !conformNode(types, ref, s, i) {
			return false
		}
	}
	return true
}

func conformNode(types *smd.Schema, ref smd.TypeRef, s fieldSet, i int32) bool {
	at, ok := types.Resolve(ref)
	isLeaf := s[i].end == i+1
	switch {
	case !ok:
		return false
	case at.Map != nil:
		if at.Map.ElementRelationship == smd.Atomic {
			return isLeaf
		}
		return conformMembers(types, at.Map, s, i+1, s[i].end, s[i].text)
	case at.Scalar != nil:
		return true
	case at.List == nil:
		return false
	case at.List.ElementRelationship == smd.Atomic:
		return isLeaf
	}
	for j := i + 1; j < s[i].end; j = s[j].end {
		if !conformNode(types, at.List.ElementType, s, j) {
			return false
		}
	}
	return true
}

// compare adds the changed fields to c. If foreign is true, the library would also convert both
// objects to other versions, which validates them.
func (o *Manager) compare(c *comparison, old, next scheme.Object, foreign bool) bool {
	was, is := o.orNew(old), o.stamp(next)
	if o.GoType == nil {
		was, ok := was.(*unstructured.Unstructured)
		is, same := is.(*unstructured.Unstructured)
		if !ok || !same {
			return false
		}
		c.anything(-1, o.types.TypeRef, anyValue{was.Object, true}, anyValue{is.Object, true})
		return !c.failed
	}
	if foreign && !(valid(o.types, was) && valid(o.types, is)) {
		return false
	}
	c.values(-1, o.plan, reflect.ValueOf(was), reflect.ValueOf(is))
	return !c.failed
}

// valid reports whether the library accepts an object when it converts it to another version.
func valid(types *typed.ParseableType, obj scheme.Object) bool {
	members, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return false
	}
	_, err = types.FromUnstructured(members)
	return err == nil
}

// ---- updates of the entries

// removeChanged removes the changed fields from the entries. Entries of this version keep the
// fields that such a write does not change (see resets). If the entry is of another version, these
// fields are also removed, which is the same in the library.
func (o *Manager) removeChanged(owners []owner, seen, whole difference) []owner {
	own := o.Kind.GroupVersion().String()
	kept := owners[:0]
	for _, one := range owners {
		d := seen
		if one.entry.APIVersion != own {
			d = whole
		}
		if len(d) > 0 {
			if rest, changed := one.fields.without(d); changed {
				one.fields, one.stale = rest, true
			}
		}
		if len(one.fields) > 0 {
			kept = append(kept, one)
		}
	}
	return kept
}

// addToWriter adds the gained fields to the writer's entry, with the current time.
func (o *Manager) addToWriter(owners []owner, gained fieldSet, manager, subresource string) []owner {
	now := metav1.NewTime(time.Now().UTC())
	writer := metav1.ManagedFieldsEntry{Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, Subresource: subresource,
		APIVersion: o.Kind.GroupVersion().String(), Time: &now, FieldsType: "FieldsV1"}
	for i := range owners {
		if one := &owners[i]; sameOwner(&one.entry, &writer) {
			one.fields, one.stale, one.entry.Time = union(one.fields, gained), true, &now
			return owners
		}
	}
	return append(owners, owner{entry: writer, fields: gained, stale: true})
}

// capped limits the number of update entries to maxUpdateManagers. The oldest entries of a
// version are merged into the entry of ancientChanges.
func capped(owners []owner) ([]owner, bool) {
	order := make([]int, 0, len(owners))
	for i := range owners {
		if owners[i].entry.Operation == metav1.ManagedFieldsOperationUpdate {
			order = append(order, i)
		}
	}
	tooMany := len(order) - maxUpdateManagers
	if tooMany <= 0 {
		return owners, true
	}
	slices.SortFunc(order, func(a, b int) int { return compareAges(&owners[a].entry, &owners[b].entry) })
	buckets := map[string]int{} // the oldest entry of the version, which is merged with the others
	merged := map[int]bool{}
	for _, i := range order {
		one := &owners[i]
		at, found := buckets[one.entry.APIVersion]
		switch {
		case len(merged) == tooMany:
		case !found:
			buckets[one.entry.APIVersion] = i
		case one.entry.Manager == ancientChanges || !soleBucket(owners, at):
			return nil, false
		default:
			into := &owners[at]
			into.fields, into.stale = union(into.fields, one.fields), true
			into.entry.Manager, into.entry.Subresource, into.entry.Time = ancientChanges, "", one.entry.Time
			merged[i] = true
		}
	}
	kept := make([]owner, 0, len(owners)-len(merged))
	for i := range owners {
		if !merged[i] {
			kept = append(kept, owners[i])
		}
	}
	return kept, true
}

const ancientChanges = "ancient-changes"

// soleBucket reports whether no entry but the one at index at has the name that the merged entry
// gets.
func soleBucket(owners []owner, at int) bool {
	for i := range owners {
		if e := &owners[i].entry; i != at && e.Manager == ancientChanges && e.APIVersion == owners[at].entry.APIVersion {
			return false
		}
	}
	return true
}

// compareAges compares entries in the order in which they are merged by the library. They are
// sorted by second and then by identifier.
func compareAges(a, b *metav1.ManagedFieldsEntry) int {
	name := func(e *metav1.ManagedFieldsEntry) string {
		text, _ := json.Marshal(metav1.ManagedFieldsEntry{Manager: e.Manager, Operation: e.Operation, APIVersion: e.APIVersion, Subresource: e.Subresource})
		return string(text) // strings can always be encoded
	}
	return cmp.Or(cmp.Compare(seconds(a), seconds(b)), cmp.Compare(name(a), name(b)))
}

func seconds(e *metav1.ManagedFieldsEntry) int64 {
	if e.Time == nil {
		return 0
	}
	return e.Time.Unix()
}

// encoded returns the entries of the owners in the stored order.
func encoded(owners []owner) []metav1.ManagedFieldsEntry {
	if len(owners) == 0 {
		return nil
	}
	entries := make([]metav1.ManagedFieldsEntry, len(owners))
	for i := range owners {
		entries[i] = owners[i].entry
		if owners[i].stale {
			entries[i].FieldsV1 = &metav1.FieldsV1{}
			entries[i].FieldsV1.SetRawBytes(owners[i].fields.append(make([]byte, 0, owners[i].fields.size())))
		}
	}
	return sortEntries(entries)
}

// sortEntries sorts entries in the stored order: applies first, then by age.
func sortEntries(entries []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	slices.SortFunc(entries, func(a, b metav1.ManagedFieldsEntry) int {
		return cmp.Or(cmp.Compare(a.Operation, b.Operation), cmp.Compare(seconds(&a), seconds(&b)), cmp.Compare(a.Manager, b.Manager),
			cmp.Compare(a.APIVersion, b.APIVersion), cmp.Compare(a.Subresource, b.Subresource))
	})
	return entries
}

// ---- parts of a difference

// without removes the paths, including all nested fields.
func (d difference) without(paths [][]string) difference {
	for _, path := range paths {
		d = d.cut(path)
	}
	return d
}

// cut returns d without the node at path. It does not modify d.
func (d difference) cut(path []string) difference {
	i, end := int32(0), int32(len(d))
	for depth, name := range path {
		for i < end && !(d[i].kind == 'f' && d[i].text == name) {
			i = d[i].end
		}
		if i == end {
			return d
		}
		if depth < len(path)-1 {
			i, end = i+1, d[i].end
		}
	}
	rest := slices.Clone(d)
	gone := d[i].end - i
	for j := range rest {
		if rest[j].end > i {
			rest[j].end -= gone
		}
	}
	return slices.Delete(rest, int(i), int(i+gone))
}

// gained returns the fields that were set by the write, except for fields that cannot be owned.
func (d difference) gained() fieldSet {
	return d.gainedBelow(make(fieldSet, 0, len(d)), 0, int32(len(d)), unownedRoot)
}

func (d difference) gainedBelow(out fieldSet, i, end int32, unowned []string) fieldSet {
	for ; i < end; i = d[i].end {
		n := &d[i]
		at := len(out)
		out = append(out, n.fieldNode)
		out[at].member = n.change == written && !slices.Contains(unowned, n.text)
		var below []string
		if len(unowned) == len(unownedRoot) && n.text == "metadata" {
			below = unownedMeta
		}
		out = d.gainedBelow(out, i+1, n.end, below)
		out = closed(out, at)
	}
	return out
}

// unownedRoot contains the members of an object that cannot be owned, and unownedMeta contains the
// members of the metadata that cannot be owned. The nested fields can be owned.
var (
	unownedRoot = []string{"apiVersion", "kind", "metadata"}
	unownedMeta = []string{"name", "namespace", "creationTimestamp", "selfLink", "uid", "clusterName", "generation", "resourceVersion"}
)
