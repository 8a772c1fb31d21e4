package validation

// This file: the rules of what tells the API server how to act: RBAC, admission webhooks and policies, and priority and fairness. In
// k8s.io/kubernetes they are in pkg/apis/rbac, admissionregistration and flowcontrol (in validation of each). An expression that is
// compiled (a CEL matchCondition) is checked as Kubernetes' packages check it; all else is a table of fields.

import (
	"fmt"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/cel/environment"

	"apilet/internal/cel/matchconditions"
	admissionpolicy "apilet/internal/cel/policy"
	"apilet/internal/flowcontrol"
	"apilet/internal/kinds/defaults"
)

// A policyChecker checks one of these objects; old is nil when it is created.
type policyChecker struct{ *Checker }

// policy is for the kinds that tell the API server what to do.
func (c policyChecker) policy(obj, old runtime.Object) {
	switch o := obj.(type) {
	case *rbacv1.Role:
		c.rules(o.Rules, true)
	case *rbacv1.ClusterRole:
		c.rules(o.Rules, false)
		c.aggregation(o.AggregationRule)
	case *rbacv1.RoleBinding:
		c.binding(&o.RoleRef, o.Subjects, []string{"Role", "ClusterRole"})
		if before := was[rbacv1.RoleBinding](old); before != nil && before.RoleRef != o.RoleRef {
			c.Invalid(field.NewPath("roleRef"), "", o.RoleRef, "cannot change roleRef")
		}
	case *rbacv1.ClusterRoleBinding:
		c.binding(&o.RoleRef, o.Subjects, []string{"ClusterRole"})
		if before := was[rbacv1.ClusterRoleBinding](old); before != nil && before.RoleRef != o.RoleRef {
			c.Invalid(field.NewPath("roleRef"), "", o.RoleRef, "cannot change roleRef")
		}
	case *admissionv1.ValidatingWebhookConfiguration:
		c.webhooks(matchconditions.ValidatingHooks(o))
	case *admissionv1.MutatingWebhookConfiguration:
		c.webhooks(matchconditions.MutatingHooks(o))
	case *admissionv1.ValidatingAdmissionPolicy:
		c.validatingPolicy(o, was[admissionv1.ValidatingAdmissionPolicy](old))
	case *admissionv1.MutatingAdmissionPolicy:
		c.mutatingPolicy(o, was[admissionv1.MutatingAdmissionPolicy](old))
	case *admissionv1.ValidatingAdmissionPolicyBinding:
		c.policyBinding(o.Spec.PolicyName, o.Spec.ParamRef, o.Spec.MatchResources)
		c.validationActions(field.NewPath("spec", "validationActions"), o.Spec.ValidationActions)
	case *admissionv1.MutatingAdmissionPolicyBinding:
		c.policyBinding(o.Spec.PolicyName, o.Spec.ParamRef, o.Spec.MatchResources)
		c.mutatingOperations(field.NewPath("spec", "matchResources"), o.Spec.MatchResources)
	case *flowcontrolv1.FlowSchema:
		c.flowSchema(o)
		c.fixedSchema(o)
	case *flowcontrolv1.PriorityLevelConfiguration:
		c.priorityLevel(o)
		c.fixedLevel(o)
	}
}

// ---- RBAC ----

func (c policyChecker) rules(rules []rbacv1.PolicyRule, namespaced bool) {
	for i, rule := range rules {
		p := field.NewPath("rules").Index(i)
		c.Need(p, "verbs", len(rule.Verbs) > 0, "verbs must contain at least one value")
		if urls := rule.NonResourceURLs; len(urls) > 0 {
			if namespaced {
				c.Invalid(p, "nonResourceURLs", urls, "namespaced rules cannot apply to non-resource URLs")
			}
			if len(rule.APIGroups)+len(rule.Resources)+len(rule.ResourceNames) > 0 {
				c.Invalid(p, "nonResourceURLs", urls, "rules cannot apply to both regular resources and non-resource URLs")
			}
			continue
		}
		c.Need(p, "apiGroups", len(rule.APIGroups) > 0, "resource rules must supply at least one api group")
		c.Need(p, "resources", len(rule.Resources) > 0, "resource rules must supply at least one resource")
	}
}

func (c policyChecker) aggregation(rule *rbacv1.AggregationRule) {
	if rule == nil {
		return
	}
	p := field.NewPath("aggregationRule", "clusterRoleSelectors")
	c.Need(p, "", len(rule.ClusterRoleSelectors) > 0, "at least one clusterRoleSelector required if aggregationRule is non-nil")
	for i := range rule.ClusterRoleSelectors {
		c.selector(p.Index(i), "", &rule.ClusterRoleSelectors[i])
		if _, err := metav1.LabelSelectorAsSelector(&rule.ClusterRoleSelectors[i]); err != nil {
			c.Invalid(p.Index(i), "", nil, "invalid label selector.")
		}
	}
}

var subjectKinds = []string{rbacv1.ServiceAccountKind, rbacv1.UserKind, rbacv1.GroupKind}

