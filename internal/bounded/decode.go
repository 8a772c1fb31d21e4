package bounded

// This file: the ways in which a document becomes a value of a Go type, each with the looks that come before. The other files are the looks.

import (
	"cmp"
	"errors"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"
)

// Unmarshal reads JSON into what value points to, as Kubernetes does, unless it holds quantities that are out of range.
func Unmarshal(doc []byte, value any) error {
	if err := checkQuantities(doc, reflect.TypeOf(value).Elem()); err != nil {
		return err
	}
	return kjson.UnmarshalCaseSensitivePreserveInts(doc, value)
}

// UnmarshalStrict is Unmarshal for what a client has sent: it tells of unknown and duplicate fields, and bounds what is made of the document.
func UnmarshalStrict(doc []byte, value any) (strictErrs []error, err error) {
	t := reflect.TypeOf(value).Elem()
	if err := cmp.Or(checkQuantities(doc, t), checkWeight(doc, t)); err != nil {
		return nil, err
	}
	return kjson.UnmarshalStrict(doc, value)
}

// A WireMessage decodes itself from protobuf, and calls itself for each message within.
type WireMessage interface{ Unmarshal([]byte) error }

// UnmarshalWire is the way of all protobuf that a client sends.
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

// FromUnstructured reads decoded JSON into what value points to, unless it holds quantities that are out of range; strict as UnmarshalStrict, by
// an error that runtime.AsStrictDecodingError knows.
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
