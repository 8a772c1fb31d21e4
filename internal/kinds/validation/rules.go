package validation

// This file contains the Checker, which is used to implement the rules that are not imported.
// There is a method for each kind of rule:
//
//	method                    error
//	Required, RequireAll, Need Required value, if the value is empty
//	Format, OptionalFormat    Invalid value, if the string does not have the format
//	RequiredFormat            both of the above
//	OneOf, RequiredOneOf      Unsupported value, if the string is not in the list (RequiredOneOf: or is empty)
//	Forbid                    Forbidden, if the field is set
//	unique                    Duplicate value, for the second of two equal keys
//	Immutable                 Invalid value: field is immutable
//
// A method takes the path of a struct and the name of a field, so that p.Child(name) is only built
// for an error. If the name is empty, the path of the struct is used. The rules for a struct are
// written like a table. The order is the same as in kube-apiserver:
//
//	c.RequiredFormat(p, "policyName", policy, validation.IsDNS1123Subdomain)
//	c.RequiredOneOf(p, "patchType", string(m.PatchType), mutationPatches)

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metavalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	selectorvalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"apilet/internal/apierror"
)

// A Format returns the errors of a string, or nil if it is well formed.
type Format func(string) []string

// A Checker collects the errors for an object in the order of the calls.
type Checker struct {
	Errs field.ErrorList
}

// at returns the path of a field, or p itself if name is empty.
func at(p *field.Path, name string) *field.Path {
	if name == "" {
		return p
	}
	return p.Child(name)
}

// mistakesKept is the maximum number of errors kept by a Checker. This is ten times the number of
// errors in a response, because some errors are reported twice.
const mistakesKept = 10 * apierror.MaxErrors

// Add adds errors. To save memory, each error beyond mistakesKept is replaced by a pointer to the
// last one kept. It is counted, but takes 8 bytes instead of about 200.
func (c *Checker) Add(errs ...*field.Error) {
	for _, err := range errs {
		if len(c.Errs) >= mistakesKept {
			err = c.Errs[mistakesKept-1]
		}
		c.Errs = append(c.Errs, err)
	}
}

// Invalid adds an error for an invalid value. detail describes the valid values.
func (c *Checker) Invalid(p *field.Path, name string, value any, detail string) {
	c.Add(field.Invalid(at(p, name), goForm(value), detail))
}

// Required adds an error for a missing value.
func (c *Checker) Required(p *field.Path, name, detail string) {
	c.Add(field.Required(at(p, name), detail))
}

// Need adds a Required error unless ok. detail gives the reason.
func (c *Checker) Need(p *field.Path, name string, ok bool, detail string) {
	if !ok {
		c.Required(p, name, detail)
	}
}

// Forbid adds an error if a forbidden field is set.
func (c *Checker) Forbid(p *field.Path, name string, set bool, detail string) {
	if set {
		c.Add(field.Forbidden(at(p, name), detail))
	}
}

// RequireAll takes pairs of field names and values, and adds an error if a value is empty.
func (c *Checker) RequireAll(p *field.Path, pairs ...string) {
	for i := 0; i < len(pairs); i += 2 {
		c.Need(p, pairs[i], pairs[i+1] != "", "")
	}
}

// Format adds an error if value does not have the format f.
func (c *Checker) Format(p *field.Path, name, value string, f Format) {
	for _, message := range f(value) {
		c.Invalid(p, name, value, message)
	}
}

// RequiredFormat adds an error if value is empty or does not have the format f.
func (c *Checker) RequiredFormat(p *field.Path, name, value string, f Format) {
	if value == "" {
		c.Required(p, name, "")
		return
	}
	c.Format(p, name, value, f)
}

// OptionalFormat adds an error if value is neither empty nor has the format f.
func (c *Checker) OptionalFormat(p *field.Path, name, value string, f Format) {
	if value != "" {
		c.Format(p, name, value, f)
	}
}

