package matching

import (
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"

	"apilet/internal/scheme"
)

// ruleOf reads a rule off a line: operations, groups, versions, resources, scope, lists with commas; "core" is the core group.
func ruleOf(line string) *admissionv1.RuleWithOperations {
	f := strings.Fields(strings.ReplaceAll(line, "core", `""`))
	list := func(i int) (items []string) {
		for item := range strings.SplitSeq(f[i], ",") {
			items = append(items, strings.Trim(item, `"`))
		}
		return items
	}
	rule := &admissionv1.RuleWithOperations{}
	for _, op := range list(0) {
		rule.Operations = append(rule.Operations, admissionv1.OperationType(op))
	}
	rule.APIGroups, rule.APIVersions, rule.Resources = list(1), list(2), list(3)
	if len(f) > 4 {
		scope := admissionv1.ScopeType(f[4])
		rule.Scope = &scope
	}
	return rule
}

func TestRuleMatches(t *testing.T) {
	targets := map[string]*Target{
		"pod":       {"", "v1", "pods", "", "CREATE", "web"},
		"status":    {"", "v1", "pods", "status", "UPDATE", "web"},
		"eviction":  {"", "v1", "pods", "eviction", "CREATE", "web"},
		"deploy":    {"apps", "v1", "deployments", "", "UPDATE", "web"},
		"scale":     {"apps", "v1", "deployments", "scale", "UPDATE", "web"},
		"node":      {"", "v1", "nodes", "", "DELETE", ""},
		"namespace": {"", "v1", "namespaces", "", "DELETE", "web"},
		"finalize":  {"", "v1", "namespaces", "finalize", "UPDATE", "web"},
	}
	for _, c := range []struct{ rule, want string }{
		{"* * * *", "pod deploy node namespace"},
		{"* * * */*", "pod status eviction deploy scale node namespace finalize"},
		{"* * * *,*/*", "pod status eviction deploy scale node namespace finalize"},
		{"* core * pods", "pod"},
		{"* core * pods/*", "pod status eviction"},
		{"* core * pods/status", "status"},
		{"* * * */status", "status"},
		{"* * * */scale", "scale"},
		{"CREATE core v1 pods,pods/eviction", "pod eviction"},
		{"UPDATE,DELETE * * *", "deploy node namespace"},
		{"CONNECT * * */*", ""},
		{"* apps * *", "deploy"},
		{"* core,apps v1 *", "pod deploy node namespace"},
		{"* * v2 *", ""},
		{"* * * * Namespaced", "pod deploy"},
		{"* * * * Cluster", "node namespace"},
		{"* * * * *", "pod deploy node namespace"},
		{"* * * */* Cluster", "node namespace finalize"},
		{"* * * */* Odd", ""},
		{"* core * pod", ""},
	} {
		rule := ruleOf(c.rule)
		for name, target := range targets {
			want := strings.Contains(" "+c.want+" ", " "+name+" ")
			if got := MatchesRule(rule, target); got != want {
				t.Errorf("rule %q, %s: got %v, want %v", c.rule, name, got, want)
			}
		}
	}
}

func TestRow(t *testing.T) {
	reg := scheme.NewRegistry()
	v1, v2 := reg.Lookup("autoscaling", "v1", "horizontalpodautoscalers"), reg.Lookup("autoscaling", "v2", "horizontalpodautoscalers")
	exact, equivalent := admissionv1.Exact, admissionv1.Equivalent
	target := &Target{"autoscaling", "v1", "horizontalpodautoscalers", "", "CREATE", "web"}
	for _, c := range []struct {
		policy *admissionv1.MatchPolicyType
		rules  []string
		want   *scheme.Resource
	}{
		{&exact, []string{"* autoscaling v1 *"}, v1},
		{&exact, []string{"* autoscaling v2 *"}, nil},
		{&equivalent, []string{"* autoscaling v2 *"}, v2},
		{nil, []string{"* autoscaling v2 *"}, v2},
		{&equivalent, []string{"* autoscaling v2 *", "* autoscaling v1 *"}, v1}, // what is asked for wins over the order of rules
		{&equivalent, []string{"DELETE * * *"}, nil},
	} {
		var rules []admissionv1.RuleWithOperations
		for _, line := range c.rules {
			rules = append(rules, *ruleOf(line))
		}
		if got := MatchingResource(rules, MatchesRule, c.policy, target, v1, func() []*scheme.Resource { return Equivalents(reg, v1, "") }); got != c.want {
			t.Errorf("%v: got %v, want %v", c.rules, got, c.want)
		}
	}
	if rows := Equivalents(reg, v2, "scale"); len(rows) != 0 {
		t.Errorf("there is no scale of an autoscaler: %v", rows)
	}
}
