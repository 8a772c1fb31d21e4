// Package definitions validates CRDs. The rules and messages are the same as in kube-apiserver
// (k8s.io/apiextensions-apiserver, pkg/apis/apiextensions/validation/validation.go), in the same
// order. It uses the internal form of a CRD, because the messages contain its paths. The internal
// form moves the common parts of all versions to the top: if a CRD has one version, or identical
// versions, the schema is in spec.validation and not in spec.versions[0].schema:
//
//	spec.validation.openAPIV3Schema.properties[a].type: Required value: must not be empty for specified object fields
//
// A schema is validated in three passes. First, the packages of Kubernetes check whether it is
// structural and whether the default values are valid. Then this package visits all nested
// schemas and rejects the features of OpenAPI that custom resources do not support. If there are
// no errors, it compiles the CEL rules and estimates their cost. The cost of a rule is the
// maximum cost of one run multiplied by the maximum number of runs for one object:
//
//	items: {maxItems: 10, x-kubernetes-validations: [A]}     10 × A
//	items: {x-kubernetes-validations: [A]}                   the number of smallest items that fit into a request × A
//
// As in Kubernetes, an update may keep errors of the old CRD (see allowances).
//
//	errs := definitions.ValidateCreate(ctx, crd)      // nil if the definition is valid
//	errs = definitions.ValidateUpdate(ctx, crd, old)
//
// The code is similar to the validation of the built-in types (validation.Checker). Invariants:
// The functions do not modify the CRDs and do not use any other state. They stop compiling rules
// when the response cannot hold more errors.
package definitions

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	celgo "github.com/google/cel-go/cel"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	celmodel "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/api/equality"
	metavalidation "k8s.io/apimachinery/pkg/api/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"apilet/internal/apierror"
	"apilet/internal/cel/celenv"
	"apilet/internal/kinds/validation"
)

const (
	maxRuleCost       = 10_000_000  // limit of one expression
	maxRulesCost      = 100_000_000 // limit of all expressions of a schema
	maxSelectable     = 8
	namedExpensive    = 4 // number of the most expensive rules to report if the total is too high
	maxDeprecationLen = 256
)

// Error messages list these values in this order.
var (
	definitionScopes = []string{"Cluster", "Namespaced"}
	reviewVersions   = []string{"v1", "v1beta1"}
	converters       = []string{"None", "Webhook"}
	printedTypes     = []string{"boolean", "date", "integer", "number", "string"}
	printedFormats   = []string{"byte", "date", "date-time", "double", "float", "int32", "int64", "password"}
	schemaTypes      = []string{"array", "boolean", "integer", "number", "object", "string"}
	mapTypes         = []string{"atomic", "granular"}
	listTypes        = []string{"atomic", "set", "map"}
	ruleReasons      = []string{"FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"}
	besideStatus     = []string{"Description", "Type", "Format", "Title", "Maximum", "ExclusiveMaximum", "Minimum", "ExclusiveMinimum", "MaxLength",
		"MinLength", "Pattern", "MaxItems", "MinItems", "UniqueItems", "MultipleOf", "Required", "Items", "Properties", "ExternalDocs", "Example",
		// allowed at the root of a schema if status is a subresource, by Go names
		"XPreserveUnknownFields", "XValidations"}
)

// A set is a set of strings.
type set map[string]bool

// A checker collects validation errors for the CRD.
type checker struct {
	*validation.Checker
	allowances
	structural bool             // schemas must be structural
	left       *apierror.Budget // remaining space in the response for errors in rules
}

// ValidateCreate returns the errors of a new CRD, including its metadata. It stops checking
// default values by CEL rules when ctx ends.
func ValidateCreate(ctx context.Context, crd *apiextensions.CustomResourceDefinition) field.ErrorList {
	c := checker{Checker: &validation.Checker{}, allowances: allowances{badCA: true}, left: new(apierror.NewBudget())}
	c.Add(metavalidation.ValidateObjectMeta(&crd.ObjectMeta, false, func(name string, prefix bool) []string {
		messages := metavalidation.NameIsDNSSubdomain(name, prefix)
		if name != crd.Spec.Names.Plural+"."+crd.Spec.Group {
			messages = append(messages, `must be spec.names.plural+"."+spec.group`)
		}
		return messages
	}, field.NewPath("metadata"))...)
	c.spec(ctx, field.NewPath("spec"), &crd.Spec)
	c.rest(crd, nil)
	return c.Errs
}

// ValidateUpdate validates an update of the CRD old.
func ValidateUpdate(ctx context.Context, crd, old *apiextensions.CustomResourceDefinition) field.ErrorList {
	c := checker{Checker: &validation.Checker{}, allowances: lenienceFor(crd, old), left: new(apierror.NewBudget())}
	c.Add(metavalidation.ValidateObjectMetaUpdate(&crd.ObjectMeta, &old.ObjectMeta, field.NewPath("metadata"))...)
	p := field.NewPath("spec")
	c.spec(ctx, p, &crd.Spec)
	if apiextensions.IsCRDConditionTrue(old, apiextensions.Established) { // objects may be stored by these
		c.Immutable(p, "scope", crd.Spec.Scope, old.Spec.Scope)
		c.Immutable(p.Child("names"), "kind", crd.Spec.Names.Kind, old.Spec.Names.Kind)
	}
	c.Immutable(p, "group", crd.Spec.Group, old.Spec.Group)
	c.Immutable(p.Child("names"), "plural", crd.Spec.Names.Plural, old.Spec.Names.Plural)
	c.rest(crd, old)
	return c.Errs
}

// ValidateStatusUpdate validates an update of the status of the CRD old.
func ValidateStatusUpdate(crd, old *apiextensions.CustomResourceDefinition) field.ErrorList {
	c := checker{Checker: &validation.Checker{}}
	c.Add(metavalidation.ValidateObjectMetaUpdate(&crd.ObjectMeta, &old.ObjectMeta, field.NewPath("metadata"))...)
	c.names(field.NewPath("status", "acceptedNames"), &crd.Status.AcceptedNames)
	return c.Errs
}

// ---- What an update may leave wrong

// allowances is used to ignore errors that are already in the old CRD. If new rules are added to
// Kubernetes, existing CRDs can still be updated.
type allowances struct {
	noSchema, oddTypes, notStructural, unpruned bool
	// allow sets with items that cannot be compared, and maps with keys that may be missing
	looseSets, looseKeys bool
	oddReviews, badCA    bool
	// versions with the same schema as before; the rules are not limited in cost
	sameSchema set
	// versions with too many selectable fields in the old CRD; "" means all versions
	manySelectable set
	storedExpressions
}

// storedExpressions has the expressions of the old CRD. They may use features that Kubernetes
// supports but does not yet allow in new expressions.
type storedExpressions struct{ rules, messages set }

func (e storedExpressions) RuleEnv(envs *environment.EnvSet, text string) *celgo.Env {
	return e.env(envs, e.rules[text])
}

func (e storedExpressions) MessageExpressionEnv(envs *environment.EnvSet, text string) *celgo.Env {
	return e.env(envs, e.messages[text])
}

