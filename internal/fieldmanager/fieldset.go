package fieldmanager

// This file implements sets of fields in the format of managedFields (FieldsV1). The sets can be
// parsed, encoded and combined. A set is a tree:
//
//	{"f:spec":{"f:ports":{".":{},"k:{\"port\":80}":{".":{},"f:name":{}}}}}      ports, its element 80 and that one's name; not spec
//
// The tree is stored as a slice in the order of the text, so that an operation allocates only its
// result. The slices are sorted, so the sets can be merged in a single pass.
//
// The text is only parsed if it is canonical. It must be sorted in the order of the library,
// without whitespace, and the encoding of names and values must be unambiguous. Therefore equal
// elements have equal texts, and the encoding of an unmodified set is known. All other text is
// left to the general algorithm.

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// A fieldSet is a tree in preorder.
type fieldSet []fieldNode

// A fieldNode is an element of a path.
type fieldNode struct {
	kind   byte   // f for the name of a member, k for the keys of a list element, v for the value
	member bool   // the path that ends here is in the set
	end    int32  // index after the last descendant, relative to the start of the slice
	text   string // the JSON text without the kind
}

// Larger sets are left to the general algorithm.
const (
	maxFieldNodes = 20000
	maxFieldDepth = 200
)

// parseFields parses a canonical set that is not empty. If anyOrder is true, the elements need
// not be sorted. If there is no Go type, the sets are decoded into maps,
// which are encoded in a different order.
func parseFields(text string, anyOrder bool) (fieldSet, bool) {
	p := fieldParser{text: text, anyOrder: anyOrder, out: make(fieldSet, 0, 2+len(text)/16)}
	ok := p.node(0) && p.at == len(text) && len(p.out) > 0
	return p.out, ok
}

type fieldParser struct {
	text     string
	at       int
	anyOrder bool
	out      fieldSet
}

func (p *fieldParser) skip(token string) bool {
	if !strings.HasPrefix(p.text[p.at:], token) {
		return false
	}
	p.at += len(token)
	return true
}

// node reads the children of one node. The root itself cannot be in the set.
func (p *fieldParser) node(depth int) bool {
	if depth > maxFieldDepth || !p.skip("{") {
		return false
	}
	if p.skip("}") {
		return depth > 0
	}
	if depth > 0 && p.skip(`".":{},`) {
		p.out[len(p.out)-1].member = true
	}
	first, inOrder := len(p.out), true
	for last := first; ; {
		i := len(p.out)
		if i >= maxFieldNodes || !p.element() {
			return false
		}
		if i > first && compareNodes(&p.out[last], &p.out[i]) >= 0 {
			if inOrder = false; !p.anyOrder {
				return false
			}
		}
		last = i
		if p.skip("{}") {
			p.out[i].member = true
		} else if !p.node(depth + 1) {
			return false
		}
		p.out[i].end = int32(len(p.out))
		if p.skip("}") {
			return inOrder || p.sort(int32(first))
		}
		if !p.skip(",") {
			return false
		}
	}
}

// sort sorts the children, starting at index first. It returns false if there are duplicates.
func (p *fieldParser) sort(first int32) bool {
	given := slices.Clone(p.out[first:])
	var starts []int32
	for i := int32(0); int(i) < len(given); i = given[i].end - first {
		starts = append(starts, i)
	}
	slices.SortFunc(starts, func(a, b int32) int { return compareNodes(&given[a], &given[b]) })
	p.out = p.out[:first]
	for n, i := range starts {
		if n > 0 && compareNodes(&given[starts[n-1]], &given[i]) == 0 {
			return false
		}
		shift := int32(len(p.out)) - first - i
		for _, node := range given[i : given[i].end-first] {
			node.end += shift
			p.out = append(p.out, node)
		}
	}
	return true
}

// element reads the name of a node and the following colon.
func (p *fieldParser) element() bool {
	if len(p.text)-p.at < 4 || p.text[p.at] != '"' || p.text[p.at+2] != ':' {
		return false
	}
	n := fieldNode{kind: p.text[p.at+1]}
	p.at += 3
	start := p.at
	switch n.kind {
	case 'f':
		for p.at < len(p.text) && asIs(p.text[p.at]) {
			p.at++
		}
	case 'v':
		if !p.scalar() {
			return false
		}
	case 'k':
		if !p.keys() {
			return false
		}
	default:
		return false
	}
	n.text = p.text[start:p.at]
	p.out = append(p.out, n)
	return p.skip(`":`)
}