// binding: who may bind cluster roles alone must also say where a service account lives.
func (c policyChecker) binding(ref *rbacv1.RoleRef, subjects []rbacv1.Subject, kinds []string) {
	p, group := field.NewPath("roleRef"), []string{rbacv1.GroupName}
	c.OneOf(p, "apiGroup", ref.APIGroup, group)
	c.OneOf(p, "kind", ref.Kind, kinds)
	c.Name(p, "name", ref.Name, isPathSegment)
	for i, subject := range subjects {
		sp := field.NewPath("subjects").Index(i)
		c.Need(sp, "name", subject.Name != "", "")
		switch subject.Kind {
		case rbacv1.ServiceAccountKind:
			c.Maybe(sp, "name", subject.Name, isSubdomain)
			c.OneOf(sp, "apiGroup", subject.APIGroup, []string{""})
			c.Need(sp, "namespace", len(kinds) > 1 || subject.Namespace != "", "")
		case rbacv1.UserKind, rbacv1.GroupKind:
			c.OneOf(sp, "apiGroup", subject.APIGroup, group)
		default:
			c.Unsupported(sp, "kind", subject.Kind, subjectKinds)
		}
	}
}

// ---- webhooks ----

var (
	failurePolicies    = []string{"Fail", "Ignore"}
	matchPolicies      = []string{"Equivalent", "Exact"}
	sideEffects        = []string{"None", "NoneOnDryRun"}
	reinvocations      = []string{"IfNeeded", "Never"}
	webhookOperations  = []string{"*", "CONNECT", "CREATE", "DELETE", "UPDATE"}
	ruleScopes         = []string{"*", "Cluster", "Namespaced"}
	reviewVersions     = []string{"v1", "v1beta1"}
	reviewVersionWords = strings.Join(reviewVersions, ", ")
)

func (c policyChecker) webhooks(hooks []matchconditions.Webhook) {
	names := set{}
	for i := range hooks {
		p := field.NewPath("webhooks").Index(i)
		c.webhook(p, &hooks[i])
		c.reviewVersions(p.Child("admissionReviewVersions"), hooks[i].AdmissionReviewVersions)
		if hooks[i].Name != "" {
			c.unique(p, "name", names, hooks[i].Name)
		}
	}
}

func (c policyChecker) webhook(p *field.Path, hook *matchconditions.Webhook) {
	c.Add(validation.IsFullyQualifiedName(p.Child("name"), hook.Name)...)
	for i := range hook.Rules {
		c.webhookRule(p.Child("rules").Index(i), &hook.Rules[i])
	}
	oneOfRef(c.Checker, p, "failurePolicy", hook.FailurePolicy, failurePolicies)
	oneOfRef(c.Checker, p, "matchPolicy", hook.MatchPolicy, matchPolicies)
	c.Need(p, "sideEffects", hook.SideEffects != nil, "must specify one of None, NoneOnDryRun")
	oneOfRef(c.Checker, p, "sideEffects", hook.SideEffects, sideEffects)
	if timeout := hook.TimeoutSeconds; timeout != nil && (*timeout < 1 || *timeout > 30) {
		c.Invalid(p, "timeoutSeconds", *timeout, "the timeout value must be between 1 and 30 seconds")
	}
	c.selector(p, "namespaceSelector", hook.NamespaceSelector)
	c.selector(p, "objectSelector", hook.ObjectSelector)
	oneOfRef(c.Checker, p, "reinvocationPolicy", hook.Reinvocation, reinvocations)
	switch client := &hook.ClientConfig; {
	case (client.URL == nil) == (client.Service == nil):
		c.Required(p, "clientConfig", "exactly one of url or service is required")
	case client.URL != nil:
		c.WebhookURL(p.Child("clientConfig", "url"), *client.URL)
	default:
		c.WebhookService(p.Child("clientConfig", "service"), client.Service)
	}
	c.matchConditions(p.Child("matchConditions"), hook.MatchConditions)
}

func (c policyChecker) matchConditions(p *field.Path, conditions []admissionv1.MatchCondition) {
	c.conditions(p, conditions, func(text string) error {
		_, err := matchconditions.Compile(text, (*environment.EnvSet).NewExpressionsEnv)
		return err
	})
}

// conditions: expressions have to compile.
func (c policyChecker) conditions(p *field.Path, conditions []admissionv1.MatchCondition, compile func(text string) error) {
	const most = 64
	if len(conditions) > most {
		c.Add(field.TooMany(p, len(conditions), most))
	}
	names := set{}
	for i, condition := range conditions {
		if text := strings.TrimSpace(condition.Expression); text == "" {
			c.Required(p.Index(i), "expression", "")
		} else if i >= most { // which is refused as it is
		} else if err := compile(text); err != nil {
			c.Invalid(p.Index(i), "expression", text, err.Error())
		}
		c.Name(p.Index(i), "name", condition.Name, isQualifiedName)
		if condition.Name != "" {
			c.unique(p.Index(i), "name", names, condition.Name)
		}
	}
}

