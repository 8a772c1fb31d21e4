package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	"sigs.k8s.io/yaml"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
	"apilet/internal/store"
)

const (
	definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	gadgets         = "/apis/example.com/v1/namespaces/default/gadgets"
	planets         = "/apis/example.com/v2/planets"
	asMergePatch    = "Content-Type: application/merge-patch+json"
	asJSONPatch     = "Content-Type: application/json-patch+json"
)

// definitionFile returns a definition of testdata/crds as JSON.
func definitionFile(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../testdata/crds/" + name + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(asJSON)
}

// define creates a definition.
func (s *testServer) define(file string) {
	s.t.Helper()
	s.want(201, "POST", definitionsPath, definitionFile(s.t, file))
}

func gadget(t testing.TB, name, spec string) string {
	t.Helper()
	return kubetest.FromFlow(t, fmt.Sprintf(`{apiVersion: example.com/v1, kind: Gadget, metadata: {name: %s}, spec: {%s}}`, name, spec))
}

func TestTypeIsServedWhenItsDefinitionIsAnswered(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	if a := s.send("GET", gadgets, ""); a.code != 404 || strings.HasPrefix(string(a.body), "{") {
		t.Errorf("before the definition: %d %s, want 404 in plain text", a.code, a.body)
	}
	s.define("gadgets")
	s.want(200, "GET", gadgets, "")
	s.want(201, "POST", gadgets, gadget(t, "a", ""))
	names := s.want(200, "GET", "/apis/example.com/v1", "").get("resources.#.name").String()
	if want := `["gadgets","gadgets/status","gadgets/scale"]`; names != want {
		t.Errorf("discovery names %s, want %s", names, want)
	}
	schema := s.want(200, "GET", "/openapi/v3/apis/example.com/v1", "").get(`components.schemas.com\.example\.v1\.Gadget.properties.spec.properties.color.default`)
	if schema.String() != "red" {
		t.Errorf("openapi's default of color is %q, want red", schema)
	}
	def := s.want(200, "GET", definitionsPath+"/gadgets.example.com", "")
	got := fmt.Sprint(def.get("spec.names.singular"), def.get("spec.names.listKind"), def.get("spec.conversion.strategy"),
		def.get("status.storedVersions"), def.get(`status.conditions.#.type`), def.get(`status.conditions.#.status`), def.get("status.acceptedNames.shortNames"))
	if want := `gadget GadgetList None ["v1"] ["NamesAccepted","Established"] ["True","True"] ["gd"]`; got != want {
		t.Errorf("definition:\n%s\nwant:\n%s", got, want)
	}
}

func TestDefinitionsAreJudged(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	object := func(more string) string {
		return kubetest.SimpleDefinition(t, "Bad", "example.com", `{type: object}`, more)
	}
	field := func(schema string) string {
		return kubetest.SimpleDefinition(t, "Bad", "example.com", `{type: object, properties: {a: `+schema+`}}`, "")
	}
	deprecated := func(text string) string {
		quoted, _ := json.Marshal(text)
		return object(`, deprecated: true, deprecationWarning: ` + string(quoted))
	}
	for name, c := range map[string][2]string{
		"warning without deprecation": {object(`, deprecationWarning: x`), "spec.versions[0].deprecationWarning: Invalid value: \"x\": can only be set for deprecated versions"},
		"257 bytes":                   {deprecated(strings.Repeat("x", 257)), "must be <= 256 characters long"},
		"86 runes of 3 bytes":         {deprecated(strings.Repeat("€", 86)), "must be <= 256 characters long"},
		"empty warning":               {deprecated(""), "must not be an empty string"},
		"newline":                     {deprecated("ab\nc"), "must only contain printable UTF-8 characters; non-printable character found at index 2"},
		"not structural":              {field(`{description: untyped}`), "openAPIV3Schema.properties[a].type: Required value: must not be empty for specified object fields"},
		"bad type":                    {field(`{type: strnig}`), `Unsupported value: "strnig": supported values: "array", "boolean", "integer", "number", "object", "string"`},
		"bad default":                 {field(`{type: integer, default: x}`), "properties[a].default"},
		"bad rule":                    {field(`{type: string, x-kubernetes-validations: [{rule: "self > 1"}]}`), "compilation failed: ERROR: <input>:1:6: found no matching overload for '_>_' applied to '(string, int)'"},
		"rule too dear": {field(`{type: array, items: {type: array, items: {type: string}}, x-kubernetes-validations: [{rule: "self.all(x, x.all(y, self.all(z, z.all(w, w == y))))"}]}`),
			"estimated rule cost exceeds budget by factor of more than 100x"},
		"own name": {strings.Replace(object(""), `"name":"bads.example.com"`, `"name":"other.example.com"`, 1), `must be spec.names.plural+"."+spec.group`},
		"no list keys": {field(`{type: array, x-kubernetes-list-type: map, items: {type: object}}`),
			"x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map"},
	} {
		a := s.send("POST", definitionsPath+"?dryRun=All", c[0])
		if a.code != 422 || !strings.Contains(a.get("message").String(), c[1]) {
			t.Errorf("%s: got %s, want 422 with %q", name, a.failure(), c[1])
		}
	}
	for _, text := range []string{strings.Repeat("€", 85), strings.Repeat("x", 256)} {
		s.want(201, "POST", definitionsPath+"?dryRun=All", deprecated(text))
	}
}

