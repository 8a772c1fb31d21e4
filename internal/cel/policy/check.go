package policy

// This file checks the expressions in a policy before it is stored. New expressions are limited to
// the current language. Expressions that the stored policy already contains may use all functions
// that the server supports.

import (
	"errors"
	"sync"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"apilet/internal/apierror"
	"apilet/internal/cel/celenv"
)

// statelessCompiler compiles expressions that cannot use variables.
var statelessCompiler = sync.OnceValue(func() plugincel.Compiler {
	return plugincel.NewCompiler(celenv.Base())
})

// A Checker compiles the expressions in a policy. Variables must be checked before the expressions
// that use them.
type Checker struct {
	declared plugincel.OptionalVariableDeclarations
	plain    plugincel.Compiler            // for conditions
	scope    plugincel.Compiler            // for all other expressions
	composed *plugincel.CompositedCompiler // used to compile variables; nil if there are none
	stored   map[string]bool               // expressions in the stored policy
	// Limits the total length of the errors, because an error in a long expression takes the
	// compiler half a second.
	left apierror.Budget
}

var errNotCompiled = errors.New("was not compiled, for what stands before it has too many mistakes")

// NewValidatingChecker returns a Checker for a policy that replaces old, which is nil for a
// create. An error is internal.
func NewValidatingChecker(policy, old *admissionv1.ValidatingAdmissionPolicy) (*Checker, error) {
	return newChecker(policy.Spec.ParamKind, policy.Spec.Variables, storedExpressions(old))
}

// NewMutatingChecker is NewValidatingChecker for mutating policies. Variables can be used in their
// expressions even if the policy does not declare any.
func NewMutatingChecker(policy, old *admissionv1.MutatingAdmissionPolicy) (*Checker, error) {
	c, err := newChecker(policy.Spec.ParamKind, policy.Spec.Variables, storedExpressions(old))
	if err == nil && c.composed == nil {
		c.scope, err = plainCompiler()
	}
	return c, err
}

func newChecker(params *admissionv1.ParamKind, variables []admissionv1.Variable, stored map[string]bool) (c *Checker, err error) {
	c = &Checker{declared: plugincel.OptionalVariableDeclarations{HasParams: params != nil, HasAuthorizer: true}, plain: statelessCompiler(), stored: stored, left: apierror.NewBudget()}
	c.scope = c.plain
	if len(variables) > 0 {
		c.composed, err = newCompiler()
		c.scope = c.composed
	}
	return c, err
}

// check returns the compiler's error for an expression.
func (c *Checker) check(scope plugincel.Compiler, e *expression, declared plugincel.OptionalVariableDeclarations) error {
	return c.within(func() plugincel.CompilationResult { return scope.CompileCELExpression(e, declared, c.language(e.text)) })
}

// within calls compile, unless the errors so far have used up the budget.
func (c *Checker) within(compile func() plugincel.CompilationResult) error {
	if c.left.Exhausted() {
		return errNotCompiled
	}
	result := compile()
	if result.Error == nil {
		return nil
	}
	c.left.Take(result.Error.Error())
	return result.Error
}

func (c *Checker) language(text string) environment.Type {
	if c.stored[text] {
		return environment.StoredExpressions
	}
	return environment.NewExpressions
}

// CheckCondition checks a matchCondition, which cannot use variables.
func (c *Checker) CheckCondition(text string) error {
	return c.check(c.plain, &expression{text: text, types: conditionTypes}, c.declared)
}

// CheckVariable checks a variable and declares it for later expressions.
func (c *Checker) CheckVariable(name, text string) error {
	return c.within(func() plugincel.CompilationResult {
		return c.composed.CompileAndStoreVariable(&expression{name: name, text: text, types: variableTypes}, c.declared, c.language(text))
	})
}

// CheckValidation checks the expression of a validation.
func (c *Checker) CheckValidation(text string) error {
	return c.check(c.scope, &expression{text: text, types: conditionTypes}, c.declared)
}

// CheckMessage checks a messageExpression.
func (c *Checker) CheckMessage(text string) error {
	declared := c.declared
	declared.HasAuthorizer = false
	return c.check(c.scope, &expression{text: text, types: messageTypes}, declared)
}

// CheckAnnotation checks the valueExpression of an audit annotation.
func (c *Checker) CheckAnnotation(text string) error {
	return c.check(c.scope, &expression{text: text, types: annotationTypes}, c.declared)
}

// CheckMutation checks the expression of a mutation.
func (c *Checker) CheckMutation(kind admissionv1.PatchType, text string) error {
	declared := c.declared
	declared.HasPatchTypes = true
	types := appliedTypes
	if kind == admissionv1.PatchTypeJSONPatch {
		types = patchTypes
	}
	return c.check(c.scope, &expression{text: text, types: types}, declared)
}

// storedExpressions returns the expressions of a policy of either kind. The policy may be nil.
func storedExpressions[P admissionv1.ValidatingAdmissionPolicy | admissionv1.MutatingAdmissionPolicy](policy *P) map[string]bool {
	found := map[string]bool{}
	if policy == nil {
		return found
	}
	conditions := func(list []admissionv1.MatchCondition) {
		for _, condition := range list {
			found[condition.Expression] = true
		}
	}
	switch o := any(policy).(type) {
	case *admissionv1.ValidatingAdmissionPolicy:
		conditions(o.Spec.MatchConditions)
		for _, v := range o.Spec.Validations {
			found[v.Expression], found[v.MessageExpression] = true, true
		}
		for _, annotation := range o.Spec.AuditAnnotations {
			found[annotation.ValueExpression] = true
		}
	case *admissionv1.MutatingAdmissionPolicy:
		conditions(o.Spec.MatchConditions)
		for _, m := range o.Spec.Mutations {
			if m.ApplyConfiguration != nil {
				found[m.ApplyConfiguration.Expression] = true
			}
			if m.JSONPatch != nil {
				found[m.JSONPatch.Expression] = true
			}
		}
	}
	return found
}