func (storedExpressions) env(envs *environment.EnvSet, stored bool) *celgo.Env {
	if stored {
		return envs.StoredExpressionsEnv()
	}
	return envs.NewExpressionsEnv()
}

func lenienceFor(crd, old *apiextensions.CustomResourceDefinition) allowances {
	l := allowances{sameSchema: set{}, manySelectable: set{}, storedExpressions: storedExpressions{set{}, set{}}}
	spec := &old.Spec
	l.noSchema = !hasRootSchema(spec.Validation) && slices.ContainsFunc(spec.Versions, lacksSchema)
	l.oddReviews = spec.Conversion != nil && len(spec.Conversion.ConversionReviewVersions) > 0 &&
		!slices.ContainsFunc(spec.Conversion.ConversionReviewVersions, isReviewVersion)
	l.badCA = !apiextensions.IsCRDConditionTrue(old, apiextensions.Established) || spec.Conversion != nil &&
		spec.Conversion.WebhookClientConfig != nil && caProblem(spec.Conversion.WebhookClientConfig.CABundle) != nil
	for root := range RootSchemas(spec) {
		structural, err := structuralschema.NewStructural(root)
		l.notStructural = l.notStructural || err != nil || len(structuralschema.ValidateStructural(nil, structural)) > 0
		l.unpruned = l.unpruned || hasUnprunedDefaults(structural, err)
		for s := range AllSchemas(root) {
			l.recordOld(s)
		}
	}
	now, before := indexVersions(&crd.Spec), indexVersions(spec)
	for i := range crd.Spec.Versions {
		l.compare(now, before, &crd.Spec.Versions[i])
	}
	l.manySelectable[""] = len(spec.SelectableFields) > maxSelectable && equality.Semantic.DeepEqual(crd.Spec.SelectableFields, spec.SelectableFields)
	return l
}

// recordOld records the errors and expressions of a schema in the old CRD.
func (l *allowances) recordOld(s *apiextensions.JSONSchemaProps) {
	l.oddTypes = l.oddTypes || s.Type != "" && !slices.Contains(schemaTypes, s.Type)
	keys, sets := schemaChecker{Checker: &validation.Checker{}}, schemaChecker{Checker: &validation.Checker{}}
	keys.keysOfItems(nil, s)
	sets.itemsOfSet(nil, s)
	l.looseKeys = l.looseKeys || len(keys.Errs) > 0
	l.looseSets = l.looseSets || len(sets.Errs) > 0
	for _, rule := range s.XValidations {
		l.rules[rule.Rule] = true
		if rule.MessageExpression != "" {
			l.messages[rule.MessageExpression] = true
		}
	}
}

// A versionIndex finds a version by name, because it takes linear time to compare all versions.
type versionIndex struct {
	spec       *apiextensions.CustomResourceDefinitionSpec
	perVersion bool // the schemas are in the versions
	byName     map[string]*apiextensions.CustomResourceDefinitionVersion
}

func indexVersions(spec *apiextensions.CustomResourceDefinitionSpec) *versionIndex {
	x := &versionIndex{spec, apiextensions.HasPerVersionSchema(spec.Versions), map[string]*apiextensions.CustomResourceDefinitionVersion{}}
	for i := range spec.Versions {
		if v := &spec.Versions[i]; x.byName[v.Name] == nil {
			x.byName[v.Name] = v
		}
	}
	return x
}

// schema returns the schema of a version. ok is false if the version does not exist, or if there
// are schemas both at the top and in versions.
func (x *versionIndex) schema(name string) (schema *apiextensions.CustomResourceValidation, ok bool) {
	if !x.perVersion {
		return x.spec.Validation, true
	}
	v := x.byName[name]
	if x.spec.Validation != nil || v == nil {
		return nil, false
	}
	return v.Schema, true
}

// compare records whether the version has changed.
func (l *allowances) compare(now, before *versionIndex, v *apiextensions.CustomResourceDefinitionVersion) {
	schema, ok := now.schema(v.Name)
	oldSchema, okBefore := before.schema(v.Name)
	l.sameSchema[v.Name] = ok && okBefore && equality.Semantic.DeepEqual(schema, oldSchema)
	if was := before.byName[v.Name]; was != nil && len(was.SelectableFields) > maxSelectable &&
		equality.Semantic.DeepEqual(v.SelectableFields, was.SelectableFields) {
		l.manySelectable[v.Name] = true
	}
}

// hasUnprunedDefaults reports whether a default contains unknown fields. It returns false if the
// schema is not structural.
func hasUnprunedDefaults(s *structuralschema.Structural, err error) bool {
	if err != nil || len(structuralschema.ValidateStructural(nil, s)) > 0 {
		return false
	}
	pruned := s.DeepCopy()
	return defaulting.PruneDefaults(pruned) == nil && !reflect.DeepEqual(s, pruned)
}

// RootSchemas returns the root schemas of the CRD.
func RootSchemas(spec *apiextensions.CustomResourceDefinitionSpec) iter.Seq[*apiextensions.JSONSchemaProps] {
	return func(yield func(*apiextensions.JSONSchemaProps) bool) {
		if hasRootSchema(spec.Validation) && !yield(spec.Validation.OpenAPIV3Schema) {
			return
		}
		for _, v := range spec.Versions {
			if !lacksSchema(v) && !yield(v.Schema.OpenAPIV3Schema) {
				return
			}
		}
	}
}

func hasRootSchema(v *apiextensions.CustomResourceValidation) bool {
	return v != nil && v.OpenAPIV3Schema != nil
}

func lacksSchema(v apiextensions.CustomResourceDefinitionVersion) bool {
	return !hasRootSchema(v.Schema)
}

// AllSchemas returns a schema and all schemas within it.
func AllSchemas(s *apiextensions.JSONSchemaProps) iter.Seq[*apiextensions.JSONSchemaProps] {
	return func(yield func(*apiextensions.JSONSchemaProps) bool) { eachSchema(s, yield) }
}

func eachSchema(s *apiextensions.JSONSchemaProps, yield func(*apiextensions.JSONSchemaProps) bool) bool {
	if s == nil {
		return true
	}
	if !yield(s) {
		return false
	}
	within := []*apiextensions.JSONSchemaProps{s.Not}
	lists := [][]apiextensions.JSONSchemaProps{s.AllOf, s.AnyOf, s.OneOf}
	if s.Items != nil {
		within, lists = append(within, s.Items.Schema), append(lists, s.Items.JSONSchemas)
	}
	for _, more := range []*apiextensions.JSONSchemaPropsOrBool{s.AdditionalProperties, s.AdditionalItems} {
		if more != nil {
			within = append(within, more.Schema)
		}
	}
	for _, list := range lists {
		for i := range list {
			within = append(within, &list[i])
		}
	}
	for _, named := range []map[string]apiextensions.JSONSchemaProps{s.Properties, s.PatternProperties, s.Definitions} {
		for _, one := range named {
			within = append(within, &one)
		}
	}
	for _, one := range s.Dependencies {
		within = append(within, one.Schema)
	}
	return !slices.ContainsFunc(within, func(one *apiextensions.JSONSchemaProps) bool { return !eachSchema(one, yield) })
}

