package main

// This file describes the API in OpenAPI v3: one document per group version, made from the Go types when somebody asks, and not kept.
//
// kubectl reads them for explain, and before it sends anything with create, apply, replace or edit: there it looks for a PATCH operation
// of the object's kind that has a query parameter fieldValidation. Schemas come from reflection on the Go types, descriptions from their
// SwaggerDoc methods, names from OpenAPIModelName; a custom resource brings its own schema. What reflection cannot see (enumerations,
// defaults, list types that only a comment tells) is left out: kube-apiserver has it, no client of it needs it.
//
// The index at /openapi/v3 gives each document's path with a hash. The hash covers what the document is made from (this program and the
// rows), not its bytes, so that the index costs no document. A document asked for by its hash may be kept for a year.

import (
	"cmp"
	"crypto/sha512"
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
)

// serveOpenAPI answers /openapi/v3 and /openapi/v3/{api/v1,apis/group/version}.
func serveOpenAPI(reg *registry, w http.ResponseWriter, r *http.Request) {
	c := reg.current.Load()
	if _, err := negotiate(r.Header.Get("Accept")); err != nil {
		w.WriteHeader(http.StatusNotAcceptable) // such as OpenAPI's own protobuf form
		return
	}
	path := strings.Trim(strings.TrimPrefix(r.URL.Path, "/openapi/v3"), "/")
	if path == "" {
		doc, _ := json.Marshal(openAPIIndex(c))
		w.Header().Set("ETag", etagOf(doc))
		writeOpenAPI(w, r, etagOf(doc), func() ([]byte, error) { return doc, nil })
		return
	}
	rows := rowsAtPath(c, path)
	if rows == nil {
		http.NotFound(w, r)
		return
	}
	hash := openAPIHash(rows)
	if asked := r.URL.Query().Get("hash"); asked != "" {
		if asked != hash {
			http.Redirect(w, r, openAPIPath(path, hash), http.StatusMovedPermanently)
			return
		}
		w.Header().Set("Vary", "Accept")
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", time.Now().AddDate(1, 0, 0).UTC().Format(http.TimeFormat))
	}
	writeOpenAPI(w, r, strconv.Quote(hash), func() ([]byte, error) { return openAPIDocument(rows) })
}

// writeOpenAPI spares a client that has the document both making and sending it.
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
	doc, err := makeDoc()
	if err != nil {
		refuse(w, r, err)
		return
	}
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(doc)))
	w.Write(doc)
}

type openAPIPathItem struct {
	ServerRelativeURL string `json:"serverRelativeURL"`
}

func openAPIIndex(c *catalog) map[string]map[string]openAPIPathItem {
	paths := map[string]openAPIPathItem{}
	for _, rows := range c.groupVersions() {
		path := strings.TrimPrefix(groupVersionPath(rows[0]), "/")
		paths[path] = openAPIPathItem{openAPIPath(path, openAPIHash(rows))}
	}
	return map[string]map[string]openAPIPathItem{"paths": paths}
}

func openAPIPath(path, hash string) string { return "/openapi/v3/" + path + "?hash=" + hash }

// groupVersionPath is where a resource's group version lives.
func groupVersionPath(res *resource) string {
	if res.group == "" {
		return "/api/" + res.version
	}
	return "/apis/" + res.group + "/" + res.version
}

func rowsAtPath(c *catalog, path string) []*resource {
	for _, rows := range c.groupVersions() {
		if groupVersionPath(rows[0]) == "/"+path {
			return rows
		}
	}
	return nil
}

func openAPIHash(rows []*resource) string {
	sum := sha512.New()
	if build, ok := debug.ReadBuildInfo(); ok {
		io.WriteString(sum, build.String())
	}
	for _, res := range rows {
		fmt.Fprintln(sum, res.apiVersion(), res.plural, res.kind, res.namespaced, res.verbs, res.subresources, res.schemaTag)
	}
	return fmt.Sprintf("%X", sum.Sum(nil))
}

