package main

// This file reads the OpenAPI documents of the server. They contain the types, the paths, the
// supported methods, and the values that are expected in an object. Only valid.go depends on the
// names of the types.

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// A schema contains the used fields of an OpenAPI schema.
type schema struct {
	Ref         string             `json:"$ref"`
	AllOf       []*schema          `json:"allOf"`
	OneOf       []*schema          `json:"oneOf"`
	Type        string             `json:"type"`
	Format      string             `json:"format"`
	Description string             `json:"description"`
	Enum        []any              `json:"enum"`
	Required    []string           `json:"required"`
	Properties  map[string]*schema `json:"properties"`
	Items       *schema            `json:"items"`
	Values      json.RawMessage    `json:"additionalProperties"` // a schema or a boolean
	Free        bool               `json:"x-kubernetes-preserve-unknown-fields"`
	IntOrString bool               `json:"x-kubernetes-int-or-string"`
	name        string             // name of the type, which is the last part of the reference
}

// A document is an OpenAPI v3 document of one group version.
type document struct {
	Paths      map[string]map[string]json.RawMessage `json:"paths"`
	Components struct{ Schemas map[string]*schema }  `json:"components"`
}

type operation struct {
	Parameters  []struct{ Name, In string }
	RequestBody struct {
		Content map[string]struct{ Schema *schema }
	}
	GVK    struct{ Group, Version, Kind string } `json:"x-kubernetes-group-version-kind"`
	Action string                                `json:"x-kubernetes-action"`
}

// A kind is a type that is served at a given path.
type kind struct {
	apiVersion, name string
	// the path for POST, with the namespace and the parent's name filled in
	collection   string
	verbs        []string // HTTP methods for one object
	parameters   []string // of the collection and its objects
	subresources []string
	schema       *schema
	schemas      map[string]*schema // of the document
}

// A site is a place in an object.
type site struct {
	owner  string   // the type that has the member
	field  string   // the member's name
	path   []string // path from the root. "0" is the element of a list.
	sort   string   // the expected value: text, number ..., list, map, free
	schema *schema
}

func (s site) tag() string { return "at " + s.owner + "." + s.field }

var quotedValue = regexp.MustCompile(`(?:values?|possible)[^.]*?["'` + "`" + `](\w+)["'` + "`" + `]`)
var quotedPrefix = regexp.MustCompile(`'(\w:)<`)

// kindsOf returns the kinds of a document that can be created.
func kindsOf(d *document, fill func(path string) string) []*kind {
	var kinds []*kind
	for _, path := range slices.Sorted(maps.Keys(d.Paths)) {
		post, ok := operationOf(d, path, "post")
		body, hasBody := post.RequestBody.Content["*/*"]
		if !hasBody {
			body, hasBody = post.RequestBody.Content["application/json"]
		}
		if !ok || !hasBody || post.GVK.Kind == "" {
			continue
		}
		k := &kind{apiVersion: strings.TrimPrefix(post.GVK.Group+"/"+post.GVK.Version, "/"), name: post.GVK.Kind, collection: fill(path), schemas: d.Components.Schemas}
		k.schema = k.resolve(body.Schema)
		k.learnPlaces(d, path)
		kinds = append(kinds, k)
	}
	return kinds
}

func operationOf(d *document, path, method string) (o operation, ok bool) {
	raw, ok := d.Paths[path][method]
	return o, ok && json.Unmarshal(raw, &o) == nil
}

// learnPlaces records the methods of the kind's paths.
func (k *kind) learnPlaces(d *document, collection string) {
	item := collection + "/{name}"
	for path, methods := range d.Paths {
		if path != collection && path != item && !strings.HasPrefix(path, item+"/") {
			continue
		}
		if sub, is := strings.CutPrefix(path, item+"/"); is {
			if _, put := methods["put"]; put {
				k.subresources = append(k.subresources, sub)
			}
			continue
		}
		for method := range methods {
			if o, ok := operationOf(d, path, method); ok {
				if path == item {
					k.verbs = append(k.verbs, strings.ToUpper(method))
				}
				for _, p := range o.Parameters {
					if p.In == "query" {
						k.parameters = append(k.parameters, p.Name)
					}
				}
			}
		}
	}
	slices.Sort(k.verbs)
	slices.Sort(k.parameters)
	k.parameters = slices.Compact(k.parameters)
	slices.Sort(k.subresources)
}

// resolve follows references. It also resolves allOf if it contains a single schema.
func (k *kind) resolve(s *schema) *schema {
	for range 8 {
		switch {
		case s == nil:
			return &schema{}
		case s.Ref != "":
			name := s.Ref[strings.LastIndexByte(s.Ref, '/')+1:]
			s = k.schemas[name]
			if s != nil && s.name == "" {
				s.name = name[strings.LastIndexByte(name, '.')+1:]
			}
		case len(s.AllOf) == 1:
			s = s.AllOf[0]
		default:
			return s
		}
	}
	return s
}

// values returns the schema of the object's values. It returns nil if the object has no values.
func (k *kind) values(s *schema) *schema {
	var v schema
	if len(s.Values) == 0 || s.Values[0] != '{' || json.Unmarshal(s.Values, &v) != nil {
		return nil
	}
	return k.resolve(&v)
}

