package fieldmanager

// This file implements apply, and updates the managedFields for other writes.

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"apilet/internal/apierror"
	"apilet/internal/bounded"
	"apilet/internal/scheme"
)

// ManagerName returns the name of the manager. This is the fieldManager parameter if it is set, or
// the first part of the User-Agent.
func ManagerName(fieldManager, userAgent string) string {
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

// Apply merges body, the configuration of the manager, into live. If live is nil, Apply creates a
// new object. Apply sets the TypeMeta of live. The result has updated managedFields. The caller
// must set default values afterwards, because default values have no owner. strictErrs are the
// duplicate keys of the body. err is a Status error, as in kube-apiserver: 400 if the body is not
// an apply configuration of this kind, 409 with one FieldManagerConflict cause for each field,
// and 500 if a field has the wrong type.
func (o *Manager) Apply(live scheme.Object, body []byte, by Applier) (merged scheme.Object, strictErrs []error, err error) {
	wanted, strictErrs, err := decodeApply(body)
	if err != nil {
		return nil, nil, err
	}
	if err := bounded.CheckSteps(wanted.Object); err != nil {
		return nil, nil, apierror.InvalidObject(o.Kind.GroupKind(), wanted.GetName(), err)
	}
	o.ready()
	merged, ok := o.applyFast(live, wanted, by)
	if o.Counters.count(ok); ok {
		return merged, strictErrs, nil
	}
	manager, err := o.newManager(by.Subresource, &applyShape{objectShape: objectShape{Manager: o, types: o.types}, wanted: wanted.Object})
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

// applyFast is used if the object is created, or if the manager applies the same fields again and
// possibly more fields. It only supports Go types, and all entries must be of this version (see
// fastpath.go). It does not modify live. ok is false if the library must decide.
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
	if !m.changed && !m.addsFields {
		return merged, true
	}
	since := m.since               // if the object is not changed, the time is not updated
	if m.changed || since == nil { // a new entry has no time yet
		since = &metav1.Time{Time: time.Now().UTC()}
	}
	own := metav1.ManagedFieldsEntry{Manager: by.Manager, Operation: metav1.ManagedFieldsOperationApply, Subresource: by.Subresource,
		APIVersion: o.Kind.GroupVersion().String(), Time: since, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(string(fields))}
	merged.SetManagedFields(sortEntries(append(m.others, own)))
	return merged, true
}

// lastApplied is an annotation that kubectl updates with each apply.
const lastApplied = corev1.LastAppliedConfigAnnotation

// readEntries collects the entries of other managers. It returns true if the applier has an entry
// whose fields are all in fields, and if all entries are of this version.
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
			if m.addsFields, m.since = true, entry.Time; !o.within(before, fields) {
				return false
			}
		}
	}
	return ok && o.ofThisVersion(entries)
}

// within reports whether set is a subset of other.
func (o *Manager) within(set, other []byte) bool {
	a, b := o.fieldsOf(set), o.fieldsOf(other)
	return a != nil && b != nil && bytes.Equal(union(a, b).append(make([]byte, 0, len(other))), other)
}

// An Applier identifies the manager of an apply and its options.
type Applier struct {
	Manager     string // the name of the manager that will own the fields
	Subresource string // "" for the object itself
	Force       bool   // take fields from other managers instead of returning a 409
}

// Update records in next.managedFields the fields that manager has changed since old. If old is
// nil, next is a new object. Update starts from the entries in next, because a client may edit
// them. The entries of old are used if the entries of next are missing, invalid, or too many. []
// or [{}] removes all entries. The time of an entry changes only if its fields do. Update sets
// the TypeMeta of both objects. The caller must set default values before it calls Update, and
// must set the fields without an owner afterwards: cluster IPs, finalizers of admission plugins,
// the generation, and fields that a subresource resets.
func (o *Manager) Update(old, next scheme.Object, manager, subresource string) error {
	o.ready()
	o.stamp(next)
	if tooCostly(next.GetManagedFields()) {
		next.SetManagedFields(nil)
	}
	entries, ok := o.track(old, next, manager, subresource)
	if o.Counters.count(ok); ok {
		next.SetManagedFields(entries)
		return nil
	}
	general, err := o.manager(subresource)
	if err != nil {
		return err
	}
	if _, err = general.Update(o.orNew(old), next, manager); err != nil {
		next.SetManagedFields(nil) // as in kube-apiserver, this is not an error
	}
	return nil
}

