package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
	"sigs.k8s.io/yaml"
)

// The Table of a scale must contain the same columns as in kube-apiserver. This includes the
// response to a PUT and the scales of custom resources.
func TestScalesHaveColumns(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	const web = "/apis/apps/v1/namespaces/default/deployments/web"
	s.want(201, "POST", "/apis/apps/v1/namespaces/default/deployments", `{"metadata":{"name":"web"},"spec":{"replicas":2,"selector":{"matchLabels":{"a":"b"}},
		"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`)
	s.want(201, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"metadata":{"name":"scalers.x.example.com"},"spec":{"group":"x.example.com","scope":"Namespaced",
		"names":{"plural":"scalers","kind":"Scaler"},"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"scale":{"specReplicasPath":".spec.replicas",
		"statusReplicasPath":".status.replicas"}},"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`)
	const own = "/apis/x.example.com/v1/namespaces/default/scalers"
	s.want(201, "POST", own, `{"apiVersion":"x.example.com/v1","kind":"Scaler","metadata":{"name":"web"},"spec":{"replicas":2}}`)
	for path, columns := range map[string]string{
		web + "/scale":     `[["Name","string",""],["Desired","integer",""],["Available","integer",""],["Age","string",""]]`,
		own + "/web/scale": `[["Name","string","name"],["Desired","integer",""],["Available","integer",""],["Age","date",""]]`,
	} {
		for _, replicas := range []string{"2", "3"} {
			a := s.want(200, "GET", path, "", asTable)
			if replicas == "3" {
				a = s.want(200, "PUT", path, `{"kind":"Scale","apiVersion":"autoscaling/v1","metadata":{"name":"web","namespace":"default"},"spec":{"replicas":3}}`, asTable)
			}
			got := strings.ReplaceAll(a.get("columnDefinitions.#.[name,type,format]").Raw, " ", "")
			if cells := a.get("rows.0.cells").Raw; got != columns || !strings.HasPrefix(cells, `["web",`+replicas+`,0,"`) || a.get("rows.0.object.kind").String() != "PartialObjectMetadata" {
				t.Errorf("%s\ngot  %s %s\nwant %s", path, got, cells, columns)
			}
		}
		if a := s.want(200, "GET", path, ""); a.get("kind").String() != "Scale" || a.get("apiVersion").String() != "autoscaling/v1" || a.rev() == 0 {
			t.Errorf("%s is %s", path, a.body)
		}
		part := s.want(200, "GET", path, "", "Accept: application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
		if part.get("kind").String() != "PartialObjectMetadata" || part.get("spec").Exists() || part.get("metadata.name").String() != "web" {
			t.Errorf("%s in part is %s", path, part.body)
		}
	}
}

// If the request is a dry run, the Table must not contain a revision.
func TestTablesOfDryRunsHaveNoRevision(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	a := s.want(201, "POST", "/api/v1/namespaces/default/configmaps?dryRun=All", `{"metadata":{"name":"a"}}`, asTable)
	if a.get("kind").String() != "Table" || a.get("metadata").Raw != "{}" || a.get("rows.0.cells.0").String() != "a" {
		t.Errorf("got %s", a.body)
	}
}

// Types that are not stored have no columns. If the client only accepts a Table, the request is
// rejected without any effect.
func TestAnswersWithoutColumnsAreRefusedAsTables(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.want(201, "POST", "/api/v1/namespaces/default/serviceaccounts", `{"metadata":{"name":"robot"}}`)
	s.want(201, "POST", "/api/v1/namespaces/default/pods", `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`)
	for path, body := range map[string]string{
		"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews":                     `{"spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}`,
		"/apis/authorization.k8s.io/v1/selfsubjectrulesreviews":                      `{"spec":{"namespace":"default"}}`,
		"/apis/authorization.k8s.io/v1/subjectaccessreviews":                         `{"spec":{"user":"u","resourceAttributes":{"verb":"get","resource":"pods"}}}`,
		"/apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews": `{"metadata":{"namespace":"default"},"spec":{"user":"u","resourceAttributes":{"namespace":"default","verb":"get","resource":"pods"}}}`,
		"/apis/authentication.k8s.io/v1/selfsubjectreviews":                          `{}`,
		"/apis/authentication.k8s.io/v1/tokenreviews":                                `{"spec":{"token":"x"}}`,
		"/api/v1/namespaces/default/serviceaccounts/robot/token":                     `{"spec":{}}`,
		"/api/v1/namespaces/default/pods/p/binding":                                  `{"target":{"name":"n"}}`,
		"/api/v1/namespaces/default/pods/p/eviction":                                 `{"metadata":{"name":"p"}}`,
	} {
		a := s.want(406, "POST", path, body, asTable)
		if a.get("reason").String() != "NotAcceptable" || !strings.HasPrefix(a.get("message").String(), "only the following media types are accepted: application/json, ") {
			t.Errorf("%s: %s", path, a.body)
		}
	}
	if pod := s.want(200, "GET", "/api/v1/namespaces/default/pods/p", ""); pod.get("spec.nodeName").Exists() {
		t.Error("the pod was bound")
	}
	part := s.want(201, "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", `{}`, "Accept: application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
	if part.get("kind").String() != "PartialObjectMetadata" || part.get("status").Exists() {
		t.Errorf("in part a review is %s", part.body)
	}
	whole := s.want(201, "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", `{}`)
	if whole.get("kind").String() != "SelfSubjectReview" || whole.get("status.userInfo.username").String() == "" {
		t.Errorf("a review is %s", whole.body)
	}
}

// A Table in YAML has the same content as in JSON, for lists, empty lists, chunks and single
// objects.
func TestTablesAreTheSameInYAML(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	const maps = "/api/v1/namespaces/default/configmaps"
	age := regexp.MustCompile(`\b\d+s\b`) // the age may be one second higher in the second response
	s.want(201, "POST", maps, `{"metadata":{"name":"a"}}`)
	s.want(201, "POST", maps, `{"metadata":{"name":"b"}}`)
	for _, path := range []string{maps, maps + "?limit=1", maps + "/a", "/api/v1/namespaces/none/configmaps"} {
		document, err := yaml.YAMLToJSON(s.want(200, "GET", path, "", strings.Replace(asTable, "json", "yaml", 1)).body)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		want := s.want(200, "GET", path, "", asTable)
		for _, part := range []string{"kind", "apiVersion", "metadata.resourceVersion", "metadata.remainingItemCount", "columnDefinitions", "rows.#.cells", "rows.#.object.metadata.name"} {
			got := gjson.GetBytes(document, part)
			if age.ReplaceAllString(fmt.Sprint(got.Value()), "age") != age.ReplaceAllString(fmt.Sprint(want.get(part).Value()), "age") {
				t.Errorf("%s: %s is %s, and in JSON %s", path, part, got.Raw, want.get(part).Raw)
			}
		}
		if gjson.GetBytes(document, "items").Exists() {
			t.Errorf("%s: a Table has items", path)
		}
	}
	for accept, items := range map[string]string{"": "[]", ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1": "null"} {
		a := s.want(200, "GET", "/api/v1/namespaces/none/configmaps", "", "Accept: application/yaml"+accept)
		document, err := yaml.YAMLToJSON(a.body)
		if got := gjson.ParseBytes(document); err != nil || got.Get("items").Raw != items || got.Get("metadata.resourceVersion").String() == "" {
			t.Errorf("%s of nothing is %s: %v", accept, a.body, err)
		}
	}
}