func anySchema(spec *apiextensions.CustomResourceDefinitionSpec, is func(*apiextensions.JSONSchemaProps) bool) bool {
	for root := range RootSchemas(spec) {
		for s := range AllSchemas(root) {
			if is(s) {
				return true
			}
		}
	}
	return false
}

// ---- The CRD, schemas excluded

func (c checker) spec(ctx context.Context, p *field.Path, spec *apiextensions.CustomResourceDefinitionSpec) {
	c.group(p, spec.Group)
	c.RequiredOneOf(p, "scope", string(spec.Scope), definitionScopes)
	preserves := spec.PreserveUnknownFields != nil && *spec.PreserveUnknownFields
	c.requireSchemas(p, spec, preserves)
	hasDefaults := anySchema(spec, func(s *apiextensions.JSONSchemaProps) bool { return s.Default != nil })
	if hasDefaults && preserves {
		c.Invalid(p, "preserveUnknownFields", true, "must be false in order to use defaults in the schema")
	}
	c.structural = !c.notStructural || !preserves || hasDefaults || anySchema(spec, hasExtensions)
	perVersion := apiextensions.HasPerVersionSubresources(spec.Versions)
	for i := range spec.Versions {
		subresources := spec.Subresources
		if perVersion {
			subresources = spec.Versions[i].Subresources
		}
		c.version(ctx, p.Child("versions").Index(i), hasStatus(subresources), &spec.Versions[i])
	}
	c.versions(p, spec)
	c.RequireAll(p.Child("names"), "plural", spec.Names.Plural, "singular", spec.Names.Singular, "kind", spec.Names.Kind, "listKind", spec.Names.ListKind)
	c.names(p.Child("names"), &spec.Names)
	statusAnywhere := hasStatus(spec.Subresources) ||
		slices.ContainsFunc(spec.Versions, func(v apiextensions.CustomResourceDefinitionVersion) bool { return hasStatus(v.Subresources) })
	c.schema(ctx, p.Child("validation"), versionSchema{spec.Validation, spec.Version, statusAnywhere})
	c.subresources(p.Child("subresources"), spec.Subresources)
	c.columns(p.Child("additionalPrinterColumns"), spec.AdditionalPrinterColumns)
	if len(spec.SelectableFields) > 0 && spec.Validation == nil {
		c.Invalid(p, "selectableFields", "", "may only be set when validations.schema is included")
	} else if len(spec.SelectableFields) > 0 {
		c.selectable(p, spec.SelectableFields, spec.Validation, "")
	}
	if spec.Conversion != nil && spec.Conversion.Strategy != apiextensions.NoneConverter && preserves {
		c.Invalid(p, "conversion.strategy", string(spec.Conversion.Strategy), "must be None if spec.preserveUnknownFields is true")
	}
	c.conversion(p.Child("conversion"), spec.Conversion)
}

func (c checker) group(p *field.Path, group string) {
	if group != "" && len(utilvalidation.IsDNS1123Subdomain(group)) == 0 && !strings.Contains(group, ".") {
		c.Invalid(p, "group", group, "should be a domain with at least one dot")
		return
	}
	c.RequiredFormat(p, "group", group, joined(utilvalidation.IsDNS1123Subdomain))
}

// joined returns a format that joins the messages.
func joined(f validation.Format) validation.Format {
	return func(s string) []string {
		messages := f(s)
		if len(messages) > 1 {
			return []string{strings.Join(messages, ",")}
		}
		return messages
	}
}

// requireSchemas checks that all versions have a schema, or only the versions that need it.
func (c checker) requireSchemas(p *field.Path, spec *apiextensions.CustomResourceDefinitionSpec, preserves bool) {
	if hasRootSchema(spec.Validation) {
		return
	}
	for i, v := range spec.Versions {
		at := p.Child("versions").Index(i).Child("schema")
		switch {
		case !c.noSchema:
			c.Need(at, "openAPIV3Schema", !lacksSchema(v), "")
		case v.Served && !preserves:
			c.Need(at, "openAPIV3Schema", !lacksSchema(v), "because otherwise all fields are pruned")
		}
	}
}

func hasExtensions(s *apiextensions.JSONSchemaProps) bool {
	return s.XEmbeddedResource || s.XPreserveUnknownFields != nil || s.XIntOrString || len(s.XListMapKeys) > 0 || s.XListType != nil ||
		len(s.XValidations) > 0
}

func hasStatus(s *apiextensions.CustomResourceSubresources) bool { return s != nil && s.Status != nil }

// versions checks the list of versions. It is not an error if none of the versions is served.
func (c checker) versions(p *field.Path, spec *apiextensions.CustomResourceDefinitionSpec) {
	names, stored := set{}, 0
	for _, v := range spec.Versions {
		names[v.Name] = true
		if v.Storage {
			stored++
		}
	}
	if len(names) < len(spec.Versions) {
		c.Invalid(p, "versions", spec.Versions, "must contain unique version names")
	}
	if stored != 1 {
		c.Invalid(p, "versions", spec.Versions, "must have exactly one version marked as storage version")
	}
	c.OptionalFormat(p, "version", spec.Version, joined(utilvalidation.IsDNS1035Label))
}

func (c checker) version(ctx context.Context, p *field.Path, status bool, v *apiextensions.CustomResourceDefinitionVersion) {
	c.Format(p, "name", v.Name, joined(utilvalidation.IsDNS1035Label))
	c.deprecation(p, v)
	c.schema(ctx, p.Child("schema"), versionSchema{v.Schema, v.Name, status})
	c.subresources(p.Child("subresources"), v.Subresources)
	c.columns(p.Child("additionalPrinterColumns"), v.AdditionalPrinterColumns)
	// Kubernetes has the same message, although the opposite is meant
	if len(v.SelectableFields) > 0 && lacksSchema(*v) {
		c.Invalid(p, "selectableFields", "", "may only be set when `version.schema.openAPIV3Schema` is not included")
	} else if len(v.SelectableFields) > 0 {
		c.selectable(p, v.SelectableFields, v.Schema, v.Name)
	}
}

func (c checker) deprecation(p *field.Path, v *apiextensions.CustomResourceDefinitionVersion) {
	if v.DeprecationWarning == nil {
		return
	}
	text, refuse := *v.DeprecationWarning, func(detail string) { c.Invalid(p, "deprecationWarning", *v.DeprecationWarning, detail) }
	if !v.Deprecated {
		refuse("can only be set for deprecated versions")
		return
	}
	if len(text) > maxDeprecationLen {
		refuse(fmt.Sprintf("must be <= %d characters long", maxDeprecationLen))
	}
	if text == "" {
		refuse("must not be an empty string")
	}
	if i := strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
		refuse(fmt.Sprintf("must only contain printable UTF-8 characters; non-printable character found at index %d", i))
	}
	if !utf8.ValidString(text) {
		refuse("must only contain printable UTF-8 characters")
	}
}

