package discovery

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/apitest"
	"apilet/internal/scheme"
	"apilet/internal/scheme/schemetest"
)

func discoveryServer(t testing.TB, reg *scheme.Registry) *httptest.Server {
	mux := http.NewServeMux()
	discovery := func(w http.ResponseWriter, r *http.Request) { ServeDiscovery(reg, w, r) }
	openAPI := func(w http.ResponseWriter, r *http.Request) { ServeOpenAPI(reg, "", w, r) }
	swagger := func(w http.ResponseWriter, r *http.Request) { ServeSwagger(reg, nil, w, r) }
	mux.HandleFunc("/api", discovery)
	mux.HandleFunc("/api/", discovery)
	mux.HandleFunc("/apis", discovery)
	mux.HandleFunc("/apis/", discovery)
	mux.HandleFunc("/openapi/v2", swagger)
	mux.HandleFunc("/openapi/v3", openAPI)
	mux.HandleFunc("/openapi/v3/", openAPI)
	mux.HandleFunc("/version", func(w http.ResponseWriter, r *http.Request) {
		w.Write([]byte(`{"major":"1","minor":"37","gitVersion":"v1.37.2"}`))
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server
}

func TestLegacyDiscovery(t *testing.T) {
	reg := scheme.NewRegistry()
	reg.ReplaceCustom([]*scheme.Resource{schemetest.CustomFoo()})
	cases := []struct{ path, want string }{
		{"/api", `{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[{"clientCIDR":"0.0.0.0/0","serverAddress":"example.com"}]}`},
		{"/api/v1/", `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"bindings","singularName":"binding","namespaced":true,"kind":"Binding","verbs":["create"]},`},
		{"/apis/batch", `{"kind":"APIGroup","apiVersion":"v1","name":"batch","versions":[{"groupVersion":"batch/v1","version":"v1"},{"groupVersion":"batch/v1beta1","version":"v1beta1"}],` +
			`"preferredVersion":{"groupVersion":"batch/v1","version":"v1"}}`},
		{"/apis/autoscaling/v1", `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"autoscaling/v1","resources":[{"name":"horizontalpodautoscalers","singularName":"horizontalpodautoscaler",` +
			`"namespaced":true,"kind":"HorizontalPodAutoscaler","verbs":["create","delete","deletecollection","get","list","patch","update","watch"],"shortNames":["hpa"],"categories":["all"],` +
			`"storageVersionHash":"qwQve8ut294="},{"name":"horizontalpodautoscalers/status","singularName":"","namespaced":true,"kind":"HorizontalPodAutoscaler","verbs":["get","patch","update"]}]}`},
		{"/apis/x.io/v1/", `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"x.io/v1","resources":[{"name":"foos","singularName":"foo","namespaced":true,"kind":"Foo",` +
			`"verbs":["create","get","list"]}]}`},
	}
	for _, c := range cases {
		t.Run(c.path, func(t *testing.T) {
			w := askDiscovery(t, reg, c.path)
			if got := strings.TrimSpace(w.Body.String()); w.Code != 200 || got != c.want && !(strings.HasSuffix(c.want, ",") && strings.HasPrefix(got, c.want)) || w.Header().Get("Content-Type") != "application/json" {
				t.Errorf("got  %d %s\nwant %s", w.Code, got, c.want)
			}
		})
	}
	for _, path := range []string{"/apis/nope", "/apis/nope/v1", "/apis/x.io/v9"} {
		if w := askDiscovery(t, reg, path); w.Code != 404 || w.Body.String() != "404 page not found\n" {
			t.Errorf("%s: got %d %s", path, w.Code, w.Body)
		}
	}
	if w := askDiscovery(t, reg, "/apis", "Accept", "text/html"); w.Code != 406 {
		t.Errorf("text/html: got %d", w.Code)
	}
}

func TestCoreResourcesCarryTheStorageVersionHashOfKubeAPIServer(t *testing.T) {
	var list metav1.APIResourceList
	json.Unmarshal(askDiscovery(t, scheme.NewRegistry(), "/api/v1").Body.Bytes(), &list)
	want := map[string]string{"configmaps": "qFsyl6wFWjQ=", "pods": "xPOwRZ+Yhw8=", "bindings": "", "pods/eviction": "", "componentstatuses": ""}
	for _, r := range list.APIResources {
		if hash, ok := want[r.Name]; ok && r.StorageVersionHash != hash {
			t.Errorf("%s has hash %q, want %q", r.Name, r.StorageVersionHash, hash)
		}
		if r.Name == "pods/eviction" && (r.Group != "policy" || r.Version != "v1" || r.Kind != "Eviction") {
			t.Errorf("eviction is %+v", r)
		}
	}
}

const aggregatedType = "application/json" + aggregatedParams

func TestAggregatedDiscoveryFollowsTheRegistry(t *testing.T) {
	reg := scheme.NewRegistry()
	read := func() (string, apidiscoveryv2.APIGroupDiscoveryList) {
		w := askDiscovery(t, reg, "/apis", "Accept", aggregatedType)
		var list apidiscoveryv2.APIGroupDiscoveryList
		if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil {
			t.Fatal(err)
		}
		return w.Header().Get("ETag"), list
	}
	etag, list := read()
	groups := map[string]bool{}
	for _, res := range scheme.Builtins {
		groups[res.Group] = true
	}
	if len(list.Items) != len(groups)-1 || list.Items[0].Name != "apiregistration.k8s.io" { // without the core group
		t.Errorf("%d groups, the first %s", len(list.Items), list.Items[0].Name)
	}
	if w := askDiscovery(t, reg, "/apis", "Accept", aggregatedType, "If-None-Match", etag); w.Code != 304 || w.Body.Len() > 0 {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	reg.ReplaceCustom([]*scheme.Resource{schemetest.CustomFoo()})
	later, list := read()
	last := list.Items[len(list.Items)-1]
	if later == etag || last.Name != "x.io" || last.Versions[0].Resources[0].Resource != "foos" || last.Versions[0].Freshness != "Current" {
		t.Errorf("last group is %+v, ETag %s", last, later)
	}
	reg.ReplaceCustom(nil)
	if again, _ := read(); again != etag {
		t.Error("equal documents have different ETags")
	}
}

func TestAggregatedResourceIsKubeAPIServers(t *testing.T) {
	doc, _ := json.Marshal(aggregatedResource(scheme.NewRegistry().Lookup("apps", "v1", "deployments")))
	const want = `{"resource":"deployments","responseKind":{"group":"","version":"","kind":"Deployment"},"scope":"Namespaced","singularResource":"deployment",` +
		`"verbs":["create","delete","deletecollection","get","list","patch","update","watch"],"shortNames":["deploy"],"categories":["all"],"subresources":[` +
		`{"subresource":"scale","responseKind":{"group":"autoscaling","version":"v1","kind":"Scale"},"verbs":["get","patch","update"]},` +
		`{"subresource":"status","responseKind":{"group":"","version":"","kind":"Deployment"},"verbs":["get","patch","update"]}]}`
	if string(doc) != want {
		t.Errorf("got  %s\nwant %s", doc, want)
	}
}

// openAPIDocuments reads every document that the index names.
func openAPIDocuments(t *testing.T, reg *scheme.Registry) map[string]map[string]any {
	var index struct{ Paths map[string]openAPIPathItem }
	if err := json.Unmarshal(askDiscovery(t, reg, "/openapi/v3").Body.Bytes(), &index); err != nil {
		t.Fatal(err)
	}
	docs := map[string]map[string]any{}
	for path, item := range index.Paths {
		w := askDiscovery(t, reg, item.ServerRelativeURL)
		doc := map[string]any{}
		if err := json.Unmarshal(w.Body.Bytes(), &doc); w.Code != 200 || err != nil {
			t.Fatalf("%s: %d %v", item.ServerRelativeURL, w.Code, err)
		}
		docs[path] = doc
	}
	return docs
}

func TestOpenAPIDocumentsHoldTogether(t *testing.T) {
	reg := scheme.NewRegistry()
	foo := schemetest.CustomFoo()
	foo.Schema = func() (json.RawMessage, error) {
		return json.RawMessage(`{"type":"object","properties":{"spec":{"type":"object","properties":{"a":{"type":"integer","enum":[1,2]}}}}}`), nil
	}
	foo.Verbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	reg.ReplaceCustom([]*scheme.Resource{foo})
	docs := openAPIDocuments(t, reg)
	for path, doc := range docs {
		schemas := doc["components"].(map[string]any)["schemas"].(map[string]any)
		walkJSON(doc, func(key string, value any) {
			name, isRef := strings.CutPrefix(toString(value), "#/components/schemas/")
			if key == "$ref" && (!isRef || schemas[name] == nil) {
				t.Errorf("%s: %v leads nowhere", path, value)
			}
		})
	}
	for _, res := range reg.All() {
		if !res.Allows("patch") {
			continue
		}
		path := groupVersionPath(res) + "/" + res.Plural + "/{name}"
		if res.Namespaced {
			path = groupVersionPath(res) + "/namespaces/{namespace}/" + res.Plural + "/{name}"
		}
		doc := docs[strings.Trim(groupVersionPath(res), "/")]
		op, _ := doc["paths"].(map[string]any)[path].(map[string]any)["patch"].(map[string]any)
		if text, _ := json.Marshal(op["parameters"]); !bytes.Contains(text, []byte(`"name":"fieldValidation"`)) {
			t.Errorf("PATCH %s has parameters %s", path, text)
		}
		if kind := op["x-kubernetes-group-version-kind"]; !reflect.DeepEqual(kind, map[string]any{"group": res.Group, "version": res.Version, "kind": res.Kind}) {
			t.Errorf("PATCH %s is of kind %v", path, kind)
		}
	}
	fooDoc, _ := json.Marshal(docs["apis/x.io/v1"])
	for _, part := range []string{`"a":{"enum":[1,2],"type":"integer"}`, `"io.x.v1.FooList"`, `"x-kubernetes-group-version-kind":[{"group":"x.io","kind":"Foo","version":"v1"}]`} {
		if !bytes.Contains(fooDoc, []byte(part)) {
			t.Errorf("the custom resource's document lacks %s", part)
		}
	}
	for _, link := range []string{`Standard object's metadata. More info: https://git.k8s.io/`, `Standard list metadata. More info: https://git.k8s.io/`,
		`List of foos. More info: https://git.k8s.io/`} {
		if !bytes.Contains(fooDoc, []byte(link)) {
			t.Errorf("the custom resource's document does not say %s", link)
		}
	}
	for path, operation := range map[string]string{"version": "getCodeVersion", "api": "getCoreAPIVersions", "apis": "getAPIVersions",
		"apis/rbac.authorization.k8s.io": "getRbacAuthorizationAPIGroup", "apis/apps/v1": "getAppsV1APIResources", "api/v1": "getCoreV1APIResources"} {
		if text, _ := json.Marshal(docs[path]["paths"]); !bytes.Contains(text, []byte(`"operationId":"`+operation+`"`)) {
			t.Errorf("%s has no operation %s", path, operation)
		}
	}
	if docs["apis/x.io"] != nil {
		t.Error("a group of custom resources alone has a document")
	}
	if bytes.Contains(fooDoc, []byte("strategic-merge-patch")) {
		t.Error("custom resources take no strategic merge patches")
	}
}

func toString(value any) string { s, _ := value.(string); return s }

func walkJSON(value any, visit func(key string, value any)) {
	switch value := value.(type) {
	case map[string]any:
		for key, member := range value {
			visit(key, member)
			walkJSON(member, visit)
		}
	case []any:
		for _, item := range value {
			walkJSON(item, visit)
		}
	}
}

// What kube-apiserver 1.37 says of these fields, less defaults.
func TestSchemasDescribeFieldsAsKubeAPIServer(t *testing.T) {
	docs := openAPIDocuments(t, scheme.NewRegistry())
	cases := []struct{ doc, path, want string }{
		{"api/v1", "io.k8s.api.core.v1.PodSpec/required", `["containers"]`},
		{"api/v1", "io.k8s.api.core.v1.Event/required", `["metadata","involvedObject"]`},
		{"api/v1", "io.k8s.api.core.v1.PodCertificateProjection/required", `["signerName","keyType"]`},
		{"api/v1", "io.k8s.api.core.v1.PodSpec/properties/hostIPC", `{"description":"Use the host's ipc namespace. Optional: Default to false.","type":"boolean"}`},
		{"api/v1", "io.k8s.api.core.v1.PodSpec/properties/containers/x-kubernetes-patch-merge-key", `"name"`},
		{"api/v1", "io.k8s.api.core.v1.PodSpec/properties/containers/x-kubernetes-patch-strategy", `"merge"`},
		{"api/v1", "io.k8s.api.core.v1.PodSpec/properties/containers/x-kubernetes-list-map-keys", `["name"]`},
		{"api/v1", "io.k8s.api.core.v1.PodSpec/properties/tolerations/x-kubernetes-list-type", `"atomic"`},
		{"api/v1", "io.k8s.api.core.v1.ServiceSpec/properties/ports/x-kubernetes-list-map-keys", `["port","protocol"]`},
		{"api/v1", "io.k8s.api.core.v1.ServiceSpec/properties/selector/x-kubernetes-map-type", `"atomic"`},
		{"api/v1", "io.k8s.api.core.v1.LocalObjectReference/x-kubernetes-map-type", `"atomic"`},
		{"api/v1", "io.k8s.api.core.v1.ContainerPort/properties/protocol/enum", `["SCTP","TCP","UDP"]`},
		{"api/v1", "io.k8s.api.core.v1.ServiceSpec/properties/ipFamilies/items/enum", `["","IPv4","IPv6"]`},
		{"apis/discovery.k8s.io/v1", "io.k8s.api.discovery.v1.EndpointSlice/properties/addressType/enum", `["FQDN","IPv4","IPv6"]`},
		{"api/v1", "io.k8s.api.core.v1.PodSpec/properties/containers/items", `{"$ref":"#/components/schemas/io.k8s.api.core.v1.Container"}`},
		{"api/v1", "io.k8s.api.core.v1.PodSpec/properties/affinity", `{"allOf":[{"$ref":"#/components/schemas/io.k8s.api.core.v1.Affinity"}],"description":"If specified, the pod's scheduling constraints"}`},
		{"api/v1", "io.k8s.api.core.v1.Secret/properties/data/additionalProperties", `{"format":"byte","type":"string"}`},
		{"api/v1", "io.k8s.api.core.v1.Volume/properties/emptyDir/allOf", `[{"$ref":"#/components/schemas/io.k8s.api.core.v1.EmptyDirVolumeSource"}]`},
		{"api/v1", "io.k8s.apimachinery.pkg.api.resource.Quantity/oneOf", `[{"type":"string"},{"type":"number"}]`},
		{"api/v1", "io.k8s.apimachinery.pkg.util.intstr.IntOrString/oneOf", `[{"type":"integer"},{"type":"string"}]`},
		{"api/v1", "io.k8s.apimachinery.pkg.util.intstr.IntOrString/format", `"int-or-string"`},
		{"api/v1", "io.k8s.apimachinery.pkg.apis.meta.v1.Time/format", `"date-time"`},
		{"api/v1", "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1/type", `"object"`},
		{"apis/apps/v1", "io.k8s.apimachinery.pkg.runtime.RawExtension/type", `"object"`},
		{"apis/apps/v1", "io.k8s.api.core.v1.PersistentVolumeClaim/x-kubernetes-group-version-kind", `[{"group":"","kind":"PersistentVolumeClaim","version":"v1"}]`},
		{"apis/apps/v1", "io.k8s.api.autoscaling.v1.Scale/x-kubernetes-group-version-kind", `[{"group":"autoscaling","kind":"Scale","version":"v1"}]`},
	}
	for _, c := range cases {
		var value any = docs[c.doc]["components"].(map[string]any)["schemas"]
		for step := range strings.SplitSeq(c.path, "/") {
			members, _ := value.(map[string]any)
			value = members[step]
		}
		if got, _ := json.Marshal(value); string(got) != c.want {
			t.Errorf("%s in %s\ngot  %s\nwant %s", c.path, c.doc, got, c.want)
		}
	}
}

func TestOpenAPIDocumentsAreCachedByHash(t *testing.T) {
	reg := scheme.NewRegistry()
	plain := askDiscovery(t, reg, "/openapi/v3/apis/apps/v1")
	etag := plain.Header().Get("ETag")
	if plain.Code != 200 || plain.Header().Get("Cache-Control") != "no-cache, private" || plain.Header().Get("Content-Type") != "application/json" {
		t.Errorf("without hash: %d %v", plain.Code, plain.Header())
	}
	right := askDiscovery(t, reg, "/openapi/v3/apis/apps/v1?hash="+strings.Trim(etag, `"`))
	if right.Code != 200 || right.Header().Get("Cache-Control") != "public, immutable" || right.Header().Get("Expires") == "" {
		t.Errorf("with hash: %d %v", right.Code, right.Header())
	}
	wrong := askDiscovery(t, reg, "/openapi/v3/apis/apps/v1?hash=X")
	if wrong.Code != 301 || wrong.Header().Get("Location") != "/openapi/v3/apis/apps/v1?hash="+strings.Trim(etag, `"`) {
		t.Errorf("with another hash: %d %v", wrong.Code, wrong.Header())
	}
	if w := askDiscovery(t, reg, "/openapi/v3/apis/apps/v1", "If-None-Match", etag); w.Code != 304 {
		t.Errorf("with ETag: %d", w.Code)
	}
	if w := askDiscovery(t, reg, "/openapi/v3/apis/nope/v1"); w.Code != 404 {
		t.Errorf("unknown group: %d", w.Code)
	}
	const inProtobuf = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf"
	if w := askDiscovery(t, reg, "/openapi/v3/apis/apps/v1", "Accept", inProtobuf); w.Code != 406 {
		t.Errorf("protobuf: %d", w.Code)
	}
	for _, accept := range []string{inProtobuf, "application/vnd.kubernetes.protobuf", "text/html"} {
		if w := askDiscovery(t, reg, "/openapi/v3", "Accept", accept); w.Code != 200 || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("the index as %s: %d %v", accept, w.Code, w.Header())
		}
	}
	foo := schemetest.CustomFoo()
	reg.ReplaceCustom([]*scheme.Resource{foo})
	before := askDiscovery(t, reg, "/openapi/v3/apis/x.io/v1").Header().Get("ETag")
	changed := schemetest.CustomFoo()
	changed.SchemaTag = "2"
	reg.ReplaceCustom([]*scheme.Resource{changed})
	if after := askDiscovery(t, reg, "/openapi/v3/apis/x.io/v1").Header().Get("ETag"); after == before {
		t.Error("the hash does not follow the schema")
	}
}

func TestKubectlUnderstandsDiscoveryAndSchemas(t *testing.T) {
	reg := scheme.NewRegistry()
	reg.ReplaceCustom([]*scheme.Resource{schemetest.CustomFoo()})
	server := discoveryServer(t, reg)
	for _, kubectl := range apitest.Kubectls(t) {
		t.Run(filepath.Base(kubectl), func(t *testing.T) {
			t.Parallel()
			cache := t.TempDir()
			run := func(want string, args ...string) {
				t.Helper()
				cmd := exec.Command(kubectl, append([]string{"--server", server.URL, "--cache-dir", cache}, args...)...)
				cmd.Env = append(os.Environ(), "KUBECONFIG=/dev/null", "HOME="+cache)
				if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte(want)) {
					t.Errorf("kubectl %v: %v, wanted %q in\n%s", args, err, want, out)
				}
			}
			run("horizontalpodautoscalers", "api-resources", "-o", "wide")
			run("foos", "api-resources", "--api-group", "x.io")
			run("flowcontrol.apiserver.k8s.io/v1beta3", "api-versions")
			run("-required-", "explain", "pods.spec.containers")
			run("SCTP", "explain", "pods.spec.containers.ports.protocol")
			run("<integer>", "explain", "deploy.spec.replicas")
			run("imagePullSecrets", "explain", "cronjobs", "--recursive")
			run("VERSION:    v1beta1", "explain", "cronjobs", "--api-version", "batch/v1beta1")
			run("KIND:       Foo", "explain", "foos")
			// A dry run on the client goes as far as validation against the server's schemas.
			manifest := filepath.Join(t.TempDir(), "cm.yaml")
			os.WriteFile(manifest, []byte("kind: ConfigMap\napiVersion: v1\nmetadata: {name: x, namespace: d}\ndata: {a: b}\n"), 0o600)
			run("configmap/x created", "create", "--dry-run=client", "-f", manifest)
		})
	}
}

func BenchmarkOpenAPIDocument(b *testing.B) {
	rows := scheme.NewRegistry().Current.Load().RowsOf("", "v1")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := openAPIDocument(rows); err != nil {
			b.Fatal(err)
		}
	}
}
