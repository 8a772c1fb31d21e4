package crd

// This file limits the number of errors that the library collects for one object. The library
// compares the text of each new error with all earlier ones. It would take minutes to validate a
// list of a hundred thousand invalid items. This is only a few hundred kilobytes, and the body
// can be ten times as large. The library does not pass options to the alternatives of a schema
// (anyOf and the like), so errors within them are not limited.

import (
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"

	"apilet/internal/apierror"
)

// mistakesMax is one more than the maximum number of errors in a response.
const mistakesMax = apierror.MaxErrors + 1

// schemaValidator returns a validator of one object. If s is nil, every object is valid.
func schemaValidator(s *spec.Schema) schemavalidation.SchemaValidator {
	if s == nil {
		return nil
	}
	return schemavalidation.NewRatchetingSchemaValidator(s, nil, "", strfmt.Default, new(errorCounter).bound)
}

// errorCounter counts the errors of one object. If an update does not change the value, the library
// may ignore the errors. They are then subtracted.
type errorCounter struct{ found int }

// bound wraps the validators of all nested schemas.
func (m *errorCounter) bound(o *validate.SchemaValidatorOptions) {
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
		return &countingValidator{index(i, s, root, at, f, append(more, m.bound)...), m}
	}
	o.NewValidatorForField = func(n string, s *spec.Schema, root any, at string, f strfmt.Registry, more ...validate.Option) validate.ValueValidator {
		return &countingValidator{name(n, s, root, at, f, append(more, m.bound)...), m}
	}
}

// A countingValidator does nothing if there are already enough errors.
type countingValidator struct {
	validate.ValueValidator
	all *errorCounter
}

// Validate drops the warnings of the result. They are not used, but the library would spend time on
// comparing them with each other.
func (c *countingValidator) Validate(value any) *validate.Result {
	before := c.all.found
	if before >= mistakesMax {
		return new(validate.Result)
	}
	result := c.ValueValidator.Validate(value)
	c.all.found = before + len(result.Errors)
	result.Warnings = nil
	return result
}