func (o *Manager) ofThisVersion(entries []metav1.ManagedFieldsEntry) bool {
	own := o.Kind.GroupVersion().String()
	return !slices.ContainsFunc(entries, func(e metav1.ManagedFieldsEntry) bool { return e.APIVersion != own || e.FieldsV1 == nil })
}

// RestoreTimes restores the old times in next.managedFields if next and old are otherwise equal, so
// that a write without changes is not stored. The caller must have set default values and all
// other fields.
func RestoreTimes(old, next scheme.Object) {
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

// equalButEntries reports whether two objects are equal except for their managedFields. It
// compares metadata last, because most writes differ in status, spec or data, and because
// metadata is the most expensive part.
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

// equalMembers reports whether two maps are equal except for the member but.
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

// sameButTime reports whether two entries are equal except for their times.
func sameButTime(a, b metav1.ManagedFieldsEntry) bool {
	return a.Manager == b.Manager && a.Operation == b.Operation && a.APIVersion == b.APIVersion && a.Subresource == b.Subresource &&
		a.FieldsType == b.FieldsType && bytes.Equal(a.FieldsV1.GetRawBytes(), b.FieldsV1.GetRawBytes())
}

// NewScaleHandler returns a handler to translate between the entries of an object and the entries
// of the scale subresource. A Scale is an object of another kind with the single field
// spec.replicas. ToSubresource returns the entries of the Scale before a write. After the write,
// ToParent is called to translate them back. own is the current version of the parent. replicas
// contains the path of the field in each of the served versions, and the entries of other versions
// are dropped.
func NewScaleHandler(parent scheme.Object, own schema.GroupVersion, replicas map[string][]string) *managedfields.ScaleHandler {
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

// decodeApply reads the body of an apply, which is YAML or JSON. The YAML decoder reports
// duplicate keys with their lines. JSON without duplicate keys is decoded by the JSON decoder,
// which is ten times as fast.
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
		if text, ok := strings.CutPrefix(err.Error(), "error converting YAML to JSON: "); ok && !bytes.HasPrefix(bytes.TrimSpace(body), []byte("{")) {
			return nil, nil, apierrors.NewBadRequest("error encoding patch: " + text)
		}
		return nil, nil, apierrors.NewBadRequest("error decoding patch: " + err.Error())
	}
	var strictErrs []error
	for line := range strings.SplitSeq(strings.TrimPrefix(apierror.TruncateLines(strictErr).Error(), yamlErrors), "\n") {
		strictErrs = append(strictErrs, errors.New(strings.TrimSpace(line)))
	}
	return wanted, strictErrs, nil
}

const yamlErrors = "error converting YAML to JSON: yaml: unmarshal errors:\n"

// InvalidApply returns the error for a body with strictErrs.
func InvalidApply(strictErrs []error) error {
	text := []string{"error strict decoding patch: " + strings.TrimSuffix(yamlErrors, "\n")}
	for _, err := range strictErrs {
		text = append(text, err.Error())
	}
	return apierrors.NewBadRequest(strings.Join(text, "\n  "))
}

func applyError(err error) error {
	if strings.HasSuffix(err.Error(), errLongList.Error()) { // the library wraps only the text of the error
		return apierrors.NewRequestEntityTooLargeError(errLongList.Error())
	}
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return err
	}
	return apierror.New(http.StatusInternalServerError, "", err.Error())
}
