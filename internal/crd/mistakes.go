package crd

// This file bounds how many mistakes the library looks for in one object. It compares each that it finds with all that it has, as texts, so that a
// list of a hundred thousand wrong items, a few hundred kilobytes, would take minutes, and a body has room for ten times as many. The alternatives of a
// schema (anyOf and the like) it hands no options, so that what is within them has no such bound.

import (
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"

	"apilet/internal/apierror"
)

// mistakesMax is one more than an answer names.
const mistakesMax = apierror.MaxErrors + 1

// schemaValidator validates one object by a schema; without one, whatever it is.
func schemaValidator(s *spec.Schema) schemavalidation.SchemaValidator {
	if s == nil {
		return nil
	}
	return schemavalidation.NewRatchetingSchemaValidator(s, nil, "", strfmt.Default, new(mistakes).bound)
}

// mistakes counts those of one object. What an update may keep, because it was so before, is none: when the library has decided so about a part,
// what was counted within is taken back.
type mistakes struct{ found int }

// bound comes between a validator and those of its parts, and into theirs.
func (m *mistakes) bound(o *validate.SchemaValidatorOptions) {
	index, name := o.NewValidatorForIndex, o.NewValidatorForField
	if index == nil {
		index = func(_ int, s *spec.Schema, root any, at string, f strfmt.Registry, more ...validate.Option) validate.ValueValidator {
			return validate.NewSchemaValidator(s, root, at, f, more...)
		}
	}
	if name == nil {
		name = func(_ string, s *spec.Schema, root any, at string, f strfmt.Registry, more ...validate.Option) validate.ValueValidator {
			return validate.NewSchemaValidator(s, root, at, f, more...)
		}
	}
	o.NewValidatorForIndex = func(i int, s *spec.Schema, root any, at string, f strfmt.Registry, more ...validate.Option) validate.ValueValidator {
		return &counted{index(i, s, root, at, f, append(more, m.bound)...), m}
	}
	o.NewValidatorForField = func(n string, s *spec.Schema, root any, at string, f strfmt.Registry, more ...validate.Option) validate.ValueValidator {
		return &counted{name(n, s, root, at, f, append(more, m.bound)...), m}
	}
}

// A counted validator looks at nothing once there are mistakes enough.
type counted struct {
	validate.ValueValidator
	all *mistakes
}

// Validate leaves out warnings, which nobody reads and which are compared with each other likewise.
func (c *counted) Validate(value any) *validate.Result {
	before := c.all.found
	if before >= mistakesMax {
		return new(validate.Result)
	}
	result := c.ValueValidator.Validate(value)
	c.all.found = before + len(result.Errors)
	result.Warnings = nil
	return result
}
