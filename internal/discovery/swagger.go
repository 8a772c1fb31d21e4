package discovery

// This file describes the same API as openapi.go in one Swagger 2.0 document at /openapi/v2. It is
// read by kubectl up to 1.33, when a kind is missing in version 3, and by Helm, Argo CD and
// Terraform's provider.
//
// The document is converted from the version 3 descriptions. The paths and definitions are
// generated and sent one at a time. This avoids holding the document in memory, which may be larger
// than two megabytes, but requires two passes. The differences between the versions are:
//
//	version 3                                            version 2
//	#/components/schemas/io.x.v1.Foo                     #/definitions/io.x.v1.Foo
//	requestBody: content: {a/b: {schema}}                consumes: [a/b], and a parameter in: body
//	responses: 200: content: {a/b: {schema}}             produces: [a/b], responses: 200: schema
//	parameters: [{name, in, schema: {type}}]             parameters: [{name, in, type}], or a $ref to a shared parameter
//	{description, allOf: [{$ref}]}                       {description, $ref}
//	oneOf: [{type: string}, {type: number}]              type: string
//
// Swagger cannot express some parts of a custom resource's schema, and old kubectl versions
// validate objects with the remaining parts. Nullable values therefore lose their type, and objects
// with unknown fields lose all properties.
//
// The document can be encoded as JSON or as protobuf. The protobuf encoding is defined by
// github.com/google/gnostic-models and is used by client-go.

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"apilet/internal/limits"
	"apilet/internal/response"
	"apilet/internal/scheme"
)

// The protobuf media types of /openapi/v2. Clients can request either type, but the response always
// uses the second.
const (
	swaggerProtobufOld = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
	swaggerProtobuf    = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
)

// ServeSwagger serves /openapi/v2. If o is not nil, the documents of other servers are merged into
// the response.
func ServeSwagger(reg *scheme.Registry, o *RemoteVersions, w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Vary", "Accept-Encoding")
	header.Add("Vary", "Accept")
	header.Set("Cache-Control", "no-cache, private")
	format := swaggerFormat(r.Header.Get("Accept"))
	if format == "" {
		w.WriteHeader(http.StatusNotAcceptable)
		return
	}
	c := reg.Current.Load()
	etag := `"` + openAPIHash(c.Sorted)
	for _, of := range o.swaggers() {
		etag += "-" + strings.Trim(of.ETag, `W/"`)
	}
	etag += `"`
	header.Set("ETag", etag)
	if r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	header.Set("Content-Type", format)
	if r.Method == http.MethodHead {
		return
	}
	const about = 2 << 20
	// for the buffers
	if err := limits.Reserve(r.Context(), w, about); err != nil {
		response.Refuse(w, r, err)
		return
	}
	out, finish := response.Compress(w, r, about)
	defer finish()
	buffered := bufio.NewWriterSize(out, 32<<10)
	if err := writeSwagger(c, o, swaggerEncoder(format, buffered)); err != nil {
		// The partial document is not valid.
		panic(http.ErrAbortHandler)
	}
	_ = buffered.Flush() // fails only if the client is gone
}

// swaggerFormat returns the media type of the response, or "" if the client accepts none.
func swaggerFormat(accept string) string {
	if accept == "" {
		return string(scheme.JSONFormat)
	}
	for _, clause := range response.ParseAccept(accept) {
		switch clause.Name {
		case "*/*", "*", "application/*", string(scheme.JSONFormat):
			return string(scheme.JSONFormat)
		case swaggerProtobufOld, swaggerProtobuf:
			return swaggerProtobuf
		}
	}
	return ""
}

// swaggerSink writes a document piece by piece. Entries belong to the current section.
type swaggerSink interface {
	head(members map[string]any) error
	section(name string) error
	entry(name string, value map[string]any) error
	end() error
}

func swaggerEncoder(format string, out io.Writer) swaggerSink {
	if format == swaggerProtobuf {
		return &swaggerWire{out: out, grammar: swaggerGrammar()}
	}
	return &swaggerText{out: out}
}