func TestDefinitionsWarnOfWhatTheyDoNotGet(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	odd := kubetest.SimpleDefinition(t, "Odd", "example.com", `{type: object, properties: {a: {type: string, format: zap},
		b: {type: array, x-kubernetes-list-type: set, items: {type: object, x-kubernetes-map-type: atomic}}}}`, "")
	a := s.want(201, "POST", definitionsPath, strings.Replace(odd, `"scope"`,
		`"conversion":{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"],"clientConfig":{"url":"https://x/"}}},"scope"`, 1))
	texts := strings.Join(a.header.Values("Warning"), "\n")
	if !strings.Contains(texts, `unrecognized format \"zap\"`) ||
		!strings.Contains(texts, `set for items of type \"object\" is not supported`) {
		t.Errorf("warnings: %s", texts)
	}
	s.want(201, "POST", "/apis/example.com/v1/namespaces/default/odds", `{"apiVersion":"example.com/v1","kind":"Odd","metadata":{"name":"a"},"a":"anything"}`)
	a = s.want(200, "PATCH", definitionsPath+"/odds.example.com", `{"metadata":{"labels":{"x":"y"}}}`, asMergePatch)
	if texts := strings.Join(a.header.Values("Warning"), "\n"); strings.Contains(texts, "zap") || strings.Contains(texts, "set for") {
		t.Errorf("an old format warns again: %s", texts)
	}
}

// TestObjectsAreJudged maps the spec of a gadget to the stored spec or to a part of the error.
func TestObjectsAreJudged(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.define("gadgets")
	for spec, want := range map[string]string{
		``:                           `{color: red}`,
		`color: blue`:                `{color: blue}`,
		`color: pink`:                `spec.color: Unsupported value: "pink": supported values: "red", "green", "blue"`,
		`color: null`:                `{color: red}`,
		`note: null`:                 `{color: red, note: null}`,
		`low: null`:                  `{color: red}`,
		`zap: 1`:                     `{color: red}`,
		`size: 2`:                    `{color: red, size: 2}`,
		`size: 3`:                    `spec.size: Invalid value: 3: spec.size in body should be a multiple of 2`,
		`size: x`:                    `spec.size: Invalid value: "string": spec.size in body must be of type integer: "string"`,
		`size: 10`:                   `spec.size: Invalid value: 10: spec.size in body should be less than or equal to 9`,
		`count: -1`:                  `.spec.count: Invalid value: -1: should be a non-negative integer`,
		`name: A1`:                   `spec.name: Invalid value: "A1": spec.name in body should match '^[a-z]+$'`,
		`name: x`:                    `spec.name: Invalid value: "x": spec.name in body should be at least 2 chars long`,
		`name: abcdefghi`:            `spec.name: Too long: may not be more than 8 bytes`,
		`due: today`:                 `spec.due: Invalid value: "today": spec.due in body must be of type date-time: "today"`,
		`port: 1`:                    `{color: red, port: 1}`,
		`port: http`:                 `{color: red, port: http}`,
		`port: true`:                 `spec.port: Invalid value: "boolean": spec.port in body must be of type integer,string: "boolean"`,
		`tags: [ta, tb]`:             `{color: red, tags: [ta, tb]}`,
		`tags: [ta, ta]`:             `spec.tags[1]: Duplicate value: "ta"`,
		`tags: [a]`:                  `spec.tags: Invalid value: a tag starts with t`,
		`tags: [ta, tb, tc, td]`:     `spec.tags: Too many: 4: must have at most 3 items`,
		`parts: [{id: a}]`:           `{color: red, parts: [{id: a, weight: 1}]}`,
		`parts: [{id: a},{id: a}]`:   `spec.parts[1]: Duplicate value: {"id":"a"}`,
		`parts: [{weight: 1}]`:       `spec.parts[0].id: Required value`,
		`labels: {a: b}`:             `{color: red, labels: {a: b}}`,
		`labels: {a: 1}`:             `spec.labels.a: Invalid value: "integer": spec.labels.a in body must be of type string: "integer"`,
		`free: {any: [1], depth: 2}`: `{color: red, free: {any: [1], depth: 2}}`,
		`free: {depth: x}`:           `spec.free.depth: Invalid value: "string"`,
		`inner: {kind: Pod}`:         `spec.inner.apiVersion: Required value`,
		`choice: {a: x}`:             `{color: red, choice: {a: x}}`,
		`choice: {a: x, b: y}`:       `"spec.choice" must validate one and only one schema (oneOf). Found 2 valid alternatives`,
		`low: 5, high: 1`:            `spec.low: Forbidden: low is above high by far`,
		`low: 1, high: 5`:            `{color: red, low: 1, high: 5}`,
		`low: 5, high: 1, color: no`: `some validation rules were not checked because the object was invalid; correct the existing errors to complete validation`,
		`inner: {apiVersion: v1, kind: Pod, metadata: {name: x, zap: 1}, a: 1}`: `{color: red, inner: {apiVersion: v1, kind: Pod, metadata: {name: x}, a: 1}}`,
	} {
		a := s.send("POST", gadgets+"?dryRun=All&fieldValidation=Ignore", gadget(t, "x", spec))
		if strings.HasPrefix(want, "{") {
			if got := a.get("spec").Raw; a.code != 201 || !sameFields(t, got, kubetest.FromFlow(t, want)) {
				t.Errorf("%q: got %d %s, want %s", spec, a.code, a.body, want)
			}
		} else if a.code != 422 || !strings.Contains(a.get("message").String(), want) {
			t.Errorf("%q: got %s, want 422 with %s", spec, a.failure(), want)
		}
	}
}

