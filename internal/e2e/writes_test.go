package e2e

// This file tests writes from outside, in the order of kube-apiserver's checks: create, update and
// patch, delete, dry run.

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/apitest"
)

const (
	jsonMerge   = "Content-Type: application/merge-patch+json"
	jsonSteps   = "Content-Type: application/json-patch+json"
	strategic   = "Content-Type: application/strategic-merge-patch+json"
	serverApply = "Content-Type: application/apply-patch+yaml"
)

// customResources defines Foos in x.io with a status subresource, and returns the path of those in
// p1.
func (s *listScene) customResources() (path string) {
	s.t.Helper()
	s.want(201, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"metadata":{"name":"foos.x.io"},"spec":{"group":"x.io","scope":"Namespaced",
		"names":{"plural":"foos","singular":"foo","kind":"Foo","listKind":"FooList"},"versions":[{"name":"v1","served":true,"storage":true,
		"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object","properties":{
		"spec":{"type":"object","properties":{"a":{"type":"integer"}}},"status":{"type":"object","properties":{"b":{"type":"integer"}}}}}}}]}}`)
	apitest.WaitFor(s.t, "what the server writes of a new group", func() bool {
		return s.send("GET", "/apis/apiregistration.k8s.io/v1/apiservices/v1.x.io", "").code == 200
	})
	return "/apis/x.io/v1/namespaces/p1/foos"
}

// A writeCase is a request with the expected response as a line. Success is a status code, and an
// error is the code, reason and message. If "~" precedes the message, it is only a prefix.
type writeCase struct {
	title, method, path, body string
	want                      string
	header                    string
}

// write runs the cases in the given order. Paths are relative to p1's ConfigMaps unless they begin
// with /api.
func (s *listScene) write(t *testing.T, cases []writeCase) {
	for _, c := range cases {
		t.Run(c.title, func(t *testing.T) {
			path := s.p1 + c.path
			if strings.HasPrefix(c.path, "/api") {
				path = c.path
			}
			var headers []string
			if c.header != "" {
				headers = append(headers, c.header)
			}
			before := s.revision()
			a := s.send(c.method, path, s.fillIn(c.body), headers...)
			got := strconv.Itoa(a.code)
			if a.code >= 400 {
				s.checkStatus(a)
				got = a.failure()
				if rev := s.revision(); rev != before {
					t.Errorf("the refused request wrote revisions %d to %d", before+1, rev)
				}
			}
			want, beginning := strings.CutSuffix(c.want, "...")
			if got != want && !(beginning && strings.HasPrefix(got, want)) {
				t.Errorf("\n got %s\nwant %s", got, c.want)
			}
		})
	}
}

// ---- Create ----

func TestCreate(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	t.Run("the server fills in", func(t *testing.T) {
		a := s.want(201, "POST", s.p1, `{"metadata":{"name":"f","uid":"mine","creationTimestamp":"2001-01-01T00:00:00Z","selfLink":"/x",
			"deletionTimestamp":"2001-01-01T00:00:00Z","deletionGracePeriodSeconds":5,"resourceVersion":"0","generation":7}}`)
		meta := a.get("metadata")
		if uid := meta.Get("uid").String(); !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4`).MatchString(uid) {
			t.Errorf("uid %s", uid)
		}
		apitest.Expect(t, a.rev(), s.revision())
		apitest.Expect(t, strings.HasPrefix(meta.Get("creationTimestamp").String(), "2001"), false)
		for _, field := range []string{"selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"} {
			apitest.Expect(t, meta.Get(field).Exists(), false)
		}
		apitest.Expect(t, meta.Get("generation"), 7) // types without generations store the value from the request
	})
	long := strings.Repeat("n", 254)
	s.write(t, []writeCase{
		{"duplicate", "POST", "", configMap("a"), `409 AlreadyExists configmaps "a" already exists`, ""},
		{"no name", "POST", "", `{}`, `422 Invalid ConfigMap "" is invalid: metadata.name: Required value: name or generateName is required`, ""},
		{"bad name", "POST", "", configMap("B_ad"), `422 Invalid ConfigMap "B_ad" is invalid: metadata.name: Invalid value: "B_ad": a lowercase RFC 1123 subdomain must consist of...`, ""},
		{"name with a slash", "POST", "", configMap("a/b"), `422 Invalid ConfigMap "a/b" is invalid: metadata.name: Invalid value: "a/b": ...`, ""},
		{"name of dots", "POST", "", configMap(".."), `422 Invalid ConfigMap ".." is invalid: ...`, ""},
		{"name too long", "POST", "", configMap(long), `422 Invalid ConfigMap "` + long + `" is invalid: metadata.name: Invalid value: "` + long + `": must be no more than 253 ...`, ""},
		{"bad label", "POST", "", `{"metadata":{"name":"l","labels":{"-":"x y"}}}`, `422 Invalid ConfigMap "l" is invalid: [metadata.labels: Invalid value: "-": ...`, ""},
		{"bad annotation", "POST", "", `{"metadata":{"name":"l","annotations":{"a b":""}}}`, `422 Invalid ConfigMap "l" is invalid: metadata.annotations: Invalid value: "a b": ...`, ""},
		{"namespace mismatch", "POST", "", `{"metadata":{"name":"f2","namespace":"p2"}}`, "400 BadRequest the namespace of the provided object does not match the namespace sent on the request", ""},
		{"missing namespace", "POST", "/api/v1/namespaces/none/configmaps", configMap("f2"), `404 NotFound namespaces "none" not found`, ""},
		{"resourceVersion", "POST", "", `{"metadata":{"name":"f2","resourceVersion":"5"}}`, "500  resourceVersion should not be set on objects to be created", ""},
		{"after validation", "POST", "", `{"metadata":{"name":"B_ad","resourceVersion":"5"}}`, `422 Invalid ConfigMap "B_ad" is invalid: ...`, ""},
		{"after the namespace", "POST", "/api/v1/namespaces/none/configmaps", `{"metadata":{"name":"f2","resourceVersion":"5"}}`, `404 NotFound namespaces "none" not found`, ""},
		{"before the name", "POST", "", `{"metadata":{"name":"a","resourceVersion":"5"}}`, "500  resourceVersion should not be set on objects to be created", ""},
		{"no number", "POST", "", `{"metadata":{"name":"no-number","resourceVersion":"abc"}}`, "201", ""},
		{"dry run over a name", "POST", "?dryRun=All", `{"metadata":{"name":"a","resourceVersion":"5"}}`, `409 AlreadyExists configmaps "a" already exists`, ""},
		{"strict", "POST", "?fieldValidation=Strict", `{"metadata":{"name":"f2"},"bogus":1}`, `400 BadRequest ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: unknown field "bogus"`, ""},
		{"bogus directive", "POST", "?fieldValidation=bogus", configMap("f2"), `422 Invalid CreateOptions.meta.k8s.io "" is invalid: fieldValidation: ...`, ""},
		{"no JSON", "POST", "", `{"metadata":`, "400 BadRequest the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: ...", ""},
		{"empty", "POST", "", "", "400 BadRequest the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: unexpected end of JSON input (<empty>)", ""},
		{"another kind", "POST", "", `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"f2"}}`, `400 BadRequest Secret in version "v1" cannot be handled as a ConfigMap: ...`, ""},
		{"media type", "POST", "", "hello", "415 UnsupportedMediaType the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf", "Content-Type: text/plain"},
		{"POST to an object", "POST", "/a", configMap("a"), "405 MethodNotAllowed the server does not allow this method on the requested resource", ""},
		{"POST to all namespaces", "POST", "/api/v1/configmaps", configMap("a"), "405 MethodNotAllowed ...", ""},
		{"over a deleted one", "POST", "", `{"metadata":{"name":"fin","finalizers":["x.io/f"]}}`, "201", ""},
		{"delete", "DELETE", "/fin", "", "200", ""},
		{"again", "POST", "", configMap("fin"), `409 AlreadyExists object is being deleted: configmaps "fin" already exists`, ""},
		{"YAML", "POST", "", "metadata:\n  name: yaml\ndata:\n  k: v\n", "201", "Content-Type: application/yaml"},
	})
	t.Run("bad finalizer", func(t *testing.T) {
		a := s.send("POST", s.p1+"?dryRun=All", `{"metadata":{"name":"l","finalizers":["x"]}}`)
		apitest.Expect(t, a.code, 422)
		apitest.Expect(t, strings.Contains(a.failure(), `metadata.finalizers[0]: Invalid value: "x": name is neither a standard finalizer name nor is it fully qualified`), true)
	})
	t.Run("terminating namespace", func(t *testing.T) { checkTerminating(t) })
	t.Run("a warning by default", func(t *testing.T) {
		a := s.want(201, "POST", s.p1, `{"metadata":{"name":"w"},"bogus":1}`)
		apitest.Expect(t, a.header.Get("Warning"), `299 - "unknown field \"bogus\""`)
	})
	t.Run("too large", func(t *testing.T) {
		a := s.want(413, "POST", s.p1, configMap("big", "k", strings.Repeat("x", 3<<20)))
		apitest.Expect(t, a.failure(), "413 RequestEntityTooLarge Request entity too large: limit is 3145728")
	})
	t.Run("YAML comes back", func(t *testing.T) {
		a := s.want(200, "GET", s.p1+"/yaml", "", "Accept: application/yaml")
		apitest.Expect(t, a.header.Get("Content-Type"), "application/yaml")
		apitest.Expect(t, strings.HasPrefix(string(a.body), "apiVersion: v1\ndata:\n  k: v\nkind: ConfigMap\n"), true)
	})
}

