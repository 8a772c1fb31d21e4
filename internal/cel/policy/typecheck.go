package policy

// This file checks the expressions of validating policies against the types that the policies
// name. It finds unknown fields and wrong types, such as a comparison of a number with a string.
// These are not errors, because a policy may name several types. They are added to the status of
// the policy, along with the generation that was checked:
//
//	status:
//	  observedGeneration: 1
//	  typeChecking:
//	    expressionWarnings:
//	    - fieldRef: spec.validations[0].expression
//	      warning: "apps/v1, Kind=Deployment: ERROR: <input>:1:13: undefined field 'replica' ..."
//
// In a cluster, this is done by kube-controller-manager. If it also runs, it finds the status up
// to date.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	celgo "github.com/google/cel-go/cel"
	"github.com/tidwall/gjson"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/version"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/library"
	"k8s.io/apiserver/pkg/cel/openapi"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"apilet/internal/cel/celenv"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// maxTypes is the maximum number of types that one rule is checked against.
const maxTypes = 10

// A TypeChecker maintains the status of validating policies.
type TypeChecker struct {
	Store *store.Store     // source of policies
	Types *scheme.Registry // resolves the types in the rules of a policy
	// Schemas returns the OpenAPI schemas of a kind and of all kinds that it refers to, as a JSON
	// object with the schemas by name. root is the name of the kind.
	Schemas func(row *scheme.Resource) (root string, schemas []byte, err error)
	// Write updates the status of the named policy, if the policy still exists.
	Write  func(ctx context.Context, name string, change func(*admissionv1.ValidatingAdmissionPolicy)) error
	Report func(error) // receives the result of each pass
}

// Run checks policies when they have changed. It returns when ctx is done.
func (c *TypeChecker) Run(ctx context.Context) {
	row := c.Types.Lookup(admissionv1.GroupName, "v1", "validatingadmissionpolicies")
	for log := c.Store.Follow(row.Base); ctx.Err() == nil; {
		log.From(c.Store.Revision())
		if err := c.pass(ctx, row); ctx.Err() == nil {
			c.Report(err)
		}
		log.Wait(ctx, time.Time{}, nil)
	}
}

// pass checks all policies whose status has an outdated generation. If one fails, it continues
// with the others.
func (c *TypeChecker) pass(ctx context.Context, row *scheme.Resource) error {
	var stale []*admissionv1.ValidatingAdmissionPolicy
	var err error
	for rec, failed := range c.Store.All(store.Span{Prefix: row.KeyPrefix(""), SkipDamaged: true}) {
		if err = failed; err != nil {
			break
		}
		if gjson.GetBytes(rec.JSON, "metadata.generation").Int() == gjson.GetBytes(rec.JSON, "status.observedGeneration").Int() {
			continue
		}
		if obj, err := row.DecodeStored(rec.JSON); err == nil {
			stale = append(stale, obj.(*admissionv1.ValidatingAdmissionPolicy))
		}
	}
	for _, policy := range stale {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		warnings := c.check(policy)
		err = errors.Join(err, c.Write(ctx, policy.Name, func(now *admissionv1.ValidatingAdmissionPolicy) {
			if now.Generation != policy.Generation { // it has changed in the meantime
				return
			}
			now.Status.ObservedGeneration = now.Generation
			now.Status.TypeChecking = &admissionv1.TypeChecking{ExpressionWarnings: warnings}
		}))
	}
	return err
}

// check returns the type errors in the expressions of a policy.
func (c *TypeChecker) check(policy *admissionv1.ValidatingAdmissionPolicy) (warnings []admissionv1.ExpressionWarning) {
	kinds := c.kinds(policy)
	if len(kinds) == 0 {
		return nil
	}
	check := func(at *field.Path, text string) {
		var messages []string
		for _, kind := range kinds {
			result := kind.compiler.CompileCELExpression(&expression{text: text}, typed, environment.StoredExpressions)
			if result.Error != nil {
				messages = append(messages, fmt.Sprintf("%v: %v\n", kind.gvk, result.Error))
			}
		}
		if len(messages) > 0 {
			warnings = append(warnings, admissionv1.ExpressionWarning{FieldRef: at.String(), Warning: strings.Join(messages, "\n")})
		}
	}
	for i, v := range policy.Spec.Validations {
		at := field.NewPath("spec", "validations").Index(i)
		check(at.Child("expression"), v.Expression)
		if v.MessageExpression != "" {
			check(at.Child("messageExpression"), v.MessageExpression)
		}
	}
	return warnings
}