// An oaSchema is a schema object. Its fields are those that this server writes.
type oaSchema struct {
	Ref                  string               `json:"$ref,omitempty"`
	Description          string               `json:"description,omitempty"`
	Type                 string               `json:"type,omitempty"`
	Format               string               `json:"format,omitempty"`
	Required             []string             `json:"required,omitempty"`
	Properties           map[string]*oaSchema `json:"properties,omitempty"`
	AdditionalProperties *oaSchema            `json:"additionalProperties,omitempty"`
	Items                *oaSchema            `json:"items,omitempty"`
	AllOf                []*oaSchema          `json:"allOf,omitempty"`
	OneOf                []*oaSchema          `json:"oneOf,omitempty"`
	UniqueItems          bool                 `json:"uniqueItems,omitempty"`

	Kinds         []metav1.GroupVersionKind `json:"x-kubernetes-group-version-kind,omitempty"`
	ListType      string                    `json:"x-kubernetes-list-type,omitempty"`
	ListMapKeys   []string                  `json:"x-kubernetes-list-map-keys,omitempty"`
	PatchMergeKey string                    `json:"x-kubernetes-patch-merge-key,omitempty"`
	PatchStrategy string                    `json:"x-kubernetes-patch-strategy,omitempty"`
}

// An oaOperation is one method of one path.
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

// An oaBody is a request body or a response.
type oaBody struct {
	Description string             `json:"description,omitempty"`
	Content     map[string]oaMedia `json:"content,omitempty"`
	Required    bool               `json:"required,omitempty"`
}

type oaMedia struct {
	Schema *oaSchema `json:"schema"`
}

// An oaDocument is one group version's document while it is made.
type oaDocument struct {
	schemas    map[string]any            // *oaSchema, or a custom resource's own schema
	paths      map[string]map[string]any // by method; "parameters" are those of all methods
	parameters map[string][]oaParameter  // the query parameters of a use, a verb in most cases
}

// openAPIDocument makes the document of one group version.
func openAPIDocument(rows []*resource) ([]byte, error) {
	d := &oaDocument{schemas: map[string]any{}, paths: map[string]map[string]any{}, parameters: map[string][]oaParameter{}}
	for _, res := range rows {
		if err := d.addKind(res); err != nil {
			return nil, err
		}
		d.addPaths(res)
		for i := range res.subresources {
			d.addSubresource(res, &res.subresources[i])
		}
	}
	return json.Marshal(map[string]any{
		"openapi": "3.0.0",
		"info":    map[string]string{"title": "Kubernetes", "version": "1.36"},
		"paths":   d.paths,
		"components": map[string]any{"schemas": d.schemas, "securitySchemes": map[string]any{"BearerToken": map[string]string{
			"type": "apiKey", "description": "Bearer Token authentication", "name": "authorization", "in": "header"}}},
	})
}

// modelName is a kind's name among the schemas: that of its Go type, or for a custom resource its group turned round, io.x.v1.Foo.
func modelName(res *resource) string {
	if res.goType != nil {
		return typeName(res.goType)
	}
	labels := strings.Split(res.group, ".")
	slices.Reverse(labels)
	return strings.Join(append(labels, res.version, res.kind), ".")
}

func typeName(t reflect.Type) string {
	if named, ok := reflect.Zero(t).Interface().(interface{ OpenAPIModelName() string }); ok {
		return named.OpenAPIModelName()
	}
	return "io." + strings.ReplaceAll(strings.ReplaceAll(t.PkgPath(), "k8s.io/", "k8s/"), "/", ".") + "." + t.Name()
}

func schemaRef(name string) *oaSchema { return &oaSchema{Ref: "#/components/schemas/" + name} }

