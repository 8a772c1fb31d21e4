package discovery

// This file describes the API in OpenAPI v3: one document per group version, generated from the Go
// types on request and not kept.
//
// kubectl reads these documents for explain, and before it sends anything with create, apply,
// replace or edit: it looks for a PATCH operation of the object's kind with a query parameter
// fieldValidation. Schemas are generated from the Go types by reflection. The methods SwaggerDoc
// and OpenAPIModelName provide the descriptions and the names. A custom resource brings its own
// schema. Reflection cannot see comments, so tables contain the facts that Kubernetes' generator
// reads from them: openapi_enums.txt has the enumerations, openapi_texts.txt the descriptions that
// SwaggerDoc lacks, openapi_markers.go the unions, and scheme/listtypes/listtypes.go the relations
// of list elements and the default values.
//
// The index at /openapi/v3 contains the path of each document with a hash. The hash covers the
// inputs of the document (this program and the resources) and not its bytes, so that the index does
// not require the documents. If a document is requested with its hash, it can be cached for a year.

import (
	"cmp"
	"crypto/sha512"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/limits"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/scheme/listtypes"
)

const openAPIBytes = 1 << 20 // estimated memory for one document

// ServeOpenAPI serves /openapi/v3 and /openapi/v3/{api/v1,apis/group/version}. before is a prefix
// for the paths in the index.
func ServeOpenAPI(reg *scheme.Registry, before string, w http.ResponseWriter, r *http.Request) {
	c := reg.Current.Load()
	path := strings.Trim(strings.TrimPrefix(r.URL.Path, "/openapi/v3"), "/")
	// The index is JSON for every Accept header. client-go sends the header of its other
	// requests, which may accept only protobuf.
	if path == "" {
		doc, _ := json.Marshal(openAPIIndex(c, before))
		w.Header().Set("ETag", etagOf(doc))
		writeOpenAPI(w, r, etagOf(doc), func() ([]byte, error) { return doc, nil })
		return
	}
	if _, err := response.Negotiate(r.Header.Get("Accept")); err != nil {
		w.WriteHeader(http.StatusNotAcceptable) // for example OpenAPI's own protobuf format
		return
	}
	hash, makeDoc := documentAt(c, path)
	if makeDoc == nil {
		w.Header().Set("Cache-Control", "no-cache, private")
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if asked := r.URL.Query().Get("hash"); asked != "" {
		if asked != hash {
			http.Redirect(w, r, before+openAPIPath(path, hash), http.StatusMovedPermanently)
			return
		}
		w.Header().Set("Vary", "Accept")
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", time.Now().AddDate(1, 0, 0).UTC().Format(http.TimeFormat))
	}
	writeOpenAPI(w, r, strconv.Quote(hash), makeDoc)
}

// documentAt returns the hash of the document at a path of the index, and a function that generates
// the document. The function is nil if the document does not exist.
func documentAt(c *scheme.Catalog, path string) (hash string, makeDoc func() ([]byte, error)) {
	if rows := rowsAtPath(c, path); rows != nil {
		return openAPIHash(rows), func() ([]byte, error) { return openAPIDocument(rows) }
	}
	if r, ok := rootAt(c, path); ok {
		return openAPIHash(nil), func() ([]byte, error) { return rootDocument(r) }
	}
	return "", nil
}

// writeOpenAPI sends the document returned by makeDoc. If the ETag matches, it responds with 304
// without calling makeDoc.
func writeOpenAPI(w http.ResponseWriter, r *http.Request, etag string, makeDoc func() ([]byte, error)) {
	header := w.Header()
	header.Set("ETag", etag)
	if header.Get("Cache-Control") == "" {
		header.Set("Cache-Control", "no-cache, private")
	}
	if r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	err := limits.Reserve(r.Context(), w, openAPIBytes)
	var doc []byte
	if err == nil {
		doc, err = makeDoc()
	}
	if err != nil {
		response.Refuse(w, r, err)
		return
	}
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(doc)))
	w.Write(doc)
}

type openAPIPathItem struct {
	ServerRelativeURL string `json:"serverRelativeURL"`
}

// openAPIIndex returns the index of the documents.
func openAPIIndex(c *scheme.Catalog, before string) map[string]map[string]openAPIPathItem {
	paths := map[string]openAPIPathItem{}
	for _, rows := range c.GroupVersions() {
		path := strings.TrimPrefix(groupVersionPath(rows[0]), "/")
		paths[path] = openAPIPathItem{before + openAPIPath(path, openAPIHash(rows))}
	}
	for _, r := range roots(c) {
		paths[r.document] = openAPIPathItem{before + openAPIPath(r.document, openAPIHash(nil))}
	}
	return map[string]map[string]openAPIPathItem{"paths": paths}
}

func openAPIPath(path, hash string) string { return "/openapi/v3/" + path + "?hash=" + hash }

// groupVersionPath returns the path of a resource's group version.
func groupVersionPath(res *scheme.Resource) string {
	if res.Group == "" {
		return "/api/" + res.Version
	}
	return "/apis/" + res.Group + "/" + res.Version
}

