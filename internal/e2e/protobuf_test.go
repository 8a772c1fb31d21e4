package e2e

// This file tests responses in protobuf. The encoding of each type must be identical to
// kube-apiserver's. A response in protobuf must be equivalent to the response in JSON. The length
// of a list must be correct, although it is sent before the items. Streams must be framed.
//
// The helpers send and want of server_test.go, and the watchers of watch_test.go, convert a
// protobuf response to JSON.

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"
	"github.com/tidwall/gjson"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/apitest"
	"apilet/internal/crd"
	"apilet/internal/scheme"
	"apilet/internal/scheme/schemetest"
	"apilet/internal/store"
)

const (
	likesProtobuf = "Accept: application/vnd.kubernetes.protobuf,application/json"
	onlyProtobuf  = "Accept: application/vnd.kubernetes.protobuf"
	partialOnly   = onlyProtobuf + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	partialList   = onlyProtobuf + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

// testRows returns all resources that have Go types, including definitions.
var testRows = sync.OnceValue(func() []*scheme.Resource {
	reg := scheme.NewRegistry()
	crd.NewDefinitions(nil, reg, nil, zerolog.Nop())
	return reg.All()
})

// readable converts a protobuf body to JSON and returns other bodies unchanged.
func readable(header http.Header, body []byte) ([]byte, error) {
	if kind, _, _ := strings.Cut(header.Get("Content-Type"), ";"); kind != string(scheme.ProtobufFormat) {
		return body, nil
	}
	return schemetest.Unsealed(testRows(), body)
}

// readFrames passes each event of a protobuf watch to pass until the stream ends.
func readFrames(in io.Reader, pass func(frame)) error {
	var length [4]byte
	for lines := bufio.NewReader(in); ; {
		if _, err := io.ReadFull(lines, length[:]); err != nil {
			return err
		}
		body := make([]byte, binary.BigEndian.Uint32(length[:]))
		if _, err := io.ReadFull(lines, body); err != nil {
			return err
		}
		event := metav1.WatchEvent{}
		if err := event.Unmarshal(body); err != nil {
			return err
		}
		object, err := schemetest.Unsealed(testRows(), event.Object.Raw)
		if err != nil {
			return err
		}
		pass(frame{event.Type, gjson.ParseBytes(object)})
	}
}

// ---- Requests ----

// protobufScene starts a server and creates the objects for the tests below.
func protobufScene(t *testing.T) *testServer {
	s := startTest(t)
	pod := `{"metadata":{"labels":{"app":"d"}},"spec":{"containers":[{"name":"c","image":"i","resources":{"limits":{"cpu":"1500m","memory":"0.5Gi"}},
		"livenessProbe":{"httpGet":{"port":"web"}},"ports":[{"name":"web","containerPort":80}]}]}}`
	for path, body := range map[string]string{
		"/api/v1/namespaces/default/configmaps":                            `{"metadata":{"name":"c"},"data":{},"binaryData":{"b":"AP8="}}`,
		"/api/v1/namespaces/default/pods":                                  `{"metadata":{"name":"p"},` + pod[strings.Index(pod, `"spec"`):],
		"/apis/apps/v1/namespaces/default/deployments":                     `{"metadata":{"name":"d"},"spec":{"selector":{"matchLabels":{"app":"d"}},"template":` + pod + `}}`,
		"/apis/apps/v1/namespaces/default/controllerrevisions":             `{"metadata":{"name":"r"},"revision":1,"data":{"a":[1,{"b":null}]}}`,
		"/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers": `{"metadata":{"name":"h"},"spec":{"maxReplicas":3,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"d"},"targetCPUUtilizationPercentage":70}}`,
		"/apis/batch/v1/namespaces/default/cronjobs":                       `{"metadata":{"name":"j"},"spec":{"schedule":"* * * * *","jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}}}`,
		"/apis/policy/v1/namespaces/default/poddisruptionbudgets":          `{"metadata":{"name":"b"},"spec":{"minAvailable":"50%","selector":{}}}`,
		"/apis/coordination.k8s.io/v1/namespaces/default/leases":           `{"metadata":{"name":"l"},"spec":{"renewTime":"2026-01-02T03:04:05.123456Z"}}`,
		"/apis/events.k8s.io/v1/namespaces/default/events": `{"metadata":{"name":"e"},"eventTime":"2026-01-02T03:04:05.123456Z","reportingController":"x.io/c","reportingInstance":"i",
			"action":"a","reason":"r","type":"Normal","note":"n","regarding":{"kind":"Pod","name":"p","namespace":"default"}}`,
		"/api/v1/namespaces/default/serviceaccounts": `{"metadata":{"name":"robot"}}`,
	} {
		s.want(201, "POST", path, body)
	}
	s.want(201, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definitionFile(t, "gadgets"))
	return s
}

// inBothForms sends a request for JSON and for protobuf, and compares the responses.
func inBothForms(t *testing.T, s *testServer, method, path, body string, headers ...string) {
	t.Helper()
	asJSON := s.send(method, path, body, headers...)
	sealed := s.send(method, path, body, append(headers, onlyProtobuf)...)
	if got := sealed.header.Get("Content-Type"); got != string(scheme.ProtobufFormat) || sealed.code != asJSON.code {
		t.Fatalf("got %d %s, want %d in protobuf: %.300s", sealed.code, got, asJSON.code, sealed.body)
	}
	if got, want := inOrder(sealed.body), inOrder(asJSON.body); got != want {
		t.Errorf("\nprotobuf %s\nJSON     %s", got, want)
	}
}

var differsEachTime = regexp.MustCompile(`"(uid|creationTimestamp|deletionTimestamp|time|token|expirationTimestamp|resourceVersion)":"[^"]*"`)

// inOrder returns a document with sorted members and without values that vary.
func inOrder(doc []byte) string {
	var any any
	if err := json.Unmarshal(doc, &any); err != nil {
		return err.Error() + " in " + string(doc)
	}
	text, _ := json.Marshal(any)
	return differsEachTime.ReplaceAllString(string(text), `"$1":"-"`)
}

func TestReadsSayTheSameInProtobuf(t *testing.T) {
	t.Parallel()
	s := protobufScene(t)
	const core, apps = "/api/v1/namespaces/default", "/apis/apps/v1/namespaces/default"
	for _, path := range []string{
		core + "/configmaps/c", core + "/pods/p", core + "/pods/p/status", core + "/events/e", core, apps + "/deployments/d",
		apps + "/deployments/d/scale", apps + "/controllerrevisions/r", "/apis/events.k8s.io/v1/namespaces/default/events/e",
		"/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers/h", "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers/h",
		"/apis/batch/v1/namespaces/default/cronjobs/j", "/apis/batch/v1beta1/namespaces/default/cronjobs/j",
		"/apis/policy/v1/namespaces/default/poddisruptionbudgets/b", "/apis/policy/v1beta1/namespaces/default/poddisruptionbudgets/b",
		"/apis/coordination.k8s.io/v1/namespaces/default/leases/l", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gadgets.example.com",
		"/apis/flowcontrol.apiserver.k8s.io/v1beta3/prioritylevelconfigurations/exempt", "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/catch-all",
	} {
		t.Run(path, func(t *testing.T) {
			inBothForms(t, s, "GET", path, "")
			a := s.want(200, "GET", path, "", partialOnly)
			apitest.Expect(t, string(a.body), string(s.want(200, "GET", path, "", strings.Replace(partialOnly, "vnd.kubernetes.protobuf", "json", 1)).body[:len(a.body)]))
			if list := path[:strings.LastIndex(path, "/")]; strings.Count(path, "/") > 4 && !strings.HasSuffix(list, "/d") && !strings.HasSuffix(list, "/p") {
				inBothForms(t, s, "GET", list, "")
				inBothForms(t, s, "GET", list+"?limit=1", "")
				inBothForms(t, s, "GET", list+"?labelSelector=none=such", "")
			}
		})
	}
	for _, path := range []string{"/api", "/apis", "/apis/apps", "/api/v1", "/apis/apps/v1", "/apis/example.com", "/apis/example.com/v1", "/api/v1/componentstatuses", "/api/v1/secrets"} {
		t.Run(path, func(t *testing.T) { inBothForms(t, s, "GET", path, "") })
	}
	for _, version := range []string{"v1", "v1beta1"} {
		list := strings.Replace(partialList, "v=v1", "v="+version, 1)
		sealed := s.want(200, "GET", core+"/configmaps", "", list)
		asJSON := s.want(200, "GET", core+"/configmaps", "", strings.Replace(list, "vnd.kubernetes.protobuf", "json", 1))
		apitest.Expect(t, sealed.get("items.#.metadata.name").Raw, asJSON.get("items.#.metadata.name").Raw)
		apitest.Expect(t, sealed.get("metadata").Raw, asJSON.get("metadata").Raw)
		apitest.Expect(t, sealed.get("apiVersion").String(), "meta.k8s.io/"+version)
	}
}

func TestWritesAreAnsweredInProtobuf(t *testing.T) {
	t.Parallel()
	s := protobufScene(t)
	const core, apps = "/api/v1/namespaces/default", "/apis/apps/v1/namespaces/default"
	const maps, dry = core + "/configmaps", "?dryRun=All"
	review := func(kind, spec string) string {
		return `{"apiVersion":"authorization.k8s.io/v1","kind":"` + kind + `","spec":` + spec + `}`
	}
	for _, c := range []struct{ method, path, body, header string }{
		{"POST", maps + dry, configMap("new", "k", "v"), ""},
		{"PUT", maps + "/c" + dry, configMap("c", "k", "v"), ""},
		{"PATCH", maps + "/c" + dry, `{"data":{"k":"v"}}`, jsonMerge},
		{"PATCH", maps + "/applied" + dry + "&fieldManager=m", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"applied"},"data":{"k":"v"}}`, serverApply},
		{"PATCH", apps + "/deployments/d/status" + dry, `{"status":{"replicas":1}}`, jsonMerge},
		{"PATCH", apps + "/deployments/d/scale" + dry, `{"spec":{"replicas":4}}`, jsonMerge},
		{"PATCH", "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers/h" + dry, `{"spec":{"maxReplicas":4}}`, jsonMerge},
		{"DELETE", maps + "/c" + dry, "", ""},
		{"DELETE", core + "/pods/p" + dry, "", ""},
		{"DELETE", maps + dry, "", ""},
		{"POST", core + "/pods/p/binding" + dry, `{"metadata":{"name":"p"},"target":{"kind":"Node","name":"n"}}`, ""},
		{"POST", core + "/pods/p/eviction" + dry, `{"metadata":{"name":"p"}}`, ""},
		{"POST", core + "/serviceaccounts/robot/token", `{"spec":{"audiences":["a"]}}`, ""},
		{"POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review("SelfSubjectAccessReview", `{"resourceAttributes":{"verb":"get","resource":"pods"}}`), ""},
		{"POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review("SubjectAccessReview", `{"user":"u","nonResourceAttributes":{"path":"/","verb":"get"}}`), ""},
		{"POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review("SelfSubjectRulesReview", `{"namespace":"default"}`), ""},
		{"POST", "/apis/authentication.k8s.io/v1/tokenreviews", `{"spec":{"token":"x"}}`, ""},
		{"POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", `{}`, ""},
		{"GET", maps + "/nope", "", ""}, {"GET", core + "/bogus", "", ""}, {"GET", maps + "?limit=x", "", ""}, {"POST", maps, configMap("c"), ""},
		{"POST", maps, configMap("B_ad"), ""}, {"POST", maps, "x", "Content-Type: text/plain"}, {"PUT", maps, "", ""}, {"GET", core + "/pods/nope/log", "", ""},
		{"GET", maps + "?watch=1&resourceVersion=x", "", ""},
	} {
		t.Run(c.method+" "+c.path, func(t *testing.T) { inBothForms(t, s, c.method, c.path, c.body, c.header) })
	}
}

// A custom resource has no protobuf encoding except for its metadata. Its errors have one.
func TestCustomResourcesInProtobuf(t *testing.T) {
	t.Parallel()
	s := protobufScene(t)
	const path = gadgets
	s.want(201, "POST", path, `{"apiVersion":"example.com/v1","kind":"Gadget","metadata":{"name":"g"},"spec":{}}`)
	for _, at := range []string{path, path + "/g"} {
		for accept, want := range map[string]string{likesProtobuf: "200 application/json", "Accept: application/*": "200 application/json", "Accept: */*": "200 application/json",
			onlyProtobuf: "406 application/vnd.kubernetes.protobuf"} {
			a := s.send("GET", at, "", accept)
			apitest.Expect(t, fmt.Sprint(a.code, " ", a.header.Get("Content-Type")), want)
		}
	}
	apitest.Expect(t, s.want(200, "GET", path+"/g", "", partialOnly).get("metadata.name"), "g")
	apitest.Expect(t, s.want(200, "GET", path, "", partialList).get("items.0.metadata.name"), "g")
	apitest.Expect(t, s.want(404, "GET", path+"/nope", "", likesProtobuf).header.Get("Content-Type"), scheme.ProtobufFormat)
	w := s.watch(path+"?watch=1", partialOnly)
	apitest.Expect(t, w.header.Get("Content-Type"), "application/vnd.kubernetes.protobuf;stream=watch")
	w.want("ADDED g")
	s.watch(path+"?watch=1", likesProtobuf).want("ADDED g")
}

// ---- Long lists ----

func TestLongListInProtobufKeepsItsPromise(t *testing.T) {
	t.Parallel()
	const objects, path = 2500, "/api/v1/namespaces/default/configmaps"
	s := startTest(t, filled(t, objects, 1000))
	want := s.want(200, "GET", path, "").get("items").Raw
	whole := s.want(200, "GET", path, "", onlyProtobuf)
	apitest.Expect(t, whole.header.Get("Content-Length") != "", true)
	if inOrder([]byte(whole.get("items").Raw)) != inOrder([]byte(want)) {
		t.Error("the items are not those of the JSON list")
	}
	page := s.want(200, "GET", path+"?limit=2000", "", onlyProtobuf)
	apitest.Expect(t, page.get("items.#"), 2000)
	apitest.Expect(t, page.get("metadata.remainingItemCount"), 500)
	apitest.Expect(t, s.want(200, "GET", path+"?continue="+page.token(), "", onlyProtobuf).get("items.#"), 500)
	apitest.Expect(t, s.want(200, "GET", path+"?labelSelector=half=1", "", onlyProtobuf).get("items.#"), objects/2)
	for _, version := range []string{"v1", "v1beta1"} {
		a := s.want(200, "GET", path+"?resourceVersion=0", "", strings.Replace(partialList, "v=v1", "v="+version, 1))
		apitest.Expect(t, a.get("items.#"), objects)
		apitest.Expect(t, a.rev(), whole.rev())
	}
	deleted := s.want(200, "DELETE", path, "", onlyProtobuf)
	apitest.Expect(t, deleted.get("items.#"), objects)
	apitest.Expect(t, s.want(200, "GET", path, "", onlyProtobuf).get("items.#"), 0)
}

// The object is stored directly, and its data is not a map. Like all objects that cannot be
// decoded, it gets a 500 alone and is omitted from lists. Both passes over a list must agree.
func TestWhatCannotBeReadIsNotInProtobuf(t *testing.T) {
	t.Parallel()
	const path = "/api/v1/namespaces/default/configmaps"
	s := startTest(t, filled(t, 1500, 1000))
	const doc = `{"metadata":{"name":"odd","namespace":"default","resourceVersion":""},"data":7}`
	s.halt()
	openTestStore(t, s.flag("data"), func(st *store.Store) store.Record {
		rec, err := st.Commit(context.Background(), store.Change{Op: store.OpCreate, Key: "//configmaps/default/odd", JSON: []byte(doc), RevAt: strings.Index(doc, `"},"data"`)})
		if err != nil {
			t.Fatal(err)
		}
		return rec
	})
	s.start()
	for range 2 { // the first list finds the object, the second already knows it
		apitest.Expect(t, s.want(200, "GET", path, "", onlyProtobuf).get("items.#"), 1500)
		apitest.Expect(t, s.want(200, "GET", path+"?limit=1400", "", onlyProtobuf).get("items.#"), 1400)
	}
	a := s.want(500, "GET", path+"/odd", "", onlyProtobuf)
	apitest.Expect(t, a.get("reason").String()+" "+a.header.Get("Content-Type"), "InternalError application/vnd.kubernetes.protobuf")
	s.watch(path+"?watch=1&fieldSelector=metadata.name=odd&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", onlyProtobuf).want("BOOKMARK end")
}