// addKind adds the schemas of a resource's kind and its list.
func (d *oaDocument) addKind(res *resource) error {
	name := modelName(res)
	if res.goType == nil {
		schema, err := customSchema(d, res)
		if err != nil {
			return err
		}
		d.schemas[name] = schema
	} else {
		d.define(res.goType)
		d.schemas[name].(*oaSchema).Kinds = []metav1.GroupVersionKind{{Group: res.group, Version: res.version, Kind: res.kind}}
	}
	if !res.allows("list") {
		return nil
	}
	list := &oaSchema{Description: res.listKind + " is a list of " + res.kind, Type: "object", Required: []string{"items"},
		Properties: d.typeMeta(), Kinds: []metav1.GroupVersionKind{{Group: res.group, Version: res.version, Kind: res.listKind}}}
	list.Properties["items"] = &oaSchema{Description: "List of " + res.plural + ".", Type: "array", Items: schemaRef(name)}
	list.Properties["metadata"] = &oaSchema{Description: "Standard list metadata.", AllOf: []*oaSchema{d.reference(reflect.TypeFor[metav1.ListMeta]())}}
	d.schemas[listName(res)] = list
	return nil
}

func listName(res *resource) string {
	return strings.TrimSuffix(modelName(res), res.kind) + res.listKind
}

func (d *oaDocument) typeMeta() map[string]*oaSchema {
	meta := &oaSchema{Properties: map[string]*oaSchema{}}
	d.addFields(meta, reflect.TypeFor[metav1.TypeMeta]())
	return meta.Properties
}

// customSchema is a custom resource's own schema, with what every object has added to it.
func customSchema(d *oaDocument, res *resource) (any, error) {
	schema := map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	if res.schema != nil {
		own, err := res.schema()
		if err != nil {
			return nil, err
		}
		schema = map[string]any{}
		if err := json.Unmarshal(own, &schema); err != nil {
			return nil, err
		}
	}
	properties, _ := schema["properties"].(map[string]any)
	if properties == nil {
		properties = map[string]any{}
	}
	for name, property := range d.typeMeta() {
		properties[name] = property
	}
	properties["metadata"] = &oaSchema{Description: "Standard object's metadata.", AllOf: []*oaSchema{d.reference(reflect.TypeFor[metav1.ObjectMeta]())}}
	schema["properties"] = properties
	schema["x-kubernetes-group-version-kind"] = []metav1.GroupVersionKind{{Group: res.group, Version: res.version, Kind: res.kind}}
	return schema, nil
}

// define adds the schema of a named struct type and of all that it refers to.
func (d *oaDocument) define(t reflect.Type) {
	name := typeName(t)
	if d.schemas[name] != nil {
		return
	}
	s := &oaSchema{Description: docStrings(t)[""], Kinds: kindsOf(t)}
	d.schemas[name] = s // before its fields: a type may refer to itself
	if !scalarSchema(s, t) {
		s.Type = "object"
		s.Properties = map[string]*oaSchema{}
		d.addFields(s, t)
	}
}

// kindsOf tells which kind a Go type is; none for the parts of objects.
func kindsOf(t reflect.Type) []metav1.GroupVersionKind {
	for _, res := range builtins {
		if res.goType == t {
			return []metav1.GroupVersionKind{{Group: res.group, Version: res.version, Kind: res.kind}}
		}
	}
	for _, sub := range subresourceBodies {
		if subresourceTypes[sub.kind] == t {
			return []metav1.GroupVersionKind{{Group: sub.group, Version: sub.version, Kind: sub.kind}}
		}
	}
	if t == reflect.TypeFor[metav1.Status]() || t == deleteOptions {
		return []metav1.GroupVersionKind{{Version: "v1", Kind: t.Name()}}
	}
	return nil
}

// docStrings are a type's doc strings by field name, the type's own under "".
func docStrings(t reflect.Type) map[string]string {
	if documented, ok := reflect.Zero(t).Interface().(interface{ SwaggerDoc() map[string]string }); ok {
		return documented.SwaggerDoc()
	}
	return nil
}

// scalarSchema describes the types that are structs in Go and scalars in JSON, such as Time and Quantity: they say so by method.
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
		s.Type = types[0] // none: any JSON
	}
	return true
}

