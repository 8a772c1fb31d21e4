package protobuf

// This file converts stored JSON to protobuf without an intermediate Go object, for the many
// objects of a list or a watch. It is ten times as expensive to decode the object.
//
// The tags of the fields describe the protobuf encoding. The generated methods are based on the
// same tags. A wireForm is built from the tags once for each type. The members of a struct are
// encoded in the order of the JSON and then sorted by their field numbers. Fields that the JSON
// omits but the generated code always writes are added:
//
//	{"name":"web","data":{"k":"v"}}    in the JSON    3: data   1: name
//	                                   in the result  1: name   2: "" (not a pointer, so always written)   3: data
//
// An inlined struct is a separate message in protobuf. In the JSON its members are mixed with the
// members of the enclosing struct.
//
// If a type implements json.Unmarshaler (RawExtension, MicroTime, unusual Quantities), the value
// is decoded and encoded by the methods of the type. If the JSON contains anything that the
// server itself would not store (whitespace, a duplicate member, a quoted number), Transcode
// returns false, and the caller decodes the object, which reports the error. So this file need
// not support every input, but each result is identical to the generated code's.

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	kjson "sigs.k8s.io/json"
)

// ---- Forms ----

type wireKind uint8

const (
	wireUnknown wireKind = iota // the caller must use the Go type's methods
	wireText
	wireBytes
	wireInt
	wireBool
	wireDouble
	wireTime
	wireQuantity
	wireIntOrText // IntOrString
	wireRaw       // FieldsV1: JSON inside protobuf
	wireOwn       // encoded by the type's own methods
	wireStruct    // a message, like the following kinds
	wireMap
)

// A wireForm describes the encoding of a Go type.
type wireForm struct {
	kind   wireKind
	goType reflect.Type
	fields []messageField        // of a struct, sorted by number
	leaves map[string]wireMember // of a struct, by JSON name, including the members of inlined structs
	count  int                   // number of leaves
	value  *wireForm             // form of a map's values
}

// A messageField describes a field of a message.
type messageField struct {
	number   int
	tag      []byte
	form     *wireForm
	repeated bool
	zero     []byte // the encoding if the value is omitted, or nil for pointers, lists and maps
	// index of the first leaf of the field
	leaf    int
	inlined bool
}

// A wireMember is the destination of a JSON member.
type wireMember struct {
	leaf  int
	field *messageField
}

// wireForms caches the complete forms, *wireForm by reflect.Type.
var wireForms sync.Map

func wireFormOf(t reflect.Type) *wireForm {
	if known, ok := wireForms.Load(t); ok {
		return known.(*wireForm)
	}
	m := formMaker{}
	form := m.form(t)
	for t, form := range m { // all forms are complete now
		wireForms.LoadOrStore(t, form)
	}
	return form
}

// A formMaker contains the forms that are not complete yet, because the type may be recursive.
type formMaker map[reflect.Type]*wireForm

func (m formMaker) form(t reflect.Type) *wireForm {
	if known, ok := wireForms.Load(t); ok {
		return known.(*wireForm)
	}
	if begun := m[t]; begun != nil {
		return begun
	}
	form := &wireForm{goType: t}
	m[t] = form
	pointer := reflect.PointerTo(t)
	readsItself := pointer.Implements(reflect.TypeFor[json.Unmarshaler]())
	switch writesItself := pointer.Implements(reflect.TypeFor[Message]()); {
	case t == reflect.TypeFor[metav1.Time]():
		form.kind = wireTime
	case t == reflect.TypeFor[apiresource.Quantity]():
		form.kind = wireQuantity
	case t == reflect.TypeFor[intstr.IntOrString]():
		form.kind = wireIntOrText
	case t == reflect.TypeFor[metav1.FieldsV1]():
		form.kind = wireRaw
	case writesItself && t.Kind() == reflect.Struct && !readsItself:
		form.kind = wireStruct
		m.fill(form)
	case writesItself:
		form.kind = wireOwn
	case !readsItself:
		m.plain(form)
	}
	return form
}

