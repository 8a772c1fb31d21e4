package discovery

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"reflect"
	"strings"
	"testing"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime/schema"
	openapiproto "k8s.io/kube-openapi/pkg/util/proto"
	"sigs.k8s.io/yaml"

	"apilet/internal/apitest"
	"apilet/internal/scheme"
	"apilet/internal/scheme/schemetest"
)

// everyWord is a custom resource's schema with all that a schema may have.
const everyWord = `{"type":"object","description":"A <gadget>.","required":["spec","maybe"],"properties":{
	"spec":{"type":"object","title":"T","minProperties":1,"maxProperties":9,"externalDocs":{"url":"https://x.io","description":"d"},"properties":{
		"size":{"type":"integer","format":"int64","minimum":1,"maximum":9007199254740993,"exclusiveMinimum":true,"multipleOf":0.5,"default":3},
		"name":{"type":"string","pattern":"^[a-z]+$","minLength":2,"maxLength":10,"enum":["ab","cd"],"default":"ab","example":"x"},
		"tags":{"type":"array","minItems":1,"maxItems":3,"uniqueItems":true,"items":{"type":"string"},"x-kubernetes-list-type":"set"},
		"any":{"x-kubernetes-preserve-unknown-fields":true,"type":"object","properties":{"a":{"type":"string"}}},
		"either":{"x-kubernetes-int-or-string":true,"anyOf":[{"type":"integer"},{"type":"string"}]},
		"labels":{"type":"object","additionalProperties":{"type":"string"}},
		"all":{"type":"object","additionalProperties":true},
		"flag":{"type":"boolean","default":false},
		"template":{"type":"object","x-kubernetes-embedded-resource":true,"properties":{"metadata":{"type":"object"}}}}},
	"maybe":{"type":"object","nullable":true,"properties":{"b":{"type":"string"}}}},
	"x-kubernetes-validations":[{"rule":"true","message":"é\n\"\u2028"}]}`

// swaggerRegistry serves two custom kinds beside the built-in ones.
func swaggerRegistry() *scheme.Registry {
	reg := scheme.NewRegistry()
	foo, open := schemetest.CustomFoo(), schemetest.CustomFoo()
	foo.Schema = func() (json.RawMessage, error) { return json.RawMessage(everyWord), nil }
	foo.Verbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	open.Kind, open.Plural, open.ListKind = "Bar", "bars", "BarList"
	open.Schema = func() (json.RawMessage, error) {
		return json.RawMessage(`{"type":"object","x-kubernetes-preserve-unknown-fields":true,"properties":{"spec":{"type":"object"}}}`), nil
	}
	reg.ReplaceCustom([]*scheme.Resource{foo, open})
	return reg
}

// swaggerDocument reads /openapi/v2 as JSON.
func swaggerDocument(t *testing.T, reg *scheme.Registry) (text []byte, doc map[string]any) {
	w := askDiscovery(t, reg, "/openapi/v2")
	if err := json.Unmarshal(w.Body.Bytes(), &doc); w.Code != 200 || err != nil {
		t.Fatalf("%d %v", w.Code, err)
	}
	return w.Body.Bytes(), doc
}

