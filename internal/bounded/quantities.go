package bounded

// This file keeps quantities out of resource.ParseQuantity whose arithmetic would take hours. Kubernetes' quantities are decimals of any
// precision, so that ten bytes are enough:
//
//	what                      becomes                                                  costs
//	"1e-2147483648"           1n: the library rounds up, dividing by a power of ten    2³¹ digits, at once: a processor for hours
//	"1e2147483647"            kept as it is                                            as many, when it is compared or added
//	3 MB of digits            kept as they are                                         the square of their number, when they are written
//
// A quantity of at most quantityBytes with an exponent of at most two digits costs less than a microsecond. Everything else is refused where
// a document is decoded, by the Go type that it is decoded into: a string like these in an annotation is a string. Most documents are done with
// one look through their bytes; the few with something of that look in them are walked along the fields of the Go type.
//
// kube-apiserver takes such quantities, and never answers.

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

const quantityBytes = 64 // of a quantity's text; nobody who means a number writes more

// ErrQuantityRange says that a quantity is too long, or too large or small, to be reckoned with.
var ErrQuantityRange = errors.New("quantities must have at most 64 characters and an exponent of at most two digits")

// CheckQuantity says whether a text that stands for a quantity may be parsed.
func CheckQuantity(text string) error {
	if len(text) > quantityBytes {
		return ErrQuantityRange
	}
	if at := strings.LastIndexAny(text, "eE"); at >= 0 && len(strings.TrimLeft(text[at+1:], "+-0")) > 2 {
		return ErrQuantityRange
	}
	return nil
}

// checkQuantities says whether JSON may be decoded into a Go type.
func checkQuantities(doc []byte, t reflect.Type) error {
	places := quantitiesIn(t)
	if places == nil || !oddNumber(doc) {
		return nil
	}
	return places.check(gjson.ParseBytes(doc))
}

// checkWireQuantities says whether protobuf may be decoded into a Go type.
func checkWireQuantities(wire []byte, t reflect.Type) error {
	places := quantitiesIn(t)
	if places == nil || !oddNumber(wire) {
		return nil
	}
	return places.checkWire(wire)
}

// oddNumber looks for what is in every quantity that is out of range, and in little else: a digit or point, e, and three digits; or a long row
// of digits. Quantities read their JSON as it is, escapes included, so that an escaped digit is none.
func oddNumber(doc []byte) bool {
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

// quantityPlaces are where in values of one Go type quantities are. nil: there are none. They are complete before anybody else sees them.
type quantityPlaces struct {
	itself  bool            // the value is a quantity
	each    *quantityPlaces // of the elements of a list or map
	isMap   bool
	names   map[string]*quantityPlaces // of a struct, by JSON name
	numbers map[uint64]*quantityPlaces // and by number in protobuf
}

// quantityTypes has what was found for each Go type so far. What is kept is derived from the program alone.
var quantityTypes sync.Map

func quantitiesIn(t reflect.Type) *quantityPlaces {
	if known, ok := quantityTypes.Load(t); ok {
		return known.(*quantityPlaces)
	}
	known, _ := quantityTypes.LoadOrStore(t, findQuantities(t, nil))
	return known.(*quantityPlaces)
}

// findQuantities looks through a type. A type that contains itself (open is the way to it) has no quantities in Kubernetes: schemas alone do.
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

// checkWire goes through the fields of a message.
func (p *quantityPlaces) checkWire(wire []byte) error {
	return eachField(wire, func(number uint64, content []byte) error {
		if inner := p.numbers[number]; inner != nil {
			return inner.checkWireField(content)
		}
		return nil
	})
}

// checkWireField looks at what one field holds: a quantity is a message whose first field is its text, a list is as many fields, and so is a map,
// of entries whose second field is the value.
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
