package crd

// This file serves custom resources. It implements the functions of their scheme.CustomStrategy.
//
//	body ──▶ shape: prune, coerce, default ──▶ validation: schema, lists, CEL ──▶ toStorage ──▶ stored
//	stored after the schema ──▶ unchanged             otherwise ──▶ complete: default, prune ──▶ response
//
// A schema is compiled when it is needed, and the compiled schema is removed from memory when it
// is idle. HTTPRoute of the Gateway API takes half a MiB, and several more after its CEL rules
// are compiled.
//
// This file calls the packages of Kubernetes for pruning, defaulting and validation in the right order.

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidwall/gjson"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	celcommon "k8s.io/apiserver/pkg/cel/common"
	"k8s.io/client-go/util/jsonpath"
	"k8s.io/kube-openapi/pkg/validation/spec"
	kjson "sigs.k8s.io/json"

	"apilet/internal/apierror"
	"apilet/internal/cel/celenv"
	"apilet/internal/kinds/strategy"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

const schemaIdle = 5 * time.Minute // compiled schemas that are not used for this long are removed

// ---- Schemas

// schemas loads the schemas of a CRD from the store and compiles them on demand.
type schemas struct {
	st     *store.Store
	key    string
	at     atomic.Int64 // if not 0, the CRD is read at this revision
	spec   string       // digest of the CRD's spec
	stored string       // digest of the storage version's schema
	// The revision at which the CRD received this schema. Newer objects conform to it.
	since int64
	used  atomic.Int64 // time of the last use of a compiled schema, in Unix nanoseconds

	mu       sync.Mutex                // guards the fields below and serializes compiling
	compiled map[string]*compiled      // by version
	columns  map[string][]customColumn // by version; not part of compiled, because a list only needs the columns
}

// A compiled schema belongs to one version. It is immutable except for rules and kept.
type compiled struct {
	props  *apiextensions.JSONSchemaProps
	schema *structuralschema.Structural

	mu    sync.Mutex // guards rules
	rules *rules
	kept  sync.Map // used by other packages to cache values for the schema
}

// rules validate objects.
type rules struct {
	// for the object and for the status; status is nil if the schema does not have a status
	whole, status *spec.Schema
	cel           *cel.Validator // nil if there are no expressions
}

// ErrNoSuchVersion is returned if the type is removed during a request.
var ErrNoSuchVersion = apierror.New(404, metav1.StatusReasonNotFound, "the server could not find the requested resource")

func (s *schemas) definition() (store.Record, error) {
	if at := s.at.Load(); at != 0 {
		return s.st.GetAt(s.key, at)
	}
	return s.st.Get(s.key)
}

// load reads one version from the CRD in the store. "" is the storage version.
func (s *schemas) load(name string) (gjson.Result, error) {
	rec, err := s.definition()
	if err != nil {
		return gjson.Result{}, ErrNoSuchVersion
	}
	for _, v := range gjson.GetBytes(rec.JSON, "spec.versions").Array() {
		if v.Get("name").String() == name || name == "" && v.Get("storage").Bool() {
			return v, nil
		}
	}
	return gjson.Result{}, ErrNoSuchVersion
}

// version returns one compiled version. "" is the storage version. It returns an error if the CRD
// has just been deleted.
func (s *schemas) version(name string) (*compiled, error) {
	s.used.Store(time.Now().UnixNano())
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.compiled[name]; c != nil {
		return c, nil
	}
	v, err := s.load(name)
	if err != nil {
		return nil, err
	}
	c, err := compileSchema([]byte(v.Get("schema").Raw))
	if err != nil {
		return nil, err
	}
	if s.compiled == nil {
		s.compiled = map[string]*compiled{}
	}
	s.compiled[name] = c
	return c, nil
}

