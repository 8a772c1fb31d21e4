package e2e

// This file tests responses for deleted objects, for writes that require additional permissions,
// and for watches of single objects.

import (
	"fmt"
	"strings"
	"testing"

	"apilet/internal/apitest"
	"apilet/internal/kinds/strategy"
)

// TestNothingGoneComesBack checks that an update does not create an object if it contains a UID or
// a revision.
func TestNothingGoneComesBack(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	foos := s.customResources()
	for _, res := range testRows() {
		if !strategy.AllowCreateOnUpdate(res) || res.Conversion != nil {
			continue
		}
		path := "/apis/" + res.APIVersion()
		if res.Group == "" {
			path = "/api/v1"
		}
		key := "/registry/" + res.EtcdFolder()
		if res.Namespaced {
			path, key = path+"/namespaces/p1", key+"/p1"
		}
		path += "/" + res.Plural + "/gone"
		other := "StorageError: invalid object, Code: 4, Key: " + key + "/gone, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: u1, "
		conflict := fmt.Sprintf("409 Conflict Operation cannot be fulfilled on %s %q: ", res.GroupResource(), "gone")
		s.write(t, []writeCase{
			{res.Plural + " uid", "PUT", path, `{"metadata":{"name":"gone","uid":"u1"}}`, conflict + other + "UID in object meta: ", ""},
			{res.Plural + " uid, dry run", "PUT", path + "?dryRun=All", `{"metadata":{"name":"gone","uid":"u1"}}`, conflict + other + "...", ""},
			{res.Plural + " revision", "PUT", path, `{"metadata":{"name":"gone","resourceVersion":"r(a)"}}`, conflict + "the object has been modified; ...", ""},
			{res.Plural + " no number", "PUT", path, `{"metadata":{"name":"gone","resourceVersion":"x"}}`, `500  strconv.ParseUint: parsing "x": invalid syntax`, ""},
		})
	}
	apply := func(apiVersion, kind, meta string) string {
		return fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":"gone",%s}}`, apiVersion, kind, meta)
	}
	for path, kind := range map[string][3]string{s.p1: {"v1", "ConfigMap", "configmaps"}, foos: {"x.io/v1", "Foo", "foos.x.io"}} {
		at := path + "/gone?fieldManager=m"
		s.write(t, []writeCase{
			{kind[1] + " applied, uid", "PATCH", at, apply(kind[0], kind[1], `"uid":"u1"`),
				"409 Conflict Operation cannot be fulfilled on " + kind[2] + ` "gone": uid mismatch: the provided object specified uid u1, and no existing object was found`, serverApply},
			{kind[1] + " applied, revision", "PATCH", at, apply(kind[0], kind[1], `"resourceVersion":"r(a)"`), "409 Conflict Operation cannot be fulfilled on " + kind[2] + ` "gone": the object has been modified; ...`, serverApply},
			{kind[1] + " applied, revision 0", "PATCH", at, apply(kind[0], kind[1], `"resourceVersion":"0"`), "201", serverApply},
		})
	}
}

// TestAnUpdateThatCreatesTakesCreate checks that an update can only create an object if the user
// may create it. The error is the 403 of a create, even for a dry run.
func TestAnUpdateThatCreatesTakesCreate(t *testing.T) {
	t.Parallel()
	s, _ := startTLS(t)
	s.headers = []string{"Authorization: Bearer root-token"}
	const roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/role"
	s.want(201, "POST", roles+"s", `{"metadata":{"name":"r"},"rules":[{"apiGroups":["*"],"resources":["*"],"verbs":["update","patch"]}]}`)
	s.want(201, "POST", roles+"bindings", `{"metadata":{"name":"r"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"r"},
		"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"bob"}]}`)
	const leases, configMaps = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l", "/api/v1/namespaces/default/configmaps/c"
	bob := "Authorization: Bearer bob-token"
	apitest.WaitFor(t, "bob's role", func() bool { return s.send("PATCH", configMaps, "{}", bob, jsonMerge).code == 404 })
	refused := `403 Forbidden %s "%s" is forbidden: User "bob" cannot create resource "%s" in API group "%s" in the namespace "default"`
	lease, applied := `{"metadata":{"name":"l"}}`, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"}}`
	for _, query := range []string{"?fieldManager=m", "?fieldManager=m&dryRun=All"} {
		apitest.Expect(t, s.send("PUT", leases+query, lease, bob).failure(), fmt.Sprintf(refused, "leases.coordination.k8s.io", "l", "leases", "coordination.k8s.io"))
		apitest.Expect(t, s.send("PATCH", configMaps+query, applied, bob, serverApply).failure(), fmt.Sprintf(refused, "configmaps", "c", "configmaps", ""))
	}
	s.want(201, "PUT", leases, lease)
	s.want(201, "PATCH", configMaps+"?fieldManager=m", applied, serverApply)
	s.want(200, "PATCH", configMaps+"?fieldManager=m", applied, serverApply, bob)
}