func (c policyChecker) reviewVersions(p *field.Path, versions []string) {
	c.Need(p, "", len(versions) > 0, "must specify one of "+reviewVersionWords)
	accepted := len(versions) == 0
	seen := set{}
	for i, version := range versions {
		if seen[version] {
			c.Invalid(p.Index(i), "", version, "duplicate version")
			continue
		}
		seen[version] = true
		c.Words(p.Index(i), "", version, validation.IsDNS1035Label)
		accepted = accepted || slices.Contains(reviewVersions, version)
	}
	if !accepted {
		c.Invalid(p, "", versions, "must include at least one of "+reviewVersionWords)
	}
}

func (c policyChecker) webhookRule(p *field.Path, rule *admissionv1.RuleWithOperations) {
	c.Need(p, "operations", len(rule.Operations) > 0, "")
	if len(rule.Operations) > 1 && slices.Contains(rule.Operations, admissionv1.OperationAll) {
		c.Invalid(p, "operations", rule.Operations, "if '*' is present, must not specify other operations")
	}
	for i, operation := range rule.Operations {
		c.OneOf(p.Child("operations").Index(i), "", string(operation), webhookOperations)
	}
	c.Need(p, "apiGroups", len(rule.APIGroups) > 0, "")
	c.starAlone(p, "apiGroups", rule.APIGroups, "API groups")
	c.Need(p, "apiVersions", len(rule.APIVersions) > 0, "")
	c.starAlone(p, "apiVersions", rule.APIVersions, "API versions")
	for i, version := range rule.APIVersions {
		c.Need(p.Child("apiVersions").Index(i), "", version != "", "")
	}
	c.webhookResources(p.Child("resources"), rule.Resources)
	oneOfRef(c.Checker, p, "scope", rule.Scope, ruleScopes)
}

// starAlone is for a list where * means all; others is what such a list has no more of.
func (c policyChecker) starAlone(p *field.Path, name string, list []string, others string) {
	if len(list) > 1 && slices.Contains(list, "*") {
		c.Invalid(p, name, list, "if '*' is present, must not specify other "+others)
	}
}

func (c policyChecker) webhookResources(p *field.Path, resources []string) {
	c.Need(p, "", len(resources) > 0, "")
	allOf, inAll := set{}, set{} // resources of which all, subresources of which everyone's are named
	plain := false
	for i, name := range resources {
		resource, sub, subresource := strings.Cut(name, "/")
		switch {
		case name == "":
			c.Required(p.Index(i), "", "")
			continue
		case !subresource:
			plain = name != "*"
			continue
		}
		if allOf[resource] {
			c.Invalid(p.Index(i), "", name, fmt.Sprintf("if '%s/*' is present, must not specify %s", resource, name))
		}
		if inAll[sub] {
			c.Invalid(p.Index(i), "", name, fmt.Sprintf("if '*/%s' is present, must not specify %s", sub, name))
		}
		allOf[resource] = allOf[resource] || sub == "*"
		inAll[sub] = inAll[sub] || resource == "*"
	}
	if len(resources) > 1 && slices.Contains(resources, "*/*") {
		c.Invalid(p, "", resources, "if '*/*' is present, must not specify other resources")
	}
	if plain && slices.Contains(resources, "*") {
		c.Invalid(p, "", resources, "if '*' is present, must not specify other resources without subresources")
	}
}

// WebhookURL is for the address of a webhook, of whatever kind.
func (c *Checker) WebhookURL(p *field.Path, address string) {
	const form = "; desired format: https://host[/path]"
	u, err := url.Parse(address)
	if err != nil {
		c.Required(p, "", "url must be a valid URL: "+err.Error()+form)
		return
	}
	for _, part := range [...]struct {
		wrong         bool
		value, detail string
	}{
		{u.Scheme != "https", u.Scheme, "'https' is the only allowed URL scheme" + form},
		{u.Host == "", u.Host, "host must be specified" + form},
		{u.User != nil, u.User.String(), "user information is not permitted in the URL"},
		{u.Fragment != "", u.Fragment, "fragments are not permitted in the URL"},
		{u.RawQuery != "", u.RawQuery, "query parameters are not permitted in the URL"},
	} {
		if part.wrong {
			c.Invalid(p, "", part.value, part.detail)
		}
	}
}

// WebhookService is for the Service that a webhook is reached by, whose port is defaulted.
func (c *Checker) WebhookService(p *field.Path, service *admissionv1.ServiceReference) {
	// the server calls its check with name and namespace exchanged
	c.Filled(p, "name", service.Namespace, "namespace", service.Name)
	if port := *service.Port; port < 1 || port > 65535 {
		c.Invalid(p, "port", port, "port is not valid: "+validation.InclusiveRangeError(1, 65535))
	}
	if service.Path == nil || *service.Path == "" || *service.Path == "/" {
		return
	}
	path := *service.Path
	if path == "//" {
		c.Invalid(p, "path", path, "segment[0] may not be empty")
		return
	}
	if !strings.HasPrefix(path, "/") {
		c.Invalid(p, "path", path, "must start with a '/'")
	}
	for i, segment := range strings.Split(strings.TrimSuffix(path[1:], "/"), "/") {
		if segment == "" {
			c.Invalid(p, "path", path, fmt.Sprintf("segment[%d] may not be empty", i))
			continue
		}
		for _, message := range isSubdomain(segment) {
			c.Invalid(p, "path", path, fmt.Sprintf("segment[%d]: %s", i, message))
		}
	}
}

