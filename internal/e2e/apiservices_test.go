package e2e

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"apilet/internal/apitest"
	"apilet/internal/scheme"
)

const apiServices = "/apis/apiregistration.k8s.io/v1/apiservices"

// twoVersions returns a definition with the given versions. The first version is stored. The prefix
// "-" marks a version as not served.
func twoVersions(group, plural string, versions ...string) string {
	kind := strings.ToUpper(plural[:1]) + strings.TrimSuffix(plural[1:], "s")
	var list []string
	for i, v := range versions {
		name, off := strings.CutPrefix(v, "-")
		list = append(list, `{"name":"`+name+`","served":`+map[bool]string{true: "false", false: "true"}[off]+
			`,"storage":`+map[bool]string{true: "true", false: "false"}[i == 0]+
			`,"schema":{"openAPIV3Schema":{"type":"object","properties":{"`+name+`only":{"type":"string"}}}}}`)
	}
	return `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"` + plural + "." + group + `"},
		"spec":{"group":"` + group + `","scope":"Namespaced","names":{"plural":"` + plural + `","kind":"` + kind + `"},"versions":[` + strings.Join(list, ",") + `]}}`
}

func TestAPIServicesAreThoseOfTheServedVersions(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	list := s.want(200, "GET", apiServices, "")
	var served []string
	for _, rows := range scheme.NewRegistry().Current.Load().GroupVersions() {
		if rows[0].Group != "apiregistration.k8s.io" && !rows[0].Deprecation.IsRemoved() {
			served = append(served, rows[0].Version+"."+rows[0].Group)
		}
	}
	served = append(served, "v1.apiextensions.k8s.io") // the definitions add its types
	slices.Sort(served)
	for _, gone := range []string{"v1beta1.batch", "v1beta1.policy", "v1beta3.flowcontrol.apiserver.k8s.io"} {
		if slices.Contains(served, gone) {
			t.Errorf("%s is expected, and kube-apiserver removes it", gone)
		}
	}
	if got := strings.Fields(list.names()); !slices.Equal(got, served) {
		t.Errorf("got  %v\nwant %v", got, served)
	}
	one := s.want(200, "GET", apiServices+"/v1.apps", "")
	for path, want := range map[string]string{"spec.groupPriorityMinimum": "17800", "spec.versionPriority": "15", "spec.group": "apps", "spec.version": "v1",
		`metadata.labels.kube-aggregator\.kubernetes\.io/automanaged`: "onstart", "status.conditions.0.type": "Available",
		"status.conditions.0.status": "True", "status.conditions.0.reason": "Local"} {
		if got := one.get(path).String(); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
	core := s.want(200, "GET", apiServices+"/v1.", "")
	if core.get("spec.group").Exists() || core.get("spec.groupPriorityMinimum").Int() != 18000 || core.get("spec.versionPriority").Int() != 1 {
		t.Errorf("the core group's is %s", core.get("spec").Raw)
	}
	table := s.want(200, "GET", apiServices+"/v1.apps", "", "Accept: application/json;as=Table;g=meta.k8s.io;v=v1")
	if got := table.get("columnDefinitions.#.name").Raw + table.get("rows.0.cells.0").Raw + table.get("rows.0.cells.1").Raw + table.get("rows.0.cells.2").Raw; got !=
		`["Name","Service","Available","Age"]"v1.apps""Local""True"` {
		t.Errorf("the table has %s", got)
	}
}

func TestAPIServicesComeAndGoWithDefinitions(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	has := func(name string) bool { return s.send("GET", apiServices+"/"+name, "").code == 200 }
	const group = "come.example.com"
	crds := "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	s.want(201, "POST", crds, twoVersions(group, "widgets", "v1", "v1beta1"))
	apitest.WaitFor(t, "both versions", func() bool { return has("v1."+group) && has("v1beta1."+group) })
	if spec := s.want(200, "GET", apiServices+"/v1."+group, "").get("spec").Raw; spec != `{"group":"`+group+`","version":"v1","groupPriorityMinimum":1000,"versionPriority":100}` {
		t.Errorf("the spec is %s", spec)
	}
	s.want(200, "PATCH", crds+"/widgets."+group, `{"spec":{"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`,
		"Content-Type: application/merge-patch+json")
	apitest.WaitFor(t, "v1beta1 to go", func() bool { return !has("v1beta1." + group) })
	s.want(200, "DELETE", apiServices+"/v1."+group, "")
	apitest.WaitFor(t, "v1 to be put back", func() bool { return has("v1." + group) })
	s.want(200, "PATCH", apiServices+"/v1."+group, `{"spec":{"versionPriority":7}}`, "Content-Type: application/merge-patch+json")
	apitest.WaitFor(t, "its priority to be put right", func() bool {
		return s.want(200, "GET", apiServices+"/v1."+group, "").get("spec.versionPriority").Int() == 100
	})
	s.want(201, "POST", crds, twoVersions(group, "gears", "v1"))
	s.want(200, "DELETE", crds+"/widgets."+group, "")
	apitest.WaitFor(t, "the definition to go", func() bool { return s.send("GET", crds+"/widgets."+group, "").code == 404 })
	if !has("v1." + group) {
		t.Error("another kind is still served in v1")
	}
	s.want(200, "DELETE", crds+"/gears."+group, "")
	apitest.WaitFor(t, "v1 to go", func() bool { return !has("v1." + group) })
}

// The server must not modify APIServices that were created by users, even after a restart.
func TestAPIServicesOfUsersAreLeftAlone(t *testing.T) {
	t.Parallel()
	s := startTest(t, onFile(t.TempDir()+"/data.db"))
	const body = `{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1beta1.metrics.k8s.io"},"spec":{"group":"metrics.k8s.io",
		"version":"v1beta1","groupPriorityMinimum":100,"versionPriority":100,"insecureSkipTLSVerify":true,"service":{"namespace":"infra","name":"proxy"}}}`
	created := s.want(201, "POST", apiServices, body)
	if created.get("status.conditions").Exists() || created.get("spec.service.port").Int() != 443 {
		t.Errorf("created %s", created.body)
	}
	s.awaitCondition("v1beta1.metrics.k8s.io", "ServiceNotFound")
	created = s.want(200, "GET", apiServices+"/v1beta1.metrics.k8s.io", "")
	s.want(200, "DELETE", apiServices+"/v1.batch", "")
	s.restart()
	again := s.want(200, "GET", apiServices+"/v1beta1.metrics.k8s.io", "")
	if again.rev() != created.rev() {
		t.Errorf("after the restart it is %s", again.body)
	}
	s.want(200, "GET", apiServices+"/v1.batch", "") // restored at the start
	local := s.want(200, "PATCH", apiServices+"/v1beta1.metrics.k8s.io", `{"spec":{"service":null,"insecureSkipTLSVerify":false}}`, "Content-Type: application/merge-patch+json")
	if local.get("status.conditions.0.status").String() != "True" || local.get("status.conditions.#").Int() != 1 {
		t.Errorf("without a Service: %s", local.get("status").Raw)
	}
}

func TestAPIServicesAreValidated(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	cases := []struct{ name, spec, want string }{
		{"x", `{"group":"a.b","version":"v1","groupPriorityMinimum":1,"versionPriority":1}`,
			"metadata.name: Invalid value: \"x\": must be `spec.version+\".\"+spec.group`: \"v1.a.b\""},
		{"x/y", `{"group":"a.b","version":"v1","groupPriorityMinimum":1,"versionPriority":1}`, "metadata.name: Invalid value: \"x/y\": may not contain '/'"},
		{"v2.", `{"version":"v2","groupPriorityMinimum":1,"versionPriority":1}`,
			"spec.group: Required value: only v1 may have an empty group and it better be legacy kube"},
		{"v1.a.b", `{"group":"a.b","version":"v1","groupPriorityMinimum":20001,"versionPriority":0}`,
			"[spec.groupPriorityMinimum: Invalid value: 20001: must be positive and less than 20000, spec.versionPriority: Invalid value: 0: must be positive and less than 1000]"},
		{"v1.a.b", `{"group":"a.b","version":"v1","groupPriorityMinimum":1,"versionPriority":1,"insecureSkipTLSVerify":true,"caBundle":"eA=="}`,
			"[spec.caBundle: Invalid value: \"1 bytes\": local APIServices may not have a caBundle, spec.insecureSkipTLSVerify: Invalid value: true: local APIServices may not have insecureSkipTLSVerify]"},
		{"v1.a.b", `{"group":"a.b","version":"v1","groupPriorityMinimum":1,"versionPriority":1,"insecureSkipTLSVerify":true,"caBundle":"eA==","service":{"port":0}}`,
			"[spec.service.namespace: Required value, spec.service.name: Required value, spec.service.port: Invalid value: 0: port is not valid: must be between 1 and 65535, inclusive, spec.insecureSkipTLSVerify: Invalid value: true: may not be true if caBundle is present]"},
	}
	for _, c := range cases {
		a := s.want(422, "POST", apiServices, `{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"`+c.name+`"},"spec":`+c.spec+`}`)
		if got, want := a.get("message").String(), `APIService.apiregistration.k8s.io "`+c.name+`" is invalid: `+c.want; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	a := s.want(422, "PATCH", apiServices+"/v1.apps/status", `{"status":{"conditions":[{"type":"Available","status":"Maybe"}]}}`, "Content-Type: application/merge-patch+json")
	if got := a.get("details.causes.0.field").String(); got != "status.conditions[0].status" {
		t.Errorf("the status is refused for %s", got)
	}
}

// Both versions of the OpenAPI document describe the current definitions.
func TestOpenAPIFollowsDefinitions(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	const group = "follow.example.com"
	const v3 = "/openapi/v3/apis/" + group
	crds := "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	says := func(when string, want map[string]bool) {
		t.Helper()
		v2 := string(s.want(200, "GET", "/openapi/v2", "").body)
		var three string
		for _, version := range []string{"v1", "v2"} {
			if a := s.send("GET", v3+"/"+version, ""); a.code == 200 {
				three += string(a.body)
			}
		}
		for word, there := range want {
			if strings.Contains(v2, word) != there || strings.Contains(three, word) != there {
				t.Errorf("%s: %s is there: version 2 %v, version 3 %v, want %v", when, word, strings.Contains(v2, word), strings.Contains(three, word), there)
			}
		}
	}
	s.want(201, "POST", crds, twoVersions(group, "widgets", "v1"))
	says("created", map[string]bool{"com.example.follow.v1.Widget": true, "v1only": true, "com.example.follow.v2.Widget": false})
	s.want(201, "POST", crds, twoVersions(group, "gears", "v1"))
	says("another kind", map[string]bool{"com.example.follow.v1.Widget": true, "com.example.follow.v1.Gear": true})
	rev := s.want(200, "GET", crds+"/widgets."+group, "").get("metadata.resourceVersion").String()
	both := strings.Replace(twoVersions(group, "widgets", "v2", "-v1"), `"metadata":{`, `"metadata":{"resourceVersion":"`+rev+`",`, 1)
	s.want(200, "PUT", crds+"/widgets."+group, both)
	says("v1 is no longer served", map[string]bool{"com.example.follow.v1.Widget": false, "v2only": true, "com.example.follow.v1.Gear": true})
	s.want(200, "PATCH", crds+"/widgets."+group, `[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/x-kubernetes-preserve-unknown-fields","value":true}]`,
		"Content-Type: application/json-patch+json")
	if got := s.want(200, "GET", "/openapi/v2", "").get(`definitions.com\.example\.follow\.v2\.Widget`).Raw; got !=
		`{"type":"object","x-kubernetes-group-version-kind":[{"group":"follow.example.com","kind":"Widget","version":"v2"}]}` {
		t.Errorf("an open schema is %s", got)
	}
	s.want(200, "DELETE", crds+"/widgets."+group, "")
	apitest.WaitFor(t, "the type to go, with its definition or a moment later", func() bool { return s.send("GET", "/apis/"+group+"/v2/widgets", "").code == 404 })
	says("deleted", map[string]bool{"com.example.follow.v2.Widget": false, "com.example.follow.v1.Gear": true})
}

func TestKubectlExplainsAPIServices(t *testing.T) {
	t.Parallel()
	s, home := startTest(t), t.TempDir()
	for _, kubectl := range apitest.Kubectls(t) {
		cmd := exec.Command(kubectl, "--server", s.url, "--cache-dir", home, "explain", "apiservices.spec.service")
		cmd.Env = append(os.Environ(), "KUBECONFIG=/dev/null", "HOME="+home)
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "the port on the service that hosting webhook") {
			t.Errorf("%s: %v %s", kubectl, err, out)
		}
	}
}