func checkTerminating(t *testing.T) {
	s := startTest(t) // with its garbage collector
	path := s.namespace("ending")
	s.want(201, "POST", path, `{"metadata":{"name":"fin","finalizers":["x.io/f"]}}`)
	apitest.Expect(t, s.want(200, "DELETE", "/api/v1/namespaces/ending", "").get("status.phase"), "Terminating")
	a := s.want(403, "POST", path, configMap("late"))
	apitest.Expect(t, a.failure(), `403 Forbidden configmaps "late" is forbidden: unable to create new content in namespace ending because it is being terminated`)
	apitest.Expect(t, a.get("details.causes").Raw, `[{"reason":"NamespaceTerminating","message":"namespace ending is being terminated","field":"metadata.namespace"}]`)
	s.want(200, "PATCH", path+"/fin", `{"metadata":{"finalizers":null}}`, jsonMerge)
	apitest.WaitFor(t, "the namespace to go", func() bool { return s.send("GET", "/api/v1/namespaces/ending", "").code == 404 })
}

func TestGeneratedNames(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	const creates = 200
	names := make(chan string, creates)
	var group sync.WaitGroup
	for range 10 {
		group.Go(func() {
			for range creates / 10 {
				names <- s.want(201, "POST", s.p1, `{"metadata":{"generateName":"gen-"}}`).get("metadata.name").String()
			}
		})
	}
	group.Wait()
	close(names)
	seen := map[string]bool{}
	for name := range names {
		if seen[name] || !regexp.MustCompile(`^gen-[a-z0-9]{5}$`).MatchString(name) {
			t.Errorf("name %s", name)
		}
		seen[name] = true
	}
	long := s.want(201, "POST", s.p1, `{"metadata":{"generateName":"`+strings.Repeat("l", 80)+`"}}`).get("metadata.name").String()
	apitest.Expect(t, len(long), 63)
	a := s.want(409, "POST", s.p1, `{"metadata":{"name":"a","generateName":"a"}}`)
	apitest.Expect(t, a.get("message"), `configmaps "a" already exists, the server was not able to generate a unique name for the object`)
	apitest.Expect(t, a.header.Get("Retry-After"), "1")
}