// ---- admission policies ----

var (
	policyReasons      = []string{"Forbidden", "Invalid", "RequestEntityTooLarge"}
	policyActions      = []string{"Audit", "Deny", "Warn"}
	notFoundActions    = []string{"Deny", "Allow"}
	mutationOperations = []string{"*", "CONNECT", "CREATE", "UPDATE"}
	mutationPatches    = []string{"ApplyConfiguration", "JSONPatch"}
	celIdentifier      = regexp.MustCompile(`^[_a-zA-Z][_a-zA-Z0-9]*$`)
	celReserved        = strings.Fields("true false null in as break const continue else for function if import let loop package namespace return var void while")
)

const (
	maxAuditAnnotations   = 20
	maxAnnotationValueLen = 5 * 1024 // of an audit annotation's expression, in bytes
)

func (c policyChecker) validatingPolicy(policy, old *admissionv1.ValidatingAdmissionPolicy) {
	p, spec := field.NewPath("spec"), &policy.Spec
	compiler, err := admissionpolicy.NewValidatingChecker(policy, old)
	if err != nil {
		c.Add(field.InternalError(p, err))
		return
	}
	c.policyFrame(spec.FailurePolicy, spec.ParamKind, spec.MatchConstraints)
	if old == nil || !sameConditions(spec.ParamKind, old.Spec.ParamKind, spec.MatchConditions, old.Spec.MatchConditions) {
		c.conditions(p.Child("matchConditions"), spec.MatchConditions, compiler.Condition)
	}
	c.variables(p.Child("variables"), spec.Variables, compiler)
	if len(spec.Validations) == 0 && len(spec.AuditAnnotations) == 0 {
		const why = "validations or auditAnnotations must contain at least one item"
		c.Required(p, "validations", why)
		c.Required(p, "auditAnnotations", why)
	}
	for i := range spec.Validations {
		c.policyValidation(p.Child("validations").Index(i), &spec.Validations[i], compiler)
	}
	c.auditAnnotations(p.Child("auditAnnotations"), policy, compiler)
}

// sameConditions says that conditions were let in as they are.
func sameConditions(params, before *admissionv1.ParamKind, conditions, old []admissionv1.MatchCondition) bool {
	return equality.Semantic.DeepEqual(params, before) && equality.Semantic.DeepEqual(conditions, old)
}

// compiles reports an expression that does not compile. value is the text as sent.
func (c policyChecker) compiles(p *field.Path, name, value string, err error) {
	if err != nil {
		c.Invalid(p, name, value, err.Error())
	}
}

func (c policyChecker) auditAnnotations(p *field.Path, policy *admissionv1.ValidatingAdmissionPolicy, compiler *admissionpolicy.Checker) {
	annotations := policy.Spec.AuditAnnotations
	if len(annotations) > maxAuditAnnotations {
		c.Invalid(p, "", annotations, fmt.Sprintf("must not have more than %d auditAnnotations", maxAuditAnnotations))
	}
	keys := set{}
	for i, annotation := range annotations {
		ap := p.Index(i)
		for _, message := range isQualifiedName(policy.Name + "/" + annotation.Key) {
			c.Invalid(ap, "key", policy.Name+"/"+annotation.Key, message)
		}
		switch text := strings.TrimSpace(annotation.ValueExpression); {
		case text == "":
			c.Required(ap, "valueExpression", "valueExpression is not specified")
		case len(text) > maxAnnotationValueLen:
			c.Required(ap, "valueExpression", fmt.Sprintf("must not exceed %d bytes in length", maxAnnotationValueLen))
		default:
			c.compiles(ap, "valueExpression", annotation.ValueExpression, compiler.Annotation(text))
		}
		c.unique(ap, "key", keys, annotation.Key)
	}
}

func (c policyChecker) policyValidation(p *field.Path, v *admissionv1.Validation, compiler *admissionpolicy.Checker) {
	message := strings.TrimSpace(v.Message)
	if strings.TrimSpace(v.Expression) == "" {
		c.Required(p, "expression", "expression is not specified")
	} else {
		c.compiles(p, "expression", v.Expression, compiler.Validation(v.Expression))
	}
	if v.MessageExpression != "" && strings.TrimSpace(v.MessageExpression) == "" {
		c.Invalid(p, "messageExpression", v.MessageExpression, "must be non-empty if specified")
	} else if v.MessageExpression != "" {
		c.compiles(p, "messageExpression", v.MessageExpression, compiler.Message(v.MessageExpression))
	}
	switch {
	case v.Message != "" && message == "":
		c.Invalid(p, "message", v.Message, "must be non-empty if specified")
	case strings.ContainsAny(message, "\r\n"):
		c.Invalid(p, "message", v.Message, "must not contain line breaks")
	}
	oneOfRef(c.Checker, p, "reason", v.Reason, policyReasons)
}

