package e2e

// These tests try to store objects that cannot be decoded again. They also open a file that
// contains many such objects. The file, testdata/poisoned/apilet.db.gz, was written by an old
// version that did not check for this. In it "late" (a Role and ClusterRole, Lease, Event, Service,
// ConfigMap, Secret, Pod, PodDisruptionBudget, webhook configuration, flow schema and level,
// PriorityClass, Namespace, Widget) has a time in the year 10000. In the definition of Gears, such
// a time is in the managedFields. The definition of Deeps (protobuf) and the Widget "deep" are
// nested too deeply. Each of them has a "sound" counterpart.
//
// The file can only be written again with that old version, which stored these bodies unchanged.

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
	"apilet/internal/scheme"
	"apilet/internal/scheme/protobuf"
	"apilet/internal/store"
)

const (
	lateTime    = `9999-12-31T23:59:59-01:00` // in UTC this is in the year 10000
	lateMicro   = `9999-12-31T23:59:59.000000-01:00`
	lateEntry   = `"managedFields":[{"manager":"m","operation":"Update","apiVersion":"%s","time":"` + lateTime + `","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{}}}]`
	asProto     = "Content-Type: application/vnd.kubernetes.protobuf"
	asStrategic = "Content-Type: application/strategic-merge-patch+json"
)

// lateMeta returns metadata with managedFields. Their time cannot be encoded as JSON.
func lateMeta(apiVersion, name, more string) string {
	return fmt.Sprintf(`"metadata":{"name":%q,`+lateEntry+`%s}`, name, apiVersion, more)
}

// nested returns JSON with depth nested objects.
func nested(depth int) string {
	return strings.Repeat(`{"a":`, depth-1) + "{}" + strings.Repeat("}", depth-1)
}

// nestedField returns a protobuf field that contains itself depth times. To run in linear time, it
// builds the field backwards.
func nestedField(number, depth int) []byte {
	var backwards []byte
	for range depth {
		head := kubetest.AppendVarint(kubetest.AppendVarint(nil, number<<3|2), len(backwards))
		for i := len(head) - 1; i >= 0; i-- {
			backwards = append(backwards, head[i])
		}
	}
	for i, j := 0, len(backwards)-1; i < j; i, j = i+1, j-1 {
		backwards[i], backwards[j] = backwards[j], backwards[i]
	}
	return backwards
}

// sealed returns the body of a protobuf request.
func sealed(apiVersion, kind string, object []byte) string {
	envelope := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: apiVersion, Kind: kind}, Raw: object}
	raw, err := envelope.Marshal()
	if err != nil {
		panic(err)
	}
	return string(protobuf.ProtobufPrefix) + string(raw)
}

// lateProto returns an object in protobuf. The time in its managedFields is the given number of
// seconds, and its second field is spec.
func lateProto(t testing.TB, apiVersion, kind string, seconds int64, spec []byte) string {
	t.Helper()
	stamp := appendVarint64([]byte{1 << 3}, uint64(seconds))
	entry := slices.Concat(kubetest.ProtoField(1, []byte("m")), kubetest.ProtoField(2, []byte("Update")), kubetest.ProtoField(3, []byte(apiVersion)), kubetest.ProtoField(4, stamp),
		kubetest.ProtoField(6, []byte("FieldsV1")), kubetest.ProtoField(7, kubetest.ProtoField(1, []byte(`{"f:metadata":{}}`))))
	meta := slices.Concat(kubetest.ProtoField(1, []byte("late")), kubetest.ProtoField(17, entry))
	return sealed(apiVersion, kind, slices.Concat(kubetest.ProtoField(1, meta), spec))
}

func appendVarint64(to []byte, n uint64) []byte {
	for ; n >= 0x80; n >>= 7 {
		to = append(to, byte(n)|0x80)
	}
	return append(to, byte(n))
}

