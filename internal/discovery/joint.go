package discovery

// This file merges the definitions of several servers into one OpenAPI v2 document, in the same way
// as k8s.io/kube-aggregator:
//
//	apilet                        other server                      merged document
//	…v1.ObjectMeta {a, b}         …v1.ObjectMeta {a, b}             …v1.ObjectMeta, once
//	…v1.ObjectMeta {a, b}         …v1.ObjectMeta {a, c}             …v1.ObjectMeta, and …v1.ObjectMeta_v2 for the references of the other server
//	…v1.DeleteOptions of v1       …v1.DeleteOptions of wardle…/v1   …v1.DeleteOptions of both group versions
//
// The definitions of apilet come first. Other servers are sorted by the priority of their groups.
// The first server keeps the name. The document is streamed and is never completely in memory.
// Therefore all definitions of apilet that also exist on other servers are generated in advance.
// The result is cached until either side changes.

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

// mergedSwagger is the result of merging the documents of other servers.
type mergedSwagger struct {
	of    *scheme.Catalog
	parts []*Swagger // the merged parts of each server, with renamed references
	// kinds of the definitions of apilet that other servers use for additional kinds
	kinds map[string][]any
}

// swaggers returns the documents of other servers. They are sorted by the priority of their groups,
// in descending order.
func (o *RemoteVersions) swaggers() (all []*Swagger) {
	if o == nil {
		return nil
	}
	priority := map[string]int32{} // by group
	for gv, p := range o.Priorities {
		if o.find(gv.Group, gv.Version) != nil {
			priority[gv.Group] = max(priority[gv.Group], p.Group)
		}
	}
	ordered := slices.Clone(o.All)
	slices.SortStableFunc(ordered, func(a, b RemoteVersion) int {
		return cmp.Or(cmp.Compare(priority[b.Group], priority[a.Group]), cmp.Compare(a.Version+"."+a.Group, b.Version+"."+b.Group))
	})
	for i := range ordered {
		if ordered[i].Swagger != nil {
			all = append(all, ordered[i].Swagger)
		}
	}
	return all
}

// mergedSwagger returns the merged documents. It caches the result until the catalog or a server
// changes.
func (o *RemoteVersions) mergedSwagger(c *scheme.Catalog) *mergedSwagger {
	swaggers := o.swaggers()
	if len(swaggers) == 0 {
		return &mergedSwagger{}
	}
	o.mergeLock.Lock()
	defer o.mergeLock.Unlock()
	if o.merged != nil && o.merged.of == c {
		return o.merged
	}
	theirs := map[string]bool{}
	for _, of := range swaggers {
		for name := range of.definitions {
			theirs[name] = true
		}
	}
	ours := &definitionSink{wanted: theirs, found: map[string]map[string]any{}}
	doc := &swagger{d: newOADocument(), sink: ours, shared: map[string]map[string]any{}, merged: &mergedSwagger{}}
	if doc.paths(c, o) != nil || doc.definitions(c, o) != nil { // a capture returns no errors
		return &mergedSwagger{}
	}
	j := &mergedSwagger{of: c, kinds: map[string][]any{}}
	taken := names{ours: slices.Collect(maps.Keys(ours.found)), all: ours.found, merged: j}
	for _, of := range swaggers {
		j.parts = append(j.parts, taken.add(of))
	}
	o.merged = j
	return j
}

// definitionSink implements a sink that keeps the wanted definitions.
type definitionSink struct {
	wanted map[string]bool
	found  map[string]map[string]any
	in     bool // the current section is "definitions"
}

func (c *definitionSink) head(map[string]any) error { return nil }

func (c *definitionSink) section(name string) error {
	c.in = name == "definitions"
	return nil
}

func (c *definitionSink) entry(name string, value map[string]any) error {
	if c.in && c.wanted[name] {
		c.found[name] = asTree(value)
	}
	return nil
}

func (c *definitionSink) end() error { return nil }

// names holds the definitions merged so far.
type names struct {
	ours   []string
	all    map[string]map[string]any
	merged *mergedSwagger
}

// add renames the conflicting definitions of a document, and returns the part of it that must be
// sent.
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
			// it was decoded from JSON
			part.paths[path], _ = json.Marshal(renamed(asTree(item), renames))
		}
	}
	for name, definition := range theirs {
		name = cmp.Or(renames[name], name)
		renamed(definition, renames)
		if existing, found := n.all[name]; found {
			n.addKinds(name, existing, definition)
			continue
		}
		n.all[name] = definition
		part.definitions[name], _ = json.Marshal(definition) // it was decoded from JSON
	}
	return part
}

// rename returns an unused name, or the name of an equal definition.
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

// addKinds adds the kinds of another server's definition to an equal definition of apilet. It does
// not change the definitions of other servers.
func (n *names) addKinds(name string, existing, theirs map[string]any) {
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
	existing[kindsMember], n.merged.kinds[name] = merged, merged
}

// renamed updates references to renamed definitions. It modifies value.
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

// sameDefinition reports whether two definitions are equal except for their kinds.
func sameDefinition(a, b map[string]any) bool {
	a, b = maps.Clone(a), maps.Clone(b)
	delete(a, kindsMember)
	delete(b, kindsMember)
	return reflect.DeepEqual(a, b)
}
