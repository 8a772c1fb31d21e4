// Package matching decides which requests a webhook or a policy receives. A configuration has
// rules, a namespace selector, an object selector and match conditions. This file implements the
// rules and the selectors. condition.go implements the conditions, which are CEL expressions.
//
// The following table contains an example of each kind of rule, for a request that creates the pod
// web/a:
//
//	rule                                                          matches  because
//	apiGroups [""], apiVersions [v1], resources [pods], CREATE    yes
//	... resources ["*"]                                           yes      all resources, no subresource
//	... resources ["pods/*"] or ["*/*"]                           yes      all of a pod's subresources, and the pod itself
//	... resources ["pods/status"] or ["*/status"]                 no
//	... scope Cluster                                             no       a pod has a namespace
//
// An update through events.k8s.io also matches a rule for the events of the core group: with
// matchPolicy Equivalent, a rule for either group is sufficient.
package matching

import (
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"apilet/internal/scheme"
)

// A Target describes a request to be matched by rules.
type Target struct {
	Group, Version, Resource, Subresource string // of the request; Subresource may be ""
	Operation                             string // CREATE, UPDATE, DELETE or CONNECT
	// Namespace is empty if the resource is cluster-scoped. For a Namespace, it is the name of the
	// object.
	Namespace string
}

// IsNamespace reports whether the target is a Namespace or one of its subresources.
func (t *Target) IsNamespace() bool {
	return t.Group == "" && t.Version == "v1" && t.Resource == "namespaces"
}

// withResource returns the target with the group, version and resource of row.
func (t Target) withResource(row *scheme.Resource) *Target {
	t.Group, t.Version, t.Resource = row.Group, row.Version, row.Plural
	return &t
}

// MatchesRule reports whether the rule matches the target.
func MatchesRule(rule *admissionv1.RuleWithOperations, t *Target) bool {
	return scopeMatches(rule.Scope, t) &&
		(slices.Contains(rule.Operations, admissionv1.OperationAll) || slices.Contains(rule.Operations, admissionv1.OperationType(t.Operation))) &&
		namesOrAll(rule.APIGroups, t.Group) && namesOrAll(rule.APIVersions, t.Version) &&
		slices.ContainsFunc(rule.Resources, func(pattern string) bool { return resourceMatches(pattern, t.Resource, t.Subresource) })
}

func namesOrAll(list []string, item string) bool {
	return slices.Contains(list, item) || slices.Contains(list, "*")
}

// resourceMatches reports whether the pattern matches. "*" and "pods" do not match subresources,
// and "pods/*" also matches the pod itself.
func resourceMatches(pattern, resource, subresource string) bool {
	res, sub, _ := strings.Cut(pattern, "/")
	return (res == "*" || res == resource) && (sub == "*" || sub == subresource)
}

// scopeMatches reports whether the scope matches. A Namespace is cluster-scoped, although its
// requests have a namespace.
func scopeMatches(scope *admissionv1.ScopeType, t *Target) bool {
	if scope == nil || *scope == admissionv1.AllScopes {
		return true
	}
	if inNamespace := t.Namespace != "" && !t.IsNamespace(); inNamespace {
		return *scope == admissionv1.NamespacedScope
	}
	return *scope == admissionv1.ClusterScope
}

// exemptKinds are never sent to webhooks or policies, because otherwise a broken one could not be
// removed.
var exemptKinds = []string{"ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "ValidatingAdmissionPolicy",
	"ValidatingAdmissionPolicyBinding", "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"}

// IsExempt reports whether webhooks and policies ignore the resource.
func IsExempt(res *scheme.Resource) bool {
	return res.Group == admissionv1.GroupName && slices.Contains(exemptKinds, res.Kind)
}

// MatchingResource returns the row whose version the webhook or policy receives, or nil if no rule
// matches. If a rule matches the request, that is res. Otherwise, with matchPolicy Equivalent,
// which is the default, it is the first equivalent row that a rule matches. The function matches
// reports whether a rule matches a target.
func MatchingResource[R any](rules []R, matches func(*R, *Target) bool, policy *admissionv1.MatchPolicyType, t *Target, res *scheme.Resource,
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
			if matches(&rules[i], t.withResource(row)) {
				return row
			}
		}
	}
	return nil
}

// Equivalents returns the other rows that serve the same stored objects, in other versions or
// groups.
func Equivalents(reg *scheme.Registry, res *scheme.Resource, subresource string) (rows []*scheme.Resource) {
	for _, row := range reg.All() {
		if row != res && row.Base == res.Base && (subresource == "" || row.Subresource(subresource) != nil) {
			rows = append(rows, row)
		}
	}
	return rows
}

// ParseSelector parses a selector. A nil selector selects everything.
func ParseSelector(selector *metav1.LabelSelector) (labels.Selector, error) {
	if selector == nil {
		return labels.Everything(), nil
	}
	return metav1.LabelSelectorAsSelector(selector)
}

// Selects reports whether the selector matches any of the objects. A nil object is matched only by
// the empty selector.
func Selects(selector labels.Selector, objects ...scheme.Object) bool {
	if selector.Empty() {
		return true
	}
	return slices.ContainsFunc(objects, func(obj scheme.Object) bool { return obj != nil && selector.Matches(labels.Set(obj.GetLabels())) })
}
