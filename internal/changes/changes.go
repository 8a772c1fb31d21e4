// Package changes computes the differences between two versions of an object, either as a list of
// paths with their old and new values, or as a unified diff of YAML.
//
//	list, more, err := changes.Rules{}.Between(old, new)
//	// .spec.template.spec.containers[name=web].image  "nginx:1"  "nginx:2"
//
// List items are matched by their type, their name, their key or another member that is unique in
// the list. If there is no such member, they are matched by position, after the equal items at both
// ends have been removed. metadata.managedFields, resourceVersion and generation are ignored,
// because every write changes them. The values of Secrets and kubectl's last-applied-configuration
// annotation are masked before the comparison. A result never contains them, but does show that
// they changed.
//
// Read document.go first (JSON as a tree whose nodes have a hash and a size). Then read this file
// (the walk through two trees) and text.go (YAML and its diff).
//
// Invariants: time and memory are linear in the size of the two documents, plus the limits in
// [Rules]. A document that is not valid JSON results in an error and is never printed. All
// functions are pure.
package changes

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	pathsMax = 100  // default maximum number of changes
	valueMax = 256  // default maximum size of a value in bytes
	stepsMax = 64   // maximum number of steps shown of a path
	stepMax  = 1024 // maximum size of a step in bytes
)

// A Change is a path whose value differs. Old is nil if the value was added, and New is nil if the
// value was removed.
type Change struct {
	Path string          `json:"path"` // .spec.ports[name=http].port
	Old  json.RawMessage `json:"old,omitempty"`
	New  json.RawMessage `json:"new,omitempty"`
	// Cut is set if a value is too long. In this case Old or New is a string with the beginning of
	// the value or its size.
	Cut bool `json:"cut,omitempty"`

	was, is uint64
}

// Hashes returns the hashes of the whole values, including values that are cut or masked. 0 means
// that there is no value. Hashes of two comparisons with the same Seed are comparable.
func (c *Change) Hashes() (old, new uint64) { return c.was, c.is }

// Between returns the differences between two versions, and the number of further differences that
// it omitted. If either version is empty (the object was created or deleted), it returns none.
func (r Rules) Between(old, new []byte) (list []Change, more int, err error) {
	if len(old) == 0 || len(new) == 0 {
		return nil, 0, nil
	}
	p := r.parser("managedFields", "resourceVersion", "generation")
	a, b, err := p.pair(old, new)
	if err != nil {
		return nil, 0, err
	}
	w := walk{paths: r.Paths, value: r.Value}
	if w.paths <= 0 {
		w.paths = pathsMax
	}
	if w.value <= 0 {
		w.value = valueMax
	}
	w.between(nil, a, b)
	return w.list, w.more, nil
}

// A walk traverses two trees in parallel.
type walk struct {
	paths, value int
	list         []Change
	more         int
}

// between compares two nodes. Either may be nil.
func (w *walk) between(at *step, a, b *node) {
	switch {
	case a != nil && b != nil && a.hash == b.hash:
	case a != nil && b != nil && a.kind == '{' && b.kind == '{':
		w.objects(at, a, b)
	case a != nil && b != nil && a.kind == '[' && b.kind == '[':
		w.lists(at, a, b)
	case a == nil && w.splits(b):
		w.parts(at, b, func(at *step, n *node) { w.between(at, nil, n) })
	case b == nil && w.splits(a):
		w.parts(at, a, func(at *step, n *node) { w.between(at, n, nil) })
	default:
		w.changed(at, a, b)
	}
}

// splits reports whether a value is too long to be shown whole and has parts.
func (w *walk) splits(n *node) bool {
	return n.size > w.value && (n.kind == '{' || n.kind == '[') && len(n.items) > 0
}

// parts calls visit for the members or items of a node.
func (w *walk) parts(at *step, n *node, visit func(*step, *node)) {
	key := ""
	if n.kind == '[' {
		key = mergeKey(n, n)
	}
	for i, item := range n.items {
		visit(w.stepTo(at, n, key, i), item)
	}
}

func (w *walk) stepTo(at *step, n *node, key string, i int) *step {
	switch {
	case n.kind == '{':
		return &step{up: at, name: n.keys[i]}
	case key != "":
		return &step{up: at, key: key, name: n.items[i].member(key).text}
	}
	return &step{up: at, index: i + 1}
}

// objects compares two objects, whose members are both sorted by name.
func (w *walk) objects(at *step, a, b *node) {
	i, j := 0, 0
	for i < len(a.keys) || j < len(b.keys) {
		switch {
		case j == len(b.keys) || i < len(a.keys) && a.keys[i] < b.keys[j]:
			w.between(&step{up: at, name: a.keys[i]}, a.items[i], nil)
			i++
		case i == len(a.keys) || b.keys[j] < a.keys[i]:
			w.between(&step{up: at, name: b.keys[j]}, nil, b.items[j])
			j++
		default:
			w.between(&step{up: at, name: a.keys[i]}, a.items[i], b.items[j])
			i, j = i+1, j+1
		}
	}
}

func (w *walk) lists(at *step, a, b *node) {
	if key := mergeKey(a, b); key != "" {
		w.keyed(at, key, a, b)
		return
	}
	begin, endA, endB := 0, len(a.items), len(b.items)
	for begin < endA && begin < endB && a.items[begin].hash == b.items[begin].hash {
		begin++
	}
	for endA > begin && endB > begin && a.items[endA-1].hash == b.items[endB-1].hash {
		endA, endB = endA-1, endB-1
	}
	for i := begin; i < max(endA, endB); i++ {
		var was, is *node
		if i < endA {
			was = a.items[i]
		}
		if i < endB {
			is = b.items[i]
		}
		w.between(&step{up: at, index: i + 1}, was, is)
	}
}

