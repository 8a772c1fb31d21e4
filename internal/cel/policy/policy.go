// Package policy decides about writes by ValidatingAdmissionPolicies and MutatingAdmissionPolicies: expressions in CEL that lie in the
// store, and no webhook is called. A policy does nothing by itself; a binding puts it in force, for some objects, with some parameters:
//
//	policy    at-most-N     matches deployments    paramKind rules.example.com/v1 Limit
//	                        validations: object.spec.replicas <= params.max
//	binding   for-tests     policyName at-most-N   namespaceSelector env=test   paramRef name: three      actions: Deny
//	binding   for-all       policyName at-most-N                                paramRef selector: soft   actions: Warn, Audit
//
// A write of a deployment in a namespace of env=test is then evaluated once with the Limit three, and once with each of the soft ones:
//
//	policies in force ─▶ which match ─▶ bindings of these that match ─▶ params of each ─▶ matchConditions ─▶ expressions ─▶ actions
//
// What cannot be evaluated (params that are missing, an expression that fails, or that costs too much) is refused, or with failurePolicy
// Ignore let pass. Mutating policies are asked first, one after the other, each seeing what those before it made of the object; those with
// reinvocationPolicy IfNeeded are asked once more when something has changed the object after them.
//
// The policies in force are read from the store after each write to one, before that write is answered, and hang on one atomic pointer:
// while there are none a write pays for loading that. Expressions are compiled when a write first meets them, by Kubernetes' own compiler,
// and let go of when no write has for a while. Objects become what CEL sees once for a write, however many policies look at them.
package policy

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"github.com/tidwall/gjson"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/labels"

	"apilet/internal/cel/matchconditions"
	"apilet/internal/fieldmanager"
	"apilet/internal/matching"
	"apilet/internal/scheme"
	"apilet/internal/store"
	"apilet/internal/unreadable"
)

// ---- What is in force

// Policies are the admission policies of a server.
type Policies struct {
	Store      *store.Store                                                         // where policies, bindings and params are read
	Types      *scheme.Registry                                                     // what rules and paramKinds speak of
	Unreadable *unreadable.Unreadables                                              // notes policies and bindings that cannot be decoded
	Log        zerolog.Logger                                                       // is told of a reload that failed
	May        matchconditions.May                                                  // for the variable authorizer
	Defaults   func(res *scheme.Resource, obj scheme.Object) error                  // fills in what a mutation left out
	Fields     func(res *scheme.Resource) *fieldmanager.Manager                     // knows what an ApplyConfiguration's lists and maps mean
	Checked    func(Check)                                                          // is told of evaluations; may be nil
	Convert    func(row *scheme.Resource, obj scheme.Object) (scheme.Object, error) // a custom resource as another version shows it

	current atomic.Pointer[set] // nil: none are in force

	mu       sync.Mutex           // one reload at a time; guards what follows
	programs map[string]*programs // by plural and policy: they outlive a reload
}

// A set is what is in force, by name of the policy. Immutable.
type set struct{ mutating, validating []*policy }

// A policy is one of either kind, with its bindings.
type policy struct {
	name        string
	failsOpen   bool
	paramKind   *admissionv1.ParamKind
	constraints *matcher
	conditions  []admissionv1.MatchCondition
	variables   []admissionv1.Variable
	programs    *programs
	bindings    []*binding

	validations []admissionv1.Validation
	annotations []admissionv1.AuditAnnotation

	mutations   []admissionv1.Mutation
	reinvocable bool
}

// A binding puts a policy in force.
type binding struct {
	name    string
	matches *matcher // nil: whatever the policy matches
	params  *admissionv1.ParamRef
	actions []admissionv1.ValidationAction
}

// Mutating says that some mutating policy is in force.
func (p *Policies) Mutating() bool {
	set := p.current.Load()
	return set != nil && len(set.mutating) > 0
}

// Validating says that some validating policy is in force.
func (p *Policies) Validating() bool {
	set := p.current.Load()
	return set != nil && len(set.validating) > 0
}

// Committed brings what is in force up to date after a write to a resource.
func (p *Policies) Committed(res *scheme.Resource) {
	if res.Group == admissionv1.GroupName && matching.IsExempt(res) {
		p.Reload()
	}
}

// Reload reads policies and bindings. One that cannot be read is told in the log and left out; when the store cannot be read, what was in
// force stays so.
func (p *Policies) Reload() {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.programs
	p.programs = map[string]*programs{}
	next := &set{}
	var errs [2]error
	next.validating, errs[0] = p.validatingLocked(before)
	next.mutating, errs[1] = p.mutatingLocked(before)
	if err := errors.Join(errs[:]...); err != nil {
		p.programs = before
		p.Log.Error().Err(err).Msg("reading the admission policies")
		return
	}
	if len(next.validating)+len(next.mutating) == 0 {
		next = nil
	}
	p.current.Store(next)
}