func rowsAtPath(c *scheme.Catalog, path string) []*scheme.Resource {
	for _, rows := range c.GroupVersions() {
		if groupVersionPath(rows[0]) == "/"+path {
			return rows
		}
	}
	return nil
}

func openAPIHash(rows []*scheme.Resource) string {
	sum := sha512.New()
	if build, ok := debug.ReadBuildInfo(); ok {
		io.WriteString(sum, build.String())
	}
	for _, res := range rows {
		fmt.Fprintln(sum, res.APIVersion(), res.Plural, res.Kind, res.Namespaced, res.Verbs, res.Subresources, res.SchemaTag)
	}
	return fmt.Sprintf("%X", sum.Sum(nil))
}

// oaSchema is a schema object, with the fields that this server writes.
type oaSchema struct {
	Ref                  string               `json:"$ref,omitempty"`
	Description          string               `json:"description,omitempty"`
	Type                 string               `json:"type,omitempty"`
	Format               string               `json:"format,omitempty"`
	Required             []string             `json:"required,omitempty"`
	Properties           map[string]*oaSchema `json:"properties,omitempty"`
	AdditionalProperties *oaSchema            `json:"additionalProperties,omitempty"`
	Items                *oaSchema            `json:"items,omitempty"`
	Enum                 []string             `json:"enum,omitempty"`
	// nil means none; the zero value of a type is a default
	Default     any         `json:"default,omitempty"`
	AllOf       []*oaSchema `json:"allOf,omitempty"`
	OneOf       []*oaSchema `json:"oneOf,omitempty"`
	UniqueItems bool        `json:"uniqueItems,omitempty"`

	Kinds         []metav1.GroupVersionKind `json:"x-kubernetes-group-version-kind,omitempty"`
	ListType      string                    `json:"x-kubernetes-list-type,omitempty"`
	ListMapKeys   []string                  `json:"x-kubernetes-list-map-keys,omitempty"`
	MapType       string                    `json:"x-kubernetes-map-type,omitempty"`
	PatchMergeKey string                    `json:"x-kubernetes-patch-merge-key,omitempty"`
	PatchStrategy string                    `json:"x-kubernetes-patch-strategy,omitempty"`
	Unions        []oaUnion                 `json:"x-kubernetes-unions,omitempty"`
}

// oaOperation is one method of a path.
type oaOperation struct {
	Tags        []string                `json:"tags"`
	Description string                  `json:"description"`
	OperationID string                  `json:"operationId"`
	Parameters  []oaParameter           `json:"parameters,omitempty"`
	RequestBody *oaBody                 `json:"requestBody,omitempty"`
	Responses   map[string]oaBody       `json:"responses"`
	Action      string                  `json:"x-kubernetes-action"`
	Kind        metav1.GroupVersionKind `json:"x-kubernetes-group-version-kind"`
}

type oaParameter struct {
	Name        string   `json:"name"`
	In          string   `json:"in"`
	Description string   `json:"description,omitempty"`
	Required    bool     `json:"required,omitempty"`
	Schema      oaSchema `json:"schema"`
}

// oaBody is a request body or a response.
type oaBody struct {
	Description string             `json:"description,omitempty"`
	Content     map[string]oaMedia `json:"content,omitempty"`
	Required    bool               `json:"required,omitempty"`
}

type oaMedia struct {
	Schema *oaSchema `json:"schema"`
}

// oaDocument is the document of a group version that is being generated.
type oaDocument struct {
	// *oaSchema, or the schema of a custom resource
	schemas map[string]any
	// by method; "parameters" applies to all methods
	paths map[string]map[string]any
	// cached query parameters, mostly by verb
	parameters map[string][]oaParameter
	// the values of string types, by their enumName
	enums map[string]enumeration
	// descriptions that SwaggerDoc lacks, by typeName and field
	texts map[string]string
	// the resource that is being described
	row *scheme.Resource
}

// openAPIDocument generates the document of one group version.
func openAPIDocument(rows []*scheme.Resource) ([]byte, error) {
	d := newOADocument()
	for _, res := range rows {
		if err := d.addKind(res); err != nil {
			return nil, err
		}
		d.addAllPaths(res)
	}
	if rows[0].GoType != nil {
		d.addRoot(listing(rows[0]))
		if slices.ContainsFunc(rows, func(res *scheme.Resource) bool { return res.Allows("watch") }) {
			d.define(watchEvent)
		}
	}
	return json.Marshal(d.whole())
}

// whole returns the complete document.
func (d *oaDocument) whole() map[string]any {
	return map[string]any{
		"openapi": "3.0.0", "info": openAPIInfo(), "paths": d.paths,
		"components": map[string]any{"schemas": d.schemas, "securitySchemes": openAPISecurity},
	}
}

// KindSchemas returns the schema name for a resource and a JSON object that contains this schema
// and all referenced schemas.
func KindSchemas(res *scheme.Resource) (root string, schemas []byte, err error) {
	d := newOADocument()
	if err := d.addKind(res); err != nil {
		return "", nil, err
	}
	schemas, err = json.Marshal(d.schemas)
	return modelName(res), schemas, err
}

