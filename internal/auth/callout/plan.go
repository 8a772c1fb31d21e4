package callout

// This file contains the order of authorizers, and calls authorization webhooks.

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	apiserverv1beta1 "k8s.io/apiserver/pkg/apis/apiserver/v1beta1"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"

	"apilet/internal/auth/ttlcache"
	"apilet/internal/bounded"
	"apilet/internal/kubeconfig"
	"apilet/internal/request"
)

// The types of authorizers.
const (
	TypeNode        = "Node"
	TypeRBAC        = "RBAC"
	TypeAlwaysAllow = "AlwaysAllow"
	TypeAlwaysDeny  = "AlwaysDeny"
	TypeWebhook     = "Webhook"
)

// A Plan is a list of authorizers that are evaluated in order.
type Plan struct{ Steps []Step }

// A Step is one authorizer. The caller implements the types other than TypeWebhook.
type Step struct {
	Type string
	Name string      // prefix of reasons
	Hook *Authorizer // nil unless Type is TypeWebhook
}

// Has reports whether the plan contains an authorizer of the given type.
func (p *Plan) Has(kind string) bool {
	return slices.ContainsFunc(p.Steps, func(s Step) bool { return s.Type == kind })
}

// types returns the sorted types of the authorizers that are not webhooks.
func (p *Plan) types() (list []string) {
	for _, s := range p.Steps {
		if s.Type != TypeWebhook {
			list = append(list, s.Type)
		}
	}
	slices.Sort(list)
	return list
}

// LoadPlan reads an AuthorizationConfiguration. If before is not nil, the new plan must have the
// same authorizers, except for webhooks.
func LoadPlan(data []byte, before *Plan) (*Plan, error) {
	config, err := decodePlan(data)
	if err != nil {
		return nil, fmt.Errorf("failed to load AuthorizationConfiguration from file: %w", err)
	}
	compiler := authorizationcel.NewDefaultCompiler()
	if errs := validation.ValidateAuthorizationConfiguration(compiler, nil, config, sets.New(TypeNode, TypeRBAC, TypeAlwaysAllow, TypeAlwaysDeny, TypeWebhook),
		sets.New(TypeWebhook)); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	var wrong []error
	for _, one := range config.Authorizers {
		if want := strings.ToLower(string(one.Type)); one.Type != TypeWebhook && one.Name != want {
			wrong = append(wrong, fmt.Errorf("expected name %s for authorizer %s instead of %s", want, one.Type, one.Name))
		}
	}
	if len(wrong) > 0 {
		return nil, errors.Join(wrong...)
	}
	plan, err := newPlan(compiler, config)
	if err == nil && before != nil && !slices.Equal(plan.types(), before.types()) {
		return nil, fmt.Errorf("authorization config must contain the same authorizer types as at the start, except for webhooks: %s", strings.Join(before.types(), ", "))
	}
	return plan, err
}

func decodePlan(data []byte) (*apiserver.AuthorizationConfiguration, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return &apiserver.AuthorizationConfiguration{}, nil
	}
	decoded, _, err := bounded.DecodeConfiguration(data, apiserver.AddToScheme, apiserverv1.AddToScheme, apiserverv1beta1.AddToScheme)
	if err != nil {
		return nil, err
	}
	config, ok := decoded.(*apiserver.AuthorizationConfiguration)
	if !ok {
		return nil, fmt.Errorf("expected AuthorizationConfiguration, got %T", decoded)
	}
	return config, nil
}

// HookFlags holds the flags --authorization-webhook-...
type HookFlags struct {
	File, Version            string
	AllowedTTL, UnallowedTTL time.Duration
}

// NewPlan returns the plan for --authorization-mode and the webhook flags.
func NewPlan(modes []string, hook HookFlags) (*Plan, error) {
	config := &apiserver.AuthorizationConfiguration{}
	for _, mode := range modes {
		one := apiserver.AuthorizerConfiguration{Type: apiserver.AuthorizerType(mode), Name: strings.ToLower(mode)}
		if mode == TypeWebhook {
			one.Name = "default"
			one.Webhook = &apiserver.WebhookConfiguration{AuthorizedTTL: metav1.Duration{Duration: hook.AllowedTTL}, UnauthorizedTTL: metav1.Duration{Duration: hook.UnallowedTTL},
				CacheAuthorizedRequests: hook.AllowedTTL != 0, CacheUnauthorizedRequests: hook.UnallowedTTL != 0,
				Timeout: metav1.Duration{Duration: callTimeout}, FailurePolicy: apiserver.FailurePolicyNoOpinion, SubjectAccessReviewVersion: hook.Version,
				ConnectionInfo: apiserver.WebhookConnectionInfo{Type: apiserver.AuthorizationWebhookConnectionInfoTypeKubeConfigFile, KubeConfigFile: &hook.File}}
		}
		config.Authorizers = append(config.Authorizers, one)
	}
	return newPlan(authorizationcel.NewDefaultCompiler(), config)
}