// names checks the names that are set.
func (c checker) names(p *field.Path, names *apiextensions.CustomResourceDefinitionNames) {
	c.OptionalFormat(p, "plural", names.Plural, joined(utilvalidation.IsDNS1035Label))
	c.OptionalFormat(p, "singular", names.Singular, joined(utilvalidation.IsDNS1035Label))
	c.OptionalFormat(p, "kind", names.Kind, isKindName)
	c.OptionalFormat(p, "listKind", names.ListKind, isKindName)
	for i, name := range names.ShortNames {
		c.Format(p.Child("shortNames").Index(i), "", name, joined(utilvalidation.IsDNS1035Label))
	}
	if names.Kind != "" && names.Kind == names.ListKind {
		c.Invalid(p, "listKind", names.ListKind, "kind and listKind may not be the same")
	}
	for i, name := range names.Categories {
		c.Format(p.Child("categories").Index(i), "", name, joined(utilvalidation.IsDNS1035Label))
	}
}

func isKindName(s string) []string {
	messages := joined(utilvalidation.IsDNS1035Label)(strings.ToLower(s))
	for i := range messages {
		messages[i] = "may have mixed case, but should otherwise match: " + messages[i]
	}
	return messages
}

func (c checker) subresources(p *field.Path, s *apiextensions.CustomResourceSubresources) {
	if s == nil || s.Scale == nil {
		return
	}
	c.RequiredFormat(p, "scale.specReplicasPath", s.Scale.SpecReplicasPath, isPathUnder("should be a json path under .spec", ".spec."))
	c.RequiredFormat(p, "scale.statusReplicasPath", s.Scale.StatusReplicasPath, isPathUnder("should be a json path under .status", ".status."))
	if s.Scale.LabelSelectorPath != nil {
		under := isPathUnder("should be a json path under either .spec or .status", ".spec.", ".status.")
		c.OptionalFormat(p, "scale.labelSelectorPath", *s.Scale.LabelSelectorPath, under)
	}
}

func isPathUnder(detail string, prefixes ...string) validation.Format {
	return func(s string) []string {
		if messages := isSimplePath(s); len(messages) > 0 {
			return messages
		}
		if !slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(s, prefix) }) {
			return []string{detail}
		}
		return nil
	}
}

func isSimplePath(s string) []string {
	if !strings.HasPrefix(s, ".") {
		return []string{"must be a simple json path starting with ."}
	}
	return nil
}

func (c checker) columns(p *field.Path, columns []apiextensions.CustomResourceColumnDefinition) {
	for i, col := range columns {
		at := p.Index(i)
		c.RequireAll(at, "name", col.Name)
		detail := "must be one of " + strings.Join(printedTypes, ",")
		if col.Type == "" {
			c.Required(at, "type", detail)
		} else if !slices.Contains(printedTypes, col.Type) {
			c.Invalid(at, "type", col.Type, detail)
		}
		if col.Format != "" && !slices.Contains(printedFormats, col.Format) {
			c.Invalid(at, "format", col.Format, "must be one of "+strings.Join(printedFormats, ","))
		}
		c.RequiredFormat(at, "JSONPath", col.JSONPath, isSimplePath)
	}
}

// selectable checks the selectable fields of the given version. If version is "", the fields
// apply to all versions.
func (c checker) selectable(p *field.Path, fields []apiextensions.SelectableField, v *apiextensions.CustomResourceValidation, version string) {
	schema, err := structuralschema.NewStructural(v.OpenAPIV3Schema)
	if err != nil {
		c.Invalid(p, "schema.openAPIV3Schema", "", err.Error())
	}
	seen := set{}
	for i, f := range fields {
		at := p.Child("selectableFields").Index(i)
		if f.JSONPath == "" {
			c.Required(at, "jsonPath", "")
			continue
		}
		path, found, err := followPath(f.JSONPath, schema, cel.WithFieldPathAllowArrayNotation(false))
		if err != nil {
			c.Invalid(at, "jsonPath", f.JSONPath, fmt.Sprintf("is an invalid path: %v", err))
			continue
		}
		if path == nil { // the schema is missing
			c.Invalid(at, "jsonPath", f.JSONPath, "is an invalid path: does not refer to a valid field")
			continue
		}
		if path.Root().String() == "metadata" {
			c.Invalid(at, "jsonPath", f.JSONPath, "must not point to fields in metadata")
		}
		if found == nil || !slices.Contains([]string{"string", "boolean", "integer"}, found.Type) {
			c.Invalid(at, "jsonPath", f.JSONPath, "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.")
		}
		if seen[path.String()] {
			c.Add(field.Duplicate(at.Child("jsonPath"), f.JSONPath))
		}
		seen[path.String()] = true
	}
	if len(seen) > maxSelectable && !c.manySelectable[version] {
		c.Add(field.TooMany(p.Child("selectableFields"), len(seen), maxSelectable))
	}
}

// followPath returns the field at a path. Kubernetes' parser panics if the path leads through a
// value without a schema, which followPath returns as an error.
func followPath(path string, s *structuralschema.Structural, options ...cel.ValidFieldPathOption) (at *field.Path, found *structuralschema.Structural, err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("does not refer to a valid field")
		}
	}()
	return cel.ValidFieldPath(path, s, options...)
}

func (c checker) conversion(p *field.Path, conversion *apiextensions.CustomResourceConversion) {
	if conversion == nil {
		return
	}
	c.RequiredOneOf(p, "strategy", string(conversion.Strategy), converters)
	client, reviews := conversion.WebhookClientConfig, conversion.ConversionReviewVersions
	if conversion.Strategy != apiextensions.WebhookConverter {
		c.Forbid(p, "webhookClientConfig", client != nil, "should not be set when strategy is not set to Webhook")
		c.Forbid(p, "conversionReviewVersions", len(reviews) > 0, "should not be set when strategy is not set to Webhook")
		return
	}
	if client == nil {
		c.Required(p, "webhookClientConfig", "required when strategy is set to Webhook")
	} else {
		c.webhook(p.Child("webhookClientConfig"), client)
	}
	c.reviews(p.Child("conversionReviewVersions"), reviews)
}

func (c checker) webhook(p *field.Path, client *apiextensions.WebhookClientConfig) {
	switch service := client.Service; {
	case (client.URL == nil) == (service == nil):
		c.Required(p, "", "exactly one of url or service is required")
	case client.URL != nil:
		c.WebhookURL(p.Child("url"), *client.URL)
	default:
		c.WebhookService(p.Child("service"), &admissionv1.ServiceReference{Namespace: service.Namespace, Name: service.Name, Path: service.Path, Port: &service.Port})
	}
	if err := caProblem(client.CABundle); err != nil && !c.badCA {
		c.Invalid(p, "caBundle", client.CABundle, "unable to load root certificates: "+err.Error())
	}
}

// caProblem returns an error if a bundle has no usable certificate. An empty bundle means the
// system's certificates.
func caProblem(bundle []byte) error {
	if len(bundle) == 0 || x509.NewCertPool().AppendCertsFromPEM(bundle) {
		return nil
	}
	for len(bundle) > 0 {
		var block *pem.Block
		if block, bundle = pem.Decode(bundle); block == nil {
			return errors.New("unable to parse bytes as PEM block")
		}
		if block.Type != "CERTIFICATE" || len(block.Headers) > 0 {
			continue
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Errorf("failed to parse certificate: %w", err)
		}
	}
	return errors.New("no valid certificate authority data seen")
}

