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
	"sync"
	"sync/atomic"

	"github.com/rs/zerolog"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/labels"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"

	"apilet/internal/cel/matching"
	"apilet/internal/fieldmanager"
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
	May        matching.May                                                         // for the variable authorizer
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

// tell passes a check on.
func (p *Policies) tell(c Check) {
	if p.Checked != nil {
		p.Checked(c)
	}
}

// A matcher is matchConstraints, or matchResources. Immutable.
type matcher struct {
	admissionv1.MatchResources
	namespaces, objects labels.Selector
	broken              error // a selector cannot be read: no write lets such a one in
}

// programs are a policy's, compiled at their first use. They outlive a reload that leaves the policy's spec as it was.
type programs struct {
	spec string       // the text that they are made of
	used atomic.Int64 // in Unix nanoseconds

	mu    sync.Mutex // guards ready, and serialises compiling
	ready *compiled
}

// A compiled is what a policy's expressions became, each list in the order of the policy. Immutable.
type compiled struct {
	scope                                                     *plugincel.CompositedCompiler // makes the variables
	composed                                                  bool                          // there are some
	conditions, validations, messages, annotations, mutations []plugincel.CompilationResult
}