// TestWatchPathOfANameIsASelector checks that an additional selector must select the same name.
func TestWatchPathOfANameIsASelector(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	foos := s.customResources()
	s.want(201, "POST", foos, `{"apiVersion":"x.io/v1","kind":"Foo","metadata":{"name":"b"}}`)
	s.want(201, "POST", foos, `{"apiVersion":"x.io/v1","kind":"Foo","metadata":{"name":"c"}}`)
	watched := func(path string) string { return strings.Replace(path, "/v1/", "/v1/watch/", 1) }
	for path, name := range map[string]string{watched(s.p1) + "/b": "b", watched(foos) + "/b": "b", "/api/v1/watch/namespaces/p1": "p1"} {
		const another = "400 BadRequest fieldSelector metadata.name doesn't match requested name"
		unknown, namespace := "400 BadRequest field label not supported: a", another // unknown fields are reported first
		switch {
		case name == "p1":
			namespace = "400 BadRequest field label not supported: metadata.namespace"
		case strings.Contains(path, "/configmaps/"):
			unknown = `400 BadRequest "a" is not a known field selector: only "metadata.name", "metadata.namespace"`
		}
		for query, want := range map[string]string{
			"":                                       "",
			"&fieldSelector=,":                       "",
			"&fieldSelector=a%3Db":                   unknown,
			"&fieldSelector=nonsense":                "400 BadRequest invalid selector: 'nonsense'; can't understand 'nonsense'",
			"&labelSelector=absent":                  "",
			"&fieldSelector=metadata.name%3D" + name: "",
			"&fieldSelector=metadata.name%3Dother":   another,
			"&fieldSelector=metadata.name!%3Dother":  another,
			"&fieldSelector=metadata.namespace%3Dp1": namespace,
		} {
			a := s.send("GET", path+"?timeoutSeconds=-1"+query, "")
			if got := a.failure(); want == "" && a.code != 200 || want != "" && got != want {
				t.Errorf("%s?%s: got %s, want %q", path, query, got, want)
			}
		}
		w := s.watch(path + "?resourceVersion=1")
		if f := w.next(); f.object.Get("metadata.name").String() != name {
			t.Errorf("%s shows %s", path, f.object)
		}
		w.close()
	}
}

// TestStatusIsAppliedInEveryVersion tests versions of a kind that share a Go type because their
// fields are equal.
func TestStatusIsAppliedInEveryVersion(t *testing.T) {
	t.Parallel()
	s := startScene(t, "--validate=false")
	for _, c := range []struct{ apiVersion, kind, path string }{
		{"batch/v1beta1", "CronJob", "/apis/batch/v1beta1/namespaces/p1/cronjobs/x"},
		{"policy/v1beta1", "PodDisruptionBudget", "/apis/policy/v1beta1/namespaces/p1/poddisruptionbudgets/x"},
		{"autoscaling/v1", "HorizontalPodAutoscaler", "/apis/autoscaling/v1/namespaces/p1/horizontalpodautoscalers/x"},
	} {
		body := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":"x","labels":{"a":"b"}}}`, c.apiVersion, c.kind)
		s.want(201, "PATCH", c.path+"?fieldManager=m", body, serverApply)
		s.want(200, "PATCH", c.path+"?fieldManager=m", strings.Replace(body, `"b"`, `"c"`, 1), serverApply)
		a := s.want(200, "PATCH", c.path+"/status?fieldManager=m&force=true", body, serverApply)
		apitest.Expect(t, a.get("apiVersion"), c.apiVersion)
	}
}
