package policy

// This file compiles and evaluates the expressions in a policy. Kubernetes' compiler defines the
// language and the variables. The following table lists the variables that each expression can
// use, and the cost budget:
//
//	expressions                object oldObject request params variables   namespaceObject   authorizer   budget
//	matchConditions            yes                                         null              yes          a quarter of the budget of validations, for all
//	validations                yes                                         yes               yes          one for all, and
//	  messageExpression        yes                                         yes               no           the rest of the validations' budget
//	auditAnnotations           yes                                         yes               no           one for all
//	mutations                  yes                                         yes               yes          one each
//
// A variable is evaluated when an expression first uses it. Its cost counts towards that
// expression.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"apilet/internal/cel/celenv"
)

// programsIdle is the duration after which unused programs are dropped.
const programsIdle = 5 * time.Minute

// errOutOfBudget is returned when an evaluation exceeds its cost budget.
var errOutOfBudget = errors.New("validation failed due to running out of cost budget, no further validation rules will be run")

// An expression is the text of an expression with its allowed result types.
type expression struct {
	name, text string
	types      []*celgo.Type
}

func (e *expression) GetName() string            { return e.name }
func (e *expression) GetExpression() string      { return e.text }
func (e *expression) ReturnTypes() []*celgo.Type { return e.types }

// Allowed result types.
var (
	conditionTypes  = []*celgo.Type{celgo.BoolType}
	messageTypes    = []*celgo.Type{celgo.StringType}
	annotationTypes = []*celgo.Type{celgo.StringType, celgo.NullType}
	variableTypes   = []*celgo.Type{celgo.AnyType, celgo.DynType}
	appliedTypes    = []*celgo.Type{celgo.ObjectType("Object")}
	patchTypes      = []*celgo.Type{celgo.ListType(celgo.ObjectType("JSONPatch"))}
)

// ---- Compiling

// plainCompiler is shared by all policies without variables, because an environment takes
// milliseconds to create. It uses 100 KiB while any of its programs exists.
var plainCompiler = sync.OnceValues(newCompiler)

func newCompiler() (*plugincel.CompositedCompiler, error) {
	return plugincel.NewCompositedCompiler(celenv.Base())
}

// compilerFor returns the compiler for a policy with the given variables.
func compilerFor(variables []admissionv1.Variable) (*plugincel.CompositedCompiler, error) {
	if len(variables) == 0 {
		return plainCompiler()
	}
	return newCompiler()
}

// compiledFor returns the programs and compiles them if necessary.
func (p *programs) compiledFor(policy *policy) (*compiled, error) {
	p.used.Store(time.Now().UnixNano())
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ready != nil {
		return p.ready, nil
	}
	c, err := compile(policy)
	if err == nil {
		p.ready = c
	}
	return c, err
}

// forget drops the programs if they have not been used for programsIdle.
func (p *programs) forget(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(time.Unix(0, p.used.Load())) > programsIdle {
		p.ready = nil
	}
}

// compile compiles all expressions of a policy. It returns an error only if the compiler cannot be
// created. An invalid expression is not an error here, because the policy may have been stored by a
// later version of the server. Its evaluation returns the error.
func compile(policy *policy) (*compiled, error) {
	scope, err := compilerFor(policy.variables)
	if err != nil {
		return nil, err
	}
	c := &compiled{scope: scope, composed: len(policy.variables) > 0}
	full := plugincel.OptionalVariableDeclarations{HasParams: policy.paramKind != nil, HasAuthorizer: true}
	bare, patching := full, full
	bare.HasAuthorizer, patching.HasPatchTypes = false, true
	of := func(text string, types []*celgo.Type, declared plugincel.OptionalVariableDeclarations) plugincel.CompilationResult {
		return scope.CompileCELExpression(&expression{text: text, types: types}, declared, environment.StoredExpressions)
	}
	for _, v := range policy.variables {
		scope.CompileAndStoreVariable(&expression{name: v.Name, text: v.Expression, types: variableTypes}, full, environment.StoredExpressions)
	}
	for _, condition := range policy.conditions {
		c.conditions = append(c.conditions, of(condition.Expression, conditionTypes, full))
	}
	for _, v := range policy.validations {
		c.validations = append(c.validations, of(v.Expression, conditionTypes, full))
		var message plugincel.CompilationResult // none
		if v.MessageExpression != "" {
			message = of(v.MessageExpression, messageTypes, bare)
		}
		c.messages = append(c.messages, message)
	}
	for _, annotation := range policy.annotations {
		c.annotations = append(c.annotations, of(annotation.ValueExpression, annotationTypes, full))
	}
	for _, m := range policy.mutations {
		switch {
		case m.PatchType == admissionv1.PatchTypeJSONPatch && m.JSONPatch != nil:
			c.mutations = append(c.mutations, of(m.JSONPatch.Expression, patchTypes, patching))
		case m.PatchType == admissionv1.PatchTypeApplyConfiguration && m.ApplyConfiguration != nil:
			c.mutations = append(c.mutations, of(m.ApplyConfiguration.Expression, appliedTypes, patching))
		default: // rejected by validation
			c.mutations = append(c.mutations, plugincel.CompilationResult{})
		}
	}
	return c, nil
}

