package fieldmanager

// This file keeps the entries of one kind at one version (Manager). Who owns an element of a list depends on what the list means:
// containers are told apart by name, tolerations are one value. The Go types say so in their patchMergeKey tags; what they say in comments
// only is in the tables of package listtypes (Relations, Atomic).

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"apilet/internal/apierror"
	"apilet/internal/bounded"
	"apilet/internal/scheme"
	"apilet/internal/scheme/listtypes"
)

// maxApplyElements bounds a list or map in an object whose fields are tracked: the time to tell its elements apart grows with the square.
// An apply is refused above it, another write goes without managedFields.
const maxApplyElements = 20000

var errLongList = fmt.Errorf("a list or map of more than %d elements is too long to track its fields", maxApplyElements)

// ManagerOf names the writer: the fieldManager parameter, else the User-Agent up to its first slash.
func ManagerOf(fieldManager, userAgent string) string {
	if fieldManager != "" {
		return fieldManager
	}
	agent, _, _ := strings.Cut(userAgent, "/")
	name := make([]byte, 0, len(agent))
	for _, r := range agent {
		if !unicode.IsPrint(r) {
			continue
		}
		if len(name)+utf8.RuneLen(r) > metav1validation.FieldManagerMaxLength {
			break
		}
		name = utf8.AppendRune(name, r)
	}
	return string(name)
}

// ---- the managedFields of one kind

// A Manager keeps the managedFields of the objects of one kind at one version. Immutable but for what it builds at first use: the types
// take a millisecond and 100 KiB, so keep one per kind, not one per request.
type Manager struct {
	Kind     schema.GroupVersionKind // group, version and kind of the entries that it writes
	GoType   reflect.Type            // struct type; nil for a custom resource
	Versions []string                // other apiVersions of the kind that are served; entries of versions unknown here are dropped
	Schema   map[string]any          // openAPIV3Schema of a custom resource; nil: lists are atomic, maps are not
	Status   bool                    // has a status subresource: main writes do not own status
	Ways     *Ways                   // counts the writes; nil: nobody asks

	// ConvertTo returns a custom resource in another version, where a webhook knows how, and SchemaOf the openAPIV3Schema of that version;
	// nil: versions differ by name alone.
	ConvertTo func(u *unstructured.Unstructured, version string) (*unstructured.Unstructured, error)
	SchemaOf  func(version string) map[string]any

	mu       sync.Mutex                             // guards what follows
	types    *typed.ParseableType                   // nil until used
	plan     *plan                                  // how objects of GoType are compared
	read     map[string]fieldSet                    // sets of entries that were read, by their text, and conform
	readSize int                                    // bytes of their texts
	managers map[string]*managedfields.FieldManager // by subresource
	others   map[string]*typed.ParseableType        // types of other versions, where a webhook converts
}

// Apply merges body, the fields that manager wants, into live (nil: nothing is there, an object is created; its TypeMeta is set). The
// result carries its managedFields; defaults are the caller's, since nobody owns them. strictErrs are duplicate keys of the body. err is a Status error: 400 for a body
// that is no apply configuration of this kind, 409 with one FieldManagerConflict cause a field, 500 for fields of a wrong type, as in
// the real server.
func (o *Manager) Apply(live scheme.Object, body []byte, by Applier) (merged scheme.Object, strictErrs []error, err error) {
	wanted, strictErrs, err := decodeApply(body)
	if err != nil {
		return nil, nil, err
	}
	if err := bounded.CheckSteps(wanted.Object); err != nil {
		return nil, nil, apierror.InvalidWhole(o.Kind.GroupKind(), wanted.GetName(), err)
	}
	o.ready()
	merged, ok := o.applyFast(live, wanted, by)
	if o.Ways.count(ok); ok {
		return merged, strictErrs, nil
	}
	manager, err := o.manager(by.Subresource)
	if err != nil {
		return nil, nil, err
	}
	result, err := manager.Apply(o.orNew(live), wanted, by.Manager, by.Force)
	if err != nil {
		return nil, nil, applyError(err)
	}
	if merged, ok = result.(scheme.Object); !ok {
		return nil, nil, fmt.Errorf("apply: %T is no object", result)
	}
	return merged, strictErrs, nil
}

