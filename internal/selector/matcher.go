package selector

// This file evaluates the selectors of a LIST or WATCH, and defines how each selectable field is
// read.

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

// Matcher selects the objects of a LIST or WATCH. It works on the stored bytes without decoding
// them.
type Matcher struct {
	Prefix string // the key range of the resource or namespace
	// the part of Prefix that can match: a single key if a selector requires a name
	Span string
	// the text of both selectors, for continue tokens
	Selectors string
	namespace string // the namespace, or "" for all namespaces
	labels    Labels
	fields    []*Field
}

// Terms are a parsed label selector and a parsed field selector that are not yet checked against a
// type. Other errors in the request are reported before an unsupported field.
type Terms struct {
	labels               Labels
	fields               fields.Selector
	labelText, fieldText string
}

// Parse parses the selectors of a request. It returns a 400 if they are malformed.
func Parse(labelText, fieldText string) (t Terms, err error) {
	t.labelText, t.fieldText = labelText, fieldText
	if labelText != "" {
		parsed, err := ParseLabels(labelText)
		if err != nil {
			return t, apierrors.NewBadRequest(err.Error())
		}
		requirements, _ := parsed.Requirements()
		t.labels = NewLabels(requirements)
	}
	if t.fields, err = fields.ParseSelector(fieldText); err != nil {
		return t, apierrors.NewBadRequest(err.Error())
	}
	return t, nil
}

// Compile returns a Matcher for the objects of type res in the namespace of the request. If the
// request is for a single name, the Matcher also requires this name. Compile returns a 400 if the
// type does not support a field of the field selector, or if the field selector does not require
// the name.
func (t Terms) Compile(res *scheme.Resource, info *request.Info) (Matcher, error) {
	m := Matcher{namespace: res.Scope(info.Namespace), labels: t.labels}
	m.Prefix = res.KeyPrefix(m.namespace)
	m.Span = m.Prefix
	if err := m.addFields(res, t.fields.Requirements()); err != nil {
		return m, apierrors.NewBadRequest(err.Error())
	}
	if info.Name != "" {
		if err := t.narrowTo(info.Name); err != nil {
			return m, err
		}
		if err := m.addFields(res, t.fields.Requirements()); err != nil {
			return m, err
		}
	}
	if t.labelText != "" || t.fieldText != "" {
		m.Selectors = t.labelText + "\x00" + t.fieldText
	}
	return m, nil
}

// narrowTo restricts the terms to the name for which a LIST or WATCH is authorized, which may come
// from the path of a watch. If the client sent a field selector, it must require the same name.
func (t *Terms) narrowTo(name string) error {
	if t.fields.Empty() {
		t.fields = fields.OneTermEqualSelector("metadata.name", name)
		t.fieldText = t.fields.String()
		return nil
	}
	if demanded, ok := t.fields.RequiresExactMatch("metadata.name"); !ok || demanded != name {
		return apierrors.NewBadRequest("fieldSelector metadata.name doesn't match requested name")
	}
	return nil
}

// MatchesAll reports whether all objects of the collection match.
func (m *Matcher) MatchesAll() bool { return len(m.labels.ByKey) == 0 && len(m.fields) == 0 }

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

// NewFields merges the requirements on each field into one term. It returns an error for a field
// that the type cannot be selected by.
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

// Matches reports whether the object with this key and JSON is selected.
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

// RequiredTerm returns a label or the path of a field, and the value that it must have in all
// selected objects. This can be used as an index key. If there is no such label or field, both are
// "".
func (m *Matcher) RequiredTerm() (label, field, value string) {
	for _, term := range m.fields {
		if value, ok := term.exactly(); ok {
			return "", term.path, value
		}
	}
	label, value = m.labels.exactly()
	return label, "", value
}

// fieldTermFor returns how to read a field, or an error if the field is not selectable.
func fieldTermFor(res *scheme.Resource, name string) (Field, error) {
	id := res.StorageGroup + "/" + res.Plural
	switch name {
	case "metadata.name":
		return Field{Key: func(_, name string) string { return name }}, nil
	case "metadata.namespace":
		if res.Namespaced || selectableFields[id] == nil {
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
	for _, known := range selectableFields[id] {
		path, empty, _ := strings.Cut(known, "|")
		if path == name && res.Group == res.StorageGroup || res.Group == "events.k8s.io" && eventField(name) == path {
			return pathTerm(path, empty), nil
		}
	}
	if format, ok := strictFields[id]; ok {
		return Field{}, fmt.Errorf(format, name)
	}
	if selectableFields[id] != nil || res.GoType == nil {
		return Field{}, fmt.Errorf("field label not supported: %s", name)
	}
	return Field{}, fmt.Errorf("%q is not a known field selector: only \"metadata.name\", \"metadata.namespace\"", name)
}

// customTerm reads a field of a custom resource in its served form, because a default may have been
// added since the object was stored.
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
	// the component that sent the event, in the old field or the new
	case "source":
		return Field{fixed: func(event gjson.Result) string {
			if source := event.Get("source.component").String(); source != "" {
				return source
			}
			return event.Get("reportingComponent").String()
		}}
	case "status.podIP":
		path = "status.podIPs.0.ip"
	case "status.podIPs": // selectable, but always empty
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
