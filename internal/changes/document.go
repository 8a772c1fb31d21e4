package changes

// This file is a JSON document as a tree. A node knows a hash of all below it, so that two trees are compared without looking at equal parts
// twice, and how many bytes of JSON it is. What must not be seen is masked while the tree is made: whoever has a tree has no secret.

import (
	"encoding/json"
	"errors"
	"hash/maphash"
	"math/bits"
	"slices"
	"strings"
	"unicode/utf8"
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
	drop  []string // members of metadata

	doc   string // is JSON
	at    int
	spare []node // to be given out
}

func (r Rules) parser(drop ...string) *parser {
	if r.Seed == (maphash.Seed{}) {
		r.Seed = maphash.MakeSeed()
	}
	return &parser{rules: r, drop: drop}
}

// parse makes the tree of an object.
func (p *parser) parse(doc []byte) (*node, error) {
	if !json.Valid(doc) {
		var v any
		return nil, json.Unmarshal(doc, &v) // says why
	}
	p.doc, p.at = string(doc), 0
	if p.next() != '{' {
		return nil, errNoObject
	}
	root := p.value(ofRoot)
	if kind, version := root.member("kind"), root.member("apiVersion"); !p.rules.Secret && kind != nil && version != nil && kind.text == "Secret" && version.text == "v1" {
		p.rules.Secret = true
		return p.parse(doc)
	}
	return root, nil
}

// pair makes the trees of two versions, of which either may be empty. If one says that it is a Secret, both are.
func (p *parser) pair(old, new []byte) (a, b *node, err error) {
	if len(old) > 0 {
		if a, err = p.parse(old); err != nil {
			return nil, nil, err
		}
	}
	known := p.rules.Secret
	if len(new) > 0 {
		if b, err = p.parse(new); err != nil {
			return nil, nil, err
		}
	}
	if a != nil && p.rules.Secret != known {
		a, err = p.parse(old)
	}
	return a, b, err
}

// A place is where in an object a value stands, as far as that matters for what may be seen of it.
type place int

const (
	elsewhere  place = iota
	ofRoot           // the object
	ofMetadata       // its metadata
	ofNotes          // the annotations
	ofSecret         // what a Secret holds: the names of its members are told
	hidden           // to be masked
	leftOut          // not to be there
)

// member is the place of a member of an object that stands at a place.
func (p *parser) member(in place, key string) place {
	switch in {
	case ofRoot:
		switch {
		case key == "metadata":
			return ofMetadata
		case p.rules.Secret && (key == "data" || key == "stringData"):
			return ofSecret
		}
	case ofMetadata:
		switch {
		case key == "annotations":
			return ofNotes
		case slices.Contains(p.drop, key):
			return leftOut
		}
	case ofNotes:
		if key == lastApplied {
			return hidden
		}
	case ofSecret:
		return hidden
	}
	return elsewhere
}

// next skips white space and what stands between values.
func (p *parser) next() byte {
	for {
		switch c := p.doc[p.at]; c {
		case ' ', '\t', '\n', '\r', ',', ':':
			p.at++
		default:
			return c
		}
	}
}

// value reads the value at p.at. Its syntax and its depth have been checked.
func (p *parser) value(at place) *node {
	n := p.newNode()
	switch c := p.next(); c {
	case '{':
		n.kind = c
		p.members(n, at)
	case '[':
		n.kind = c
		p.at++
		for p.next() != ']' {
			n.items = append(n.items, p.value(elsewhere))
		}
		p.at++
	case '"':
		n.kind, n.text = c, p.text()
	default:
		begin := p.at
		p.literalEnd()
		n.kind, n.text = '0', p.doc[begin:p.at]
	}
	n.measure()
	n.hash = p.hash(n)
	if at == hidden || at == ofSecret && n.kind != '{' {
		*n = node{kind: '*', hash: ^n.hash, size: len(mask) + 2, text: mask}
	}
	return n
}

// skip passes a value over.
func (p *parser) skip() {
	for depth := 0; ; {
		switch p.next() {
		case '{', '[':
			depth++
			p.at++
		case '}', ']':
			depth--
			p.at++
		case '"':
			p.textEnd()
		default:
			p.literalEnd()
		}
		if depth == 0 {
			return
		}
	}
}

func (p *parser) newNode() *node {
	if len(p.spare) == 0 {
		p.spare = make([]node, 32)
	}
	n := &p.spare[0]
	p.spare = p.spare[1:]
	return n
}

// members reads those of an object, and sorts them. Of several with one name the last counts, as with other readers.
func (p *parser) members(n *node, in place) {
	p.at++
	sorted := true
	for p.next() != '}' {
		key := p.text()
		at := p.member(in, key)
		if at == leftOut {
			p.skip()
			continue
		}
		value := p.value(at)
		sorted = sorted && (len(n.keys) == 0 || n.keys[len(n.keys)-1] < key)
		n.keys, n.items = append(n.keys, key), append(n.items, value)
	}
	p.at++
	if sorted {
		return
	}
	order := make([]int, len(n.keys))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return strings.Compare(n.keys[i], n.keys[j]) })
	var keys []string
	var items []*node
	for at, i := range order {
		if at+1 < len(order) && n.keys[order[at+1]] == n.keys[i] {
			continue
		}
		keys, items = append(keys, n.keys[i]), append(items, n.items[i])
	}
	n.keys, n.items = keys, items
}

// literalEnd passes a number, true, false or null over.
func (p *parser) literalEnd() {
	for p.at < len(p.doc) && strings.IndexByte(" \t\n\r,:]}", p.doc[p.at]) < 0 {
		p.at++
	}
}

// text reads a string.
func (p *parser) text() string {
	begin := p.at
	plain := p.textEnd()
	if text := p.doc[begin+1 : p.at-1]; plain && utf8.ValidString(text) {
		return text
	}
	var text string
	_ = json.Unmarshal([]byte(p.doc[begin:p.at]), &text) // it is valid
	return text
}

// textEnd passes a string over, and says whether it stands there as it is.
func (p *parser) textEnd() (plain bool) {
	plain = true
	for p.at++; p.doc[p.at] != '"'; p.at++ {
		if p.doc[p.at] == '\\' {
			plain = false
			p.at++
		}
	}
	p.at++
	return plain
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

// hash mixes what the strings' own, seeded hashes are, in their order.
func (p *parser) hash(n *node) uint64 {
	sum := uint64(n.kind)
	mix := func(part uint64) { sum = bits.RotateLeft64((sum^part)*0x9e3779b97f4a7c15, 29) }
	mix(maphash.String(p.rules.Seed, n.text))
	for i, item := range n.items {
		if n.kind == '{' {
			mix(maphash.String(p.rules.Seed, n.keys[i]))
		}
		mix(item.hash)
	}
	mix(uint64(len(n.items)))
	return sum | 1 // 0 is no value
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
	if a, b, err = r.parser(drop...).pair(old, new); err != nil {
		return nil, nil, err
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

// Rules say what the documents are, and how much may be told of them.
type Rules struct {
	Secret bool // they are v1 Secrets; not needed where they say so themselves
	Paths  int  // at most so many changes; 0: 100
	Value  int  // at most about so many bytes of a value; 0: 256

	Seed maphash.Seed // of the hashes that Change.Hashes gives; zero: another each time
}
