package validation

// This file has the rules of admission webhooks and admission policies, which are not imported:
// k8s.io/kubernetes/pkg/apis/admissionregistration/validation depends on 500 packages of admission
// plug-ins and clients. The errors are returned in the same order. CEL expressions are compiled
// with Kubernetes' own packages.

import (
	"context"
	"fmt"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metavalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	selectorvalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/util/jsonpath"

	"apilet/internal/cel/matching"
	admissionpolicy "apilet/internal/cel/policy"
)

// A policyChecker checks the fields of an object.
type policyChecker struct{ *Checker }

// policyRules returns the rules of admissionregistration.k8s.io.
func policyRules() map[reflect.Type]*rules {
	return map[reflect.Type]*rules{
		reflect.TypeFor[*admissionv1.ValidatingWebhookConfiguration](): policyRule(func(c policyChecker, o, _ *admissionv1.ValidatingWebhookConfiguration) {
			c.webhooks(matching.ValidatingHooks(o))
		}),
		reflect.TypeFor[*admissionv1.MutatingWebhookConfiguration](): policyRule(func(c policyChecker, o, _ *admissionv1.MutatingWebhookConfiguration) {
			c.webhooks(matching.MutatingHooks(o))
		}),
		reflect.TypeFor[*admissionv1.ValidatingAdmissionPolicy](): policyRule(policyChecker.validatingPolicy).withStatus(policyStatus),
		reflect.TypeFor[*admissionv1.MutatingAdmissionPolicy]():   policyRule(policyChecker.mutatingPolicy),
		reflect.TypeFor[*admissionv1.ValidatingAdmissionPolicyBinding](): policyRule(func(c policyChecker, o, _ *admissionv1.ValidatingAdmissionPolicyBinding) {
			c.policyBinding(o.Spec.PolicyName, o.Spec.ParamRef, o.Spec.MatchResources)
			c.validationActions(field.NewPath("spec", "validationActions"), o.Spec.ValidationActions)
		}),
		reflect.TypeFor[*admissionv1.MutatingAdmissionPolicyBinding](): policyRule(func(c policyChecker, o, _ *admissionv1.MutatingAdmissionPolicyBinding) {
			c.policyBinding(o.Spec.PolicyName, o.Spec.ParamRef, o.Spec.MatchResources)
			c.mutatingOperations(field.NewPath("spec", "matchResources"), o.Spec.MatchResources)
		}),
	}
}

// policyRule returns rules that check the metadata, and the other fields with check. old is nil
// for a create.
func policyRule[T any, P interface {
	*T
	metav1.ObjectMetaAccessor
}](check func(c policyChecker, obj, old P)) *rules {
	validate := func(obj, old P) field.ErrorList {
		c := policyChecker{&Checker{}}
		meta := obj.GetObjectMeta().(*metav1.ObjectMeta)
		c.Add(metavalidation.ValidateObjectMeta(meta, false, metavalidation.NameIsDNSSubdomain, field.NewPath("metadata"))...)
		check(c, obj, old)
		return c.Errs
	}
	return &rules{
		create: func(_ context.Context, obj runtime.Object) field.ErrorList { return validate(any(obj).(P), nil) },
		updates: map[string]updateFunc{"": func(_ context.Context, obj, old runtime.Object) field.ErrorList {
			return validate(any(obj).(P), any(old).(P))
		}},
	}
}

// withStatus adds the rules of the status subresource.
func (r *rules) withStatus(check func(obj runtime.Object) field.ErrorList) *rules {
	r.updates["status"] = func(_ context.Context, obj, _ runtime.Object) field.ErrorList { return check(obj) }
	return r
}

// policyStatus validates the status of a ValidatingAdmissionPolicy.
func policyStatus(obj runtime.Object) field.ErrorList {
	c, p, status := &Checker{}, field.NewPath("status"), &obj.(*admissionv1.ValidatingAdmissionPolicy).Status
	if status.TypeChecking != nil {
		for i, warning := range status.TypeChecking.ExpressionWarnings {
			at := p.Child("typeChecking", "expressionWarnings").Index(i)
			c.RequireAll(at, "warning", warning.Warning)
			c.RequiredFormat(at, "fieldRef", strings.TrimSpace(warning.FieldRef), jsonPath)
		}
	}
	c.Add(selectorvalidation.ValidateConditions(status.Conditions, p.Child("conditions"))...)
	return c.Errs
}

