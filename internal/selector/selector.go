// Package selector makes selectors ready to be asked of many objects. The terms of a selector are few as a rule, but an address has room for
// twenty thousand, and a namespace for objects with as many labels: to look each term up in each object would multiply the two. So the
// terms of one label, or of one field, become one, and an object is asked about what it has:
//
//	selector  app=web, app!=db, tier in (a,b), tier in (b,c), !canary
//	terms     app: there, in {web}, not in {db} · tier: there, in {b} · canary: not there
//	object    {app: web, tier: b, rack: 7}: each label that has a term fits, and the two that must be there were met
//
//	labels := selector.NewLabels(requirements)                      // of k8s.io/apimachinery/pkg/labels, which has parsed them
//	matches := labels.Match(gjson.GetBytes(json, "metadata.labels"))
//	fields, err := selector.NewFields(res, terms)                   // of k8s.io/apimachinery/pkg/fields: what that type can be selected by
//	matches = fields[0].Matches(key, json)
//
// which costs a look at each label, whatever the number of terms. A [Matcher] is both selectors of a LIST or WATCH, for one collection: it
// knows which fields Kubernetes lets one select by, and how each is read.
//
// What matches is what labels.Selector.Matches and fields.Selector.Matches of k8s.io/apimachinery say: an operator != or notin matches an
// object that lacks the label, a field that an object lacks is the empty string.
//
// Invariant: nothing is decoded and nothing allocated for an object that is asked: stored JSON is read as it lies.
package selector

import (
	"strconv"

	"github.com/tidwall/gjson"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"apilet/internal/scheme"
)

// Labels is a label selector.
type Labels struct {
	ByKey map[string]*LabelTerm // all that is asked of one label
	musts int                   // how many of them an object must have
}

// A LabelTerm is what a selector says about one label.
type LabelTerm struct {
	must         bool            // the label is there
	never        bool            // it is not
	in           map[string]bool // nil: any value
	out          map[string]bool // none of these
	above, below *int64          // between which its number is
}

// NewLabels joins the requirements on each label into one term.
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
		if term.must {
			terms.musts++
		}
	}
	return terms
}

func (t *LabelTerm) add(r *labels.Requirement) {
	values := r.ValuesUnsorted()
	switch r.Operator() {
	case selection.In, selection.Equals, selection.DoubleEquals:
		t.must, t.in = true, inBoth(t.in, values)
	case selection.NotIn, selection.NotEquals:
		if t.out == nil {
			t.out = make(map[string]bool, len(values))
		}
		for _, value := range values {
			t.out[value] = true
		}
	case selection.Exists:
		t.must = true
	case selection.DoesNotExist:
		t.never = true
	case selection.GreaterThan:
		t.must = true
		if bound := boundOf(values); t.above == nil || *t.above < bound {
			t.above = &bound
		}
	case selection.LessThan:
		t.must = true
		if bound := boundOf(values); t.below == nil || *t.below > bound {
			t.below = &bound
		}
	}
}

// boundOf is the number that a label is compared with: a requirement has one, and was refused if that was none.
func boundOf(values []string) int64 {
	bound, _ := strconv.ParseInt(values[0], 10, 64)
	return bound
}

// inBoth narrows a set of values, nil for any, to those of a list.
func inBoth(set map[string]bool, list []string) map[string]bool {
	both := make(map[string]bool, len(list))
	for _, value := range list {
		if set == nil || set[value] {
			both[value] = true
		}
	}
	return both
}

// exactly is a label that must have one value, "" where there is none.
func (t *Labels) exactly() (label, value string) {
	for key, term := range t.ByKey {
		if only, ok := single(term.in); ok && (label == "" || key < label) { // the same each time
			label, value = key, only
		}
	}
	return label, value
}

// single is the one member of a set that has one.
func single(set map[string]bool) (member string, ok bool) {
	for member = range set {
	}
	return member, len(set) == 1
}

// Match reads labels as they are stored.
func (t *Labels) Match(stored gjson.Result) bool {
	met, fits := 0, true
	stored.ForEach(func(key, value gjson.Result) bool {
		if term := t.ByKey[key.String()]; term != nil {
			fits = term.takes(value.String())
			if term.must {
				met++
			}
		}
		return fits
	})
	return fits && met == t.musts
}

// takes says whether a label that is there may have this value.
func (t *LabelTerm) takes(value string) bool {
	if t.never || t.in != nil && !t.in[value] || t.out[value] {
		return false
	}
	if t.above == nil && t.below == nil {
		return true
	}
	n, err := strconv.ParseInt(value, 10, 64)
	return err == nil && (t.above == nil || n > *t.above) && (t.below == nil || n < *t.below)
}

// A Field is what a selector says about one field, and how that is read.
type Field struct {
	path  string                              // of gjson; "" when the term reads the key
	Key   func(namespace, name string) string // reads the value off the key; nil: off the JSON
	fixed func(gjson.Result) string           // computes it from the whole object; nil: what is at path
	in    map[string]bool                     // nil: any value; never more than one
	out   map[string]bool
}

// add makes the field's term narrower by one requirement: = (or ==) and != are the operators there are.
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

// exactly is the value that the field has to have; ok is false where several will do, or where it is not read at a path.
func (t *Field) exactly() (value string, ok bool) {
	if t.path == "" {
		return "", false
	}
	return single(t.in)
}

// Matches reads the field of a stored object, off its key or its JSON, and says whether the term holds.
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
