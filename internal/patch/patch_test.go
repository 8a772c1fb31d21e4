package patch

import (
	"apilet/internal/bounded"
	"apilet/internal/scheme"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
)

const configMapJSON = `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"j","labels":{"a":"1","x/y":"2"}},"data":{"a":"1","b":"2","c":"3"}}`

func equalDocuments(a, b string) bool {
	var x, y any
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		return false
	}
	p, _ := json.Marshal(x)
	q, _ := json.Marshal(y)
	return bytes.Equal(p, q)
}

func TestJSONPatchOperations(t *testing.T) {
	const doc = `{"a":"1","l":["x","y","z"],"m":{"k":"v","x/y":1,"a~b":2},"n":null,"h":"a\u003cb","d":[null,{"a":[1]}]}`
	with := func(old, new string) string { return strings.Replace(doc, old, new, 1) }
	for _, c := range []struct{ ops, want string }{ // want "": 422
		{`[]`, doc}, {`null`, doc},
		{`[{"op":"add","path":"/q","value":1}]`, with(`{"a"`, `{"q":1,"a"`)},
		{`[{"op":"add","path":"/q"}]`, with(`{"a"`, `{"q":null,"a"`)},
		{`[{"op":"add","path":"/a","value":"9"}]`, with(`"1"`, `"9"`)},
		{`[{"op":"add","path":"q","value":1}]`, ``},
		{`[{"op":"add","path":"zz/q","value":1}]`, with(`{"a"`, `{"q":1,"a"`)},
		{`[{"op":"add","path":"","value":{}}]`, ``},
		{`[{"op":"add","path":"/zz/q","value":1}]`, ``},
		{`[{"op":"add","path":"/n/q","value":1}]`, ``},
		{`[{"op":"add","path":"/a/q","value":1}]`, ``},
		{`[{"op":"add","value":1}]`, ``},
		{`[{"op":"add","path":"/l/-","value":"w"}]`, with(`"z"`, `"z","w"`)},
		{`[{"op":"add","path":"/l/0","value":"w"}]`, with(`"x"`, `"w","x"`)},
		{`[{"op":"add","path":"/l/3","value":"w"}]`, with(`"z"`, `"z","w"`)},
		{`[{"op":"add","path":"/l/01","value":"w"}]`, with(`"y"`, `"w","y"`)},
		{`[{"op":"add","path":"/l/-1","value":"w"}]`, with(`"z"`, `"z","w"`)},
		{`[{"op":"add","path":"/l/-4","value":"w"}]`, with(`"x"`, `"w","x"`)},
		{`[{"op":"add","path":"/l/-5","value":"w"}]`, ``},
		{`[{"op":"add","path":"/l/4","value":"w"}]`, ``},
		{`[{"op":"add","path":"/l/99999999999999999999","value":"w"}]`, ``},
		{`[{"op":"add","path":"/l/9223372036854775807","value":"w"}]`, ``},
		{`[{"op":"add","path":"/l/1e0","value":"w"}]`, ``},
		{`[{"op":"remove","path":"/a"}]`, with(`"a":"1",`, ``)},
		{`[{"op":"remove","path":"/zz"}]`, ``},
		{`[{"op":"remove","path":""}]`, ``},
		{`[{"op":"remove","path":"/l/1"}]`, with(`"y",`, ``)},
		{`[{"op":"remove","path":"/l/-1"}]`, with(`,"z"`, ``)},
		{`[{"op":"remove","path":"/l/-"}]`, ``},
		{`[{"op":"replace","path":"/l/2","value":"w"}]`, with(`"z"`, `"w"`)},
		{`[{"op":"replace","path":"/l/3","value":"w"}]`, ``},
		{`[{"op":"replace","path":"/zz","value":"w"}]`, with(`{"a"`, `{"zz":"w","a"`)},
		{`[{"op":"replace","path":"","value":{"q":1}}]`, `{"q":1}`},
		{`[{"op":"replace","path":"","value":[]}]`, `[]`},
		{`[{"op":"replace","path":"","value":"x"}]`, ``},
		{`[{"op":"replace","path":""}]`, ``},
		{`[{"op":"replace","path":"/m/x~1y","value":3}]`, with(`"x/y":1`, `"x/y":3`)},
		{`[{"op":"replace","path":"/m/a~0b","value":3}]`, with(`"a~b":2`, `"a~b":3`)},
		{`[{"op":"move","from":"/l/0","path":"/l/2"}]`, with(`"x","y","z"`, `"y","z","x"`)},
		{`[{"op":"move","from":"/m","path":"/m/x"}]`, ``},
		{`[{"op":"move","from":"/zz","path":"/q"}]`, ``},
		{`[{"op":"move","path":"/q"}]`, ``},
		{`[{"op":"copy","from":"/m","path":"/l/0"},{"op":"add","path":"/l/0/new","value":1}]`,
			with(`"x"`, `{"k":"v","x/y":1,"a~b":2,"new":1},"x"`)},
		{`[{"op":"copy","from":"/zz","path":"/q"}]`, with(`{"a"`, `{"q":null,"a"`)},
		{`[{"op":"copy","from":"","path":"/q"}]`, ``},
		{`[{"op":"test","path":"/a","value":"1"}]`, doc},
		{`[{"op":"test","path":"/a","value":"\u0031"}]`, doc},
		{`[{"op":"test","path":"/a","value":1}]`, ``},
		{`[{"op":"test","path":"/a"}]`, ``},
		{`[{"op":"test","path":"/h","value":"a<b"}]`, doc},
		{`[{"op":"test","path":"/zz"}]`, doc},
		{`[{"op":"test","path":"/n","value":null}]`, doc},
		{`[{"op":"test","path":"/zz","value":1}]`, ``},
		{`[{"op":"test","path":"/m","value":{"a~b":2,"x/y":1,"k":"v"}}]`, doc},
		{`[{"op":"test","path":"/m","value":{"a~b":2,"x/y":1,"q":"v"}}]`, ``},
		{`[{"op":"test","path":"/m/x~1y","value":1.0}]`, ``},
		{`[{"op":"test","path":"/d","value":[null,{"a":[1]}]}]`, doc},
		{`[{"op":"test","path":"/d","value":[null,{"a":[2]}]}]`, ``},
		{`[{"op":"test","path":"/d","value":[1,{"a":[1]}]}]`, ``},
		{`[{"op":"test","path":"/d","value":{}}]`, ``},
		{`[{"op":"test","path":"","value":` + doc + `}]`, doc},
		{`[{"op":"test","path":""}]`, ``},
		{`[{"op":"add","path":"/q","value":"1"},{"op":"test","path":"/q","value":"2"}]`, ``},
		{`[null]`, ``}, {`[{}]`, ``}, {`[{"op":"ADD","path":"/q","value":1}]`, ``}, {`[{"path":"/q","value":1}]`, ``},
	} {
		got, _, err := Apply(JSONPatch, []byte(doc), []byte(c.ops), nil)
		if c.want == "" {
			if text := kubetest.Refused(t, err, 422, metav1.StatusReasonInvalid); text != "the server rejected our request due to an error in our request" {
				t.Errorf("%s: got %q", c.ops, text)
			}
			continue
		}
		if err != nil || !equalDocuments(string(got), c.want) {
			t.Errorf("%s: got %s, %v, want %s", c.ops, got, err, c.want)
		}
	}
}

