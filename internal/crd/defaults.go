package crd

// This file limits the size of default values before they are set. The default is copied into
// every item that does not contain the field, so a body of a few kilobytes could become
// gigabytes.

import (
	"fmt"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"apilet/internal/registry"
)

// fillDefaults sets the default values of an object. It returns a 413 if the result would exceed
// the size limit of an object.
func fillDefaults(object map[string]any, s *structuralschema.Structural) error {
	left := room(registry.MaxStored)
	if left.take(object, s); left < 0 {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("with the defaults of its type the object would have more than %d bytes, which is the limit", registry.MaxStored))
	}
	defaulting.Default(object, s)
	return nil
}

// A room is the number of remaining bytes of JSON. It is reduced in the same way as
// defaulting.Default would add values. The number of steps is at most the number of values in the
// object plus the room.
type room int

// take subtracts the size of all default values that x lacks.
func (r *room) take(x any, s *structuralschema.Structural) {
	if s == nil || *r < 0 {
		return
	}
	switch x := x.(type) {
	case map[string]any:
		for name, prop := range s.Properties {
			if _, found := x[name]; !found && prop.Default.Object != nil {
				r.copied(prop.Default.Object, &prop)
			}
		}
		for name, value := range x {
			if prop, found := s.Properties[name]; found {
				r.within(value, &prop)
			} else if s.AdditionalProperties != nil {
				r.within(value, s.AdditionalProperties.Structural)
			}
		}
	case []any:
		for _, value := range x {
			r.within(value, s.Items)
		}
	}
}

// within is take for an existing value. A null that the schema does not allow is replaced by the
// default.
func (r *room) within(value any, s *structuralschema.Structural) {
	if value == nil && s != nil && !s.Nullable {
		r.copied(s.Default.Object, s)
		return
	}
	r.take(value, s)
}

// copied subtracts the size of the default, including nested defaults.
func (r *room) copied(value any, s *structuralschema.Structural) {
	r.json(value)
	r.take(value, s)
}

// json subtracts the size of a value. It stops when no room is left.
func (r *room) json(value any) {
	*r -= 2
	switch value := value.(type) {
	case string:
		*r -= room(len(value))
	case map[string]any:
		for key, v := range value {
			if *r < 0 {
				return
			}
			*r -= room(len(key))
			r.json(v)
		}
	case []any:
		for _, v := range value {
			if *r < 0 {
				return
			}
			r.json(v)
		}
	}
}