// keys reads {\"name\":value,...} with sorted names.
func (p *fieldParser) keys() bool {
	if !p.skip("{") {
		return false
	}
	for last := ""; ; {
		start := p.at
		if !p.quoted() {
			return false
		}
		name := p.text[start:p.at]
		if last >= name || !p.skip(":") || !p.scalar() {
			return false
		}
		last = name
		if p.skip("}") {
			return true
		}
		if !p.skip(",") {
			return false
		}
	}
}

func (p *fieldParser) quoted() bool {
	if !p.skip(`\"`) {
		return false
	}
	for p.at < len(p.text) && asIs(p.text[p.at]) {
		p.at++
	}
	return p.skip(`\"`)
}

// scalar reads a string, an integer or a boolean.
func (p *fieldParser) scalar() bool {
	if p.skip("true") || p.skip("false") {
		return true
	}
	start := p.at
	for p.at < len(p.text) && (p.text[p.at] >= '0' && p.text[p.at] <= '9' || p.text[p.at] == '-') {
		p.at++
	}
	if p.at == start {
		return p.quoted()
	}
	n, err := strconv.ParseInt(p.text[start:p.at], 10, 64)
	return err == nil && exact(n) && strconv.FormatInt(n, 10) == p.text[start:p.at]
}

// exact reports whether a float64 can represent n, because the library decodes numbers as
// float64.
func exact(n int64) bool { return n > -1<<53 && n < 1<<53 }

// asIs reports whether every JSON encoder writes the byte unchanged.
func asIs(c byte) bool {
	return c >= ' ' && c <= '~' && c != '"' && c != '\\' && c != '<' && c != '>' && c != '&'
}

// writtenAsIs reports whether every JSON encoder writes the string unchanged.
func writtenAsIs(text string) bool {
	for i := range len(text) {
		if !asIs(text[i]) {
			return false
		}
	}
	return true
}

// ---- order

// compareNodes compares the elements of a path. The names are sorted before the keys, and the
// keys before the values.
func compareNodes(a, b *fieldNode) int {
	switch {
	case a.kind != b.kind:
		return cmp.Compare(a.kind, b.kind) // f, k, v
	case a.text == b.text:
		return 0
	case a.kind == 'f':
		return cmp.Compare(a.text, b.text)
	case a.kind == 'v':
		order, _, _ := compareScalars(a.text, b.text)
		return order
	}
	return compareKeyTexts(a.text[1:], b.text[1:])
}

// compareKeyTexts compares two keys, {\"name\":value,...} without the first brace. It compares
// name, value, next name and so on. The shorter key is less.
func compareKeyTexts(a, b string) int {
	for {
		order, restA, restB := compareScalars(a, b)
		if order != 0 {
			return order
		}
		if order, restA, restB = compareScalars(restA[1:], restB[1:]); order != 0 {
			return order
		}
		if restA[0] != restB[0] { // only one of them continues
			return cmp.Compare(restB[0], restA[0]) // ',' is less than '}', but its key is longer
		}
		if restA[0] == '}' {
			return 0
		}
		a, b = restA[1:], restB[1:]
	}
}

// compareScalars compares the values at the start of two texts and returns the remaining texts.
// The order is numbers, strings, booleans.
func compareScalars(a, b string) (order int, restA, restB string) {
	classA, a, restA := scalarOf(a)
	classB, b, restB := scalarOf(b)
	switch {
	case classA != classB:
		order = cmp.Compare(classA, classB)
	case classA == 0:
		m, _ := strconv.ParseInt(a, 10, 64)
		n, _ := strconv.ParseInt(b, 10, 64)
		order = cmp.Compare(m, n)
	default:
		order = cmp.Compare(a, b) // false is less than true
	}
	return order, restA, restB
}

func scalarOf(text string) (class int, value, rest string) {
	switch text[0] {
	case '\\':
		n := strings.IndexByte(text[2:], '\\')
		return 1, text[2 : 2+n], text[4+n:]
	case 't', 'f':
		n := strings.IndexByte(text, 'e') + 1
		return 2, text[:n], text[n:]
	}
	n := 0
	for n < len(text) && text[n] != ',' && text[n] != '}' {
		n++
	}
	return 0, text[:n], text[n:]
}

// ---- operations

// without returns the set without the paths in d. If there are no such paths, changed is false.
func (s fieldSet) without(d difference) (rest fieldSet, changed bool) {
	if !s.meets(d, 0, int32(len(s)), 0, int32(len(d))) {
		return s, false
	}
	m := subtraction{s: s, d: d, out: make(fieldSet, 0, len(s))}
	m.level(0, int32(len(s)), 0, int32(len(d)))
	return m.out, m.changed
}

