package validation

// This file shows what an update changed in a field that is immutable. kube-apiserver appends a unified diff of the two
// values to its message. It prints the JSON of its internal types, which have Go's names for keys and show every field:
//
//	 {
//	- "VolumeName": "a",
//	+ "VolumeName": "b",
//	  "StorageClassName": null,
//
// The types of k8s.io/api have the same fields in the same order, except for the few that this file lists.

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/diff"
)

const (
	maxDiffLines  = 5000 // of each side: the time to compare them grows with the product of the two
	maxDiffBytes  = 64 << 10
	tooLongToShow = "(the difference is too long to show)"
)

// DifferenceOf returns a unified diff of two values of one type.
func DifferenceOf(old, now any) string {
	a, b := internalJSON(old), internalJSON(now)
	if max(bytes.Count(a, []byte("\n")), bytes.Count(b, []byte("\n"))) > maxDiffLines {
		return tooLongToShow
	}
	if text := diff.Diff(json.RawMessage(a), json.RawMessage(b)); len(text) <= maxDiffBytes {
		return text
	}
	return tooLongToShow
}

func internalJSON(v any) []byte {
	var indented bytes.Buffer
	_ = json.Indent(&indented, appendInternal(nil, reflect.ValueOf(v)), "", " ") // it is JSON
	return indented.Bytes()
}

// appendInternal appends the JSON of the internal type that corresponds to a value's type.
func appendInternal(buf []byte, v reflect.Value) []byte {
	switch {
	case v.Kind() == reflect.Pointer && !v.IsNil():
		return appendInternal(buf, v.Elem())
	case v.Kind() == reflect.Slice && v.Len() > 0 && isVersioned(v.Type().Elem()):
		open := byte('[')
		for i := range v.Len() {
			buf = appendInternal(append(buf, open), v.Index(i))
			open = ','
		}
		return append(buf, ']')
	case v.Kind() == reflect.Struct && isVersioned(v.Type()):
		open := byte('{')
		for _, m := range internalMembers(v) {
			if m.name != "" {
				buf = append(append(append(append(buf, open), '"'), m.name...), `":`...)
				buf = appendInternal(buf, m.value)
			} else if text := appendInternal(nil, m.value); len(text) > len("{}") {
				buf = append(append(buf, open), text[1:len(text)-1]...)
			} else {
				continue
			}
			open = ','
		}
		return append(buf, '}')
	}
	text, _ := json.Marshal(v.Interface()) // objects that were decoded can be encoded
	return append(buf, text...)
}

func isVersioned(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && (strings.HasPrefix(t.PkgPath(), "k8s.io/api/") || t == reflect.TypeFor[internalPodSecurity]())
}

// A member is a field of an internal type, or the metadata, whose fields stand among those of the object.
type member struct {
	name  string // "" for the metadata
	value reflect.Value
}

// internalPodSecurity is the internal PodSecurityContext, which also has some fields of the versioned PodSpec.
type internalPodSecurity struct {
	HostNetwork, HostPID, HostIPC    bool
	ShareProcessNamespace, HostUsers *bool
	corev1.PodSecurityContext
}

// movedFields names fields that stand elsewhere in the internal type: behind another field.
var movedFields = map[reflect.Type][][2]string{
	reflect.TypeFor[corev1.PodSpec]():                {{"SetHostnameAsFQDN", "Subdomain"}, {"PreemptionPolicy", "Priority"}, {"EnableServiceLinks", "Overhead"}},
	reflect.TypeFor[corev1.VolumeSource]():           {{"Quobyte", "RBD"}},
	reflect.TypeFor[corev1.PersistentVolumeSource](): {{"Quobyte", "RBD"}, {"FlexVolume", "ISCSI"}},
	reflect.TypeFor[corev1.PodSecurityContext]():     {{"Sysctls", "FSGroupChangePolicy"}},
}

// notInPodSpec names the fields that the internal PodSpec lacks.
var notInPodSpec = []string{"DeprecatedServiceAccount", "HostNetwork", "HostPID", "HostIPC", "ShareProcessNamespace", "HostUsers"}

// internalMembers returns the fields of a struct in the order of the internal type, those of embedded structs included.
func internalMembers(v reflect.Value) (members []member) {
	t := v.Type()
	for i := range t.NumField() {
		switch field := t.Field(i); {
		case field.Type == reflect.TypeFor[metav1.TypeMeta](): // empty in internal types
		case field.Type == reflect.TypeFor[metav1.ObjectMeta]() && field.Anonymous:
			members = append(members, member{"", v.Field(i)})
		case field.Anonymous:
			members = append(members, internalMembers(v.Field(i))...)
		default:
			members = append(members, member{field.Name, v.Field(i)})
		}
	}
	if t == reflect.TypeFor[corev1.PodSpec]() {
		members = slices.DeleteFunc(members, func(m member) bool { return slices.Contains(notInPodSpec, m.name) })
		members[indexOf(members, "SecurityContext")].value = reflect.ValueOf(podSecurity(v.Interface().(corev1.PodSpec)))
	}
	for _, move := range movedFields[t] {
		at := indexOf(members, move[0])
		m := members[at]
		members = slices.Delete(members, at, at+1)
		members = slices.Insert(members, indexOf(members, move[1])+1, m)
	}
	return members
}

func indexOf(members []member, name string) int {
	return slices.IndexFunc(members, func(m member) bool { return m.name == name })
}

func podSecurity(spec corev1.PodSpec) internalPodSecurity {
	s := internalPodSecurity{HostNetwork: spec.HostNetwork, HostPID: spec.HostPID, HostIPC: spec.HostIPC,
		ShareProcessNamespace: spec.ShareProcessNamespace, HostUsers: spec.HostUsers}
	if spec.SecurityContext != nil {
		s.PodSecurityContext = *spec.SecurityContext
	}
	return s
}
