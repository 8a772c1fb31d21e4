package crd

// This file: a schema as the library's comparison of an old object with a new one walks it, remembered. The library's own view of a schema makes
// all properties of an object anew, copies, each time that one of them is asked for: fields times properties, which was two thirds of an
// update of 30 fields under a schema of 300 properties, and with ten thousand of both took minutes.

import (
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	celmodel "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	celcommon "k8s.io/apiserver/pkg/cel/common"
)

// correlate begins the comparison.
func correlate(old, obj map[string]any, s *structuralschema.Structural) *celcommon.CorrelatedObject {
	return celcommon.NewCorrelatedObject(obj, old, remember(s))
}

// A remembered schema has made what was asked for once. It lives as long as one comparison.
type remembered struct {
	*celmodel.Structural
	properties map[string]celcommon.Schema // nil: not asked for yet
	items      celcommon.Schema            // likewise
	additional *rememberedAdditional       // likewise
}

func remember(s *structuralschema.Structural) *remembered {
	return &remembered{Structural: &celmodel.Structural{Structural: s}}
}

// Properties are those of an object.
func (r *remembered) Properties() map[string]celcommon.Schema {
	if from := r.Structural.Structural.Properties; r.properties == nil && from != nil {
		r.properties = make(map[string]celcommon.Schema, len(from))
		for name, s := range from {
			r.properties[name] = remember(&s)
		}
	}
	return r.properties
}

// Items is the schema of a list's.
func (r *remembered) Items() celcommon.Schema {
	if from := r.Structural.Structural.Items; r.items == nil && from != nil {
		r.items = remember(from)
	}
	return r.items
}

// AdditionalProperties is the schema of a map's values.
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
	schema celcommon.Schema // nil: any
	allows bool
}

func (a *rememberedAdditional) Schema() celcommon.Schema { return a.schema }
func (a *rememberedAdditional) Allows() bool             { return a.allows }