func newOADocument() *oaDocument {
	return &oaDocument{schemas: map[string]any{}, paths: map[string]map[string]any{}, parameters: map[string][]oaParameter{},
		enums: readEnums(), texts: readTexts()}
}

// openAPIEnums lists the string types that are enumerations. It contains the values and the
// comments of the constants. Reflection cannot see either. A test compares the table with the
// sources, and rewrites it with -update.
//
//	apps/v1.DeploymentStrategyType:
//		Recreate	Kill all existing pods before creating new ones.
//
//go:embed openapi_enums.txt
var openAPIEnums string

// enumeration contains the values of a string type in sorted order, and the text that is appended
// to the description of fields.
type enumeration struct {
	values []string
	text   string
}

func readEnums() map[string]enumeration {
	enums := map[string]enumeration{}
	for block := range strings.SplitSeq(strings.TrimSuffix(openAPIEnums, "\n"), "\n\n") {
		name, rows, _ := strings.Cut(block, ":\n")
		e := enumeration{text: "\n\nPossible enum values:"}
		var texts []string
		for row := range strings.SplitSeq(rows, "\n") {
			value, about, _ := strings.Cut(strings.TrimPrefix(row, "\t"), "\t")
			e.values = append(e.values, value)
			texts = append(texts, strings.TrimRight(fmt.Sprintf("\n - `%q` %s", value, about), " "))
		}
		// sort the quoted values, as in Kubernetes' generator
		slices.Sort(texts)
		e.text += strings.Join(texts, "")
		enums[name] = e
	}
	return enums
}

// enumName returns core/v1.Protocol for k8s.io/api/core/v1.Protocol.
func enumName(t reflect.Type) string {
	dirs := strings.Split(t.PkgPath(), "/")
	return strings.Join(dirs[max(0, len(dirs)-2):], "/") + "." + t.Name()
}

var openAPISecurity = map[string]map[string]string{"BearerToken": {
	"type": "apiKey", "description": "Bearer Token authentication", "name": "authorization", "in": "header"}}

// openAPIInfo contains the version of Kubernetes that the server emulates.
func openAPIInfo() map[string]string {
	return map[string]string{"title": "Kubernetes", "version": scheme.EffectiveVersion().EmulationVersion().String()}
}

// modelName returns the schema name of a kind. For custom resources, this is the reversed group
// with version and kind, for example io.x.v1.Foo.
func modelName(res *scheme.Resource) string {
	if res.GoType != nil {
		return servedName(res, res.GoType)
	}
	labels := strings.Split(res.Group, ".")
	slices.Reverse(labels)
	return strings.Join(append(labels, res.Version, res.Kind), ".")
}

func typeName(t reflect.Type) string {
	if named, ok := reflect.Zero(t).Interface().(interface{ OpenAPIModelName() string }); ok {
		return named.OpenAPIModelName()
	}
	return "io." + strings.ReplaceAll(strings.ReplaceAll(t.PkgPath(), "k8s.io/", "k8s/"), "/", ".") + "." + t.Name()
}

// servedName returns the name of a type in the documents of a resource. If an older version uses
// the Go types of the stable version, the types have separate names in the older version.
func servedName(res *scheme.Resource, t reflect.Type) string {
	name := typeName(t)
	if res == nil || res.GoType == nil || t.PkgPath() != res.GoType.PkgPath() {
		return name
	}
	if stable := t.PkgPath()[strings.LastIndexByte(t.PkgPath(), '/')+1:]; stable != res.Version {
		return strings.Replace(name, "."+stable+".", "."+res.Version+".", 1)
	}
	return name
}

func schemaRef(name string) *oaSchema { return &oaSchema{Ref: "#/components/schemas/" + name} }

// addKind adds the schemas for a resource and for its list type.
func (d *oaDocument) addKind(res *scheme.Resource) error {
	name := modelName(res)
	d.row = res
	if res.GoType == nil {
		schema, err := customSchema(d, res)
		if err != nil {
			return err
		}
		d.schemas[name] = schema
	} else {
		d.define(res.GoType)
		if schema, ok := d.schemas[name].(*oaSchema); ok {
			schema.Kinds = kindOf(res, res.Kind)
		}
	}
	if !res.Allows("list") || d.addListOf(res) {
		return nil
	}
	list := &oaSchema{Description: res.ListKind + " is a list of " + res.Kind, Type: "object", Required: []string{"items"},
		Properties: d.typeMeta(), Kinds: kindOf(res, res.ListKind)}
	list.Properties["items"] = &oaSchema{Description: "List of " + res.Plural + ". More info: " + conventions, Type: "array", Items: schemaRef(name)}
	list.Properties["metadata"] = &oaSchema{Description: metadataText(metav1.PartialObjectMetadataList{}),
		AllOf: []*oaSchema{d.reference(reflect.TypeFor[metav1.ListMeta]())}}
	d.schemas[listName(res)] = list
	return nil
}

// kindOf returns the given kind in the group version of a resource.
func kindOf(res *scheme.Resource, kind string) []metav1.GroupVersionKind {
	return []metav1.GroupVersionKind{{Group: res.Group, Version: res.Version, Kind: kind}}
}