// writeSwagger writes the document of all resources in c and o.
func writeSwagger(c *scheme.Catalog, o *RemoteVersions, sink swaggerSink) error {
	if err := sink.head(map[string]any{
		"swagger": "2.0", "info": asTree(openAPIInfo()), "security": []any{map[string]any{"BearerToken": []any{}}},
		"securityDefinitions": asTree(openAPISecurity),
	}); err != nil {
		return err
	}
	doc := &swagger{d: newOADocument(), sink: sink, shared: map[string]map[string]any{}, merged: o.mergedSwagger(c)}
	if err := doc.paths(c, o); err != nil {
		return err
	}
	if err := doc.definitions(c, o); err != nil {
		return err
	}
	if err := doc.parameters(); err != nil {
		return err
	}
	return sink.end()
}

// swagger writes a document to a sink.
type swagger struct {
	d      *oaDocument
	sink   swaggerSink
	shared map[string]map[string]any // shared parameters by name
	merged *mergedSwagger            // the parts of other servers
}

func (s *swagger) paths(c *scheme.Catalog, o *RemoteVersions) error {
	if err := s.sink.section("paths"); err != nil {
		return err
	}
	for _, r := range roots(c) {
		s.d.addRoot(r)
	}
	for _, rows := range c.GroupVersions() {
		if o.has(rows) {
			continue
		}
		if rows[0].GoType != nil {
			s.d.addRoot(listing(rows[0]))
		}
		for _, res := range rows {
			s.d.addAllPaths(res)
		}
		for _, path := range slices.Sorted(maps.Keys(s.d.paths)) {
			item := asTree(s.d.paths[path])
			for key, value := range item {
				if op, ok := value.(map[string]any); ok {
					item[key] = s.operation(op)
				}
			}
			item["parameters"] = s.inlined(item["parameters"])
			if err := s.sink.entry(path, item); err != nil {
				return err
			}
		}
		clear(s.d.paths)
	}
	for _, of := range s.merged.parts {
		if err := s.send(of.paths); err != nil {
			return err
		}
	}
	return nil
}

// operation converts an operation from version 3 to version 2.
func (s *swagger) operation(op map[string]any) map[string]any {
	op["schemes"], op["consumes"] = []any{"https"}, []any{"*/*"}
	parameters := s.inlined(op["parameters"])
	if body, ok := op["requestBody"].(map[string]any); ok {
		types, schema := unpacked(body)
		op["consumes"] = types
		parameter := map[string]any{"name": "body", "in": "body", "schema": schema}
		if body["required"] == true {
			parameter["required"] = true
		}
		parameters = append(parameters, parameter)
	}
	delete(op, "requestBody")
	delete(op, "parameters")
	if len(parameters) > 0 {
		op["parameters"] = parameters
	}
	for _, response := range op["responses"].(map[string]any) {
		response := response.(map[string]any)
		if types, schema := unpacked(response); types != nil {
			op["produces"], response["schema"] = types, schema
		}
		delete(response, "content")
	}
	return op
}

// unpacked returns the media types of a body and its schema. Version 3 repeats the schema for each
// media type.
func unpacked(of map[string]any) (types []any, schema any) {
	media, _ := of["content"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(media)) {
		types, schema = append(types, name), swaggerSchema(media[name].(map[string]any)["schema"])
	}
	return types, schema
}

// inlined converts parameters to version 2 and replaces them with references to shared parameters.
// The two parameters that kubectl up to 1.26 looks for stay in place.
func (s *swagger) inlined(list any) (parameters []any) {
	all, _ := list.([]any)
	for _, item := range all {
		p := item.(map[string]any)
		schema := p["schema"].(map[string]any)
		delete(p, "schema")
		maps.Copy(p, schema)
		name := p["name"].(string)
		if name == "fieldValidation" || name == "dryRun" {
			parameters = append(parameters, p)
			continue
		}
		parameters = append(parameters, map[string]any{"$ref": "#/parameters/" + s.share(name, p)})
	}
	return parameters
}

