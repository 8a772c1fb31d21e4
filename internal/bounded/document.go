package bounded

// This file holds the bounds of an object's document. What crosses them is taken by one half of the world and not by the other: Go's
// encoders write times and depths that its decoders refuse. So an object is looked through once, as it is about to be stored, and whoever
// reads it later never meets what cannot be read.
//
//	what                            taken from a client as                   would be stored as           and read as
//	a year behind 9999              9999-12-31T23:59:59-01:00, any protobuf  "10000-01-01T00:59:59Z"      an error
//	a year before 0                 0000-01-01T00:00:00+01:00, any protobuf  "-001-12-31T23:00:00Z"       an error
//	a document that is too deep     9,999 levels, to which managedFields     10,003 levels                an error
//	                                add some
//	a protobuf message in itself    400,000 levels in 2 MB                   (the decoder calls itself    -
//	                                                                         until the stack ends)
//
// A string that only looks like such a time is a string: where one is found, the document is decoded, and that decides. Depth and strings
// are found in one pass over the bytes that allocates nothing; to decode every object again would cost some thirty times as much
// (BenchmarkVet has the figures).

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
)

const (
	DecoderDepth = 10_000            // levels of JSON that Go's decoders read, and of protobuf that this server does
	StoredDepth  = DecoderDepth - 16 // levels of a stored object: lists, events and reviews wrap it in a few of their own
	shownSteps   = 8                 // of a path in an error
	stepsMax     = 16 << 20          // of the ways to all members of a custom resource, together: managedFields walk each of them
)

// ErrTooDeep says that something is nested deeper than its decoder can follow. The words are those of Go's JSON.
var ErrTooDeep = errors.New("exceeded max depth")

// ---- JSON

// An Inspection is what a look through a document found.
type Inspection struct {
	Depth   int // levels of the deepest part
	Deepest int // where that begins
	OddTime int // where the first string begins that reads like a time of no four-digit year; 0 when there is none
}

// Inspect looks through JSON as this server's encoders write it.
func Inspect(doc []byte) (found Inspection) {
	depth := 0
	for i := 0; i < len(doc); i++ {
		switch doc[i] {
		case '{', '[':
			if depth++; depth > found.Depth {
				found.Depth, found.Deepest = depth, i
			}
		case '}', ']':
			depth--
		case '"':
			begin := i + 1
			i = endOfString(doc, begin)
			if found.OddTime == 0 && isOddTime(doc[begin:i]) {
				found.OddTime = begin
			}
		}
	}
	return found
}

// endOfString is where the quote lies that ends a string which begins at from.
func endOfString(doc []byte, from int) int {
	for i := from; ; {
		n := bytes.IndexByte(doc[i:], '"')
		if n < 0 {
			return len(doc)
		}
		i += n
		escapes := 0
		for i-escapes > from && doc[i-escapes-1] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return i
		}
		i++
	}
}

// isOddTime says that a string may be a time as encoders write it (in UTC, by a Z) of a year that decoders do not read.
func isOddTime(text []byte) bool {
	if len(text) < len("10000-01-01T00:00:00Z")-1 || text[len(text)-1] != 'Z' {
		return false
	}
	negative := text[0] == '-'
	if negative {
		text = text[1:]
	}
	digits := 0
	for digits < len(text) && '0' <= text[digits] && text[digits] <= '9' {
		digits++
	}
	return (negative || digits > 4) && digits > 0 && digits < len(text) && text[digits] == '-'
}

// PlaceIn names the place of a byte in a document as errors do: metadata.managedFields[0].time.
func PlaceIn(doc []byte, offset int) string {
	w := pathWalk{}
	for i := 0; i < offset && i < len(doc); i++ {
		switch doc[i] {
		case '{', '[':
			w.enter(doc[i] == '[')
		case '}', ']':
			w.leave()
		case ',':
			w.next()
		case '"':
			end := endOfString(doc, i+1)
			if end+1 < len(doc) && doc[end+1] == ':' {
				w.name(string(doc[i+1 : end]))
			}
			i = end
		}
	}
	return w.String()
}

// A pathWalk remembers the first steps of the way to where a walk through a document is.
type pathWalk struct {
	depth int
	steps [shownSteps]pathStep
}

type pathStep struct {
	name  string
	list  bool
	index int
}

func (w *pathWalk) enter(list bool) {
	if w.depth < shownSteps {
		w.steps[w.depth] = pathStep{list: list}
	}
	w.depth++
}

func (w *pathWalk) leave() { w.depth-- }

func (w *pathWalk) next() {
	if w.depth <= shownSteps {
		w.steps[w.depth-1].index++
	}
}

func (w *pathWalk) name(name string) {
	if w.depth <= shownSteps {
		w.steps[w.depth-1].name = name
	}
}

func (w *pathWalk) String() string {
	var out strings.Builder
	for _, s := range w.steps[:min(w.depth, shownSteps)] {
		switch {
		case s.list:
			out.WriteString("[" + strconv.Itoa(s.index) + "]")
		case out.Len() > 0:
			out.WriteString("." + s.name)
		default:
			out.WriteString(s.name)
		}
	}
	if w.depth > shownSteps {
		out.WriteString("...")
	}
	return out.String()
}

// errTooManySteps says that a document is so deep where it is wide that to tell who owns what in it takes seconds. 3 MiB of fields with
// names of one letter, each thirty levels deep, do not come near.
var errTooManySteps = errors.New("has too many fields nested too deep")

