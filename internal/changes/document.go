package changes

// This file parses a JSON document into a tree. Each node stores the hash of its subtree, so two
// subtrees can be compared in constant time. It also stores the size of its JSON. Secret values are
// masked by the parser, so they are never stored in a tree.

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

var errNoObject = errors.New("the document is not a JSON object")

// A node is a JSON value.
type node struct {
	kind  byte // one of { [ " as in JSON; 0 for a number, true, false or null; * for a masked value
	hash  uint64
	size  int
	text  string   // The text of a string or a literal. For masked values, this is the replacement.
	keys  []string // sorted names of the members of an object
	items []*node  // items of a list, or values of an object in the order of keys
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

// A parser builds trees whose hashes can be compared with each other.
type parser struct {
	rules Options
	drop  []string // members of metadata to omit

	doc   string // the JSON text
	at    int
	spare []node // allocated, but not used yet
}

func (r Options) parser(drop ...string) *parser {
	if r.Seed == (maphash.Seed{}) {
		r.Seed = maphash.MakeSeed()
	}
	return &parser{rules: r, drop: drop}
}

// parse returns the tree of an object.
func (p *parser) parse(doc []byte) (*node, error) {
	if !json.Valid(doc) {
		var v any
		return nil, json.Unmarshal(doc, &v) // returns the syntax error
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

// pair parses two versions of an object. Either version may be empty. If one version declares
// itself a Secret, both are treated as Secrets.
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

// A place is used to determine whether a value in a document must be masked.
type place int

const (
	elsewhere     place = iota
	ofRoot              // the object itself
	ofMetadata          // the metadata
	ofAnnotations       // the annotations
	ofSecret            // the data of a Secret; the values are masked, but not their names
	hidden              // a value to mask
	omitted             // a member to omit
)

// member returns the place of the member with the given name.
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
			return ofAnnotations
		case slices.Contains(p.drop, key):
			return omitted
		}
	case ofAnnotations:
		if key == lastApplied {
			return hidden
		}
	case ofSecret:
		return hidden
	}
	return elsewhere
}

// next skips white space and separators, and returns the next byte.
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

// value parses the value at p.at. The syntax and the depth have been checked before.
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

// skip skips a value.
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

// members parses all members of an object and sorts them by name. If there are multiple members
// with the same name, it uses the last one, like other parsers.
func (p *parser) members(n *node, in place) {
	p.at++
	sorted := true
	for p.next() != '}' {
		key := p.text()
		at := p.member(in, key)
		if at == omitted {
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

// literalEnd skips a number, true, false or null.
func (p *parser) literalEnd() {
	for p.at < len(p.doc) && strings.IndexByte(" \t\n\r,:]}", p.doc[p.at]) < 0 {
		p.at++
	}
}

// text parses a string.
func (p *parser) text() string {
	begin := p.at
	plain := p.textEnd()
	if text := p.doc[begin+1 : p.at-1]; plain && utf8.ValidString(text) {
		return text
	}
	var text string
	_ = json.Unmarshal([]byte(p.doc[begin:p.at]), &text) // cannot fail, because the document is valid
	return text
}

// textEnd skips a string, and reports whether it contains no escapes.
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

// measure sets the approximate size of the node's JSON.
func (n *node) measure() {
	n.size = smallestContent + len(n.text)
	for i, item := range n.items {
		n.size += item.size + 1
		if n.kind == '{' {
			n.size += len(n.keys[i]) + 3
		}
	}
}

// hash combines the seeded hashes of the strings in the subtree, in order.
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
	return sum | 1 // 0 means that there is no value
}

// append appends the node's JSON to b.
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
	return append(b, n.kind+2) // in ASCII, } and ] are two above { and [
}

func quoted(text string) json.RawMessage {
	b, _ := json.Marshal(text) // marshaling a string cannot fail
	return b
}

// Redact returns copies of both versions without managedFields and with masked secret values.
// Either version may be empty. If a masked value has changed, the two masks are different.
func (r Options) Redact(old, new []byte) (was, is json.RawMessage, err error) {
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

func (r Options) redacted(old, new []byte, drop ...string) (a, b *node, err error) {
	if a, b, err = r.parser(drop...).pair(old, new); err != nil {
		return nil, nil, err
	}
	distinguishMasked(a, b)
	return a, b, nil
}

// distinguishMasked gives masked values that differ between the trees different texts.
func distinguishMasked(a, b *node) {
	switch {
	case a == nil || b == nil || a.hash == b.hash:
	case a.kind == '*' && b.kind == '*':
		a.text, b.text = maskBefore, maskAfter
	default:
		for i, key := range a.keys {
			distinguishMasked(a.items[i], b.member(key))
		}
	}
}

// Options configure a comparison.
type Options struct {
	Secret        bool // the documents are v1 Secrets; not needed if they have a kind and an apiVersion
	MaxChanges    int  // maximum number of changes, or 0 for the default of 100
	MaxValueBytes int  // approximate maximum size of a value in bytes, or 0 for the default of 256

	// Seed is used to compute the hashes returned by Change.Hashes. If it is zero, each comparison
	// uses a new seed.
	Seed maphash.Seed
}