// Unsupported adds an error for a value that is not in allowed.
func (c *Checker) Unsupported(p *field.Path, name string, value any, allowed []string) {
	c.Add(field.NotSupported(at(p, name), goForm(value), allowed))
}

// OneOf adds an error if value is not in allowed.
func (c *Checker) OneOf(p *field.Path, name, value string, allowed []string) {
	if !slices.Contains(allowed, value) {
		c.Unsupported(p, name, value, allowed)
	}
}

// RequiredOneOf adds an error if value is empty or not in allowed.
func (c *Checker) RequiredOneOf(p *field.Path, name, value string, allowed []string) {
	if value == "" {
		c.Required(p, name, "")
		return
	}
	oneOf(c, p, name, enum(value), allowed)
}

// enum represents the string types of Kubernetes. Errors display their values as JSON.
type enum string

// oneOf is OneOf for a value that is not a plain string.
func oneOf[T ~string](c *Checker, p *field.Path, name string, value T, allowed []string) {
	if !slices.Contains(allowed, string(value)) {
		c.Unsupported(p, name, value, allowed)
	}
}

// oneOfRef is oneOf for a pointer. nil is allowed.
func oneOfRef[T ~string](c *Checker, p *field.Path, name string, value *T, allowed []string) {
	if value != nil {
		oneOf(c, p, name, *value, allowed)
	}
}

func (c *Checker) selector(p *field.Path, name string, selector *metav1.LabelSelector) {
	if selector != nil {
		c.Add(selectorvalidation.ValidateLabelSelector(selector, selectorvalidation.LabelSelectorValidationOptions{}, at(p, name))...)
	}
}

// Immutable adds an error if value differs from old.
func (c *Checker) Immutable(p *field.Path, name string, value, old any) {
	if !equality.Semantic.DeepEqual(old, value) {
		c.Invalid(p, name, value, metavalidation.FieldImmutableErrorMsg)
	}
}

// set contains the keys that have been seen.
type set map[string]bool

// unique adds an error if seen has the key, and adds the key to seen.
func (c *Checker) unique(p *field.Path, name string, seen set, key string) {
	if seen[key] {
		c.Add(field.Duplicate(at(p, name), key))
	}
	seen[key] = true
}

// goForm returns v so that it is printed like an internal type of Kubernetes, with the Go names of
// the fields.
func goForm(v any) any {
	switch v.(type) {
	case nil, string, int, int32, int64, bool, field.OmitValueType:
		return v
	}
	return goValue{reflect.ValueOf(v)}
}

type goValue struct{ reflect.Value }

// MarshalJSON encodes a struct of k8s.io/api with the Go names of its fields instead of their JSON
// names, and includes empty fields. Error messages of Kubernetes contain values in this form.
func (g goValue) MarshalJSON() ([]byte, error) {
	switch v := g.Value; {
	case v.Kind() == reflect.Pointer && !v.IsNil():
		return goValue{v.Elem()}.MarshalJSON()
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct && !v.IsNil():
		items := make([]goValue, v.Len())
		for i := range items {
			items[i] = goValue{v.Index(i)}
		}
		return json.Marshal(items)
	case v.Kind() != reflect.Struct || !strings.HasPrefix(v.Type().PkgPath(), "k8s.io/api/"):
		return json.Marshal(v.Interface())
	}
	members, err := g.members()
	return append(append([]byte{'{'}, bytes.Join(members, []byte{','})...), '}'), err
}

func (g goValue) members() (members [][]byte, err error) {
	for i := range g.NumField() {
		member, of := goValue{g.Field(i)}, g.Type().Field(i)
		text, err := member.MarshalJSON()
		if err != nil {
			return nil, err
		}
		if inline := of.Anonymous && member.Kind() == reflect.Struct; !inline {
			members = append(members, fmt.Appendf(nil, "%q:%s", of.Name, text))
		} else if text = text[1 : len(text)-1]; len(text) > 0 {
			members = append(members, text)
		}
	}
	return members, nil
}
