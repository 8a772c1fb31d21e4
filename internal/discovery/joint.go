package discovery

// This file finds names for the definitions of several servers in one document of OpenAPI v2, as k8s.io/kube-aggregator does:
//
//	ours                          theirs                            the document
//	…v1.ObjectMeta {a, b}         …v1.ObjectMeta {a, b}             …v1.ObjectMeta, once
//	…v1.ObjectMeta {a, b}         …v1.ObjectMeta {a, c}             …v1.ObjectMeta, and …v1.ObjectMeta_v2, to which their references lead
//	…v1.DeleteOptions of v1       …v1.DeleteOptions of wardle…/v1   …v1.DeleteOptions of both group versions
//
// Servers are asked in the order of their groups' priorities: who comes first has the name. Ours come before all. Since the document is never held as a
// whole, those of our definitions that others have, too, are made once before, and what comes of it is remembered for as long as nothing changes.

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"apilet/internal/scheme"
)

const (
	definitionPrefix = "#/definitions/"
	kindsMember      = "x-kubernetes-group-version-kind"
)

// A joint is what others' documents come to beside ours.
type joint struct {
	of    *scheme.Catalog
	parts []*Swagger       // what is to be sent of each, references and all
	kinds map[string][]any // which kinds a definition of ours stands for, where others say more of them
}

// swaggers are the documents that there are, in their order.
func (o *Others) swaggers() (all []*Swagger) {
	if o == nil {
		return nil
	}
	priority := map[string]int32{} // of groups
	for gv, p := range o.Priorities {
		if o.find(gv.Group, gv.Version) != nil {
			priority[gv.Group] = max(priority[gv.Group], p.Group)
		}
	}
	ordered := slices.Clone(o.All)
	slices.SortStableFunc(ordered, func(a, b Other) int {
		return cmp.Or(cmp.Compare(priority[b.Group], priority[a.Group]), cmp.Compare(a.Version+"."+a.Group, b.Version+"."+b.Group))
	})
	for i := range ordered {
		if ordered[i].Swagger != nil {
			all = append(all, ordered[i].Swagger)
		}
	}
	return all
}

// joint is made once for each state of what both sides have.
func (o *Others) joint(c *scheme.Catalog) *joint {
	swaggers := o.swaggers()
	if len(swaggers) == 0 {
		return &joint{}
	}
	o.joining.Lock()
	defer o.joining.Unlock()
	if o.joined != nil && o.joined.of == c {
		return o.joined
	}
	theirs := map[string]bool{}
	for _, of := range swaggers {
		for name := range of.definitions {
			theirs[name] = true
		}
	}
	ours := &capture{wanted: theirs, found: map[string]map[string]any{}}
	doc := &swagger{d: newOADocument(), sink: ours, shared: map[string]map[string]any{}, joint: &joint{}}
	if doc.paths(c, o) != nil || doc.definitions(c, o) != nil { // a capture takes everything
		return &joint{}
	}
	j := &joint{of: c, kinds: map[string][]any{}}
	taken := names{ours: slices.Collect(maps.Keys(ours.found)), all: ours.found, joint: j}
	for _, of := range swaggers {
		j.parts = append(j.parts, taken.add(of))
	}
	o.joined = j
	return j
}

// A capture is a sink that keeps some definitions.
type capture struct {
	wanted map[string]bool
	found  map[string]map[string]any
	in     bool // the section is that of definitions
}

func (c *capture) head(map[string]any) error { return nil }

func (c *capture) section(name string) error {
	c.in = name == "definitions"
	return nil
}

func (c *capture) entry(name string, value map[string]any) error {
	if c.in && c.wanted[name] {
		c.found[name] = asTree(value)
	}
	return nil
}

func (c *capture) end() error { return nil }

// names are the definitions that have one.
type names struct {
	ours  []string
	all   map[string]map[string]any
	joint *joint
}

// add finds names for what a document defines, and returns what is to be sent of it.
func (n *names) add(of *Swagger) *Swagger {
	theirs, renames, used := map[string]map[string]any{}, map[string]string{}, map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(of.definitions)) {
		theirs[name] = asTree(of.definitions[name])
	}
	for _, name := range slices.Sorted(maps.Keys(theirs)) {
		if existing, found := n.all[name]; found && !sameDefinition(existing, theirs[name]) {
			renames[name] = n.rename(name, theirs, used)
		}
	}
	part := &Swagger{ETag: of.ETag, paths: of.paths, definitions: map[string]json.RawMessage{}}
	if len(renames) > 0 {
		part.paths = map[string]json.RawMessage{}
		for path, item := range of.paths {
			part.paths[path], _ = json.Marshal(renamed(asTree(item), renames)) // it was JSON
		}
	}
	for name, definition := range theirs {
		name = cmp.Or(renames[name], name)
		renamed(definition, renames)
		if existing, found := n.all[name]; found {
			n.share(name, existing, definition)
			continue
		}
		n.all[name] = definition
		part.definitions[name], _ = json.Marshal(definition) // it was JSON
	}
	return part
}

// rename is a name that nobody has, or that of a definition which is the same.
func (n *names) rename(name string, theirs map[string]map[string]any, used map[string]bool) string {
	for i := 2; ; i++ {
		other := fmt.Sprintf("%s_v%d", name, i)
		existing, found := n.all[other]
		switch {
		case found && sameDefinition(existing, theirs[name]):
			return other
		case found || used[other] || theirs[other] != nil:
			continue
		}
		used[other] = true
		return other
	}
}

// share has a definition of ours stand for the kinds, too, that another's is about. Another's own stands for its own alone.
func (n *names) share(name string, existing, theirs map[string]any) {
	more, _ := theirs[kindsMember].([]any)
	if len(more) == 0 || !slices.Contains(n.ours, name) {
		return
	}
	ours, _ := existing[kindsMember].([]any)
	all := map[string]any{}
	for _, kind := range slices.Concat(ours, more) {
		gvk, _ := kind.(map[string]any)
		all[fmt.Sprintf("%v/%v.%v", gvk["group"], gvk["version"], gvk["kind"])] = kind
	}
	if len(all) == len(ours) {
		return
	}
	merged := []any{}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		merged = append(merged, all[key])
	}
	existing[kindsMember], n.joint.kinds[name] = merged, merged
}

// renamed has references lead to what their definitions are called now. The value is changed.
func renamed(value any, renames map[string]string) any {
	switch v := value.(type) {
	case []any:
		for i := range v {
			v[i] = renamed(v[i], renames)
		}
	case map[string]any:
		for key := range v {
			v[key] = renamed(v[key], renames)
		}
		ref, _ := v["$ref"].(string)
		if name, ok := strings.CutPrefix(ref, definitionPrefix); ok && renames[name] != "" {
			v["$ref"] = definitionPrefix + renames[name]
		}
	}
	return value
}

// sameDefinition compares all but the kinds that a definition is about.
func sameDefinition(a, b map[string]any) bool {
	a, b = maps.Clone(a), maps.Clone(b)
	delete(a, kindsMember)
	delete(b, kindsMember)
	return reflect.DeepEqual(a, b)
}
