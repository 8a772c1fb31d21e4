// Package changes provides functions to compare two versions of an object. It returns the
// differences either as a list of paths with their old and new values, or as a unified diff in YAML
// format.
//
//	list, more, err := changes.Options{}.Compare(old, new)
//	// .spec.template.spec.containers[name=web].image  "nginx:1"  "nginx:2"
//
// To compare lists, the package identifies items by their type, name, key or another member that is
// unique within the list. If there is no such member, items are compared by position, ignoring any
// common items at the start and at the end. metadata.managedFields, resourceVersion and generation
// are ignored, because every write changes them. The values of Secrets and kubectl's
// last-applied-configuration annotation are masked before the comparison. If a masked value has
// changed, the result contains the path, but not the value.
//
// Start with document.go, which parses JSON into a tree of nodes with hashes and sizes. Then read
// this file (the walk through two trees) and text.go (YAML and its diff).
//
// Invariants: time and memory are linear in the size of the two documents, plus the limits in
// [Options]. A document that is not valid JSON results in an error and is never printed. All
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

// A Change describes a changed value and its path. If the value was added, Old is nil. If the value
// was removed, New is nil.
type Change struct {
	Path string          `json:"path"` // .spec.ports[name=http].port
	Old  json.RawMessage `json:"old,omitempty"`
	New  json.RawMessage `json:"new,omitempty"`
	// Cut is set if a value is too long. In this case Old or New is a string with the beginning of
	// the value or its size.
	Cut bool `json:"cut,omitempty"`

	was, is uint64
}

// Hashes returns the hashes of the old and the new value, or 0 if there is no value. If a value is
// cut or masked, its hash is still computed from the whole value. The hashes can be compared with
// those of another comparison if both use the same Seed.
func (c *Change) Hashes() (old, new uint64) { return c.was, c.is }

// Compare returns the differences between the old and the new version, up to the limit on the
// number of paths. It also returns the number of differences that were omitted. If either version
// is empty (the object was created or deleted), it returns none.
func (r Options) Compare(old, new []byte) (list []Change, more int, err error) {
	if len(old) == 0 || len(new) == 0 {
		return nil, 0, nil
	}
	p := r.parser("managedFields", "resourceVersion", "generation")
	a, b, err := p.pair(old, new)
	if err != nil {
		return nil, 0, err
	}
	w := walk{paths: r.MaxChanges, value: r.MaxValueBytes}
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
	case a == nil && w.mustSplit(b):
		w.parts(at, b, func(at *step, n *node) { w.between(at, nil, n) })
	case b == nil && w.mustSplit(a):
		w.parts(at, a, func(at *step, n *node) { w.between(at, n, nil) })
	default:
		w.changed(at, a, b)
	}
}

// mustSplit reports whether the value should be split because it is too long to be shown as a
// whole.
func (w *walk) mustSplit(n *node) bool {
	return n.size > w.value && (n.kind == '{' || n.kind == '[') && len(n.items) > 0
}

// parts calls visit for each member or item of the node.
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

// objects compares two objects. It visits their members in the order of the names.
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

// mergeKeys contains the names of the members that may identify the items of a list. They are used
// in Kubernetes objects for conditions, containers, tolerations, owners, addresses, ports and
// mounts.
var mergeKeys = []string{"type", "name", "key", "uid", "ip", "containerPort", "port", "mountPath", "topologyKey"}

// mergeKey returns the name of a member that can be used to identify the items of both lists. Every
// item must have the member, and its value must be a string or number that is unique in the list.
// If no such member exists, it returns "".
func mergeKey(a, b *node) string {
	for _, key := range mergeKeys {
		if isUniqueKey(a, key) && isUniqueKey(b, key) {
			return key
		}
	}
	return ""
}

func isUniqueKey(list *node, key string) bool {
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

// keyed compares two lists using the given key to match their items. If the order of the common
// items differs, this is reported as a change of the list, with its old and new keys as values.
func (w *walk) keyed(at *step, key string, a, b *node) {
	var wasOrder, isOrder node // keys of the items that exist in both lists
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
	c.Old, cutOld = w.displayValue(a)
	c.New, cutNew = w.displayValue(b)
	c.Cut = cutOld || cutNew
	if a != nil {
		c.was = a.hash
	}
	if b != nil {
		c.is = b.hash
	}
	w.list = append(w.list, c)
}

// displayValue returns the value in JSON format. If the value is too long, it returns a summary.
func (w *walk) displayValue(n *node) (value json.RawMessage, cut bool) {
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

// cutAt truncates the text to at most size bytes without splitting a UTF-8 sequence.
func cutAt(text string, size int) string {
	if len(text) <= size {
		return text
	}
	for size > 0 && !utf8.RuneStart(text[size]) {
		size--
	}
	return text[:size]
}

// A step represents an element of a path. A nil step represents the root of the document.
type step struct {
	up    *step
	name  string // name of the member, or value of the item's key
	key   string // name of the member that identifies the item, or "" for a member
	index int    // The index is one-based for items without a key, and zero otherwise.
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

// isPlain reports whether a name needs no quotes. Only letters, digits and the given other
// characters are allowed.
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