// applyFast is apply for a new object, and for a manager that applies the fields that it has, or some more, to an object of a Go type whose entries
// are all of this version (fastpath.go). live stays as it is. ok is false where the library has to look at it.
func (o *Manager) applyFast(live scheme.Object, wanted *unstructured.Unstructured, by Applier) (merged scheme.Object, ok bool) {
	if o.GoType == nil || wanted.GroupVersionKind() != o.Kind {
		return nil, false
	}
	body, owned, ok := appliedParts(wanted.Object, o.resetPaths(by.Subresource))
	if !ok {
		return nil, false
	}
	fields, ok := fieldsOf(o.types, owned)
	if !ok {
		return nil, false
	}
	m := merger{types: o.types.Schema, changed: nullStamp(wanted.Object)}
	merged = o.orNew(nil)
	if isNil(live) {
		ok = m.replace(reflect.ValueOf(merged).Elem(), body, nil)
	} else if ok = m.readEntries(o, live.GetManagedFields(), by, fields); ok {
		merged = o.stamp(live.DeepCopyObject().(scheme.Object))
		ok = m.merge(o.types.TypeRef, reflect.ValueOf(merged), body, nil)
	}
	if !ok || by.Manager == "kubectl" && merged.GetAnnotations()[lastApplied] != "" {
		return nil, false
	}
	if !m.changed && !m.grown {
		return merged, true
	}
	since := m.since               // that of the fields before: who asks for what is there already changes nothing
	if m.changed || since == nil { // a new object's has none
		since = &metav1.Time{Time: time.Now().UTC()}
	}
	own := metav1.ManagedFieldsEntry{Manager: by.Manager, Operation: metav1.ManagedFieldsOperationApply, Subresource: by.Subresource,
		APIVersion: o.Kind.GroupVersion().String(), Time: since, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(string(fields))}
	merged.SetManagedFields(sortEntries(append(m.others, own)))
	return merged, true
}

// lastApplied is an annotation that an apply by kubectl keeps up to date.
const lastApplied = corev1.LastAppliedConfigAnnotation

// readEntries takes down the entries of others than the applier. ok only if its own names no fields but these, and all entries are of this
// version.
func (m *merger) readEntries(o *Manager, entries []metav1.ManagedFieldsEntry, by Applier, fields []byte) (ok bool) {
	for _, entry := range entries {
		own := entry.Manager == by.Manager && entry.Operation == metav1.ManagedFieldsOperationApply && entry.Subresource == by.Subresource
		if !own {
			m.others = append(m.others, entry)
			continue
		}
		if ok = entry.FieldsV1 != nil && entry.Time != nil; !ok {
			return false
		}
		if before := entry.FieldsV1.GetRawBytes(); !bytes.Equal(before, fields) {
			if m.grown, m.since = true, entry.Time; !o.within(before, fields) {
				return false
			}
		}
	}
	return ok && o.ofThisVersion(entries)
}

// within tells whether a set has no fields but those of another, so that both together are the other.
func (o *Manager) within(set, other []byte) bool {
	a, b := o.fieldsOf(set), o.fieldsOf(other)
	return a != nil && b != nil && bytes.Equal(union(a, b).append(make([]byte, 0, len(other))), other)
}

// An Applier is who applies, and how.
type Applier struct {
	Manager     string // the name that owns what is applied
	Subresource string // "" is the object itself
	Force       bool   // take fields from their managers instead of a 409
}

// Update writes into next.managedFields what manager changed since old (nil: next is created). It starts from the entries that next
// carries, so that a client may edit them: none, too many, or entries that make no sense, mean those of old; [] or [{}] drops all of them. An
// entry's time moves only when its fields do. Both objects' TypeMeta is set. Call it once defaults are in place, and before the server
// fills in what belongs to nobody: cluster IPs, admission's finalizers, generation, and what a subresource resets.
func (o *Manager) Update(old, next scheme.Object, manager, subresource string) error {
	o.ready()
	o.stamp(next)
	if tooCostly(next.GetManagedFields()) {
		next.SetManagedFields(nil)
	}
	entries, ok := o.track(old, next, manager, subresource)
	if o.Ways.count(ok); ok {
		next.SetManagedFields(entries)
		return nil
	}
	general, err := o.manager(subresource)
	if err != nil {
		return err
	}
	if _, err = general.Update(o.orNew(old), next, manager); err != nil {
		next.SetManagedFields(nil) // a write is not refused for its managedFields' sake, as in the real server
	}
	return nil
}