func isReviewVersion(version string) bool { return slices.Contains(reviewVersions, version) }

func (c checker) reviews(p *field.Path, versions []string) {
	c.Need(p, "", len(versions) > 0, "")
	seen := set{}
	for i, version := range versions {
		if seen[version] {
			c.Invalid(p.Index(i), "", version, "duplicate version")
			continue
		}
		seen[version] = true
		c.Format(p.Index(i), "", version, utilvalidation.IsDNS1035Label)
	}
	if len(versions) > 0 && !c.oddReviews && !slices.ContainsFunc(versions, isReviewVersion) {
		c.Invalid(p, "", versions, "must include at least one of "+strings.Join(reviewVersions, ", "))
	}
}

// rest checks everything after the spec. old is nil for a new CRD.
func (c checker) rest(crd, old *apiextensions.CustomResourceDefinition) {
	p := field.NewPath("status")
	c.names(p.Child("acceptedNames"), &crd.Status.AcceptedNames)
	c.storedVersions(p.Child("storedVersions"), crd.Status.StoredVersions, crd.Spec.Versions)
	c.approval(field.NewPath("metadata", "annotations").Key(apiextensionsv1.KubeAPIApprovedAnnotation), crd, old)
	preserved := old != nil && old.Spec.PreserveUnknownFields != nil && *old.Spec.PreserveUnknownFields
	if preserves := crd.Spec.PreserveUnknownFields; preserves != nil && *preserves && !preserved {
		c.Invalid(field.NewPath("spec"), "preserveUnknownFields", true,
			"cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead")
	}
}

// storedVersions rejects the removal of versions in which objects may be stored.
func (c checker) storedVersions(p *field.Path, stored []string, versions []apiextensions.CustomResourceDefinitionVersion) {
	if len(stored) == 0 {
		c.Invalid(p, "", stored, "must have at least one stored version")
		return
	}
	names, last := set{}, map[string]int{} // last has the last index of each stored version
	for i, name := range stored {
		last[name] = i
	}
	for _, v := range versions {
		names[v.Name] = true
		if _, found := last[v.Name]; v.Storage && !found {
			c.Invalid(p, "", stored, "must have the storage version "+v.Name)
		}
	}
	for i, name := range stored {
		if !names[name] && last[name] == i {
			c.Invalid(p.Index(i), "", name, fmt.Sprintf("missing from spec.versions; %[1]s was previously a storage version, and must remain in spec.versions "+
				"until a storage migration ensures no data remains persisted in %[1]s and removes %[1]s from status.storedVersions", name))
		}
	}
}

// approval checks the annotation if the group is reserved for Kubernetes and if the state has
// changed.
func (c checker) approval(p *field.Path, crd, old *apiextensions.CustomResourceDefinition) {
	if !apihelpers.IsProtectedCommunityGroup(crd.Spec.Group) {
		return
	}
	state, reason := apihelpers.GetAPIApprovalState(crd.Annotations)
	if old != nil {
		if before, _ := apihelpers.GetAPIApprovalState(old.Annotations); before == state {
			return
		}
	}
	switch state {
	case apihelpers.APIApproved, apihelpers.APIApprovalBypassed:
	case apihelpers.APIApprovalMissing:
		c.Required(p, "", reason)
	default:
		c.Invalid(p, "", crd.Annotations[apiextensionsv1.KubeAPIApprovedAnnotation], reason)
	}
}

// ---- A schema as a whole

// A versionSchema is either the schema of the version or the common schema. In the latter case
// version is the first version.
type versionSchema struct {
	*apiextensions.CustomResourceValidation
	version   string
	hasStatus bool // as a subresource
}

func (c checker) schema(ctx context.Context, p *field.Path, v versionSchema) {
	if v.CustomResourceValidation == nil {
		return
	}
	s := &schemaChecker{Checker: &validation.Checker{}, allowances: &c.allowances, left: c.left, unlimited: c.sameSchema[v.version]}
	if root := v.OpenAPIV3Schema; root != nil {
		at := schemaContext{path: p.Child("openAPIV3Schema"), root: true}
		if v.hasStatus {
			s.besideStatus(p, root)
		}
		s.Forbid(p, "openAPIV3Schema.nullable", root.Nullable, "nullable cannot be true at the root")
		var shapeless error
		if c.structural {
			at.scope, shapeless = s.structure(ctx, at.path, root)
		}
		s.schema(at, root)
		s.Add(s.ruleErrs...)
		if len(s.Errs) == 0 && shapeless != nil { // otherwise it would repeat the other errors
			s.Invalid(at.path, "", "", shapeless.Error())
		}
		s.limit(at.path)
	}
	if len(s.Errs) == 0 {
		if _, _, err := schemavalidation.NewSchemaValidator(v.OpenAPIV3Schema); err != nil {
			s.Invalid(p, "", "", fmt.Sprintf("error building validator: %v", err))
		}
	}
	c.Add(s.Errs...)
}

// A schemaChecker collects validation errors for a schema, including the nested schemas.
type schemaChecker struct {
	*validation.Checker
	*allowances
	ruleErrs  field.ErrorList  // errors in CEL rules, reported last
	left      *apierror.Budget // remaining space in the response for these errors, for all versions
	unlimited bool             // the cost of a rule is not limited
	total     uint64           // cost of all rules
	expensive []ruleCost       // the most expensive rules, sorted; at most namedExpensive
}

type ruleCost struct {
	path *field.Path
	cost uint64
}

// besideStatus rejects fields that are not allowed at the root if the status subresource is
// enabled, because the schema must be split.
func (s *schemaChecker) besideStatus(p *field.Path, root *apiextensions.JSONSchemaProps) {
	v := reflect.ValueOf(root).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		switch {
		case v.Field(i).IsZero():
		case name == "Type" && root.Type != "object":
			s.Invalid(p, "openAPIV3Schema.type", root.Type, `only "object" is allowed as the type at the root of the schema if the status subresource is enabled`)
			return
		case !slices.Contains(besideStatus, name):
			s.Invalid(p, "openAPIV3Schema", *root, fmt.Sprintf("only %v fields are allowed at the root of the schema if the status subresource is enabled", besideStatus))
			return
		}
	}
}

// structure checks whether the schema is structural and whether the default values are valid.
// Otherwise scope is nil, and CEL rules are not compiled. shapeless is the error if the schema
// has no structural form.
func (s *schemaChecker) structure(ctx context.Context, p *field.Path, root *apiextensions.JSONSchemaProps) (scope *ruleScope, shapeless error) {
	structural, err := structuralschema.NewStructural(root)
	if err != nil {
		return nil, err
	}
	errs := structuralschema.ValidateStructural(p, structural)
	if len(errs) == 0 {
		errs, err = defaulting.ValidateDefaults(ctx, p, structural, true, !s.unpruned)
	}
	if err != nil {
		errs = field.ErrorList{field.Invalid(p, "", err.Error())}
	}
	if s.Add(errs...); len(errs) > 0 {
		return nil, nil
	}
	return &ruleScope{schema: root, ruled: len(root.XValidations) > 0, times: new(uint64(1))}, nil
}