func TestMergePatchDocuments(t *testing.T) {
	for _, c := range []struct{ doc, body, want string }{ // the examples of RFC 7396, appendix A, that start from an object; then ours
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{`{"a":"b"}`, `{"a":null}`, `{}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{`{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
		{`{"e":null}`, `{"a":1}`, `{"e":null,"a":1}`},
		{`{"e":null}`, `{"e":{"a":null,"b":1}}`, `{"e":{"b":1}}`},
		{`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
		{`{"a":1}`, `{"a":[null,{"b":null,"c":1}]}`, `{"a":[null,{"c":1}]}`},
		{`{"a":{"b":{"c":1,"d":2}}}`, `{"a":{"b":{"c":3},"e":[]}}`, `{"a":{"b":{"c":3,"d":2},"e":[]}}`},
		{`{"a":{"b":1}}`, `{"a":[]}`, `{"a":[]}`},
		{`{"a":1}`, `{"a":2,"a":{"b":null}}`, `{"a":{}}`},
		{`{}`, `{}`, `{}`},
	} {
		got, _, err := Apply(mergePatch, []byte(c.doc), []byte(c.body), nil)
		if err != nil || !equalDocuments(string(got), c.want) {
			t.Errorf("%s under %s: got %s, %v, want %s", c.doc, c.body, got, err, c.want)
		}
	}
}

func TestStrategicMergeKeepsWhatOthersWrote(t *testing.T) {
	const doc = `{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"d","finalizers":["a.io/a","b.io/b"]},"spec":{"replicas":2,
		"selector":null,"strategy":{"type":"RollingUpdate","rollingUpdate":{"maxSurge":1}},
		"template":{"metadata":{},"spec":{"containers":[{"name":"c","image":"i:1","env":[{"name":"A","value":"1"},{"name":"B","value":"2"}]},{"name":"d","image":"j:1"}]}}}}`
	spec := func(s string) string { return `{"spec":{"template":{"spec":{` + s + `}}}}` }
	for _, c := range []struct{ name, body, want string }{ // want: what the result must contain, in the order of the Go type
		{"image", spec(`"containers":[{"name":"c","image":"i:2"}]`), `"containers":[{"name":"c","image":"i:2","env":[{"name":"A","value":"1"},{"name":"B","value":"2"}],"resources":{}},{"name":"d"`},
		{"order", spec(`"$setElementOrder/containers":[{"name":"d"},{"name":"c"}]`), `"containers":[{"name":"d","image":"j:1","resources":{}},{"name":"c"`},
		{"delete", spec(`"containers":[{"$patch":"delete","name":"c"}]`), `"containers":[{"name":"d","image":"j:1","resources":{}}]`},
		{"replace list", spec(`"containers":[{"$patch":"replace"},{"name":"q","image":"q:1"}]`), `"containers":[{"name":"q","image":"q:1","resources":{}}]`},
		{"nested delete", spec(`"containers":[{"name":"c","env":[{"$patch":"delete","name":"A"}]}]`), `"env":[{"name":"B","value":"2"}]`},
		{"retain keys", `{"spec":{"strategy":{"$retainKeys":["type"],"type":"Recreate"}}}`, `"strategy":{"type":"Recreate"}`},
		{"null", `{"spec":{"replicas":null}}`, `"spec":{"selector":null`},
		{"primitive list", `{"metadata":{"$deleteFromPrimitiveList/finalizers":["a.io/a"],"finalizers":["c.io/c"],"$setElementOrder/finalizers":["c.io/c","b.io/b"]}}`, `"finalizers":["c.io/c","b.io/b"]`},
		{"int64 of a float", `{"metadata":{"generation":3.0}}`, `"generation":3,`},
		{"int64 whole", `{"metadata":{"generation":9007199254740993}}`, `"generation":9007199254740993,`},
		{"kind stays", `{"kind":"Secret","apiVersion":null}`, `{"kind":"Deployment","apiVersion":"apps/v1"`},
		{"null document", `null`, `"replicas":2`},
	} {
		got, strictErrs, err := Apply(strategicPatch, []byte(doc), []byte(c.body), appsv1.Deployment{})
		if err != nil || len(strictErrs) > 0 || !strings.Contains(string(got), c.want) {
			t.Errorf("%s: got %s, %v, %v, want %s", c.name, got, strictErrs, err, c.want)
		}
	}
}

// The messages are what kube-apiserver 1.36 answered to the same bodies.
func TestPatchRefusals(t *testing.T) {
	for _, c := range []struct {
		kind    Kind
		body    string
		code    int32
		reason  metav1.StatusReason
		message string
	}{
		{JSONPatch, `{"op":"add"}`, 400, metav1.StatusReasonBadRequest, "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"},
		{JSONPatch, `["add"]`, 400, metav1.StatusReasonBadRequest, "error decoding patch: json: cannot unmarshal string into Go value of type handlers.jsonPatchOp"},
		{JSONPatch, `[{"op":1}]`, 400, metav1.StatusReasonBadRequest, "error decoding patch: json: cannot unmarshal number into Go struct field jsonPatchOp.op of type string"},
		{JSONPatch, ``, 400, metav1.StatusReasonBadRequest, "invalid JSON patch"},
		{JSONPatch, `abc`, 400, metav1.StatusReasonBadRequest, "invalid JSON patch"},
		{JSONPatch, `[` + strings.Repeat(`{},`, 10000) + `{}]`, 413, metav1.StatusReasonRequestEntityTooLarge, "Request entity too large: The allowed maximum operations in a JSON patch is 10000, got 10001"},
		{mergePatch, `[]`, 400, metav1.StatusReasonBadRequest, "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}"},
		{mergePatch, `null`, 400, metav1.StatusReasonBadRequest, "Invalid JSON Patch"},
		{mergePatch, `{"data":1`, 400, metav1.StatusReasonBadRequest, "invalid JSON patch"},
		{strategicPatch, `"x"`, 400, metav1.StatusReasonBadRequest, "json: cannot unmarshal string into Go value of type map[string]interface {}"},
		{strategicPatch, `{"$retainKeys":"x"}`, 400, metav1.StatusReasonBadRequest, "invalid patch format of retainKeys"},
		{strategicPatch, `{"data":"x"}`, 422, metav1.StatusReasonInvalid, ` "" is invalid: patch: Invalid value: "map[data:x]": cannot restore map from string`},
		{strategicPatch, `{"metadata":{"generation":1.5}}`, 422, metav1.StatusReasonInvalid, ` "" is invalid: patch: Invalid value: "map[metadata:map[generation:1.5]]": cannot convert float64 to int64`},
		{strategicPatch, `{"metadata":{"$setElementOrder/finalizers":"x"}}`, 500, "", "expected a []interface {}, but received a string"},
		{strategicPatch, `{"metadata":{"finalizers":[["x"]],"$setElementOrder/finalizers":[["x"]]}}`, 400, metav1.StatusReasonBadRequest, "strategic merge patch format is not supported"},
		{ApplyPatch, `{}`, 415, metav1.StatusReasonUnsupportedMediaType, "415: Unsupported Media Type"},
	} {
		_, _, err := Apply(c.kind, []byte(configMapJSON), []byte(c.body), corev1.ConfigMap{})
		if got := kubetest.Refused(t, err, c.code, c.reason); got != c.message {
			t.Errorf("%s %.60s: got %q, want %q", c.kind, c.body, got, c.message)
		}
	}
}

func TestPatchStrictErrors(t *testing.T) {
	for _, c := range []struct {
		kind       Kind
		body, want string
	}{
		{JSONPatch, `[{"op":"add","path":"/data/n","value":"1","foo":"bar","value":"2"}]`, `json patch unknown field "[0].foo", json patch duplicate field "[0].value"`},
		{JSONPatch, `[{"op":"add","path":"/data","value":{"a":"1","a":"2"}}]`, `json patch duplicate field "[0].value.a"`},
		{mergePatch, `{"data":{"a":"1","a":"2"},"bogus":1}`, `duplicate field "data.a"`}, // decoding the result finds bogus
		{strategicPatch, `{"data":{"a":"1","a":"2"},"bogus":1}`, `duplicate field "data.a", unknown field "bogus"`},
	} {
		_, errs, err := Apply(c.kind, []byte(configMapJSON), []byte(c.body), corev1.ConfigMap{})
		got := strings.TrimPrefix(runtime.NewStrictDecodingError(errs).Error(), "strict decoding error: ")
		if err != nil || got != c.want {
			t.Errorf("%s %s: got %s, %v, want %s", c.kind, c.body, got, err, c.want)
		}
	}
}

func TestInvalidPatchQuotesTheResult(t *testing.T) {
	strict := runtime.NewStrictDecodingError([]error{errors.New(`unknown field "a"`)})
	for _, c := range []struct {
		kind  Kind
		cause error
		want  string
	}{
		{mergePatch, strict, ` "" is invalid: patch: Invalid value: "{\"a\":1}": strict decoding error: unknown field "a"`},
		{strategicPatch, strict, ` "" is invalid: patch: Invalid value: "map[b:2]": strict decoding error: unknown field "a"`},
		{JSONPatch, &scheme.BodyError{StatusError: apierrors.NewBadRequest("not told"), Cause: errors.New("json: cannot unmarshal string into Go struct field ConfigMap.data of type map[string]string")},
			` "" is invalid: patch: Invalid value: "{\"a\":1}": json: cannot unmarshal string into Go struct field ConfigMap.data of type map[string]string`},
	} {
		err := Invalid(c.kind, []byte(`{"b":2}`), []byte(`{"a":1}`), c.cause)
		if got := kubetest.Refused(t, err, 422, metav1.StatusReasonInvalid); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}

func TestPatchMediaTypes(t *testing.T) {
	const list = "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, "
	for _, c := range []struct {
		contentType string
		strategic   bool
		want        Kind
		message     string
	}{
		{"application/merge-patch+json", true, mergePatch, ""},
		{"application/merge-patch+json; charset=utf-8", true, mergePatch, ""},
		{"application/apply-patch+yaml", false, ApplyPatch, ""},
		{"application/strategic-merge-patch+json", true, strategicPatch, ""},
		{"application/strategic-merge-patch+json", false, "", list + "application/apply-patch+yaml"},
		{"text/plain", false, "", list + "application/apply-patch+yaml"},
		{"application/json", true, "", "415: Unsupported Media Type"},
		{"Application/Merge-Patch+json", true, "", "415: Unsupported Media Type"},
		{"application/merge-patch+json ;x=y", true, "", list + "application/strategic-merge-patch+json, application/apply-patch+yaml"},
		{"", true, "", "415: Unsupported Media Type"},
	} {
		kind, err := KindOf(c.contentType, c.strategic)
		if c.want != "" && (err != nil || kind != c.want) {
			t.Errorf("%q: got %q, %v, want %q", c.contentType, kind, err, c.want)
		}
		if c.message != "" {
			if got := kubetest.Refused(t, err, http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType); got != c.message {
				t.Errorf("%q: got %q, want %q", c.contentType, got, c.message)
			}
		}
	}
}

func TestPatchKeepsDigits(t *testing.T) {
	long := strings.Repeat("9", 1<<20)
	for _, number := range []string{"9223372036854775807", "-9007199254740993", "1.0", "1e400", "0.1000", long} {
		doc := []byte(`{"kind":"K","apiVersion":"v1","a":` + number + `,"b":1}`)
		for kind, body := range map[Kind]string{
			JSONPatch:  `[{"op":"add","path":"/c","value":` + number + `},{"op":"copy","from":"/a","path":"/d"},{"op":"test","path":"/a","value":` + number + `}]`,
			mergePatch: `{"c":` + number + `,"d":{"e":` + number + `}}`,
		} {
			got, _, err := Apply(kind, doc, []byte(body), nil)
			if number == "1e400" || number == long { // no float64, which the strict reader insists on, as in the real server
				kubetest.Refused(t, err, 400, metav1.StatusReasonBadRequest)
				continue
			}
			if err != nil || !bytes.Contains(got, []byte(`"a":`+number+`,`)) || !bytes.Contains(got, []byte(`"c":`+number+`,`)) {
				t.Errorf("%s %.30s: got %.200s, %v", kind, number, got, err)
			}
		}
	}
}

func TestPatchWorkIsBounded(t *testing.T) {
	nested := func(open, inner, end string, n int) string {
		return strings.Repeat(open, n) + inner + strings.Repeat(end, n)
	}
	wide := `"` + strings.Repeat("x", 2<<20) + `"`
	var inserts, copies, tests []string
	for i := range 10000 {
		inserts = append(inserts, `{"op":"add","path":"/l/0","value":0}`)
		tests = append(tests, `{"op":"test","path":"/l","value":[1]}`)
		copies = append(copies, fmt.Sprintf(`{"op":"copy","from":"/l","path":"/c%d"}`, i))
	}
	long := `{"l":[` + strings.Repeat("1,", 700000) + `1]}`
	items := func(format string, n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(format, i))
		}
		return strings.Join(all, ",")
	}
	for _, c := range []struct {
		name      string
		kind      Kind
		doc, body string
	}{
		{"deep path", JSONPatch, `{}`, `[{"op":"add","path":"/a","value":` + nested(`{"a":`, wide, `}`, 5000) + `},{"op":"remove","path":"` + strings.Repeat("/a", 4999) + `"}]`},
		{"deep merge", mergePatch, `{"a":` + nested(`{"a":`, wide, `}`, 5000) + `}`, nested(`{"a":`, `1`, `}`, 5000)},
		{"head inserts", JSONPatch, long, `[` + strings.Join(inserts, ",") + `]`},
		{"copies", JSONPatch, long, `[` + strings.Join(copies, ",") + `]`},
		{"tests", JSONPatch, long, `[` + strings.Join(tests, ",") + `]`},
		{"key lookups", strategicPatch, `{"spec":{"containers":[` + items(`{"name":"a%d"}`, 2500) + `]}}`, `{"spec":{"containers":[` + items(`{"name":"b%d"}`, 2500) + `]}}`},
		{"too deep", mergePatch, `{}`, nested(`{"a":`, `1`, `}`, 20000)},
		{"too deep for strategic", strategicPatch, `{}`, nested(`{"a":`, `1`, `}`, 20000)},
	} {
		before := apitest.Allocated()
		_, _, err := Apply(c.kind, []byte(c.doc), []byte(c.body), corev1.Pod{}) // it takes a second, and without a bound hours
		allocated := (apitest.Allocated() - before) >> 20
		if err == nil || allocated > 1000 {
			t.Errorf("%s: %d MiB were allocated, err %v", c.name, allocated, err)
		}
		t.Logf("%s: %d MiB, %.80s", c.name, allocated, err)
	}
}

func FuzzPatch(f *testing.F) {
	kinds := []Kind{JSONPatch, mergePatch, strategicPatch}
	for _, body := range []string{
		`[{"op":"test","path":"","value":[null]},{"op":"replace","path":""}]`, `[{"op":"move","from":"/data/a","path":"/data/z/-1"}]`,
		`[{"op":"copy","from":"/metadata","path":"/metadata/x"}]`, `{"metadata":{"labels":null,"name":{"a":null}},"data":[null]}`,
		`{"spec":{"template":{"spec":{"containers":[{"name":"c","$patch":"delete"},{"$patch":"replace"}],"$setElementOrder/containers":[{"name":"c"}]}}}}`,
		`{"metadata":{"$deleteFromPrimitiveList/finalizers":["a"],"$retainKeys":["x"],"ownerReferences":[{"uid":"1"},null,"x",[1]]}}`,
		`{"spec":{"strategy":{"$retainKeys":["type"],"type":1}}}`, `null`, `[]`, `{"$patch":"replace"}`, `1e999`, "{\"a\":\"\xff\"}",
	} {
		for i := range kinds {
			f.Add(uint8(i), body)
		}
	}
	f.Fuzz(func(t *testing.T, kind uint8, body string) {
		current := []byte(kubetest.DeploymentJSON(2))
		got, _, err := Apply(kinds[int(kind)%len(kinds)], current, []byte(body), appsv1.Deployment{})
		if err == nil && !json.Valid(got) {
			t.Fatalf("%s: result is no JSON: %q", body, got)
		}
		var status apierrors.APIStatus
		if err != nil && !errors.As(err, &status) {
			t.Fatalf("%s: %v is no Status", body, err)
		}
	})
}

func BenchmarkPatchOneLabel(b *testing.B) {
	current := []byte(kubetest.DeploymentJSON(3))
	for kind, body := range map[Kind]string{
		JSONPatch:      `[{"op":"replace","path":"/metadata/labels/app","value":"y"}]`,
		mergePatch:     `{"metadata":{"labels":{"app":"y"}}}`,
		strategicPatch: `{"metadata":{"labels":{"app":"y"}}}`,
	} {
		b.Run(strings.TrimPrefix(string(kind), "application/"), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := Apply(kind, current, []byte(body), appsv1.Deployment{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestPatchNestsNoDeeperThanItsDecoder(t *testing.T) {
	t.Parallel()
	wrap := strings.Repeat("[", 100) + strings.Repeat("]", 100)
	doc := NewPatchedDoc([]byte(`{"s":{}}`))
	add, move, into, back := "/t", "/s", "/t"+strings.Repeat("/0", 99)+"/-", "/s"
	for range 101 {
		for _, op := range []PatchStep{{Op: "add", Path: &add, Value: &JsonNode{Raw: []byte(wrap)}}, {Op: "move", From: &move, Path: &into}, {Op: "move", From: &add, Path: &back}} {
			if err := doc.Apply(op); err != nil {
				t.Fatal(err)
			}
		}
	}
	if text, err := doc.Root.Encode(); !errors.Is(err, bounded.ErrTooDeep) {
		t.Errorf("the patch made a document of %d bytes: %v", len(text), err)
	}
	if _, err := doc.Root.obj["s"].list[0].Encode(); !errors.Is(err, bounded.ErrTooDeep) {
		t.Errorf("its copy would be made: %v", err)
	}
}
