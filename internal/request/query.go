package request

// This file parses the query of a LIST, a WATCH or a DELETE of a collection. The query is parsed
// once. Authorization uses the name that a field selector requires, flow control uses the limit and
// the resource version, and the handler uses all options.
//
//	/api/v1/pods?watch                     a watch: a boolean is true unless it is 0 or false
//	/api/v1/pods?limit=5&limit=x           the first of repeated parameters counts
//	/api/v1/pods?limit=                    an error: not a number
//	/api/v1/pods?limit=%zz                 no limit: invalid escapes and semicolons are ignored
//
// The conversion is metav1's own, so these rules are the same as in Kubernetes. The options of a
// write are converted in package registry.

import (
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// listQuery is a parsed query.
type listQuery struct {
	options metav1.ListOptions
	err     error // the conversion error; if it is set, only Watch is set in options
}

func parseListQuery(raw string) *listQuery {
	values, _ := url.ParseQuery(raw)
	q := &listQuery{}
	if q.err = metav1.Convert_url_Values_To_v1_ListOptions(&values, &q.options, nil); q.err != nil {
		// Watch is converted before any number.
		q.options = metav1.ListOptions{Watch: q.options.Watch}
	}
	return q
}

// selectedName returns x if the field selector requires metadata.name=x. It returns "" if the
// selector does not, if x is not a valid name, or if either selector is malformed: such a request
// will be rejected and does not refer to a single object.
func (q *listQuery) selectedName() string {
	if !strings.Contains(q.options.FieldSelector, "metadata.name") {
		return ""
	}
	parsed, err := fields.ParseSelector(q.options.FieldSelector)
	if err != nil {
		return ""
	}
	name, ok := parsed.RequiresExactMatch("metadata.name")
	if !ok || len(content.IsPathSegmentName(name)) > 0 {
		return ""
	}
	if q.options.LabelSelector != "" {
		if _, err := labels.Parse(q.options.LabelSelector); err != nil {
			return ""
		}
	}
	return name
}