func (o *Manager) ofThisVersion(entries []metav1.ManagedFieldsEntry) bool {
	own := o.Kind.GroupVersion().String()
	return !slices.ContainsFunc(entries, func(e metav1.ManagedFieldsEntry) bool { return e.APIVersion != own || e.FieldsV1 == nil })
}

// KeepTimes undoes the new times in next.managedFields if nothing else tells next from old, so that a write that changes nothing is
// stored as nothing. Call it last, when defaults and the server's own fields are in place.
func KeepTimes(old, next scheme.Object) {
	entries, before := next.GetManagedFields(), old.GetManagedFields()
	if len(entries) == 0 || !slices.EqualFunc(entries, before, sameButTime) {
		return
	}
	if slices.EqualFunc(entries, before, func(a, b metav1.ManagedFieldsEntry) bool { return a.Time.Equal(b.Time) }) {
		return
	}
	if equalButEntries(old, next) {
		next.SetManagedFields(slices.Clone(before))
	}
}

// equalButEntries compares two objects, but for their managedFields. It begins with what they have last, status, spec or data: there most
// writes differ, while metadata costs most to compare and seldom does.
func equalButEntries(old, next scheme.Object) bool {
	if a, ok := old.(*unstructured.Unstructured); ok {
		b := next.(*unstructured.Unstructured)
		return equalMembers(a.Object, b.Object, "metadata") && equalMembers(membersOf(a.Object["metadata"]), membersOf(b.Object["metadata"]), "managedFields")
	}
	for _, obj := range []scheme.Object{old, next} {
		entries := obj.GetManagedFields()
		defer obj.SetManagedFields(entries)
		obj.SetManagedFields(nil)
	}
	a, b := reflect.ValueOf(old).Elem(), reflect.ValueOf(next).Elem()
	for i := a.NumField() - 1; i >= 0; i-- {
		if !equality.Semantic.DeepEqual(a.Field(i).Addr().Interface(), b.Field(i).Addr().Interface()) {
			return false
		}
	}
	return true
}

// equalMembers compares two maps, but for one member.
func equalMembers(a, b map[string]any, but string) bool {
	for name, x := range a {
		if y, both := b[name]; name != but && (!both || !equality.Semantic.DeepEqual(x, y)) {
			return false
		}
	}
	for name := range b {
		if _, both := a[name]; name != but && !both {
			return false
		}
	}
	return true
}

func membersOf(v any) map[string]any {
	members, _ := v.(map[string]any)
	return members
}

// sameButTime compares two entries, but for when they changed.
func sameButTime(a, b metav1.ManagedFieldsEntry) bool {
	return a.Manager == b.Manager && a.Operation == b.Operation && a.APIVersion == b.APIVersion && a.Subresource == b.Subresource &&
		a.FieldsType == b.FieldsType && bytes.Equal(a.FieldsV1.GetRawBytes(), b.FieldsV1.GetRawBytes())
}

// ScaleEntries translates between the entries of an object and those of its scale subresource, which is an object of its own kind with
// the one field spec.replicas: ToSubresource gives the Scale its entries before a write, ToParent takes them back after it. own is the
// version that parent has now, replicas the way to the field in each apiVersion that it is served at: entries of others are lost.
func ScaleEntries(parent scheme.Object, own schema.GroupVersion, replicas map[string][]string) *managedfields.ScaleHandler {
	paths := managedfields.ResourcePathMappings{}
	for version, steps := range replicas {
		var path fieldpath.Path
		for _, step := range steps {
			path = append(path, fieldpath.PathElement{FieldName: &step})
		}
		paths[version] = path
	}
	return managedfields.NewScaleHandler(parent.GetManagedFields(), own, paths)
}

