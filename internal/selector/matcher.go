package selector

// This file: the selectors of a LIST or WATCH, and how each field is read that Kubernetes lets one select by.

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tidwall/gjson"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/selection"

	"apilet/internal/request"
	"apilet/internal/scheme"
)

// A Matcher decides which objects a LIST or WATCH shows. It reads the stored bytes; nothing is decoded.
type Matcher struct {
	Prefix    string // the key range of the resource or namespace
	Span      string // the part of it that can match: one key when a selector names it
	Selectors string // both selectors as text: continue tokens are bound to them
	namespace string // the collection's, "" for all
	labels    Labels
	fields    []*Field
}

// NewMatcher reads a label selector and a field selector for the objects of a resource that a request is about; a 400 says what is wrong with them.
func NewMatcher(res *scheme.Resource, info *request.Info, labelText, fieldText string) (Matcher, error) {
	m := Matcher{namespace: scheme.ScopeOf(res, info)}
	m.Prefix = res.KeyPrefix(m.namespace)
	m.Span = m.Prefix
	if labelText != "" {
		parsed, err := scheme.ParseLabels(labelText)
		if err != nil {
			return m, apierrors.NewBadRequest(err.Error())
		}
		requirements, _ := parsed.Requirements()
		m.labels = NewLabels(requirements)
	}
	if fieldText != "" {
		parsed, err := fields.ParseSelector(fieldText)
		if err != nil {
			return m, apierrors.NewBadRequest(err.Error())
		}
		if err := m.addFields(res, parsed.Requirements()); err != nil {
			return m, apierrors.NewBadRequest(err.Error())
		}
	}
	if labelText != "" || fieldText != "" {
		m.Selectors = labelText + "\x00" + fieldText
	}
	return m, nil
}

// Everything says that no selector narrows the collection.
func (m *Matcher) Everything() bool { return len(m.labels.ByKey) == 0 && len(m.fields) == 0 }

func (m *Matcher) addFields(res *scheme.Resource, terms fields.Requirements) (err error) {
	if m.fields, err = NewFields(res, terms); err != nil {
		return err
	}
	for _, term := range terms {
		if name := term.Field == "metadata.name"; name && term.Operator != selection.NotEquals && (m.namespace != "" || !res.Namespaced) && term.Value != "" {
			m.Span = res.Key(m.namespace, term.Value)
		}
	}
	return nil
}

// NewFields joins the requirements on each field of a type's objects into one term. An error names a field that they cannot be selected by.
func NewFields(res *scheme.Resource, terms fields.Requirements) (list []*Field, err error) {
	known := map[string]*Field{}
	for _, term := range terms {
		if known[term.Field] == nil {
			t, err := fieldTermFor(res, term.Field)
			if err != nil {
				return nil, err
			}
			known[term.Field] = &t
			list = append(list, &t)
		}
		known[term.Field].add(term.Value, term.Operator)
	}
	return list, nil
}

// Matches says whether the object with this key and JSON is shown.
func (m *Matcher) Matches(key string, json []byte) bool {
	if !strings.HasPrefix(key, m.Span) {
		return false
	}
	for _, term := range m.fields {
		if !term.Matches(key, json) {
			return false
		}
	}
	return len(m.labels.ByKey) == 0 || m.labels.Match(gjson.GetBytes(json, "metadata.labels"))
}

// Demands is one label, or one field by its path, with the value that all that is selected has in it: a key by which those who select can be
// found. Both are "" where there is none.
func (m *Matcher) Demands() (label, field, value string) {
	for _, term := range m.fields {
		if value, ok := term.exactly(); ok {
			return "", term.path, value
		}
	}
	label, value = m.labels.exactly()
	return label, "", value
}

// fieldTermFor finds how a field is read, or says that it is not selectable.
func fieldTermFor(res *scheme.Resource, name string) (Field, error) {
	id := res.StorageGroup + "/" + res.Plural
	switch name {
	case "metadata.name":
		return Field{Key: func(_, name string) string { return name }}, nil
	case "metadata.namespace":
		if res.Namespaced || scheme.SelectableFields[id] == nil {
			return Field{Key: func(namespace, _ string) string { return namespace }}, nil
		}
	case "spec.host":
		if id == "/pods" {
			return fieldTermFor(res, "spec.nodeName")
		}
	}
	if res.Custom != nil && slices.Contains(res.Custom.Selectable, name) {
		return customTerm(res, name), nil
	}
	for _, known := range scheme.SelectableFields[id] {
		path, empty, _ := strings.Cut(known, "|")
		if path == name && res.Group == res.StorageGroup || res.Group == "events.k8s.io" && scheme.EventField(name) == path {
			return pathTerm(path, empty), nil
		}
	}
	if format, ok := scheme.StrictFields[id]; ok {
		return Field{}, fmt.Errorf(format, name)
	}
	if scheme.SelectableFields[id] != nil || res.GoType == nil {
		return Field{}, fmt.Errorf("field label not supported: %s", name)
	}
	return Field{}, fmt.Errorf("%q is not a known field selector: only \"metadata.name\", \"metadata.namespace\"", name)
}

// customTerm reads a field of a custom resource as it is served: a default may have been added since it was stored.
func customTerm(res *scheme.Resource, name string) Field {
	var path strings.Builder
	for i, step := range strings.Split(name, ".") {
		if i > 0 {
			path.WriteByte('.')
		}
		path.WriteString(gjson.Escape(step))
	}
	return Field{fixed: func(obj gjson.Result) string {
		members, err := res.Served([]byte(obj.Raw))
		if err != nil {
			return ""
		}
		return gjson.GetBytes(members, path.String()).String()
	}}
}

func pathTerm(path, empty string) Field {
	switch path {
	case "source": // an Event's source is the component that sent it, by the old field or the new
		return Field{fixed: func(event gjson.Result) string {
			if source := event.Get("source.component").String(); source != "" {
				return source
			}
			return event.Get("reportingComponent").String()
		}}
	case "status.podIP":
		path = "status.podIPs.0.ip"
	case "status.podIPs": // may be asked for, and is empty
		return Field{fixed: func(gjson.Result) string { return "" }}
	}
	if empty == "" {
		return Field{path: path}
	}
	return Field{fixed: func(obj gjson.Result) string {
		if text := obj.Get(path).String(); text != "" {
			return text
		}
		return empty
	}}
}
