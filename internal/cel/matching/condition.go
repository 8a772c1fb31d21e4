package matching

// This file compiles and evaluates match conditions (KEP-3716). See package
// k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions.
//
//	matchConditions:
//	- name: not-by-nodes
//	  expression: '!("system:nodes" in request.userInfo.groups) && has(object.metadata.labels)'
//
//	conditions := &matching.Set{Conditions: hook.MatchConditions}
//	wanted, err := conditions.Match(ctx, map[string]any{"object": ..., "oldObject": ..., "request": ..., "authorizer": ...})
//
// A request matches if all conditions are true. If any condition is false, the request does not
// match, even if another condition fails. Otherwise an error means that the request is rejected,
// or with failurePolicy Ignore that the webhook is not called. The language, including its
// versions and limits, is defined by package k8s.io/apiserver/pkg/cel/environment. This file
// declares the variables object, oldObject, request, authorizer and namespaceObject. For webhooks,
// namespaceObject is always null.
//
// Each expression is only compiled once. The total cost of the conditions of one webhook is
// limited to RuntimeCELCostBudgetMatchConditions. Evaluation stops when the context is done.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"

	celgo "github.com/google/cel-go/cel"
	celvalues "github.com/google/cel-go/common/types"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/version"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/library"

	"apilet/internal/cel/celenv"
)

// The fields of request. The types are declared below. An asterisk marks optional fields. object
// and oldObject are separate variables.
var (
	kindMembers     = "group:string version:string kind:string"
	resourceMembers = "group:string version:string resource:string"
	userMembers     = "username:string* uid:string* groups:strings* extra:lists*"
	requestMembers  = "kind:kind resource:resource subResource:string* requestKind:kind requestResource:resource requestSubResource:string* " +
		"name:string namespace:string* operation:string userInfo:user dryRun:bool* options:any*"
)

// conditionEnvs returns the environment with the variables. It is created when it is first used,
// because that takes some milliseconds and 1 MiB.
var conditionEnvs = sync.OnceValues(func() (*environment.EnvSet, error) {
	strs := apiservercel.NewListType(apiservercel.StringType, -1)
	known := map[string]*apiservercel.DeclType{"string": apiservercel.StringType, "bool": apiservercel.BoolType, "any": apiservercel.DynType,
		"strings": strs, "lists": apiservercel.NewMapType(apiservercel.StringType, strs, -1)}
	known["kind"] = declare("kubernetes.GroupVersionKind", kindMembers, known)
	known["resource"] = declare("kubernetes.GroupVersionResource", resourceMembers, known)
	known["user"] = declare("kubernetes.UserInfo", userMembers, known)
	request := declare("kubernetes.AdmissionRequest", requestMembers, known)
	base := celenv.Base()
	return base.Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0),
		DeclTypes:         []*apiservercel.DeclType{request},
		EnvOptions: []celgo.EnvOption{
			celgo.Variable("object", celgo.DynType), celgo.Variable("oldObject", celgo.DynType), celgo.Variable("namespaceObject", celgo.DynType),
			celgo.Variable("request", request.CelType()),
			celgo.Variable("authorizer", library.AuthorizerType), celgo.Variable("authorizer.requestResource", library.ResourceCheckType),
		},
	}, environment.StrictCostOpt)
})

// declare returns an object type with the given fields.
func declare(name, members string, known map[string]*apiservercel.DeclType) *apiservercel.DeclType {
	fields := map[string]*apiservercel.DeclField{}
	for member := range strings.FieldsSeq(members) {
		field, kind, _ := strings.Cut(member, ":")
		kind, optional := strings.CutSuffix(kind, "*")
		fields[field] = apiservercel.NewDeclField(field, known[kind], !optional, nil, nil)
	}
	return apiservercel.NewObjectType(name, fields)
}

// A Condition is a compiled expression. It is safe for concurrent use.
type Condition struct {
	text    string
	program celgo.Program
}

// Compile compiles an expression, which must return a bool. The function language selects the
// environment: new expressions are limited to the current language, while stored expressions may
// use functions of a later version of the server.
func Compile(expression string, language func(*environment.EnvSet) *celgo.Env) (Condition, error) {
	envs, err := conditionEnvs()
	if err != nil {
		return Condition{}, err
	}
	env := language(envs)
	ast, issues := env.Compile(expression)
	if issues != nil {
		return Condition{}, errors.New("compilation failed: " + issues.String())
	}
	if !ast.OutputType().IsExactType(celgo.BoolType) {
		return Condition{}, fmt.Errorf("must evaluate to %v but got %v", celgo.BoolType, ast.OutputType())
	}
	program, err := env.Program(ast, celgo.InterruptCheckFrequency(celconfig.CheckFrequency))
	if err != nil {
		return Condition{}, errors.New("program instantiation failed: " + err.Error())
	}
	return Condition{text: expression, program: program}, nil
}

// Set contains the match conditions for a webhook. They are compiled on first use.
type Set struct {
	Conditions []admissionv1.MatchCondition // from the configuration
	compile    sync.Once
	ready      []Condition
	broken     []error // parallel to ready; the error of compiling each condition
}

// Match reports whether all conditions are true. If one is false, it ignores the errors of the
// others.
func (c *Set) Match(ctx context.Context, variables map[string]any) (bool, error) {
	c.compile.Do(func() {
		for _, asked := range c.Conditions {
			ready, err := Compile(asked.Expression, (*environment.EnvSet).StoredExpressionsEnv)
			if err != nil {
				err = fmt.Errorf("compilation error: %w", err)
			}
			c.ready, c.broken = append(c.ready, ready), append(c.broken, err)
		}
	})
	budget := int64(celconfig.RuntimeCELCostBudgetMatchConditions)
	var errs []error
	for i := range c.ready {
		if c.broken[i] != nil {
			errs = append(errs, c.broken[i])
			continue
		}
		result, err := c.ready[i].eval(ctx, variables, &budget)
		switch {
		case errors.Is(err, errOutOfBudget):
			return false, err
		case err != nil:
			errs = append(errs, err)
		case !result:
			return false, nil
		}
	}
	return len(errs) == 0, utilerrors.NewAggregate(errs)
}

var errOutOfBudget = errors.New("validation failed due to running out of cost budget, no further validation rules will be run")

// eval evaluates a condition and subtracts the cost from the budget.
func (c *Condition) eval(ctx context.Context, variables map[string]any, budget *int64) (bool, error) {
	value, details, err := c.program.ContextEval(ctx, variables)
	if details == nil || details.ActualCost() == nil {
		return false, fmt.Errorf("runtime cost could not be calculated for expression: %v, no further expression will be run", c.text)
	}
	cost := *details.ActualCost()
	if cost > math.MaxInt64 || int64(cost) > *budget {
		return false, errOutOfBudget
	}
	*budget -= int64(cost)
	if err != nil {
		return false, fmt.Errorf("expression '%v' resulted in error: %w", c.text, err)
	}
	return value == celvalues.True, nil
}