// ---- Types

// checkedKind is a kind named by a policy, together with a compiler for objects of that kind.
type checkedKind struct {
	gvk      schema.GroupVersionKind
	compiler *plugincel.CompositedCompiler
}

// kinds returns the sorted kinds that the rules of a policy name without wildcards.
func (c *TypeChecker) kinds(policy *admissionv1.ValidatingAdmissionPolicy) (found []checkedKind) {
	rows := map[schema.GroupVersionKind]*scheme.Resource{}
	if policy.Spec.MatchConstraints == nil {
		return nil
	}
	for _, rule := range policy.Spec.MatchConstraints.ResourceRules {
		if slices.Contains(rule.APIGroups, "*") || slices.Contains(rule.APIVersions, "*") {
			continue
		}
		c.addNamedRows(&rule.Rule, rows)
	}
	params, hasParams := c.paramType(policy)
	for gvk, row := range rows {
		object := c.declared(row)
		if object == nil {
			continue
		}
		compiler, err := typedCompiler(object, params, hasParams)
		if err != nil {
			continue
		}
		for _, v := range policy.Spec.Variables {
			compiler.CompileAndStoreVariable(&expression{name: v.Name, text: v.Expression, types: variableTypes}, typed, environment.StoredExpressions)
		}
		found = append(found, checkedKind{gvk, compiler})
	}
	slices.SortFunc(found, func(a, b checkedKind) int { return strings.Compare(orderOf(a.gvk), orderOf(b.gvk)) })
	return found
}

func orderOf(gvk schema.GroupVersionKind) string {
	return gvk.Group + "\x00" + gvk.Version + "\x00" + gvk.Kind
}

// addNamedRows adds the rows named by a rule, up to maxTypes.
func (c *TypeChecker) addNamedRows(rule *admissionv1.Rule, rows map[schema.GroupVersionKind]*scheme.Resource) {
	count := 0
	for _, group := range slices.Sorted(slices.Values(rule.APIGroups)) {
		for _, version := range slices.Sorted(slices.Values(rule.APIVersions)) {
			for _, plural := range slices.Sorted(slices.Values(rule.Resources)) {
				row := c.Types.Lookup(group, version, plural)
				if row == nil || count == maxTypes {
					continue
				}
				rows[row.GroupVersionKind()] = row
				count++
			}
		}
	}
}

// paramType returns the type of params. It is nil if the type is unknown. declared is false if the
// policy has no paramKind.
func (c *TypeChecker) paramType(policy *admissionv1.ValidatingAdmissionPolicy) (params *apiservercel.DeclType, declared bool) {
	kind := policy.Spec.ParamKind
	if kind == nil {
		return nil, false
	}
	if row := rowOfKind(c.Types, schema.FromAPIVersionAndKind(kind.APIVersion, kind.Kind)); row != nil {
		params = c.declared(row)
	}
	return params, true
}

// declared returns the CEL type of a kind, or nil if it has no schema.
func (c *TypeChecker) declared(row *scheme.Resource) *apiservercel.DeclType {
	root, text, err := c.Schemas(row)
	if err != nil {
		return nil
	}
	var schemas map[string]*spec.Schema
	if err := json.Unmarshal(text, &schemas); err != nil || schemas[root] == nil {
		return nil
	}
	whole := resolve(schemas, map[string]bool{root: true}, schemas[root])
	declared := common.SchemaDeclType(&openapi.Schema{Schema: whole}, true)
	if declared == nil {
		return nil
	}
	return declared.MaybeAssignTypeName(strings.ReplaceAll(row.APIVersion(), "/", ".") + "." + row.Kind)
}