// plain sets the form if the type is not a message.
func (m formMaker) plain(form *wireForm) {
	switch t := form.goType; t.Kind() {
	case reflect.String:
		form.kind = wireText
	case reflect.Bool:
		form.kind = wireBool
	case reflect.Int32, reflect.Int64:
		form.kind = wireInt
	case reflect.Float64:
		form.kind = wireDouble
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			form.kind = wireBytes
		}
	case reflect.Map:
		value := m.form(t.Elem())
		if t.Key().Kind() == reflect.String && slices.Contains([]wireKind{wireText, wireBytes, wireTime, wireQuantity, wireOwn, wireStruct}, value.kind) {
			form.kind, form.value = wireMap, value
		}
	}
}

// fill sets the fields of a struct from the tags. If a field is not supported, the whole struct
// is left to its Go type.
func (m formMaker) fill(form *wireForm) {
	form.leaves = map[string]wireMember{}
	for i := range form.goType.NumField() {
		field := form.goType.Field(i)
		tag, _, _ := strings.Cut(field.Tag.Get("protobuf"), ",name=")
		parts := strings.Split(tag, ",")
		if tag == "" || tag == "-" {
			continue
		}
		number, err := strconv.Atoi(parts[min(1, len(parts)-1)])
		if err != nil {
			form.kind = wireUnknown
			return
		}
		form.fields = append(form.fields, m.field(field, number))
	}
	slices.SortFunc(form.fields, func(a, b messageField) int { return a.number - b.number })
	for i := range form.fields {
		f := &form.fields[i]
		f.leaf = form.count
		form.count += m.leavesOf(form, f)
		if f.form.kind == wireUnknown {
			form.kind = wireUnknown
		}
	}
}

// leavesOf enters the JSON names of a field and returns their number.
func (m formMaker) leavesOf(form *wireForm, f *messageField) int {
	field := fieldNumbered(form.goType, f.number)
	name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
	if f.inlined = field.Anonymous && (name == "" || strings.Contains(options, "inline")); f.inlined {
		if f.form.kind != wireStruct || f.repeated || field.Type.Kind() != reflect.Struct {
			form.kind = wireUnknown
			return 0
		}
		for name, inner := range f.form.leaves {
			form.enter(name, wireMember{f.leaf + inner.leaf, inner.field})
		}
		return f.form.count
	}
	if name == "" {
		name = field.Name
	}
	form.enter(name, wireMember{f.leaf, f})
	return 1
}

func (form *wireForm) enter(name string, member wireMember) {
	if _, twice := form.leaves[name]; twice {
		form.kind = wireUnknown
	}
	form.leaves[name] = member
}

func fieldNumbered(t reflect.Type, number int) reflect.StructField {
	for i := range t.NumField() {
		if parts := strings.Split(t.Field(i).Tag.Get("protobuf"), ","); len(parts) > 1 && parts[1] == strconv.Itoa(number) {
			return t.Field(i)
		}
	}
	return reflect.StructField{}
}

// field returns the form of one field. Its tag combines the field number and the wire type.
func (m formMaker) field(field reflect.StructField, number int) messageField {
	f, t := messageField{number: number}, field.Type
	optional := t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	f.form = m.form(t)
	if f.form.kind == wireUnknown && t.Kind() == reflect.Slice {
		f.repeated, f.form = true, m.form(t.Elem())
	}
	wireType := uint64(2)
	switch f.form.kind {
	case wireInt, wireBool:
		wireType = 0
	case wireDouble:
		wireType = 1
	}
	f.tag = binary.AppendUvarint(nil, uint64(number)<<3|wireType)
	if optional {
		return f
	}
	f.zero = slices.Clone(f.tag)
	switch zero, isMessage := reflect.New(t).Interface().(Message); {
	case isMessage:
		size := zero.Size()
		f.zero, _ = AppendMessage(binary.AppendUvarint(f.zero, uint64(size)), zero, size)
	case f.form.kind == wireDouble:
		f.zero = append(f.zero, make([]byte, 8)...)
	default:
		f.zero = append(f.zero, 0)
	}
	return f
}