// ---- Update and patch ----

func TestUpdate(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	stale := `409 Conflict Operation cannot be fulfilled on configmaps "b": the object has been modified; please apply your changes to the latest version and try again`
	s.write(t, []writeCase{
		{"stale", "PUT", "/b", `{"metadata":{"name":"b","resourceVersion":"r(a)"}}`, stale, ""},
		{"no number", "PUT", "/b", `{"metadata":{"name":"b","resourceVersion":"abc"}}`,
			`500  strconv.ParseUint: parsing "abc": invalid syntax`, ""},
		{"no revision", "PUT", "/b", labelled("b", "x"), "200", ""},
		{"another uid", "PUT", "/b", `{"metadata":{"name":"b","uid":"zz"}}`, `409 Conflict Operation cannot be fulfilled on configmaps "b": ...`, ""},
		{"missing", "PUT", "/nope", configMap("nope"), `404 NotFound configmaps "nope" not found`, ""},
		{"another name", "PUT", "/b", configMap("c"), "400 BadRequest the name of the object (c) does not match the name on the URL (b)", ""},
		{"no name", "PUT", "/b", `{}`, "400 BadRequest the name of the object (b based on URL) was undeterminable: name must be provided", ""},
		{"another namespace", "PUT", "/b", `{"metadata":{"name":"b","namespace":"p2"}}`, "400 BadRequest the namespace of the provided object does not match the namespace sent on the request", ""},
		{"deletionTimestamp", "PUT", "/b", `{"metadata":{"name":"b","deletionTimestamp":"2031-01-01T00:00:00Z"}}`, `422 Invalid ConfigMap "b" is invalid: metadata.deletionTimestamp: Invalid value: ...`, ""},
		{"bad label", "PUT", "/b", `{"metadata":{"name":"b","labels":{"-":""}}}`, `422 Invalid ConfigMap "b" is invalid: metadata.labels: ...`, ""},
		{"PUT to a collection", "PUT", "", configMap("b"), "405 MethodNotAllowed ...", ""},
		{"patch with a stale revision", "PATCH", "/b", `{"metadata":{"resourceVersion":"r(a)"},"data":{"x":"y"}}`, stale, jsonMerge},
		{"failed test", "PATCH", "/b", `[{"op":"test","path":"/data/k","value":"no"}]`, "422 Invalid the server rejected our request due to an error in our request", jsonSteps},
		{"bad path", "PATCH", "/b", `[{"op":"remove","path":"/no/such"}]`, "422 Invalid the server rejected our request due to an error in our request", jsonSteps},
		{"application/json", "PATCH", "/b", `{}`, "415 UnsupportedMediaType 415: Unsupported Media Type", "Content-Type: application/json"},
		{"patch of nothing", "PATCH", "/nope", `{}`, `404 NotFound configmaps "nope" not found`, jsonMerge},
		{"patch that is no JSON", "PATCH", "/b", `{`, "400 BadRequest invalid JSON patch", jsonMerge},
		{"strategic patch that is no JSON", "PATCH", "/b", `{"data":{"a":1e,}}`, "400 BadRequest invalid JSON patch", strategic},
		{"patch of nothing that is no JSON", "PATCH", "/nope", `{`, "400 BadRequest invalid JSON patch", jsonMerge},
		{"patch of the uid", "PATCH", "/b", `{"metadata":{"uid":"zz"}}`, `422 Invalid ConfigMap "b" is invalid: metadata.uid: Invalid value: "zz": field is immutable...`, jsonMerge},
		{"patch of the name", "PATCH", "/b", `{"metadata":{"name":"zz"}}`, "400 BadRequest the name of the object (zz) does not match the name on the URL (b)", jsonMerge},
		{"force without apply", "PATCH", "/b?force=true", `{}`, `422 Invalid PatchOptions.meta.k8s.io "" is invalid: force: Forbidden: may not be specified for non-apply patch`, jsonMerge},
		{"merge", "PATCH", "/b", `{"data":{"m":"1"}}`, "200", jsonMerge},
		{"strategic merge", "PATCH", "/b", `{"data":{"s":"1"}}`, "200", strategic},
		{"JSON patch", "PATCH", "/b", `[{"op":"add","path":"/data/j","value":"1"}]`, "200", jsonSteps},
	})
	t.Run("no change", func(t *testing.T) {
		a := s.want(200, "GET", s.p1+"/b", "")
		apitest.Expect(t, a.get("data").Raw, `{"j":"1","m":"1","of":"b","s":"1"}`)
		apitest.Expect(t, s.want(200, "PUT", s.p1+"/b", string(a.body)).rev(), a.rev())
	})
	t.Run("creationTimestamp", func(t *testing.T) {
		have := s.want(200, "GET", s.p1+"/b", "").get("metadata.creationTimestamp").String()
		a := s.want(200, "PUT", s.p1+"/b", `{"metadata":{"name":"b","creationTimestamp":"2001-01-01T00:00:00Z"}}`)
		apitest.Expect(t, a.get("metadata.creationTimestamp"), have)
		apitest.Expect(t, a.get("metadata.uid").String() != "", true)
	})
}