func newPlan(compiler authorizationcel.Compiler, config *apiserver.AuthorizationConfiguration) (*Plan, error) {
	plan := &Plan{}
	for _, one := range config.Authorizers {
		step := Step{Type: string(one.Type), Name: one.Name}
		if one.Type == TypeWebhook {
			var err error
			if step.Hook, err = newAuthorizer(compiler, one); err != nil {
				return nil, fmt.Errorf("authorizer %q: %w", one.Name, err)
			}
		}
		plan.Steps = append(plan.Steps, step)
	}
	return plan, nil
}

// A Verdict is the decision of an authorizer.
type Verdict int

// NoOpinion means that the next authorizer decides. Deny rejects the request.
const (
	NoOpinion Verdict = iota
	Allow
	Deny
)

// An Authorizer is an authorization webhook.
type Authorizer struct {
	name    string
	config  apiserver.WebhookConfiguration
	client  *kubeconfig.Client
	matcher *authorizationcel.CELMatcher // nil if the webhook is called for all requests
	onError Verdict
	cache   ttlcache.Cache[authorizationv1.SubjectAccessReviewStatus]
}

func newAuthorizer(compiler authorizationcel.Compiler, one apiserver.AuthorizerConfiguration) (*Authorizer, error) {
	a := &Authorizer{name: one.Name, config: *one.Webhook, cache: ttlcache.Cache[authorizationv1.SubjectAccessReviewStatus]{MaxEntries: maxCached}}
	if v := a.config.SubjectAccessReviewVersion; v != "v1" && v != "v1beta1" {
		return nil, fmt.Errorf("unsupported webhook authorizer version %q, supported versions are %q, %q", v, "v1", "v1beta1")
	}
	if a.config.ConnectionInfo.Type != apiserver.AuthorizationWebhookConnectionInfoTypeKubeConfigFile {
		return nil, fmt.Errorf("connectionInfo.type %s is not supported: use KubeConfigFile", a.config.ConnectionInfo.Type)
	}
	if a.config.FailurePolicy == apiserver.FailurePolicyDeny {
		a.onError = Deny
	}
	matcher, errs := validation.ValidateAndCompileMatchConditions(compiler, a.config.MatchConditions)
	if err := errs.ToAggregate(); err != nil {
		return nil, err
	}
	if matcher != nil && matcher.CompilationResults != nil {
		a.matcher = matcher
	}
	var err error
	a.client, err = kubeconfig.NewWebhookClient(*a.config.ConnectionInfo.KubeConfigFile, agent)
	return a, err
}

// Decide returns the decision of the webhook, which may be cached. If it returns an error, the
// verdict depends on the failure policy.
func (a *Authorizer) Decide(u request.User, info request.Info) (Verdict, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), a.config.Timeout.Duration)
	defer cancel()
	review := authorizationv1.SubjectAccessReview{Spec: specOf(u, info)}
	if a.matcher != nil {
		matches, err := a.matcher.Eval(ctx, &review)
		if err != nil {
			return a.onError, "", err
		}
		if !matches {
			return NoOpinion, "", nil
		}
	}
	key, err := json.Marshal(review.Spec)
	if err != nil {
		return a.onError, "", err
	}
	hash := sha256.Sum256(key)
	status, cached := a.cache.Get(hash, time.Now())
	if !cached {
		if status, err = a.review(ctx, review.Spec); err != nil {
			return a.onError, "", fmt.Errorf("webhook authorizer %q: %w", a.name, err)
		}
		if isCacheable(info) {
			a.cacheDecision(hash, status)
		}
	}
	switch {
	case status.Denied && status.Allowed:
		return Deny, status.Reason, errors.New("webhook subject access review returned both allow and deny response")
	case status.Denied:
		return Deny, status.Reason, nil
	case status.Allowed:
		return Allow, status.Reason, nil
	}
	return NoOpinion, status.Reason, nil
}

func (a *Authorizer) cacheDecision(hash [sha256.Size]byte, status authorizationv1.SubjectAccessReviewStatus) {
	now := time.Now()
	switch {
	case status.Allowed && a.config.CacheAuthorizedRequests:
		a.cache.Put(hash, status, now, now.Add(a.config.AuthorizedTTL.Duration))
	case !status.Allowed && a.config.CacheUnauthorizedRequests:
		a.cache.Put(hash, status, now, now.Add(a.config.UnauthorizedTTL.Duration))
	}
}