// conventions is the URL that Kubernetes' descriptions link to.
const conventions = "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md"

// metadataText returns the description of the metadata of a custom resource or of its list, taken
// from the metadata-only types.
func metadataText(of interface{ SwaggerDoc() map[string]string }) string {
	return of.SwaggerDoc()["metadata"]
}

func listName(res *scheme.Resource) string {
	return strings.TrimSuffix(modelName(res), res.Kind) + res.ListKind
}

func (d *oaDocument) typeMeta() map[string]*oaSchema {
	meta := &oaSchema{Properties: map[string]*oaSchema{}}
	d.addFields(meta, "", reflect.TypeFor[metav1.TypeMeta]())
	return meta.Properties
}

// customSchema returns the schema of a custom resource, with the fields of all objects added to it
// and to its embedded objects.
func customSchema(d *oaDocument, res *scheme.Resource) (any, error) {
	schema := map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	if res.Schema != nil {
		own, err := res.Schema()
		if err != nil {
			return nil, err
		}
		schema = map[string]any{}
		if err := json.Unmarshal(own, &schema); err != nil {
			return nil, err
		}
	}
	d.addObjectMembers(schema)
	d.addEmbedded(schema)
	schema["x-kubernetes-group-version-kind"] = []metav1.GroupVersionKind{{Group: res.Group, Version: res.Version, Kind: res.Kind}}
	if res.Custom != nil && len(res.Custom.Selectable) > 0 {
		var fields []map[string]string
		for _, path := range res.Custom.Selectable {
			fields = append(fields, map[string]string{"fieldPath": path})
		}
		schema["x-kubernetes-selectable-fields"] = fields
	}
	return schema, nil
}

// addObjectMembers adds the fields that all objects have to a schema.
func (d *oaDocument) addObjectMembers(schema map[string]any) {
	properties, _ := schema["properties"].(map[string]any)
	if properties == nil {
		properties = map[string]any{}
	}
	for name, property := range d.typeMeta() {
		properties[name] = property
	}
	properties["metadata"] = &oaSchema{Description: metadataText(metav1.PartialObjectMetadata{}),
		AllOf: []*oaSchema{d.reference(reflect.TypeFor[metav1.ObjectMeta]())}}
	schema["properties"] = properties
}

// addEmbedded adds the fields of objects to the embedded resources in a user's schema.
func (d *oaDocument) addEmbedded(schema map[string]any) {
	properties, _ := schema["properties"].(map[string]any)
	for _, property := range properties {
		if property, ok := property.(map[string]any); ok {
			d.addEmbedded(property)
		}
	}
	for _, key := range []string{"items", "additionalProperties"} {
		if below, ok := schema[key].(map[string]any); ok {
			d.addEmbedded(below)
		}
	}
	if schema["x-kubernetes-embedded-resource"] != true {
		return
	}
	d.addObjectMembers(schema)
	members := schema["properties"].(map[string]any)
	members["apiVersion"] = &oaSchema{Type: "string",
		Description: "apiVersion defines the versioned schema of this representation of an object. More info: " + conventions + "#resources"}
	members["kind"] = &oaSchema{Type: "string",
		Description: "kind is a string value representing the type of this object. In CamelCase. More info: " + conventions + "#types-kinds"}
	required, _ := schema["required"].([]any)
	for _, name := range []string{"kind", "apiVersion"} {
		if !slices.Contains(required, any(name)) {
			required = append(required, name)
		}
	}
	schema["required"] = required
}

// define adds the schema of a named struct type and the schemas that it refers to.
func (d *oaDocument) define(t reflect.Type) {
	name := servedName(d.row, t)
	if d.schemas[name] != nil {
		return
	}
	s := &oaSchema{Description: d.text(typeName(t), "", t), Kinds: d.kindsOf(t)}
	d.schemas[name] = s // added before the fields, because types may be recursive
	if !scalarSchema(s, t) {
		s.Type = "object"
		s.Properties = map[string]*oaSchema{}
		d.addFields(s, typeName(t), t)
		s.Unions = unionsOf(t)
		if listtypes.IsAtomic(t) {
			s.MapType = "atomic"
		}
	}
}

// kindsOf returns the kinds of a Go type, or nil for types that are only parts of objects.
func (d *oaDocument) kindsOf(t reflect.Type) []metav1.GroupVersionKind {
	for _, res := range scheme.Builtins {
		if res.GoType == t {
			return []metav1.GroupVersionKind{{Group: res.Group, Version: res.Version, Kind: res.Kind}}
		}
	}
	for _, sub := range scheme.SubresourceBodies {
		if scheme.SubresourceTypes[sub.Kind] == t {
			return []metav1.GroupVersionKind{{Group: sub.Group, Version: sub.Version, Kind: sub.Kind}}
		}
	}
	if !slices.Contains(metaKinds, t) {
		return nil
	}
	kinds := []metav1.GroupVersionKind{{Version: "v1", Kind: t.Name()}}
	if everywhere := t == deleteOptions || t == watchEvent; everywhere && d.row != nil && d.row.GoType != nil && d.row.Group != "" {
		kinds = append(kinds, kindOf(d.row, t.Name())...)
	}
	return kinds
}