func sameFields(t *testing.T, a, b string) bool {
	t.Helper()
	var x, y any
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		return false
	}
	return fmt.Sprint(x) == fmt.Sprint(y)
}

func TestBodiesOfCustomObjects(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.define("gadgets")
	for _, c := range []struct{ query, body, want string }{
		{"?fieldValidation=Strict", gadget(t, "x", "zap: 1, free: {a: 1}, parts: [{id: a, zap: 1}]"),
			`400 BadRequest Gadget in version "v1" cannot be handled as a Gadget: strict decoding error: unknown field "spec.parts[0].zap", unknown field "spec.zap"`},
		{"", `{"apiVersion":"example.com/v1","kind":"Gadget","metadata":{"name":"x"}}`, `422 Invalid Gadget.example.com "x" is invalid: [spec: Required value`},
		{"", `{"apiVersion":"example.com/v2","kind":"Gadget","metadata":{"name":"x"}}`,
			`400 BadRequest the API version in the data (example.com/v2) does not match the expected API version (example.com/v1)`},
		{"", `{"apiVersion":"example.com/v1","kind":"Zap","metadata":{"name":"x"},"spec":{}}`, `422 Invalid Zap.example.com "x" is invalid: kind: Invalid value: "Zap": must be Gadget`},
		{"", `{"apiVersion":"example.com/v1","kind":"Gadget","metadata":{"name":"X_Y"},"spec":{}}`, `422 Invalid Gadget.example.com "X_Y" is invalid: metadata.name: Invalid value: "X_Y": a lowercase RFC 1123 subdomain`},
	} {
		if got := s.send("POST", gadgets+c.query, c.body).failure(); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s%s:\n got %s\nwant %s", c.body, c.query, got, c.want)
		}
	}
	a := s.want(201, "POST", gadgets, gadget(t, "x", "zap: 1"))
	if got := a.header.Get("Warning"); got != `299 - "unknown field \"spec.zap\""` {
		t.Errorf("warning %s", got)
	}
	if a := s.send("POST", gadgets, "x", "Content-Type: application/vnd.kubernetes.protobuf"); a.code != 415 {
		t.Errorf("protobuf: %s, want 415", a.failure())
	}
	a = s.send("PUT", gadgets+"/x", gadget(t, "x", ""))
	if want := `metadata.resourceVersion: Invalid value: 0: must be specified for an update`; a.code != 422 || !strings.Contains(a.failure(), want) {
		t.Errorf("unconditional update: %s, want 422 %s", a.failure(), want)
	}
}

func TestTransitionRules(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.define("gadgets")
	s.want(201, "POST", gadgets, gadget(t, "x", "serial: a1"))
	a := s.send("PATCH", gadgets+"/x", `{"spec":{"serial":"b2"}}`, asMergePatch)
	if want := `spec.serial: Invalid value: "b2": a serial number stays`; a.code != 422 || !strings.Contains(a.failure(), want) {
		t.Errorf("got %s, want 422 %s", a.failure(), want)
	}
	s.want(200, "PATCH", gadgets+"/x", `{"spec":{"serial":null}}`, asMergePatch)
	s.want(200, "PATCH", gadgets+"/x", `{"spec":{"serial":"b2"}}`, asMergePatch)
}

// TestRatcheting tightens a schema. Existing values that violate it remain valid as long as they do
// not change.
func TestRatcheting(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.define("gadgets")
	s.want(201, "POST", gadgets, gadget(t, "x", "name: longname"))
	s.want(200, "PATCH", definitionsPath+"/gadgets.example.com",
		`[{"op":"replace","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/name/maxLength","value":3}]`, asJSONPatch)
	s.want(200, "PATCH", gadgets+"/x", `{"spec":{"size":2}}`, asMergePatch)
	s.want(422, "PATCH", gadgets+"/x", `{"spec":{"name":"longish"}}`, asMergePatch)
	s.want(422, "POST", gadgets, gadget(t, "other", "name: longname"))
}

