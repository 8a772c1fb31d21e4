package policy

// This file decides which writes a policy or a binding matches.

import (
	"errors"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"

	"apilet/internal/cel/matching"
	"apilet/internal/scheme"
)

// matcherOf parses the selectors. It returns nil for nil.
func matcherOf(asked *admissionv1.MatchResources) *matcher {
	if asked == nil {
		return nil
	}
	m := &matcher{MatchResources: *asked}
	var errs [2]error
	m.namespaces, errs[0] = matching.ParseSelector(asked.NamespaceSelector)
	m.objects, errs[1] = matching.ParseSelector(asked.ObjectSelector)
	m.broken = errors.Join(errs[:]...)
	return m
}

// matches returns the row whose version the policy receives, or nil if the write does not match.
func (m *matcher) matches(h *writeContext) (*scheme.Resource, error) {
	if m == nil {
		return h.w.Resource, nil
	}
	if m.broken != nil {
		return nil, m.broken
	}
	inNamespace, err := h.inNamespace(m.namespaces)
	if !inNamespace && err == nil || !matching.Selects(m.objects, h.w.Object, h.w.Old) {
		return nil, nil
	}
	if len(m.ExcludeResourceRules) > 0 && m.rowOf(m.ExcludeResourceRules, h) != nil {
		return nil, nil
	}
	row := h.w.Resource
	if len(m.ResourceRules) > 0 {
		row = m.rowOf(m.ResourceRules, h)
	}
	if row == nil { // ignore an error of the namespace
		return nil, nil
	}
	return row, err
}

func (m *matcher) rowOf(rules []admissionv1.NamedRuleWithOperations, h *writeContext) *scheme.Resource {
	named := func(rule *admissionv1.NamedRuleWithOperations, t *matching.Target) bool {
		return (len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, h.w.Name)) && matching.MatchesRule(&rule.RuleWithOperations, t)
	}
	return matching.MatchingResource(rules, named, m.MatchPolicy, &h.target, h.w.Resource, h.equivalentRows)
}
