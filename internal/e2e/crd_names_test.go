package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
	"apilet/internal/crd"
	"apilet/internal/scheme"
	"apilet/internal/store"
	"apilet/internal/store/storetest"
)

// intruder returns the definition of a cluster-scoped type in the given group, which belongs to
// Kubernetes. names are the members of spec.names.
func intruder(t testing.TB, plural, group, names string) string {
	t.Helper()
	return kubetest.FromFlow(t, fmt.Sprintf(`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: %s.%s, annotations:
		{api-approved.kubernetes.io: "unapproved, a test"}}, spec: {group: %s, scope: Cluster, names: {plural: %s, %s}, versions: [{name: v9,
		served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}}`,
		plural, group, group, plural, names))
}

// conditions returns a definition's conditions, like "NamesAccepted=False PluralConflict".
func (s *testServer) conditions(name string) (line string) {
	s.t.Helper()
	for _, c := range s.want(200, "GET", definitionsPath+"/"+name, "").get("status.conditions").Array() {
		line += fmt.Sprintf("%s=%s %s; ", c.Get("type"), c.Get("status"), c.Get("reason"))
	}
	return line
}

// storedUnder returns the number and size of the live objects below a prefix. The server must have
// stopped.
func (s *testServer) storedUnder(base string) string {
	s.t.Helper()
	return openTestStore(s.t, s.flag("data"), func(st *store.Store) string {
		objects, bytes, _ := st.Count(base)
		return fmt.Sprintf("%d objects, %d bytes", objects, bytes)
	})
}

// TestDefinitionsShareNoKeysWithBuiltInTypes tries every served group and plural. kube-apiserver
// stores such objects under separate keys and does not serve them.
func TestDefinitionsShareNoKeysWithBuiltInTypes(t *testing.T) {
	t.Parallel()
	s := startTest(t, onSomeFile(t), "--authorization-mode=RBAC")
	s.want(201, "POST", "/apis/node.k8s.io/v1/runtimeclasses", `{"metadata":{"name":"mine"},"handler":"h"}`)
	tried, bases := map[string]bool{}, map[string]bool{} // by name of the definition and by key prefix of the type
	before := s.revision()
	for _, res := range testRows() {
		name := res.Plural + "." + res.Group
		if tried[name] || !strings.Contains(res.Group, ".") {
			continue
		}
		tried[name] = true
		s.want(201, "POST", definitionsPath, intruder(t, res.Plural, res.Group, "singular: intruder, kind: Intruder"))
		if got := s.conditions(name); !strings.Contains(got, "NamesAccepted=False PluralConflict; Established=False NotAccepted") {
			t.Errorf("%s: %s", name, got)
		}
		path := "/apis/" + res.Group + "/v9/" + res.Plural
		for _, method := range []string{"GET", "POST", "DELETE"} {
			if a := s.send(method, path, `{"apiVersion":"`+res.Group+`/v9","kind":"Intruder","metadata":{"name":"x"}}`); a.code != 404 {
				t.Errorf("%s %s: %d %s", method, path, a.code, a.body)
			}
		}
		s.want(200, "DELETE", definitionsPath+"/"+name, "")
		apitest.WaitFor(t, name+" goes", func() bool { return s.send("GET", definitionsPath+"/"+name, "").code == 404 })
		bases[res.Base] = true
	}
	if len(tried) < 40 || !tried["clusterrolebindings.rbac.authorization.k8s.io"] || !tried["customresourcedefinitions.apiextensions.k8s.io"] {
		t.Errorf("tried %d types alone", len(tried))
	}
	s.want(200, "GET", "/apis/node.k8s.io/v1/runtimeclasses/mine", "")
	s.halt()
	st := storetest.Open(t, s.flag("data"))
	for base := range bases {
		wantNoneTouched(t, st, base, before)
	}
}