// mergeKeys identify items in the lists of Kubernetes: conditions, containers, tolerations, owners,
// addresses, ports and mounts.
var mergeKeys = []string{"type", "name", "key", "uid", "ip", "containerPort", "port", "mountPath", "topologyKey"}

// mergeKey returns the first member that every item of both lists has, with a string or number that
// is unique in its list. It returns "" if no such member exists.
func mergeKey(a, b *node) string {
	for _, key := range mergeKeys {
		if tellsApart(a, key) && tellsApart(b, key) {
			return key
		}
	}
	return ""
}

func tellsApart(list *node, key string) bool {
	seen := make(map[string]bool, len(list.items))
	for _, item := range list.items {
		value := item.member(key)
		if value == nil || value.kind != '"' && value.kind != '0' || value.text == "" || seen[value.text] {
			return false
		}
		seen[value.text] = true
	}
	return true
}

// keyed compares lists whose items have a key. If the order of the common items differs, this is
// reported as a change of the list, with its old and new keys as values.
func (w *walk) keyed(at *step, key string, a, b *node) {
	var wasOrder, isOrder node // the items that both lists have, represented by their keys
	wasOrder.kind, isOrder.kind = '[', '['
	now := make(map[string]*node, len(b.items))
	for _, item := range b.items {
		now[item.member(key).text] = item
	}
	before := make(map[string]bool, len(a.items))
	for _, item := range a.items {
		name := item.member(key)
		before[name.text] = true
		if now[name.text] != nil {
			wasOrder.items = append(wasOrder.items, name)
		}
		w.between(&step{up: at, key: key, name: name.text}, item, now[name.text])
	}
	for _, item := range b.items {
		name := item.member(key)
		if before[name.text] {
			isOrder.items = append(isOrder.items, name)
		} else {
			w.between(&step{up: at, key: key, name: name.text}, nil, item)
		}
	}
	for i := range isOrder.items {
		if isOrder.items[i].text != wasOrder.items[i].text {
			wasOrder.measure()
			isOrder.measure()
			w.changed(at, &wasOrder, &isOrder)
			return
		}
	}
}

func (w *walk) changed(at *step, a, b *node) {
	if len(w.list) >= w.paths {
		w.more++
		return
	}
	c := Change{Path: at.String()}
	var cutOld, cutNew bool
	c.Old, cutOld = w.shown(a)
	c.New, cutNew = w.shown(b)
	c.Cut = cutOld || cutNew
	if a != nil {
		c.was = a.hash
	}
	if b != nil {
		c.is = b.hash
	}
	w.list = append(w.list, c)
}

// shown returns the value, or a summary of it if it is too long.
func (w *walk) shown(n *node) (value json.RawMessage, cut bool) {
	switch {
	case n == nil:
		return nil, false
	case n.size <= w.value:
		return n.append(nil), false
	case n.kind == '{':
		return quoted(fmt.Sprintf("{… %d members, %d bytes}", len(n.items), n.size)), true
	case n.kind == '[':
		return quoted(fmt.Sprintf("[… %d items, %d bytes]", len(n.items), n.size)), true
	}
	return quoted(fmt.Sprintf("%s… (%d bytes)", cutAt(n.text, w.value), len(n.text))), true
}

// cutAt returns at most size bytes of the text, without a partial rune at the end.
func cutAt(text string, size int) string {
	if len(text) <= size {
		return text
	}
	for size > 0 && !utf8.RuneStart(text[size]) {
		size--
	}
	return text[:size]
}

// A step is an element of a path. nil is the document itself.
type step struct {
	up    *step
	name  string // of a member, or the value of the item's key
	key   string // the member that identifies the item; "" for a member
	index int    // position of an item without a key, starting at 1; otherwise 0
}

// String returns the path in the syntax of kubectl's JSONPath, except that list items may be named
// by their key. A path with more than stepsMax steps is shortened in the middle.
func (s *step) String() string {
	depth := 0
	for at := s; at != nil; at = at.up {
		depth++
	}
	if depth == 0 {
		return "."
	}
	var texts []string // from the last step to the first
	for at, i := s, depth; at != nil; at, i = at.up, i-1 {
		switch {
		case depth > stepsMax && i == stepsMax/2:
			texts = append(texts, "…")
		case depth <= stepsMax || i < stepsMax/2 || i > depth-stepsMax/2:
			texts = append(texts, at.text())
		}
	}
	var b strings.Builder
	for i := len(texts) - 1; i >= 0; i-- {
		b.WriteString(texts[i])
	}
	return b.String()
}

func (s *step) text() string {
	name := cutAt(s.name, stepMax)
	if len(name) < len(s.name) {
		name += "…"
	}
	switch {
	case s.key != "" && isPlain(name, "./:@-_"):
		return "[" + s.key + "=" + name + "]"
	case s.key != "":
		return "[" + s.key + "=" + strconv.Quote(name) + "]"
	case s.index > 0:
		return "[" + strconv.Itoa(s.index-1) + "]"
	case isPlain(name, "-_"):
		return "." + name
	}
	return "[" + strconv.Quote(name) + "]"
}

// isPlain reports whether a name needs no quotes. It may contain letters, digits and the bytes in
// others.
func isPlain(name, others string) bool {
	for i := range len(name) {
		if !isPlainByte(name[i], others) {
			return false
		}
	}
	return name != ""
}

func isPlainByte(c byte, others string) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte(others, c) >= 0
}