// jsonPath returns the error of a JSONPath that cannot be parsed.
func jsonPath(text string) []string {
	if err := jsonpath.New("spec").Parse("{" + text + "}"); err != nil {
		return []string{fmt.Sprintf("invalid JSONPath: %v", err)}
	}
	return nil
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

func (c policyChecker) webhooks(hooks []matching.Webhook) {
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

func (c policyChecker) webhook(p *field.Path, hook *matching.Webhook) {
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
		_, err := matching.Compile(text, (*environment.EnvSet).NewExpressionsEnv)
		return err
	})
}

// conditions validates match conditions. The expressions must compile.
func (c policyChecker) conditions(p *field.Path, conditions []admissionv1.MatchCondition, compile func(text string) error) {
	const most = 64
	if len(conditions) > most {
		c.Add(field.TooMany(p, len(conditions), most))
	}
	names := set{}
	for i, condition := range conditions {
		if text := strings.TrimSpace(condition.Expression); text == "" {
			c.Required(p.Index(i), "expression", "")
		} else if i >= most { // too many, which has been reported
		} else if err := compile(text); err != nil {
			c.Invalid(p.Index(i), "expression", text, err.Error())
		}
		c.RequiredFormat(p.Index(i), "name", condition.Name, content.IsLabelKey)
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
		c.Format(p.Index(i), "", version, validation.IsDNS1035Label)
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
		oneOf(c.Checker, p.Child("operations").Index(i), "", operation, webhookOperations)
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

// starAlone adds an error if a list contains * with other elements. others names the elements in
// the message.
func (c policyChecker) starAlone(p *field.Path, name string, list []string, others string) {
	if len(list) > 1 && slices.Contains(list, "*") {
		c.Invalid(p, name, list, "if '*' is present, must not specify other "+others)
	}
}

func (c policyChecker) webhookResources(p *field.Path, resources []string) {
	c.Need(p, "", len(resources) > 0, "")
	// allOf contains the resources for which all subresources are listed. inAll contains the
	// subresources that are listed for all resources.
	allOf, inAll := set{}, set{}
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

// WebhookURL validates the URL of a webhook.
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

// WebhookService validates the Service of a webhook. The port must have its default.
func (c *Checker) WebhookService(p *field.Path, service *admissionv1.ServiceReference) {
	// Kubernetes passes the name and the namespace in the wrong order.
	c.RequireAll(p, "name", service.Namespace, "namespace", service.Name)
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
		for _, message := range validation.IsDNS1123Subdomain(segment) {
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
	maxAuditAnnotations = 20
	// maxAnnotationValueLen is the maximum length in bytes of the expression for an audit
	// annotation.
	maxAnnotationValueLen = 5 * 1024
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
		c.conditions(p.Child("matchConditions"), spec.MatchConditions, compiler.CheckCondition)
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

// sameConditions reports whether an update changes neither the conditions nor the paramKind.
func sameConditions(params, before *admissionv1.ParamKind, conditions, old []admissionv1.MatchCondition) bool {
	return equality.Semantic.DeepEqual(params, before) && equality.Semantic.DeepEqual(conditions, old)
}

// compiles adds an error if an expression does not compile. value is the text in the request.
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
		if policy.Name == "" {
			c.Invalid(ap, "key", annotation.Key, "requires metadata.name be non-empty")
		} else {
			c.Format(ap, "key", policy.Name+"/"+annotation.Key, content.IsLabelKey)
		}
		switch text := strings.TrimSpace(annotation.ValueExpression); {
		case text == "":
			c.Required(ap, "valueExpression", "valueExpression is not specified")
		case len(text) > maxAnnotationValueLen:
			c.Required(ap, "valueExpression", fmt.Sprintf("must not exceed %d bytes in length", maxAnnotationValueLen))
		default:
			c.compiles(ap, "valueExpression", annotation.ValueExpression, compiler.CheckAnnotation(text))
		}
		c.unique(ap, "key", keys, annotation.Key)
	}
}

func (c policyChecker) policyValidation(p *field.Path, v *admissionv1.Validation, compiler *admissionpolicy.Checker) {
	message := strings.TrimSpace(v.Message)
	if strings.TrimSpace(v.Expression) == "" {
		c.Required(p, "expression", "expression is not specified")
	} else {
		c.compiles(p, "expression", v.Expression, compiler.CheckValidation(v.Expression))
	}
	if v.MessageExpression != "" && strings.TrimSpace(v.MessageExpression) == "" {
		c.Invalid(p, "messageExpression", v.MessageExpression, "must be non-empty if specified")
	} else if v.MessageExpression != "" {
		c.compiles(p, "messageExpression", v.MessageExpression, compiler.CheckMessage(v.MessageExpression))
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
		c.conditions(p.Child("matchConditions"), spec.MatchConditions, compiler.CheckCondition)
	}
	c.variables(p.Child("variables"), spec.Variables, compiler)
	c.Need(p, "mutations", len(spec.Mutations) > 0, "mutations must contain at least one item")
	for i := range spec.Mutations {
		c.mutation(p.Child("mutations").Index(i), &spec.Mutations[i], compiler)
	}
	c.RequiredOneOf(p, "reinvocationPolicy", string(spec.ReinvocationPolicy), reinvocations)
}

func (c policyChecker) mutation(p *field.Path, m *admissionv1.Mutation, compiler *admissionpolicy.Checker) {
	c.RequiredOneOf(p, "patchType", string(m.PatchType), mutationPatches)
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
	c.compiles(p, "expression", text, compiler.CheckMutation(kind, text))
}

// policyFrame validates the fields that are common to both kinds of policies.
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
		c.Format(p, "apiVersion", group, validation.IsDNS1035Label)
	case strings.Contains(version, "/"):
		c.Invalid(p, "apiVersion", kind.APIVersion, "unexpected GroupVersion string: "+kind.APIVersion)
	default:
		c.OptionalFormat(p, "apiVersion", group, validation.IsDNS1123Subdomain)
		c.Format(p, "apiVersion", version, validation.IsDNS1035Label)
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
		c.Format(p.Child("resourceNames").Index(i), "", name, content.IsPathSegmentName)
		c.unique(p.Child("resourceNames").Index(i), "", names, name)
	}
	c.webhookRule(p, &rule.RuleWithOperations)
}

// mutatingOperations adds an error for DELETE, because deleted objects cannot be mutated.
func (c policyChecker) mutatingOperations(p *field.Path, match *admissionv1.MatchResources) {
	if match == nil {
		return
	}
	for _, rule := range match.ResourceRules {
		for _, operation := range rule.Operations {
			oneOf(c.Checker, p.Child("resourceRules", "operations"), "", operation, mutationOperations)
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
		c.compiles(p.Index(i), "expression", variable.Expression, compiler.CheckVariable(variable.Name, variable.Expression))
	}
}

func (c policyChecker) policyBinding(policy string, params *admissionv1.ParamRef, match *admissionv1.MatchResources) {
	p := field.NewPath("spec")
	if policy == "" {
		c.Add(field.Required(p.Child("policyName"), "").MarkCoveredByDeclarative())
	}
	c.OptionalFormat(p, "policyName", policy, validation.IsDNS1123Subdomain)
	if params != nil {
		c.paramRef(p.Child("paramRef"), params)
	}
	if match != nil {
		c.matchResources(p.Child("matchResources"), match)
	}
}

func (c policyChecker) paramRef(p *field.Path, ref *admissionv1.ParamRef) {
	const both = "name and selector are mutually exclusive"
	c.OptionalFormat(p, "name", ref.Name, content.IsPathSegmentName)
	c.Forbid(p, "name", ref.Name != "" && ref.Selector != nil, both)
	c.selector(p, "selector", ref.Selector)
	c.Forbid(p, "selector", ref.Name != "" && ref.Selector != nil, both)
	c.Need(p, "", ref.Name != "" || ref.Selector != nil, "one of name or selector must be specified")
	if action := ref.ParameterNotFoundAction; action == nil {
		c.Required(p, "parameterNotFoundAction", "")
	} else {
		c.RequiredOneOf(p, "parameterNotFoundAction", string(*action), notFoundActions)
	}
}

func (c policyChecker) validationActions(p *field.Path, actions []admissionv1.ValidationAction) {
	seen := set{}
	for i, action := range actions {
		oneOf(c.Checker, p.Index(i), "", action, policyActions)
		c.unique(p.Index(i), "", seen, string(action))
	}
	if seen["Deny"] && seen["Warn"] {
		c.Invalid(p, "", actions, "must not contain both Deny and Warn (repeating the same validation failure information in the API "+
			"response and headers serves no purpose)")
	}
	if len(actions) == 0 {
		c.Add(field.Required(p, "at least one validation action is required").MarkCoveredByDeclarative())
	}
}