func (d *oaDocument) addFields(s *oaSchema, t reflect.Type) {
	texts := docStrings(t)
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
			continue
		case name == "":
			d.addFields(s, f.Type) // inlined
			continue
		}
		property := d.describe(f.Type)
		if text := texts[name]; text != "" && property.Ref != "" {
			property = &oaSchema{Description: text, AllOf: []*oaSchema{property}} // nothing may stand beside a $ref
		} else if text != "" {
			property.Description = text
		}
		property.PatchMergeKey, property.PatchStrategy = f.Tag.Get("patchMergeKey"), f.Tag.Get("patchStrategy")
		property.ListType = f.Tag.Get("listType")
		if property.ListType == "map" && property.PatchMergeKey != "" {
			property.ListMapKeys = []string{property.PatchMergeKey}
		}
		s.Properties[name] = property
		if isRequired(t, name, options) {
			s.Required = append(s.Required, name)
		}
	}
}

// isRequired takes a field that JSON always has for a required one. The exceptions are said in comments of the Go source alone.
func isRequired(t reflect.Type, name, options string) bool {
	path := strings.TrimPrefix(typeName(t), "io.k8s.api.") + "." + name
	if strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero") {
		return slices.Contains(omittedButRequired, path)
	}
	return !slices.Contains(writtenButOptional, path)
}

var omittedButRequired = strings.Fields(`
	admissionregistration.v1.ValidatingAdmissionPolicyBinding.spec admissionregistration.v1.ValidatingAdmissionPolicyBindingSpec.policyName
	admissionregistration.v1.ValidatingAdmissionPolicyBindingSpec.validationActions authentication.v1.TokenReviewSpec.token
	autoscaling.v1.HorizontalPodAutoscaler.spec autoscaling.v2.HorizontalPodAutoscaler.spec batch.v1.CronJob.spec
	core.v1.ContainerRestartRule.action core.v1.ContainerRestartRuleOnExitCodes.operator core.v1.ImageVolumeStatus.imageRef
	core.v1.PodCertificateProjection.keyType core.v1.PodCertificateProjection.signerName
	networking.v1.IPAddress.spec networking.v1.IPAddressSpec.parentRef networking.v1.ParentReference.name networking.v1.ParentReference.resource
	resource.v1.CapacityRequestPolicyRange.min resource.v1.CounterSet.counters resource.v1.DeviceCounterConsumption.counters`)

var writtenButOptional = strings.Fields(`
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
	scheduling.v1.PriorityClass.value storage.v1.CSINodeDriver.topologyKeys`)

// describe is the schema of a field's type: by reference when it has a name among the schemas.
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
		return &oaSchema{Type: "string"}
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
	return schemaRef(typeName(t))
}

// An oaVerb is what a verb of a resource looks like as an operation.
type oaVerb struct {
	method, action, id, text string         // %s in text is the kind
	responses                string         // codes beside 401
	options                  []reflect.Type // whose fields are the query parameters
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
)

// An oaTarget is what a path's operations are about.
type oaTarget struct {
	path, id   string // id is the middle of operation ids, NamespacedPod
	kind       metav1.GroupVersionKind
	body, list *oaSchema
}

func (d *oaDocument) addPaths(res *resource) {
	kind := metav1.GroupVersionKind{Group: res.group, Version: res.version, Kind: res.kind}
	all := oaTarget{path: groupVersionPath(res) + "/" + res.plural, id: res.kind, kind: kind, body: schemaRef(modelName(res)), list: schemaRef(listName(res))}
	each := all
	if res.namespaced {
		each.path, each.id = groupVersionPath(res)+"/namespaces/{namespace}/"+res.plural, "Namespaced"+res.kind
		all.id += "ForAllNamespaces"
		if res.allows("list") {
			d.addOperation(res, all, "list")
		}
	}
	one := each
	one.path += "/{name}"
	for _, verb := range res.verbs {
		switch verb {
		case "watch":
		case "list", "create", "deletecollection":
			d.addOperation(res, each, verb)
		default:
			d.addOperation(res, one, verb)
		}
	}
	if res.allows("create") && !res.allows("patch") { // a review: kubectl asks a type's patch whether the server validates fields, or else /openapi/v2
		d.addOperation(res, one, "patch")
	}
}