// definitionWith returns a definition in protobuf whose schema has additional fields.
func definitionWith(t testing.TB, more []byte) string {
	t.Helper()
	var crd apiextensionsv1.CustomResourceDefinition
	if err := json.Unmarshal([]byte(kubetest.SimpleDefinition(t, "Deep", "example.org", `{type: object}`, "")), &crd); err != nil {
		t.Fatal(err)
	}
	crd.Spec.Versions = nil
	schema := append(kubetest.ProtoField(5, []byte("object")), more...)
	version := slices.Concat(kubetest.ProtoField(1, []byte("v1")), []byte{2 << 3, 1, 3 << 3, 1}, kubetest.ProtoField(4, kubetest.ProtoField(1, schema)))
	spec := append(kubetest.Must(crd.Spec.Marshal()), kubetest.ProtoField(7, version)...)
	return sealed("apiextensions.k8s.io/v1", "CustomResourceDefinition", append(kubetest.ProtoField(1, kubetest.Must(crd.ObjectMeta.Marshal())), kubetest.ProtoField(2, spec)...))
}

const (
	rolesPath  = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles"
	leasesPath = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
	widgets    = "/apis/example.org/v1/namespaces/default/widgets"
	year10000  = 253402304399 // in the first hour of the year 10000
)

func widget(name, more string) string {
	return `{"apiVersion":"example.org/v1","kind":"Widget","metadata":{"name":"` + name + `"}` + more + `}`
}

func (s *testServer) defineWidgets() {
	s.want(201, "POST", definitionsPath, kubetest.SimpleDefinition(s.t, "Widget", "example.org",
		`{type: object, x-kubernetes-preserve-unknown-fields: true}`, ", subresources: {status: {}}"))
}