// ---- Encoding ----

// A transcoder reads one JSON document and appends protobuf. Its methods return false if the
// server would not store such a document.
type transcoder struct {
	in   []byte
	at   int // offset in in
	out  []byte
	segs []wireSeg // the segments of the current structs, with the innermost struct at the end
}

// A wireSeg is the range of a leaf's encoding in out. end is 0 until the leaf is encoded.
type wireSeg struct{ start, end int }

// Transcode appends the protobuf message for a JSON document of the Go type t.
func Transcode(dst, doc []byte, t reflect.Type) ([]byte, bool) {
	form := wireFormOf(t)
	if form.kind != wireStruct {
		return dst, false
	}
	tc := transcoders.Get().(*transcoder)
	defer transcoders.Put(tc)
	tc.in, tc.at, tc.out, tc.segs = doc, 0, dst, tc.segs[:0]
	ok := tc.structure(form, nil) && tc.at == len(doc)
	out := tc.out
	tc.in, tc.out = nil, nil
	if !ok {
		return out[:len(dst)], false
	}
	return out, true
}

var transcoders = sync.Pool{New: func() any { return new(transcoder) }}

// take consumes the next byte if it is c.
func (tc *transcoder) take(c byte) bool {
	if tc.at < len(tc.in) && tc.in[tc.at] == c {
		tc.at++
		return true
	}
	return false
}

// null consumes a null, which is the same as an omitted member.
func (tc *transcoder) null() bool {
	if len(tc.in)-tc.at >= 4 && string(tc.in[tc.at:tc.at+4]) == "null" {
		tc.at += 4
		return true
	}
	return false
}

// structure reads an object and appends its message, preceded by tag and length if tag is not
// nil.
func (tc *transcoder) structure(form *wireForm, tag []byte) bool {
	if form.kind != wireStruct || !tc.take('{') {
		return false
	}
	start, base := len(tc.out), len(tc.segs)
	for range form.count {
		tc.segs = append(tc.segs, wireSeg{})
	}
	for first := true; !tc.take('}'); first = false {
		if !first && !tc.take(',') || !tc.member(form, base) {
			return false
		}
	}
	segs := tc.segs[base:]
	end := len(tc.out)
	if tag != nil {
		tc.out = binary.AppendUvarint(append(tc.out, tag...), uint64(form.size(segs)))
	}
	tc.out = form.assemble(tc.out, tc.out, segs)
	tc.out = tc.out[:start+copy(tc.out[start:], tc.out[end:])]
	tc.segs = tc.segs[:base]
	return true
}

// member reads a name and its value.
func (tc *transcoder) member(form *wireForm, base int) bool {
	name, ok := tc.text()
	if !ok || !tc.take(':') {
		return false
	}
	to, known := form.leaves[string(name)]
	if !known {
		_, ok := tc.skip()
		return ok
	}
	if tc.null() {
		return true
	}
	start := len(tc.out)
	if to.field.repeated {
		ok = tc.list(to.field)
	} else {
		ok = tc.value(to.field.form, to.field.tag)
	}
	seg := &tc.segs[base+to.leaf]
	if seg.end != 0 {
		return false // duplicate member
	}
	*seg = wireSeg{start, len(tc.out)}
	return ok && seg.end > 0
}

func (form *wireForm) size(segs []wireSeg) (n int) {
	for i := range form.fields {
		f := &form.fields[i]
		if f.inlined {
			inner := f.form.size(segs[f.leaf:])
			n += len(f.tag) + uvarintSize(uint64(inner)) + inner
		} else if seg := segs[f.leaf]; seg.end > 0 {
			n += seg.end - seg.start
		} else {
			n += len(f.zero)
		}
	}
	return n
}

