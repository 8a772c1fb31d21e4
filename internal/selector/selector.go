// Package selector compiles selectors, so that they can be evaluated quickly on many objects. Most
// selectors have few terms, but a URL can hold twenty thousand, and an object can have as many
// labels. Looking up each term in each object would multiply these numbers. Therefore all terms for
// the same label or field are merged, and the labels of the object are looked up among the terms:
//
//	selector  app=web, app!=db, tier in (a,b), tier in (b,c), !canary
//	terms     app: exists, in {web}, not in {db} · tier: exists, in {b} · canary: does not exist
//	object    {app: web, tier: b, rack: 7}: each label with a term matches, and both required labels exist
//
//	labels := selector.NewLabels(requirements)                      // parsed by k8s.io/apimachinery/pkg/labels
//	matches := labels.Match(gjson.GetBytes(json, "metadata.labels"))
//	fields, err := selector.NewFields(res, terms)                   // parsed by k8s.io/apimachinery/pkg/fields; err if not selectable
//	matches = fields[0].Matches(key, json)
//
// The cost is one look-up per label, regardless of the number of terms. A [Matcher] is used to
// evaluate both selectors in a LIST or WATCH request. It defines which fields Kubernetes can select
// by, and how each field is read.
//
// The results are the same as in labels.Selector.Matches and fields.Selector.Matches of
// k8s.io/apimachinery. The operators != and notin match an object without the label, and a missing
// field is the empty string.
//
// Invariant: the evaluation reads the stored JSON in place. It does not decode objects or allocate
// memory.
package selector

import (
	"strconv"

	"github.com/tidwall/gjson"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"apilet/internal/scheme"
)

// Labels is a compiled label selector.
type Labels struct {
	ByKey    map[string]*LabelTerm // all requirements on one label
	required int                   // number of labels that an object must have
}

// LabelTerm holds all requirements on one label.
type LabelTerm struct {
	required     bool            // the label must exist
	forbidden    bool            // the label must not exist
	in           map[string]bool // allowed values; nil means any value
	out          map[string]bool // excluded values
	above, below *int64          // exclusive bounds of a numeric value
}

// NewLabels merges the requirements on each label into one term.
func NewLabels(requirements labels.Requirements) Labels {
	terms := Labels{ByKey: make(map[string]*LabelTerm, len(requirements))}
	for i := range requirements {
		r := &requirements[i]
		term := terms.ByKey[r.Key()]
		if term == nil {
			term = &LabelTerm{}
			terms.ByKey[r.Key()] = term
		}
		term.add(r)
	}
	for _, term := range terms.ByKey {
		if term.required {
			terms.required++
		}
	}
	return terms
}

func (t *LabelTerm) add(r *labels.Requirement) {
	values := r.ValuesUnsorted()
	switch r.Operator() {
	case selection.In, selection.Equals, selection.DoubleEquals:
		t.required, t.in = true, inBoth(t.in, values)
	case selection.NotIn, selection.NotEquals:
		if t.out == nil {
			t.out = make(map[string]bool, len(values))
		}
		for _, value := range values {
			t.out[value] = true
		}
	case selection.Exists:
		t.required = true
	case selection.DoesNotExist:
		t.forbidden = true
	case selection.GreaterThan:
		t.required = true
		if bound := boundOf(values); t.above == nil || *t.above < bound {
			t.above = &bound
		}
	case selection.LessThan:
		t.required = true
		if bound := boundOf(values); t.below == nil || *t.below > bound {
			t.below = &bound
		}
	}
}

// boundOf returns the number with which a label is compared. The parser has checked that there is
// exactly one value and that it is a number.
func boundOf(values []string) int64 {
	bound, _ := strconv.ParseInt(values[0], 10, 64)
	return bound
}

// inBoth intersects a set with a list. A nil set contains all values.
func inBoth(set map[string]bool, list []string) map[string]bool {
	both := make(map[string]bool, len(list))
	for _, value := range list {
		if set == nil || set[value] {
			both[value] = true
		}
	}
	return both
}

// exactly returns a label that must have a single value, or "" if there is no such label.
func (t *Labels) exactly() (label, value string) {
	for key, term := range t.ByKey {
		// deterministic
		if only, ok := single(term.in); ok && (label == "" || key < label) {
			label, value = key, only
		}
	}
	return label, value
}

// single returns the member of a set. If the set does not have exactly one member, ok is false.
func single(set map[string]bool) (member string, ok bool) {
	for member = range set {
	}
	return member, len(set) == 1
}

// Match reports whether the stored labels match the selector.
func (t *Labels) Match(stored gjson.Result) bool {
	met, fits := 0, true
	stored.ForEach(func(key, value gjson.Result) bool {
		if term := t.ByKey[key.String()]; term != nil {
			fits = term.allows(value.String())
			if term.required {
				met++
			}
		}
		return fits
	})
	return fits && met == t.required
}

// allows reports whether a label may exist with this value.
func (t *LabelTerm) allows(value string) bool {
	if t.forbidden || t.in != nil && !t.in[value] || t.out[value] {
		return false
	}
	if t.above == nil && t.below == nil {
		return true
	}
	n, err := strconv.ParseInt(value, 10, 64)
	return err == nil && (t.above == nil || n > *t.above) && (t.below == nil || n < *t.below)
}

// Field contains the requirements on a field. It also describes how to read the value of the field.
type Field struct {
	// a gjson path; "" if the value is read from the key
	path string
	// returns the value from the key; if nil, it is read from the JSON
	Key func(namespace, name string) string
	// computes the value from the whole object; if nil, it is read at path
	fixed func(gjson.Result) string
	// allowed values, or nil for any value
	in  map[string]bool
	out map[string]bool
}

// add narrows the term by one requirement. The operators are =, == and !=.
func (t *Field) add(value string, operator selection.Operator) {
	if operator != selection.NotEquals {
		t.in = inBoth(t.in, []string{value})
		return
	}
	if t.out == nil {
		t.out = map[string]bool{}
	}
	t.out[value] = true
}

// exactly returns the value that the field must have. ok is false if several values match, or if
// the field is not read at a path.
func (t *Field) exactly() (value string, ok bool) {
	if t.path == "" {
		return "", false
	}
	return single(t.in)
}

// Matches reads the field from the key or the JSON of a stored object, and reports whether the term
// matches.
func (t *Field) Matches(key string, json []byte) bool {
	var value string
	switch {
	case t.Key != nil:
		namespace, name := scheme.NamespacedName(key)
		value = t.Key(namespace, name)
	case t.fixed != nil:
		value = t.fixed(gjson.ParseBytes(json))
	default:
		value = gjson.GetBytes(json, t.path).String()
	}
	return (t.in == nil || t.in[value]) && !t.out[value]
}
