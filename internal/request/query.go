package request

// This file reads the query of a LIST, a WATCH or a DELETE of a collection: once, for all who want to know. Authorization asks for the one
// name that a selector demands, flow control for the width, the handler for the rest.
//
//	/api/v1/pods?watch                     a watch: a boolean is true unless it says 0 or false
//	/api/v1/pods?limit=5&limit=x           the first of repeated parameters counts
//	/api/v1/pods?limit=                    an error: no number
//	/api/v1/pods?limit=%zz                 no limit: a pair that does not unescape, or has a semicolon, is no pair
//
// It is metav1's own conversion of url.Values that reads, so that these rules are Kubernetes'. The options of a write, which is read once
// as it is, are converted where they are wanted (package registry).

import (
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// listQuery is what a query asks for.
type listQuery struct {
	options metav1.ListOptions
	err     error // what cannot be read; of the options, only Watch is told then
}

func parseListQuery(raw string) *listQuery {
	values, _ := url.ParseQuery(raw)
	q := &listQuery{}
	if q.err = metav1.Convert_url_Values_To_v1_ListOptions(&values, &q.options, nil); q.err != nil {
		q.options = metav1.ListOptions{Watch: q.options.Watch} // read before any number
	}
	return q
}

// selectedName returns x of a field selector that demands metadata.name=x, "" when there is none, x cannot be a name, or the labels'
// selector is wrong: the request will be refused, and is nobody's by name.
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