// ---- Evaluating

// An activation provides the variables for a list of expressions. The values are computed lazily.
type activation struct {
	h          *writeContext
	row        *document // the objects in the version that the policy matches
	params     any       // nil if there are none
	authorized bool      // whether the authorizer is available
	anywhere   bool      // whether namespaceObject is always null
	variables  ref.Val
	err        error // errors of computing variables
}

// ResolveName returns the value of a variable.
func (a *activation) ResolveName(name string) (any, bool) {
	switch name {
	case plugincel.ObjectVarName:
		return a.row.object, true
	case plugincel.OldObjectVarName:
		return a.row.old, true
	case plugincel.ParamsVarName:
		return a.params, true
	case plugincel.VariableVarName:
		return a.variables, true
	case plugincel.RequestVarName:
		return a.h.request(a.row), true
	case plugincel.NamespaceVarName:
		if a.anywhere {
			return nil, true
		}
		value, err := a.h.namespaceObject()
		a.err = errors.Join(a.err, err)
		return value, true
	case plugincel.AuthorizerVarName:
		return a.h.authorizer(), a.authorized
	case plugincel.RequestResourceAuthorizerVarName:
		return a.h.resourceAuthorizer(), a.authorized
	}
	return nil, false
}

// Parent returns nil, because there is no enclosing activation.
func (a *activation) Parent() interpreter.Activation { return nil }

// An evaluation evaluates a list of expressions with a common budget.
type evaluation struct {
	a      *activation
	scope  plugincel.CompositionContext
	budget int64
}

func newEvaluation(ctx context.Context, c *compiled, a *activation, budget int64) *evaluation {
	e := &evaluation{a: a, scope: c.scope.CreateContext(ctx), budget: budget}
	if c.composed {
		a.variables = e.scope.Variables(a)
	}
	return e
}

// evaluate evaluates an expression. failed is the error returned by the expression itself. If err
// is not nil, the whole evaluation must stop. If there is no expression, all results are nil.
func (e *evaluation) evaluate(c *plugincel.CompilationResult) (value ref.Val, failed, err error) {
	switch {
	case c.ExpressionAccessor == nil:
		return nil, nil, nil
	case c.Error != nil:
		return nil, fmt.Errorf("compilation error: %w", c.Error), nil
	case c.Program == nil:
		return nil, errors.New("unexpected internal error compiling expression"), nil
	}
	value, details, failed := c.Program.ContextEval(e.scope, e.a)
	if !e.spend(uint64(e.scope.GetAndResetCost())) {
		return nil, nil, errOutOfBudget
	}
	if details == nil || details.ActualCost() == nil {
		const unknown = "runtime cost could not be calculated for expression: %v, no further expression will be run"
		return nil, nil, fmt.Errorf(unknown, c.ExpressionAccessor.GetExpression())
	}
	if !e.spend(*details.ActualCost()) {
		return nil, nil, errOutOfBudget
	}
	if failed = errors.Join(failed, e.a.err); failed != nil {
		return nil, fmt.Errorf("expression '%v' resulted in error: %w", c.ExpressionAccessor.GetExpression(), failed), nil
	}
	return value, nil, nil
}

func (e *evaluation) spend(cost uint64) bool {
	if cost > math.MaxInt64 || int64(cost) > e.budget {
		return false
	}
	e.budget -= int64(cost)
	return true
}