func TestFiftyWritersOfOneObject(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	const writers = 50
	all := func(request func(i int) int) map[int]int {
		codes := make([]int, writers)
		var group sync.WaitGroup
		for i := range writers {
			group.Go(func() { codes[i] = request(i) })
		}
		group.Wait()
		counts := map[int]int{}
		for _, code := range codes {
			counts[code]++
		}
		return counts
	}
	puts := all(func(i int) int {
		return s.send("PUT", s.p1+"/a", s.fillIn(fmt.Sprintf(`{"metadata":{"name":"a","resourceVersion":"r(a)"},"data":{"w":"%d"}}`, i))).code
	})
	apitest.Expect(t, puts, map[int]int{200: 1, 409: writers - 1})
	patches := all(func(i int) int {
		return s.send("PATCH", s.p1+"/b", fmt.Sprintf(`{"data":{"k%d":"v"}}`, i), jsonMerge).code
	})
	apitest.Expect(t, patches, map[int]int{200: writers})
	apitest.Expect(t, len(s.send("GET", s.p1+"/b", "").get("data").Map()), writers+1)
}

func TestApply(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	apply := func(query, value string) answer {
		return s.send("PATCH", s.p1+"/ssa?"+query, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"ssa"},"data":{"m":"`+value+`"}}`, serverApply)
	}
	apitest.Expect(t, apply("fieldManager=one", "1").code, 201)
	apitest.Expect(t, apply("fieldManager=one", "2").code, 200)
	conflict := apply("fieldManager=two", "3")
	apitest.Expect(t, conflict.code, 409)
	apitest.Expect(t, conflict.get("details.causes.0.reason"), "FieldManagerConflict")
	apitest.Expect(t, conflict.get("details.causes.0.field"), ".data.m")
	apitest.Expect(t, apply("fieldManager=two&force=true", "3").get("data.m"), "3")
	apitest.Expect(t, apply("", "4").code, 422)
	a := s.want(201, "POST", s.p1, configMap("owned", "k", "v"), "User-Agent: probe/1.0")
	apitest.Expect(t, a.get("metadata.managedFields.0.manager"), "probe")
}

// Some annotations represent fields of earlier versions. They are rejected by all kinds of writes
// if their value is not a number like the field's.
func TestDamagedAnnotationsOfOldFieldsAreRefused(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	const collection = "/apis/apps/v1/namespaces/default/deployments"
	body := func(annotation string) string {
		return `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a","annotations":{"deprecated.deployment.rollback.to":"` + annotation + `"}},` +
			`"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`
	}
	s.want(400, "POST", collection, body("last"))
	s.want(400, "PATCH", collection+"/a?fieldManager=m", body("last"), "Content-Type: application/apply-patch+yaml")
	s.want(201, "POST", collection, body("7"))
	s.want(400, "PUT", collection+"/a", body("last"))
	for kind, code := range map[string]int{"merge": 422, "strategic-merge": 500} {
		s.want(code, "PATCH", collection+"/a", `{"metadata":{"annotations":{"deprecated.deployment.rollback.to":"last"}}}`, "Content-Type: application/"+kind+"-patch+json")
	}
	a := s.want(400, "PATCH", collection+"/a?fieldManager=m&force=true", body("last"), "Content-Type: application/apply-patch+yaml")
	if !strings.HasSuffix(a.get("message").String(), `as int64: strconv.ParseInt: parsing "last": invalid syntax`) {
		t.Error(string(a.body))
	}
}