// decodeApply reads an apply body, YAML or JSON. The YAML reader warns by line where a key comes twice; JSON without such keys is
// read without it, some ten times as fast.
func decodeApply(body []byte) (*unstructured.Unstructured, []error, error) {
	wanted := &unstructured.Unstructured{}
	if bytes.HasPrefix(bytes.TrimSpace(body), []byte("{")) {
		if duplicates, err := kjson.UnmarshalStrict(body, &wanted.Object); err == nil && len(duplicates) == 0 {
			return wanted, nil, nil
		}
		wanted.Object = nil
	}
	strictErr := yaml.UnmarshalStrict(body, &wanted.Object)
	if strictErr == nil {
		return wanted, nil, nil
	}
	wanted.Object = nil
	if err := yaml.Unmarshal(body, &wanted.Object); err != nil {
		return nil, nil, apierrors.NewBadRequest("error decoding YAML: " + err.Error())
	}
	var strictErrs []error
	for line := range strings.SplitSeq(strings.TrimPrefix(apierror.Shortened(strictErr).Error(), yamlErrors), "\n") {
		strictErrs = append(strictErrs, errors.New(strings.TrimSpace(line)))
	}
	return wanted, strictErrs, nil
}

const yamlErrors = "error converting YAML to JSON: yaml: unmarshal errors:\n"

// InvalidApply is the refusal of strictErrs.
func InvalidApply(strictErrs []error) error {
	text := []string{"error strict decoding YAML: " + strings.TrimSuffix(yamlErrors, "\n")}
	for _, err := range strictErrs {
		text = append(text, err.Error())
	}
	return apierrors.NewBadRequest(strings.Join(text, "\n  "))
}

func applyError(err error) error {
	if strings.HasSuffix(err.Error(), errLongList.Error()) { // the library keeps the text alone
		return apierrors.NewRequestEntityTooLargeError(errLongList.Error())
	}
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return err
	}
	return apierror.New(http.StatusInternalServerError, "", err.Error())
}

// ready makes the kind's types at their first use.
func (o *Manager) ready() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.types != nil {
		return
	}
	o.types = typesOf(o.GoType, o.Schema)
	if o.GoType != nil {
		planner := planner{types: o.types.Schema, made: map[plannedType]*plan{}}
		o.plan = planner.plan(o.GoType, o.types.TypeRef)
	}
}

// manager returns the library's manager for a subresource, building it when first asked.
func (o *Manager) manager(subresource string) (*managedfields.FieldManager, error) {
	o.ready()
	o.mu.Lock()
	defer o.mu.Unlock()
	if manager := o.managers[subresource]; manager != nil {
		return manager, nil
	}
	if o.managers == nil {
		o.managers = map[string]*managedfields.FieldManager{}
	}
	shape := &objectShape{Manager: o, types: o.types}
	hub := o.Kind.GroupVersion()
	manager, err := managedfields.NewDefaultFieldManager(shape, shape, shape, shape, o.Kind, hub, subresource, o.resets(subresource))
	if err == nil {
		o.managers[subresource] = manager
	}
	return manager, err
}

// resets are the fields that a write through a subresource leaves as they were; nobody comes to own them by it.
func (o *Manager) resets(subresource string) map[fieldpath.APIVersion]fieldpath.Filter {
	set := fieldpath.NewSet()
	for _, path := range o.resetPaths(subresource) {
		var steps []any
		for _, step := range path {
			steps = append(steps, step)
		}
		set.Insert(fieldpath.MakePathOrDie(steps...))
	}
	reset := map[fieldpath.APIVersion]*fieldpath.Set{fieldpath.APIVersion(o.Kind.GroupVersion().String()): set}
	if o.ConvertTo != nil && subresource == "status" { // of all versions, as kube-apiserver does for custom resources
		for _, version := range o.Versions {
			reset[fieldpath.APIVersion(version)] = set
		}
	}
	return fieldpath.NewExcludeFilterSetMap(reset)
}

func (o *Manager) resetPaths(subresource string) (split [][]string) {
	paths, special := subresourceResets[strings.TrimSuffix(o.Kind.GroupKind().String()+"/"+subresource, "/")]
	switch {
	case special:
	case subresource == "status" && o.GoType == nil:
		paths = []string{"metadata", "spec"}
	case subresource == "status":
		paths = []string{"spec"}
	case subresource == "" && o.Status:
		paths = []string{"status"}
	}
	for _, path := range paths {
		split = append(split, strings.Split(path, "."))
	}
	return split
}

