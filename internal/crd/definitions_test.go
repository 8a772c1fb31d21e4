package crd_test

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"apilet/internal/crd/definitions"
)

// parsedDefinition is a definition in its internal form, written in flow style: versions is its list of versions, more goes into its spec.
func parsedDefinition(t testing.TB, versions, more string) *apiextensions.CustomResourceDefinition {
	t.Helper()
	text := fmt.Sprintf(`{metadata: {name: tests.example.com, resourceVersion: "1"}, spec: {group: example.com, scope: Namespaced,
		names: {plural: tests, kind: Test}, versions: [%s]%s}, status: {storedVersions: [v1]}}`, versions, more)
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict([]byte(text), crd); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(crd)
	internal := &apiextensions.CustomResourceDefinition{}
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, internal, nil); err != nil {
		t.Fatal(err)
	}
	return internal
}

// oneVersion is a version v1 whose schema has a spec of this schema; more goes into the version.
func oneVersion(schema, more string) string {
	return `{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: ` + schema + `}}}` + more + `}`
}

func wantErrors(t *testing.T, what string, errs field.ErrorList, want ...string) {
	t.Helper()
	var got []string
	for _, err := range errs {
		got = append(got, strings.TrimPrefix(err.Error(), "spec.validation.openAPIV3Schema.properties[spec]."))
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%s:\n got  %s\n want %s", what, strings.Join(got, "\n      "), strings.Join(want, "\n      "))
	}
}

func TestSchemasOfDefinitions(t *testing.T) {
	for _, c := range []struct{ schema, want string }{
		{`{type: object}`, ""},
		{`{type: array, uniqueItems: true, items: {type: string}}`, "uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic"},
		{`{type: object, properties: {a: {type: string}}, additionalProperties: {type: string}}`, "additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive"},
		{`{type: object, properties: {a: {type: string, id: x}}}`, "properties[a].id: Forbidden: id is not supported"},
		{`{type: object, patternProperties: {a: {type: string}}}`, "patternProperties: Forbidden: patternProperties is not supported"},
		{`{type: object, definitions: {a: {type: string}}}`, "definitions: Forbidden: definitions is not supported"},
		{`{type: object, dependencies: {a: [b]}}`, "dependencies: Forbidden: dependencies is not supported"},
		{`{type: object, $ref: "#/a"}`, "$ref: Forbidden: $ref is not supported"},
		{`{type: array, items: [{type: string}]}`, "items: Forbidden: items must be a schema object and not an array"},
		{`{type: string, x-kubernetes-map-type: atomic}`, `type: Invalid value: "string": must be object if x-kubernetes-map-type is specified`},
		{`{type: object, x-kubernetes-map-type: odd}`, `x-kubernetes-map-type: Unsupported value: "odd": supported values: "atomic", "granular"`},
		{`{type: array, x-kubernetes-list-type: set, items: {type: object}}`, `items.x-kubernetes-map-type: Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set`},
		{`{type: array, x-kubernetes-list-type: set, items: {type: string, nullable: true}}`, "items.nullable: Forbidden: cannot be nullable when x-kubernetes-list-type is set"},
		{`{type: array, x-kubernetes-list-map-keys: [a], items: {type: object}}`, "x-kubernetes-list-type: Required value: must be map if x-kubernetes-list-map-keys is non-empty"},
		{`{type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [a], items: {type: object, properties: {a: {type: string}}}}`,
			"items.properties[a].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property"},
		{`{type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [b], items: {type: object, properties: {a: {type: string}}}}`,
			`x-kubernetes-list-map-keys: Invalid value: ["b"]: entries must all be names of item properties`},
	} {
		var want []string
		if c.want != "" {
			want = []string{c.want}
		}
		wantErrors(t, c.schema, definitions.ValidateCreate(context.Background(), parsedDefinition(t, oneVersion(c.schema, ""), "")), want...)
	}
}

