package bounded

// This file rejects quantities for which resource.ParseQuantity would compute for hours.
// Kubernetes' quantities are decimals of arbitrary precision, so ten bytes are enough:
//
//	text                      becomes                                                  costs
//	"1e-2147483648"           1n: the library rounds up, dividing by a power of ten    2³¹ digits, immediately: hours of CPU time
//	"1e2147483647"            unchanged                                                as many, when it is compared or added
//	3 MB of digits            unchanged                                                the square of their number, when they are encoded
//
// It takes less than a microsecond to parse a quantity if it has at most quantityBytes and an
// exponent of at most two digits. All other quantities are rejected when a document is decoded.
// The Go type identifies them, because a string of the same form in an annotation is just a
// string. Most documents only need a scan of the bytes. The few documents with suspicious numbers
// are walked along the fields of the Go type.
//
// kube-apiserver accepts such quantities and never responds.

import (
	"cmp"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"github.com/tidwall/gjson"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
)

const quantityBytes = 64 // maximum length of a quantity, which is more than any useful number needs

// ErrQuantityRange is returned if a quantity is too long, too large or too small.
var ErrQuantityRange = errors.New("quantities must have at most 64 characters and an exponent of at most two digits")

// CheckQuantity returns an error if the text of a quantity must not be parsed.
func CheckQuantity(text string) error {
	if len(text) > quantityBytes {
		return ErrQuantityRange
	}
	if at := strings.LastIndexAny(text, "eE"); at >= 0 && len(strings.TrimLeft(text[at+1:], "+-0")) > 2 {
		return ErrQuantityRange
	}
	return nil
}

// checkQuantities returns an error if t contains a resource.Quantity whose value in the JSON
// document would take too long to process.
func checkQuantities(doc []byte, t reflect.Type) error {
	places := quantitiesIn(t)
	if places == nil || !hasLargeNumber(doc) {
		return nil
	}
	return places.check(gjson.ParseBytes(doc))
}

// checkWireQuantities is like checkQuantities for a document in protobuf.
func checkWireQuantities(wire []byte, t reflect.Type) error {
	places := quantitiesIn(t)
	if places == nil || !hasLargeNumber(wire) {
		return nil
	}
	return places.checkWire(wire)
}

// hasLargeNumber reports whether doc may contain a quantity that is out of range. It searches for a
// long sequence of digits, and for a digit or point that is followed by an e and three digits.
// Few other documents contain these. Quantities are decoded without unescaping, so escaped digits
// need not be considered.
func hasLargeNumber(doc []byte) bool {
	digits := 0
	for i, c := range doc {
		switch {
		case c-'0' < 10 || c == '.':
			digits++
		case digits == 0:
		case digits > quantityBytes/2 || c|0x20 == 'e' && longExponent(doc[i+1:]):
			return true
		default:
			digits = 0
		}
	}
	return digits > quantityBytes/2
}

func longExponent(rest []byte) bool {
	if len(rest) > 0 && (rest[0] == '+' || rest[0] == '-') {
		rest = rest[1:]
	}
	for i := range 3 {
		if i >= len(rest) || rest[i] < '0' || rest[i] > '9' {
			return false
		}
	}
	return true
}

// quantityPlaces describes the fields of a Go type that contain quantities. A nil value means
// that there are no such fields. The value must not be modified after it is added to
// quantityTypes.
type quantityPlaces struct {
	itself  bool            // the value is a quantity
	each    *quantityPlaces // the elements of a list or map
	isMap   bool
	names   map[string]*quantityPlaces // fields of a struct by JSON name
	numbers map[uint64]*quantityPlaces // the same fields by number in protobuf
}

// quantityTypes caches the quantityPlaces by Go type. They depend only on the program.
var quantityTypes sync.Map