func (c policyChecker) mutatingPolicy(policy, old *admissionv1.MutatingAdmissionPolicy) {
	p, spec := field.NewPath("spec"), &policy.Spec
	compiler, err := admissionpolicy.NewMutatingChecker(policy, old)
	if err != nil {
		c.Add(field.InternalError(p, err))
		return
	}
	c.policyFrame(spec.FailurePolicy, spec.ParamKind, spec.MatchConstraints)
	c.mutatingOperations(p.Child("matchConstraints"), spec.MatchConstraints)
	if old == nil || !sameConditions(spec.ParamKind, old.Spec.ParamKind, spec.MatchConditions, old.Spec.MatchConditions) {
		c.conditions(p.Child("matchConditions"), spec.MatchConditions, compiler.Condition)
	}
	c.variables(p.Child("variables"), spec.Variables, compiler)
	c.Need(p, "mutations", len(spec.Mutations) > 0, "mutations must contain at least one item")
	for i := range spec.Mutations {
		c.mutation(p.Child("mutations").Index(i), &spec.Mutations[i], compiler)
	}
	c.Known(p, "reinvocationPolicy", string(spec.ReinvocationPolicy), reinvocations)
}

func (c policyChecker) mutation(p *field.Path, m *admissionv1.Mutation, compiler *admissionpolicy.Checker) {
	c.Known(p, "patchType", string(m.PatchType), mutationPatches)
	switch m.PatchType {
	case admissionv1.PatchTypeJSONPatch:
		if m.JSONPatch == nil {
			c.Required(p, "jsonPatch", "must be specified when patchType is JSONPatch")
		} else {
			c.mutationExpression(p.Child("jsonPatch"), m.PatchType, m.JSONPatch.Expression, compiler)
		}
		if m.ApplyConfiguration != nil {
			c.Invalid(p, "applyConfiguration", "{applyConfiguration}", "must not be specified when patchType is JSONPatch")
		}
	case admissionv1.PatchTypeApplyConfiguration:
		if m.ApplyConfiguration == nil {
			c.Required(p, "applyConfiguration", "must be specified when patchType is ApplyConfiguration")
		} else {
			c.mutationExpression(p.Child("applyConfiguration"), m.PatchType, m.ApplyConfiguration.Expression, compiler)
		}
		if m.JSONPatch != nil {
			c.Invalid(p, "jsonPatch", "{jsonPatch}", "must not be specified when patchType is ApplyConfiguration")
		}
	}
}

func (c policyChecker) mutationExpression(p *field.Path, kind admissionv1.PatchType, text string, compiler *admissionpolicy.Checker) {
	text = strings.TrimSpace(text)
	if text == "" {
		c.Required(p, "expression", "")
		return
	}
	c.compiles(p, "expression", text, compiler.Mutation(kind, text))
}

// policyFrame is what both kinds of policy have: when they act, and on what.
func (c policyChecker) policyFrame(failure *admissionv1.FailurePolicyType, params *admissionv1.ParamKind, match *admissionv1.MatchResources) {
	p := field.NewPath("spec")
	oneOfRef(c.Checker, p, "failurePolicy", failure, failurePolicies)
	if params != nil {
		c.paramKind(p.Child("paramKind"), params)
	}
	if match == nil {
		c.Required(p, "matchConstraints", "")
		return
	}
	c.matchResources(p.Child("matchConstraints"), match)
	c.Need(p.Child("matchConstraints"), "resourceRules", len(match.ResourceRules) > 0, "")
}

func (c policyChecker) paramKind(p *field.Path, kind *admissionv1.ParamKind) {
	switch group, version, grouped := strings.Cut(kind.APIVersion, "/"); {
	case kind.APIVersion == "":
		c.Required(p, "apiVersion", "")
	case !grouped:
		c.Words(p, "apiVersion", group, validation.IsDNS1035Label)
	case strings.Contains(version, "/"):
		c.Invalid(p, "apiVersion", kind.APIVersion, "unexpected GroupVersion string: "+kind.APIVersion)
	default:
		c.Maybe(p, "apiVersion", group, isSubdomain)
		c.Words(p, "apiVersion", version, validation.IsDNS1035Label)
	}
	if kind.Kind == "" {
		c.Required(p, "kind", "")
	} else if wrong := validation.IsDNS1035Label(strings.ToLower(kind.Kind)); len(wrong) > 0 {
		c.Invalid(p, "kind", kind.Kind, "may have mixed case, but should otherwise match: "+strings.Join(wrong, ","))
	}
}

func (c policyChecker) matchResources(p *field.Path, match *admissionv1.MatchResources) {
	oneOfRef(c.Checker, p, "matchPolicy", match.MatchPolicy, matchPolicies)
	c.selector(p, "namespaceSelector", match.NamespaceSelector)
	c.selector(p, "objectSelector", match.ObjectSelector)
	for i := range match.ResourceRules {
		c.namedRule(p.Child("resourceRules").Index(i), &match.ResourceRules[i])
	}
	for i := range match.ExcludeResourceRules {
		c.namedRule(p.Child("excludeResourceRules").Index(i), &match.ExcludeResourceRules[i])
	}
}

func (c policyChecker) namedRule(p *field.Path, rule *admissionv1.NamedRuleWithOperations) {
	names := set{}
	for i, name := range rule.ResourceNames {
		c.Words(p.Child("resourceNames").Index(i), "", name, isPathSegment)
		c.unique(p.Child("resourceNames").Index(i), "", names, name)
	}
	c.webhookRule(p, &rule.RuleWithOperations)
}