// wireDocument reads it as protobuf.
func wireDocument(t *testing.T, reg *scheme.Registry, accept string) *openapi_v2.Document {
	w := askDiscovery(t, reg, "/openapi/v2", "Accept", accept)
	if got := w.Header().Get("Content-Type"); w.Code != 200 || got != swaggerProtobuf {
		t.Fatalf("%s: %d %s", accept, w.Code, got)
	}
	doc := &openapi_v2.Document{}
	if err := proto.Unmarshal(w.Body.Bytes(), doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

// The library that clients read the document with makes of our JSON what our protobuf says.
func TestSwaggerIsTheSameInBothEncodings(t *testing.T) {
	t.Parallel()
	few := &scheme.Catalog{}
	for _, res := range swaggerRegistry().All() { // whose library takes seconds for all of them
		if res.Group == "x.io" || res.Kind == "TokenReview" || res.Kind == "PodDisruptionBudget" {
			few.Sorted = append(few.Sorted, res)
		}
	}
	var text, wire bytes.Buffer
	for format, out := range map[string]io.Writer{"application/json": &text, swaggerProtobuf: &wire} {
		if err := writeSwagger(few, nil, swaggerEncoder(format, out)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := openapi_v2.ParseDocument(text.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	got := &openapi_v2.Document{}
	if err := proto.Unmarshal(wire.Bytes(), got); err != nil {
		t.Fatal(err)
	}
	if a, b := plainYAML(t, got), plainYAML(t, want); a != b || len(a) < 10000 {
		t.Errorf("%d bytes: %s", len(a), apitest.FirstDifference(a, b))
	}
}

// plainYAML writes a document with all that is kept as YAML within it, which may be written in several ways, in one of them.
func plainYAML(t *testing.T, doc *openapi_v2.Document) string {
	t.Helper()
	sameYAML(reflect.ValueOf(doc))
	text, err := doc.YAMLValue("")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func sameYAML(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if kept, ok := v.Interface().(*openapi_v2.Any); ok && kept != nil {
			var value any
			_ = yaml.Unmarshal([]byte(kept.Yaml), &value)
			text, _ := json.Marshal(value)
			kept.Yaml = string(text)
			return
		}
		if !v.IsNil() {
			sameYAML(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			sameYAML(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				sameYAML(v.Field(i))
			}
		}
	}
}

func TestSwaggerHoldsTogether(t *testing.T) {
	t.Parallel()
	reg := swaggerRegistry()
	text, doc := swaggerDocument(t, reg)
	walkJSON(doc, func(key string, value any) {
		if key != "$ref" {
			return
		}
		kind, name, _ := strings.Cut(strings.TrimPrefix(toString(value), "#/"), "/")
		if section, _ := doc[kind].(map[string]any); section[name] == nil {
			t.Errorf("%v leads nowhere", value)
		}
	})
	for _, word := range []string{"components/schemas", `"requestBody"`, `"oneOf"`, `"anyOf"`, `"allOf"`, `"nullable"`} {
		if bytes.Contains(text, []byte(word)) {
			t.Errorf("version 2 has no %s", word)
		}
	}
	for _, res := range reg.All() {
		path := groupVersionPath(res) + "/" + res.Plural
		if res.Namespaced {
			path = groupVersionPath(res) + "/namespaces/{namespace}/" + res.Plural
		}
		item, _ := doc["paths"].(map[string]any)[path].(map[string]any)
		for method, action := range map[string]string{"get": "list", "post": "create"} {
			if op, _ := item[method].(map[string]any); res.Allows(action) && (op == nil || op["x-kubernetes-action"] != strings.Replace(action, "create", "post", 1)) {
				t.Errorf("%s of %s is %v", method, path, op)
			}
		}
		if doc["definitions"].(map[string]any)[modelName(res)] == nil {
			t.Errorf("%s is not defined", modelName(res))
		}
	}
}

func TestSwaggerOfCustomResourcesIsKubeAPIServers(t *testing.T) {
	t.Parallel()
	_, doc := swaggerDocument(t, swaggerRegistry())
	definitions := doc["definitions"].(map[string]any)
	cases := []struct{ path, want string }{
		{"io.x.v1.Bar", `{"type":"object","x-kubernetes-group-version-kind":[{"group":"x.io","kind":"Bar","version":"v1"}]}`},
		{"io.x.v1.Foo/required", `["spec"]`},
		{"io.x.v1.Foo/properties/maybe", `{}`},
		{"io.x.v1.Foo/properties/metadata/$ref", `"#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"`},
		{"io.x.v1.Foo/properties/spec/properties/any", `{"x-kubernetes-preserve-unknown-fields":true}`},
		{"io.x.v1.Foo/properties/spec/properties/either", `{"x-kubernetes-int-or-string":true}`},
		{"io.x.v1.Foo/properties/spec/properties/size/maximum", `9007199254740992`},
		{"io.x.v1.Foo/properties/spec/properties/template/required", `["kind","apiVersion"]`},
		{"io.x.v1.Foo/properties/spec/properties/template/properties/metadata/$ref", `"#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"`},
		{"io.k8s.apimachinery.pkg.api.resource.Quantity/type", `"string"`},
		{"io.k8s.apimachinery.pkg.util.intstr.IntOrString/format", `"int-or-string"`},
		{"io.k8s.api.core.v1.PodSpec/properties/affinity", `{"$ref":"#/definitions/io.k8s.api.core.v1.Affinity","description":"If specified, the pod's scheduling constraints"}`},
		{"io.k8s.api.core.v1.PodSpec/properties/containers/x-kubernetes-patch-merge-key", `"name"`},
	}
	for _, c := range cases {
		var value any = definitions
		for step := range strings.SplitSeq(c.path, "/") {
			members, _ := value.(map[string]any)
			value = members[step]
		}
		if got, _ := json.Marshal(value); string(got) != c.want {
			t.Errorf("%s\ngot  %s\nwant %s", c.path, got, c.want)
		}
	}
}

// What kubectl's validation does: it looks up a kind by its extension, and checks objects against what it finds.
func TestSwaggerModelsAreFoundByKind(t *testing.T) {
	t.Parallel()
	reg := swaggerRegistry()
	models, err := openapiproto.NewOpenAPIData(wireDocument(t, reg, swaggerProtobufOld))
	if err != nil {
		t.Fatal(err)
	}
	known := map[schema.GroupVersionKind]bool{}
	for _, name := range models.ListModels() {
		kinds, _ := models.LookupModel(name).GetExtensions()["x-kubernetes-group-version-kind"].([]any)
		for _, kind := range kinds {
			text, _ := json.Marshal(jsonKeys(kind))
			var gvk schema.GroupVersionKind
			_ = json.Unmarshal(text, &gvk)
			known[gvk] = true
		}
	}
	for _, res := range reg.All() {
		if !known[res.GroupVersionKind()] {
			t.Errorf("no model is a %v", res.GroupVersionKind())
		}
	}
}

// jsonKeys are YAML's members with the keys that JSON can have.
func jsonKeys(value any) map[string]any {
	members := map[string]any{}
	for _, key := range reflect.ValueOf(value).MapKeys() {
		members[key.Interface().(string)] = reflect.ValueOf(value).MapIndex(key).Interface()
	}
	return members
}

func TestSwaggerIsNegotiatedAndNotSentTwice(t *testing.T) {
	t.Parallel()
	reg := swaggerRegistry()
	for accept, want := range map[string]string{"": "application/json", "*/*": "application/json", "application/*": "application/json",
		"text/html, application/json;q=0.5": "application/json", "application/yaml": "", "text/html": "",
		swaggerProtobufOld: swaggerProtobuf, swaggerProtobuf: swaggerProtobuf, swaggerProtobufOld + ",application/json": swaggerProtobuf} {
		if got := swaggerFormat(accept); got != want {
			t.Errorf("%q is answered in %q, want %q", accept, got, want)
		}
	}
	if w := askDiscovery(t, reg, "/openapi/v2", "Accept", "application/yaml"); w.Code != 406 || w.Body.Len() > 0 {
		t.Errorf("YAML: %d %s", w.Code, w.Body)
	}
	plain := askDiscovery(t, reg, "/openapi/v2")
	etag := plain.Header().Get("ETag")
	if w := askDiscovery(t, reg, "/openapi/v2", "If-None-Match", etag); w.Code != 304 || w.Body.Len() > 0 || w.Header().Get("ETag") != etag {
		t.Errorf("with ETag: %d, %d bytes", w.Code, w.Body.Len())
	}
	packed := askDiscovery(t, reg, "/openapi/v2", "Accept-Encoding", "gzip")
	z, err := gzip.NewReader(packed.Body)
	if err != nil || packed.Header().Get("Content-Encoding") != "gzip" {
		t.Fatal(err, packed.Header())
	}
	if text, err := io.ReadAll(z); err != nil || !bytes.Equal(text, plain.Body.Bytes()) {
		t.Errorf("gzip holds %d bytes of %d: %v", len(text), plain.Body.Len(), err)
	}
	reg.ReplaceCustom(nil)
	if w := askDiscovery(t, reg, "/openapi/v2", "If-None-Match", etag); w.Code != 200 || bytes.Contains(w.Body.Bytes(), []byte("io.x.v1.Foo")) {
		t.Errorf("after the definition went: %d", w.Code)
	}
}

// A document is sent while it is made: what is held at once is a small part of it.
func TestSwaggerIsNotHeldInMemory(t *testing.T) {
	reg := swaggerRegistry()
	var largest, all int
	count := writerFunc(func(p []byte) (int, error) {
		all += len(p)
		largest = max(largest, len(p))
		return len(p), nil
	})
	if err := writeSwagger(reg.Current.Load(), nil, swaggerEncoder(swaggerProtobuf, count)); err != nil {
		t.Fatal(err)
	}
	if all < 1<<20 || largest > 128<<10 {
		t.Errorf("of %d bytes %d were written at once", all, largest)
	}
}

type writerFunc func([]byte) (int, error)

func BenchmarkSwagger(b *testing.B) {
	c := scheme.NewRegistry().Current.Load()
	b.ReportAllocs()
	for b.Loop() {
		if err := writeSwagger(c, nil, swaggerEncoder(swaggerProtobuf, io.Discard)); err != nil {
			b.Fatal(err)
		}
	}
}

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