// wantNoneTouched checks all events of a type after the given revision. There must not be any
// deletes, except for definitions, or any object with the name x.
func wantNoneTouched(t *testing.T, st *store.Store, base string, after int64) {
	t.Helper()
	events, _, err := st.Events(base, after, 1<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, ev := range events {
		if ours := strings.HasPrefix(ev.Key, "/apiextensions.k8s.io/customresourcedefinitions/"); !ours && (ev.Deleted || strings.HasSuffix(ev.Key, "/x")) {
			t.Errorf("%s is written at %d, deleted: %t", ev.Key, ev.Rev, ev.Deleted)
		}
	}
}

// TestNamesOfBuiltInTypesAreTaken checks the other names by which clients find a type. The plural
// is a part of the key.
func TestNamesOfBuiltInTypesAreTaken(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	for _, c := range []struct{ names, want string }{
		{"singular: ingress, kind: Thing", "NamesAccepted=False SingularConflict"},
		{"kind: Thing, shortNames: [netpol]", "NamesAccepted=False ShortNamesConflict"},
		{"kind: Ingress, singular: thing, listKind: Things", "NamesAccepted=False KindConflict"},
		{"kind: Thing, listKind: IngressList", "NamesAccepted=False ListKindConflict"},
		{"kind: Deployment, shortNames: [po]", "NamesAccepted=True NoConflicts"}, // these names belong to other groups
	} {
		s.want(201, "POST", definitionsPath, intruder(t, "things", "networking.k8s.io", c.names))
		if got := s.conditions("things.networking.k8s.io"); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, want %s", c.names, got, c.want)
		}
		if c.want == "NamesAccepted=True NoConflicts" {
			s.want(201, "POST", "/apis/networking.k8s.io/v9/things", `{"apiVersion":"networking.k8s.io/v9","kind":"Deployment","metadata":{"name":"x"}}`)
		}
		s.want(200, "DELETE", definitionsPath+"/things.networking.k8s.io", "")
		apitest.WaitFor(t, "the definition goes", func() bool { return s.send("GET", definitionsPath+"/things.networking.k8s.io", "").code == 404 })
	}
}

// TestGroupsOfKubernetesAskForApproval checks that the responses match kube-apiserver 1.36.
func TestGroupsOfKubernetesAskForApproval(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	const see = "see https://github.com/kubernetes/enhancements/pull/1111"
	good := intruder(t, "foos", "node.k8s.io", "kind: Foo")
	for body, want := range map[string]string{
		strings.Replace(good, "unapproved, a test", "", 1): `metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have ` +
			`approval annotation "api-approved.kubernetes.io", ` + see,
		strings.Replace(good, "unapproved, a test", "nonsense", 1): `metadata.annotations[api-approved.kubernetes.io]: Invalid value: "nonsense": protected groups ` +
			`must have approval annotation "api-approved.kubernetes.io" with either a URL or a reason starting with "unapproved", ` + see,
		intruder(t, "foos", "apps", "kind: Foo"):   `spec.group: Invalid value: "apps": should be a domain with at least one dot`,
		intruder(t, "foos", `""`, "kind: Foo"):     `spec.group: Required value`,
		intruder(t, "pods", `""`, "kind: Pod"):     `spec.group: Required value`,
		intruder(t, "foos", "policy", "kind: Foo"): `spec.group: Invalid value: "policy": should be a domain with at least one dot`,
	} {
		if a := s.send("POST", definitionsPath, body); a.code != 422 || !strings.Contains(a.failure(), want) {
			t.Errorf("got %s, want 422 with %s", a.failure(), want)
		}
	}
}