func (d *oaDocument) addSubresource(res *resource, sub *subresource) {
	scope := ""
	path := groupVersionPath(res) + "/" + res.plural + "/{name}/" + sub.name
	if res.namespaced {
		scope = "Namespaced"
		path = groupVersionPath(res) + "/namespaces/{namespace}/" + res.plural + "/{name}/" + sub.name
	}
	target := oaTarget{path: path, id: scope + res.kind + titleCase(sub.name),
		kind: metav1.GroupVersionKind{Group: sub.group, Version: sub.version, Kind: sub.kind}}
	switch wire := res.bodyOf(sub.name).wire; {
	case sub.name == "log" || wire == nil && sub.kind != res.kind:
		target.body = &oaSchema{Type: "string"}
	case sub.kind == res.kind:
		target.body = schemaRef(modelName(res))
	default:
		target.body = d.reference(wire)
	}
	for _, verb := range sub.verbs {
		d.addOperation(res, target, verb)
	}
	if sub.name == "log" {
		d.paths[path]["parameters"] = append(d.paths[path]["parameters"].([]oaParameter), d.query("log", reflect.TypeFor[corev1.PodLogOptions]())...)
	}
}

func (d *oaDocument) addOperation(res *resource, target oaTarget, verb string) {
	v := oaVerbs[verb]
	id := v.id + groupTitle(res.group) + titleCase(res.version)
	if verb == "deletecollection" {
		id += "Collection"
	}
	op := &oaOperation{
		Tags:        []string{strings.ToLower(groupTitle(res.group)[:1]) + groupTitle(res.group)[1:] + "_" + res.version},
		Description: fmt.Sprintf(v.text, target.kind.Kind), OperationID: id + target.id,
		Parameters: d.query(verb, v.options...), RequestBody: d.requestBody(target, verb), Responses: map[string]oaBody{"401": {Description: "Unauthorized"}},
		Action: v.action, Kind: target.kind,
	}
	if connects := strings.HasSuffix(target.kind.Kind, "Options"); connects {
		op.Action, op.RequestBody, op.Parameters = "connect", nil, nil
		op.OperationID = "connect" + groupTitle(res.group) + titleCase(res.version) + titleCase(v.method) + target.id
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
		if target.kind.Kind != "" && !isCustom(d, target) {
			content["application/strategic-merge-patch+json"] = patch
		}
		return &oaBody{Required: true, Content: content}
	}
	return nil
}

// isCustom tells by the schema: only a custom resource's own is not ours.
func isCustom(d *oaDocument, target oaTarget) bool {
	schema := d.schemas[strings.TrimPrefix(target.body.Ref, "#/components/schemas/")]
	_, ours := schema.(*oaSchema)
	return schema != nil && !ours
}

func (d *oaDocument) responseContent(target oaTarget, verb string) map[string]oaMedia {
	schema := target.body
	switch verb {
	case "list":
		schema = target.list
	case "delete", "deletecollection":
		schema = d.reference(reflect.TypeFor[metav1.Status]())
	}
	content := map[string]oaMedia{"application/json": {schema}, "application/yaml": {schema}}
	if verb == "list" {
		content["application/json;stream=watch"] = oaMedia{schema}
	}
	return content
}

// query turns the fields of options types into query parameters, by name. They are made once a document.
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

var paramTypes = map[reflect.Kind]string{reflect.String: "string", reflect.Bool: "boolean", reflect.Int64: "integer"}

func elemKind(t reflect.Type) reflect.Kind {
	if t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		return t.Elem().Kind()
	}
	return reflect.Invalid
}

// pathParameters are the parameters that all methods of a path have.
func pathParameters(path string) (params []oaParameter) {
	texts := map[string]string{"name": "name of the object", "namespace": "object name and auth scope, such as for teams and projects"}
	for _, name := range []string{"name", "namespace"} {
		if strings.Contains(path, "{"+name+"}") {
			params = append(params, oaParameter{Name: name, In: "path", Description: texts[name], Required: true,
				Schema: oaSchema{Type: "string", UniqueItems: true}})
		}
	}
	return append(params, oaParameter{Name: "pretty", In: "query", Description: "If 'true', then the output is pretty printed.",
		Schema: oaSchema{Type: "string", UniqueItems: true}})
}

// groupTitle is a group in operation ids: Core, Apps, RbacAuthorization.
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