// resolve replaces all references in a schema by the referenced schemas. A recursive reference
// becomes an object without properties. above contains the names of the enclosing schemas.
func resolve(schemas map[string]*spec.Schema, above map[string]bool, s *spec.Schema) *spec.Schema {
	if name := referred(s); name != "" {
		if above[name] || schemas[name] == nil {
			return &spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}}}
		}
		above[name] = true
		defer delete(above, name)
		s = schemas[name]
	}
	out := *s
	if s.Properties != nil {
		out.Properties = make(map[string]spec.Schema, len(s.Properties))
		for name, property := range s.Properties {
			out.Properties[name] = *resolve(schemas, above, &property)
		}
	}
	if more := s.AdditionalProperties; more != nil && more.Schema != nil {
		out.AdditionalProperties = &spec.SchemaOrBool{Allows: more.Allows, Schema: resolve(schemas, above, more.Schema)}
	}
	if s.Items != nil && s.Items.Schema != nil {
		out.Items = &spec.SchemaOrArray{Schema: resolve(schemas, above, s.Items.Schema)}
	}
	return &out
}

// referred returns the name that a schema refers to, directly or by allOf, which is used to add a
// description.
func referred(s *spec.Schema) string {
	if ref := s.Ref.String(); ref != "" {
		return strings.TrimPrefix(ref, "#/components/schemas/")
	}
	for i := range s.AllOf {
		if name := referred(&s.AllOf[i]); name != "" {
			return name
		}
	}
	return ""
}

// ---- Compilers with types

// typed is ignored by typed compilers, because their variables are declared when the compiler is
// created.
var typed plugincel.OptionalVariableDeclarations

// typedCompiler returns a compiler in which object, oldObject and params have the given types.
func typedCompiler(object, params *apiservercel.DeclType, hasParams bool) (*plugincel.CompositedCompiler, error) {
	namespace, request := plugincel.BuildNamespaceType(), plugincel.BuildRequestType()
	types := []*apiservercel.DeclType{namespace, request, object}
	options := []celgo.EnvOption{
		celgo.Variable(plugincel.NamespaceVarName, namespace.CelType()), celgo.Variable(plugincel.RequestVarName, request.CelType()),
		celgo.Variable(plugincel.ObjectVarName, object.CelType()), celgo.Variable(plugincel.OldObjectVarName, object.CelType()),
		celgo.Variable(plugincel.AuthorizerVarName, library.AuthorizerType),
	}
	if hasParams {
		kind := celgo.DynType
		if params != nil {
			types, kind = append(types, params), params.CelType()
		}
		options = append(options, celgo.Variable(plugincel.ParamsVarName, kind))
	}
	env, err := celenv.Base().Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0), EnvOptions: options, DeclTypes: types})
	if err != nil {
		return nil, err
	}
	compiler, err := plugincel.NewCompositedCompilerForTypeChecking(env)
	if err != nil {
		return nil, err
	}
	compiler.Compiler = typeCheckCompiler{compiler}
	return compiler, nil
}

// typeCheckCompiler checks types without creating programs. It accepts any result type.
type typeCheckCompiler struct{ scope *plugincel.CompositedCompiler }

func (c typeCheckCompiler) CompileCELExpression(e plugincel.ExpressionAccessor, _ plugincel.OptionalVariableDeclarations, mode environment.Type) plugincel.CompilationResult {
	env, err := c.scope.Env(mode)
	if err != nil {
		return plugincel.CompilationResult{ExpressionAccessor: e, Error: &apiservercel.Error{Type: apiservercel.ErrorTypeInternal, Detail: err.Error()}}
	}
	ast, issues := env.Compile(e.GetExpression())
	if issues != nil {
		return plugincel.CompilationResult{ExpressionAccessor: e, Error: &apiservercel.Error{Type: apiservercel.ErrorTypeInvalid, Detail: issues.String()}}
	}
	return plugincel.CompilationResult{ExpressionAccessor: e, OutputType: ast.OutputType()}
}