// assemble appends a struct's fields, sorted by number.
func (form *wireForm) assemble(dst, from []byte, segs []wireSeg) []byte {
	for i := range form.fields {
		f := &form.fields[i]
		if f.inlined {
			dst = binary.AppendUvarint(append(dst, f.tag...), uint64(f.form.size(segs[f.leaf:])))
			dst = f.form.assemble(dst, from, segs[f.leaf:])
		} else if seg := segs[f.leaf]; seg.end > 0 {
			dst = append(dst, from[seg.start:seg.end]...)
		} else {
			dst = append(dst, f.zero...)
		}
	}
	return dst
}

// list reads the values of a repeated field.
func (tc *transcoder) list(f *messageField) bool {
	if !tc.take('[') {
		return false
	}
	for first := true; !tc.take(']'); first = false {
		if !first && !tc.take(',') || !tc.value(f.form, f.tag) {
			return false
		}
	}
	return true
}

// value reads a value and appends its tag and encoding.
func (tc *transcoder) value(form *wireForm, tag []byte) bool {
	switch form.kind {
	case wireStruct:
		return tc.structure(form, tag)
	case wireMap:
		return tc.dictionary(form, tag)
	case wireText:
		text, ok := tc.text()
		tc.bytes(tag, text)
		return ok
	case wireBytes:
		text, ok := tc.text()
		raw, err := base64.StdEncoding.DecodeString(string(text))
		tc.bytes(tag, raw)
		return ok && err == nil
	case wireTime:
		return tc.time(tag)
	case wireQuantity:
		return tc.quantity(form, tag)
	case wireIntOrText:
		return tc.intOrText(tag)
	case wireRaw:
		raw, ok := tc.skip()
		tc.out = binary.AppendUvarint(append(tc.out, tag...), uint64(FieldSize(len(raw))))
		tc.out = append(AppendLength(tc.out, Field1, int64(len(raw))), raw...)
		return ok
	case wireOwn:
		return tc.own(form, tag)
	}
	return tc.scalar(form, tag)
}

// bytes appends a tag, a length and text.
func (tc *transcoder) bytes(tag, text []byte) {
	tc.out = append(binary.AppendUvarint(append(tc.out, tag...), uint64(len(text))), text...)
}

// scalar reads a number or a boolean.
func (tc *transcoder) scalar(form *wireForm, tag []byte) bool {
	raw, ok := tc.skip()
	text, tagged := string(raw), append(tc.out, tag...)
	switch {
	case !ok:
	case form.kind == wireBool && (text == "true" || text == "false"):
		tc.out = append(tagged, byte(len("false")-len(text)))
	case form.kind == wireInt:
		n, err := strconv.ParseInt(text, 10, form.goType.Bits())
		tc.out = binary.AppendUvarint(tagged, uint64(n))
		return err == nil
	case form.kind == wireDouble:
		n, err := strconv.ParseFloat(text, 64)
		tc.out = binary.LittleEndian.AppendUint64(tagged, math.Float64bits(n))
		return err == nil
	default:
		return false
	}
	return ok
}

// time reads a metav1.Time, which is encoded in seconds.
func (tc *transcoder) time(tag []byte) bool {
	text, ok := tc.text()
	at, err := time.Parse(time.RFC3339, string(text))
	if !ok || err != nil || at.IsZero() {
		return false
	}
	seconds := uint64(at.Unix())
	tc.out = append(append(tc.out, tag...), byte(uvarintSize(seconds)+3))
	tc.out = append(binary.AppendUvarint(append(tc.out, 1<<3), seconds), 2<<3, 0)
	return true
}

func uvarintSize(n uint64) int {
	var varint [binary.MaxVarintLen64]byte
	return binary.PutUvarint(varint[:], n)
}

// quantity reads a Quantity, which is encoded as the canonical text. Most texts are already
// canonical.
func (tc *transcoder) quantity(form *wireForm, tag []byte) bool {
	start := tc.at
	text, ok := tc.text()
	if !ok || !canonical(text) {
		tc.at = start
		return tc.own(form, tag)
	}
	tc.out = append(append(tc.out, tag...), byte(len(text)+2), Field1, byte(len(text)))
	tc.out = append(tc.out, text...)
	return true
}