func TestNothingIsStoredThatCannotBeReadBack(t *testing.T) {
	t.Parallel()
	s := startTest(t, "--controllers=false") // the only writes should be the requests of the test
	s.defineWidgets()
	s.want(201, "POST", rolesPath, `{"metadata":{"name":"r"}}`)
	s.want(201, "POST", leasesPath, `{"metadata":{"name":"l"}}`)
	s.want(201, "POST", widgets, widget("w", ""))
	apitest.WaitFor(t, "the APIService that the server writes by itself", func() bool {
		return s.send("GET", "/apis/apiregistration.k8s.io/v1/apiservices/v1.example.org", "").code == 200
	})
	const rbac, asYAML, jsonPatch = "rbac.authorization.k8s.io/v1", "Content-Type: application/yaml", asJSONPatch
	lateRole := `{` + lateMeta(rbac, "late", "") + `}`
	entryOf := fmt.Sprintf(`[{"op":"add","path":"/metadata/managedFields/0","value":%s}]`, lateEntryOf(rbac))
	const early = `0000-01-01T00:00:00+01:00` // in UTC this is in the year -1
	for what, c := range map[string]struct {
		method, path, body, header, want string
	}{
		"role":             {"POST", rolesPath, lateRole, "", `422 Invalid Role.rbac.authorization.k8s.io "late" is invalid: metadata.managedFields[0].time: Invalid value: "10000-01-01T00:59:59Z": `},
		"dry run":          {"POST", rolesPath + "?dryRun=All", lateRole, "", `422 `},
		"YAML":             {"POST", rolesPath, lateRole, asYAML, `422 `},
		"protobuf":         {"POST", rolesPath, lateProto(t, rbac, "Role", year10000, nil), asProto, `422 `},
		"protobuf, end":    {"POST", rolesPath, lateProto(t, rbac, "Role", math.MaxInt64, nil), asProto, `422 `},
		"protobuf, start":  {"POST", rolesPath, lateProto(t, rbac, "Role", math.MinInt64, nil), asProto, `422 `},
		"before year 0":    {"POST", rolesPath, strings.ReplaceAll(lateRole, lateTime, early), "", `422 `},
		"PUT":              {"PUT", rolesPath + "/r", `{` + lateMeta(rbac, "r", "") + `}`, "", `422 `},
		"merge patch":      {"PATCH", rolesPath + "/r", `{"metadata":{` + fmt.Sprintf(lateEntry, rbac) + `}}`, asMergePatch, `422 `},
		"strategic patch":  {"PATCH", rolesPath + "/r", `{"metadata":{` + fmt.Sprintf(lateEntry, rbac) + `}}`, asStrategic, `422 `},
		"JSON patch":       {"PATCH", rolesPath + "/r", entryOf, jsonPatch, `422 `},
		"lease":            {"POST", leasesPath, `{"metadata":{"name":"late"},"spec":{"renewTime":"` + lateMicro + `"}}`, "", `422 Invalid Lease.coordination.k8s.io "late" is invalid: spec.renewTime: `},
		"apply":            {"PATCH", leasesPath + "/l?fieldManager=m", `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"l"},"spec":{"renewTime":"` + lateMicro + `"}}`, asApply, `422 `},
		"apply, new":       {"PATCH", leasesPath + "/n?fieldManager=m", `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"n"},"spec":{"renewTime":"` + lateMicro + `"}}`, asApply, `422 `},
		"event":            {"POST", "/api/v1/namespaces/default/events", `{"metadata":{"name":"late"},"involvedObject":{"namespace":"default"},"firstTimestamp":"` + lateTime + `"}`, "", `422 `},
		"new event":        {"POST", "/apis/events.k8s.io/v1/namespaces/default/events", `{"metadata":{"name":"late"},"regarding":{"namespace":"default"},"action":"a","reason":"r","type":"Normal","reportingController":"x.io/a","reportingInstance":"i","eventTime":"` + lateMicro + `"}`, "", `422 `},
		"status":           {"PATCH", "/api/v1/namespaces/default/status", `{"status":{"conditions":[{"type":"A","status":"True","lastTransitionTime":"` + lateTime + `"}]}}`, asMergePatch, `422 `},
		"deep":             {"POST", widgets, widget("deep", `,"spec":`+nested(9998)), "", `422 Invalid Widget.example.org "deep" is invalid: <nil>: Invalid value: has too many fields nested too deep`},
		"deep, unowned":    {"POST", widgets, widget("deep", `,"spec":`+strings.Repeat("[", 9998)+strings.Repeat("]", 9998)), "", `422 Invalid Widget.example.org "deep" is invalid: spec[0][0][0][0][0][0][0]...: Invalid value: is nested 9999 levels deep`},
		"deep status":      {"PATCH", widgets + "/w/status", `{"status":` + nested(9998) + `}`, asMergePatch, `422 `},
		"deep apply":       {"PATCH", widgets + "/w?fieldManager=m", widget("w", `,"spec":`+nested(9990)), asApply, `4`},
		"deep definition":  {"POST", definitionsPath, definitionWith(t, nestedField(28, 12_000)), asProto, `400 BadRequest CustomResourceDefinition in version "v1" cannot be handled as a CustomResourceDefinition: exceeded max depth`},
		"less deep":        {"POST", definitionsPath, definitionWith(t, nestedField(28, 9_990)), asProto, `422 `},
		"deeper":           {"POST", definitionsPath, definitionWith(t, nestedField(28, 400_000)), asProto, `400 `},
		"no number":        {"POST", definitionsPath, definitionWith(t, []byte{11<<3 | 1, 1, 0, 0, 0, 0, 0, 0xf8, 0x7f}), asProto, `422 `},
		"no JSON":          {"POST", definitionsPath, definitionWith(t, kubetest.ProtoField(8, kubetest.ProtoField(1, []byte(`{"a":`)))), asProto, `4`},
		"no int or string": {"POST", "/api/v1/namespaces/default/services", sealed("v1", "Service", slices.Concat(kubetest.ProtoField(1, kubetest.ProtoField(1, []byte("s"))), kubetest.ProtoField(2, kubetest.ProtoField(1, []byte{3 << 3, 80, 4<<3 | 2, 2, 1 << 3, 7})))), asProto, `4`},
		"raw, not JSON":    {"POST", "/apis/apps/v1/namespaces/default/controllerrevisions", sealed("apps/v1", "ControllerRevision", slices.Concat(kubetest.ProtoField(1, kubetest.ProtoField(1, []byte("c"))), kubetest.ProtoField(2, kubetest.ProtoField(1, []byte(`{"a":`))))), asProto, `422 `},
		"raw, deep":        {"POST", "/apis/apps/v1/namespaces/default/controllerrevisions", sealed("apps/v1", "ControllerRevision", slices.Concat(kubetest.ProtoField(1, kubetest.ProtoField(1, []byte("c"))), kubetest.ProtoField(2, kubetest.ProtoField(1, []byte(nested(12_000)))))), asProto, `422 `},
	} {
		t.Run(what, func(t *testing.T) {
			for tries := 1; ; tries++ { // repeat if the server has written something in between
				before := s.revision()
				a := s.send(c.method, c.path, c.body, "Content-Type: application/json", c.header)
				if got := a.failure(); !strings.HasPrefix(got, c.want) {
					t.Errorf("got  %.300s\nwant %s", got, c.want)
				}
				rev := s.revision()
				if rev == before {
					return
				}
				if tries == 5 {
					t.Fatalf("the refused request wrote revisions %d to %d", before+1, rev)
				}
			}
		})
	}
}

