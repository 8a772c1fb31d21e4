package findings

// This file makes large objects small before they are compared: what both versions have alike is left out, member by member, by a look at the
// bytes that are stored. What is left of a long text is how it begins, and a hash; of a long list or object the hash.

import (
	"encoding/json"
	"fmt"
	"hash/maphash"

	"github.com/tidwall/gjson"
)

const (
	largeMin    = 64 << 10 // both versions of what is compared as a large object
	narrowDepth = 6        // members of members that are looked into
	partMax     = 4 << 10  // bytes of a value that is kept as it is
)

// narrow leaves of two versions of an object what is not the same in both: nothing at all where that is still much.
func (d *Detector) narrow(was, is []byte) (a, b []byte) {
	n := narrowing{d: d}
	n.objects(gjson.ParseBytes(was), gjson.ParseBytes(is), 1)
	if len(n.was)+len(n.is) > largeMin {
		return nil, nil
	}
	return n.was, n.is
}

// A narrowing is the two documents that are left, as far as they are written.
type narrowing struct {
	d       *Detector
	was, is []byte
}

// objects writes two objects without the members that are alike. Those of metadata that follow from a write are not looked at by anybody.
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
	b.ForEach(func(key, value gjson.Result) bool { // in their order: what is new
		if _, left := others[key.Raw]; left && !(depth == 2 && key.Raw == `"managedFields"`) {
			n.is = append(member(n.is, key), n.d.part(value)...)
		}
		return len(n.is) <= largeMin
	})
	n.was, n.is = append(n.was, '}'), append(n.is, '}')
}

// member begins one.
func member(doc []byte, key gjson.Result) []byte {
	if doc[len(doc)-1] != '{' {
		doc = append(doc, ',')
	}
	return append(append(doc, key.Raw...), ':')
}

// part is a value, or what stands for a long one.
func (d *Detector) part(value gjson.Result) []byte {
	if len(value.Raw) <= partMax {
		return []byte(value.Raw)
	}
	begin := "" // of lists and objects none: parts of them may be masked
	if value.Type == gjson.String {
		begin = kept(value.Str)
	}
	text, _ := json.Marshal(fmt.Sprintf("%s (%d bytes, %016x)", begin, len(value.Raw), maphash.String(d.seed, value.Raw))) // of a string it does not fail
	return text
}