// ---- One schema

// A place describes where in the CRD a schema is used.
type schemaContext struct {
	path      *field.Path
	root      bool
	metadata  bool   // inside of an object's apiVersion, kind or metadata
	noDefault string // if not "", defaults are not allowed here for this reason
	// Values within this path cannot be matched with their old values, so oldSelf is not allowed.
	// May be nil.
	unrelated *field.Path
	scope     *ruleScope // nil if CEL rules are not compiled here
}

// within returns the place of a nested schema.
func (at schemaContext) within(path *field.Path, scope *ruleScope) schemaContext {
	at.path, at.scope, at.root = path, scope, false
	return at
}

// unrelate is called if the values cannot be matched with the old values.
func (at *schemaContext) unrelate(p *field.Path) {
	if at.unrelated == nil {
		at.unrelated = p
	}
}

func (s *schemaChecker) schema(at schemaContext, schema *apiextensions.JSONSchemaProps) {
	if schema == nil {
		return
	}
	before := len(s.Errs)
	s.supported(at, schema)
	s.inside(at, schema)
	s.extensions(at.path, schema)
	for i := range schema.XValidations {
		s.ruleForm(at.path.Child("x-kubernetes-validations").Index(i), schema, &schema.XValidations[i])
	}
	// do not compile rules in a schema with errors, since they would cause misleading errors
	if len(schema.XValidations) > 0 && len(s.Errs) == before && at.scope != nil {
		s.compile(at, schema)
	}
}

// supported rejects features of OpenAPI or JSON schema that custom resources do not support.
func (s *schemaChecker) supported(at schemaContext, schema *apiextensions.JSONSchemaProps) {
	p := at.path
	if schema.Type != "" && !s.oddTypes {
		s.OneOf(p, "type", schema.Type, schemaTypes)
	}
	s.Forbid(p, "default", schema.Default != nil && at.noDefault != "", "must not be set "+at.noDefault)
	s.Forbid(p, "id", schema.ID != "", "id is not supported")
	s.Forbid(p, "additionalItems", schema.AdditionalItems != nil, "additionalItems is not supported")
	s.Forbid(p, "patternProperties", len(schema.PatternProperties) > 0, "patternProperties is not supported")
	s.Forbid(p, "definitions", len(schema.Definitions) > 0, "definitions is not supported")
	s.Forbid(p, "dependencies", schema.Dependencies != nil, "dependencies is not supported")
	s.Forbid(p, "$ref", schema.Ref != nil, "$ref is not supported")
	s.Forbid(p, "type", schema.Type == "null", "type cannot be set to null, use nullable as an alternative")
	s.Forbid(p, "items", schema.Items != nil && len(schema.Items.JSONSchemas) > 0, "items must be a schema object and not an array")
	s.Forbid(p, "x-kubernetes-embedded-resource", at.metadata && schema.XEmbeddedResource, "must not be used inside of resource meta")
	s.Forbid(p, "uniqueItems", schema.UniqueItems, "uniqueItems cannot be set to true since the runtime complexity becomes quadratic")
}

// inside checks the nested schemas. Rules are only compiled if the schema is used for a field, a
// value or an item.
func (s *schemaChecker) inside(at schemaContext, schema *apiextensions.JSONSchemaProps) {
	s.values(at, schema)
	s.fields(at, schema)
	s.schema(at.within(at.path.Child("not"), nil), schema.Not)
	s.each(at, "allOf", schema.AllOf)
	s.each(at, "oneOf", schema.OneOf)
	s.each(at, "anyOf", schema.AnyOf)
	for _, name := range slices.Sorted(maps.Keys(schema.Definitions)) {
		s.schema(at.within(at.path.Child("definitions").Key(name), nil), new(schema.Definitions[name]))
	}
	s.items(at, schema)
	for _, name := range slices.Sorted(maps.Keys(schema.Dependencies)) {
		s.schema(at.within(at.path.Child("dependencies").Key(name), nil), schema.Dependencies[name].Schema)
	}
}

func (s *schemaChecker) each(at schemaContext, name string, schemas []apiextensions.JSONSchemaProps) {
	for i := range schemas {
		s.schema(at.within(at.path.Child(name).Index(i), nil), &schemas[i])
	}
}

func (s *schemaChecker) values(at schemaContext, schema *apiextensions.JSONSchemaProps) {
	more := schema.AdditionalProperties
	if more == nil {
		return
	}
	// The schema either has named properties or additionalProperties. If both were allowed,
	// unknown fields could not be ignored.
	s.Forbid(at.path, "additionalProperties", len(schema.Properties) > 0 && (!more.Allows || more.Schema != nil),
		"additionalProperties and properties are mutual exclusive")
	value := at.within(at.path.Child("additionalProperties"), at.scope.within(more.Schema, typedSchema.values))
	if at.metadata {
		value.noDefault = "inside additionalProperties applying to object metadata"
	}
	s.schema(value, more.Schema)
}

func (s *schemaChecker) fields(at schemaContext, schema *apiextensions.JSONSchemaProps) {
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		of := schema.Properties[name]
		one := at.within(at.path.Child("properties").Key(name), at.scope.within(&of, func(t typedSchema) *typedSchema { return t.fieldNamed(name) }))
		if !cel.MapIsCorrelatable(schema.XMapType) {
			one.unrelate(at.path)
		}
		if (at.root || schema.XEmbeddedResource) && (name == "metadata" || name == "kind" || name == "apiVersion") {
			one.metadata = true
			if at.root {
				one.noDefault = "in top-level " + name
			}
		}
		s.schema(one, &of)
	}
}

func (s *schemaChecker) items(at schemaContext, schema *apiextensions.JSONSchemaProps) {
	if schema.Items == nil {
		return
	}
	// only the items of a map can be matched with the old items
	if schema.XListType == nil || *schema.XListType != "map" {
		at.unrelate(at.path)
	}
	p := at.path.Child("items")
	s.schema(at.within(p, at.scope.within(schema.Items.Schema, typedSchema.items)), schema.Items.Schema)
	for i := range schema.Items.JSONSchemas {
		one := &schema.Items.JSONSchemas[i]
		s.schema(at.within(p.Index(i), at.scope.within(one, typedSchema.items)), one)
	}
}

// extensions checks the x-kubernetes fields, except for the rules.
func (s *schemaChecker) extensions(p *field.Path, schema *apiextensions.JSONSchemaProps) {
	if keep := schema.XPreserveUnknownFields; keep != nil && !*keep {
		s.Invalid(p, "x-kubernetes-preserve-unknown-fields", false, "must be true or undefined")
	}
	if schema.XMapType != nil {
		s.ofType(p, schema.Type, "object", "must be object if x-kubernetes-map-type is specified")
		s.OneOf(p, "x-kubernetes-map-type", *schema.XMapType, mapTypes)
	}
	kind := ""
	if schema.XListType != nil {
		kind = *schema.XListType
		s.ofType(p, schema.Type, "array", "must be array if x-kubernetes-list-type is specified")
		if schema.Type == "array" && !s.looseSets {
			s.itemsOfSet(p, schema)
		}
		s.OneOf(p, "x-kubernetes-list-type", kind, listTypes)
	}
	switch {
	case kind == "map":
		s.listMap(p, schema)
	case len(schema.XListMapKeys) == 0:
	case schema.XListType == nil:
		s.Required(p, "x-kubernetes-list-type", "must be map if x-kubernetes-list-map-keys is non-empty")
	default:
		s.Invalid(p, "x-kubernetes-list-type", kind, "must be map if x-kubernetes-list-map-keys is non-empty")
	}
	if !s.looseKeys {
		s.keysOfItems(p, schema)
	}
}