func TestStatusAndGeneration(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	deployments := "/apis/apps/v1/namespaces/p1/deployments"
	a := s.want(201, "POST", deployments, `{"metadata":{"name":"d"},"spec":{"selector":{"matchLabels":{"app":"d"}},
		"template":{"metadata":{"labels":{"app":"d"}},"spec":{"containers":[{"name":"c","image":"i"}]}}},"status":{"replicas":9}}`)
	state := func(a answer) string {
		return fmt.Sprint(a.get("metadata.generation").Int(), a.get("spec.replicas").Int(), a.get("status.replicas").Int())
	}
	apitest.Expect(t, state(a), "1 1 0")
	a = s.want(200, "PATCH", deployments+"/d", `{"spec":{"replicas":2},"status":{"replicas":9}}`, jsonMerge)
	apitest.Expect(t, state(a), "2 2 0")
	a = s.want(200, "PATCH", deployments+"/d", `{"metadata":{"labels":{"x":"y"}}}`, jsonMerge)
	apitest.Expect(t, state(a), "2 2 0")
	a = s.want(200, "PATCH", deployments+"/d/status", `{"spec":{"replicas":7},"status":{"replicas":5}}`, jsonMerge)
	apitest.Expect(t, state(a), "2 2 5")
	s.want(404, "GET", s.p1+"/a/status", "")
	s.want(405, "DELETE", deployments+"/d/status", "")
}

func TestCustomResourcesDiffer(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	foos := s.customResources()
	a := s.want(201, "POST", foos, `{"apiVersion":"x.io/v1","kind":"Foo","metadata":{"name":"f"},"spec":{"a":1}}`)
	apitest.Expect(t, a.get("metadata.generation"), 1)
	t.Run("no revision", func(t *testing.T) {
		a := s.want(422, "PUT", foos+"/f", `{"apiVersion":"x.io/v1","kind":"Foo","metadata":{"name":"f"},"spec":{"a":2}}`)
		apitest.Expect(t, a.get("message"), `foos.x.io "f" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update`)
	})
	t.Run("strategic merge", func(t *testing.T) { s.want(415, "PATCH", foos+"/f", `{}`, strategic) })
	t.Run("status", func(t *testing.T) {
		a := s.want(200, "PATCH", foos+"/f/status", `{"spec":{"a":5},"status":{"b":3}}`, jsonMerge)
		apitest.Expect(t, fmt.Sprint(a.get("metadata.generation").Int(), a.get("spec.a").Int(), a.get("status.b").Int()), "1 1 3")
		a = s.want(200, "PATCH", foos+"/f", `{"spec":{"a":2},"status":{"b":9}}`, jsonMerge)
		apitest.Expect(t, fmt.Sprint(a.get("metadata.generation").Int(), a.get("spec.a").Int(), a.get("status.b").Int()), "2 2 3")
	})
	apitest.Expect(t, s.want(200, "GET", foos, "").get("metadata.continue").Exists(), true)
}

// ---- Delete ----