// isCacheable reports whether the decision may be cached. Users can choose long names, and
// decisions for such requests are not cached.
func isCacheable(info request.Info) bool {
	const most = 10000
	return len(info.Namespace)+len(info.Verb)+len(info.Group)+len(info.Version)+len(info.Resource)+len(info.Subresource)+len(info.Name)+len(info.Path) < most
}

// review posts the review in the API version of the webhook. In v1beta1 the field groups is named
// group.
func (a *Authorizer) review(ctx context.Context, spec authorizationv1.SubjectAccessReviewSpec) (authorizationv1.SubjectAccessReviewStatus, error) {
	var review any = &authorizationv1.SubjectAccessReview{TypeMeta: metav1.TypeMeta{Kind: "SubjectAccessReview", APIVersion: "authorization.k8s.io/v1"}, Spec: spec}
	if a.config.SubjectAccessReviewVersion == "v1beta1" {
		text, err := json.Marshal(spec)
		var members map[string]any
		if err = errors.Join(err, json.Unmarshal(text, &members)); err != nil {
			return authorizationv1.SubjectAccessReviewStatus{}, err
		}
		if groups, ok := members["groups"]; ok {
			delete(members, "groups")
			members["group"] = groups
		}
		review = map[string]any{"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1beta1", "metadata": map[string]any{}, "spec": members,
			"status": map[string]any{"allowed": false}}
	}
	var answer struct {
		Status authorizationv1.SubjectAccessReviewStatus `json:"status"`
	}
	if _, err := postReview(ctx, a.client, review, &answer, "SubjectAccessReview"); err != nil {
		return authorizationv1.SubjectAccessReviewStatus{}, err
	}
	status := answer.Status
	return authorizationv1.SubjectAccessReviewStatus{Allowed: status.Allowed, Denied: status.Denied, Reason: truncate(status.Reason)}, nil
}

func specOf(u request.User, info request.Info) authorizationv1.SubjectAccessReviewSpec {
	spec := authorizationv1.SubjectAccessReviewSpec{User: u.Name, UID: u.UID, Groups: u.Groups}
	for key, values := range u.Extra {
		if spec.Extra == nil {
			spec.Extra = map[string]authorizationv1.ExtraValue{}
		}
		spec.Extra[key] = values
	}
	if !info.ResourceRequest {
		spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: info.Path, Verb: info.Verb}
		return spec
	}
	spec.ResourceAttributes = &authorizationv1.ResourceAttributes{Namespace: info.Namespace, Verb: info.Verb, Group: info.Group, Version: info.Version,
		Resource: info.Resource, Subresource: info.Subresource, Name: info.Name}
	switch info.Verb {
	case "list", "watch", "deletecollection":
		addSelectors(spec.ResourceAttributes, info)
	}
	return spec
}

// addSelectors adds the selectors of the request. If a selector cannot be parsed, it is omitted, so
// the question is about more objects.
func addSelectors(at *authorizationv1.ResourceAttributes, info request.Info) {
	options, err := info.ListOptions()
	if err != nil {
		return
	}
	if selector, err := fields.ParseSelector(options.FieldSelector); err == nil {
		var wanted []metav1.FieldSelectorRequirement
		for _, r := range selector.Requirements() {
			operator := metav1.FieldSelectorOpIn
			if r.Operator == selection.NotEquals {
				operator = metav1.FieldSelectorOpNotIn
			}
			wanted = append(wanted, metav1.FieldSelectorRequirement{Key: r.Field, Operator: operator, Values: []string{r.Value}})
		}
		if len(wanted) > 0 {
			at.FieldSelector = &authorizationv1.FieldSelectorAttributes{Requirements: wanted}
		}
	}
	selector, err := labels.Parse(options.LabelSelector)
	if err != nil {
		return
	}
	operators := map[selection.Operator]metav1.LabelSelectorOperator{selection.Equals: metav1.LabelSelectorOpIn, selection.DoubleEquals: metav1.LabelSelectorOpIn,
		selection.In: metav1.LabelSelectorOpIn, selection.NotEquals: metav1.LabelSelectorOpNotIn, selection.NotIn: metav1.LabelSelectorOpNotIn,
		selection.Exists: metav1.LabelSelectorOpExists, selection.DoesNotExist: metav1.LabelSelectorOpDoesNotExist}
	var wanted []metav1.LabelSelectorRequirement
	requirements, _ := selector.Requirements()
	for _, r := range requirements {
		if operator, ok := operators[r.Operator()]; ok {
			wanted = append(wanted, metav1.LabelSelectorRequirement{Key: r.Key(), Operator: operator, Values: r.ValuesUnsorted()})
		}
	}
	if len(wanted) > 0 {
		at.LabelSelector = &authorizationv1.LabelSelectorAttributes{Requirements: wanted}
	}
}
