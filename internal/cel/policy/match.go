package policy

// This file says which writes a policy, or a binding, is about.

import (
	"errors"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"

	"apilet/internal/cel/matching"
	"apilet/internal/scheme"
)

// matcherOf returns nil for nil.
func matcherOf(asked *admissionv1.MatchResources) *matcher {
	if asked == nil {
		return nil
	}
	m := &matcher{MatchResources: *asked}
	var errs [2]error
	m.namespaces, errs[0] = matching.Selector(asked.NamespaceSelector)
	m.objects, errs[1] = matching.Selector(asked.ObjectSelector)
	m.broken = errors.Join(errs[:]...)
	return m
}

// matches returns the row in whose version the write is to be seen, nil when it is not matched.
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
	if row == nil { // the namespace is of no interest then
		return nil, nil
	}
	return row, err
}

func (m *matcher) rowOf(rules []admissionv1.NamedRuleWithOperations, h *writeContext) *scheme.Resource {
	named := func(rule *admissionv1.NamedRuleWithOperations, t *matching.Target) bool {
		return (len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, h.w.Name)) && matching.Rule(&rule.RuleWithOperations, t)
	}
	return matching.Row(rules, named, m.MatchPolicy, &h.target, h.w.Resource, h.equivalentRows)
}