// CheckSteps looks through decoded JSON.
func CheckSteps(content map[string]any) error {
	if stepsLeft(content, 1, stepsMax) < 0 {
		return errTooManySteps
	}
	return nil
}

// stepsLeft takes from left the steps to each member of a value at a depth, and stops when none is left.
func stepsLeft(value any, depth, left int) int {
	switch v := value.(type) {
	case map[string]any:
		for _, member := range v {
			if left -= depth; left < 0 {
				return left
			}
			left = stepsLeft(member, depth+1, left)
		}
	case []any:
		for _, element := range v {
			left = stepsLeft(element, depth+1, left)
		}
	}
	return left
}

// ---- Protobuf

// checkNesting says whether a message of a Go type can be decoded without the decoder calling itself more than DecoderDepth times. Only
// types that contain themselves can be that deep (schemas of custom resources do); for all others there is nothing to look at. What is
// no sound message is left for the decoder to say.
func checkNesting(message reflect.Type, wire []byte) error {
	shape := shapeOf(message)
	if !shape.endless {
		return nil
	}
	return shape.walk(wire, 1)
}

// A wireShape is which fields of a message are messages themselves. It is complete before anybody else sees it, and never changes then.
type wireShape struct {
	fields  map[uint64]*wireShape
	endless bool // a message that contains itself is in it, or is it
}

// shapes are known by their Go type. What is kept is derived from the program alone.
var shapes sync.Map

func shapeOf(message reflect.Type) *wireShape {
	if known, ok := shapes.Load(message); ok {
		return known.(*wireShape)
	}
	s := &shaper{made: map[reflect.Type]*wireShape{}}
	known, _ := shapes.LoadOrStore(message, s.shape(message))
	return known.(*wireShape)
}

// A shaper makes the shapes of one type and all in it.
type shaper struct {
	made map[reflect.Type]*wireShape
	open []reflect.Type // on the way to where it is
}

func (s *shaper) shape(t reflect.Type) *wireShape {
	if known := s.made[t]; known != nil {
		known.endless = known.endless || slices.Contains(s.open, t) // and so is, by and by, all that has led here
		return known
	}
	shape := &wireShape{fields: map[uint64]*wireShape{}}
	s.made[t] = shape
	s.open = append(s.open, t)
	for i := range t.NumField() {
		number := fieldNumber(t.Field(i))
		if number == 0 {
			continue
		}
		if inner := s.value(t.Field(i).Type); inner != nil {
			shape.fields[number] = inner
			shape.endless = shape.endless || inner.endless
		}
	}
	s.open = s.open[:len(s.open)-1]
	return shape
}

// value is the shape of what a field of a Go type holds; nil for what is no message.
func (s *shaper) value(t reflect.Type) *wireShape {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice:
		return s.value(t.Elem())
	case reflect.Struct:
		return s.shape(t)
	case reflect.Map: // on the wire a list of entries, whose second field is the value
		if inner := s.value(t.Elem()); inner != nil {
			return &wireShape{fields: map[uint64]*wireShape{2: inner}, endless: inner.endless}
		}
	}
	return nil
}

// fieldNumber reads the number in a field's tag, `protobuf:"bytes,2,opt,name=spec"`; 0 when there is none.
func fieldNumber(f reflect.StructField) uint64 {
	parts := strings.Split(f.Tag.Get("protobuf"), ",")
	if len(parts) < 2 {
		return 0
	}
	n, _ := strconv.ParseUint(parts[1], 10, 32)
	return n
}

// walk looks at each byte once: what is no message is passed over by its length.
func (shape *wireShape) walk(wire []byte, depth int) error {
	if depth > DecoderDepth {
		return ErrTooDeep
	}
	for len(wire) > 0 {
		tag, content, rest, ok := nextField(wire)
		if !ok {
			return nil
		}
		wire = rest
		if inner := shape.fields[tag>>3]; inner != nil && inner.endless && content != nil {
			if err := inner.walk(content, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// nextField reads one field, with the content of one that has a length.
func nextField(wire []byte) (tag uint64, content, rest []byte, ok bool) {
	if tag, rest, ok = varint(wire); !ok {
		return 0, nil, nil, false
	}
	switch tag & 7 {
	case 0:
		_, rest, ok = varint(rest)
	case 1:
		_, rest, ok = cutWire(rest, 8)
	case 2:
		var length uint64
		if length, rest, ok = varint(rest); ok {
			content, rest, ok = cutWire(rest, length)
		}
	case 5:
		_, rest, ok = cutWire(rest, 4)
	case 3, 4: // the ends of groups, which decoders pass over one by one
	default:
		ok = false
	}
	return tag, content, rest, ok
}

// eachField visits the fields of a message that have a length. What is no sound message is left for the decoder to say.
func eachField(wire []byte, visit func(number uint64, content []byte) error) error {
	for len(wire) > 0 {
		tag, content, rest, ok := nextField(wire)
		if !ok {
			return nil
		}
		if tag&7 == 2 {
			if err := visit(tag>>3, content); err != nil {
				return err
			}
		}
		wire = rest
	}
	return nil
}

func varint(wire []byte) (n uint64, rest []byte, ok bool) {
	for i := 0; i < len(wire) && i < 10; i++ {
		n |= uint64(wire[i]&0x7f) << (7 * i)
		if wire[i] < 0x80 {
			return n, wire[i+1:], true
		}
	}
	return 0, nil, false
}

func cutWire(wire []byte, length uint64) (content, rest []byte, ok bool) {
	if length > uint64(len(wire)) {
		return nil, nil, false
	}
	return wire[:length], wire[length:], true
}
