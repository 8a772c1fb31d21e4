package admission

// This file says which requests a webhook is asked about: pure functions of what its configuration says and of what the request is.
// One row of each kind, for a request that creates the pod web/a:
//
//	rule                                                          matches  because
//	apiGroups [""], apiVersions [v1], resources [pods], CREATE    yes
//	... resources ["*"]                                           yes      all resources, no subresource
//	... resources ["pods/*"] or ["*/*"]                           yes      all of a pod's subresources, and the pod itself
//	... resources ["pods/status"] or ["*/status"]                 no
//	... scope Cluster                                             no       pods lie in namespaces
//
// An update through events.k8s.io is one of the core group's events, too: matchPolicy Equivalent asks a webhook that knows either.

import (
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"apilet/internal/admission/matchconditions"
	"apilet/internal/scheme"
)

// A ruleTarget is what rules are held against.
type ruleTarget struct {
	group, version, resource, subresource string
	operation                             string // CREATE, UPDATE or DELETE
	namespace                             string // "" for what lies in none; of a Namespace its own name
}

func (t *ruleTarget) isNamespace() bool {
	return t.group == "" && t.version == "v1" && t.resource == "namespaces"
}

// at is the target as another version of its resource shows it.
func (t ruleTarget) at(row *scheme.Resource) *ruleTarget {
	t.group, t.version, t.resource = row.Group, row.Version, row.Plural
	return &t
}

// ruleMatches holds one rule against a target.
func ruleMatches(rule *admissionv1.RuleWithOperations, t *ruleTarget) bool {
	return scopeMatches(rule.Scope, t) &&
		(slices.Contains(rule.Operations, admissionv1.OperationAll) || slices.Contains(rule.Operations, admissionv1.OperationType(t.operation))) &&
		namesOrAll(rule.APIGroups, t.group) && namesOrAll(rule.APIVersions, t.version) &&
		slices.ContainsFunc(rule.Resources, func(pattern string) bool { return resourceMatches(pattern, t.resource, t.subresource) })
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
func scopeMatches(scope *admissionv1.ScopeType, t *ruleTarget) bool {
	if scope == nil || *scope == admissionv1.AllScopes {
		return true
	}
	if inNamespace := t.namespace != "" && !t.isNamespace(); inNamespace {
		return *scope == admissionv1.NamespacedScope
	}
	return *scope == admissionv1.ClusterScope
}

// exemptKinds are never shown to a webhook: a bad one could not be removed any more.
var exemptKinds = []string{"ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "ValidatingAdmissionPolicy",
	"ValidatingAdmissionPolicyBinding", "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"}

func isExempt(res *scheme.Resource) bool {
	return res.Group == admissionv1.GroupName && slices.Contains(exemptKinds, res.Kind)
}

// matchingRow returns the row in whose version a webhook wants to see the target: the request's own, or with matchPolicy Equivalent the
// first of the equivalents that a rule names; nil when no rule does.
func matchingRow(hook *matchconditions.Webhook, t *ruleTarget, res *scheme.Resource, equivalents func() []*scheme.Resource) *scheme.Resource {
	for i := range hook.Rules {
		if ruleMatches(&hook.Rules[i], t) {
			return res
		}
	}
	if hook.MatchPolicy != nil && *hook.MatchPolicy != admissionv1.Equivalent {
		return nil
	}
	for i := range hook.Rules {
		for _, row := range equivalents() {
			if ruleMatches(&hook.Rules[i], t.at(row)) {
				return row
			}
		}
	}
	return nil
}

// equivalentRows are the other versions, and groups, that show the same stored objects.
func equivalentRows(reg *scheme.Registry, res *scheme.Resource, subresource string) (rows []*scheme.Resource) {
	for _, row := range reg.All() {
		if row != res && row.Base == res.Base && (subresource == "" || row.Subresource(subresource) != nil) {
			rows = append(rows, row)
		}
	}
	return rows
}

// selectorOf parses a selector; an absent one selects all.
func selectorOf(selector *metav1.LabelSelector) (labels.Selector, error) {
	if selector == nil {
		return labels.Everything(), nil
	}
	return metav1.LabelSelectorAsSelector(selector)
}

// selects says that a selector picks one of the objects. nil objects have no labels, not even none.
func selects(selector labels.Selector, objects ...scheme.Object) bool {
	if selector.Empty() {
		return true
	}
	return slices.ContainsFunc(objects, func(obj scheme.Object) bool { return obj != nil && selector.Matches(labels.Set(obj.GetLabels())) })
}