// metaKinds lists the kinds that are defined in every group.
var metaKinds = []reflect.Type{deleteOptions, watchEvent, reflect.TypeFor[metav1.Status](), reflect.TypeFor[metav1.APIVersions](),
	reflect.TypeFor[metav1.APIResourceList](), reflect.TypeFor[metav1.APIGroup](), reflect.TypeFor[metav1.APIGroupList]()}

// text returns the description of a field of t in the schema of the type named of. The description
// of the type itself has the name "".
func (d *oaDocument) text(of, name string, t reflect.Type) string {
	if text, ok := d.texts[of+"."+name]; ok {
		return text
	}
	return docStrings(t)[name]
}

// docStrings returns the doc strings of a type by field name. The empty key is used for the type
// itself.
func docStrings(t reflect.Type) map[string]string {
	if documented, ok := reflect.Zero(t).Interface().(interface{ SwaggerDoc() map[string]string }); ok {
		return documented.SwaggerDoc()
	}
	return nil
}

// scalarSchema describes types that are structs in Go and scalars in JSON, such as Time and
// Quantity. They declare it by methods.
func scalarSchema(s *oaSchema, t reflect.Type) bool {
	scalar, ok := reflect.Zero(t).Interface().(interface{ OpenAPISchemaType() []string })
	if !ok {
		return false
	}
	if formatted, ok := scalar.(interface{ OpenAPISchemaFormat() string }); ok {
		s.Format = formatted.OpenAPISchemaFormat()
	}
	if either, ok := scalar.(interface{ OpenAPIV3OneOfTypes() []string }); ok {
		for _, name := range either.OpenAPIV3OneOfTypes() {
			s.OneOf = append(s.OneOf, &oaSchema{Type: name})
		}
	} else if types := scalar.OpenAPISchemaType(); len(types) > 0 {
		s.Type = types[0] // no type means any JSON value
	}
	return true
}

// addFields adds the fields of t to the schema of the type named of, which is t or a type that
// inlines t.
func (d *oaDocument) addFields(s *oaSchema, of string, t reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
			continue
		case name == "":
			d.addFields(s, of, f.Type) // inlined
			continue
		}
		path := listtypes.TypeName(t) + "." + name
		byDefault, declared := listtypes.Defaults[path]
		if !declared {
			byDefault = zeroOf(f.Type, strings.Contains(options, "omitempty"))
		}
		text := d.text(of, name, t) + d.enums[enumName(indirect(f.Type))].text
		relation := cmp.Or(listtypes.Relations[path], listtypes.RelationFromTags(f.Tag))
		property := d.describe(f.Type)
		if text != "" || byDefault != nil {
			property = besides(property)
		}
		property.Description, property.Default = text, byDefault
		property.PatchMergeKey, property.PatchStrategy = f.Tag.Get("patchMergeKey"), f.Tag.Get("patchStrategy")
		property.relate(relation)
		unmarked(property, path)
		s.Properties[name] = property
		if isRequired(t, name, options) {
			s.Required = append(s.Required, name)
		}
	}
}

// indirect returns the element type of a pointer type, and any other type unchanged.
func indirect(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

// relate sets the list type or map type that server-side apply uses for a field. relation is a
// value of listtypes.Relations.
func (s *oaSchema) relate(relation string) {
	switch {
	case relation == "granular" || s.Type == "object" && relation == "atomic":
		s.MapType = relation
	case s.Type != "array":
	case relation == "" || relation == "atomic" || relation == "set":
		s.ListType = cmp.Or(relation, "atomic")
	default:
		s.ListType, s.ListMapKeys = "map", strings.Split(relation, ",")
	}
}

// isRequired reports whether a field is required: JSON always contains it. The exceptions are
// listed here, because Kubernetes declares them only in comments.
func isRequired(t reflect.Type, name, options string) bool {
	path := strings.TrimPrefix(typeName(t), "io.k8s.api.") + "." + name
	if strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero") {
		return slices.Contains(omittedButRequired, path)
	}
	return !slices.Contains(writtenButOptional, path)
}

var omittedButRequired = strings.Fields(`
	admissionregistration.v1.ValidatingAdmissionPolicyBinding.spec admissionregistration.v1.ValidatingAdmissionPolicyBindingSpec.policyName
	admissionregistration.v1.ValidatingAdmissionPolicyBindingSpec.validationActions apps.v1.DaemonSet.spec apps.v1.Deployment.spec
	apps.v1.ReplicaSet.spec apps.v1.StatefulSet.spec authentication.v1.TokenReviewSpec.token
	autoscaling.v1.HorizontalPodAutoscaler.spec autoscaling.v2.HorizontalPodAutoscaler.spec batch.v1.CronJob.spec
	core.v1.ContainerRestartRule.action core.v1.ContainerRestartRuleOnExitCodes.operator core.v1.ImageVolumeStatus.imageRef
	core.v1.PodCertificateProjection.keyType core.v1.PodCertificateProjection.signerName
	flowcontrol.v1.FlowSchema.spec flowcontrol.v1.FlowSchemaCondition.type flowcontrol.v1.LimitedPriorityLevelConfiguration.limitResponse
	flowcontrol.v1.PriorityLevelConfiguration.spec flowcontrol.v1.PriorityLevelConfigurationCondition.type
	networking.v1.IPAddress.spec networking.v1.IPAddressSpec.parentRef networking.v1.ParentReference.name networking.v1.ParentReference.resource
	resource.v1.CapacityRequestPolicyRange.min resource.v1.CounterSet.counters resource.v1.DeviceCounterConsumption.counters
	resource.v1.DeviceTaintRuleSpec.taint`)