func TestDelete(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	w := s.follow("resourceVersion=r(z)")
	t.Run("an object goes", func(t *testing.T) {
		uid := s.want(200, "GET", s.p1+"/a", "").get("metadata.uid").String()
		a := s.want(200, "DELETE", s.p1+"/a", "")
		apitest.Expect(t, a.get("kind").String()+a.get("status").String(), "StatusSuccess")
		apitest.Expect(t, a.get("details").Raw, `{"name":"a","kind":"configmaps","uid":"`+uid+`"}`)
		apitest.Expect(t, a.get("code").Exists() || a.get("message").Exists(), false)
		s.want(404, "GET", s.p1+"/a", "")
		w.want("DELETED a")
	})
	t.Run("finalizers", func(t *testing.T) { checkFinalizers(t, s) })
	conflict := `409 Conflict Operation cannot be fulfilled on ConfigMap "b": the `
	s.write(t, []writeCase{
		{"uid", "DELETE", "/b", `{"preconditions":{"uid":"nope"}}`, conflict + "UID in the precondition (nope) does not match the UID in record (...", ""},
		{"revision", "DELETE", "/b", `{"preconditions":{"resourceVersion":"1"}}`, conflict + "ResourceVersion in the precondition (1) does not match the ResourceVersion in record (...", ""},
		{"uid in the query", "DELETE", "/b?uid=nope", "", conflict + "UID in the precondition (nope) ...", ""},
		{"revision in the query", "DELETE", "/b?resourceVersion=1", "", conflict + "ResourceVersion in the precondition (1) ...", ""},
		{"bad policy", "DELETE", "/b", `{"propagationPolicy":"Zap"}`,
			`422 Invalid DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Unsupported value: "Zap": supported values: "Foreground", "Background", "Orphan", "nil"`, ""},
		{"policy twice", "DELETE", "/b", `{"propagationPolicy":"Orphan","orphanDependents":true}`, `422 Invalid DeleteOptions.meta.k8s.io "" is invalid: ...`, ""},
		{"bad body", "DELETE", "/b", `{"prec`, "400 BadRequest ...", ""},
		{"body of another kind", "DELETE", "/b", `{"kind":"Pod","apiVersion":"v1"}`, "400 BadRequest ...", ""},
		{"all namespaces", "DELETE", "/api/v1/namespaces", "", "405 MethodNotAllowed the server does not allow this method on the requested resource", ""},
		{"the first namespace", "DELETE", "/api/v1/namespaces/default", "", `403 Forbidden namespaces "default" is forbidden: this namespace may not be deleted`, ""},
		{"missing", "DELETE", "/nope", "", `404 NotFound configmaps "nope" not found`, ""},
		{"right revision", "DELETE", "/b", `{"preconditions":{"resourceVersion":"r(b)"}}`, "200", ""},
	})
	t.Run("foreground", func(t *testing.T) {
		a := s.want(200, "DELETE", s.p1+"/c", `{"propagationPolicy":"Foreground"}`)
		apitest.Expect(t, a.get("metadata.finalizers").Raw, `["`+metav1.FinalizerDeleteDependents+`"]`)
	})
	t.Run("something holds it back", func(t *testing.T) {
		s.want(201, "POST", s.p1, `{"metadata":{"name":"held","finalizers":["x.io/f"]}}`)
		s.want(202, "DELETE", s.p1+"/held", `{"orphanDependents":false}`)
	})
}

func checkFinalizers(t *testing.T, s *listScene) {
	s.want(201, "POST", s.p1, `{"metadata":{"name":"fin","finalizers":["x.io/f"]}}`)
	marked := s.want(200, "DELETE", s.p1+"/fin", "")
	apitest.Expect(t, marked.get("kind"), "ConfigMap")
	apitest.Expect(t, marked.get("metadata.deletionTimestamp").Exists(), true)
	apitest.Expect(t, marked.get("metadata.deletionGracePeriodSeconds"), 0)
	apitest.Expect(t, s.want(200, "DELETE", s.p1+"/fin", "").rev(), marked.rev())
	s.want(200, "PATCH", s.p1+"/fin", `{"data":{"still":"editable"}}`, jsonMerge)
	more := s.want(422, "PATCH", s.p1+"/fin", `{"metadata":{"finalizers":["x.io/f","n.io/z"]}}`, jsonMerge)
	if !strings.Contains(more.failure(), "no new finalizers can be added if the object is being deleted, found new finalizers []string{") {
		t.Error(more.failure())
	}
	rev := s.want(200, "GET", s.p1+"/fin", "").rev()
	last := s.want(200, "PATCH", s.p1+"/fin", `{"metadata":{"finalizers":null}}`, jsonMerge)
	apitest.Expect(t, last.get("metadata.finalizers").Exists(), false)
	apitest.Expect(t, last.rev(), rev)
	s.want(404, "GET", s.p1+"/fin", "")
}

func TestDeleteCollection(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	t.Run("dry run", func(t *testing.T) {
		apitest.Expect(t, s.brief(s.send("DELETE", s.p1+"?dryRun=All", "")), "a b c d e @now")
		apitest.Expect(t, s.list(""), "a b c d e @now")
	})
	t.Run("one page", func(t *testing.T) {
		apitest.Expect(t, s.brief(s.send("DELETE", s.p1+"?limit=1", "")), "a @z, more, 4 left")
		apitest.Expect(t, s.list(""), "b c d e @now")
	})
	t.Run("selector", func(t *testing.T) {
		a := s.want(200, "DELETE", s.p1+"?labelSelector=odd%3Dn", "")
		apitest.Expect(t, a.names(), "b d")
		apitest.Expect(t, a.get("kind"), "ConfigMapList")
		apitest.Expect(t, s.list(""), "c e @now")
	})
	t.Run("finalizers hold back", func(t *testing.T) {
		s.want(201, "POST", s.p1, `{"metadata":{"name":"fin","finalizers":["x.io/f"]}}`)
		apitest.Expect(t, s.want(200, "DELETE", s.p1, "").names(), "c e fin")
		apitest.Expect(t, s.list(""), "fin @now")
	})
	s.want(422, "DELETE", s.p1, `{"propagationPolicy":"Zap"}`)
	s.want(400, "DELETE", s.p1+"?labelSelector=!!x", "")
}