// mutatingOperations: what is deleted cannot be changed on the way.
func (c policyChecker) mutatingOperations(p *field.Path, match *admissionv1.MatchResources) {
	if match == nil {
		return
	}
	for _, rule := range match.ResourceRules {
		for _, operation := range rule.Operations {
			c.OneOf(p.Child("resourceRules", "operations"), "", string(operation), mutationOperations)
		}
	}
}

func (c policyChecker) variables(p *field.Path, variables []admissionv1.Variable, compiler *admissionpolicy.Checker) {
	for i, variable := range variables {
		switch {
		case strings.TrimSpace(variable.Name) == "":
			c.Required(p.Index(i), "name", "name is not specified")
		case !celIdentifier.MatchString(variable.Name) || slices.Contains(celReserved, variable.Name):
			c.Invalid(p.Index(i), "name", variable.Name, "must be a valid CEL identifier")
		}
		if strings.TrimSpace(variable.Expression) == "" {
			c.Required(p.Index(i), "expression", "expression is not specified")
			continue
		}
		c.compiles(p.Index(i), "expression", variable.Expression, compiler.Variable(variable.Name, variable.Expression))
	}
}

func (c policyChecker) policyBinding(policy string, params *admissionv1.ParamRef, match *admissionv1.MatchResources) {
	p := field.NewPath("spec")
	c.Name(p, "policyName", policy, isSubdomain)
	if params != nil {
		c.paramRef(p.Child("paramRef"), params)
	}
	if match != nil {
		c.matchResources(p.Child("matchResources"), match)
	}
}

func (c policyChecker) paramRef(p *field.Path, ref *admissionv1.ParamRef) {
	const both = "name and selector are mutually exclusive"
	c.Maybe(p, "name", ref.Name, isPathSegment)
	c.Forbid(p, "name", ref.Name != "" && ref.Selector != nil, both)
	c.selector(p, "selector", ref.Selector)
	c.Forbid(p, "selector", ref.Name != "" && ref.Selector != nil, both)
	c.Need(p, "", ref.Name != "" || ref.Selector != nil, "one of name or selector must be specified")
	if action := ref.ParameterNotFoundAction; action == nil {
		c.Required(p, "parameterNotFoundAction", "")
	} else {
		c.Known(p, "parameterNotFoundAction", string(*action), notFoundActions)
	}
}

func (c policyChecker) validationActions(p *field.Path, actions []admissionv1.ValidationAction) {
	seen := set{}
	for i, action := range actions {
		c.OneOf(p.Index(i), "", string(action), policyActions)
		c.unique(p.Index(i), "", seen, string(action))
	}
	if seen["Deny"] && seen["Warn"] {
		c.Invalid(p, "", actions, "must not contain both Deny and Warn (repeating the same validation failure information in the API "+
			"response and headers serves no purpose)")
	}
	c.Need(p, "", len(actions) > 0, "at least one validation action is required")
}

// ---- flow control ----

var (
	flowVerbs      = []string{"create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"}
	distinguishers = []string{"ByNamespace", "ByUser"}
	flowSubjects   = []string{"Group", "ServiceAccount", "User"}
	levelTypes     = []string{"Exempt", "Limited"}
	limitResponses = []string{"Queue", "Reject"}
)

func (c policyChecker) flowSchema(schema *flowcontrolv1.FlowSchema) {
	p, spec := field.NewPath("spec"), &schema.Spec
	if precedence := spec.MatchingPrecedence; precedence <= 0 {
		c.Invalid(p, "matchingPrecedence", precedence, "must be a positive value")
	} else if precedence > 10000 {
		c.Invalid(p, "matchingPrecedence", precedence, "must not be greater than 10000")
	} else if precedence == 1 && schema.Name != "exempt" {
		c.Invalid(p, "matchingPrecedence", precedence, "only the schema named 'exempt' may have matchingPrecedence 1")
	}
	if method := spec.DistinguisherMethod; method != nil && !slices.Contains(distinguishers, string(method.Type)) {
		c.Unsupported(p, "distinguisherMethod.type", method, distinguishers)
	}
	level := spec.PriorityLevelConfiguration.Name
	c.Need(p, "priorityLevelConfiguration.name", level != "", "must reference a priority level")
	c.Maybe(p, "priorityLevelConfiguration.name", level, isSubdomain)
	for i := range spec.Rules {
		c.flowRule(p.Child("rules").Index(i), &spec.Rules[i])
	}
}

