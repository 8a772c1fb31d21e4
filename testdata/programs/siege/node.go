package main

// This file represents a document as a tree. The leaves contain a repetition count and an order.
// This makes it possible to print, repeat and halve a document of 3 MiB.

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A node represents a single value in a document. The meaning of the fields depends on the kind:
//
//	object   Members
//	list     Items
//	text     Head, N times Text, Tail, in quotes
//	literal  the same, without quotes
//	series   a list of N times Elem, numbered by Order in the member Key, or in the value itself if Key is empty
//	pairs    an object of N members with the value Elem; their names are Key and a number, by Order
//	deep     Depth nested lists, or nested objects whose only member is Key; Elem is innermost
//	bytes    N times Data, not JSON, in protobuf's envelope for the type Head (apiVersion) and Tail (kind)
type node struct {
	Kind    string   `json:"kind"`
	Members []member `json:"members,omitempty"`
	Items   []*node  `json:"items,omitempty"`
	Head    string   `json:"head,omitempty"`
	Text    string   `json:"text,omitempty"`
	Tail    string   `json:"tail,omitempty"`
	Key     string   `json:"key,omitempty"`
	Order   string   `json:"order,omitempty"`
	N       int      `json:"n,omitempty"`
	Depth   int      `json:"depth,omitempty"`
	Elem    *node    `json:"elem,omitempty"`
	Data    []byte   `json:"data,omitempty"`
	// names of the site and the choice; they identify a finding
	Tags []string `json:"tags,omitempty"`
}

type member struct {
	Name  string `json:"name"`
	Value *node  `json:"value"`
}

const (
	equal      = "equal"
	ascending  = "ascending"
	descending = "descending"
	unnumbered = -1
)

func text(s string) *node    { return &node{Kind: "text", Text: s, N: 1} }
func literal(s string) *node { return &node{Kind: "literal", Text: s, N: 1} }

// parsed returns the tree of a JSON document. Members are sorted by name.
func parsed(document string) *node {
	var v any
	decoder := json.NewDecoder(strings.NewReader(document))
	decoder.UseNumber()
	if err := decoder.Decode(&v); err != nil {
		// one of the tables in this program is not valid
		panic(fmt.Sprintf("%s: %v", document, err))
	}
	return treeOf(v)
}

func treeOf(v any) *node {
	switch v := v.(type) {
	case map[string]any:
		o := &node{Kind: "object"}
		for name, value := range v {
			o.Members = append(o.Members, member{name, treeOf(value)})
		}
		slices.SortFunc(o.Members, func(a, b member) int { return strings.Compare(a.Name, b.Name) })
		return o
	case []any:
		l := &node{Kind: "list"}
		for _, value := range v {
			l.Items = append(l.Items, treeOf(value))
		}
		return l
	case string:
		return text(v)
	}
	scalar, _ := json.Marshal(v)
	return literal(string(scalar))
}

func (n *node) get(name string) *node {
	for _, m := range n.Members {
		if m.Name == name {
			return m.Value
		}
	}
	return nil
}

func (n *node) set(name string, value *node) {
	for i := range n.Members {
		if n.Members[i].Name == name {
			n.Members[i].Value = value
			return
		}
	}
	n.Members = append(n.Members, member{name, value})
}

// clone returns a deep copy.
func clone[T any](v *T) *T {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // impossible for a tree of strings and numbers
	}
	c := new(T)
	if err := json.Unmarshal(text, c); err != nil {
		panic(err)
	}
	return c
}

// bytes returns the document's text.
func (n *node) bytes() []byte {
	if n == nil {
		return nil
	}
	if n.Kind == "bytes" {
		return envelope(n.Head, n.Tail, []byte(strings.Repeat(string(n.Data), n.N)))
	}
	return n.append(nil, unnumbered)
}

