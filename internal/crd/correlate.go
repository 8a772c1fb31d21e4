package crd

// This file caches the parts of a schema while the library compares an old object with a new one.
// The library's own type copies all properties of an object whenever one of them is read. The
// cost is fields times properties: two thirds of an update of 30 fields under a schema of 300
// properties, and minutes for ten thousand of both.

import (
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	celmodel "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	celcommon "k8s.io/apiserver/pkg/cel/common"
)

// correlate returns the root of the comparison.
func correlate(old, obj map[string]any, s *structuralschema.Structural) *celcommon.CorrelatedObject {
	return celcommon.NewCorrelatedObject(obj, old, remember(s))
}

// A remembered schema converts each of its parts once. It exists for one comparison.
type remembered struct {
	*celmodel.Structural
	properties map[string]celcommon.Schema // nil until the first use
	items      celcommon.Schema            // nil until the first use
	additional *rememberedAdditional       // nil until the first use
}

func remember(s *structuralschema.Structural) *remembered {
	return &remembered{Structural: &celmodel.Structural{Structural: s}}
}

// Properties returns the schemas of an object's properties.
func (r *remembered) Properties() map[string]celcommon.Schema {
	if from := r.Structural.Structural.Properties; r.properties == nil && from != nil {
		r.properties = make(map[string]celcommon.Schema, len(from))
		for name, s := range from {
			r.properties[name] = remember(&s)
		}
	}
	return r.properties
}

// Items returns the schema of a list's items.
func (r *remembered) Items() celcommon.Schema {
	if from := r.Structural.Structural.Items; r.items == nil && from != nil {
		r.items = remember(from)
	}
	return r.items
}

// AdditionalProperties returns the schema of a map's values.
func (r *remembered) AdditionalProperties() celcommon.SchemaOrBool {
	from := r.Structural.Structural.AdditionalProperties
	if from == nil {
		return nil
	}
	if r.additional == nil {
		r.additional = &rememberedAdditional{allows: from.Bool}
		if from.Structural != nil {
			r.additional.schema = remember(from.Structural)
		}
	}
	return r.additional
}

type rememberedAdditional struct {
	schema celcommon.Schema // nil allows any value
	allows bool
}

func (a *rememberedAdditional) Schema() celcommon.Schema { return a.schema }
func (a *rememberedAdditional) Allows() bool             { return a.allows }
