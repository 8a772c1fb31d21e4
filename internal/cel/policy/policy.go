// Package policy implements ValidatingAdmissionPolicies and MutatingAdmissionPolicies. Policies
// contain CEL expressions, so they need no webhook. A policy has no effect by itself. It must be
// applied to certain objects by a binding, which may also provide parameters:
//
//	policy    at-most-N     matches deployments    paramKind rules.example.com/v1 Limit
//	                        validations: object.spec.replicas <= params.max
//	binding   for-tests     policyName at-most-N   namespaceSelector env=test   paramRef name: three      actions: Deny
//	binding   for-all       policyName at-most-N                                paramRef selector: soft   actions: Warn, Audit
//
// If a client writes a deployment in a namespace with env=test, the policy is evaluated once with
// the Limit three, and once with each Limit that matches soft:
//
//	active policies ─▶ matching policies ─▶ matching bindings ─▶ params of each ─▶ matchConditions ─▶ expressions ─▶ actions
//
// If a policy cannot be evaluated, because its params are missing or because an expression fails
// or costs too much, the write is rejected. With failurePolicy Ignore it is allowed. Mutating
// policies run before validating policies. They run one after another. The result of each policy
// is passed to the next one. A policy with reinvocationPolicy IfNeeded runs again if the object
// changes after it.
//
// The active policies are read from the store after each write to a policy or a binding, before
// that write is answered. They are stored in an atomic pointer, so the cost for a write is a
// single load if there are none. Expressions are compiled by Kubernetes' own compiler on first
// use. They are dropped if they have not been used for a while. The objects of a write are
// converted to CEL values once for all policies.
package policy

import (
	"sync"
	"sync/atomic"

	"github.com/rs/zerolog"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/labels"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"

	"apilet/internal/cel/matching"
	"apilet/internal/corrupt"
	"apilet/internal/fieldmanager"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// ---- Active policies

// Policies evaluates the admission policies of a server.
type Policies struct {
	Store     *store.Store           // source of policies, bindings and params
	Types     *scheme.Registry       // resolves the types in rules and paramKinds
	Corrupt   *corrupt.Objects       // records policies and bindings that cannot be decoded
	Log       zerolog.Logger         // receives errors of reloads
	Authorize matching.AuthorizeFunc // for the CEL variable authorizer
	// Defaults sets the default values of fields that may have been removed by a mutation.
	Defaults func(res *scheme.Resource, obj scheme.Object) error
	// FieldManager returns the manager that merges an ApplyConfiguration according to the schema.
	FieldManager func(res *scheme.Resource) *fieldmanager.Manager
	OnCheck      func(Check) // receives each evaluation; may be nil
	// Convert converts a custom resource to another version.
	Convert func(row *scheme.Resource, obj scheme.Object) (scheme.Object, error)

	current atomic.Pointer[set] // nil if no policy is active

	mu       sync.Mutex           // serializes reloads and guards programs
	programs map[string]*programs // by plural and name of the policy; survive a reload
}

// A set contains the active policies, ordered by name. It is immutable.
type set struct{ mutating, validating []*policy }

// policy is a validating or mutating policy with its bindings.
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

// A binding applies a policy to some objects.
type binding struct {
	name    string
	matches *matcher // if nil, the binding matches everything that the policy matches
	params  *admissionv1.ParamRef
	actions []admissionv1.ValidationAction
}

// HasMutating reports whether any mutating policy is active.
func (p *Policies) HasMutating() bool {
	set := p.current.Load()
	return set != nil && len(set.mutating) > 0
}

// HasValidating reports whether any validating policy is active.
func (p *Policies) HasValidating() bool {
	set := p.current.Load()
	return set != nil && len(set.validating) > 0
}

// reportCheck reports a check if OnCheck is set.
func (p *Policies) reportCheck(c Check) {
	if p.OnCheck != nil {
		p.OnCheck(c)
	}
}

// A matcher is a parsed matchConstraints or matchResources. It is immutable.
type matcher struct {
	admissionv1.MatchResources
	namespaces, objects labels.Selector
	// broken is the error from parsing a selector. It should be nil, because policies are
	// validated.
	broken error
}

// programs contains the compiled expressions of a policy. It survives reloads that do not change
// the policy's spec.
type programs struct {
	spec string       // the spec that the programs were compiled from
	used atomic.Int64 // time of the last use, in Unix nanoseconds

	mu    sync.Mutex // guards ready, and serializes compiling
	ready *compiled
}

// A compiled contains the compiled expressions of a policy, in the order of the policy. It is
// immutable.
type compiled struct {
	// scope evaluates the variables.
	scope                                                     *plugincel.CompositedCompiler
	composed                                                  bool // whether there are variables
	conditions, validations, messages, annotations, mutations []plugincel.CompilationResult
}
