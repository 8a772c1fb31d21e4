package changes

// This file is a JSON document as a tree. A node knows a hash of all below it, so that two trees are compared without looking at equal parts
// twice, and how many bytes of JSON it is. What must not be seen is masked while the tree is made: whoever has a tree has no secret.

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/maphash"
	"io"
	"slices"
)

const (
	mask            = "***"
	lastApplied     = "kubectl.kubernetes.io/last-applied-configuration"
	maskBefore      = "*** (before)"
	maskAfter       = "*** (after)"
	smallestContent = 2 // {} and []
)

var errNoObject = errors.New("the document is no JSON object")

// A node is a value of JSON.
type node struct {
	kind  byte // { [ " as in JSON, 0 for number, true, false and null, * for a value that is masked
	hash  uint64
	size  int
	text  string // of a string or literal; what stands for a masked value
	keys  []string
	items []*node // members in the order of keys, which are sorted, or items
}

func (n *node) member(key string) *node {
	if n == nil || n.kind != '{' {
		return nil
	}
	if i, found := slices.BinarySearch(n.keys, key); found {
		return n.items[i]
	}
	return nil
}

// A parser makes trees whose hashes can be compared with each other.
type parser struct {
	rules Rules
	seed  maphash.Seed
	drop  []string // members of metadata
}

func (r Rules) parser(drop ...string) *parser {
	return &parser{rules: r, seed: maphash.MakeSeed(), drop: drop}
}

// parse makes the tree of an object.
func (p *parser) parse(doc []byte) (*node, error) {
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	var value any
	if err := d.Decode(&value); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errNoObject
	}
	root, ok := value.(map[string]any)
	if !ok {
		return nil, errNoObject
	}
	if p.rules.Secret || root["kind"] == "Secret" && root["apiVersion"] == "v1" {
		for _, member := range []string{"data", "stringData"} {
			if content, ok := root[member]; ok {
				root[member] = p.masked(content, 1)
			}
		}
	}
	if metadata, ok := root["metadata"].(map[string]any); ok {
		for _, member := range p.drop {
			delete(metadata, member)
		}
		if notes, ok := metadata["annotations"].(map[string]any); ok && notes[lastApplied] != nil {
			notes[lastApplied] = p.masked(notes[lastApplied], 0)
		}
	}
	return p.node(root), nil
}

// masked is a value of which nobody sees more than whether it changed; the names of the members of so many levels of objects stay.
func (p *parser) masked(value any, levels int) any {
	if members, ok := value.(map[string]any); ok && levels > 0 {
		for key := range members {
			members[key] = p.masked(members[key], levels-1)
		}
		return members
	}
	hidden := p.node(value)
	return &node{kind: '*', hash: ^hidden.hash, size: len(mask) + 2, text: mask}
}

func (p *parser) node(value any) *node {
	n := &node{}
	switch v := value.(type) {
	case *node:
		return v
	case map[string]any:
		n.kind = '{'
		n.keys = make([]string, 0, len(v))
		for key := range v {
			n.keys = append(n.keys, key)
		}
		slices.Sort(n.keys)
		n.items = make([]*node, len(v))
		for i, key := range n.keys {
			n.items[i] = p.node(v[key])
		}
	case []any:
		n.kind = '['
		n.items = make([]*node, len(v))
		for i, item := range v {
			n.items[i] = p.node(item)
		}
	case string:
		n.kind, n.text = '"', v
	case json.Number:
		n.kind, n.text = '0', v.String()
	case bool:
		n.kind, n.text = '0', "false"
		if v {
			n.text = "true"
		}
	default:
		n.kind, n.text = '0', "null"
	}
	n.measure()
	n.hash = p.hash(n)
	return n
}

// measure sets the size, about as it will be written.
func (n *node) measure() {
	n.size = smallestContent + len(n.text)
	for i, item := range n.items {
		n.size += item.size + 1
		if n.kind == '{' {
			n.size += len(n.keys[i]) + 3
		}
	}
}

func (p *parser) hash(n *node) uint64 {
	var h maphash.Hash
	h.SetSeed(p.seed)
	h.WriteByte(n.kind)
	h.WriteString(n.text)
	var sum [8]byte
	for i, item := range n.items {
		if n.kind == '{' {
			binary.LittleEndian.PutUint64(sum[:], uint64(len(n.keys[i])))
			h.Write(sum[:])
			h.WriteString(n.keys[i])
		}
		binary.LittleEndian.PutUint64(sum[:], item.hash)
		h.Write(sum[:])
	}
	return h.Sum64()
}

// append writes the node as JSON.
func (n *node) append(b []byte) []byte {
	switch n.kind {
	case '0':
		return append(b, n.text...)
	case '"', '*':
		return append(b, quoted(n.text)...)
	}
	b = append(b, n.kind)
	for i, item := range n.items {
		if i > 0 {
			b = append(b, ',')
		}
		if n.kind == '{' {
			b = append(append(b, quoted(n.keys[i])...), ':')
		}
		b = item.append(b)
	}
	return append(b, n.kind+2) // } and ] stand two behind { and [
}

func quoted(text string) json.RawMessage {
	b, _ := json.Marshal(text) // of a string it does not fail
	return b
}

// Redacted are two versions of an object, either of which may be empty, without managedFields and without what is masked; a masked value that
// is not what it was says that it is the one before or after.
func (r Rules) Redacted(old, new []byte) (was, is json.RawMessage, err error) {
	a, b, err := r.redacted(old, new, "managedFields")
	if err != nil {
		return nil, nil, err
	}
	if a != nil {
		was = a.append(nil)
	}
	if b != nil {
		is = b.append(nil)
	}
	return was, is, nil
}

func (r Rules) redacted(old, new []byte, drop ...string) (a, b *node, err error) {
	p := r.parser(drop...)
	if len(old) > 0 {
		if a, err = p.parse(old); err != nil {
			return nil, nil, err
		}
	}
	if len(new) > 0 {
		if b, err = p.parse(new); err != nil {
			return nil, nil, err
		}
	}
	tellMasked(a, b)
	return a, b, nil
}

// tellMasked tells masked values of two trees apart, where they are not the same.
func tellMasked(a, b *node) {
	switch {
	case a == nil || b == nil || a.hash == b.hash:
	case a.kind == '*' && b.kind == '*':
		a.text, b.text = maskBefore, maskAfter
	default:
		for i, key := range a.keys {
			tellMasked(a.items[i], b.member(key))
		}
	}
}
