package scheme

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"apilet/internal/apierror"
	"apilet/internal/apitest/kubetest"
)

// describeRows writes rows as testdata/types/kube-apiserver-1.37.txt does.
func describeRows(rows []*Resource) string {
	dash := func(words []string) string {
		if len(words) == 0 {
			return "-"
		}
		return strings.Join(words, ",")
	}
	var b strings.Builder
	for _, res := range rows {
		scope := "Cluster"
		if res.Namespaced {
			scope = "Namespaced"
		}
		fmt.Fprintln(&b, res.APIVersion(), res.Plural, res.Singular, res.Kind, scope, dash(res.ShortNames), dash(res.Categories), dash(res.Verbs))
		for _, sub := range res.Subresources {
			fmt.Fprintln(&b, " ", sub.Name, GroupVersionString(sub.Group, sub.Version), sub.Kind, dash(sub.Verbs))
		}
	}
	return b.String()
}

func TestTableIsWhatKubeAPIServerServes(t *testing.T) {
	golden, err := os.ReadFile("testdata/types/kube-apiserver-1.37.txt")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for line := range strings.Lines(string(golden)) {
		if !strings.HasPrefix(line, "#") {
			want = append(want, line)
		}
	}
	removed := func(res *Resource) bool { return res.Deprecation != nil && res.Deprecation.Removed != [2]int{} }
	got := describeRows(slices.DeleteFunc(slices.Clone(NewRegistry().All()), removed))
	if got != strings.Join(want, "") {
		t.Errorf("discovery differs from kube-apiserver's, got:\n%s", got)
	}
}

func TestEveryTypeIsComplete(t *testing.T) {
	type groupKind struct{ group, version, kind string }
	kinds := map[groupKind]bool{}
	for _, res := range NewRegistry().All() {
		t.Run(res.APIVersion()+" "+res.Kind, func(t *testing.T) {
			if k := (groupKind{res.Group, res.Version, res.Kind}); kinds[k] {
				t.Error("kind is there twice")
			} else {
				kinds[k] = true
			}
			stored, revAt, err := res.EncodeStored(res.NewObject())
			if err != nil || !bytes.HasPrefix(stored, []byte(`{"metadata":{"resourceVersion":""`)) || revAt != 32 {
				t.Errorf("empty object stored as %s, %d, %v", stored, revAt, err)
			}
			doc, err := documentOf(res, stored)
			if err != nil || !json.Valid(doc) || !bytes.HasPrefix(doc, []byte("{"+res.Prefix+`"metadata":`)) {
				t.Errorf("document is %s, %v", doc, err)
			}
			if _, ok := any(newOf(res.ExpectedBody("").Wire)).(interface{ Unmarshal([]byte) error }); !ok {
				t.Error("body cannot be protobuf")
			}
			for _, sub := range res.Subresources {
				if b := res.ExpectedBody(sub.Name); b.Wire == nil && !strings.HasSuffix(b.Kind, "Options") {
					t.Errorf("body of %s has no Go type", sub.Name)
				}
			}
		})
	}
}