// ---- Watches ----

func TestWatchInProtobuf(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	w := s.follow("sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", onlyProtobuf)
	apitest.Expect(t, w.header.Get("Content-Type"), "application/vnd.kubernetes.protobuf;stream=watch")
	w.want(append(initial, "BOOKMARK end")...)
	odd := s.follow("resourceVersion=r(e)&labelSelector=odd=y", likesProtobuf)
	same, partial, asJSON := s.follow("resourceVersion=r(e)", onlyProtobuf), s.follow("resourceVersion=r(e)", partialOnly), s.follow("resourceVersion=r(e)")
	s.want(200, "PATCH", s.p1+"/a", `{"data":{"k":"new"}}`, jsonMerge)
	s.want(200, "PATCH", s.p1+"/a", `{"metadata":{"labels":{"odd":"n"}}}`, jsonMerge)
	s.want(200, "DELETE", s.p1+"/b", "")
	for range 2 {
		want := inOrder([]byte(asJSON.want("MODIFIED a").object.Raw))
		for _, each := range []*watcher{w, same} {
			apitest.Expect(t, inOrder([]byte(each.want("MODIFIED a").object.Raw)), want)
		}
		apitest.Expect(t, partial.want("MODIFIED a").object.Get("kind"), "PartialObjectMetadata")
	}
	apitest.Expect(t, odd.want("MODIFIED a").object.Get("data.k"), "new")
	gone := odd.want("DELETED a") // contains the last state that matched the selector, but the revision of the change
	apitest.Expect(t, gone.object.Get("metadata.labels.odd"), "y")
	for _, each := range []*watcher{w, same, partial, asJSON} {
		each.want("DELETED b")
	}
	s.follow("resourceVersion=99999999", onlyProtobuf).want("ERROR 504 Timeout")
	apitest.Expect(t, s.send("GET", s.p1+"?watch=1", "", onlyProtobuf+";as=Table;g=meta.k8s.io;v=v1").code, 406)
	s.watch("/apis/events.k8s.io/v1/events?watch=1&allowWatchBookmarks=true&timeoutSeconds=60", onlyProtobuf).want("BOOKMARK end")
}