var writtenButOptional = strings.Fields(`
	apps.v1.ControllerRevision.revision apps.v1.DaemonSetCondition.status apps.v1.DaemonSetCondition.type apps.v1.DeploymentCondition.status
	apps.v1.DeploymentCondition.type apps.v1.ReplicaSetCondition.status apps.v1.ReplicaSetCondition.type apps.v1.StatefulSetCondition.status
	apps.v1.StatefulSetCondition.type resource.v1.DeviceClass.spec resource.v1.ResourceClaim.spec resource.v1.ResourceClaimTemplate.spec
	resource.v1.ResourceClaimTemplateSpec.spec
	apps.v1.StatefulSetOrdinals.start apps.v1.StatefulSetSpec.serviceName apps.v1.StatefulSetStatus.availableReplicas
	authentication.v1.TokenRequest.spec authentication.v1.TokenRequestSpec.audiences authentication.v1.TokenRequestSpec.boundObjectRef
	authentication.v1.TokenRequestSpec.expirationSeconds authentication.v1.TokenRequestStatus.expirationTimestamp
	authentication.v1.TokenRequestStatus.token autoscaling.v2.HorizontalPodAutoscalerStatus.currentMetrics
	batch.v1.PodFailurePolicyOnPodConditionsPattern.status core.v1.AzureFilePersistentVolumeSource.secretNamespace
	core.v1.ContainerImage.names core.v1.Event.reportingComponent core.v1.Event.reportingInstance core.v1.GRPCAction.service
	core.v1.NodeRuntimeHandler.name core.v1.ProjectedVolumeSource.sources core.v1.TypedLocalObjectReference.apiGroup
	core.v1.TypedObjectReference.apiGroup discovery.v1.EndpointSlice.endpoints discovery.v1.EndpointSlice.ports events.v1.Event.metadata
	flowcontrol.v1.FlowSchemaSpec.matchingPrecedence flowcontrol.v1.LimitedPriorityLevelConfiguration.nominalConcurrencyShares
	flowcontrol.v1.QueuingConfiguration.handSize flowcontrol.v1.QueuingConfiguration.queueLengthLimit flowcontrol.v1.QueuingConfiguration.queues
	flowcontrol.v1.ResourcePolicyRule.namespaces networking.v1.IngressClassParametersReference.scope networking.v1.NetworkPolicySpec.podSelector
	policy.v1.PodDisruptionBudgetStatus.currentHealthy policy.v1.PodDisruptionBudgetStatus.desiredHealthy
	policy.v1.PodDisruptionBudgetStatus.disruptionsAllowed policy.v1.PodDisruptionBudgetStatus.expectedPods
	rbac.v1.ClusterRole.rules rbac.v1.Role.rules rbac.v1.RoleRef.apiGroup resource.v1.AllocatedDeviceStatus.conditions
	resource.v1.CapacityRequestPolicy.default resource.v1.DeviceClaim.requests resource.v1.ResourceClaimSpec.devices
	scheduling.v1.PriorityClass.value storage.v1.CSINodeDriver.topologyKeys
	io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinitionStatus.conditions
	io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinitionStatus.acceptedNames
	io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinitionStatus.storedVersions`)

// describe returns the schema of a field's type, as a reference if the type has a named schema.
func (d *oaDocument) describe(t reflect.Type) *oaSchema {
	if t.Kind() == reflect.Struct {
		return d.reference(t)
	}
	switch t.Kind() {
	case reflect.Pointer:
		return d.describe(t.Elem())
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return &oaSchema{Type: "string", Format: "byte"}
		}
		return &oaSchema{Type: "array", Items: d.describe(t.Elem())}
	case reflect.Map:
		return &oaSchema{Type: "object", AdditionalProperties: d.describe(t.Elem())}
	case reflect.String:
		return &oaSchema{Type: "string", Enum: d.enums[enumName(t)].values}
	case reflect.Bool:
		return &oaSchema{Type: "boolean"}
	case reflect.Int32, reflect.Int64:
		return &oaSchema{Type: "integer", Format: t.Kind().String()}
	case reflect.Float64:
		return &oaSchema{Type: "number", Format: "double"}
	}
	return &oaSchema{Type: "object"}
}

func (d *oaDocument) reference(t reflect.Type) *oaSchema {
	d.define(t)
	return schemaRef(servedName(d.row, t))
}