func (c policyChecker) flowRule(p *field.Path, rule *flowcontrolv1.PolicyRulesWithSubjects) {
	c.Need(p, "subjects", len(rule.Subjects) > 0, "subjects must contain at least one value")
	for i := range rule.Subjects {
		c.flowSubject(p.Child("subjects").Index(i), &rule.Subjects[i])
	}
	c.Need(p, "", len(rule.ResourceRules)+len(rule.NonResourceRules) > 0, "at least one of resourceRules and nonResourceRules has to be non-empty")
	for i := range rule.ResourceRules {
		c.flowResources(p.Child("resourceRules").Index(i), &rule.ResourceRules[i])
	}
	for i, rest := range rule.NonResourceRules {
		rp := p.Child("nonResourceRules").Index(i)
		c.flowVerbs(rp, rest.Verbs)
		c.Need(rp, "nonResourceURLs", len(rest.NonResourceURLs) > 0, "nonResourceURLs must contain at least one value")
		c.starAlone(rp, "nonResourceURLs", rest.NonResourceURLs, "non-resource URLs")
		every := slices.Contains(rest.NonResourceURLs, "*")
		for j, path := range rest.NonResourceURLs {
			if wrong := wrongInURLPath(path); wrong != "" && !every {
				c.Invalid(rp.Child("nonResourceURLs").Index(j), "", path, wrong)
			}
		}
	}
}

func (c policyChecker) flowResources(p *field.Path, rule *flowcontrolv1.ResourcePolicyRule) {
	c.flowVerbs(p, rule.Verbs)
	c.Need(p, "apiGroups", len(rule.APIGroups) > 0, "resource rules must supply at least one api group")
	c.starAlone(p, "apiGroups", rule.APIGroups, "api groups")
	c.Need(p, "resources", len(rule.Resources) > 0, "resource rules must supply at least one resource")
	c.starAlone(p, "resources", rule.Resources, "resources")
	c.Need(p, "namespaces", rule.ClusterScope || len(rule.Namespaces) > 0, "resource rules that are not cluster scoped must supply at least one namespace")
	c.starAlone(p, "namespaces", rule.Namespaces, "namespaces")
	if slices.Contains(rule.Namespaces, "*") {
		return
	}
	for i, namespace := range rule.Namespaces {
		for _, message := range isLabel(namespace) {
			c.Invalid(p.Child("namespaces").Index(i), "", namespace, "each member of this list must be '*' or a DNS-1123 label; "+message)
		}
	}
}

func (c policyChecker) flowVerbs(p *field.Path, verbs []string) {
	c.Need(p, "verbs", len(verbs) > 0, "verbs must contain at least one value")
	c.starAlone(p, "verbs", verbs, "verbs")
	known := func(verb string) bool { return slices.Contains(flowVerbs, verb) }
	if !slices.Contains(verbs, "*") && slices.ContainsFunc(verbs, func(verb string) bool { return !known(verb) }) {
		c.Unsupported(p, "verbs", verbs, flowVerbs)
	}
}

func wrongInURLPath(path string) string {
	stars := strings.Count(path, "*")
	switch {
	case path == "":
		return "must not be empty"
	case path == "/":
		return ""
	case !strings.HasPrefix(path, "/"):
		return "must start with slash"
	case strings.Contains(path, " "):
		return "must not contain white-space"
	case strings.Contains(path, "//"):
		return "must not contain double slash"
	case stars > 1 || stars == 1 && !strings.HasSuffix(path, "/*"):
		return "wildcard can only do suffix matching"
	}
	return ""
}

func (c policyChecker) flowSubject(p *field.Path, subject *flowcontrolv1.Subject) {
	if !slices.Contains(flowSubjects, string(subject.Kind)) {
		c.Unsupported(p, "kind", subject.Kind, flowSubjects)
		return
	}
	members := [...]struct {
		name string
		kind flowcontrolv1.SubjectKind
		set  bool
	}{
		{"serviceAccount", flowcontrolv1.SubjectKindServiceAccount, subject.ServiceAccount != nil},
		{"user", flowcontrolv1.SubjectKindUser, subject.User != nil}, {"group", flowcontrolv1.SubjectKindGroup, subject.Group != nil},
	}
	for _, member := range members {
		if member.kind == subject.Kind {
			c.Need(p, member.name, member.set, fmt.Sprintf("%s is required when subject kind is '%s'", member.name, member.kind))
		}
	}
	switch account := subject.ServiceAccount; {
	case subject.Kind == flowcontrolv1.SubjectKindServiceAccount && account != nil:
		if account.Name != "*" {
			c.Name(p, "serviceAccount.name", account.Name, isSubdomain)
		}
		c.Need(p, "serviceAccount.namespace", account.Namespace != "", "must specify namespace for service account")
		c.Maybe(p, "serviceAccount.namespace", account.Namespace, isLabel)
	case subject.Kind == flowcontrolv1.SubjectKindUser && subject.User != nil:
		c.Filled(p, "user.name", subject.User.Name)
	case subject.Kind == flowcontrolv1.SubjectKindGroup && subject.Group != nil:
		c.Filled(p, "group.name", subject.Group.Name)
	}
	for _, member := range members {
		c.Forbid(p, member.name, member.set && member.kind != subject.Kind, fmt.Sprintf("%s is forbidden when subject kind is not '%s'", member.name, member.kind))
	}
}