// share returns the name of a shared parameter. Some names, such as container, have several
// meanings and get a suffix.
func (s *swagger) share(name string, p map[string]any) string {
	for {
		known := s.shared[name]
		if known == nil {
			s.shared[name] = p
			return name
		}
		if known["description"] == p["description"] && known["type"] == p["type"] && known["in"] == p["in"] {
			return name
		}
		name += "_"
	}
}

func (s *swagger) parameters() error {
	if err := s.sink.section("parameters"); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(s.shared)) {
		if err := s.sink.entry(name, s.shared[name]); err != nil {
			return err
		}
	}
	return nil
}

func (s *swagger) definitions(c *scheme.Catalog, o *RemoteVersions) error {
	if err := s.sink.section("definitions"); err != nil {
		return err
	}
	s.d.define(watchEvent)
	if err := s.flush(); err != nil { // the schemas that the paths refer to
		return err
	}
	for _, rows := range c.GroupVersions() {
		if o.has(rows) {
			continue
		}
		for _, res := range rows {
			// its CustomResourceDefinition has been deleted meanwhile
			if s.d.addKind(res) != nil {
				bare := *res
				bare.Schema = nil
				_ = s.d.addKind(&bare)
			}
			if err := s.flush(); err != nil {
				return err
			}
		}
	}
	for _, of := range s.merged.parts {
		if err := s.send(of.definitions); err != nil {
			return err
		}
	}
	return nil
}

// flush sends the pending schemas. The names are kept to avoid duplicates.
func (s *swagger) flush() error {
	for _, name := range slices.Sorted(maps.Keys(s.d.schemas)) {
		schema := s.d.schemas[name]
		s.d.schemas[name] = sentSchema{}
		value := asTree(schema)
		switch schema.(type) {
		case sentSchema:
			continue
		case *oaSchema:
			value = swaggerSchema(value).(map[string]any)
		default:
			value = swaggerCustom(value)
		}
		if kinds := s.merged.kinds[name]; kinds != nil {
			value[kindsMember] = kinds
		}
		if err := s.sink.entry(name, value); err != nil {
			return err
		}
	}
	return nil
}

// sentSchema replaces a schema that has been sent.
type sentSchema struct{}

// asTree returns a value as decoded JSON.
func asTree(value any) (members map[string]any) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil
	}
	numbers := json.NewDecoder(bytes.NewReader(text))
	numbers.UseNumber()
	_ = numbers.Decode(&members) // it has just been encoded
	return members
}

// ---- Schemas ----

// swaggerSchema converts a generated schema, and all schemas in it, to version 2.
func swaggerSchema(value any) any {
	switch v := value.(type) {
	case []any:
		for i := range v {
			v[i] = swaggerSchema(v[i])
		}
	case map[string]any:
		delete(v, "default") // kube-apiserver does not publish defaults in version 2
		for key, member := range v {
			// the keys are names of properties
			if properties, ok := member.(map[string]any); ok && key == "properties" {
				for name, property := range properties {
					properties[name] = swaggerSchema(property)
				}
				continue
			}
			v[key] = swaggerSchema(member)
		}
		if ref, ok := v["$ref"].(string); ok {
			v["$ref"] = strings.Replace(ref, "#/components/schemas/", "#/definitions/", 1)
		}
		if all, ok := v["allOf"].([]any); ok && len(all) == 1 {
			delete(v, "allOf")
			maps.Copy(v, all[0].(map[string]any))
		}
		if _, either := v["oneOf"].([]any); either {
			delete(v, "oneOf")
			v["type"] = "string"
		}
	}
	return value
}

// swaggerCustom converts the schema of a custom resource to version 2.
func swaggerCustom(schema map[string]any) map[string]any {
	const anything = "x-kubernetes-preserve-unknown-fields"
	// kubectl would treat the listed properties as the only ones
	if schema[anything] == true {
		return map[string]any{"type": "object", "x-kubernetes-group-version-kind": schema["x-kubernetes-group-version-kind"]}
	}
	simplify(schema)
	return schema
}