// meets reports whether d marks a path of s.
func (s fieldSet) meets(d difference, i, end, j, endD int32) bool {
	for i < end && j < endD {
		switch order := compareNodes(&s[i], &d[j].fieldNode); {
		case order < 0:
			i = s[i].end
		case order > 0:
			j = d[j].end
		case s[i].member && d[j].change != unchanged, s.meets(d, i+1, s[i].end, j+1, d[j].end):
			return true
		default:
			i, j = s[i].end, d[j].end
		}
	}
	return false
}

type subtraction struct {
	s       fieldSet
	d       difference
	out     fieldSet
	changed bool
}

func (m *subtraction) level(i, end, j, endD int32) {
	for ; i < end; i = m.s[i].end {
		for j < endD && compareNodes(&m.d[j].fieldNode, &m.s[i]) < 0 {
			j = m.d[j].end
		}
		if j == endD || compareNodes(&m.d[j].fieldNode, &m.s[i]) > 0 {
			m.copy(i)
			continue
		}
		at := len(m.out)
		m.out = append(m.out, m.s[i])
		if m.s[i].member && m.d[j].change != unchanged {
			m.out[at].member, m.changed = false, true
		}
		m.level(i+1, m.s[i].end, j+1, m.d[j].end)
		m.out = closed(m.out, at)
	}
}

func (m *subtraction) copy(i int32) {
	shift := int32(len(m.out)) - i
	for _, n := range m.s[i:m.s[i].end] {
		n.end += shift
		m.out = append(m.out, n)
	}
}

// closed ends the node at index at. It removes the node if it is not in the set and has no
// children.
func closed(s fieldSet, at int) fieldSet {
	if len(s) == at+1 && !s[at].member {
		return s[:at]
	}
	s[at].end = int32(len(s))
	return s
}

// union returns the union of a and b.
func union(a, b fieldSet) fieldSet {
	u := unionBuilder{a: a, b: b, out: make(fieldSet, 0, len(a)+len(b))}
	u.level(0, int32(len(a)), 0, int32(len(b)))
	return u.out
}

type unionBuilder struct{ a, b, out fieldSet }

func (u *unionBuilder) level(i, endA, j, endB int32) {
	for i < endA || j < endB {
		order := 0
		switch {
		case i == endA:
			order = 1
		case j == endB:
			order = -1
		default:
			order = compareNodes(&u.a[i], &u.b[j])
		}
		switch {
		case order < 0:
			u.copy(u.a, i)
			i = u.a[i].end
		case order > 0:
			u.copy(u.b, j)
			j = u.b[j].end
		default:
			at := len(u.out)
			u.out = append(u.out, u.a[i])
			u.out[at].member = u.a[i].member || u.b[j].member
			u.level(i+1, u.a[i].end, j+1, u.b[j].end)
			u.out[at].end = int32(len(u.out))
			i, j = u.a[i].end, u.b[j].end
		}
	}
}

func (u *unionBuilder) copy(s fieldSet, i int32) {
	shift := int32(len(u.out)) - i
	for _, n := range s[i:s[i].end] {
		n.end += shift
		u.out = append(u.out, n)
	}
}

// append encodes the set as JSON.
func (s fieldSet) append(out []byte) []byte { return s.appendLevel(out, 0, int32(len(s)), false) }

// appendLevel encodes the nodes from i to end. own means that their parent is also in the set.
func (s fieldSet) appendLevel(out []byte, i, end int32, own bool) []byte {
	out = append(out, '{')
	if own {
		out = append(out, `".":{},`...)
	}
	for first := true; i < end; i = s[i].end {
		if !first {
			out = append(out, ',')
		}
		first = false
		n := &s[i]
		out = append(append(append(out, '"', n.kind, ':'), n.text...), `":`...)
		if n.end == i+1 {
			out = append(out, "{}"...)
			continue
		}
		out = s.appendLevel(out, i+1, n.end, n.member)
	}
	return append(out, '}')
}

// size returns the approximate length of the JSON.
func (s fieldSet) size() int {
	n := 2
	for i := range s {
		n += len(s[i].text) + 10
		if s[i].member {
			n += 7
		}
	}
	return n
}

// A difference is a set of paths with the type of the change.
type difference []diffNode

type diffNode struct {
	fieldNode
	change change
}

type change uint8

const (
	unchanged change = iota // only a descendant has changed
	written                 // added or modified
	removed
)