func TestStatusIsApart(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.define("gadgets")
	full := strings.Replace(gadget(t, "x", "size: 2"), `"spec"`, `"status":{"count":9},"spec"`, 1)
	if a := s.want(201, "POST", gadgets, full); a.get("status").Exists() || a.get("metadata.generation").Int() != 1 {
		t.Errorf("a create sets status, or generation is not 1: %s", a.body)
	}
	steps := []struct{ path, patch, want string }{
		{"/status", `{"spec":{"size":4},"status":{"count":3},"metadata":{"labels":{"a":"b"}}}`, `2 3 1 `},
		{"", `{"spec":{"size":4},"status":{"count":7}}`, `4 3 2 `},
		{"", `{"metadata":{"labels":{"a":"b"}}}`, `4 3 2 b`},
		{"/status", `{"status":{"count":50}}`, `422 Invalid Gadget.example.com "x" is invalid: status: Invalid value: too many`},
		{"/status", `{"status":{"count":"x"}}`, `422 Invalid Gadget.example.com "x" is invalid: [status.count: Invalid value: "string": count in body must be of type integer: "string"`},
	}
	for _, step := range steps {
		a := s.send("PATCH", gadgets+"/x"+step.path, step.patch, asMergePatch)
		got := fmt.Sprintf("%s %s %s %s", a.get("spec.size"), a.get("status.count"), a.get("metadata.generation"), a.get("metadata.labels.a"))
		if a.code != 200 {
			got = a.failure()
		}
		if !strings.HasPrefix(got, step.want) {
			t.Errorf("%s %s: got %s, want %s", step.path, step.patch, got, step.want)
		}
	}
	s.define("planets")
	s.want(201, "POST", planets, `{"apiVersion":"example.com/v2","kind":"Planet","metadata":{"name":"p"}}`)
	if a := s.send("PATCH", planets+"/p/status", `{}`, asMergePatch); a.failure() != `404 NotFound planets.example.com "p" not found` {
		t.Errorf("a subresource that is not there: %s", a.failure())
	}
}

func TestScaleOfACustomResource(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.define("gadgets")
	s.want(201, "POST", gadgets, gadget(t, "x", "count: 2"))
	s.want(200, "PATCH", gadgets+"/x/status", `{"status":{"count":1,"selector":"a=b"}}`, asMergePatch)
	scale := s.want(200, "GET", gadgets+"/x/scale", "")
	if got := fmt.Sprint(scale.get("kind"), scale.get("spec.replicas"), scale.get("status")); got != `Scale 2 {"replicas":1,"selector":"a=b"}` {
		t.Errorf("scale %s", got)
	}
	s.want(200, "PUT", gadgets+"/x/scale", strings.Replace(string(scale.body), `"replicas":2`, `"replicas":5`, 1))
	s.want(409, "PUT", gadgets+"/x/scale", strings.Replace(string(scale.body), `"replicas":2`, `"replicas":6`, 1))
	s.want(200, "PATCH", gadgets+"/x/scale", `{"spec":{"replicas":7}}`, asMergePatch)
	s.want(422, "PATCH", gadgets+"/x/scale", `{"spec":{"replicas":-1}}`, asMergePatch)
	s.want(415, "PATCH", gadgets+"/x/scale", `{}`, "Content-Type: application/strategic-merge-patch+json")
	if a := s.want(200, "GET", gadgets+"/x", ""); a.get("spec.count").Int() != 7 || a.get("metadata.generation").Int() != 3 {
		t.Errorf("count or generation: %s", a.body)
	}
	s.want(201, "POST", gadgets, gadget(t, "none", ""))
	if a := s.send("GET", gadgets+"/none/scale", ""); a.code != 500 || !strings.Contains(a.failure(), `the spec replicas field ".spec.count" does not exist`) {
		t.Errorf("a scale without a count: %s", a.failure())
	}
	if a := s.send("PATCH", gadgets+"/none/scale", `{"metadata":{}}`, asMergePatch); a.code != 400 || !strings.Contains(a.failure(), "cannot be empty") {
		t.Errorf("a patch that leaves the count out: %s", a.failure())
	}
	s.want(200, "PATCH", gadgets+"/none/scale", `{"spec":{"replicas":0}}`, asMergePatch)
}

