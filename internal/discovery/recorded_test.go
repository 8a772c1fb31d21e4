package discovery

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"apilet/internal/scheme"
)

// recordedFile has the OpenAPI v3 documents of a kube-apiserver 1.37 and the definitions of its version 2 document, one document a line:
// {"path": "apis/apps/v1", "document": {...}}. The script testdata/record-openapi.sh writes it.
const recordedFile = "testdata/kube-apiserver-1.37.jsonl.zst"

const swaggerPath = "openapi/v2" // the path of the line with the definitions of version 2

// recordedDocuments returns kube-apiserver's documents by their paths in the index.
func recordedDocuments(t *testing.T) map[string]map[string]any {
	t.Helper()
	file, err := os.Open(recordedFile)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	plain, err := zstd.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	documents := map[string]map[string]any{}
	lines := json.NewDecoder(bufio.NewReader(plain))
	for lines.More() {
		var line struct {
			Path     string
			Document map[string]any
		}
		if err := lines.Decode(&line); err != nil {
			t.Fatal(err)
		}
		documents[line.Path] = line.Document
	}
	if len(documents) < 40 {
		t.Fatalf("only %d recorded documents", len(documents))
	}
	return documents
}

// servedDocument returns the document that this server has at the same path.
func servedDocument(t *testing.T, reg *scheme.Registry, path string) (document map[string]any) {
	t.Helper()
	at := "/openapi/v3/" + path
	if path == swaggerPath {
		at = "/" + path
	}
	w := askDiscovery(t, reg, at)
	if w.Code != 200 {
		t.Fatalf("%s: %d", at, w.Code)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &document); err != nil {
		t.Fatal(err)
	}
	return document
}

// notServed are the recorded documents that this server does not have: the paths of the OpenID configuration.
var notServed = []string{".well-known/openid-configuration", "openid/v1/jwks"}

// newServedTypes returns the built-in types, with CustomResourceDefinition.
func newServedTypes() *scheme.Registry {
	reg := scheme.NewRegistry()
	reg.ReplaceCustom(scheme.GroupVersion(apiextensionsv1.GroupName, "v1",
		scheme.Row[apiextensionsv1.CustomResourceDefinition](scheme.InExtensions, "customresourcedefinitions crd crds", "status")))
	return reg
}

// schemasOf returns the schemas of each recorded document, and those that this server has at the same path.
func schemasOf(t *testing.T, check func(path string, want, got map[string]any)) {
	t.Helper()
	reg := newServedTypes()
	for path, document := range recordedDocuments(t) {
		switch {
		case slices.Contains(notServed, path):
		case path == swaggerPath:
			check(path, member(document, "definitions"), member(servedDocument(t, reg, path), "definitions"))
		default:
			check(path, member(document, "components", "schemas"), member(servedDocument(t, reg, path), "components", "schemas"))
		}
	}
}

func TestSchemasAreKubernetes(t *testing.T) {
	t.Parallel()
	schemasOf(t, func(path string, want, got map[string]any) {
		if path == "apis/authentication.k8s.io/v1" || path == "apis/authorization.k8s.io/v1" {
			delete(got, "io.k8s.apimachinery.pkg.apis.meta.v1.Patch") // addPaths declares a PATCH of reviews for kubectl
		}
		if path == swaggerPath {
			for name := range got {
				if olderVersion.MatchString(name) {
					delete(got, name)
				}
			}
			for _, of := range []map[string]any{want, got} { // kube-apiserver lists every version that it knows, served or not
				for _, name := range []string{"DeleteOptions", "WatchEvent"} {
					delete(member(of, "io.k8s.apimachinery.pkg.apis.meta.v1."+name), kindsMember)
				}
			}
		}
		for _, difference := range differences("", want, got) {
			t.Errorf("%s: %s", path, difference)
		}
	})
}

// olderVersion matches the schemas of the versions that kube-apiserver 1.37 no longer serves.
var olderVersion = regexp.MustCompile(`^io\.k8s\.api\.(batch|policy|flowcontrol)\.v1beta`)