// oaVerb describes the operation of a verb.
type oaVerb struct {
	method, action, id, text string         // %s in text is the kind
	responses                string         // status codes except for 401
	options                  []reflect.Type // types whose fields are the query parameters
}

var oaVerbs = map[string]oaVerb{
	"get":              {"get", "get", "read", "read the specified %s", "200", nil},
	"list":             {"get", "list", "list", "list or watch objects of kind %s", "200", []reflect.Type{listOptions}},
	"create":           {"post", "post", "create", "create %s", "200 201 202", []reflect.Type{reflect.TypeFor[metav1.CreateOptions]()}},
	"update":           {"put", "put", "replace", "replace the specified %s", "200 201", []reflect.Type{reflect.TypeFor[metav1.UpdateOptions]()}},
	"patch":            {"patch", "patch", "patch", "partially update the specified %s", "200 201", []reflect.Type{reflect.TypeFor[metav1.PatchOptions]()}},
	"delete":           {"delete", "delete", "delete", "delete %s", "200 202", []reflect.Type{deleteOptions}},
	"deletecollection": {"delete", "deletecollection", "delete", "delete collection of %s", "200", []reflect.Type{listOptions, deleteOptions}},
}

var (
	listOptions   = reflect.TypeFor[metav1.ListOptions]()
	deleteOptions = reflect.TypeFor[metav1.DeleteOptions]()
	watchEvent    = reflect.TypeFor[metav1.WatchEvent]()
)

// oaTarget describes the object of the operations in a path.
type oaTarget struct {
	// id is the middle of operation ids, for example NamespacedPod
	path, id   string
	kind       metav1.GroupVersionKind
	body, list *oaSchema
	custom     bool // the body is a custom resource
}

// addAllPaths adds all paths for a resource, including its subresources.
func (d *oaDocument) addAllPaths(res *scheme.Resource) {
	d.addPaths(res)
	for i := range res.Subresources {
		d.addSubresource(res, &res.Subresources[i])
	}
}

func (d *oaDocument) addPaths(res *scheme.Resource) {
	kind := metav1.GroupVersionKind{Group: res.Group, Version: res.Version, Kind: res.Kind}
	all := oaTarget{path: groupVersionPath(res) + "/" + res.Plural, id: res.Kind, kind: kind, body: schemaRef(modelName(res)), list: schemaRef(listName(res)),
		custom: res.GoType == nil}
	each := all
	if res.Namespaced {
		each.path, each.id = groupVersionPath(res)+"/namespaces/{namespace}/"+res.Plural, "Namespaced"+res.Kind
		all.id += "ForAllNamespaces"
		if res.Allows("list") {
			d.addOperation(res, all, "list")
		}
	}
	one := each
	one.path += "/{name}"
	for _, verb := range res.Verbs {
		switch verb {
		case "watch":
		case "list", "create", "deletecollection":
			d.addOperation(res, each, verb)
		default:
			d.addOperation(res, one, verb)
		}
	}
	// A review has no patch. kubectl checks the patch of the type for field validation, and
	// reads /openapi/v2 if it is missing.
	if res.Allows("create") && !res.Allows("patch") {
		d.addOperation(res, one, "patch")
	}
}

func (d *oaDocument) addSubresource(res *scheme.Resource, sub *scheme.Subresource) {
	scope := ""
	path := groupVersionPath(res) + "/" + res.Plural + "/{name}/" + sub.Name
	if res.Namespaced {
		scope = "Namespaced"
		path = groupVersionPath(res) + "/namespaces/{namespace}/" + res.Plural + "/{name}/" + sub.Name
	}
	target := oaTarget{path: path, id: scope + res.Kind + titleCase(sub.Name),
		kind: metav1.GroupVersionKind{Group: sub.Group, Version: sub.Version, Kind: sub.Kind}}
	if connectOptions[sub.Kind] != nil {
		d.addConnect(res, sub, target)
		return
	}
	switch wire := res.ExpectedBody(sub.Name).Wire; {
	case sub.Name == "log" || wire == nil && sub.Kind != res.Kind:
		target.body = &oaSchema{Type: "string"}
	case sub.Kind == res.Kind:
		target.body, target.custom = schemaRef(modelName(res)), res.GoType == nil
	default:
		target.body = d.reference(wire)
	}
	for _, verb := range sub.Verbs {
		d.addOperation(res, target, verb)
	}
	if sub.Name == "log" {
		d.paths[path]["get"].(*oaOperation).Responses["200"].Content["text/plain"] = oaMedia{target.body}
		d.paths[path]["parameters"] = append(d.paths[path]["parameters"].([]oaParameter), d.query("log", reflect.TypeFor[corev1.PodLogOptions]())...)
	}
}