func TestColumnsAndSelectors(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.define("gadgets")
	s.want(201, "POST", gadgets, gadget(t, "x", `count: 2, ratio: 1.5, lit: true, due: "2020-01-01T00:00:00Z", tags: [ta, tb], size: 4`))
	s.want(200, "PATCH", gadgets+"/x/status", `{"status":{"conditions":[{"type":"Old","status":"True"},{"type":"Ready","status":"False"}]}}`, asMergePatch)
	s.want(201, "POST", gadgets, gadget(t, "other", "color: blue"))
	table := s.want(200, "GET", gadgets, "", "Accept: application/json;as=Table;g=meta.k8s.io;v=v1")
	got := fmt.Sprint(table.get("columnDefinitions.#.name"), table.get("columnDefinitions.1.description"), table.get("columnDefinitions.2.description"),
		table.get("columnDefinitions.2.priority"), table.get("rows.0.cells"))
	want := `["Name","Color","Count","Ratio","Lit","Due","Ready","Tags"] Its paint Custom resource definition column (in JSONPath format): .spec.count 1 ["other","blue",null,null,null,null,null,null]`
	if got != want {
		t.Errorf("table:\n%s\nwant:\n%s", got, want)
	}
	cells := table.get("rows.1.cells").Array()
	if got := fmt.Sprint(cells[1], cells[2], cells[3], cells[4], cells[6], cells[7]); got != `red 2 1.5 true False ["ta","tb"]` || !strings.Contains(cells[5].String(), "y") {
		t.Errorf("cells %s", cells)
	}
	for selector, want := range map[string]string{"spec.color=blue": "other", "spec.color!=blue": "x", "spec.size=4": "x", "spec.size=": "other",
		"metadata.name=other": "other", "spec.color=red,spec.size=4": "x"} {
		if got := s.want(200, "GET", gadgets+"?fieldSelector="+selector, "").names(); got != want {
			t.Errorf("%s selects %q, want %q", selector, got, want)
		}
	}
	if a := s.send("GET", gadgets+"?fieldSelector=spec.ratio%3D1", ""); a.failure() != "400 BadRequest field label not supported: spec.ratio" {
		t.Errorf("a field that may not be selected by: %s", a.failure())
	}
}

