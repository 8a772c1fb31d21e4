// Package matching decides which requests a webhook or a policy receives. A configuration has rules, a namespace selector, an object selector
// and match conditions. This file has the rules and the selectors, condition.go the conditions, which are CEL expressions.
//
// The table shows one rule of each kind, for a request that creates the pod web/a:
//
//	rule                                                          matches  because
//	apiGroups [""], apiVersions [v1], resources [pods], CREATE    yes
//	... resources ["*"]                                           yes      all resources, no subresource
//	... resources ["pods/*"] or ["*/*"]                           yes      all of a pod's subresources, and the pod itself
//	... resources ["pods/status"] or ["*/status"]                 no
//	... scope Cluster                                             no       a pod has a namespace
//
// An update through events.k8s.io also matches the core group's events: matchPolicy Equivalent calls a webhook that has a rule for either.
package matching

import (
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"apilet/internal/scheme"
)

// A Target is what rules are held against.
type Target struct {
	Group, Version, Resource, Subresource string // of the request; the subresource is "" for the object itself
	Operation                             string // CREATE, UPDATE, DELETE or CONNECT
	Namespace                             string // "" for what lies in none; of a Namespace its own name
}

// IsNamespace says that the target is a Namespace, or a subresource of one.
func (t *Target) IsNamespace() bool {
	return t.Group == "" && t.Version == "v1" && t.Resource == "namespaces"
}

// at is the target as another version of its resource shows it.
func (t Target) at(row *scheme.Resource) *Target {
	t.Group, t.Version, t.Resource = row.Group, row.Version, row.Plural
	return &t
}

// Rule holds one rule against a target.
func Rule(rule *admissionv1.RuleWithOperations, t *Target) bool {
	return scopeMatches(rule.Scope, t) &&
		(slices.Contains(rule.Operations, admissionv1.OperationAll) || slices.Contains(rule.Operations, admissionv1.OperationType(t.Operation))) &&
		namesOrAll(rule.APIGroups, t.Group) && namesOrAll(rule.APIVersions, t.Version) &&
		slices.ContainsFunc(rule.Resources, func(pattern string) bool { return resourceMatches(pattern, t.Resource, t.Subresource) })
}

func namesOrAll(list []string, item string) bool {
	return slices.Contains(list, item) || slices.Contains(list, "*")
}

// resourceMatches: "*" and "pods" leave subresources out, "pods/*" has the pod itself in.
func resourceMatches(pattern, resource, subresource string) bool {
	res, sub, _ := strings.Cut(pattern, "/")
	return (res == "*" || res == resource) && (sub == "*" || sub == subresource)
}

// scopeMatches: a Namespace lies in no namespace, although its requests name one.
func scopeMatches(scope *admissionv1.ScopeType, t *Target) bool {
	if scope == nil || *scope == admissionv1.AllScopes {
		return true
	}
	if inNamespace := t.Namespace != "" && !t.IsNamespace(); inNamespace {
		return *scope == admissionv1.NamespacedScope
	}
	return *scope == admissionv1.ClusterScope
}

// exemptKinds are never shown to a webhook or a policy: a bad one could not be removed any more.
var exemptKinds = []string{"ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "ValidatingAdmissionPolicy",
	"ValidatingAdmissionPolicyBinding", "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"}

// IsExempt says that no webhook and no policy is asked about a resource.
func IsExempt(res *scheme.Resource) bool {
	return res.Group == admissionv1.GroupName && slices.Contains(exemptKinds, res.Kind)
}

// Row returns the row in whose version a webhook or policy wants to see the target: the request's own, or with matchPolicy Equivalent (an
// absent one is) the first of the equivalents that a rule names; nil when no rule does. matches holds one rule against a target.
func Row[R any](rules []R, matches func(*R, *Target) bool, policy *admissionv1.MatchPolicyType, t *Target, res *scheme.Resource,
	equivalents func() []*scheme.Resource) *scheme.Resource {
	for i := range rules {
		if matches(&rules[i], t) {
			return res
		}
	}
	if policy != nil && *policy != admissionv1.Equivalent {
		return nil
	}
	for i := range rules {
		for _, row := range equivalents() {
			if matches(&rules[i], t.at(row)) {
				return row
			}
		}
	}
	return nil
}

// Equivalents are the other versions, and groups, that show the same stored objects.
func Equivalents(reg *scheme.Registry, res *scheme.Resource, subresource string) (rows []*scheme.Resource) {
	for _, row := range reg.All() {
		if row != res && row.Base == res.Base && (subresource == "" || row.Subresource(subresource) != nil) {
			rows = append(rows, row)
		}
	}
	return rows
}

// Selector parses a selector; an absent one selects all.
func Selector(selector *metav1.LabelSelector) (labels.Selector, error) {
	if selector == nil {
		return labels.Everything(), nil
	}
	return metav1.LabelSelectorAsSelector(selector)
}

// Selects says that a selector picks one of the objects. nil objects have no labels, not even none.
func Selects(selector labels.Selector, objects ...scheme.Object) bool {
	if selector.Empty() {
		return true
	}
	return slices.ContainsFunc(objects, func(obj scheme.Object) bool { return obj != nil && selector.Matches(labels.Set(obj.GetLabels())) })
}