func (p *Policies) validatingLocked(before map[string]*programs) (found []*policy, err error) {
	bindings := map[string][]*binding{}
	err = p.each("validatingadmissionpolicybindings", func(obj scheme.Object, _ string) {
		b := obj.(*admissionv1.ValidatingAdmissionPolicyBinding)
		bindings[b.Spec.PolicyName] = append(bindings[b.Spec.PolicyName],
			&binding{name: b.Name, matches: matcherOf(b.Spec.MatchResources), params: b.Spec.ParamRef, actions: b.Spec.ValidationActions})
	})
	if err != nil || len(bindings) == 0 {
		return nil, err
	}
	const plural = "validatingadmissionpolicies"
	err = p.each(plural, func(obj scheme.Object, spec string) {
		o := obj.(*admissionv1.ValidatingAdmissionPolicy)
		if len(bindings[o.Name]) == 0 {
			return
		}
		found = append(found, &policy{name: o.Name, failsOpen: failsOpen(o.Spec.FailurePolicy), paramKind: o.Spec.ParamKind,
			constraints: matcherOf(o.Spec.MatchConstraints), conditions: o.Spec.MatchConditions, variables: o.Spec.Variables,
			programs: p.keepLocked(before, plural+"/"+o.Name, spec), bindings: bindings[o.Name],
			validations: o.Spec.Validations, annotations: o.Spec.AuditAnnotations})
	})
	return found, err
}

func (p *Policies) mutatingLocked(before map[string]*programs) (found []*policy, err error) {
	bindings := map[string][]*binding{}
	err = p.each("mutatingadmissionpolicybindings", func(obj scheme.Object, _ string) {
		b := obj.(*admissionv1.MutatingAdmissionPolicyBinding)
		bindings[b.Spec.PolicyName] = append(bindings[b.Spec.PolicyName],
			&binding{name: b.Name, matches: matcherOf(b.Spec.MatchResources), params: b.Spec.ParamRef})
	})
	if err != nil || len(bindings) == 0 {
		return nil, err
	}
	const plural = "mutatingadmissionpolicies"
	err = p.each(plural, func(obj scheme.Object, spec string) {
		o := obj.(*admissionv1.MutatingAdmissionPolicy)
		if len(bindings[o.Name]) == 0 {
			return
		}
		found = append(found, &policy{name: o.Name, failsOpen: failsOpen(o.Spec.FailurePolicy), paramKind: o.Spec.ParamKind,
			constraints: matcherOf(o.Spec.MatchConstraints), conditions: o.Spec.MatchConditions, variables: o.Spec.Variables,
			programs: p.keepLocked(before, plural+"/"+o.Name, spec), bindings: bindings[o.Name],
			mutations: o.Spec.Mutations, reinvocable: o.Spec.ReinvocationPolicy == admissionv1.IfNeededReinvocationPolicy})
	})
	return found, err
}

func failsOpen(policy *admissionv1.FailurePolicyType) bool {
	return policy != nil && *policy == admissionv1.Ignore
}

// keepLocked returns a policy's programs: those from before the reload, if its spec is the same.
func (p *Policies) keepLocked(before map[string]*programs, key, spec string) *programs {
	kept := before[key]
	if kept == nil || kept.spec != spec {
		kept = &programs{spec: spec}
	}
	p.programs[key] = kept
	return kept
}

// each visits the stored objects of a resource in the order of their names; spec is the stored text of one's spec.
func (p *Policies) each(plural string, visit func(obj scheme.Object, spec string)) error {
	res := p.Types.Lookup(admissionv1.GroupName, "v1", plural)
	for rec, err := range p.Store.All(store.Span{Prefix: res.KeyPrefix(""), Sound: true}) {
		if err != nil {
			return err
		}
		obj, err := res.DecodeStored(rec.JSON)
		if err != nil {
			p.Unreadable.Note(rec, err)
			continue
		}
		visit(obj, gjson.GetBytes(rec.JSON, "spec").Raw)
	}
	return nil
}

// Run lets go of programs that nobody uses, until ctx is done.
func (p *Policies) Run(ctx context.Context) {
	idle := time.NewTicker(programsIdle / 5)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-idle.C:
			p.forget(now)
		}
	}
}

func (p *Policies) forget(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, programs := range p.programs {
		programs.forget(now)
	}
}

// ---- Which writes a policy or a binding matches

// A matcher is matchConstraints, or matchResources. Immutable.
type matcher struct {
	admissionv1.MatchResources
	namespaces, objects labels.Selector
	broken              error // a selector cannot be read: no write lets such a one in
}

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