// orNew is obj under the manager's kind, or a new object where there is none.
func (o *Manager) orNew(obj scheme.Object) scheme.Object {
	if !isNil(obj) {
		return o.stamp(obj)
	}
	if o.GoType == nil {
		return o.stamp(&unstructured.Unstructured{Object: map[string]any{}})
	}
	return o.stamp(reflect.New(o.GoType).Interface().(scheme.Object))
}

// stamp writes the manager's kind and version into obj, which it returns.
func (o *Manager) stamp(obj scheme.Object) scheme.Object {
	obj.GetObjectKind().SetGroupVersionKind(o.Kind)
	return obj
}

// An objectShape answers the library's four questions about objects: how one is typed, converted, defaulted and made.
type objectShape struct {
	*Manager
	types *typed.ParseableType
}

// ObjectToTyped turns Go types into maps first: the library reads them in place too, but walks an object a dozen times, each time by
// reflection.
func (s *objectShape) ObjectToTyped(obj runtime.Object, options ...typed.ValidationOptions) (*typed.TypedValue, error) {
	members, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, err
	}
	if longest(members) > maxApplyElements {
		return nil, errLongList
	}
	if version := obj.GetObjectKind().GroupVersionKind().Version; s.ConvertTo != nil && version != s.Kind.Version {
		return s.typesOf(version).FromUnstructured(members, options...)
	}
	if s.GoType != nil && len(options) > 0 { // an object, not an apply body: the Go type has checked its fields already
		return typed.AsTypedUnvalidated(value.NewValueInterface(members), s.types.Schema, s.types.TypeRef), nil
	}
	return s.types.FromUnstructured(members, options...)
}