// append renders n. If number is not negative, it is inserted, because n is an element of a series.
func (n *node) append(to []byte, number int) []byte {
	switch n.Kind {
	case "object":
		return joined(to, '{', '}', len(n.Members), func(to []byte, i int) []byte {
			return n.Members[i].Value.append(append(quoted(to, n.Members[i].Name), ':'), unnumbered)
		})
	case "list":
		return joined(to, '[', ']', len(n.Items), func(to []byte, i int) []byte { return n.Items[i].append(to, unnumbered) })
	case "text":
		s := n.Head + strings.Repeat(n.Text, n.N) + n.Tail
		if number >= 0 {
			s += fmt.Sprintf("%08d", number)
		}
		return quoted(to, s)
	case "literal":
		if number >= 0 {
			return strconv.AppendInt(to, int64(1+number), 10)
		}
		return append(append(append(to, n.Head...), strings.Repeat(n.Text, n.N)...), n.Tail...)
	case "series":
		return joined(to, '[', ']', n.N, func(to []byte, i int) []byte { return n.element(to, n.number(i)) })
	case "pairs":
		return joined(to, '{', '}', n.N, func(to []byte, i int) []byte {
			return n.Elem.append(fmt.Appendf(to, `"%s%08d":`, n.Key, max(0, n.number(i))), unnumbered)
		})
	case "deep":
		return n.nested(to)
	}
	panic("no such kind of node: " + n.Kind)
}

func (n *node) nested(to []byte) []byte {
	open, end := "[", "]"
	if n.Key != "" {
		open, end = `{"`+n.Key+`":`, "}"
	}
	to = append(to, strings.Repeat(open, n.Depth)...)
	to = n.Elem.append(to, unnumbered)
	return append(to, strings.Repeat(end, n.Depth)...)
}

// number returns the number of the i-th element in the given order.
func (n *node) number(i int) int {
	switch n.Order {
	case ascending:
		return i
	case descending:
		return n.N - 1 - i
	}
	return unnumbered
}

// element renders Elem with a number in its member Key.
func (n *node) element(to []byte, number int) []byte {
	if n.Elem.Kind != "object" || number < 0 {
		return n.Elem.append(to, number)
	}
	return joined(to, '{', '}', len(n.Elem.Members), func(to []byte, i int) []byte {
		m := n.Elem.Members[i]
		if m.Name == n.Key {
			return m.Value.append(append(quoted(to, m.Name), ':'), number)
		}
		return m.Value.append(append(quoted(to, m.Name), ':'), unnumbered)
	})
}

func joined(to []byte, open, end byte, n int, one func([]byte, int) []byte) []byte {
	to = append(to, open)
	for i := range n {
		if i > 0 {
			to = append(to, ',')
		}
		to = one(to, i)
	}
	return append(to, end)
}

func quoted(to []byte, s string) []byte {
	q, _ := json.Marshal(s)
	return append(to, q...)
}

// nodes returns the node followed by all of its descendants. The outermost nodes come first.
func (n *node) nodes() []*node {
	if n == nil {
		return nil
	}
	all := []*node{n}
	for _, m := range n.Members {
		all = append(all, m.Value.nodes()...)
	}
	for _, item := range n.Items {
		all = append(all, item.nodes()...)
	}
	return append(all, n.Elem.nodes()...)
}

// remove removes all members, items and elements for which drop returns true.
func (n *node) remove(drop func(*node) bool) {
	n.Members = slices.DeleteFunc(n.Members, func(m member) bool { return drop(m.Value) })
	n.Items = slices.DeleteFunc(n.Items, drop)
	for _, m := range n.Members {
		m.Value.remove(drop)
	}
	for _, item := range n.Items {
		item.remove(drop)
	}
	if n.Elem != nil {
		n.Elem.remove(drop)
	}
}

// envelope returns the bytes of an object in Kubernetes' protobuf envelope, a runtime.Unknown with
// its TypeMeta.
func envelope(apiVersion, kind string, raw []byte) []byte {
	field := func(number byte, value []byte) []byte {
		return append(appendVarint([]byte{number<<3 | 2}, uint64(len(value))), value...)
	}
	typeMeta := append(field(1, []byte(apiVersion)), field(2, []byte(kind))...)
	return append(append([]byte("k8s\x00"), field(1, typeMeta)...), field(2, raw)...)
}

func appendVarint(to []byte, v uint64) []byte {
	for ; v >= 0x80; v >>= 7 {
		to = append(to, byte(v)|0x80)
	}
	return append(to, byte(v))
}