func (s *schemaChecker) ofType(p *field.Path, got, want, detail string) {
	switch got {
	case want:
	case "":
		s.Required(p, "type", detail)
	default:
		s.Invalid(p, "type", got, detail)
	}
}

// itemsOfSet checks that the items of a set are atomic. Lists are atomic by default, but maps are
// not.
func (s *schemaChecker) itemsOfSet(p *field.Path, schema *apiextensions.JSONSchemaProps) {
	if schema.XListType == nil || *schema.XListType != "set" || schema.Items == nil || schema.Items.Schema == nil {
		return
	}
	const detail = "must be atomic as item of a list with x-kubernetes-list-type=set"
	item := schema.Items.Schema
	if item.Type == "array" && item.XListType != nil && *item.XListType != "atomic" {
		s.Invalid(p.Child("items"), "x-kubernetes-list-type", item.XListType, detail)
	}
	if item.Type == "object" && (item.XMapType == nil || *item.XMapType != "atomic") {
		// Kubernetes also reports the list type here
		s.Invalid(p.Child("items"), "x-kubernetes-map-type", item.XListType, detail)
	}
}

// listMap checks the keys of a list of type map.
func (s *schemaChecker) listMap(p *field.Path, schema *apiextensions.JSONSchemaProps) {
	s.Need(p, "x-kubernetes-list-map-keys", len(schema.XListMapKeys) > 0, "must not be empty if x-kubernetes-list-type is map")
	switch {
	case schema.Items == nil:
		s.Required(p, "items", "must have a schema if x-kubernetes-list-type is map")
		return
	case schema.Items.Schema == nil:
		s.Invalid(p, "items", schema.Items, "must only have a single schema if x-kubernetes-list-type is map")
		return
	case schema.Items.Schema.Type != "object":
		s.Invalid(p.Child("items"), "type", schema.Items.Schema.Type, "must be object if parent array's x-kubernetes-list-type is map")
		return
	}
	seen := set{}
	for _, key := range schema.XListMapKeys {
		of, ok := schema.Items.Schema.Properties[key]
		if !ok {
			s.Invalid(p, "x-kubernetes-list-map-keys", schema.XListMapKeys, "entries must all be names of item properties")
		}
		if of.Type == "array" || of.Type == "object" { // the error shows the item's type
			s.Invalid(p.Child("items", "properties").Key(key), "type", schema.Items.Schema.Type, "must be a scalar type if parent array's x-kubernetes-list-type is map")
		}
		if seen[key] {
			s.Invalid(p, "x-kubernetes-list-map-keys", schema.XListMapKeys, "must not contain duplicate entries")
		}
		seen[key] = true
	}
}

// keysOfItems checks that the items are not nullable and that the keys cannot be missing.
func (s *schemaChecker) keysOfItems(p *field.Path, schema *apiextensions.JSONSchemaProps) {
	if schema.XListType == nil || schema.Items == nil || schema.Items.Schema == nil || *schema.XListType != "set" && *schema.XListType != "map" {
		return
	}
	item := schema.Items.Schema
	s.Forbid(p.Child("items"), "nullable", item.Nullable, "cannot be nullable when x-kubernetes-list-type is "+*schema.XListType)
	if *schema.XListType != "map" {
		return
	}
	required := set{}
	for _, name := range item.Required {
		required[name] = true
	}
	for _, key := range schema.XListMapKeys {
		of, ok := item.Properties[key]
		if !ok {
			continue
		}
		at := p.Child("items", "properties").Key(key)
		s.Need(at, "default", of.Default != nil || required[key],
			"this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property")
		s.Forbid(at, "nullable", of.Nullable, "this property is in x-kubernetes-list-map-keys, so it cannot be nullable")
	}
}

// ---- CEL rules

// ruleForm checks a rule without compiling it.
func (s *schemaChecker) ruleForm(p *field.Path, schema *apiextensions.JSONSchemaProps, rule *apiextensions.ValidationRule) {
	const lineBreaks = "\n\r"
	text, message := strings.TrimSpace(rule.Rule), strings.TrimSpace(rule.Message)
	switch {
	case text == "":
		s.Required(p, "rule", "rule is not specified")
	case message == "" && rule.Message != "":
		s.Invalid(p, "message", rule.Message, "must be non-empty if specified")
	case strings.ContainsAny(message, lineBreaks):
		s.Invalid(p, "message", rule.Message, "must not contain line breaks")
	case strings.ContainsAny(text, lineBreaks) && message == "":
		s.Required(p, "message", "message must be specified if rule contains line breaks")
	}
	s.Need(p, "messageExpression", rule.MessageExpression == "" || strings.TrimSpace(rule.MessageExpression) != "", "messageExpression must be non-empty if specified")
	if rule.Reason != nil {
		s.OneOf(p, "reason", string(*rule.Reason), ruleReasons)
	}
	if rule.FieldPath == "" {
		return
	}
	if strings.TrimSpace(rule.FieldPath) == "" {
		s.Invalid(p, "fieldPath", rule.FieldPath, "must be non-empty if specified")
	}
	if strings.ContainsAny(rule.FieldPath, lineBreaks) {
		s.Invalid(p, "fieldPath", rule.FieldPath, "must not contain line breaks")
	}
	if structural, err := structuralschema.NewStructural(schema); err == nil {
		if _, _, err := followPath(rule.FieldPath, structural); err != nil {
			s.Invalid(p, "fieldPath", rule.FieldPath, "must be a valid path")
		}
	}
}

// compile compiles the rules of a schema.
func (s *schemaChecker) compile(at schemaContext, schema *apiextensions.JSONSchemaProps) {
	// the error would not be reported, and the compiler may need half a second for it
	if s.left.Exhausted() {
		return
	}
	p := at.path.Child("x-kubernetes-validations")
	typed, err := at.scope.types()
	if err != nil {
		s.addError(field.InternalError(p, fmt.Errorf("internal error: failed to construct type information for x-kubernetes-validations rules: %w", err)))
		return
	}
	part := *typed.schema
	for from := 0; from < len(typed.schema.XValidations) && !s.left.Exhausted(); from += len(part.XValidations) {
		part.XValidations = nextRules(typed.schema.XValidations[from:])
		results, err := cel.Compile(&part, typed.decl, celconfig.PerCallLimit, celenv.Base(), s.storedExpressions)
		if err != nil {
			s.addError(field.InternalError(p, err))
			return
		}
		for i := range results {
			s.rule(at, p.Index(from+i), &schema.XValidations[from+i], &results[i])
		}
	}
}