func TestRulesOfDefinitions(t *testing.T) {
	rule := func(text string) string {
		return `{type: object, properties: {a: {type: string, maxLength: 5}, list: {type: array, items: {type: string}}}, x-kubernetes-validations: [` + text + `]}`
	}
	const unclear = " (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
	for _, c := range []struct{ schema, want string }{
		{rule(`{rule: "self.a == oldSelf.a", message: no, reason: FieldValueForbidden, fieldPath: .a}`), ""},
		{rule(`{rule: " "}`), "x-kubernetes-validations[0].rule: Required value: rule is not specified"},
		{rule(`{rule: "true", message: " "}`), `x-kubernetes-validations[0].message: Invalid value: " ": must be non-empty if specified`},
		{rule(`{rule: "true\n&& true"}`), "x-kubernetes-validations[0].message: Required value: message must be specified if rule contains line breaks"},
		{rule(`{rule: "true", messageExpression: " "}`), "x-kubernetes-validations[0].messageExpression: Required value: messageExpression must be non-empty if specified"},
		{rule(`{rule: "true", reason: Odd}`), `x-kubernetes-validations[0].reason: Unsupported value: "Odd": supported values: "FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"`},
		{rule(`{rule: "true", fieldPath: .b}`), `x-kubernetes-validations[0].fieldPath: Invalid value: ".b": must be a valid path`},
		{rule(`{rule: "true", optionalOldSelf: true}`), `x-kubernetes-validations[0].optionalOldSelf: Invalid value: true: may not be set if oldSelf is not used in rule`},
		{rule(`{rule: "self.list.all(x, self.list.all(y, x == y))"}`), "x-kubernetes-validations[0].rule: Forbidden: estimated rule cost exceeds budget by factor of more than 100x" + unclear +
			"\nx-kubernetes-validations[0].rule: Forbidden: contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema" +
			"\nspec.validation.openAPIV3Schema: Forbidden: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds budget by factor of more than 100x" + unclear},
		{`{type: array, items: {type: string, maxLength: 5, x-kubernetes-validations: [{rule: self == oldSelf}]}, maxItems: 3}`,
			`items.x-kubernetes-validations[0].rule: Invalid value: "self == oldSelf": oldSelf cannot be used on the uncorrelatable portion of the schema within spec.validation.openAPIV3Schema.properties[spec]`},
	} {
		var want []string
		if c.want != "" {
			want = strings.Split(c.want, "\n")
		}
		wantErrors(t, c.schema, definitions.ValidateCreate(context.Background(), parsedDefinition(t, oneVersion(c.schema, ""), "")), want...)
	}
}

// A mistake in a long expression takes the compiler a square of its length to draw: eight KB make 100 MB. What an answer has no room for is not compiled.
func TestMistakesOfExpressionsHaveABound(t *testing.T) {
	const n = 40
	expression := strings.Repeat("'", 14_000)
	rules := strings.TrimPrefix(strings.Repeat(`, {rule: "`+expression+`"}`, n), ",")
	crd := parsedDefinition(t, oneVersion(`{type: object, x-kubernetes-validations: [`+rules+`]}`, ""), "")
	if errs := definitions.ValidateCreate(t.Context(), crd); len(errs) < 2 || len(errs) >= n {
		t.Errorf("%d of %d rules were compiled", len(errs), n)
	}
}

