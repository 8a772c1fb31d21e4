package bounded

// This file bounds how much memory a document takes when it becomes a value of a Go type. An element of a list is a struct, whatever of it is said:
//
//	{"spec":{"containers":[{},{},{},{}, ...]}}       three bytes become the 400 of a Container; 3 MB became 2.4 GB with the copies that are made
//
// The structs that a document asks for are added up before the first is made, by a walk through its bytes along the type. Documents that cannot be
// heavy, by the number of their commas, are not walked. What is stored already is not weighed: it has to be read.
//
// kube-apiserver makes them all.

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	weightMax = 32 << 20 // bytes of structs, lists and maps; texts are as long as they are in the document
	mapWeight = 64       // bytes of an entry beside its value

	// elementWeight is the least weight of an element of a list or map. Validation makes errors for it:
	// an empty port of a Service has four of 170 bytes.
	elementWeight = 512
)

var errHeavy = fmt.Errorf("the object would take more than %d MiB of memory", weightMax>>20)

// A weightShape is what values of one Go type take. nil stands for values that make nothing but themselves. It is complete before anybody else sees
// it, and never changes then.
type weightShape struct {
	names   map[string]weightField // of a struct, by JSON name
	numbers map[uint64]weightField // and by number in protobuf
	each    *weightField           // an element of a list, a value of a map
	isMap   bool
}

// A weightField is the shape of a value, and what it takes beside the struct that it is a field of.
type weightField struct {
	shape *weightShape
	bytes int64
}

// weightShapes are known by their Go type, with the weight of the heaviest value in it. What is kept is derived from the program alone.
var weightShapes sync.Map

type weightedType struct {
	shape    *weightShape
	heaviest int64
}

func weightsOf(t reflect.Type) weightedType {
	if known, ok := weightShapes.Load(t); ok {
		return known.(weightedType)
	}
	w := &weightShaper{made: map[reflect.Type]*weightShape{}}
	found := weightedType{shape: w.field(t).shape}
	found.heaviest = w.heaviest
	known, _ := weightShapes.LoadOrStore(t, found)
	return known.(weightedType)
}

// A weightShaper makes the shapes of one type and all in it.
type weightShaper struct {
	made     map[reflect.Type]*weightShape
	heaviest int64
}

// field is the shape of a value of a type, with what is made for it apart from the place that it has already.
func (w *weightShaper) field(t reflect.Type) weightField {
	switch t.Kind() {
	case reflect.Pointer:
		f := w.field(t.Elem())
		f.bytes += int64(t.Elem().Size())
		w.heaviest = max(w.heaviest, f.bytes)
		return f
	case reflect.Slice, reflect.Map:
		if t.Elem().Kind() == reflect.Uint8 {
			return weightField{}
		}
		each := w.field(t.Elem())
		if each.bytes += int64(t.Elem().Size()); t.Kind() == reflect.Map {
			each.bytes += mapWeight
		}
		each.bytes = max(each.bytes, elementWeight)
		w.heaviest = max(w.heaviest, each.bytes)
		return weightField{shape: &weightShape{each: &each, isMap: t.Kind() == reflect.Map}}
	case reflect.Struct:
		return w.structure(t)
	}
	return weightField{}
}

func (w *weightShaper) structure(t reflect.Type) weightField {
	if known := w.made[t]; known != nil {
		return weightField{shape: known}
	}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		if f, ok := t.FieldByName("Schema"); ok && t != reflect.TypeFor[resource.Quantity]() { // a schema, or something else in its place
			inner := w.field(f.Type)
			each := inner
			return weightField{shape: &weightShape{names: inner.shape.names, numbers: inner.shape.numbers, each: &each}, bytes: inner.bytes}
		}
		return weightField{}
	}
	shape := &weightShape{names: map[string]weightField{}, numbers: map[uint64]weightField{}}
	w.made[t] = shape
	for i := range t.NumField() {
		f := t.Field(i)
		inner := w.field(f.Type)
		if number := fieldNumber(f); number != 0 {
			shape.numbers[number] = inner
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && (name == "" || strings.Contains(options, "inline")) {
			if inner.shape != nil {
				for name, of := range inner.shape.names {
					shape.names[name] = of
				}
			}
			continue
		}
		shape.names[name] = inner
	}
	return weightField{shape: shape}
}

