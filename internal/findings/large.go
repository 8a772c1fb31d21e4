package findings

// This file shrinks large objects before they are compared. It removes equal members by comparing
// their stored bytes. Long strings are truncated and followed by a hash. Long lists and objects are
// replaced with a hash.

import (
	"encoding/json"
	"fmt"
	"hash/maphash"

	"github.com/tidwall/gjson"
)

const (
	largeMin    = 64 << 10 // minimum size in bytes of both versions together of a large object
	narrowDepth = 6        // maximum depth of nested members to compare
	partMax     = 4 << 10  // maximum size in bytes of values that are not replaced
)

// narrow removes everything from the two versions that is the same in both. It returns nil if they
// are still large.
func (d *Detector) narrow(was, is []byte) (a, b []byte) {
	n := narrowing{d: d}
	n.objects(gjson.ParseBytes(was), gjson.ParseBytes(is), 1)
	if len(n.was)+len(n.is) > largeMin {
		return nil, nil
	}
	return n.was, n.is
}

// A narrowing holds the two shortened documents during their construction.
type narrowing struct {
	d       *Detector
	was, is []byte
}

// objects writes both objects without the members that are equal. It omits metadata.managedFields,
// which the comparison ignores.
func (n *narrowing) objects(a, b gjson.Result, depth int) {
	others := map[string]gjson.Result{}
	b.ForEach(func(key, value gjson.Result) bool {
		others[key.Raw] = value
		return true
	})
	n.was, n.is = append(n.was, '{'), append(n.is, '{')
	a.ForEach(func(key, value gjson.Result) bool {
		other, both := others[key.Raw]
		delete(others, key.Raw)
		switch {
		case both && other.Raw == value.Raw || depth == 2 && key.Raw == `"managedFields"`:
		case both && value.IsObject() && other.IsObject() && depth < narrowDepth:
			n.was, n.is = member(n.was, key), member(n.is, key)
			n.objects(value, other, depth+1)
		default:
			n.was = append(member(n.was, key), n.d.part(value)...)
			if both {
				n.is = append(member(n.is, key), n.d.part(other)...)
			}
		}
		return len(n.was)+len(n.is) <= largeMin
	})
	b.ForEach(func(key, value gjson.Result) bool { // new members, in their original order
		if _, left := others[key.Raw]; left && !(depth == 2 && key.Raw == `"managedFields"`) {
			n.is = append(member(n.is, key), n.d.part(value)...)
		}
		return len(n.is) <= largeMin
	})
	n.was, n.is = append(n.was, '}'), append(n.is, '}')
}

// member appends a comma if necessary, and the name of a member.
func member(doc []byte, key gjson.Result) []byte {
	if doc[len(doc)-1] != '{' {
		doc = append(doc, ',')
	}
	return append(append(doc, key.Raw...), ':')
}

// part returns the value itself, or a replacement if it is too long.
func (d *Detector) part(value gjson.Result) []byte {
	if len(value.Raw) <= partMax {
		return []byte(value.Raw)
	}
	begin := "" // empty for lists and objects, because parts of them may be masked
	if value.Type == gjson.String {
		begin = boundedCopy(value.Str)
	}
	// marshaling a string cannot fail
	text, _ := json.Marshal(fmt.Sprintf("%s (%d bytes, %016x)", begin, len(value.Raw), maphash.String(d.seed, value.Raw)))
	return text
}