func (c policyChecker) priorityLevel(level *flowcontrolv1.PriorityLevelConfiguration) {
	p, spec := field.NewPath("spec"), &level.Spec
	noted := metav1.HasAnnotation(level.ObjectMeta, defaults.ZeroShares)
	c.Forbid(field.NewPath("metadata", "annotations"), "", noted, "annotation '"+defaults.ZeroShares+"' is forbidden")
	if (level.Name == "exempt") != (spec.Type == flowcontrolv1.PriorityLevelEnablementExempt) {
		c.Invalid(p, "type", spec.Type, "must be 'Exempt' if and only if `name` is 'exempt'")
	}
	switch spec.Type {
	case flowcontrolv1.PriorityLevelEnablementExempt:
		c.Forbid(p, "limited", spec.Limited != nil, "must be nil if the type is not Limited")
		if exempt := spec.Exempt; exempt != nil {
			c.shares(p.Child("exempt"), exempt.NominalConcurrencyShares, exempt.LendablePercent)
		}
	case flowcontrolv1.PriorityLevelEnablementLimited:
		c.Forbid(p, "exempt", spec.Exempt != nil, "must be nil if the type is Limited")
		if spec.Limited == nil {
			c.Required(p, "limited", "must not be empty when type is Limited")
			return
		}
		c.limitResponse(p.Child("limited"), spec.Limited)
	default:
		c.Unsupported(p, "type", spec.Type, levelTypes)
	}
}

// fixedSchema holds the mandatory schemas to what is built in.
func (c policyChecker) fixedSchema(schema *flowcontrolv1.FlowSchema) {
	for _, fixed := range flowcontrol.MandatoryObjects().Schemas {
		if fixed.Name == schema.Name && !equality.Semantic.DeepEqual(fixed.Spec, schema.Spec) {
			c.Invalid(field.NewPath("spec"), "", schema.Spec, fmt.Sprintf("spec of '%s' must equal the fixed value", schema.Name))
		}
	}
}

// fixedLevel does so with the levels. The shares of the exempt level are the operator's.
func (c policyChecker) fixedLevel(level *flowcontrolv1.PriorityLevelConfiguration) {
	for _, fixed := range flowcontrol.MandatoryObjects().Levels {
		if fixed.Name != level.Name {
			continue
		}
		what := ""
		if level.Name == "exempt" {
			fixed.Spec.Exempt, what = level.Spec.Exempt, " except the 'spec.exempt' field"
		}
		if !equality.Semantic.DeepEqual(fixed.Spec, level.Spec) {
			c.Invalid(field.NewPath("spec"), "", level.Spec, fmt.Sprintf("spec of '%s'%s must equal the fixed value", level.Name, what))
		}
	}
}

func (c policyChecker) shares(p *field.Path, shares, lendable *int32) {
	if *shares < 0 {
		c.Invalid(p, "nominalConcurrencyShares", *shares, "must be a non-negative integer")
	}
	if *lendable < 0 || *lendable > 100 {
		c.Invalid(p, "lendablePercent", *lendable, "must be between 0 and 100, inclusive")
	}
}

func (c policyChecker) limitResponse(p *field.Path, limited *flowcontrolv1.LimitedPriorityLevelConfiguration) {
	if shares := limited.NominalConcurrencyShares; shares != nil && *shares < 0 {
		c.Invalid(p, "nominalConcurrencyShares", *shares, "must be a non-negative integer")
	}
	switch response := &limited.LimitResponse; response.Type {
	case flowcontrolv1.LimitResponseTypeReject:
		c.Forbid(p, "limitResponse.queuing", response.Queuing != nil, "must be nil if limited.limitResponse.type is not Limited")
	case flowcontrolv1.LimitResponseTypeQueue:
		c.Need(p, "limitResponse.queuing", response.Queuing != nil, "must not be empty if limited.limitResponse.type is Limited")
		if response.Queuing != nil {
			c.queuing(p.Child("limitResponse", "queuing"), response.Queuing)
		}
	default:
		c.Unsupported(p, "limitResponse.type", response.Type, limitResponses)
	}
	if lendable := *limited.LendablePercent; lendable < 0 || lendable > 100 {
		c.Invalid(p, "lendablePercent", lendable, "must be between 0 and 100, inclusive")
	}
	if most := limited.BorrowingLimitPercent; most != nil && *most < 0 {
		c.Invalid(p, "borrowingLimitPercent", *most, "if specified, must be a non-negative integer")
	}
}

// queuing: a hand is dealt from a 60-bit hash.
func (c policyChecker) queuing(p *field.Path, queuing *flowcontrolv1.QueuingConfiguration) {
	mustBePositive := func(name string, value int32) bool {
		if value <= 0 {
			c.Invalid(p, name, value, "must be positive")
		}
		return value > 0
	}
	queues, hand := queuing.Queues, queuing.HandSize
	mustBePositive("queueLengthLimit", queuing.QueueLengthLimit)
	if mustBePositive("queues", queues) && queues > 10_000_000 {
		c.Invalid(p, "queues", queues, "must not be greater than 10000000")
	}
	if !mustBePositive("handSize", hand) {
		return
	}
	if bits := int(math.Ceil(math.Log2(float64(queues)) * float64(hand))); hand > queues {
		c.Invalid(p, "handSize", hand, fmt.Sprintf("should not be greater than queues (%d)", queues))
	} else if bits > 60 {
		c.Invalid(p, "handSize", hand, fmt.Sprintf("required entropy bits of deckSize %d and handSize %d should not be greater than 60", queues, hand))
	}
}