func lateEntryOf(apiVersion string) string {
	return strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf(lateEntry, apiVersion), `"managedFields":[`), "]")
}

// TestWhatOnlyLooksUnreadableIsStored checks that strings may look like a time of any year.
func TestWhatOnlyLooksUnreadableIsStored(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.defineWidgets()
	const odd = `10000-01-01T00:59:59Z`
	for path, body := range map[string]string{
		"/api/v1/namespaces/default/configmaps": `{"metadata":{"name":"odd","labels":{"a":"b"},"annotations":{"at":"` + odd + `","-1-":"-0001-01-01T00:00:00Z"}},"data":{"at":"` + odd + `"}}`,
		widgets:                                 `{"apiVersion":"example.org/v1","kind":"Widget","metadata":{"name":"odd","annotations":{"at":"` + odd + `"}},"spec":{"at":"` + odd + `"}}`,
		"/api/v1/namespaces/default/events":     `{"metadata":{"name":"odd"},"involvedObject":{"namespace":"default"},"message":"` + odd + `","firstTimestamp":"9999-12-31T23:59:59Z"}`,
	} {
		s.want(201, "POST", path, strings.Replace(body, `,"-1-"`, `,"minus"`, 1))
		s.want(200, "GET", path+"/odd", "", asTable)
		s.want(200, "PATCH", path+"/odd", `{"metadata":{"labels":{"x":"y"}}}`, asMergePatch)
		if names := s.want(200, "GET", path, "").names(); names == "" {
			t.Errorf("%s lists nothing", path)
		}
		s.want(200, "DELETE", path+"/odd", "")
	}
	s.want(201, "POST", widgets, widget("deep", `,"spec":`+nested(2000)))
	s.want(200, "GET", widgets+"/deep", "", asTable)
}

func TestProtobufOfAnyDepthIsSurvived(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	deep := nestedField(1, 400_000)
	for _, path := range []string{"/api/v1/namespaces/default/configmaps", definitionsPath, rolesPath} {
		for _, method := range []string{"POST", "DELETE"} {
			kind := map[string]string{"DELETE": "DeleteOptions"}[method]
			s.send(method, path+"?dryRun=All", string(protobuf.ProtobufPrefix)+string(deep), asProto)
			s.send(method, path+"?dryRun=All", sealed("v1", kind, deep), asProto)
		}
	}
	s.send("POST", "/api/v1/namespaces/default/pods/p/eviction", sealed("policy/v1", "Eviction", kubetest.ProtoField(2, deep)), asProto)
	s.want(400, "POST", definitionsPath, definitionWith(t, nestedField(28, 400_000)), asProto)
	groups := bytes.Repeat([]byte{100<<3&0x7f | 3 | 0x80, 100 >> 4}, 400_000) // group starts, each within the previous group
	s.want(400, "POST", definitionsPath, definitionWith(t, groups), asProto)
	s.want(200, "GET", "/readyz", "")
}