func compileSchema(raw []byte) (*compiled, error) {
	var asked apiextensionsv1.CustomResourceValidation
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &asked); err != nil {
		return nil, err
	}
	var internal apiextensions.CustomResourceValidation
	if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(&asked, &internal, nil); err != nil {
		return nil, err
	}
	s, err := structuralschema.NewStructural(internal.OpenAPIV3Schema)
	if err != nil {
		return nil, err
	}
	// its default values are shared with props
	c := &compiled{props: internal.OpenAPIV3Schema, schema: s.DeepCopy()}
	return c, defaulting.PruneDefaults(c.schema)
}

// validators compiles the rules on the first call.
func (c *compiled) validators() (*rules, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rules != nil {
		return c.rules, nil
	}
	_, whole, err := schemavalidation.NewSchemaValidator(c.props)
	if err != nil {
		return nil, err
	}
	celenv.Base() // bounds the functions in the library's environment
	r := &rules{whole: whole, cel: cel.NewValidator(c.schema, true, celconfig.PerCallLimit)}
	if c.props != nil {
		if status, ok := c.props.Properties["status"]; ok {
			if _, r.status, err = schemavalidation.NewSchemaValidator(&status); err != nil {
				return nil, err
			}
		}
	}
	c.rules = r
	return r, nil
}

// readAt is called if the CRD is the same at another revision. The later revision is used,
// because the store keeps it longer.
func (s *schemas) readAt(rev int64) {
	for at := s.at.Load(); at < rev && !s.at.CompareAndSwap(at, rev); at = s.at.Load() {
	}
}

// forget releases compiled schemas that have been idle.
func (s *schemas) forget(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(time.Unix(0, s.used.Load())) > schemaIdle {
		s.compiled, s.columns = nil, nil
	}
}

// isComplete reports whether a stored object conforms to the current schema. It also returns true
// for an object that was prepared before a change of the schema and committed after it. Such an
// object may lack a new default value until the next write.
func (s *schemas) isComplete(stored []byte) (bool, error) {
	return gjson.GetBytes(stored, "metadata.resourceVersion").Int() > s.since, nil
}

// toStorage converts an object of another version to the storage version.
func (s *schemas) toStorage(u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	c, err := s.version("")
	if err != nil || isBookmark(u) {
		return u, err
	}
	u = u.DeepCopy()
	c.prune(u)
	defaulting.Default(u.Object, c.schema)
	return u, nil
}

// isBookmark reports whether u is the bookmark of a watch, which only has a revision.
func isBookmark(u *unstructured.Unstructured) bool { return u.GetUID() == "" && u.GetName() == "" }