// simplify removes everything from a user's schema that is not supported by version 2 or by
// kubectl.
func simplify(schema map[string]any) {
	for _, key := range []string{"allOf", "anyOf", "oneOf", "not"} {
		delete(schema, key)
	}
	nullable, open := schema["nullable"] == true, schema["x-kubernetes-preserve-unknown-fields"] == true
	if nullable {
		delete(schema, "type")
		delete(schema, "nullable")
	}
	if nullable || open {
		delete(schema, "items")
		delete(schema, "properties")
	}
	if schema["items"] == nil && schema["type"] == "array" || open && schema["type"] == "object" {
		delete(schema, "type")
	}
	properties, _ := schema["properties"].(map[string]any)
	for name, value := range properties {
		property, _ := value.(map[string]any)
		if property["nullable"] == true {
			dropRequired(schema, name)
		}
		if all, ok := property["allOf"].([]any); ok && len(all) == 1 && refers(all) {
			swaggerSchema(property)
			continue
		}
		simplify(property)
	}
	if values, ok := schema["additionalProperties"].(map[string]any); ok {
		if values["nullable"] == true {
			delete(schema, "required")
		}
		simplify(values)
	}
	if items, ok := schema["items"].(map[string]any); ok {
		simplify(items)
	}
}

// refers reports whether allOf contains a reference. Only generated schemas contain references.
func refers(all []any) bool {
	first, _ := all[0].(map[string]any)
	return first["$ref"] != nil
}

func dropRequired(schema map[string]any, name string) {
	required, _ := schema["required"].([]any)
	required = slices.DeleteFunc(required, func(other any) bool { return other == name })
	if schema["required"] = required; len(required) == 0 {
		delete(schema, "required")
	}
}

// ---- JSON ----

// swaggerText writes JSON.
type swaggerText struct {
	out   io.Writer
	comma bool // a comma is needed before the next member
	open  bool // a section must be closed
}

func (t *swaggerText) member(name string) error {
	key, _ := json.Marshal(name)
	if t.comma {
		key = append([]byte{','}, key...)
	}
	t.comma = true
	_, err := t.out.Write(append(key, ':'))
	return err
}

func (t *swaggerText) head(members map[string]any) error {
	doc, err := json.Marshal(members)
	if err != nil {
		return err
	}
	t.comma = true
	_, err = t.out.Write(doc[:len(doc)-1])
	return err
}

func (t *swaggerText) section(name string) error {
	if err := t.close(); err != nil {
		return err
	}
	if err := t.member(name); err != nil {
		return err
	}
	t.comma, t.open = false, true
	_, err := io.WriteString(t.out, "{")
	return err
}

func (t *swaggerText) close() (err error) {
	if t.open {
		_, err = io.WriteString(t.out, "}")
	}
	t.comma, t.open = true, false
	return err
}

func (t *swaggerText) entry(name string, value map[string]any) error {
	if err := t.member(name); err != nil {
		return err
	}
	doc, err := json.Marshal(value)
	if err != nil {
		return err
	}
	_, err = t.out.Write(doc)
	return err
}

func (t *swaggerText) end() error {
	err := t.close()
	if err == nil {
		_, err = io.WriteString(t.out, "}")
	}
	return err
}

// ---- Protobuf ----

// swaggerWire writes protobuf. Since protobuf messages can be concatenated, each path and each
// definition is sent as a separate Document with a single entry.
type swaggerWire struct {
	out     io.Writer
	grammar map[string]map[string]wireField
	part    wireField // the current section
}

func (t *swaggerWire) head(members map[string]any) error {
	_, err := t.out.Write(t.message(nil, "Document", members))
	return err
}

func (t *swaggerWire) section(name string) error {
	t.part = t.grammar["Document"][name]
	return nil
}

func (t *swaggerWire) entry(name string, value map[string]any) error {
	_, err := t.out.Write(t.field(nil, t.part, map[string]any{name: value}))
	return err
}