// canonical reports whether the quantity is known to be in canonical form. It only returns true
// for a short number that is not a multiple of the base. It may return false for other canonical
// texts.
func canonical(text []byte) bool {
	n, digits := 0, 0
	for digits < len(text) && digits < 9 && text[digits] >= '0' && text[digits] <= '9' {
		n = 10*n + int(text[digits]-'0')
		digits++
	}
	if digits == 0 || text[0] == '0' {
		return string(text) == "0"
	}
	switch string(text[digits:]) {
	case "", "m", "k", "M", "G":
		return n%1000 != 0
	case "Ki", "Mi", "Gi":
		return n%1024 != 0
	}
	return false
}

// intOrText reads an IntOrString. Field 1 is the type, 2 the number and 3 the text.
func (tc *transcoder) intOrText(tag []byte) bool {
	text, isText := tc.text()
	var number int64
	if !isText {
		raw, ok := tc.skip()
		n, err := strconv.ParseInt(string(raw), 10, 32)
		if !ok || err != nil {
			return false
		}
		number = n
	}
	kind := byte(intstr.Int)
	if isText {
		kind = byte(intstr.String)
	}
	size := 3 + uvarintSize(uint64(number)) + FieldSize(len(text))
	tc.out = binary.AppendUvarint(append(tc.out, tag...), uint64(size))
	tc.out = binary.AppendUvarint(append(tc.out, 1<<3, kind, 2<<3), uint64(number))
	tc.out = append(AppendLength(tc.out, 3<<3|2, int64(len(text))), text...)
	return true
}

// own uses the methods of the type to decode and encode the value.
func (tc *transcoder) own(form *wireForm, tag []byte) bool {
	raw, ok := tc.skip()
	if !ok {
		return false
	}
	value := reflect.New(form.goType).Interface()
	if kjson.UnmarshalCaseSensitivePreserveInts(raw, value) != nil {
		return false
	}
	m := value.(Message)
	size := m.Size()
	out, err := AppendMessage(binary.AppendUvarint(append(tc.out, tag...), uint64(size)), m, size)
	tc.out = out
	return err == nil
}

var tag1, tag2 = []byte{Field1}, []byte{Field2}

// dictionary reads a map. The keys are sorted in JSON and in protobuf. An entry is encoded as a
// message with the key and the value.
func (tc *transcoder) dictionary(form *wireForm, tag []byte) bool {
	if !tc.take('{') {
		return false
	}
	var last []byte
	for first := true; !tc.take('}'); first = false {
		if !first && !tc.take(',') {
			return false
		}
		start := len(tc.out)
		key, ok := tc.text()
		if !ok || !tc.take(':') || !first && bytes.Compare(key, last) <= 0 || tc.null() {
			return false
		}
		last = key
		tc.bytes(tag1, key)
		if !tc.value(form.value, tag2) {
			return false
		}
		var head [2 * binary.MaxVarintLen64]byte
		tc.out = slices.Insert(tc.out, start, binary.AppendUvarint(append(head[:0], tag...), uint64(len(tc.out)-start))...)
	}
	return true
}

// text reads a string.
func (tc *transcoder) text() ([]byte, bool) {
	if tc.at >= len(tc.in) || tc.in[tc.at] != '"' {
		return nil, false
	}
	raw, ok := tc.skip()
	if !ok || len(raw) < 2 {
		return nil, false
	}
	if inner := raw[1 : len(raw)-1]; slices.Index(inner, '\\') < 0 {
		return inner, true
	}
	var text string
	err := json.Unmarshal(raw, &text)
	return []byte(text), err == nil
}

