package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// emptiesDefinition contains all kinds of maps that can become empty.
const emptiesDefinition = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"es.f.example"},"spec":{"group":"f.example",
	"scope":"Namespaced","names":{"plural":"es","singular":"e","kind":"E"},"versions":[{"name":"v1","served":true,"storage":true,
	"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{
	"n":{"type":"object","properties":{"x":{"type":"string"},"m":{"type":"object","properties":{"z":{"type":"string"}}}}},
	"nullable":{"type":"object","nullable":true,"properties":{"x":{"type":"string"}}},
	"free":{"type":"object","x-kubernetes-preserve-unknown-fields":true},
	"atomic":{"type":"object","x-kubernetes-map-type":"atomic","properties":{"x":{"type":"string"}}},
	"labels":{"type":"object","additionalProperties":{"type":"string"}},
	"objects":{"type":"object","additionalProperties":{"type":"object","properties":{"x":{"type":"string"}}}},
	"items":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["name","port"],"items":{"type":"object","required":["name"],
		"properties":{"name":{"type":"string"},"port":{"type":"integer","default":80},"o":{"type":"object","properties":{"x":{"type":"string"}}}}}},
	"list":{"type":"array","items":{"type":"string"}},
	"defaulted":{"type":"object","default":{"x":"d"},"properties":{"x":{"type":"string"}}}}}}}}}]}}`

// TestApplyKeepsEmptyObjects applies one configuration after another. Each step starts with the
// name of the manager, or with "create" for a POST request. The results are those of kube-apiserver
// 1.36.0.
func TestApplyKeepsEmptyObjects(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.want(201, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", emptiesDefinition)
	for i, c := range []struct{ steps, want, owned string }{
		{`m {"n":{"x":"1"}}; m {"n":{}}`, `{"defaulted":{"x":"d"},"n":{}}`, "f:n"},
		{`m {"n":{"x":"1"},"list":["a"]}; m {"n":{},"list":["a"]}`, `{"defaulted":{"x":"d"},"list":["a"],"n":{}}`, "f:n"},
		{`m {"n":{"m":{"z":"1"}}}; m {"n":{"m":{}}}`, `{"defaulted":{"x":"d"},"n":{"m":{}}}`, "f:n.f:m"},
		{`m {"n":{"m":{"z":"1"},"x":"1"}}; m {"n":{"m":{},"x":"1"}}`, `{"defaulted":{"x":"d"},"n":{"m":{},"x":"1"}}`, "f:n.f:m"},
		{`m {"nullable":{"x":"1"}}; m {"nullable":{}}`, `{"defaulted":{"x":"d"},"nullable":{}}`, "f:nullable"},
		{`m {"free":{"x":{"y":1}}}; m {"free":{"x":{}}}`, `{"defaulted":{"x":"d"},"free":{"x":{}}}`, "f:free.f:x"},
		{`m {"atomic":{"x":"1"}}; m {"atomic":{}}`, `{"atomic":{},"defaulted":{"x":"d"}}`, "f:atomic"},
		{`m {"labels":{"x":"1"}}; m {"labels":{}}`, `{"defaulted":{"x":"d"},"labels":{}}`, "f:labels"},
		{`m {"objects":{"k":{"x":"1"}}}; m {"objects":{"k":{}}}`, `{"defaulted":{"x":"d"},"objects":{"k":{}}}`, "f:objects.f:k"},
		{`m {"items":[{"name":"a","o":{"x":"1"}},{"name":"b","o":{"x":"1"}}]}; m {"items":[{"name":"a","o":{"x":"1"}},{"name":"b","o":{}}]}`,
			`{"defaulted":{"x":"d"},"items":[{"name":"a","o":{"x":"1"},"port":80},{"name":"b","o":{},"port":80}]}`, `f:items.k:{"name":"b","port":80}.f:o`},
		{`m {"defaulted":{"x":"1"}}; m {"defaulted":{}}`, `{"defaulted":{}}`, "f:defaulted"},
		{`m {"list":["a"]}; m {"list":[]}`, `{"defaulted":{"x":"d"},"list":[]}`, "f:list"},
		// An object that another manager set to {} remains when its last field is removed.
		{`create {"n":{},"list":["a"]}; m {"n":{"x":"1"}}; m {"list":["a"]}`, `{"defaulted":{"x":"d"},"list":["a"],"n":{}}`, "f:n"},
		{`o {"n":{},"list":["a"]}; m {"n":{"x":"1"}}; m {"list":["a"]}`, `{"defaulted":{"x":"d"},"list":["a"],"n":{}}`, "f:n"},
		{`o {"objects":{"k":{}}}; m {"objects":{"k":{"x":"1"}}}; m {"list":["a"]}`, `{"defaulted":{"x":"d"},"list":["a"],"objects":{"k":{}}}`, "f:objects.f:k"},
		// A field without managers is removed.
		{`m {"n":{"x":"1"},"list":["a"]}; m {"n":{},"list":["a"]}; m {"list":["a"]}`, `{"defaulted":{"x":"d"},"list":["a"]}`, ""},
		{`m {"n":{"x":"1"}}; m {}`, `{"defaulted":{"x":"d"}}`, ""},
		// If the schema allows a null, it must be kept.
		{`m {"nullable":null}`, `{"defaulted":{"x":"d"},"nullable":null}`, "f:nullable"},
		{`m {"defaulted":null}`, `{"defaulted":{"x":"d"}}`, "f:defaulted"},
	} {
		name := fmt.Sprint("e", i)
		var last answer
		for step := range strings.SplitSeq(c.steps, "; ") {
			manager, spec, _ := strings.Cut(step, " ")
			last = s.applySpec(manager, name, spec)
			if last.code > 201 {
				t.Fatalf("%s: %s", step, last.failure())
			}
		}
		if got := last.get("spec"); !sameFields(t, got.Raw, c.want) {
			t.Errorf("%s: got %s, want %s", c.steps, got.Raw, c.want)
		}
		if !last.owns(c.owned) {
			t.Errorf("%s: no manager owns %s: %s", c.steps, c.owned, last.get("metadata.managedFields").Raw)
		}
	}
	// If the schema does not allow a null, the request must be rejected. Otherwise, managedFields
	// could contain a field that was dropped.
	for i, steps := range []string{
		`m {"n":null}`, `m {"labels":null}`, `m {"list":null}`, `m {"items":null}`, `m {"items":[{"name":"a","o":null}]}`, `m {"atomic":{"x":"1"}}; m {"atomic":null}`,
		`m {"n":{"x":"1"}}; m {"n":null}`, `m {"items":[{"name":"a"}]}; m {"items":null}`,
	} {
		var last answer
		for step := range strings.SplitSeq(steps, "; ") {
			manager, spec, _ := strings.Cut(step, " ")
			last = s.applySpec(manager, fmt.Sprint("null", i), spec)
		}
		if last.code != 422 || !strings.Contains(string(last.body), "must be of type") {
			t.Errorf("%s: got %s, want 422", steps, last.failure())
		}
	}
}

func (s *testServer) applySpec(manager, name, spec string) answer {
	s.t.Helper()
	const path = "/apis/f.example/v1/namespaces/default/es"
	body := fmt.Sprintf(`{"apiVersion":"f.example/v1","kind":"E","metadata":{"name":%q},"spec":%s}`, name, spec)
	if manager == "create" {
		return s.send("POST", path+"?fieldManager=creator", body)
	}
	return s.send("PATCH", path+"/"+name+"?fieldManager="+manager, body, asApply)
}

// owns reports whether an entry of managedFields names a field of spec. The steps of the path are
// separated by dots.
func (a answer) owns(field string) bool {
	for _, entry := range a.get("metadata.managedFields").Array() {
		at := entry.Get("fieldsV1").Map()["f:spec"]
		for step := range strings.SplitSeq(field, ".") {
			at = at.Map()[step]
		}
		if at.Exists() {
			return true
		}
	}
	return field == ""
}

// TestApplyKeepsEmptyObjectsOfBuiltInTypes tests Go types, which can have empty objects, but no
// null.
func TestApplyKeepsEmptyObjectsOfBuiltInTypes(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	const path = "/apis/apps/v1/namespaces/default/deployments/"
	apply := func(name, context string) answer {
		return s.send("PATCH", path+name+"?fieldManager=m", fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":%q},"spec":{"selector":{"matchLabels":{"a":"b"}},
			"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"b","image":"i"},{"name":"c","image":"i","securityContext":%s}]}}}}`, name, context), asApply)
	}
	for i, context := range []string{`{}`, `null`} {
		name := fmt.Sprint("d", i)
		apply(name, `{"runAsUser":1}`)
		a := apply(name, context)
		if got := a.get("spec.template.spec.containers.1.securityContext").Raw; a.code != 200 || got != "{}" {
			t.Errorf("%s: got %s, want {}: %s", context, got, a.failure())
		}
	}
}