func (t *swaggerWire) end() error { return nil }

// wireField describes the encoding of a member of a JSON object. path is its field number, preceded
// by those of the enclosing messages: 22.1 is field 1 of a message in field 22. kind is text,
// texts, flag, whole, number, any, anys, or a message. *M is a list of messages, and %M an object
// with arbitrary names and values of type M.
type wireField struct {
	path []protowire.Number
	kind string
}

// swaggerMessages describes the messages of OpenAPIv2.proto that are used here, one per line. The
// method choice handles the others.
const swaggerMessages = `
Document: swagger 1 text, info 2 Info, paths 8.2 %PathItem, definitions 9.1 %Schema, parameters 10.1 %Parameter, security 12 *Security, securityDefinitions 13.1 %SecurityItem
Info: title 1 text, version 2 text
ApiKey: type 1 text, name 2 text, in 3 text, description 4 text
PathItem: get 2 Operation, put 3 Operation, post 4 Operation, delete 5 Operation, options 6 Operation, head 7 Operation, patch 8 Operation, parameters 9 *ParametersItem
Operation: tags 1 texts, description 3 text, operationId 5 text, produces 6 texts, consumes 7 texts, parameters 8 *ParametersItem, responses 9.1 %ResponseValue, schemes 10 texts, x- 13
Response: description 1 text, schema 2.1 Schema
Reference: $ref 1 text
Body: name 2 text, in 3 text, required 4 flag, schema 5 Schema
Query: in 2 text, description 3 text, name 4 text, type 6 text, uniqueItems 20 flag
Path: required 1 flag, in 2 text, description 3 text, name 4 text, type 5 text, uniqueItems 19 flag
Schema: $ref 1 text, format 2 text, title 3 text, description 4 text, default 5 any, multipleOf 6 number, maximum 7 number, exclusiveMaximum 8 flag, minimum 9 number, exclusiveMinimum 10 flag, maxLength 11 whole, minLength 12 whole, pattern 13 text, maxItems 14 whole, minItems 15 whole, uniqueItems 16 flag, maxProperties 17 whole, minProperties 18 whole, required 19 texts, enum 20 anys, additionalProperties 21 Additional, type 22.1 text, items 23.1 Schema, properties 25.1 %Schema, externalDocs 29 Docs, example 30 any, x- 31
Docs: description 1 text, url 2 text
`

// swaggerGrammar parses the table. It is small and rarely used, so the result is not cached.
func swaggerGrammar() map[string]map[string]wireField {
	grammar := map[string]map[string]wireField{}
	for line := range strings.Lines(strings.TrimSpace(swaggerMessages)) {
		message, members, _ := strings.Cut(strings.TrimSpace(line), ": ")
		grammar[message] = map[string]wireField{}
		for member := range strings.SplitSeq(members, ", ") {
			name, rest, _ := strings.Cut(member, " ")
			numbers, kind, _ := strings.Cut(rest, " ")
			f := wireField{kind: kind}
			for digits := range strings.SplitSeq(numbers, ".") {
				n, _ := strconv.Atoi(digits)
				f.path = append(f.path, protowire.Number(n))
			}
			grammar[message][name] = f
		}
	}
	return grammar
}

// message appends the members that have a field in the message. Members that begin with x- become
// extensions.
func (t *swaggerWire) message(dst []byte, name string, members map[string]any) []byte {
	fields := t.grammar[name]
	for _, key := range slices.Sorted(maps.Keys(members)) {
		if f, ok := fields[key]; ok {
			dst = t.field(dst, f, members[key])
		} else if extension, ok := fields["x-"]; ok && strings.HasPrefix(key, "x-") {
			dst = appendBytes(dst, extension.path[0], appendBytes(appendText(nil, 1, key), 2, anyJSON(members[key])))
		}
	}
	return dst
}