// unpackPoisoned unpacks the poisoned file into a temporary directory and returns its path.
func unpackPoisoned(t testing.TB) string {
	t.Helper()
	packed, err := os.Open("../../testdata/poisoned/apilet.db.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	unpacked, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "apilet.db")
	if err := os.WriteFile(path, kubetest.Must(io.ReadAll(unpacked)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestOwnersThatCannotBeReadAreDropped checks that the managedFields of a custom resource are
// dropped if they cannot be decoded. Like kube-apiserver, the server decodes them in each request.
func TestOwnersThatCannotBeReadAreDropped(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.defineWidgets()
	a := s.want(201, "POST", widgets, `{"apiVersion":"example.org/v1","kind":"Widget",`+lateMeta("example.org/v1", "w", "")+`}`)
	b := s.want(200, "PUT", widgets+"/w", `{"apiVersion":"example.org/v1","kind":"Widget",`+lateMeta("example.org/v1", "w", fmt.Sprintf(`,"resourceVersion":"%d"`, a.rev()))+`}`)
	c := s.want(200, "PATCH", widgets+"/w", `{"metadata":{`+fmt.Sprintf(lateEntry, "example.org/v1")+`,"labels":{"a":"b"}}}`, asMergePatch)
	for _, answer := range []answer{a, b, c} {
		var meta metav1.ObjectMeta
		if err := json.Unmarshal([]byte(answer.get("metadata").Raw), &meta); err != nil {
			t.Errorf("%v in %s", err, answer.body)
		}
	}
}

// TestPoisonedFileIsServedAndCleaned uses the file of an old version.
func TestPoisonedFileIsServedAndCleaned(t *testing.T) {
	t.Parallel()
	path := unpackPoisoned(t)
	told := runAs(t, "apilet", "check", "--data", path)
	if told.code == 0 {
		t.Error("apilet check finds nothing")
	}
	poisoned := poisonedKeys(told.out + told.errs)
	if len(poisoned) != 17 {
		t.Errorf("apilet check names %d objects, want 17:\n%s%s", len(poisoned), told.out, told.errs)
	}
	s := startTest(t, onFile(path))
	const shop = "/api/v1/namespaces/shop/"
	apitest.WaitFor(t, "all are found", func() bool { return s.unreadable() == len(poisoned) })
	checkToldOnce(t, s, poisoned)
	checkSoundAreServed(t, s)

	for _, c := range []struct{ path, failure string }{
		{"/apis/coordination.k8s.io/v1/namespaces/shop/leases/late", `500 InternalError Internal error occurred: leases.coordination.k8s.io "late" is stored and cannot be read (`},
		{"/apis/example.org/v1/namespaces/shop/widgets/deep", `500 InternalError Internal error occurred: widgets.example.org "deep" is stored and cannot be read (`},
		{definitionsPath + "/deeps.example.org", `500 `},
	} {
		for _, form := range []string{"", asTable} {
			if got := s.send("GET", c.path, "", "Accept: application/json", form).failure(); !strings.HasPrefix(got, c.failure) {
				t.Errorf("GET %s: %s", c.path, got)
			}
		}
		if a := s.send("PATCH", c.path, `{"metadata":{"labels":{"a":"b"}}}`, asMergePatch); a.code < 400 {
			t.Errorf("PATCH %s: %d", c.path, a.code)
		}
	}
	s.want(500, "GET", shop+"pods/late", "")
	s.want(200, "PATCH", shop+"pods/late", `{"metadata":{"labels":{"a":"b"}}}`, asMergePatch)
	s.want(200, "GET", shop+"pods/late", "")
	s.want(409, "DELETE", shop+"secrets/late", `{"preconditions":{"uid":"another"}}`)
	s.want(200, "DELETE", shop+"secrets/late?dryRun=All", "")
	s.want(200, "DELETE", shop+"secrets/late", "")
	s.want(404, "GET", shop+"secrets/late", "")
	s.want(201, "POST", shop+"secrets", `{"metadata":{"name":"late"}}`)
	s.want(200, "DELETE", "/apis/coordination.k8s.io/v1/namespaces/shop/leases", "")
	for _, path := range []string{"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
		"/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations", "/apis/scheduling.k8s.io/v1/priorityclasses",
		"/apis/rbac.authorization.k8s.io/v1/clusterroles"} {
		s.want(200, "DELETE", path+"/late", "")
	}
	for _, name := range []string{"deeps", "gears", "widgets"} { // there are a gear and a deeply nested widget
		s.want(200, "DELETE", definitionsPath+"/"+name+".example.org", "")
	}
	s.want(200, "PATCH", shop+"configmaps/late", `{"metadata":{"finalizers":null}}`, asMergePatch)
	s.spoil("//namespaces//other", `"status":{`, `"status":{"conditions":[{"type":"A","status":"True","lastTransitionTime":"10000-01-01T00:59:59Z"}],`)
	s.want(201, "POST", "/api/v1/namespaces/other/configmaps", configMap("inside"))
	s.want(500, "GET", "/api/v1/namespaces/other", "")
	// The namespaces other and late cannot be decoded, and shop contains such objects.
	for _, name := range []string{"other", "late", "shop"} {
		s.want(200, "DELETE", "/api/v1/namespaces/"+name, "")
	}
	apitest.WaitFor(t, "all are gone", func() bool { return s.unreadable() == 0 && s.send("GET", "/readyz", "").code == 200 })
	apitest.WaitFor(t, "the namespaces are gone", func() bool {
		return strings.HasPrefix(s.want(200, "GET", "/api/v1/namespaces", "").names(), "default kube-")
	})
	apitest.WaitFor(t, "the definitions are gone", func() bool { return s.want(200, "GET", definitionsPath, "").names() == "gadgets.example.com" })
	s.restart()
	s.halt()
	if told := runAs(t, "apilet", "check", "--data", path); told.code != 0 {
		t.Errorf("%d %s%s", told.code, told.out, told.errs)
	}
}

// unreadable returns the number of objects that the server could not decode.
func (s *testServer) unreadable() int {
	s.t.Helper()
	return int(s.wantMetric("apilet_store_unreadable_objects"))
}

// poisonedKeys returns the keys in a report of the command check.
func poisonedKeys(report string) (keys []string) {
	for line := range strings.SplitSeq(report, "\n") {
		if rest, ok := strings.CutPrefix(line, `key "`); ok {
			key, _, _ := strings.Cut(rest, `"`)
			keys = append(keys, key)
		}
	}
	return keys
}

// checkToldOnce checks that each key is logged exactly once and that the metric is correct. The
// health check must not contain any names.
func checkToldOnce(t *testing.T, s *testServer, keys []string) {
	s.want(500, "POST", "/api/v1/namespaces/shop/pods/late/eviction", `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"late"}}`)
	s.want(200, "GET", "/api/v1/namespaces/shop/secrets", "", asTable)
	s.want(201, "POST", "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas", `{"metadata":{"name":"more"},"spec":{"priorityLevelConfiguration":{"name":"catch-all"}}}`)
	for _, key := range keys {
		if n := strings.Count(s.log.String(), `"key":"`+key+`"`); n != 1 {
			t.Errorf("the log names %s %d times", key, n)
		}
	}
	if metrics := string(s.send("GET", "/metrics", "").body); !strings.Contains(metrics, fmt.Sprintf("\napilet_store_unreadable_objects %d\n", len(keys))) {
		t.Error("the metric does not count them")
	}
	a := s.send("GET", "/readyz/unreadable", "")
	if text := string(a.body); a.code != 500 || !strings.Contains(text, fmt.Sprint(len(keys))) || strings.Contains(text, "late") || strings.Contains(text, "secrets") {
		t.Errorf("/readyz/unreadable says %d %s", a.code, text)
	}
	s.send("GET", "/readyz?exclude=unreadable", "")
}

// checkSoundAreServed checks that lists, watches and tables contain all sound objects, and that new
// objects can be created.
func checkSoundAreServed(t *testing.T, s *testServer) {
	const shop = "/api/v1/namespaces/shop/"
	for path, want := range map[string]string{
		shop + "configmaps": "sound", shop + "secrets": "sound", shop + "services": "sound", shop + "pods": "", shop + "events": "",
		"/apis/rbac.authorization.k8s.io/v1/namespaces/shop/roles":        "sound",
		"/apis/rbac.authorization.k8s.io/v1/namespaces/shop/rolebindings": "sound",
		"/apis/coordination.k8s.io/v1/namespaces/shop/leases":             "sound",
		"/apis/example.org/v1/namespaces/shop/widgets":                    "late sound",
		"/apis/example.org/v1/namespaces/shop/gears":                      "sound",
		"/apis/policy/v1/namespaces/shop/poddisruptionbudgets":            "",
		definitionsPath: "gadgets.example.com widgets.example.org",
	} {
		for _, query := range []string{"", "?limit=1", "?labelSelector=!x"} {
			for _, form := range []string{"Accept: application/json", asTable, "Accept: application/yaml"} {
				a := s.want(200, "GET", path+query, "", form)
				if got := a.names(); query == "" && form != "Accept: application/yaml" && got != want {
					t.Errorf("%s as %q lists %q, want %q", path, form, got, want)
				}
			}
		}
	}
	w := s.watch(shop + "configmaps?watch=1")
	if f := w.next(); f.kind != "ADDED" || f.object.Get("metadata.name").String() != "sound" {
		t.Errorf("a watch begins with %v", f)
	}
	s.want(201, "POST", shop+"pods", kubetest.PodOf("p", ""))
	s.want(201, "POST", shop+"services", `{"metadata":{"name":"more"},"spec":{"type":"NodePort","ports":[{"port":80}]}}`)
	if f := s.watch(shop + "configmaps?watch=1&resourceVersion=1&timeoutSeconds=60"); f.next().kind != "ADDED" {
		t.Error("the log is not told")
	}
}

// TestServerStartsWhateverCannotBeRead checks that the server starts even if no object in the file
// can be decoded, and that all of them can be repaired or deleted.
func TestServerStartsWhateverCannotBeRead(t *testing.T) {
	t.Parallel()
	s, _ := startTLS(t, onFile(filepath.Join(t.TempDir(), "apilet.db")))
	s.headers = []string{"Authorization: Bearer root-token"}
	s.defineWidgets()
	s.want(201, "POST", widgets, widget("w", ""))
	s.halt()
	keys := openTestStore(t, s.flag("data"), func(st *store.Store) []string { return spoilAll(t, st) })
	s.start()
	if text := s.log.String(); !strings.Contains(text, "clusterroles//cluster-admin") { // the server has already replaced some objects
		t.Errorf("the log names no role: %s", text)
	}
	s.want(201, "POST", "/api/v1/namespaces/default/configmaps", configMap("new"))
	s.want(201, "POST", "/api/v1/namespaces", `{"metadata":{"name":"new"}}`)
	s.want(200, "GET", "/api/v1/namespaces/default/configmaps", "")
	types := scheme.NewRegistry()
	for _, key := range keys {
		base, namespace, name, _ := scheme.SplitKey(key)
		if namespace != "" {
			base = strings.TrimSuffix(base, "/") + "/"
		}
		var path string
		switch {
		case strings.HasPrefix(key, "/example.org/widgets/"):
			path = widgets + "/w"
		case strings.HasPrefix(key, "/apiextensions.k8s.io/customresourcedefinitions/"):
			path = definitionsPath + "/" + name
		default:
			at := slices.IndexFunc(types.All(), func(row *scheme.Resource) bool { return row.Base == base && !row.Virtual && row.ServesStorageVersion() })
			if at < 0 {
				t.Errorf("%s is not served", key)
				continue
			}
			path = objectPath(types.All()[at], namespace, name)
		}
		s.want(200, "PATCH", path, `{"metadata":{"labels":{"mended":"yes"}}}`, asMergePatch)
	}
	s.restart()
	s.want(200, "GET", "/readyz", "")
	s.halt()
	if told := runAs(t, "apilet", "check", "--data", s.flag("data")); told.code != 0 { // the command decodes every object
		t.Errorf("%d %s%s", told.code, told.out, told.errs)
	}
}

// spoilAll gives each stored object managedFields that cannot be decoded, and returns the keys.
func spoilAll(t *testing.T, st *store.Store) (keys []string) {
	t.Helper()
	var c store.Chunk
	if err := st.Chunk(store.Span{Prefix: "/"}, &c); err != nil {
		t.Fatal(err)
	}
	for i := range c.Records {
		rec := &c.Records[i]
		entry := strings.ReplaceAll(fmt.Sprintf(lateEntry, "v1"), lateTime, "10000-01-01T00:59:59Z")
		if owners := gjson.GetBytes(rec.JSON, "metadata.managedFields"); owners.Exists() {
			spoilStored(t, st, rec.Key, `"managedFields":`+owners.Raw, entry)
		} else {
			spoilStored(t, st, rec.Key, `"metadata":{`, `"metadata":{`+entry+",")
		}
		keys = append(keys, strings.Clone(rec.Key))
	}
	return keys
}

func objectPath(res *scheme.Resource, namespace, name string) string {
	path := "/apis/" + res.APIVersion()
	if res.Group == "" {
		path = "/api/v1"
	}
	if namespace != "" {
		path += "/namespaces/" + namespace
	}
	return path + "/" + res.Plural + "/" + name
}

// TestDeletedBindingStopsGrantingBesideARoleThatCannotBeRead checks that a bad Role does not delay
// changes of other RBAC objects.
func TestDeletedBindingStopsGrantingBesideARoleThatCannotBeRead(t *testing.T) {
	t.Parallel()
	s, _ := startTLS(t, onFile(unpackPoisoned(t)))
	const root, bob, maps = "Authorization: Bearer root-token", "Authorization: Bearer bob-token", "/api/v1/namespaces/shop/configmaps"
	s.want(200, "GET", maps+"/sound", "", bob)
	s.want(200, "DELETE", "/apis/rbac.authorization.k8s.io/v1/namespaces/shop/rolebindings/sound", "", root)
	apitest.WaitFor(t, "bob may no longer", func() bool { return s.send("GET", maps+"/sound", "", bob).code == 403 })
}