// sortOf returns the sort of value that is expected by the schema.
func (k *kind) sortOf(s *schema) string {
	switch {
	case s.IntOrString || len(s.OneOf) > 0:
		return "number " + cmp.Or(s.Format, s.name, "or text")
	case s.Type == "array":
		return "list"
	case s.Type == "integer" || s.Type == "number":
		return "number " + cmp.Or(s.Format, s.Type)
	case s.Type == "string" && s.Format != "" && s.Format != "byte":
		return "number " + s.Format // the texts of times and durations contain numbers
	case s.Type == "string":
		return "text"
	case s.Type == "boolean":
		return "boolean"
	case k.values(s) != nil:
		return "map"
	case len(s.Properties) == 0:
		return "free"
	}
	if s.Free {
		return "free"
	}
	return "object"
}

// sites returns all places in the objects of a kind. If a type is used several times, only its
// first place is returned.
func (k *kind) sites() []site {
	var all []site
	seen := map[*schema]bool{}
	var walk func(s *schema, owner string, path []string)
	walk = func(s *schema, owner string, path []string) {
		if seen[s] || len(path) > 14 {
			return
		}
		seen[s] = true
		for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
			if name == "apiVersion" || name == "kind" || name == "$ref" || name == "$schema" {
				continue
			}
			child := k.resolve(s.Properties[name])
			at := append(slices.Clone(path), name)
			found := site{cmp.Or(s.name, owner), name, at, k.sortOf(child), child}
			all = append(all, found)
			values := k.inside(found, walk)
			all = append(all, values...)
		}
	}
	walk(k.schema, k.name, nil)
	return all
}

// inside walks the members of an object, list or map. If the values of a map are numbers, a
// separate site is returned for them.
func (k *kind) inside(at site, walk func(*schema, string, []string)) []site {
	switch at.sort {
	case "object", "free":
		walk(at.schema, at.owner+"."+at.field, at.path)
	case "list":
		walk(k.resolve(at.schema.Items), at.owner+"."+at.field, append(slices.Clone(at.path), "0"))
	case "map":
		value, path := k.values(at.schema), append(slices.Clone(at.path), "k")
		if sort := k.sortOf(value); strings.HasPrefix(sort, "number") {
			return []site{{at.owner, at.field, path, sort, value}}
		}
		walk(value, at.owner+"."+at.field, path)
	}
	return nil
}

// valid returns a value that the schema and its description allow.
func (k *kind) valid(s *schema, name string) *node {
	if len(s.Enum) > 0 {
		return treeOf(s.Enum[0])
	}
	switch sort := k.sortOf(s); sort {
	case "object":
		o := &node{Kind: "object"}
		for _, required := range s.Required {
			o.set(required, k.valid(k.resolve(s.Properties[required]), required))
		}
		return o
	case "list":
		return &node{Kind: "list", Items: []*node{k.valid(k.resolve(s.Items), name)}}
	case "map", "free":
		return &node{Kind: "object"}
	case "text":
		if name == "apiVersion" {
			return text(k.apiVersion)
		}
		if m := quotedValue.FindStringSubmatch(s.Description); m != nil {
			return text(m[1])
		}
		return text("x")
	case "boolean":
		return literal("true")
	case "number date-time":
		return text("2026-01-02T03:04:05Z")
	case "number duration":
		return text("1m")
	case "number MicroTime":
		return text("2026-01-02T03:04:05.000001Z")
	default:
		if s.Type == "string" {
			return text("1")
		}
		return literal("1")
	}
}

// complete adds the missing members if they are texts, numbers or booleans. Booleans are true.
func (k *kind) complete(o *node, s *schema) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		of := k.resolve(s.Properties[name])
		if sort := k.sortOf(of); o.get(name) == nil && (sort == "text" || sort == "boolean" || strings.HasPrefix(sort, "number")) {
			o.set(name, k.valid(of, name))
		}
	}
}

// prefixes returns the prefixes for the names of members that are listed in the description,
// followed by an empty prefix.
func prefixes(s *schema) []string {
	var all []string
	for _, m := range quotedPrefix.FindAllStringSubmatch(s.Description, -1) {
		all = append(all, m[1])
	}
	return append(all, "")
}

// put inserts a value at a path of a document of this kind and adds the missing parents.
func (k *kind) put(o *node, path []string, value *node) error {
	s := k.schema
	for i, name := range path {
		last := i == len(path)-1
		next := k.below(s, name)
		if o.Kind == "list" && name == "0" {
			if len(o.Items) == 0 {
				o.Items = []*node{k.valid(next, "")}
			}
			if last {
				o.Items[0] = value
			}
			o, s = o.Items[0], next
			continue
		}
		if o.Kind != "object" {
			return fmt.Errorf("%s: %s is no member of a %s", k.name, strings.Join(path[:i+1], "."), o.Kind)
		}
		if last {
			o.set(name, value)
			return nil
		}
		if o.get(name) == nil {
			o.set(name, k.surroundings(next, name))
		}
		o, s = o.get(name), next
	}
	return nil
}

// surroundings returns a valid value. It includes the members whose possible values are listed in
// the description.
func (k *kind) surroundings(s *schema, name string) *node {
	v := k.valid(s, name)
	if v.Kind == "list" && len(v.Items) > 0 && v.Items[0].Kind == "object" {
		item := k.resolve(s.Items)
		for member, of := range item.Properties {
			if of = k.resolve(of); member == "apiVersion" || quotedValue.MatchString(of.Description) && k.sortOf(of) == "text" && len(item.Required) == 0 {
				v.Items[0].set(member, k.valid(of, member))
			}
		}
		slices.SortFunc(v.Items[0].Members, func(a, b member) int { return strings.Compare(a.Name, b.Name) })
	}
	return v
}

func (k *kind) below(s *schema, name string) *schema {
	switch k.sortOf(s) {
	case "list":
		return k.resolve(s.Items)
	case "map":
		return k.values(s)
	}
	return k.resolve(s.Properties[name])
}
