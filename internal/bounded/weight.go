package bounded

// This file limits the memory of decoded documents. Every element of a list is decoded into a
// complete struct, even if the JSON is empty:
//
//	{"spec":{"containers":[{},{},{},{}, ...]}}       three bytes become a Container of 400; 3 MB became 2.4 GB with all copies
//
// The sizes of these structs are added up before any of them is allocated, by a walk through the
// bytes along the Go type. The walk is skipped if a document has too few commas to exceed the
// limit. Stored documents are not checked, because the server must be able to read them.
//
// kube-apiserver has no such limit.

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
	weightMax = 32 << 20 // maximum bytes of structs, lists and maps; strings are not included
	mapWeight = 64       // additional bytes for an entry

	// elementWeight is the minimum weight of an element of a list or map, because validation may
	// return errors for the element. For example, an empty port of a Service results in four
	// errors of 170 bytes.
	elementWeight = 512
)

var errTooLarge = fmt.Errorf("the object would take more than %d MiB of memory", weightMax>>20)

// A weightShape describes the memory for values of a Go type. If it is nil, the values do not
// need additional memory. It must not be modified after it is added to weightShapes.
type weightShape struct {
	names   map[string]weightField // fields of a struct by JSON name
	numbers map[uint64]weightField // the same fields by number in protobuf
	each    *weightField           // the elements of a list, or the values of a map
	isMap   bool
}

// A weightField describes the memory for the value of a field, in addition to the size of the
// field.
type weightField struct {
	shape *weightShape
	bytes int64
}

// weightShapes caches the shapes by Go type, with the weight of the heaviest value in each. They
// depend only on the program.
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

// A weightShaper builds the shape of a type, including all nested types.
type weightShaper struct {
	made     map[reflect.Type]*weightShape
	heaviest int64
}

// field returns the shape of a value and the memory that is allocated for it separately.
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
		// either a schema or an alternative, such as a boolean
		if f, ok := t.FieldByName("Schema"); ok && t != reflect.TypeFor[resource.Quantity]() {
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

// checkWeight returns errTooLarge if JSON must not be decoded into a Go type. It ignores malformed
// JSON, because the decoder reports it.
func checkWeight(doc []byte, t reflect.Type) error {
	const least = elementWeight // assumed weight of a byte; small documents are not checked
	if int64(len(doc))*least <= weightMax/16 {
		return nil
	}
	known := weightsOf(t)
	if int64(bytes.Count(doc, []byte{','}))*known.heaviest <= weightMax {
		return nil
	}
	w := weightScan{doc: doc, left: weightMax}
	w.value(known.shape, 0)
	if w.left < 0 {
		return errTooLarge
	}
	return nil
}

// A weighing is a scan of the document.
type weightScan struct {
	doc  []byte
	at   int
	left int64
}

// done reports whether the walk ends: the limit is exceeded, the document is read, or it is too
// deep for any decoder.
func (w *weightScan) done(depth int) bool {
	return w.left < 0 || w.at >= len(w.doc) || depth > DecoderDepth
}

// value walks to the end of one value.
func (w *weightScan) value(shape *weightShape, depth int) {
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

// inside walks to the end of an object or list whose opening bracket is at the current position.
func (w *weightScan) inside(shape *weightShape, depth int) {
	object := w.doc[w.at] == '{'
	w.at++
	var of weightField
	if shape != nil && shape.each != nil && object == shape.isMap {
		of = *shape.each
	}
	for started := false; !w.done(depth); {
		switch c := w.doc[w.at]; {
		case c == '}' || c == ']':
			w.at++
			return
		case c == ',':
			started = false
			w.at++
		case c == ':' || c == ' ' || c == '\n' || c == '\t' || c == '\r':
			w.at++
		case object && c == '"' && !started:
			started = true
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

// checkWireWeight returns errTooLarge if protobuf must not be decoded into a Go type. checkNesting
// must have limited the depth of the message.
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
		// A list is encoded as repeated fields. A map is encoded as repeated entries, with the
		// value in the second field.
		for of.shape != nil && of.shape.each != nil {
			if *left -= of.shape.each.bytes; of.shape.isMap {
				content = entryValue(content)
			}
			of.shape = of.shape.each.shape
		}
		if *left -= of.bytes; *left < 0 {
			return errTooLarge
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

// checkDecodedWeight returns errTooLarge if decoded JSON must not be converted to a Go type.
func checkDecodedWeight(value any, t reflect.Type) error {
	left := int64(weightMax)
	weightsOf(t).shape.weighDecoded(value, &left)
	if left < 0 {
		return errTooLarge
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

// IsTooLarge reports whether err means that the decoded document would be too large.
func IsTooLarge(err error) bool { return errors.Is(err, errTooLarge) }