func (d *oaDocument) addOperation(res *scheme.Resource, target oaTarget, verb string) {
	v := oaVerbs[verb]
	id := v.id + groupTitle(res.Group) + titleCase(res.Version)
	if verb == "deletecollection" {
		id += "Collection"
	}
	op := &oaOperation{
		Tags:        []string{lowerTitle(res.Group) + "_" + res.Version},
		Description: fmt.Sprintf(v.text, target.kind.Kind), OperationID: id + target.id,
		Parameters: d.query(verb, v.options...), RequestBody: d.requestBody(target, verb), Responses: map[string]oaBody{"401": {Description: "Unauthorized"}},
		Action: v.action, Kind: target.kind,
	}
	for code := range strings.FieldsSeq(v.responses) {
		status, _ := strconv.Atoi(code)
		op.Responses[code] = oaBody{Description: http.StatusText(status), Content: d.responseContent(target, verb)}
	}
	item := d.paths[target.path]
	if item == nil {
		item = map[string]any{"parameters": pathParameters(target.path)}
		d.paths[target.path] = item
	}
	item[v.method] = op
}

func (d *oaDocument) requestBody(target oaTarget, verb string) *oaBody {
	switch verb {
	case "create", "update":
		return &oaBody{Required: true, Content: map[string]oaMedia{"*/*": {target.body}}}
	case "delete", "deletecollection":
		return &oaBody{Content: map[string]oaMedia{"*/*": {d.reference(reflect.TypeFor[metav1.DeleteOptions]())}}}
	case "patch":
		patch := oaMedia{d.reference(reflect.TypeFor[metav1.Patch]())}
		content := map[string]oaMedia{"application/json-patch+json": patch, "application/merge-patch+json": patch, "application/apply-patch+yaml": patch}
		if !target.custom {
			content["application/strategic-merge-patch+json"] = patch
		}
		return &oaBody{Required: true, Content: content}
	}
	return nil
}

func (d *oaDocument) responseContent(target oaTarget, verb string) map[string]oaMedia {
	schema := target.body
	switch verb {
	case "list":
		schema = target.list
	case "delete", "deletecollection":
		schema = d.reference(reflect.TypeFor[metav1.Status]())
	}
	content := map[string]oaMedia{}
	for _, format := range everyFormat {
		if target.custom && format == string(scheme.ProtobufFormat) {
			continue
		}
		content[format] = oaMedia{schema}
		if verb == "list" && format != "application/yaml" {
			content[format+";stream=watch"] = oaMedia{schema}
		}
	}
	return content
}

// query returns the fields of options types as query parameters. They are generated once per
// document and cached under name.
func (d *oaDocument) query(use string, options ...reflect.Type) []oaParameter {
	if d.parameters[use] == nil && options != nil {
		byName := map[string]oaParameter{}
		for _, t := range options {
			addParameters(byName, t)
		}
		if use == "deletecollection" {
			delete(byName, "watch")
			delete(byName, "allowWatchBookmarks")
		}
		for _, name := range slices.Sorted(maps.Keys(byName)) {
			d.parameters[use] = append(d.parameters[use], byName[name])
		}
	}
	return d.parameters[use]
}

func addParameters(byName map[string]oaParameter, t reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		kind := cmp.Or(paramTypes[f.Type.Kind()], paramTypes[elemKind(f.Type)])
		if name != "" && kind != "" {
			byName[name] = oaParameter{Name: name, In: "query", Description: docStrings(t)[name], Schema: oaSchema{Type: kind, UniqueItems: true}}
		}
	}
}

var paramTypes = map[reflect.Kind]string{reflect.String: "string", reflect.Bool: "boolean", reflect.Int32: "integer", reflect.Int64: "integer"}

func elemKind(t reflect.Type) reflect.Kind {
	if t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		return t.Elem().Kind()
	}
	return reflect.Invalid
}

// pathParameters returns the parameters that all methods of a path share.
func pathParameters(path string) (params []oaParameter) {
	texts := map[string]string{"name": "name of the object", "namespace": "object name and auth scope, such as for teams and projects",
		"path": "path to the resource"}
	for _, name := range []string{"name", "namespace", "path"} {
		if strings.Contains(path, "{"+name+"}") {
			params = append(params, oaParameter{Name: name, In: "path", Description: texts[name], Required: true,
				Schema: oaSchema{Type: "string", UniqueItems: true}})
		}
	}
	return append(params, oaParameter{Name: "pretty", In: "query", Description: "If 'true', then the output is pretty printed.",
		Schema: oaSchema{Type: "string", UniqueItems: true}})
}

// groupTitle returns the name of a group in operation ids: Core, Apps, RbacAuthorization.
func groupTitle(group string) (name string) {
	for label := range strings.SplitSeq(strings.TrimSuffix(cmp.Or(group, "core"), ".k8s.io"), ".") {
		name += titleCase(label)
	}
	return name
}

func titleCase(word string) string {
	if word == "" {
		return ""
	}
	return strings.ToUpper(word[:1]) + word[1:]
}

// addListOf adds the schema of the list of a built-in type, and reports whether the list has a Go
// type.
func (d *oaDocument) addListOf(res *scheme.Resource) bool {
	t := listsByItem[res.GoType]
	if t == nil {
		return false
	}
	d.define(t)
	if schema, ok := d.schemas[servedName(d.row, t)].(*oaSchema); ok {
		schema.Kinds, schema.Properties["items"].ListType = kindOf(res, res.ListKind), ""
	}
	return true
}
