package defaults

// This file removes empty lists and maps. Kubernetes stores objects as protobuf, which does not
// distinguish empty lists from nil. Therefore kube-apiserver returns null for empty lists that are
// always encoded.

import (
	"reflect"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"apilet/internal/scheme/internalversion"
)

// DropEmptyLists sets empty lists and maps to nil where their JSON would show the difference. It
// also sets the values that kube-apiserver fills in when it reads the stored object. The writer
// still owns an empty field, so this must happen after the managedFields are written.
func DropEmptyLists(obj runtime.Object) {
	switch o := obj.(type) {
	case *corev1.Node:
		if len(o.Status.Allocatable) == 0 {
			o.Status.Allocatable = nil // the default is the capacity
			internalversion.Default(o)
		}
	case *corev1.Service:
		// This can only be an ExternalName Service. Validation requires the list for other types.
		if o.Spec.ClusterIP != "" && len(o.Spec.ClusterIPs) == 0 {
			o.Spec.ClusterIPs = []string{o.Spec.ClusterIP}
		}
	}
	if drop := dropperOf(reflect.TypeOf(obj).Elem(), nil); drop != nil {
		drop(reflect.ValueOf(obj).Elem())
	}
}

// A dropper removes empty lists from a value. It is nil if the type does not contain any.
type dropper func(v reflect.Value)

// droppers holds the dropper of each type.
var droppers sync.Map

// dropperOf returns the dropper for a type. outer contains the types for which droppers are
// currently being created, which is used to detect recursive types.
func dropperOf(t reflect.Type, outer []reflect.Type) dropper {
	if known, ok := droppers.Load(t); ok {
		return known.(dropper)
	}
	for _, other := range outer {
		if other == t {
			return nil
		}
	}
	made := makeDropper(t, append(outer, t))
	droppers.Store(t, made)
	return made
}

func makeDropper(t reflect.Type, outer []reflect.Type) dropper {
	switch t.Kind() {
	case reflect.Struct:
		return structDropper(t, outer)
	case reflect.Pointer:
		if drop := dropperOf(t.Elem(), outer); drop != nil {
			return func(v reflect.Value) {
				if !v.IsNil() {
					drop(v.Elem())
				}
			}
		}
	case reflect.Slice:
		if drop := dropperOf(t.Elem(), outer); drop != nil {
			return func(v reflect.Value) {
				for i := range v.Len() {
					drop(v.Index(i))
				}
			}
		}
	}
	return nil
}

func structDropper(t reflect.Type, outer []reflect.Type) dropper {
	type step struct {
		field int
		shown bool // the field is encoded even if it is empty
		drop  dropper
	}
	var steps []step
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		s := step{i, false, dropperOf(f.Type, outer)}
		list := f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() != reflect.Uint8
		s.shown = (list || f.Type.Kind() == reflect.Map) && !strings.Contains(f.Tag.Get("json"), ",omit")
		if s.shown || s.drop != nil {
			steps = append(steps, s)
		}
	}
	if len(steps) == 0 {
		return nil
	}
	return func(v reflect.Value) {
		for _, s := range steps {
			f := v.Field(s.field)
			if s.shown && f.Len() == 0 {
				f.SetZero()
			} else if s.drop != nil {
				s.drop(f)
			}
		}
	}
}