// typesOf are the types of another version, which has other fields where a webhook converts.
func (o *Manager) typesOf(version string) *typed.ParseableType {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.others[version] == nil {
		if o.others == nil {
			o.others = map[string]*typed.ParseableType{}
		}
		o.others[version] = typesOf(nil, o.SchemaOf(version))
	}
	return o.others[version]
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

func (s *objectShape) TypedToObject(doc *typed.TypedValue) (runtime.Object, error) {
	members, ok := doc.AsValue().Unstructured().(map[string]any)
	if !ok {
		return nil, errors.New("the document is no object")
	}
	return &unstructured.Unstructured{Object: members}, nil
}

// ConvertToVersion turns the library's maps into the Go type, and changes versions of those by name alone: a simplification, since the
// entry of a manager that wrote through a version with other fields (autoscaling/v1) then names fields that are not found here and fades.
func (s *objectShape) ConvertToVersion(in runtime.Object, target runtime.GroupVersioner) (runtime.Object, error) {
	version, ok := target.(schema.GroupVersion)
	if own := s.Kind.GroupVersion(); !ok || version != own && !slices.Contains(s.Versions, version.String()) {
		return nil, runtime.NewNotRegisteredErrForTarget("", reflect.TypeOf(in), target)
	}
	kind := version.WithKind(s.Kind.Kind)
	members, isMap := in.(*unstructured.Unstructured)
	if isMap && s.ConvertTo != nil {
		return s.ConvertTo(members, version.Version)
	}
	if isMap && s.GoType != nil {
		out := reflect.New(s.GoType).Interface().(runtime.Object)
		if err := bounded.FromUnstructured(members.Object, out, false); err != nil {
			return nil, err
		}
		in = out
	} else if isMap && version != s.Kind.GroupVersion() {
		in = &unstructured.Unstructured{Object: maps.Clone(members.Object)}
	}
	in.GetObjectKind().SetGroupVersionKind(kind)
	return in, nil
}

func (s *objectShape) Convert(in, out, context any) error {
	return fmt.Errorf("%T into %T: not converted", in, out) // the library does not ask
}

func (s *objectShape) ConvertFieldLabel(kind schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

// Default leaves the outcome of a merge as it is: what an apply leaves out is filled in by its caller, as for every other write.
func (s *objectShape) Default(runtime.Object) {}

func (s *objectShape) New(schema.GroupVersionKind) (runtime.Object, error) {
	return s.orNew(nil), nil
}

// ---- types as structured-merge-diff wants them

// typesOf derives what lists and maps mean, from a Go type or else from a custom resource's schema.
func typesOf(goType reflect.Type, crd map[string]any) *typed.ParseableType {
	if goType == nil && crd == nil {
		return &typed.DeducedParseableType
	}
	b := &typeBuilder{seen: map[reflect.Type]bool{}, out: &smd.Schema{Types: []smd.TypeDef{
		{Name: untypedName, Atom: untypedAtom(untypedName, smd.Atomic)},
		{Name: deducedName, Atom: untypedAtom(deducedName, smd.Separable)},
	}}}
	if goType != nil {
		return &typed.ParseableType{Schema: b.out, TypeRef: b.ref(goType)}
	}
	root := b.fromSchema(crd, false)
	b.addObjectFields(root.Map, true)
	return &typed.ParseableType{Schema: b.out, TypeRef: smd.TypeRef{Inlined: root}}
}

type typeBuilder struct {
	out  *smd.Schema
	seen map[reflect.Type]bool // struct types that are in out, or will be: types may hold themselves
}

// Values of no declared type: one that is owned whole, and one whose objects are merged by member.
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

// ref returns the type of a Go value as JSON has it.
func (b *typeBuilder) ref(t reflect.Type) smd.TypeRef {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if described, ok := reflect.Zero(t).Interface().(interface{ OpenAPISchemaType() []string }); ok {
		if len(described.OpenAPISchemaType()) == 0 {
			return namedType(deducedName)
		}
		return scalarType(smd.Untyped) // times, quantities: strings, but written as numbers too
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
	if slices.Contains(listtypes.Atomic, listtypes.TypeName(t)) && goTypeName(t) != "k8s.io/api/autoscaling/v2.CrossVersionObjectReference" {
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
		field := smd.StructField{Name: name, Type: b.ref(f.Type), Default: keyDefaults[key]}
		relate(&field.Type, cmp.Or(listtypes.Relations[key], listtypes.OfTags(f.Tag)))
		if field.Default == nil && !strings.Contains(options, "omitempty") && f.Type.Comparable() && field.Type.Inlined.Scalar != nil {
			field.Default = zeroOf(f.Type)
		}
		out.Fields = append(out.Fields, field)
	}
}

// zeroOf is what a member that is always written has in its absence: it may be a key of a list.
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

// relate says what the elements of a field are to each other: atomic, granular, set, or the keys of a list's elements.
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

// fromSchema translates one level of a custom resource's schema. preserve: above, unknown fields are kept.
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

// addObjectFields gives a schema the fields that every object has. At the root they are typed whatever the schema says.
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

// ---- what the Go types say in comments only (+listType, +listMapKey, +mapType, +structType, +default)

// keyDefaults are what the keys of list elements are when the element omits them.
var keyDefaults = map[string]any{
	"core.ContainerPort.protocol":    "TCP",
	"core.ServicePort.protocol":      "TCP",
	"core.LocalObjectReference.name": "",
}

// subresourceResets lists what is not the common status (main writes) or spec (status writes).
var subresourceResets = map[string][]string{
	"APIService.apiregistration.k8s.io/status":                       {"metadata", "spec"},
	"CertificateSigningRequest.certificates.k8s.io":                  {"spec", "status"},
	"CertificateSigningRequest.certificates.k8s.io/approval":         {"spec", "status.certificate"},
	"CertificateSigningRequest.certificates.k8s.io/status":           {"spec", "status.conditions"},
	"Deployment.apps/status":                                         {"spec", "metadata.labels"},
	"FlowSchema.flowcontrol.apiserver.k8s.io/status":                 {"metadata", "spec"},
	"Namespace/finalize":                                             {"status"},
	"Pod/status":                                                     {"spec", "metadata.deletionTimestamp", "metadata.ownerReferences"},
	"PodGroup.scheduling.k8s.io/status":                              {"metadata", "spec"},
	"PriorityLevelConfiguration.flowcontrol.apiserver.k8s.io/status": {"metadata", "spec"},
	"ResourceClaim.resource.k8s.io/status":                           {"metadata", "spec"},
	"ServiceCIDR.networking.k8s.io/status":                           {"metadata", "spec"},
	"StorageVersionMigration.storagemigration.k8s.io/status":         {"metadata", "spec"},
	"ValidatingAdmissionPolicy.admissionregistration.k8s.io/status":  {"metadata", "spec"},
	"VolumeAttachment.storage.k8s.io/status":                         {"metadata", "spec"},
}
