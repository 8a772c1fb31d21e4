package bounded

// This file checks the limits of documents. Some values can be encoded but not decoded: Go's
// encoders accept times and depths that its decoders reject. The server checks an object before
// it is stored, to ensure that it can be decoded later.
//
//	value                           received as                              would be stored as           and decoded as
//	a year after 9999               9999-12-31T23:59:59-01:00, any protobuf  "10000-01-01T00:59:59Z"      an error
//	a year before 0                 0000-01-01T00:00:00+01:00, any protobuf  "-001-12-31T23:00:00Z"       an error
//	a document that is too deep     9,999 levels, to which managedFields     10,003 levels                an error
//	                                add some
//	a recursive protobuf message    400,000 levels in 2 MB                   (the decoder recurses        -
//	                                                                         until the stack overflows)
//
// A string may only look like such a time. If one is found, the document is decoded, and the
// result decides. The scan for depth and strings reads the bytes only once and does not allocate
// memory. Decoding every object again would cost about thirty times as much (see BenchmarkVet).

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
	// levels of JSON that Go's decoders accept, and levels of protobuf that this package accepts
	DecoderDepth = 10_000
	// maximum levels of a stored object, which allows lists, events and reviews to add a few
	// levels
	StoredDepth = DecoderDepth - 16
	shownSteps  = 8 // steps of a path in an error
	// The maximum total length of the paths to all members of a custom resource. managedFields require a
	// walk along each path.
	stepsMax = 16 << 20
)

// ErrTooDeep means that the nesting is too deep for a decoder. The text is that of encoding/json.
var ErrTooDeep = errors.New("exceeded max depth")

// ---- JSON

// An Inspection is the result of Inspect.
type Inspection struct {
	Depth   int // levels of the deepest part
	Deepest int // offset of the deepest part
	// offset of the first string that may be a time without a four-digit year, or 0
	InvalidTime int
}

// Inspect scans JSON in the format of this server's encoders.
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
			if found.InvalidTime == 0 && isInvalidTime(doc[begin:i]) {
				found.InvalidTime = begin
			}
		}
	}
	return found
}

// endOfString returns the offset of the closing quote of a string whose content begins at from.
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

// isInvalidTime reports whether a string may be an encoded time (in UTC, with a Z) whose year
// decoders reject.
func isInvalidTime(text []byte) bool {
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

// PathAt returns the path to a byte of a document in the format of errors, as in
// metadata.managedFields[0].time.
func PathAt(doc []byte, offset int) string {
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

// A pathWalk records the first steps of the path to the current position of a walk.
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

// errTooManySteps means that tracking the fields of a wide and deep document would take seconds.
// The limit is far above 3 MiB of fields with names of one letter and a depth of thirty levels.
var errTooManySteps = errors.New("has too many fields nested too deep")

// CheckSteps returns an error if decoded JSON exceeds stepsMax.
func CheckSteps(content map[string]any) error {
	if stepsLeft(content, 1, stepsMax) < 0 {
		return errTooManySteps
	}
	return nil
}

// stepsLeft subtracts the length of the path to each member of value from left. It stops when
// left is negative.
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

// checkNesting returns an error if the decoder would recurse more than DecoderDepth times for a
// message. Only recursive types can be that deep, for example the schemas of custom resources.
// The other types are not checked. Malformed messages are ignored, because the decoder reports
// them.
func checkNesting(message reflect.Type, wire []byte) error {
	shape := shapeOf(message)
	if !shape.endless {
		return nil
	}
	return shape.walk(wire, 1)
}

// A wireShape lists the fields of a message that contain messages. It must not be modified after
// it is added to shapes.
type wireShape struct {
	fields  map[uint64]*wireShape
	endless bool // whether the message type is or contains a recursive type
}

// shapes caches the shapes by Go type. They depend only on the program.
var shapes sync.Map

func shapeOf(message reflect.Type) *wireShape {
	if known, ok := shapes.Load(message); ok {
		return known.(*wireShape)
	}
	s := &shaper{made: map[reflect.Type]*wireShape{}}
	known, _ := shapes.LoadOrStore(message, s.shape(message))
	return known.(*wireShape)
}

// A shaper builds the shape of a type, including all nested types.
type shaper struct {
	made map[reflect.Type]*wireShape
	open []reflect.Type // the types on the path to the current type
}

func (s *shaper) shape(t reflect.Type) *wireShape {
	if known := s.made[t]; known != nil {
		known.endless = known.endless || slices.Contains(s.open, t) // this also marks all types on the path
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

// value returns the shape of a field's content, or nil if it is not a message.
func (s *shaper) value(t reflect.Type) *wireShape {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice:
		return s.value(t.Elem())
	case reflect.Struct:
		return s.shape(t)
	case reflect.Map: // encoded as a list of entries, with the value in the second field
		if inner := s.value(t.Elem()); inner != nil {
			return &wireShape{fields: map[uint64]*wireShape{2: inner}, endless: inner.endless}
		}
	}
	return nil
}

// fieldNumber returns the number in a field's tag, `protobuf:"bytes,2,opt,name=spec"`, or 0 if
// there is none.
func fieldNumber(f reflect.StructField) uint64 {
	parts := strings.Split(f.Tag.Get("protobuf"), ",")
	if len(parts) < 2 {
		return 0
	}
	n, _ := strconv.ParseUint(parts[1], 10, 32)
	return n
}

// walk reads each byte once. A field that does not contain a recursive message is skipped by the
// encoded length.
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

// nextField reads one field. content is only set for fields with a length.
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
	case 3, 4: // start and end of a group, which a decoder skips
	default:
		ok = false
	}
	return tag, content, rest, ok
}

// eachField calls visit for all fields with a length. It ignores malformed messages, because the
// decoder reports them.
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