func TestVersionsShareObjects(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.define("planets")
	inV1 := strings.Replace(planets, "/v2/", "/v1/", 1)
	s.want(201, "POST", inV1, `{"apiVersion":"example.com/v1","kind":"Planet","metadata":{"name":"p"},"moons":2,"local":"x","rings":"dropped"}`)
	for path, want := range map[string]string{
		planets: `example.com/v2 {"mass":7,"moons":2}`, // the storage version does not have local, and has a default for mass
		inV1:    `example.com/v1 {"mass":7,"moons":2}`,
		strings.Replace(planets, "/v2/", "/v1beta1/", 1): `example.com/v1beta1 {"mass":7,"moons":2}`,
	} {
		a := s.want(200, "GET", path+"/p", "")
		rest := map[string]json.RawMessage{}
		json.Unmarshal(a.body, &rest)
		for _, known := range []string{"apiVersion", "kind", "metadata"} {
			delete(rest, known)
		}
		text, _ := json.Marshal(rest)
		if got := a.get("apiVersion").String() + " " + string(text); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
	list := s.want(200, "GET", planets, "")
	if list.get("kind").String() != "Planetarium" || list.get("items.0.kind").String() != "Planet" {
		t.Errorf("list %s", list.body)
	}
}

// Paths that lead nowhere get a plain 404, which checkStatus would reject. Therefore this test uses
// send.
func TestStrayPathsArePlain404s(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.define("planets")
	s.define("gadgets")
	for _, path := range []string{"GET /apis/example.com/v3alpha1/planets", "GET /apis/example.com/v9/planets", "POST /apis/example.com/v1/gadgets",
		"GET /apis/example.com/v2/namespaces/default/planets"} {
		method, path, _ := strings.Cut(path, " ")
		if a := s.send(method, path, "{}"); a.code != 404 || string(a.body) != "404 page not found\n" {
			t.Errorf("%s %s: %d %s", method, path, a.code, a.body)
		}
	}
}

func TestDeprecatedVersionsWarn(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.define("planets")
	warning := func(version string) string {
		return s.want(200, "GET", strings.Replace(planets, "/v2/", "/"+version+"/", 1), "").header.Get("Warning")
	}
	for version, want := range map[string]string{
		"v2":      "",
		"v1":      `299 - "example.com/v1 Planet is deprecated; use example.com/v2 Planet"`,
		"v1beta1": `299 - "planets move; use v2"`,
	} {
		if got := warning(version); got != want {
			t.Errorf("%s warns %s, want %s", version, got, want)
		}
	}
	// The suggested version must be served and not deprecated. If there are several, it is the
	// highest.
	for change, want := range map[string]string{
		`[{"op":"replace","path":"/spec/versions/0/deprecated","value":true}]`:                                                                         "example.com/v1 Planet is deprecated",
		`[{"op":"add","path":"/spec/versions/3/served","value":true}]`:                                                                                 "example.com/v1 Planet is deprecated; use example.com/v2 Planet",
		`[{"op":"add","path":"/spec/versions/-","value":{"name":"v10","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object"}}}}]`: "example.com/v1 Planet is deprecated; use example.com/v10 Planet",
	} {
		s.want(200, "PATCH", definitionsPath+"/planets.example.com", change, asJSONPatch)
		if got := warning("v1"); got != `299 - "`+want+`"` {
			t.Errorf("after %s: v1 warns %s, want %s", change, got, want)
		}
		body := gjson.Parse(definitionFile(t, "planets")).Get("spec").Raw
		s.want(200, "PATCH", definitionsPath+"/planets.example.com", `[{"op":"replace","path":"/spec","value":`+body+`}]`, asJSONPatch)
	}
	s.want(200, "PATCH", definitionsPath+"/planets.example.com", `[{"op":"replace","path":"/spec/versions/1/deprecated","value":false}]`, asJSONPatch)
	if got := warning("v1"); got != "" {
		t.Errorf("no longer deprecated, and warns %s", got)
	}
}

func TestDefaultAddedLaterShowsInOldObjects(t *testing.T) {
	t.Parallel()
	s := startTest(t, onSomeFile(t))
	s.define("gadgets")
	s.want(201, "POST", gadgets, gadget(t, "old", ""))
	s.want(200, "PATCH", definitionsPath+"/gadgets.example.com", `[
		{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/size/default","value":6},
		{"op":"remove","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/color"},
		{"op":"remove","path":"/spec/versions/0/selectableFields/0"}]`, asJSONPatch)
	const want = `{"size":6}`
	if got := s.want(200, "GET", gadgets+"/old", "").get("spec").Raw; got != want {
		t.Errorf("get shows %s, want %s", got, want)
	}
	if got := s.want(200, "GET", gadgets+"?fieldSelector=spec.size%3D6", "").get("items.0.spec").Raw; got != want {
		t.Errorf("list by the default shows %s, want %s", got, want)
	}
	stored := func() string {
		s.halt()
		defer s.start()
		return openTestStore(t, s.flag("data"), func(st *store.Store) string {
			rec, err := st.Get("/example.com/gadgets/default/old")
			if err != nil {
				t.Fatal(err)
			}
			return gjson.GetBytes(rec.JSON, "spec").Raw
		})
	}
	if spec := stored(); spec != `{"color":"red"}` {
		t.Errorf("reading has changed what is stored: %s", spec)
	}
	s.want(200, "PATCH", gadgets+"/old", `{"metadata":{"labels":{"a":"b"}}}`, asMergePatch)
	if spec := stored(); spec != want {
		t.Errorf("writing has not: %s", spec)
	}
}

func TestNamesBelongToTheFirst(t *testing.T) {
	t.Parallel()
	s := startTest(t, onFile(t.TempDir()+"/db"))
	s.define("gadgets")
	rival := strings.Replace(kubetest.SimpleDefinition(t, "Rival", "example.com", `{type: object}`, ""), `"kind":"Rival"`, `"kind":"Gadget","shortNames":["gd","rv"]`, 1)
	s.want(201, "POST", definitionsPath, rival)
	state := func() string {
		a := s.want(200, "GET", definitionsPath+"/rivals.example.com", "")
		return fmt.Sprint(a.get("status.conditions.#.status"), a.get("status.conditions.#.reason"), a.get("status.acceptedNames.kind"))
	}
	if got, want := state(), `["False","False"] ["ListKindConflict","NotAccepted"] `; got != want {
		t.Errorf("the rival: %s, want %s", got, want)
	}
	s.restart()
	if a := s.send("GET", "/apis/example.com/v1/namespaces/default/rivals", ""); a.code != 404 {
		t.Errorf("the rival is served: %d", a.code)
	}
	s.want(200, "DELETE", definitionsPath+"/gadgets.example.com", "")
	apitest.WaitFor(t, "the rival gets its names", func() bool { return state() == `["True","True"] ["NoConflicts","InitialNamesAccepted"] Gadget` })
	apitest.WaitFor(t, "the rival is served", func() bool { return s.send("GET", "/apis/example.com/v1/namespaces/default/rivals", "").code == 200 })
}

func TestObjectsGoWithTheirDefinition(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.define("gadgets")
	s.want(201, "POST", gadgets, gadget(t, "free", ""))
	s.want(201, "POST", gadgets, strings.Replace(gadget(t, "held", ""), `"name"`, `"finalizers":["example.com/x"],"name"`, 1))
	a := s.want(200, "DELETE", definitionsPath+"/gadgets.example.com", "")
	if a.get("metadata.finalizers.0").String() != "customresourcecleanup.apiextensions.k8s.io" {
		t.Errorf("the definition has no finalizer: %s", a.body)
	}
	apitest.WaitFor(t, "the free object goes", func() bool { return s.send("GET", gadgets+"/free", "").code == 404 })
	if a := s.send("POST", gadgets, gadget(t, "new", "")); a.code != 403 || !strings.Contains(a.failure(), "create not allowed while custom resource definition is terminating") {
		t.Errorf("create beside the deletion: %s", a.failure())
	}
	s.want(200, "GET", definitionsPath+"/gadgets.example.com", "")
	s.want(200, "PATCH", gadgets+"/held", `{"metadata":{"finalizers":null}}`, asMergePatch)
	apitest.WaitFor(t, "the definition goes", func() bool { return s.send("GET", definitionsPath+"/gadgets.example.com", "").code == 404 })
	apitest.WaitFor(t, "the type is served no more", func() bool { return s.send("GET", gadgets, "").code == 404 })
	s.define("gadgets")
	if got := s.want(200, "GET", gadgets, "").names(); got != "" {
		t.Errorf("a new definition of the same name has old objects: %s", got)
	}
}

// As in kube-apiserver, a watch must end if the definition is deleted or if its spec or its names
// change. A change of its metadata must not end the watch.
func TestWatchesEndWithTheirDefinition(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	for i, c := range []struct {
		title, method, patch string
		ends                 bool
	}{
		{"deleted", "DELETE", "", true},
		{"a schema changes", "PATCH", `{"spec":{"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`, true},
		{"no longer served", "PATCH", `{"spec":{"versions":[{"name":"v1","served":false,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`, true},
		{"another name", "PATCH", `{"spec":{"names":{"shortNames":["zz"]}}}`, true},
		{"a label", "PATCH", `{"metadata":{"labels":{"a":"b"}}}`, false},
	} {
		t.Run(c.title, func(t *testing.T) {
			group := fmt.Sprintf("g%d.example.com", i)
			s.want(201, "POST", definitionsPath, kubetest.SimpleDefinition(t, "Thing", group, "{type: object, x-kubernetes-preserve-unknown-fields: true}", ""))
			things := "/apis/" + group + "/v1/namespaces/default/things"
			s.want(201, "POST", things, fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Thing","metadata":{"name":"a"}}`, group))
			open, err := http.Get(s.url + things + "?watch=1&timeoutSeconds=60")
			if err != nil {
				t.Fatal(err)
			}
			defer open.Body.Close()
			lines := bufio.NewReader(open.Body)
			if first, err := lines.ReadString('\n'); !strings.Contains(first, "ADDED") {
				t.Fatalf("the watch begins with %q, %v", first, err)
			}
			s.want(200, c.method, definitionsPath+"/things."+group, c.patch, asMergePatch)
			if !c.ends {
				s.want(201, "POST", things, fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Thing","metadata":{"name":"b"}}`, group))
				if next, err := lines.ReadString('\n'); !strings.Contains(next, `"name":"b"`) {
					t.Errorf("the watch goes on with %q, %v", next, err)
				}
				return
			}
			rest, err := io.ReadAll(lines)
			if err != nil || strings.Contains(string(rest), "ERROR") || strings.Contains(string(rest), "DELETED") != (c.method == "DELETE") {
				t.Errorf("the watch ends with %q, %v", rest, err)
			}
		})
	}
}

func TestDefinitionsAreFoundAtTheStart(t *testing.T) {
	t.Parallel()
	s := startTest(t, onFile(t.TempDir()+"/db"))
	s.define("gadgets")
	s.define("planets")
	s.want(201, "POST", gadgets, gadget(t, "a", "size: 2"))
	s.want(200, "DELETE", definitionsPath+"/planets.example.com", "")
	s.restart()
	if got := s.want(200, "GET", gadgets, "").names(); got != "a" {
		t.Errorf("after the restart: %q", got)
	}
	apitest.WaitFor(t, "the deleted definition goes", func() bool { return s.send("GET", definitionsPath+"/planets.example.com", "").code == 404 })
}

func TestWritersMeetChangesOfTheDefinition(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.define("gadgets")
	done := make(chan error, 4)
	for w := range cap(done) {
		go func() {
			for i := range 25 {
				if a, err := s.try("POST", gadgets, gadget(t, fmt.Sprintf("g%d-%d", w, i), "size: 2")); err != nil || a.code != 201 {
					done <- fmt.Errorf("%d %s %v", a.code, a.body, err)
					return
				}
			}
			done <- nil
		}()
	}
	for i := range 10 {
		s.want(200, "PATCH", definitionsPath+"/gadgets.example.com", fmt.Sprintf(
			`[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/new%d","value":{"type":"integer","default":%d}}]`, i, i), asJSONPatch)
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	for _, item := range s.want(200, "GET", gadgets, "").get("items").Array() {
		if item.Get("spec.new3").Int() != 3 {
			t.Errorf("no default in %s", item)
		}
	}
}

// BenchmarkCreateCustom creates objects of a type with fifty fields over HTTP.
func BenchmarkCreateCustom(b *testing.B) {
	s := startTest(b)
	var schema, spec []string
	for i := range 50 {
		schema = append(schema, fmt.Sprintf(`f%d: {type: string, maxLength: 20, pattern: "^[a-z]+$"}`, i))
		spec = append(spec, fmt.Sprintf(`"f%d":"value"`, i))
	}
	s.want(201, "POST", definitionsPath, kubetest.SimpleDefinition(b, "Wide", "example.com", `{type: object, properties: {spec: {type: object, properties: {`+strings.Join(schema, ", ")+`}}}}`, ""))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		s.want(201, "POST", "/apis/example.com/v1/namespaces/default/wides",
			fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Wide","metadata":{"name":"w%d"},"spec":{%s}}`, i, strings.Join(spec, ",")))
	}
}

// BenchmarkIdleDefinition measures the memory of a definition that is not used.
func BenchmarkIdleDefinition(b *testing.B) {
	s := startTest(b)
	body := definitionFile(b, "gadgets")
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for i := 0; b.Loop(); i++ {
		s.want(201, "POST", definitionsPath, strings.ReplaceAll(body, "example.com", fmt.Sprintf("g%d.example.com", i)))
	}
	b.ReportMetric(float64(heap()-before)/float64(b.N), "heap-B/definition")
	runtime.KeepAlive(s)
}

// realisticDefinition returns a definition as large as those of the Gateway API. The schema uses
// all features that are common in practice, such as patterns, defaults and CEL rules.
func realisticDefinition(n int) string {
	lore := strings.Repeat("Describes at length what this field is for and which values implementations support. ", 3)
	field := func(i int) string {
		return fmt.Sprintf(`"field%d":{"description":%q,"type":"object","x-kubernetes-validations":[{"rule":"has(self.name) || has(self.refs)","message":"one is needed"}],
			"properties":{"name":{"description":%q,"type":"string","maxLength":63,"pattern":"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"},
			"weight":{"description":%q,"type":"integer","format":"int32","minimum":0,"maximum":100,"default":1},
			"mode":{"description":%q,"type":"string","enum":["Exact","Prefix","Regex"],"default":"Exact"},
			"refs":{"description":%q,"type":"array","maxItems":16,"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["key"],
			"items":{"type":"object","required":["key"],"properties":{"key":{"type":"string","maxLength":63},"value":{"description":%q,"type":"string","maxLength":253}}}}}}`,
			i, lore, lore, lore, lore, lore, lore)
	}
	var fields []string
	for i := range 12 {
		fields = append(fields, field(i))
	}
	schema := `{"openAPIV3Schema":{"type":"object","required":["spec"],"properties":{"apiVersion":{"type":"string"},"kind":{"type":"string"},"metadata":{"type":"object"},
		"spec":{"type":"object","properties":{` + strings.Join(fields, ",") + `}},
		"status":{"type":"object","properties":{"conditions":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["type"],
		"items":{"type":"object","required":["type","status"],"properties":{"type":{"type":"string"},"status":{"type":"string"},"message":{"type":"string"}}}}}}}}}`
	version := `{"name":"%s","served":true,"storage":%v,"schema":%s,"subresources":{"status":{}},
		"additionalPrinterColumns":[{"name":"Name","type":"string","jsonPath":".spec.field0.name"}]}`
	return fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"reals.g%d.example.com"},"spec":{"group":"g%d.example.com",
		"scope":"Namespaced","names":{"plural":"reals","kind":"Real","categories":["real-api"]},"versions":[`, n, n) +
		fmt.Sprintf(version, "v1", true, schema) + "," + fmt.Sprintf(version, "v1beta1", false, schema) + `]}}`
}

// BenchmarkCustomDefinitions starts a server with 500 definitions. It measures the memory of each
// definition and the time of the start.
func BenchmarkCustomDefinitions(b *testing.B) {
	const definitions = 500
	path, bare := filepath.Join(b.TempDir(), "a.db"), filepath.Join(b.TempDir(), "bare.db")
	s := startTest(b, onFile(path))
	for i := range definitions {
		s.want(201, "POST", definitionsPath, realisticDefinition(i))
	}
	s.halt()
	idle := func(path string) (memory int64, ready, cpu time.Duration) {
		begin := time.Now()
		s := startTest(b, onFile(path))
		ready = time.Since(begin)
		s.want(200, "GET", "/apis", "") // clients begin with discovery
		time.Sleep(time.Second)         // the server releases the memory of the start
		memory = apitest.AnonymousMemory(s.process.Process.Pid)
		s.halt()
		return memory, ready, s.process.ProcessState.UserTime() + s.process.ProcessState.SystemTime()
	}
	for b.Loop() {
		with, ready, cpu := idle(path)
		without, _, _ := idle(bare)
		b.ReportMetric(float64(len(realisticDefinition(0)))/1024, "KiB-JSON/definition")
		b.ReportMetric(float64(with-without)/1024/definitions, "KiB/definition")
		b.ReportMetric(float64(with)/(1<<20), "idle-MiB")
		b.ReportMetric(float64(ready.Milliseconds()), "start-ms")
		b.ReportMetric(float64(cpu.Milliseconds()), "start-CPU-ms")
	}
}