// checkWeight says whether JSON may be decoded into a Go type. What is no sound JSON is left for the decoder to say.
func checkWeight(doc []byte, t reflect.Type) error {
	const least = elementWeight // bytes per element that nobody need look at
	if int64(len(doc))*least <= weightMax/16 {
		return nil
	}
	known := weightsOf(t)
	if int64(bytes.Count(doc, []byte{','}))*known.heaviest <= weightMax {
		return nil
	}
	w := weighing{doc: doc, left: weightMax}
	w.value(known.shape, 0)
	if w.left < 0 {
		return errHeavy
	}
	return nil
}

// A weighing is a walk through a document.
type weighing struct {
	doc  []byte
	at   int
	left int64
}

// done says that the walk may end: all is spent, or read, or too deep for any decoder.
func (w *weighing) done(depth int) bool {
	return w.left < 0 || w.at >= len(w.doc) || depth > DecoderDepth
}

// value walks one value to the byte behind it.
func (w *weighing) value(shape *weightShape, depth int) {
	for !w.done(depth) {
		switch w.doc[w.at] {
		case '{', '[':
			w.inside(shape, depth+1)
			return
		case '"':
			w.at = min(len(w.doc), endOfString(w.doc, w.at+1)+1)
			return
		case ',', ']', '}':
			return
		}
		w.at++
	}
}

// inside walks an object or a list, whose bracket the walk is at, to the byte behind its end.
func (w *weighing) inside(shape *weightShape, depth int) {
	object := w.doc[w.at] == '{'
	w.at++
	var of weightField
	if shape != nil && shape.each != nil && object == shape.isMap {
		of = *shape.each
	}
	for begun := false; !w.done(depth); {
		switch c := w.doc[w.at]; {
		case c == '}' || c == ']':
			w.at++
			return
		case c == ',':
			begun = false
			w.at++
		case c == ':' || c == ' ' || c == '\n' || c == '\t' || c == '\r':
			w.at++
		case object && c == '"' && !begun:
			begun = true
			end := endOfString(w.doc, w.at+1)
			if shape != nil && shape.names != nil {
				of = shape.names[string(w.doc[w.at+1:min(end, len(w.doc))])]
			}
			w.at = end + 1
		default:
			w.left -= of.bytes
			w.value(of.shape, depth)
		}
	}
}

// checkWireWeight says whether protobuf may be decoded into a Go type. Its messages nest no deeper than checkNesting allows.
func checkWireWeight(wire []byte, t reflect.Type) error {
	known := weightsOf(t)
	if int64(len(wire)/2)*known.heaviest <= weightMax {
		return nil
	}
	left := int64(weightMax)
	return known.shape.weighWire(wire, &left)
}

func (s *weightShape) weighWire(wire []byte, left *int64) error {
	if s == nil {
		return nil
	}
	return eachField(wire, func(number uint64, content []byte) error {
		of := s.numbers[number]
		for of.shape != nil && of.shape.each != nil { // a list is as many fields, and so is a map, of entries whose second field is the value
			if *left -= of.shape.each.bytes; of.shape.isMap {
				content = entryValue(content)
			}
			of.shape = of.shape.each.shape
		}
		if *left -= of.bytes; *left < 0 {
			return errHeavy
		}
		return of.shape.weighWire(content, left)
	})
}

func entryValue(entry []byte) (value []byte) {
	_ = eachField(entry, func(number uint64, content []byte) error {
		if number == 2 {
			value = content
		}
		return nil
	})
	return value
}

// checkDecodedWeight says whether decoded JSON may be read into a Go type.
func checkDecodedWeight(value any, t reflect.Type) error {
	left := int64(weightMax)
	weightsOf(t).shape.weighDecoded(value, &left)
	if left < 0 {
		return errHeavy
	}
	return nil
}

func (s *weightShape) weighDecoded(value any, left *int64) {
	if s == nil {
		return
	}
	weigh := func(of weightField, member any) {
		if *left -= of.bytes; *left >= 0 {
			of.shape.weighDecoded(member, left)
		}
	}
	switch v := value.(type) {
	case []any:
		for i := 0; s.each != nil && i < len(v); i++ {
			weigh(*s.each, v[i])
		}
	case map[string]any:
		for name, member := range v {
			if of, known := s.names[name]; known {
				weigh(of, member)
			} else if s.isMap {
				weigh(*s.each, member)
			}
		}
	}
}

// TooHeavy says that a document was refused for the memory that it would take.
func TooHeavy(err error) bool { return errors.Is(err, errHeavy) }