// pruneUnknown removes unknown fields and returns the paths. It keeps metadata, kind and
// apiVersion.
func (c *compiled) pruneUnknown(u *unstructured.Unstructured) (unknown []string) {
	return pruning.PruneWithOptions(u.Object, c.schema, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
}

// prune is pruneUnknown, but also removes nulls that the schema does not allow.
func (c *compiled) prune(u *unstructured.Unstructured) (unknown []string) {
	unknown = c.pruneUnknown(u)
	defaulting.PruneNonNullableNullsWithoutDefaults(u.Object, c.schema)
	return unknown
}

// pruneAs removes the fields that are unknown to the version. If the CRD lacks the version, it
// removes all fields.
func (s *schemas) pruneAs(version string, u *unstructured.Unstructured, prune func(*compiled, *unstructured.Unstructured) []string) (unknown []string) {
	c, err := s.version(version)
	if err != nil {
		c = &compiled{schema: &structuralschema.Structural{}}
	}
	return prune(c, u)
}

// ---- Objects

// A customStrategy handles the requests to one served version. It is immutable.
type customStrategy struct {
	schemas *schemas
	version string
	res     *scheme.Resource
	status  bool // has the subresource
	scale   *apiextensionsv1.CustomResourceSubresourceScale
}

func (cr *customStrategy) compiled() (*compiled, error) { return cr.schemas.version(cr.version) }

// openAPI returns the version's schema from the CRD.
func (cr *customStrategy) openAPI() (json.RawMessage, error) {
	v, err := cr.schemas.load(cr.version)
	if err != nil {
		return nil, err
	}
	return json.RawMessage(v.Get("schema.openAPIV3Schema").Raw), nil
}

// shape prunes, coerces and defaults the object in the body of a request. It returns the unknown
// fields.
func (cr *customStrategy) shape(u *unstructured.Unstructured) (unknown []error, err error) {
	return cr.shapeWith(u, (*compiled).prune)
}

// shapeApplied is shape for the result of an apply. As in kube-apiserver, it does not remove
// nulls. The managedFields contain the nulls, so validation must reject them if the schema does
// not allow them.
func (cr *customStrategy) shapeApplied(u *unstructured.Unstructured) error {
	_, err := cr.shapeWith(u, (*compiled).pruneUnknown)
	return err
}

func (cr *customStrategy) shapeWith(u *unstructured.Unstructured, prune func(*compiled, *unstructured.Unstructured) []string) (unknown []error, err error) {
	c, err := cr.compiled()
	if err != nil {
		return nil, err
	}
	meta, found, paths, err := objectmeta.GetObjectMetaWithOptions(u.Object, objectmeta.ObjectMetaOptions{ReturnUnknownFieldPaths: true})
	if err != nil {
		return nil, err
	}
	switch gvk := u.GroupVersionKind(); {
	case gvk.GroupKind() != cr.res.GroupKind(): // kube-apiserver does not prune it either
	case gvk.Version != cr.version:
		paths = append(paths, cr.schemas.pruneAs(gvk.Version, u, prune)...)
	default:
		paths = append(paths, prune(c, u)...)
		coerceErr, more := objectmeta.CoerceWithOptions(nil, u.Object, c.schema, false, objectmeta.CoerceOptions{ReturnUnknownFieldPaths: true})
		if coerceErr != nil {
			return nil, coerceErr
		}
		paths = append(paths, more...)
	}
	if !found {
		u.Object["metadata"] = map[string]any{}
	} else if err := objectmeta.SetObjectMeta(u.Object, meta); err != nil {
		return nil, err
	}
	if err := fillDefaults(u.Object, c.schema); err != nil {
		return nil, err
	}
	for _, path := range paths {
		unknown = append(unknown, fmt.Errorf("unknown field %q", path))
	}
	return unknown, nil
}

// complete updates a stored object to the current schema: it sets the default values of the
// storage version and prunes by this version's schema.
func (cr *customStrategy) complete(u *unstructured.Unstructured) error {
	if isBookmark(u) {
		return nil
	}
	stored, err := cr.schemas.version("")
	if err != nil {
		return err
	}
	c, err := cr.compiled()
	if err != nil {
		return err
	}
	defaulting.Default(u.Object, stored.schema)
	c.prune(u)
	return nil
}

// defaults sets default values after an apply.
func (cr *customStrategy) defaults(obj scheme.Object) error {
	c, err := cr.compiled()
	if err != nil { // if the type has just been removed, the write fails later
		return nil
	}
	return fillDefaults(obj.(*unstructured.Unstructured).Object, c.schema)
}

// cache returns a cache for values that other packages derive from the schema. It is released with
// the schema.
func (cr *customStrategy) cache() *sync.Map {
	c, err := cr.compiled()
	if err != nil {
		return new(sync.Map)
	}
	return &c.kept
}

// prepare restores the fields that must not be changed by the request. These are the status, or
// everything except for the status.
func (cr *customStrategy) prepare(obj, old scheme.Object, sub string) scheme.Object {
	u := obj.(*unstructured.Unstructured)
	switch {
	case sub == "status":
		return strategy.RestrictCustomStatus(u, old.(*unstructured.Unstructured))
	case !cr.status:
		return u
	}
	delete(u.Object, "status")
	if old != nil {
		if status, ok := old.(*unstructured.Unstructured).Object["status"]; ok {
			u.Object["status"] = status
		}
	}
	return u
}

// validate validates the metadata, the schema, the scale subresource, embedded objects, the
// uniqueness of list items, and the CEL rules.
func (cr *customStrategy) validate(ctx context.Context, obj, old scheme.Object, sub string) field.ErrorList {
	c, err := cr.compiled()
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	r, err := c.validators()
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	j := &validator{cr: cr, schema: c.schema, rules: r, obj: obj.(*unstructured.Unstructured)}
	switch {
	case old == nil:
		j.create(ctx)
	case sub == "status":
		j.statusChange(old.(*unstructured.Unstructured))
	default:
		j.change(ctx, old.(*unstructured.Unstructured))
	}
	j.expressions(ctx)
	return j.errs
}

// A validator validates one object.
type validator struct {
	cr     *customStrategy
	schema *structuralschema.Structural
	rules  *rules
	obj    *unstructured.Unstructured
	old    map[string]any              // nil for a create
	same   *celcommon.CorrelatedObject // allows an update to keep invalid parts that have not changed
	errs   field.ErrorList
}

func (j *validator) add(errs field.ErrorList) { j.errs = append(j.errs, errs...) }

func (j *validator) create(ctx context.Context) {
	j.add(apivalidation.ValidateObjectMetaAccessor(j.obj, j.cr.res.Namespaced, apivalidation.NameIsDNSSubdomain, field.NewPath("metadata")))
	j.add(schemavalidation.ValidateCustomResource(nil, j.obj.Object, schemaValidator(j.rules.whole)))
	j.scale()
	j.add(objectmeta.Validate(ctx, nil, j.obj.Object, j.schema, false))
	j.add(listtype.ValidateListSetsAndMaps(nil, j.schema, j.obj.Object))
}

// setOld sets the old object of an update.
func (j *validator) setOld(old *unstructured.Unstructured) {
	j.old = old.Object
	j.same = correlate(old.Object, j.obj.Object, j.schema)
	j.add(apivalidation.ValidateObjectMetaAccessorUpdate(j.obj, old, field.NewPath("metadata")))
}

func (j *validator) change(ctx context.Context, old *unstructured.Unstructured) {
	j.setOld(old)
	j.add(schemavalidation.ValidateCustomResourceUpdate(nil, j.obj.Object, old.Object, schemaValidator(j.rules.whole), schemavalidation.WithRatcheting(j.same)))
	j.scale()
	j.add(objectmeta.Validate(ctx, nil, j.obj.Object, j.schema, false))
	j.lists()
}

func (j *validator) statusChange(old *unstructured.Unstructured) {
	j.setOld(old)
	if status, ok := j.obj.Object["status"]; ok {
		j.add(schemavalidation.ValidateCustomResourceUpdate(field.NewPath("status"), status, old.Object["status"], schemaValidator(j.rules.status),
			schemavalidation.WithRatcheting(j.same.Key("status"))))
	}
	j.scaleStatus()
	j.lists()
}

// lists rejects duplicate elements unless there were duplicates in the old object.
func (j *validator) lists() {
	if len(listtype.ValidateListSetsAndMaps(nil, j.schema, j.old)) == 0 {
		j.add(listtype.ValidateListSetsAndMaps(nil, j.schema, j.obj.Object))
	}
}

// expressions evaluates the CEL rules. It does nothing if the object is already known to be
// invalid in a way that affects the rules.
func (j *validator) expressions(ctx context.Context) {
	if j.rules.cel == nil {
		return
	}
	for _, err := range j.errs {
		switch err.Type {
		case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
			j.add(field.ErrorList{field.Invalid(nil, nil,
				"some validation rules were not checked because the object was invalid; correct the existing errors to complete validation")})
			return
		}
	}
	var options []cel.Option
	var old any // a nil map in an any is not nil
	if j.old != nil {
		old, options = j.old, []cel.Option{cel.WithRatcheting(j.same)}
	}
	errs, _ := j.rules.cel.Validate(ctx, nil, j.schema, j.obj.Object, old, celconfig.RuntimeCELCostBudget, options...)
	j.add(errs)
}

// ---- Scale

func (j *validator) scale() {
	if s := j.cr.scale; s != nil {
		j.replicas(s.SpecReplicasPath)
	}
	j.scaleStatus()
}

func (j *validator) scaleStatus() {
	s := j.cr.scale
	if s == nil {
		return
	}
	j.replicas(s.StatusReplicasPath)
	if s.LabelSelectorPath == nil {
		return
	}
	if text, _, err := unstructured.NestedString(j.obj.Object, pathSteps(*s.LabelSelectorPath)...); err != nil {
		j.add(field.ErrorList{field.Invalid(field.NewPath(*s.LabelSelectorPath), text, err.Error())})
	}
}

// replicas checks one of the two counts.
func (j *validator) replicas(path string) {
	n, _, err := unstructured.NestedInt64(j.obj.Object, pathSteps(path)...)
	problem := ""
	switch {
	case err != nil:
		problem = err.Error()
	case n < 0:
		problem = "should be a non-negative integer"
	case n > math.MaxInt32:
		problem = fmt.Sprintf("should be less than or equal to %v", math.MaxInt32)
	default:
		return
	}
	j.add(field.ErrorList{field.Invalid(field.NewPath(path), n, problem)})
}

// pathSteps splits a path like .spec.replicas.
func pathSteps(path string) []string { return strings.Split(strings.TrimPrefix(path, "."), ".") }

// scaleOf returns the values for the Scale. If set is not nil, scaleOf first sets the replica
// count.
func (cr *customStrategy) scaleOf(u *unstructured.Unstructured, set *int32) (scheme.Scalable, error) {
	s := scheme.Scalable{Path: cr.scale.SpecReplicasPath}
	if set != nil {
		if err := unstructured.SetNestedField(u.Object, int64(*set), pathSteps(s.Path)...); err != nil {
			return s, err
		}
	}
	spec, found, err := unstructured.NestedInt64(u.Object, pathSteps(s.Path)...)
	if err != nil {
		return s, err
	}
	if found {
		n := int32(spec)
		s.Replicas = &n
	}
	status, _, err := unstructured.NestedInt64(u.Object, pathSteps(cr.scale.StatusReplicasPath)...)
	if err != nil {
		return s, err
	}
	s.Status = int32(status)
	if cr.scale.LabelSelectorPath != nil {
		s.Selector, _, err = unstructured.NestedString(u.Object, pathSteps(*cr.scale.LabelSelectorPath)...)
	}
	return s, err
}

// ---- Columns

// A customColumn is one of additionalPrinterColumns. path is nil for the name.
type customColumn struct {
	definition metav1.TableColumnDefinition
	path       *jsonpath.JSONPath
	// number of ".." in the path; each visits all descendants of all values found so far
	descents int
	choices  int         // the factor by which unions multiply the values found: [0,0] by two
	mu       *sync.Mutex // a JSONPath keeps state while it searches
}

// columnStepsMax limits the cost of a cell. With two descents in the path, it would take seconds
// to search an object with 900 levels.
const columnStepsMax = 4 << 20

// isAffordable reports whether the path may be evaluated for an object. Most paths have neither
// descents nor unions.
func (c *customColumn) isAffordable(object any) bool {
	if c.descents == 0 && c.choices == 1 {
		return true
	}
	nodes, depth := extent(object, 1)
	steps := float64(nodes) * float64(c.choices)
	for range c.descents {
		steps *= float64(depth)
	}
	return steps <= columnStepsMax
}

// extent returns the number of nested values and the depth.
func extent(value any, level int) (nodes, depth int) {
	nodes, depth = 1, level
	visit := func(inner any) {
		n, d := extent(inner, level+1)
		nodes, depth = nodes+n, max(depth, d)
	}
	switch v := value.(type) {
	case map[string]any:
		for _, member := range v {
			visit(member)
		}
	case []any:
		for _, element := range v {
			visit(element)
		}
	}
	return nodes, depth
}

// choicesIn returns the number of combinations of the alternatives in the brackets, limited to
// columnStepsMax+1.
func choicesIn(path string) int {
	product := 1
	for _, bracket := range strings.Split(path, "[")[1:] {
		inside, _, _ := strings.Cut(bracket, "]")
		product = min(product*(1+strings.Count(inside, ",")), columnStepsMax+1)
	}
	return product
}

func compileColumns(asked []apiextensionsv1.CustomResourceColumnDefinition) []customColumn {
	columns := []customColumn{{definition: metav1.TableColumnDefinition{Name: "Name", Type: "string", Format: "name",
		Description: metav1.ObjectMeta{}.SwaggerDoc()["name"]}}}
	for _, c := range asked {
		path := jsonpath.New(c.Name)
		if path.Parse("{"+c.JSONPath+"}") != nil {
			break // as in kube-apiserver, the remaining columns are dropped
		}
		path.AllowMissingKeys(true)
		columns = append(columns, customColumn{path: path, descents: strings.Count(c.JSONPath, ".."), choices: choicesIn(c.JSONPath), mu: new(sync.Mutex), definition: metav1.TableColumnDefinition{Name: c.Name, Type: c.Type,
			Format: c.Format, Priority: c.Priority,
			Description: cmp.Or(c.Description, "Custom resource definition column (in JSONPath format): "+c.JSONPath)}})
	}
	return columns
}

// printerColumns returns the columns of a version. The first is the name.
func (s *schemas) printerColumns(name string) []customColumn {
	s.used.Store(time.Now().UnixNano())
	s.mu.Lock()
	defer s.mu.Unlock()
	if columns := s.columns[name]; columns != nil {
		return columns
	}
	var asked []apiextensionsv1.CustomResourceColumnDefinition
	if v, err := s.load(name); err != nil || json.Unmarshal([]byte(v.Get("additionalPrinterColumns").Raw), &asked) != nil {
		asked = nil
	}
	if s.columns == nil {
		s.columns = map[string][]customColumn{}
	}
	s.columns[name] = compileColumns(asked)
	return s.columns[name]
}

func (cr *customStrategy) columns() (definitions []metav1.TableColumnDefinition) {
	for _, c := range cr.schemas.printerColumns(cr.version) {
		definitions = append(definitions, c.definition)
	}
	return definitions
}

func (cr *customStrategy) cells(obj scheme.Object, now time.Time) []any {
	cells := []any{obj.GetName()}
	columns := cr.schemas.printerColumns(cr.version)
	for i := range columns[1:] {
		cells = append(cells, columns[1+i].cell(obj.(*unstructured.Unstructured), now))
	}
	return cells
}

// cell returns the first value that the column's path finds. It returns nil if there is no such
// value, if the type is wrong, or if the evaluation would take too long.
func (c *customColumn) cell(u *unstructured.Unstructured, now time.Time) any {
	if !c.isAffordable(u.Object) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	results, err := c.path.FindResults(u.Object)
	if err != nil || len(results) == 0 || len(results[0]) == 0 {
		return nil
	}
	value := results[0][0].Interface()
	if c.definition.Type == "string" {
		var text bytes.Buffer
		if c.path.PrintResults(&text, []reflect.Value{reflect.ValueOf(value)}) != nil {
			return nil
		}
		return text.String()
	}
	return typedCell(c.definition.Type, value, now)
}

func typedCell(kind string, value any, now time.Time) any {
	switch v := value.(type) {
	case int64:
		if kind == "number" {
			return float64(v)
		}
		if kind == "integer" {
			return v
		}
	case float64:
		if kind == "integer" {
			return int64(v)
		}
		if kind == "number" {
			return v
		}
	case bool:
		if kind == "boolean" {
			return v
		}
	case string:
		if kind == "date" {
			return dateCell(v, now)
		}
	}
	return nil
}

// dateCell returns the age of a time.
func dateCell(text string, now time.Time) string {
	var stamp metav1.Time
	switch {
	case stamp.UnmarshalQueryParameter(text) != nil:
		return "<invalid>"
	case stamp.IsZero():
		return "<unknown>"
	}
	return duration.HumanDuration(now.Sub(stamp.Time))
}