func quantitiesIn(t reflect.Type) *quantityPlaces {
	if known, ok := quantityTypes.Load(t); ok {
		return known.(*quantityPlaces)
	}
	known, _ := quantityTypes.LoadOrStore(t, findQuantities(t, nil))
	return known.(*quantityPlaces)
}

// findQuantities searches a type. open are the enclosing types. A type that contains itself has
// no quantities, because schemas are the only such types in Kubernetes.
func findQuantities(t reflect.Type, open []reflect.Type) *quantityPlaces {
	switch t.Kind() {
	case reflect.Pointer:
		return findQuantities(t.Elem(), open)
	case reflect.Slice, reflect.Map, reflect.Array:
		if each := findQuantities(t.Elem(), open); each != nil {
			return &quantityPlaces{each: each, isMap: t.Kind() == reflect.Map}
		}
	case reflect.Struct:
		if t == reflect.TypeFor[apiresource.Quantity]() {
			return &quantityPlaces{itself: true}
		}
		for _, outer := range open {
			if t == outer {
				return nil
			}
		}
		return findFields(t, append(open, t))
	}
	return nil
}

func findFields(t reflect.Type, open []reflect.Type) *quantityPlaces {
	p := &quantityPlaces{names: map[string]*quantityPlaces{}, numbers: map[uint64]*quantityPlaces{}}
	for i := range t.NumField() {
		f := t.Field(i)
		inner := findQuantities(f.Type, open)
		if inner == nil {
			continue
		}
		p.numbers[fieldNumber(f)] = inner
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && (name == "" || strings.Contains(options, "inline")) {
			for name, place := range inner.names {
				p.names[name] = place
			}
			continue
		}
		p.names[name] = inner
	}
	if len(p.names) == 0 {
		return nil
	}
	return p
}

func (p *quantityPlaces) check(value gjson.Result) (err error) {
	if p.itself {
		return CheckQuantity(strings.TrimSpace(strings.Trim(value.Raw, `"`)))
	}
	if p.names != nil && !value.IsObject() {
		return nil
	}
	value.ForEach(func(name, member gjson.Result) bool {
		if inner := p.each; inner != nil {
			err = inner.check(member)
		} else if inner := p.names[name.String()]; inner != nil {
			err = inner.check(member)
		}
		return err == nil
	})
	return err
}

func (p *quantityPlaces) checkDecoded(value any) (err error) {
	switch v := value.(type) {
	case string:
		if p.itself {
			err = CheckQuantity(strings.TrimSpace(v))
		}
	case float64:
		if p.itself {
			err = CheckQuantity(strconv.FormatFloat(v, 'g', -1, 64))
		}
	case []any:
		for i := 0; p.each != nil && i < len(v) && err == nil; i++ {
			err = p.each.checkDecoded(v[i])
		}
	case map[string]any:
		for name, member := range v {
			if inner := cmp.Or(p.each, p.names[name]); inner != nil && err == nil {
				err = inner.checkDecoded(member)
			}
		}
	}
	return err
}

// checkWire checks the fields of a message.
func (p *quantityPlaces) checkWire(wire []byte) error {
	return eachField(wire, func(number uint64, content []byte) error {
		if inner := p.numbers[number]; inner != nil {
			return inner.checkWireField(content)
		}
		return nil
	})
}

// checkWireField checks the content of one field. The text of a quantity is the first field of
// the message. A list is encoded as repeated fields. A map is encoded as repeated entries, with
// the value in the second field.
func (p *quantityPlaces) checkWireField(content []byte) error {
	switch {
	case p.itself:
		return eachField(content, func(number uint64, text []byte) error {
			if number != 1 {
				return nil
			}
			return CheckQuantity(string(text))
		})
	case p.isMap:
		return eachField(content, func(number uint64, value []byte) error {
			if number != 2 {
				return nil
			}
			return p.each.checkWireField(value)
		})
	case p.each != nil:
		return p.each.checkWireField(content)
	}
	return p.checkWire(content)
}