func TestPartsOfDefinitions(t *testing.T) {
	good := oneVersion(`{type: object, additionalProperties: true}`, "")
	for _, c := range []struct{ versions, more, want string }{
		{good, "", ""},
		{good, `, conversion: {strategy: Odd}`, `spec.conversion.strategy: Unsupported value: "Odd": supported values: "None", "Webhook"`},
		{good, `, conversion: {strategy: Webhook, webhook: {clientConfig: {url: "http://x"}, conversionReviewVersions: [v2]}}`,
			`spec.conversion.webhookClientConfig.url: Invalid value: "http": 'https' is the only allowed URL scheme; desired format: https://host[/path]` + "\n" +
				`spec.conversion.conversionReviewVersions: Invalid value: ["v2"]: must include at least one of v1, v1beta1`},
		{oneVersion(`{type: object}`, `, subresources: {scale: {specReplicasPath: spec, statusReplicasPath: .spec.a}}`), "",
			`spec.subresources.scale.specReplicasPath: Invalid value: "spec": must be a simple json path starting with .` + "\n" +
				`spec.subresources.scale.statusReplicasPath: Invalid value: ".spec.a": should be a json path under .status`},
		{oneVersion(`{type: object}`, `, additionalPrinterColumns: [{name: A, type: text, jsonPath: .a}]`), "",
			`spec.additionalPrinterColumns[0].type: Invalid value: "text": must be one of boolean,date,integer,number,string`},
		{oneVersion(`{type: object}`, `, selectableFields: [{jsonPath: .spec}, {jsonPath: ".spec.a"}]`), "",
			`spec.selectableFields[0].jsonPath: Invalid value: ".spec": must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.` + "\n" +
				`spec.selectableFields[1].jsonPath: Invalid value: ".spec.a": is an invalid path: does not refer to a valid field`},
		{`{name: v1, served: true, storage: true, schema: {}, selectableFields: [{jsonPath: .metadata.name}]}`, "",
			"spec.versions[0].schema.openAPIV3Schema: Required value\n" +
				`spec.selectableFields[0].jsonPath: Invalid value: ".metadata.name": is an invalid path: does not refer to a valid field`},
		{oneVersion(`{type: object, additionalProperties: true}`, `, selectableFields: [{jsonPath: .spec.a.b}]`), "",
			`spec.selectableFields[0].jsonPath: Invalid value: ".spec.a.b": is an invalid path: does not refer to a valid field`},
		{good, `, preserveUnknownFields: true`,
			"spec.preserveUnknownFields: Invalid value: true: cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"},
	} {
		var want []string
		if c.want != "" {
			want = strings.Split(c.want, "\n")
		}
		wantErrors(t, c.versions+c.more, definitions.ValidateCreate(context.Background(), parsedDefinition(t, c.versions, c.more)), want...)
	}
}

func TestUpdatesMayLeaveWrongWhatWasWrong(t *testing.T) {
	const tooMany = 9 // selectable fields; Kubernetes allows eight
	var fields, properties []string
	for i := range tooMany {
		fields = append(fields, fmt.Sprintf("{jsonPath: .spec.f%d}", i))
		properties = append(properties, fmt.Sprintf("f%d: {type: string}", i))
	}
	for name, versions := range map[string]string{
		"items of a set":     oneVersion(`{type: array, x-kubernetes-list-type: set, items: {type: object}}`, ""),
		"keys of a list":     oneVersion(`{type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [a], items: {type: object, properties: {a: {type: string}}}}`, ""),
		"selectable fields":  oneVersion(`{type: object, properties: {`+strings.Join(properties, ", ")+`}}`, `, selectableFields: [`+strings.Join(fields, ", ")+`]`),
		"an expensive rule":  oneVersion(`{type: array, maxItems: 2000, items: {type: string, maxLength: 9}, x-kubernetes-validations: [{rule: "self.all(x, self.all(y, x == y))"}]}`, ""),
		"an unpruned object": oneVersion(`{type: object, default: {a: b}}`, ""),
	} {
		crd := parsedDefinition(t, versions, "")
		if errs := definitions.ValidateCreate(context.Background(), crd); len(errs) == 0 {
			t.Errorf("%s: accepted in a new definition", name)
		}
		changed := crd.DeepCopy()
		changed.Labels = map[string]string{"a": "b"}
		wantErrors(t, name, definitions.ValidateUpdate(context.Background(), changed, crd))
	}
}