// field appends one member. It omits a value whose type does not match the field, which is only
// possible in a user's schema.
func (t *swaggerWire) field(dst []byte, f wireField, value any) []byte {
	n := f.path[0]
	if len(f.path) > 1 {
		return appendBytes(dst, n, t.field(nil, wireField{f.path[1:], f.kind}, value))
	}
	if f.kind == "any" {
		return appendBytes(dst, n, anyJSON(value))
	}
	switch v := value.(type) {
	case string:
		if f.kind == "text" {
			return appendText(dst, n, v)
		}
	case bool:
		if f.kind == "flag" {
			return appendFlag(dst, n, v)
		}
		if f.kind == "Additional" {
			return appendBytes(dst, n, appendFlag(nil, 2, v))
		}
	case json.Number:
		return appendNumber(dst, n, f.kind, v)
	case []any:
		return t.list(dst, n, f.kind, v)
	case map[string]any:
		return t.object(dst, n, f.kind, v)
	}
	return dst
}

func (t *swaggerWire) list(dst []byte, n protowire.Number, kind string, items []any) []byte {
	if kind == "Scopes" {
		return appendBytes(dst, n, t.list(nil, 1, "texts", items))
	}
	for _, item := range items {
		text, isText := item.(string)
		members, isObject := item.(map[string]any)
		switch {
		case kind == "anys":
			dst = appendBytes(dst, n, anyJSON(item))
		case kind == "texts" && isText:
			dst = appendText(dst, n, text)
		case kind[0] == '*' && isObject:
			dst = t.object(dst, n, kind[1:], members)
		}
	}
	return dst
}

func (t *swaggerWire) object(dst []byte, n protowire.Number, kind string, members map[string]any) []byte {
	named, ok := strings.CutPrefix(kind, "%")
	if !ok {
		return appendBytes(dst, n, t.choice(kind, members))
	}
	for _, key := range slices.Sorted(maps.Keys(members)) {
		dst = appendBytes(dst, n, t.field(appendText(nil, 1, key), wireField{[]protowire.Number{2}, named}, members[key]))
	}
	return dst
}

// choice encodes a message. Some messages only wrap one of several alternatives.
func (t *swaggerWire) choice(kind string, members map[string]any) []byte {
	only := func(kind string, path ...protowire.Number) []byte {
		return t.field(nil, wireField{path, kind}, members)
	}
	switch {
	case kind == "Additional":
		return only("Schema", 1)
	case kind == "ResponseValue":
		return only("Response", 1)
	case kind == "Security":
		return only("%Scopes", 1)
	case kind == "SecurityItem":
		return only("ApiKey", 2)
	case kind == "ParametersItem" && members["$ref"] != nil:
		return only("Reference", 2)
	case kind == "ParametersItem":
		return only("Parameter", 1)
	case kind == "Parameter" && members["in"] == "body":
		return only("Body", 1)
	case kind == "Parameter" && members["in"] == "path":
		return only("Path", 2, 4)
	case kind == "Parameter":
		return only("Query", 2, 3)
	}
	return t.message(nil, kind, members)
}

func appendBytes(dst []byte, n protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(dst, n, protowire.BytesType), value)
}

func appendText(dst []byte, n protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(dst, n, protowire.BytesType), value)
}

func appendFlag(dst []byte, n protowire.Number, value bool) []byte {
	return protowire.AppendVarint(protowire.AppendTag(dst, n, protowire.VarintType), protowire.EncodeBool(value))
}

func appendNumber(dst []byte, n protowire.Number, kind string, value json.Number) []byte {
	number, err := value.Float64()
	switch {
	case err != nil:
	case kind == "number":
		dst = protowire.AppendFixed64(protowire.AppendTag(dst, n, protowire.Fixed64Type), math.Float64bits(number))
	case kind == "whole":
		dst = protowire.AppendVarint(protowire.AppendTag(dst, n, protowire.VarintType), uint64(int64(number)))
	}
	return dst
}

// anyJSON encodes the message Any. Its field yaml may contain JSON.
func anyJSON(value any) []byte {
	text, _ := json.Marshal(value)
	return appendBytes(nil, 2, text)
}