// nextRules returns the rules for the next call of the compiler, which are limited to some tens of
// kilobytes.
func nextRules(rules apiextensionsv1.ValidationRules) apiextensionsv1.ValidationRules {
	length := 0
	for i := range rules {
		if length += len(rules[i].Rule) + len(rules[i].MessageExpression); length > 32<<10 {
			return rules[:i+1]
		}
	}
	return rules
}

func (s *schemaChecker) addError(err *field.Error) {
	s.left.Take(err.Detail)
	s.ruleErrs = append(s.ruleErrs, err)
}

// rule checks a compiled rule.
func (s *schemaChecker) rule(at schemaContext, p *field.Path, rule *apiextensions.ValidationRule, result *cel.CompilationResult) {
	runs := result.MaxCardinality
	if at.scope.times != nil {
		runs = *at.scope.times
	}
	s.cost(p.Child("rule"), "estimated rule cost", product(result.MaxCost, runs))
	if err := result.Error; err != nil && err.Type == apiservercel.ErrorTypeRequired {
		s.addError(field.Required(p.Child("rule"), err.Detail))
	} else if err != nil {
		s.addError(field.Invalid(p.Child("rule"), *rule, err.Detail))
	}
	if err := result.MessageExpressionError; err != nil {
		s.addError(field.Invalid(p.Child("messageExpression"), *rule, err.Detail))
	} else if result.MessageExpression != nil {
		s.cost(p.Child("messageExpression"), "estimated messageExpression cost", result.MessageExpressionMaxCost)
	}
	switch {
	case result.UsesOldSelf && at.unrelated != nil:
		s.addError(field.Invalid(p.Child("rule"), rule.Rule, fmt.Sprintf("oldSelf cannot be used on the uncorrelatable portion of the schema within %v", at.unrelated)))
	case !result.UsesOldSelf && rule.OptionalOldSelf != nil:
		s.addError(field.Invalid(p.Child("optionalOldSelf"), *rule.OptionalOldSelf, "may not be set if oldSelf is not used in rule"))
	}
}

// cost adds the cost of an expression to the total and rejects an expression that is too
// expensive.
func (s *schemaChecker) cost(p *field.Path, what string, cost uint64) {
	if cost > maxRuleCost && !s.unlimited {
		s.addError(field.Forbidden(p, tooExpensive(what, cost, maxRuleCost)))
	}
	if s.total += cost; s.total < cost {
		s.total = math.MaxUint64
	}
	if cost < maxRulesCost/100 {
		return
	}
	s.expensive = append(s.expensive, ruleCost{p, cost})
	slices.SortStableFunc(s.expensive, func(a, b ruleCost) int { return cmp.Compare(b.cost, a.cost) })
	s.expensive = s.expensive[:min(len(s.expensive), namedExpensive)]
}

// limit returns an error if the total cost is too high.
func (s *schemaChecker) limit(p *field.Path) {
	if s.total <= maxRulesCost {
		return
	}
	for _, rule := range s.expensive {
		s.Forbid(rule.path, "", true, "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema")
	}
	s.Forbid(p, "", true, tooExpensive("x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema", s.total, maxRulesCost))
}

func tooExpensive(what string, cost, limit uint64) string {
	times := float64(cost) / float64(limit)
	factor := fmt.Sprintf("%.1fx", times)
	switch {
	case times > 100: // the number is not useful if the loops are nested and not limited
		factor = "more than 100x"
	case times < 1.5: // avoids "1.0x"
		factor = fmt.Sprintf("%fx", times)
	}
	return what + " exceeds budget by factor of " + factor +
		" (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
}

// product returns a*b, or the largest uint64 if the product overflows.
func product(a, b uint64) uint64 {
	if a != 0 && math.MaxUint64/a < b {
		return math.MaxUint64
	}
	return a * b
}

// A ruleScope contains the types that are needed to compile the rules of a schema. The types are
// built only once, for the outermost schema with rules. Nested schemas find their types in them.
type ruleScope struct {
	schema *apiextensions.JSONSchemaProps
	parent *ruleScope // nil at the root
	step   func(typedSchema) *typedSchema
	ruled  bool    // whether there are rules in this schema or in a parent
	times  *uint64 // maximum number of values in an object, or nil if it is not limited
	typed  *typedSchema
	err    error
}

// within returns the scope of a nested schema. The types are found by step. A nil scope has only
// nil scopes.
func (sc *ruleScope) within(schema *apiextensions.JSONSchemaProps, step func(typedSchema) *typedSchema) *ruleScope {
	if sc == nil || schema == nil {
		return nil
	}
	inner := &ruleScope{schema: schema, parent: sc, step: step, ruled: sc.ruled || len(schema.XValidations) > 0}
	if most := mostValues(sc.schema); sc.times != nil && most != nil {
		inner.times = new(product(*sc.times, *most))
	}
	return inner
}

// mostValues returns the maximum number of values of each kind in one value of the schema, or nil
// if it is unlimited.
func mostValues(s *apiextensions.JSONSchemaProps) *uint64 {
	limit := new(int64(1))
	switch {
	case s.Type == "object" && s.AdditionalProperties != nil:
		limit = s.MaxProperties
	case s.Type == "array":
		limit = s.MaxItems
	}
	if limit == nil {
		return nil
	}
	return new(uint64(max(*limit, 0)))
}

// types returns nil if there are no rules in this schema or in a parent.
func (sc *ruleScope) types() (*typedSchema, error) {
	if sc == nil || !sc.ruled {
		return nil, nil
	}
	if sc.typed == nil && sc.err == nil {
		sc.typed, sc.err = sc.find()
	}
	return sc.typed, sc.err
}

func (sc *ruleScope) find() (*typedSchema, error) {
	outer, err := sc.parent.types()
	if err != nil {
		return nil, err
	}
	if outer != nil {
		if typed := sc.step(*outer); typed != nil {
			return typed, nil
		}
	}
	structural, err := structuralschema.NewStructural(sc.schema)
	if err != nil {
		return nil, err
	}
	decl := celmodel.SchemaDeclType(structural, sc.parent == nil || sc.schema.XEmbeddedResource)
	if decl == nil {
		return nil, errors.New("unable to convert structural schema to CEL declarations")
	}
	return &typedSchema{structural, decl}, nil
}

// A typedSchema is a structural schema with its CEL type. Its methods return nested schemas, or
// nil if CEL cannot access them.
type typedSchema struct {
	schema *structuralschema.Structural
	decl   *apiservercel.DeclType
}

func (t typedSchema) items() *typedSchema {
	if t.schema.Items == nil {
		return nil
	}
	return &typedSchema{t.schema.Items, t.decl.ElemType}
}

func (t typedSchema) values() *typedSchema {
	if t.schema.AdditionalProperties == nil {
		return nil
	}
	return &typedSchema{t.schema.AdditionalProperties.Structural, t.decl.ElemType}
}

func (t typedSchema) fieldNamed(name string) *typedSchema {
	escaped, ok := apiservercel.Escape(name)
	if !ok {
		return nil
	}
	of, ok := t.decl.Fields[escaped]
	if !ok {
		return nil
	}
	return &typedSchema{new(t.schema.Properties[name]), of.Type}
}