// The server deletes the objects of a collection concurrently, but a watch must return the events
// in the order of the keys. This includes objects that are only marked for deletion. Pods are
// marked first and then removed, and both events must be in order.
func TestCollectionsGoInOrder(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	p := "/api/v1/namespaces/default/"
	for _, c := range []struct{ plural, body string }{
		{"configmaps", `{"metadata":{"name":"NAME"}}`},
		{"secrets", `{"metadata":{"name":"NAME","finalizers":["x.io/f"]}}`},
		{"pods", `{"metadata":{"name":"NAME"},"spec":{"containers":[{"name":"c","image":"i"}]}}`},
	} {
		t.Run(c.plural, func(t *testing.T) {
			var names []string
			for i := range 60 {
				names = append(names, fmt.Sprintf("n%02d", i))
				s.want(201, "POST", p+c.plural, strings.ReplaceAll(c.body, "NAME", names[i]))
			}
			from := s.revision()
			s.want(200, "DELETE", p+c.plural+"?labelSelector=!kept", "")
			events := 60
			if c.plural == "pods" {
				events = 120
			}
			w, seen := s.watch(fmt.Sprintf("%s%s?watch=1&resourceVersion=%d", p, c.plural, from)), map[string][]string{}
			for range events {
				f := w.next()
				seen[f.kind] = append(seen[f.kind], f.object.Get("metadata.name").String())
			}
			for kind, got := range seen {
				if !slices.Equal(got, names) {
					t.Errorf("%s: %v", kind, got)
				}
			}
		})
	}
}

// The last delete of a Pod must remove it in one step. It must not store its propagation policy
// before that.
func TestLastDeletionOfAPodIsOneStep(t *testing.T) {
	t.Parallel()
	s := startTest(t, "--controllers=false")
	pod := "/api/v1/namespaces/default/pods/o"
	s.want(201, "POST", "/api/v1/namespaces/default/pods", `{"metadata":{"name":"o"},"spec":{"containers":[{"name":"c","image":"i"}]}}`)
	s.want(200, "DELETE", pod+"?propagationPolicy=Foreground", "")
	marked := s.want(200, "DELETE", pod+"?propagationPolicy=Orphan", "")
	gone := s.want(200, "DELETE", pod+"?propagationPolicy=Background", "")
	apitest.Expect(t, gone.get("metadata.finalizers"), `["orphan"]`)
	apitest.Expect(t, s.revision(), marked.rev()+1)
	s.want(404, "GET", pod, "")
}

// ---- Dry run, forms of errors, paths ----

func TestDryRun(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	before := s.revision()
	a := s.want(201, "POST", s.p1+"?dryRun=All", configMap("dry"))
	apitest.Expect(t, a.get("metadata.uid").Exists(), true)
	apitest.Expect(t, a.get("metadata.resourceVersion").Exists(), false)
	a = s.want(200, "PUT", s.p1+"/a?dryRun=All", configMap("a", "k", "dry"))
	apitest.Expect(t, a.rev(), s.rev["a"])
	apitest.Expect(t, a.get("data.k"), "dry")
	s.want(200, "PATCH", s.p1+"/a?dryRun=All", `{"data":{"k":"dry"}}`, jsonMerge)
	s.want(200, "DELETE", s.p1+"/a?dryRun=All", "")
	if a := s.want(200, "DELETE", s.p1+"?dryRun=All&fieldSelector=metadata.name=nobody", `{"gracePeriodSeconds":0}`); !strings.Contains(a.header.Get("Warning"), "dryRun does not count") {
		t.Errorf("a body and a dry run in the query: warning %q", a.header.Get("Warning"))
	}
	s.want(200, "DELETE", s.p1+"/a", `{"dryRun":["All"]}`)
	s.write(t, []writeCase{
		{"duplicate", "POST", "?dryRun=All", configMap("a"), `409 AlreadyExists configmaps "a" already exists`, ""},
		{"missing", "DELETE", "/nope?dryRun=All", "", `404 NotFound configmaps "nope" not found`, ""},
		{"missing namespace", "POST", "/api/v1/namespaces/none/configmaps?dryRun=All", configMap("a"), `404 NotFound namespaces "none" not found`, ""},
		{"invalid", "POST", "?dryRun=All", configMap("B_ad"), `422 Invalid ConfigMap "B_ad" is invalid: ...`, ""},
		{"of some kind", "POST", "?dryRun=Some", configMap("dry"),
			`422 Invalid CreateOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: ["Some"]: supported values: "All"`, ""},
		{"deleting", "DELETE", "/a?dryRun=Some", "", `422 Invalid DeleteOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: ...`, ""},
	})
	apitest.Expect(t, s.revision(), before)
	apitest.Expect(t, s.list(""), "a b c d e @now")
}