// The descriptions that SwaggerDoc lacks come from the recording, and from nowhere else.
func TestDescriptionsAreNeeded(t *testing.T) {
	if *update {
		openAPITexts = "" // for the descriptions that SwaggerDoc has
	}
	needed, have := map[string]string{}, readTexts()
	schemasOf(t, func(path string, want, got map[string]any) {
		note := func(name, field string, want, got map[string]any) {
			text, _ := want["description"].(string)
			text, _, _ = strings.Cut(text, "\n\nPossible enum values:")
			served, _ := got["description"].(string)
			served, _, _ = strings.Cut(served, "\n\nPossible enum values:")
			if _, known := have[name+"."+field]; path != swaggerPath && (known || text != served) {
				needed[name+"."+field] = text
			}
		}
		for name := range want {
			note(name, "", member(want, name), member(got, name))
			for field := range member(want, name, "properties") {
				note(name, field, member(want, name, "properties", field), member(got, name, "properties", field))
			}
		}
	})
	var table strings.Builder
	for _, name := range slices.Sorted(maps.Keys(needed)) {
		fmt.Fprintf(&table, "%s\t%q\n", name, needed[name])
	}
	if *update {
		if err := os.WriteFile("openapi_texts.txt", []byte(table.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if openAPITexts != table.String() {
		t.Error("openapi_texts.txt differs from the recording: go test -run Descriptions ./internal/discovery -update")
	}
}

// The paths of connections, /proxy/{path} among them, are those of kube-apiserver with all methods and parameters.
func TestConnectionsAreKubernetes(t *testing.T) {
	t.Parallel()
	connections := func(document map[string]any) map[string]any {
		found := map[string]any{}
		for path := range member(document, "paths") {
			if item := member(document, "paths", path); member(item, "get")["x-kubernetes-action"] == "connect" {
				found[path] = item
			}
		}
		return found
	}
	want, got := connections(recordedDocuments(t)["api/v1"]), connections(servedDocument(t, newServedTypes(), "api/v1"))
	if len(want) != 9 {
		t.Errorf("%d connections are recorded", len(want))
	}
	for _, difference := range differences("", want, got) {
		t.Error(difference)
	}
}

// Each response of a built-in type has the content types of kube-apiserver's, protobuf among them.
func TestResponsesHaveTheContentTypesOfKubernetes(t *testing.T) {
	t.Parallel()
	reg, compared := newServedTypes(), 0
	for path, document := range recordedDocuments(t) {
		if path == swaggerPath || slices.Contains(notServed, path) {
			continue
		}
		served := member(servedDocument(t, reg, path), "paths")
		for at, item := range member(document, "paths") {
			for method := range item.(map[string]any) {
				for code := range member(served, at, method, "responses") {
					want, recorded := member(document, "paths", at, method, "responses")[code].(map[string]any)
					if !recorded {
						continue
					}
					wanted := slices.Sorted(maps.Keys(member(want, "content")))
					got := slices.Sorted(maps.Keys(member(served, at, method, "responses", code, "content")))
					if compared++; !slices.Equal(wanted, got) {
						t.Errorf("%s %s %s: want %q, got %q", method, at, code, wanted, got)
					}
				}
			}
		}
	}
	if compared < 1000 {
		t.Errorf("only %d responses are compared", compared)
	}
}

// member returns the object at a path of names; an absent one is empty.
func member(object map[string]any, names ...string) map[string]any {
	for _, name := range names {
		object, _ = object[name].(map[string]any)
	}
	return object
}

// differences lists the paths at which two JSON values differ, with the values there.
func differences(at string, want, got any) (list []string) {
	wanted, ok := want.(map[string]any)
	given, both := got.(map[string]any)
	if !ok || !both {
		if !reflect.DeepEqual(want, got) {
			list = append(list, fmt.Sprintf("%s: want %s, got %s", at, abbreviated(want), abbreviated(got)))
		}
		return list
	}
	names := maps.Clone(wanted)
	maps.Copy(names, given)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		list = append(list, differences(strings.TrimPrefix(at+" > "+name, " > "), wanted[name], given[name])...)
	}
	return list
}

func abbreviated(value any) string {
	if value == nil {
		return "nothing"
	}
	text, _ := json.Marshal(value)
	if len(text) > 300 {
		return string(text[:150]) + " ... " + string(text[len(text)-100:])
	}
	return string(text)
}