// skip reads a value of any kind and returns its JSON.
func (tc *transcoder) skip() ([]byte, bool) {
	start, depth := tc.at, 0
	for tc.at < len(tc.in) {
		switch c := tc.in[tc.at]; c {
		case '"':
			if !tc.skipText() {
				return nil, false
			}
			if depth == 0 {
				return tc.in[start:tc.at], true
			}
			continue
		case '{', '[':
			depth++
		case '}', ']', ',', ':':
			if depth == 0 {
				return tc.in[start:tc.at], tc.at > start
			}
			if c == '}' || c == ']' {
				if depth--; depth == 0 {
					tc.at++
					return tc.in[start:tc.at], true
				}
			}
		case ' ', '\t', '\n', '\r':
			return nil, false
		}
		tc.at++
	}
	return nil, false
}

func (tc *transcoder) skipText() bool {
	for tc.at++; tc.at < len(tc.in); tc.at++ {
		switch tc.in[tc.at] {
		case '\\':
			tc.at++
		case '"':
			tc.at++
			return true
		}
	}
	return false
}

// A Message is a Go type with generated protobuf methods, as all types of k8s.io/api, Status and
// ObjectMeta are.
type Message interface {
	Size() int
	MarshalToSizedBuffer([]byte) (int, error)
}

// AsMessage returns obj as a message, or an error if its type has no protobuf encoding.
func AsMessage(obj any) (Message, error) {
	if m, ok := obj.(Message); ok {
		return m, nil
	}
	return nil, fmt.Errorf("%T has no protobuf form", obj)
}

// AppendMessage appends the encoded message, which must have the given size.
func AppendMessage(dst []byte, m Message, size int) ([]byte, error) {
	dst = slices.Grow(dst, size)
	room := dst[len(dst) : len(dst)+size]
	n, err := m.MarshalToSizedBuffer(room)
	if err == nil && n != size {
		err = fmt.Errorf("%T is %d bytes of protobuf, %d were expected", m, n, size)
	}
	return dst[:len(dst)+size], err
}

// AppendField appends a field with the given tag that holds a message.
func AppendField(dst []byte, tag byte, m Message) ([]byte, error) {
	size := m.Size()
	return AppendMessage(AppendLength(dst, tag, int64(size)), m, size)
}

// AppendLength appends the tag and the length of a field.
func AppendLength(dst []byte, tag byte, length int64) []byte {
	return binary.AppendUvarint(append(dst, tag), uint64(length))
}

// AppendString appends a string field, even if text is empty.
func AppendString(dst []byte, tag byte, text string) []byte {
	return append(AppendLength(dst, tag, int64(len(text))), text...)
}

// FieldSize returns the size of a field with the given length.
func FieldSize(length int) int {
	var varint [binary.MaxVarintLen64]byte
	return 1 + binary.PutUvarint(varint[:], uint64(length)) + length
}

// AppendEnvelope appends the start of an envelope. The caller must append the object's encoding,
// which has length bytes, and EnvelopeEnd.
func AppendEnvelope(dst []byte, apiVersion, kind string, length int64) []byte {
	dst = append(dst, ProtobufPrefix...)
	dst = AppendLength(dst, Field1, int64(FieldSize(len(apiVersion))+FieldSize(len(kind))))
	dst = AppendString(AppendString(dst, Field1, apiVersion), Field2, kind)
	return AppendLength(dst, Field2, length)
}

// AppendInEnvelope appends a message in its envelope.
func AppendInEnvelope(dst []byte, apiVersion, kind string, m Message) ([]byte, error) {
	size := m.Size()
	dst, err := AppendMessage(AppendEnvelope(dst, apiVersion, kind, int64(size)), m, size)
	return append(dst, EnvelopeEnd...), err
}

const (
	Field1 = 1<<3 | 2 // tag of field 1 with a length, for bytes, strings and messages
	Field2 = 2<<3 | 2 // the same for field 2
)

// EnvelopeEnd is the end of an envelope.
const EnvelopeEnd = "\x1a\x00\x22\x00"

// ProtobufPrefix starts every protobuf body. It is followed by a runtime.Unknown, which holds the
// kind, the apiVersion and the encoded object.
var ProtobufPrefix = []byte("k8s\x00")
