package bounded

// This file decodes documents into values of Go types, and calls the checks that must precede the
// decoder. The checks are in the other files.

import (
	"cmp"
	"errors"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"
)

// Unmarshal decodes JSON into value as Kubernetes does. It returns an error if the document
// contains quantities that are out of range.
func Unmarshal(doc []byte, value any) error {
	if err := checkQuantities(doc, reflect.TypeOf(value).Elem()); err != nil {
		return err
	}
	return kjson.UnmarshalCaseSensitivePreserveInts(doc, value)
}

// UnmarshalStrict is Unmarshal for the body of a request. It also returns unknown and duplicate
// fields, and limits the memory of the result.
func UnmarshalStrict(doc []byte, value any) (strictErrs []error, err error) {
	t := reflect.TypeOf(value).Elem()
	if err := cmp.Or(checkQuantities(doc, t), checkWeight(doc, t)); err != nil {
		return nil, err
	}
	return kjson.UnmarshalStrict(doc, value)
}

// A WireMessage decodes itself from protobuf, and calls Unmarshal recursively for nested
// messages.
type WireMessage interface{ Unmarshal([]byte) error }

// UnmarshalWire decodes protobuf that a client sent.
func UnmarshalWire(message WireMessage, wire []byte) error {
	t := reflect.TypeOf(message).Elem()
	if err := errors.Join(checkNesting(t, wire), checkWireQuantities(wire, t)); err != nil {
		return err
	}
	if err := checkWireWeight(wire, t); err != nil {
		return err
	}
	return message.Unmarshal(wire)
}

// FromUnstructured converts decoded JSON to value. It returns an error if the document contains
// quantities that are out of range or would take too much memory. If strict is true, unknown
// fields result in an error that runtime.AsStrictDecodingError recognizes.
func FromUnstructured(members map[string]any, value any, strict bool) error {
	t := reflect.TypeOf(value).Elem()
	if places := quantitiesIn(t); places != nil {
		if err := places.checkDecoded(members); err != nil {
			return err
		}
	}
	if err := checkDecodedWeight(members, t); err != nil {
		return err
	}
	return runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(members, value, strict)
}