func TestUnknownPlaces(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	for _, c := range []struct {
		method, path string
		code         int
	}{
		{"GET", "/api/v1/bogus", 404}, {"GET", "/apis/apps/v1/bogus/x", 404}, {"GET", "/apis/apps/v9/deployments", 404},
		{"GET", s.p1 + "/a/bogus", 404}, {"GET", "/api/v1/namespaces/p1/nodes", 404}, {"GET", "/api/v1/pods/x", 404},
		{"PUT", s.p1, 405}, {"PATCH", s.p1, 405}, {"POST", s.p1 + "/a", 405}, {"DELETE", "/api/v1/componentstatuses/x", 405},
		{"POST", "/api/v1/componentstatuses", 405}, {"BOGUS", s.p1, 405}, {"GET", "/bogus", 404}, {"GET", "/", 200},
		{"GET", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", 405},
		{"GET", "/api/v1/namespaces/p1/namespaces", 404}, {"POST", "/api/v1/namespaces/p1/namespaces", 404}, {"GET", "/api/v1/namespaces/p1/namespaces/p1", 404},
		{"DELETE", "/api/v1/namespaces/p1/namespaces/p2", 404}, {"PUT", "/api/v1/namespaces/p1/namespaces/p2/finalize", 404},
		{"GET", "/api/v1/watch/namespaces/p1/namespaces/p2", 404}, {"GET", "/api/v1/watch/configmaps/a", 404}, {"DELETE", "/api/v1/watch/configmaps", 405},
		{"DELETE", "/api/v1/secrets", 405}, {"DELETE", "/api/v1/namespaces//secrets", 405}, {"POST", "/api/v1/secrets", 405}, {"PATCH", "/api/v1/secrets", 405},
		{"GET", s.p1 + "/a/status/b", 404}, {"GET", s.p1 + "//a", 404}, {"GET", s.p1 + "///a", 404}, {"POST", "/api/v1/bindings", 404},
		{"GET", "/api/v1/componentstatuses?fieldSelector=metadata.name%3Dx", 200},
	} {
		a := s.send(c.method, c.path, "")
		if a.code != c.code {
			t.Errorf("%s %s: got %d, want %d: %.200s", c.method, c.path, a.code, c.code, a.body)
		}
	}
}

func TestErrorsHonourAccept(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	a := s.send("GET", s.p1+"/nope", "", "Accept: application/yaml")
	apitest.Expect(t, a.code, 404)
	apitest.Expect(t, strings.HasPrefix(string(a.body), "apiVersion: v1\ncode: 404\n"), true)
	s.want(404, "GET", s.p1+"/nope", "", "Accept: application/vnd.kubernetes.protobuf,application/json")
	s.want(404, "GET", s.p1+"/nope", "", asTable)
}

// TestDryRunOfACreateTakesEveryResourceVersion checks that a dry run does not reject a
// resourceVersion. That check is part of storing the object, which a dry run does not reach.
func TestDryRunOfACreateTakesEveryResourceVersion(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.define("gadgets")
	const apply = "Content-Type: application/apply-patch+yaml"
	for _, c := range []struct{ method, path, body, header string }{
		{"POST", "/api/v1/namespaces/default/configmaps?", `{"metadata":{"name":"m","resourceVersion":%q}}`, ""},
		{"POST", "/api/v1/namespaces/default/configmaps?", `{"metadata":{"generateName":"m-","resourceVersion":%q}}`, ""},
		{"POST", "/apis/apps/v1/namespaces/default/controllerrevisions?", `{"metadata":{"name":"m","resourceVersion":%q},"data":{"a":1},"revision":1}`, ""},
		{"POST", "/api/v1/namespaces?", `{"metadata":{"name":"m","resourceVersion":%q}}`, ""},
		{"POST", gadgets + "?", strings.Replace(gadget(t, "m", ""), `"name":"m"`, `"name":"m","resourceVersion":%q`, 1), ""},
		{"PUT", "/api/v1/namespaces/default/endpoints/m?", `{"metadata":{"name":"m","resourceVersion":%q}}`, ""},
		{"PATCH", "/api/v1/namespaces/default/configmaps/m?fieldManager=x&", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m","resourceVersion":%q}}`, apply},
	} {
		collection, _, _ := strings.Cut(c.path, "?")
		collection = strings.TrimSuffix(collection, "/m")
		before := len(s.want(200, "GET", collection, "").get("items").Array())
		for _, rv := range []string{"", "0", "5", "999999999", "abc", `"`} {
			a := s.want(201, c.method, c.path+"dryRun=All", fmt.Sprintf(c.body, rv), c.header)
			if got := a.get("metadata.resourceVersion").String(); got != rv {
				t.Errorf("%s %s: sent %q, got %q", c.method, c.path, rv, got)
			}
		}
		apitest.Expect(t, len(s.want(200, "GET", collection, "").get("items").Array()), before)
		if code := s.send(c.method, c.path, fmt.Sprintf(c.body, "5"), c.header).code; (code == 500) != (c.method == "POST") {
			t.Errorf("%s %s without dryRun: %d", c.method, c.path, code)
		}
	}
}