func TestDefinitionsKeepTheirNames(t *testing.T) {
	crd := parsedDefinition(t, oneVersion(`{type: object}`, ""), "")
	changed := crd.DeepCopy()
	changed.Spec.Scope, changed.Spec.Names.Plural, changed.Spec.Names.Kind = "Cluster", "others", "Other"
	wantErrors(t, "before it is established", definitions.ValidateUpdate(context.Background(), changed, crd),
		`spec.names.plural: Invalid value: "others": field is immutable`)
	apiextensions.SetCRDCondition(crd, apiextensions.CustomResourceDefinitionCondition{Type: apiextensions.Established, Status: apiextensions.ConditionTrue})
	wantErrors(t, "afterwards", definitions.ValidateUpdate(context.Background(), changed, crd),
		`spec.scope: Invalid value: "Cluster": field is immutable`, `spec.names.kind: Invalid value: "Other": field is immutable`,
		`spec.names.plural: Invalid value: "others": field is immutable`)
}

func TestStatusOfADefinition(t *testing.T) {
	crd := parsedDefinition(t, oneVersion(`{type: object}`, ""), "")
	changed := crd.DeepCopy()
	changed.Status.AcceptedNames.Kind = "not a kind"
	errs := definitions.ValidateStatusUpdate(changed, crd)
	if len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), `status.acceptedNames.kind: Invalid value: "not a kind": may have mixed case, but should otherwise match: `) {
		t.Errorf("got %v", errs)
	}
	changed = crd.DeepCopy()
	changed.Status.StoredVersions = []string{"v0", "v1"}
	errs = definitions.ValidateUpdate(context.Background(), changed, crd)
	if len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), `status.storedVersions[0]: Invalid value: "v0": missing from spec.versions; v0 was`) {
		t.Errorf("got %v", errs)
	}
}

func TestCertificatesOfWebhooks(t *testing.T) {
	block := func(kind, text string) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: []byte(text)}) }
	for _, c := range []struct {
		bundle []byte
		want   string
	}{
		{nil, ""},
		{[]byte("text"), "unable to parse bytes as PEM block"},
		{block("KEY", "x"), "no valid certificate authority data seen"},
		{bytes.Join([][]byte{block("KEY", "x"), block("CERTIFICATE", "x")}, nil), "failed to parse certificate: x509: malformed certificate"},
	} {
		old := parsedDefinition(t, oneVersion(`{type: object}`, ""), "")
		old.Status.Conditions = []apiextensions.CustomResourceDefinitionCondition{{Type: apiextensions.Established, Status: apiextensions.ConditionTrue}}
		crd := old.DeepCopy()
		crd.Spec.Conversion = &apiextensions.CustomResourceConversion{Strategy: apiextensions.WebhookConverter, ConversionReviewVersions: []string{"v1"},
			WebhookClientConfig: &apiextensions.WebhookClientConfig{URL: ptr.To("https://example.com"), CABundle: c.bundle}}
		got := ""
		for _, err := range definitions.ValidateUpdate(context.Background(), crd, old) {
			got += err.Field + ": " + strings.TrimPrefix(err.Detail, "unable to load root certificates: ")
		}
		if want := "spec.conversion.webhookClientConfig.caBundle: " + c.want; got != want && (got != "" || c.want != "") {
			t.Errorf("%q: got %q, want %q", c.bundle, got, want)
		}
	}
}

// FuzzDefinition: no schema makes the rules panic.
func FuzzDefinition(f *testing.F) {
	for _, seed := range []string{`{type: object}`, `{type: array, items: {}}`, `{additionalProperties: {type: array}, x-kubernetes-validations: [{rule: "true", fieldPath: .a.b}]}`,
		`{type: object, not: {not: {}}, dependencies: {a: {type: x}}}`, `{default: {}, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [a, a]}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, schema string) {
		props := &apiextensionsv1.JSONSchemaProps{}
		if yaml.Unmarshal([]byte(schema), props) != nil {
			return
		}
		crd := parsedDefinition(t, oneVersion(`{type: object}`, ""), "")
		internal := &apiextensions.JSONSchemaProps{}
		if apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(props, internal, nil) != nil {
			return
		}
		old := crd.DeepCopy()
		crd.Spec.Validation.OpenAPIV3Schema = internal
		definitions.ValidateCreate(context.Background(), crd)
		definitions.ValidateUpdate(context.Background(), crd, old)
		definitions.ValidateUpdate(context.Background(), old, crd)
	})
}
