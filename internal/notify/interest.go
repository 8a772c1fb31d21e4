package notify

import (
	"apilet/internal/scheme"
	"apilet/internal/selector"
)

// InterestOf returns a filter for the events that may matter to a watch. If a selector requires one
// value of a label or field, the filter includes it. It does not if the type has a conversion
// webhook, because the filter applies to the stored objects.
func InterestOf(res *scheme.Resource, m *selector.Matcher) Interest {
	in := Interest{Resource: res.KeyPrefix(""), Span: m.Span}
	if m.Span == m.Prefix && !res.NeedsConversion() {
		in.Label, in.Field, in.Value = m.RequiredTerm()
	}
	return in
}