func TestDeprecationsComeFromTheTypes(t *testing.T) {
	want := map[string]string{
		"v1 Endpoints":                                    "{[1 33] [0 0] discovery.k8s.io v1 EndpointSlice}",
		"v1 ComponentStatus":                              "{[1 19] [0 0]   }",
		"batch/v1beta1 CronJob":                           "{[1 21] [1 25] batch v1 CronJob}",
		"policy/v1beta1 PodDisruptionBudget":              "{[1 21] [1 25] policy v1 PodDisruptionBudget}",
		"flowcontrol.apiserver.k8s.io/v1beta3 FlowSchema": "{[1 29] [1 32] flowcontrol.apiserver.k8s.io v1 FlowSchema}",
		"flowcontrol.apiserver.k8s.io/v1beta3 PriorityLevelConfiguration": "{[1 29] [1 32] flowcontrol.apiserver.k8s.io v1 PriorityLevelConfiguration}",
	}
	got := map[string]string{}
	for _, res := range NewRegistry().All() {
		if res.Deprecation != nil {
			got[res.APIVersion()+" "+res.Kind] = fmt.Sprint(*res.Deprecation)
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestBodiesRoundTripAsProtobufAndJSON(t *testing.T) {
	for _, res := range NewRegistry().All() {
		t.Run(res.APIVersion()+" "+res.Kind, func(t *testing.T) {
			served := kubetest.Filled(res.GoType)
			fromProtobuf, _, err := res.Decode(kubetest.Envelope(t, res.APIVersion(), res.Kind, served), "application/vnd.kubernetes.protobuf", "")
			if err != nil {
				t.Fatal(err)
			}
			asJSON, err := MarshalAs(served, res.APIVersion(), res.Kind)
			if err != nil {
				t.Fatal(err)
			}
			fromJSON, strictErrs, err := res.Decode(asJSON, "application/json", "")
			if err != nil || len(strictErrs) > 0 {
				t.Fatal(err, strictErrs)
			}
			if !equality.Semantic.DeepEqual(fromJSON, fromProtobuf) {
				t.Errorf("protobuf and JSON differ:\n%+v\n%+v", fromProtobuf, fromJSON)
			}
			stored, revAt, err := res.EncodeStored(fromJSON)
			if err != nil {
				t.Fatal(err)
			}
			withRev := slices.Concat(stored[:revAt], []byte("4711"), stored[revAt:])
			back, err := res.DecodeStored(withRev)
			if err != nil || back.GetResourceVersion() != "4711" {
				t.Errorf("resourceVersion came back as %q, %v from %s", back.GetResourceVersion(), err, withRev)
			}
			back.SetResourceVersion(fromJSON.GetResourceVersion())
			if !equality.Semantic.DeepEqual(fromJSON, back) {
				t.Errorf("stored object differs:\n%+v\n%+v", fromJSON, back)
			}
		})
	}
}

// The rows that share a shape with their storage version must really do so.
func TestSameShapeVersionsHaveTheSameJSON(t *testing.T) {
	for _, res := range NewRegistry().All() {
		if res.Conversion == nil || res.Conversion.wire != res.Conversion.stored {
			continue
		}
		served, _ := json.Marshal(kubetest.Filled(res.GoType))
		stored, _ := json.Marshal(kubetest.Filled(res.Conversion.stored))
		if !bytes.Equal(served, stored) {
			t.Errorf("%s %s:\n%s\n%s", res.APIVersion(), res.Kind, served, stored)
		}
	}
}

const (
	asJSONType, asYAMLType, asProtobufType = "application/json", "application/yaml", "application/vnd.kubernetes.protobuf"
	unrecognizedText                       = "the object provided is unrecognized (must be of type ConfigMap): "
	noKindText                             = unrecognizedText + "couldn't get version/kind; json parse error: "
	notTypeMetaText                        = ` into Go value of type struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" } `
	formatsText                            = "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf"
	configMapEnvelope                      = "k8s\x00\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12"
)

// badBodies are bodies and what kube-apiserver 1.36 answered to them.
var badBodies = []struct{ name, plural, contentType, body, want string }{
	{"empty", "configmaps", asJSONType, ``, noKindText + `unexpected end of JSON input (<empty>)`},
	{"open brace", "configmaps", asJSONType, `{`, noKindText + `unexpected end of JSON input ({)`},
	{"prose", "configmaps", asJSONType, `hello this is not json at all, you know it is not`,
		noKindText + `invalid character 'h' looking for beginning of value (68656c6c6f2074686973206973206e6f74206a736f6e20617420616c6c2c ...)`},
	{"array", "configmaps", asJSONType, `[]`, noKindText + `json: cannot unmarshal array` + notTypeMetaText + `(5b5d)`},
	{"string", "configmaps", asJSONType, `"x"`, noKindText + `json: cannot unmarshal string` + notTypeMetaText + `(227822)`},
	{"trailing", "configmaps", asJSONType, `{"metadata":{"name":"x"}} trailing`,
		noKindText + `invalid character 't' after top-level value ({"metadata":{"name":"x"}} trai ...)`},
	{"kind is a number", "configmaps", asJSONType, `{"kind":5,"apiVersion":"v1","metadata":{"name":"x"}}`,
		noKindText + `json: cannot unmarshal number into Go struct field .kind of type string ({"kind":5,"apiVersion":"v1","m ...)`},
	{"odd apiVersion", "configmaps", asJSONType, `{"kind":"ConfigMap","apiVersion":"a/b/c","metadata":{"name":"x"}}`,
		unrecognizedText + `unexpected GroupVersion string: a/b/c ({"kind":"ConfigMap","apiVersio ...)`},
	{"too deep", "configmaps", asJSONType, `{"x":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `}`,
		noKindText + `invalid character '[' exceeded max depth ({"x":[[[[[[[[[[[[[[[[[[[[[[[[[ ...)`},
	{"other kind", "configmaps", asJSONType, `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"x"}}`,
		`Secret in version "v1" cannot be handled as a ConfigMap: converting (v1.Secret) to (core.ConfigMap): unknown conversion`},
	{"unknown kind", "configmaps", asJSONType, `{"kind":"Foo","apiVersion":"v1","metadata":{"name":"x"}}`,
		`Foo in version "v1" cannot be handled as a ConfigMap: no kind "Foo" is registered for version "v1" in scheme "pkg/runtime/scheme.go:111"`},
	{"unknown version", "configmaps", asJSONType, `{"kind":"ConfigMap","apiVersion":"v9","metadata":{"name":"x"}}`,
		`ConfigMap in version "v9" cannot be handled as a ConfigMap: no kind "ConfigMap" is registered for version "v9" in scheme "pkg/runtime/scheme.go:111"`},
	{"other version", "horizontalpodautoscalers", asJSONType, `{"kind":"HorizontalPodAutoscaler","apiVersion":"autoscaling/v2"}`,
		`the API version in the data (autoscaling/v2) does not match the expected API version (autoscaling/v1)`},
	{"data is a number", "configmaps", asJSONType, `{"metadata":{"name":"x"},"data":5}`,
		`ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct field ConfigMap.data of type map[string]string`},
	{"name is a number", "configmaps", asJSONType, `{"metadata":{"name":5}}`,
		`ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct field ObjectMeta.metadata.name of type string`},
	{"containers is a string", "pods", asJSONType, `{"spec":{"containers":"x"}}`,
		`Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal string into Go struct field PodSpec.spec.containers of type []v1.Container`},
	{"time", "pods", asJSONType, `{"metadata":{"name":"a","creationTimestamp":"yesterday"}}`,
		`Pod in version "v1" cannot be handled as a Pod: parsing time "yesterday" as "2006-01-02T15:04:05Z07:00": cannot parse "yesterday" as "2006"`},
	{"quantity", "pods", asJSONType, `{"metadata":{"name":"a"},"spec":{"containers":[{"resources":{"limits":{"cpu":"zz"}}}]}}`,
		`Pod in version "v1" cannot be handled as a Pod: quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'`},
	{"integer overflow", "deployments", asJSONType, `{"spec":{"replicas":99999999999}}`,
		`Deployment in version "v1" cannot be handled as a Deployment: json: cannot unmarshal number 99999999999 into Go struct field DeploymentSpec.spec.replicas of type int32`},
	{"huge number", "deployments", asJSONType, `{"spec":{"replicas":1e400}}`,
		`Deployment in version "v1" cannot be handled as a Deployment: json: cannot unmarshal number 1e400 into Go struct field DeploymentSpec.spec.replicas of type int32`},
	{"template generation", "daemonsets", asJSONType, `{"metadata":{"annotations":{"deprecated.daemonset.template.generation":""}}}`,
		`DaemonSet in version "v1" cannot be handled as a DaemonSet: strconv.ParseInt: parsing "": invalid syntax`},
	{"roll back to", "deployments", asYAMLType, `metadata: {annotations: {deprecated.deployment.rollback.to: last}}`,
		`Deployment in version "v1" cannot be handled as a Deployment: failed to parse annotation[deprecated.deployment.rollback.to]=last as int64: ` +
			`strconv.ParseInt: parsing "last": invalid syntax`},
	{"scale", "deployments/scale", asJSONType, `{"kind":"Deployment","apiVersion":"apps/v1"}`,
		`Deployment in version "v1" cannot be handled as a Scale: converting (v1.Deployment) to (autoscaling.Scale): unknown conversion`},

	{"text", "configmaps", "text/plain", `{}`, formatsText},
	{"merge patch", "configmaps", "application/merge-patch+json", `{}`, formatsText},
	{"bad content type", "configmaps", "application/json; charset", `{}`, formatsText},
	{"no media type", "configmaps", "json", `{}`, formatsText},

	{"open YAML", "configmaps", asYAMLType, `metadata: {name: x`, unrecognizedText + `yaml: line 1: did not find expected ',' or '}' (6d657461646174613a207b6e616d653a2078)`},
	{"tab in YAML", "configmaps", asYAMLType, "metadata:\n\tname: x", unrecognizedText + `yaml: line 2: found character that cannot start any token (6d657461646174613a0a096e616d653a2078)`},
	{"YAML scalar", "configmaps", asYAMLType, `hello`, noKindText + `json: cannot unmarshal string` + notTypeMetaText + `(68656c6c6f)`},
	{"YAML type", "configmaps", asYAMLType, `data: 5`,
		`ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct field ConfigMap.data of type map[string]string`},
	{"YAML bomb", "configmaps", asYAMLType, yamlBomb, unrecognizedText + `yaml: document contains excessive aliasing (613a202661205b226c6f6c222c226c6f6c222c226c6f6c222c226c6f6c22 ...)`},
	{"YAML as JSON", "configmaps", asJSONType, `metadata: {name: x}`,
		noKindText + `invalid character 'm' looking for beginning of value (6d657461646174613a207b6e616d653a20787d)`},

	{"no protobuf", "configmaps", asProtobufType, `hello`,
		unrecognizedText + `provided data does not appear to be a protobuf message, expected prefix [107 56 115 0] (68656c6c6f)`},
	{"empty protobuf", "configmaps", asProtobufType, ``, unrecognizedText + `empty data (<empty>)`},
	{"bare prefix", "configmaps", asProtobufType, "k8s\x00", unrecognizedText + `empty body (6b387300)`},
	{"protobuf garbage", "configmaps", asProtobufType, "k8s\x00hello", unrecognizedText + `proto: Unknown: wiretype end group for non-group (6b38730068656c6c6f)`},
	{"short envelope", "configmaps", asProtobufType, configMapEnvelope + "\x06\x0a\x04\x0a",
		unrecognizedText + `unexpected EOF (6b3873000a0f0a0276311209436f6e6669674d617012060a040a)`},
	{"lying length", "configmaps", asProtobufType, configMapEnvelope + "\x08\x0a\xff\xff\xff\x07abc",
		`ConfigMap in version "v1" cannot be handled as a ConfigMap: unexpected EOF`},
	{"protobuf of another kind", "configmaps", asProtobufType, "k8s\x00\x0a\x0c\x0a\x02v1\x12\x06Secret\x12\x00",
		`Secret in version "v1" cannot be handled as a ConfigMap: converting (v1.Secret) to (core.ConfigMap): unknown conversion`},

	{"custom: empty", "foos", asJSONType, ``, `the object provided is unrecognized (must be of type Foo): couldn't get version/kind; json parse error: unexpected end of JSON input (<empty>)`},
	{"custom: no kind", "foos", asJSONType, `{"metadata":{"name":"x"}}`,
		`the object provided is unrecognized (must be of type Foo): Object 'Kind' is missing in '{"metadata":{"name":"x"}}' ({"metadata":{"name":"x"}})`},
	{"custom: Kind", "foos", asJSONType, `{"Kind":"Foo"}`,
		`the object provided is unrecognized (must be of type Foo): Object 'Kind' is missing in '{"Kind":"Foo"}' ({"Kind":"Foo"})`},
	{"custom: null", "foos", asJSONType, `null`, `the object provided is unrecognized (must be of type Foo): Object 'Kind' is missing in 'null' (6e756c6c)`},
	{"custom: no version", "foos", asJSONType, `{"kind":"Foo","metadata":{"name":"x"}}`,
		`the API version in the data () does not match the expected API version (x.io/v1)`},
	{"custom: other kind", "foos", asJSONType, `{"kind":"Bar","apiVersion":"x.io/v1","metadata":{"name":"x"}}`,
		`Bar.x.io "x" is invalid: kind: Invalid value: "Bar": must be Foo`},
	{"custom: other version", "foos", asJSONType, `{"kind":"Foo","apiVersion":"x.io/v2","metadata":{"name":"x"}}`,
		`the API version in the data (x.io/v2) does not match the expected API version (x.io/v1)`},
	{"custom: name is a number", "foos", asJSONType, `{"kind":"Foo","apiVersion":"x.io/v1","metadata":{"name":5}}`,
		`Foo in version "v1" cannot be handled as a Foo: json: cannot unmarshal number into Go struct field ObjectMeta.name of type string`},
	{"custom: metadata is a string", "foos", asJSONType, `{"kind":"Foo","apiVersion":"x.io/v1","metadata":"x"}`,
		`Foo in version "v1" cannot be handled as a Foo: json: cannot unmarshal string into Go value of type v1.ObjectMeta`},
	{"custom: protobuf", "foos", asProtobufType, "k8s\x00",
		`the body of the request was in an unknown format - accepted media types include: application/json, application/yaml`},
}

func TestBadBodiesGetKubernetesTexts(t *testing.T) {
	for _, c := range badBodies {
		t.Run(c.name, func(t *testing.T) {
			plural, sub, _ := strings.Cut(c.plural, "/")
			_, _, err := testResource(plural).Decode([]byte(c.body), c.contentType, sub)
			if err == nil || err.Error() != c.want {
				t.Fatalf("got  %v\nwant %s", err, c.want)
			}
			wantCode := int32(400)
			switch {
			case strings.Contains(c.want, "unknown format"):
				wantCode = 415
			case strings.Contains(c.want, "is invalid"):
				wantCode = 422
			}
			if code := err.(apierrors.APIStatus).Status().Code; code != wantCode {
				t.Errorf("code is %d, want %d", code, wantCode)
			}
		})
	}
}

const yamlBomb = `a: &a ["lol","lol","lol","lol","lol","lol","lol","lol","lol"]
b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]
c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]
d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]
e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]
f: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]
g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]
`

func TestGoodBodies(t *testing.T) {
	cases := []struct{ name, contentType, body string }{
		{"kind and version absent", "", `{"metadata":{"name":"x"},"data":{"a":"b"}}`},
		{"kind alone", "application/json", `{"kind":"ConfigMap","metadata":{"name":"x"},"data":{"a":"b"}}`},
		{"version alone", "application/json", `{"apiVersion":"v1","metadata":{"name":"x"},"data":{"a":"b"}}`},
		{"content type with parameter", "application/json; charset=utf-8", `{"metadata":{"name":"x"},"data":{"a":"b"}}`},
		{"YAML", "application/yaml", "metadata: {name: x}\ndata: {a: b}"},
		{"YAML with a second document", "application/yaml", "metadata: {name: x}\ndata: {a: b}\n---\nmetadata: {name: y}"},
		{"YAML merge key", "application/yaml", "metadata: {name: x}\ndata: {<<: {a: b}}"},
		{"JSON as YAML", "application/yaml", `{"metadata":{"name":"x"},"data":{"a":"b"}}`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			obj, strictErrs, err := testResource("configmaps").Decode([]byte(c.body), c.contentType, "")
			if err != nil || len(strictErrs) > 0 {
				t.Fatal(err, strictErrs)
			}
			want := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Data: map[string]string{"a": "b"}}
			if !reflect.DeepEqual(obj, want) {
				t.Errorf("got %+v", obj)
			}
		})
	}
}

func TestUnknownAndDuplicateFieldsAreReported(t *testing.T) {
	cases := []struct{ name, plural, contentType, body, strict, warnings string }{
		{"json", "configmaps", "application/json", `{"metadata":{"name":"x","foo":1},"bogus":1,"bogus":2,"data":{"a":"1","a":"2"}}`,
			`ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: unknown field "metadata.foo", unknown field "bogus", duplicate field "data.a"`,
			`unknown field "metadata.foo"|unknown field "bogus"|duplicate field "data.a"`},
		{"other case", "configmaps", "application/json", `{"Data":{"a":"b"}}`,
			`ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: unknown field "Data"`, `unknown field "Data"`},
		{"deep", "deployments", "application/json", `{"spec":{"template":{"spec":{"containers":[{"nme":"a"}]}}}}`,
			`Deployment in version "v1" cannot be handled as a Deployment: strict decoding error: unknown field "spec.template.spec.containers[0].nme"`,
			`unknown field "spec.template.spec.containers[0].nme"`},
		{"yaml", "configmaps", "application/yaml", "metadata:\n  name: x\nbogus: 1\nbogus: 2\ndata:\n  a: \"1\"\n  a: \"2\"\n",
			"ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: yaml: unmarshal errors:\n  line 4: key \"bogus\" already set in map\n  line 7: key \"a\" already set in map, unknown field \"bogus\"",
			`line 4: key "bogus" already set in map|line 7: key "a" already set in map|unknown field "bogus"`},
		{"custom", "foos", "application/json", `{"kind":"Foo","apiVersion":"x.io/v1","metadata":{"name":"x","foo":1},"spec":{"a":1,"a":2}}`,
			`Foo in version "v1" cannot be handled as a Foo: strict decoding error: duplicate field "spec.a", unknown field "metadata.foo"`,
			`duplicate field "spec.a"|unknown field "metadata.foo"`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			res := testResource(c.plural)
			_, strictErrs, err := res.Decode([]byte(c.body), c.contentType, "")
			if err != nil {
				t.Fatal(err)
			}
			if got := res.StrictError("", strictErrs).Error(); got != c.strict {
				t.Errorf("got  %s\nwant %s", got, c.strict)
			}
			if got := strings.Join(apierror.StrictWarnings(strictErrs), "|"); got != c.warnings {
				t.Errorf("got  %s\nwant %s", got, c.warnings)
			}
		})
	}
}

func TestDeleteOptions(t *testing.T) {
	orphan := metav1.DeletePropagationOrphan
	want := &metav1.DeleteOptions{PropagationPolicy: &orphan}
	asProtobuf, _ := (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "apps/v1", Kind: "DeleteOptions"}, Raw: []byte("\x22\x06Orphan")}).Marshal()
	cases := []struct{ name, contentType, body, err string }{
		{"json", asJSONType, `{"kind":"DeleteOptions","apiVersion":"apps/v1","propagationPolicy":"Orphan","foo":1}`, ""},
		{"yaml", asYAMLType, `propagationPolicy: Orphan`, ""},
		{"protobuf", asProtobufType, "k8s\x00" + string(asProtobuf), ""},
		{"open brace", asJSONType, `{`, `couldn't get version/kind; json parse error: unexpected end of JSON input`},
		{"other kind", asJSONType, `{"kind":"Pod","apiVersion":"v1"}`, `no kind "Pod" is registered for version "v1" in scheme "pkg/runtime/scheme.go:111"`},
		{"type", asJSONType, `{"gracePeriodSeconds":"x"}`, `json: cannot unmarshal string into Go struct field DeleteOptions.gracePeriodSeconds of type int64`},
		{"open YAML", asYAMLType, `{`, `yaml: line 1: did not find expected node content`},
		{"no protobuf", asProtobufType, `x`, `provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]`},
		{"text", "text/plain", `{}`, formatsText},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := DecodeDeleteOptions([]byte(c.body), c.contentType)
			if c.err == "" && (err != nil || !reflect.DeepEqual(got, want)) || c.err != "" && (err == nil || err.Error() != c.err) {
				t.Errorf("got %+v, %v, want %s", got, err, c.err)
			}
		})
	}
}

func TestManyDuplicateKeysMakeAShortError(t *testing.T) {
	_, strictErrs, err := testResource("configmaps").Decode([]byte("metadata: {name: x}\n"+strings.Repeat("bogus: 1\n", 5000)), "application/yaml", "")
	texts := apierror.StrictWarnings(strictErrs)
	if err != nil || len(texts) != apierror.MaxErrors+2 || texts[apierror.MaxErrors] != "and 3999 more" { // YAML's lines, and one unknown field
		t.Errorf("%d warnings, %v", len(texts), err)
	}
}

func TestEvictionsOfBothVersionsAreAccepted(t *testing.T) {
	for _, apiVersion := range []string{"policy/v1", "policy/v1beta1"} {
		obj, _, err := testResource("pods").Decode([]byte(`{"kind":"Eviction","apiVersion":"`+apiVersion+`","metadata":{"name":"p"}}`), "", "eviction")
		if err != nil || obj.GetName() != "p" {
			t.Errorf("%s: %v, %v", apiVersion, obj, err)
		}
	}
}

func TestCustomResourcesKeepWhatTheyHold(t *testing.T) {
	res := testResource("foos")
	obj, _, err := res.Decode([]byte(`{"kind":"Foo","apiVersion":"x.io/v1","metadata":{"name":"x","annotations":{"resourceVersion":"1"}},`+
		`"resourceVersion":"2","spec":{"big":9007199254740993,"<>":[1.5,null]},"data":{"resourceVersion":"3"}}`), "", "")
	if err != nil {
		t.Fatal(err)
	}
	stored, revAt, err := res.EncodeStored(obj)
	want := `{"metadata":{"annotations":{"resourceVersion":"1"},"name":"x","resourceVersion":""},"data":{"resourceVersion":"3"},` +
		`"resourceVersion":"2","spec":{"\u003c\u003e":[1.5,null],"big":9007199254740993}}`
	if err != nil || string(stored) != want || stored[revAt] != '"' || !bytes.HasSuffix(stored[:revAt], []byte(`"name":"x","resourceVersion":"`)) {
		t.Errorf("stored %s, %d, %v", stored, revAt, err)
	}
	back, err := res.DecodeStored(stored)
	if err != nil || back.GetObjectKind().GroupVersionKind() != res.GroupVersionKind() {
		t.Errorf("came back as %v, %v", back, err)
	}
}

func TestCustomResourcesComeAndGoBesideLookups(t *testing.T) {
	reg := NewRegistry()
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for range 1000 {
				if reg.Lookup("apps", "v1", "deployments") == nil {
					t.Error("a built-in type was gone")
				}
				if res := reg.Lookup("x.io", "v1", "foos"); res != nil && res.Key("a", "b") != "/x.io/foos/a/b" {
					t.Error("half a resource was visible")
				}
			}
		})
	}
	kept := customFoo()
	for range 100 {
		reg.ReplaceCustom([]*Resource{kept, {Group: "apps", Version: "v1", Plural: "deployments", Kind: "Impostor"}})
		reg.ReplaceCustom(nil)
	}
	readers.Wait()
	reg.ReplaceCustom([]*Resource{kept, {Group: "x.io", Version: "v2", Plural: "foos", Kind: "Foo"}, {Group: "x.io", Version: "v1beta1", Plural: "foos", Kind: "Foo"}})
	if res := reg.Lookup("apps", "v1", "deployments"); res.Kind != "Deployment" {
		t.Error("a built-in type was shadowed")
	}
	got := ""
	for _, res := range reg.All()[len(Builtins):] {
		got += res.APIVersion() + " "
	}
	if got != "x.io/v2 x.io/v1 x.io/v1beta1 " {
		t.Errorf("custom versions are in order %s", got)
	}
}

func FuzzKeysComeApartAgain(f *testing.F) {
	f.Add("default", "web")
	f.Add("", "node-1")
	f.Add("a", "")
	f.Add("a/b", "c")
	rows := NewRegistry().All()
	f.Fuzz(func(t *testing.T, namespace, name string) {
		for _, res := range rows[:3] {
			key := res.Key(namespace, name)
			if !strings.HasPrefix(key, res.KeyPrefix(namespace)) || !strings.HasPrefix(key, res.KeyPrefix("")) {
				t.Fatalf("key %q is not in the range of its namespace", key)
			}
			base, ns, n, ok := SplitKey(key)
			if legal := name != "" && !strings.Contains(namespace+name, "/"); ok != legal {
				t.Fatalf("splitKey(%q) ok=%v", key, ok)
			}
			if ok && (base != res.Base || ns != namespace || n != name) {
				t.Fatalf("splitKey(%q) = %q, %q, %q", key, base, ns, n)
			}
		}
	})
}

func FuzzDecodeNeverPanics(f *testing.F) {
	rows := []*Resource{testResource("configmaps"), testResource("pods"), testResource("horizontalpodautoscalers"), testResource("foos")}
	f.Add([]byte(`{"kind":"Foo","apiVersion":"x.io/v1","metadata":{"name":"x"},"spec":[1,{"a":null}]}`))
	f.Add([]byte("metadata: {name: &a x}\nspec: [*a]"))
	f.Add([]byte(`{"metadata":{"name":"x","annotations":{"autoscaling.alpha.kubernetes.io/metrics":"[{\"object\":{}}]"}},"spec":{"containers":[{}]}}`))
	for _, res := range rows[:3] {
		f.Add(kubetest.Envelope(f, res.APIVersion(), res.Kind, kubetest.Filled(res.GoType)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, res := range rows {
			for _, contentType := range []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf"} {
				obj, _, err := res.Decode(data, contentType, "")
				if err != nil {
					continue
				}
				stored, revAt, err := res.EncodeStored(obj)
				if err != nil || !json.Valid(slices.Concat(stored[:revAt], []byte("1"), stored[revAt:])) {
					t.Fatalf("%q stored as %s, %v", data, stored, err)
				}
				if _, err := documentOf(res, stored); err != nil {
					t.Fatalf("%s has no document: %v", stored, err)
				}
			}
		}
	})
}

func BenchmarkCodec(b *testing.B) {
	res := testResource("pods")
	asJSON, _ := json.Marshal(kubetest.Filled(res.GoType))
	small := []byte(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","namespace":"default","labels":{"a":"b"}},"spec":{"containers":[{"name":"a","image":"b","resources":{"limits":{"cpu":"1"}}}]}}`)
	for name, body := range map[string][]byte{"small": small, "full": asJSON} {
		obj, _, err := res.Decode(body, "", "")
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name+"/decode", func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				res.Decode(body, "", "")
			}
		})
		b.Run(name+"/encode", func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				res.EncodeStored(obj)
			}
		})
	}
}

// documentOf is the whole JSON of an object as a client gets it, made from what is stored.
func documentOf(res *Resource, stored []byte) ([]byte, error) {
	members, err := res.Served(stored)
	if err != nil {
		return nil, err
	}
	return slices.Concat([]byte("{"+res.Prefix), members[1:]), nil
}
