package crd

// This file bounds what defaults make of an object, before they are made: a default is copied into each item of a list that lacks it, so that a
// body of a few kilobytes could take gigabytes of memory.

import (
	"fmt"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"apilet/internal/registry"
)

// fillDefaults fills in what a client left out, or answers a 413 when that would be more than an object may have.
func fillDefaults(object map[string]any, s *structuralschema.Structural) error {
	left := room(registry.MaxStored)
	if left.take(object, s); left < 0 {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("with the defaults of its type the object would have more than %d bytes, which is the limit", registry.MaxStored))
	}
	defaulting.Default(object, s)
	return nil
}

// A room is how many bytes of JSON there may yet be. It is taken as defaulting.Default gives, and asks for as many steps as the object has values
// and as there is room, no more.
type room int

// take takes the room of all defaults that x lacks.
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

// within is take for a value that is there. A null that may not be one becomes the default.
func (r *room) within(value any, s *structuralschema.Structural) {
	if value == nil && s != nil && !s.Nullable {
		r.copied(s.Default.Object, s)
		return
	}
	r.take(value, s)
}

// copied takes the room of a default, and of the defaults that it lacks itself.
func (r *room) copied(value any, s *structuralschema.Structural) {
	r.json(value)
	r.take(value, s)
}

// json takes the room of a value, or what is left.
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