// TestSharedDefinitionOfAnEarlierServerDeletesNothing tests a definition that shares its keys with
// a built-in type. Earlier versions could establish such definitions or start to delete them.
func TestSharedDefinitionOfAnEarlierServerDeletesNothing(t *testing.T) {
	for name, terminating := range map[string]bool{"in use": false, "on its way out": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "db")
			s := startTest(t, onFile(path), "--authorization-mode=RBAC")
			const base, definition = "/rbac.authorization.k8s.io/clusterrolebindings/", "clusterrolebindings.rbac.authorization.k8s.io"
			s.want(201, "POST", definitionsPath, intruder(t, "clusterrolebindings", "rbac.authorization.k8s.io", "kind: ClusterRoleBinding"))
			s.asEarlierServersLeftIt(definition, terminating)
			before := s.storedUnder(base)
			s.start()
			if !terminating {
				if got := s.conditions(definition); !strings.Contains(got, "NamesAccepted=False") || !strings.Contains(got, "Established=False") {
					t.Errorf("after the start: %s", got)
				}
				if a := s.send("GET", "/apis/rbac.authorization.k8s.io/v9/clusterrolebindings", ""); a.code != 404 {
					t.Errorf("it is served: %d", a.code)
				}
				s.want(200, "DELETE", definitionsPath+"/"+definition, "")
			}
			apitest.WaitFor(t, "the definition goes", func() bool { return s.send("GET", definitionsPath+"/"+definition, "").code == 404 })
			s.want(200, "GET", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/cluster-admin", "")
			s.halt()
			if after := s.storedUnder(base); after != before || strings.HasPrefix(before, "0 ") {
				t.Errorf("%s before, %s after", before, after)
			}
		})
	}
}

// asEarlierServersLeftIt stores a definition with all its names accepted.
func (s *testServer) asEarlierServersLeftIt(name string, terminating bool) {
	s.t.Helper()
	s.halt() // no running server should notice the change
	reg := scheme.NewRegistry()
	crd.NewDefinitions(nil, reg, nil, zerolog.Nop())
	row, st := reg.Lookup(apiextensions.GroupName, "v1", "customresourcedefinitions"), storetest.Open(s.t, s.flag("data"))
	defer st.Close()
	rec, err := st.Get(row.Key("", name))
	if err != nil {
		s.t.Fatal(err)
	}
	obj, err := row.DecodeStored(rec.JSON)
	if err != nil {
		s.t.Fatal(err)
	}
	definition := obj.(*apiextensionsv1.CustomResourceDefinition)
	definition.Status.AcceptedNames = definition.Spec.Names
	definition.Status.Conditions = nil
	for _, kind := range []apiextensionsv1.CustomResourceDefinitionConditionType{apiextensionsv1.NamesAccepted, apiextensionsv1.Established} {
		definition.Status.Conditions = append(definition.Status.Conditions, apiextensionsv1.CustomResourceDefinitionCondition{Type: kind, Status: "True", LastTransitionTime: metav1.Now()})
	}
	if terminating {
		row.Custom.MarkDeleting(definition)
	}
	json, revAt, err := row.EncodeStored(definition)
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := st.Commit(context.Background(), store.Change{Op: store.OpUpdate, Key: rec.Key, Expect: rec.Rev, JSON: json, RevAt: revAt, Deleting: terminating}); err != nil {
		s.t.Fatal(err)
	}
}

// TestStatusCannotPointADefinitionAtOthersObjects checks that the accepted plural is either empty
// or the plural in the spec.
func TestStatusCannotPointADefinitionAtOthersObjects(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	for _, body := range []string{
		kubetest.SimpleDefinition(t, "Bar", "example.com", "{type: object}", ""),
		strings.Replace(kubetest.SimpleDefinition(t, "Other", "example.com", "{type: object}", ""), `"kind":"Other"`, `"kind":"Other","shortNames":["foos"]`, 1),
		// Its plural conflicts with a short name of the previous definition.
		kubetest.SimpleDefinition(t, "Foo", "example.com", "{type: object}", ""),
	} {
		s.want(201, "POST", definitionsPath, body)
	}
	const bars = "/apis/example.com/v1/namespaces/default/bars"
	s.want(201, "POST", bars, `{"apiVersion":"example.com/v1","kind":"Bar","metadata":{"name":"x"}}`)
	s.want(200, "PATCH", definitionsPath+"/foos.example.com/status", `{"status":{"acceptedNames":{"plural":"bars","singular":"bar","kind":"Bar"},
		"conditions":[{"type":"Established","status":"True","reason":"x","message":"x","lastTransitionTime":null}]}}`, asMergePatch)
	s.want(200, "DELETE", definitionsPath+"/foos.example.com", "")
	apitest.WaitFor(t, "the definition goes", func() bool { return s.send("GET", definitionsPath+"/foos.example.com", "").code == 404 })
	s.want(200, "GET", bars+"/x", "")
}
