package clients

// This file tests OpenAPI v3 with tools: GitOps controllers and kcp build the types for server-side
// apply from the served schemas.

import (
	"encoding/json"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/openapi3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// servedTypes builds a type converter from the document of one group version.
func servedTypes(t *testing.T, c kubernetes.Interface, gv schema.GroupVersion) managedfields.TypeConverter {
	t.Helper()
	document, err := openapi3.NewRoot(c.Discovery().OpenAPIV3()).GVSpec(gv)
	check(t, "read the schemas of "+gv.String(), err)
	schemas := map[string]*spec.Schema{}
	for name, s := range document.Components.Schemas {
		schemas[name] = s
	}
	types, err := managedfields.NewTypeConverter(schemas, false)
	check(t, "build the types of "+gv.String(), err)
	return types
}

// TestServedSchemasHaveDefaultsOfListKeys checks that a port without a protocol is the same as with
// protocol TCP, also for a type converter that is built from the served schemas.
func TestServedSchemasHaveDefaultsOfListKeys(t *testing.T) {
	t.Parallel()
	c := startEphemeral(t).typed()
	core, apps := schema.GroupVersion{Version: "v1"}, schema.GroupVersion{Group: "apps", Version: "v1"}
	const (
		ports    = `{"ports":[{"containerPort":80,"name":"web","protocol":"TCP"}],"name":"main"}`
		patch    = `{"ports":[{"containerPort":80}],"name":"main"}`
		template = `{"apiVersion":"apps/v1","kind":"Deployment","spec":{"template":{"spec":{"containers":[`
	)
	for _, of := range []struct {
		gv              schema.GroupVersion
		stored, applied string
		list            []string // the path to the list of ports, where "0" is the first element
	}{
		{core, `{"apiVersion":"v1","kind":"Pod","spec":{"containers":[` + ports + `]}}`, `{"apiVersion":"v1","kind":"Pod","spec":{"containers":[` + patch + `]}}`,
			[]string{"spec", "containers", "0", "ports"}},
		{core, `{"apiVersion":"v1","kind":"Pod","spec":{"ephemeralContainers":[` + ports + `]}}`,
			`{"apiVersion":"v1","kind":"Pod","spec":{"ephemeralContainers":[` + patch + `]}}`, []string{"spec", "ephemeralContainers", "0", "ports"}},
		{core, `{"apiVersion":"v1","kind":"Service","spec":{"ports":[{"port":80,"protocol":"TCP","name":"web"}]}}`,
			`{"apiVersion":"v1","kind":"Service","spec":{"ports":[{"port":80}]}}`, []string{"spec", "ports"}},
		{apps, template + ports + `]}}}}`, template + patch + `]}}}}`, []string{"spec", "template", "spec", "containers", "0", "ports"}},
	} {
		types := servedTypes(t, c, of.gv)
		merged, err := must(types.ObjectToTyped(decoded(t, of.stored))).Merge(must(types.ObjectToTyped(decoded(t, of.applied))))
		check(t, "merge "+of.applied, err)
		object := must(types.TypedToObject(merged)).(*unstructured.Unstructured)
		var value any = object.Object
		for _, step := range of.list {
			if step == "0" {
				value = value.([]any)[0]
			} else {
				value = value.(map[string]any)[step]
			}
		}
		if list := value.([]any); len(list) != 1 || list[0].(map[string]any)["name"] != "web" {
			t.Errorf("%s merged into %s has the ports %v, want the stored one", of.applied, of.stored, list)
		}
	}
}

func decoded(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	check(t, "decode "+text, json.Unmarshal([]byte(text), &object.Object))
	return object
}
