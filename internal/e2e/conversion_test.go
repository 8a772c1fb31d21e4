package e2e

// This file tests conversion webhooks. The stub converts between v1 with the fields size and color,
// and v2 with extent, shade and mode. In v1 the mode is an annotation. For each kind of wrong
// response, the stub uses a separate path and a separate resource. The expected responses come from
// a real kube-apiserver. Record them again with -oracle URL -token TOKEN -run
// TestConversionIsAsInKubeAPIServer.

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	"golang.org/x/tools/txtar"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
)

const conversionAnswers = "testdata/conversion/kube-apiserver-1.36.jsonl"

// ---- The stub

// convertWidget converts an object to version to.
func convertWidget(obj map[string]any, to string) map[string]any {
	spec, _ := obj["spec"].(map[string]any)
	meta, _ := obj["metadata"].(map[string]any)
	status, _ := obj["status"].(map[string]any)
	notes, _ := meta["annotations"].(map[string]any)
	move := func(m map[string]any, from, to string) {
		if value, ok := m[from]; ok {
			m[to] = value
			delete(m, from)
		}
	}
	if strings.HasSuffix(to, "/v2") {
		if size, ok := spec["size"]; ok {
			spec["extent"] = map[string]any{"value": size}
			delete(spec, "size")
		}
		move(spec, "color", "shade")
		move(status, "n", "count")
		if mode, ok := notes["mode"]; ok && spec != nil {
			spec["mode"] = mode
			delete(notes, "mode")
		}
		if notes != nil && len(notes) == 0 {
			delete(meta, "annotations")
		}
	} else {
		if extent, ok := spec["extent"].(map[string]any); ok {
			spec["size"] = extent["value"]
			delete(spec, "extent")
		}
		move(spec, "shade", "color")
		move(status, "count", "n")
		if mode, ok := spec["mode"]; ok {
			if notes == nil {
				notes = map[string]any{}
			}
			notes["mode"], meta["annotations"] = mode, notes
			delete(spec, "mode")
		}
	}
	obj["apiVersion"] = to
	return obj
}

// A convertAnswer is a ConversionReview with a response.
type convertAnswer struct {
	APIVersion string         `json:"apiVersion,omitempty"`
	Kind       string         `json:"kind,omitempty"`
	Response   map[string]any `json:"response,omitempty"`
}

// misbehaviours contains functions that return a wrong or unusual response. The last part of the
// path selects the function. They receive the converted objects.
var misbehaviours = map[string]func(a *convertAnswer, objects []any) []any{
	"good":    func(_ *convertAnswer, objects []any) []any { return objects },
	"v1beta1": func(_ *convertAnswer, objects []any) []any { return objects },
	"drop":    func(_ *convertAnswer, objects []any) []any { return objects[1:] },
	"double":  func(_ *convertAnswer, objects []any) []any { return append(objects, objects[0]) },
	"null":    func(_ *convertAnswer, objects []any) []any { return []any{nil} },
	"string":  func(_ *convertAnswer, objects []any) []any { return []any{"x"} },
	"nokind": func(_ *convertAnswer, objects []any) []any {
		delete(objects[0].(map[string]any), "kind")
		return objects
	},
	"rename":   withMeta("name", "other"),
	"move":     withMeta("namespace", "other"),
	"uid":      withMeta("uid", "other"),
	"nouid":    withMeta("uid", nil),
	"labels":   withMeta("labels", map[string]any{"by": "hook"}),
	"nolabel":  withMeta("labels", nil),
	"badlabel": withMeta("labels", map[string]any{"a b": "c d"}),
	"labelnum": withMeta("labels", map[string]any{"a": 1}),
	"labelstr": withMeta("labels", "x"),
	"badnote":  withMeta("annotations", map[string]any{"a b": "x"}),
	"notenum":  withMeta("annotations", map[string]any{"a": true}),
	"meta": func(_ *convertAnswer, objects []any) []any {
		m := objects[0].(map[string]any)["metadata"].(map[string]any)
		m["finalizers"], m["generation"], m["managedFields"], m["creationTimestamp"], m["zap"] = []any{"a.b/c"}, 77, nil, "2001-01-01T00:00:00Z", 1
		return objects
	},
	"metanum": func(_ *convertAnswer, objects []any) []any {
		objects[0].(map[string]any)["metadata"] = 1
		return objects
	},
	"nometa": func(_ *convertAnswer, objects []any) []any {
		delete(objects[0].(map[string]any), "metadata")
		return objects
	},
	"kind": func(_ *convertAnswer, objects []any) []any {
		objects[0].(map[string]any)["kind"] = "Other"
		return objects
	},
	"group": func(_ *convertAnswer, objects []any) []any {
		objects[0].(map[string]any)["apiVersion"] = "other/v1"
		return objects
	},
	"version": func(_ *convertAnswer, objects []any) []any {
		objects[0].(map[string]any)["apiVersion"] = strings.TrimRight(objects[0].(map[string]any)["apiVersion"].(string), "12") + "3"
		return objects
	},
	"zap": func(_ *convertAnswer, objects []any) []any { objects[0].(map[string]any)["zap"] = 1; return objects },
	"type": func(_ *convertAnswer, objects []any) []any {
		objects[0].(map[string]any)["spec"] = "text"
		return objects
	},
	"failure": func(a *convertAnswer, _ []any) []any {
		a.Response["result"] = map[string]any{"status": "Failure", "message": "I would rather not"}
		return nil
	},
	"mute": func(a *convertAnswer, _ []any) []any {
		a.Response["result"] = map[string]any{"status": "Failure"}
		return nil
	},
	"noresult": func(a *convertAnswer, objects []any) []any { delete(a.Response, "result"); return objects },
	"wronguid": func(a *convertAnswer, objects []any) []any { a.Response["uid"] = "x"; return objects },
	"noanswer": func(a *convertAnswer, objects []any) []any { a.Response = nil; return objects },
	"gvk": func(a *convertAnswer, objects []any) []any {
		a.APIVersion = "apiextensions.k8s.io/v1beta1"
		return objects
	},
	"typeless": func(a *convertAnswer, objects []any) []any { a.APIVersion, a.Kind = "", ""; return objects },
	"other":    func(a *convertAnswer, objects []any) []any { a.APIVersion, a.Kind = "v1", "Status"; return objects },
	"alien":    func(a *convertAnswer, objects []any) []any { a.APIVersion, a.Kind = "a.b/v1", "C"; return objects },
}

func withMeta(name string, value any) func(*convertAnswer, []any) []any {
	return func(_ *convertAnswer, objects []any) []any {
		meta := objects[0].(map[string]any)["metadata"].(map[string]any)
		if meta[name] = value; value == nil {
			delete(meta, name)
		}
		return objects
	}
}

// rawAnswers contains the responses without a ConversionReview.
var rawAnswers = map[string]func(w http.ResponseWriter){
	"html": func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<html>hello</html>")
	},
	"text500": func(w http.ResponseWriter) { http.Error(w, "out of order", 500) },
	"status": func(w http.ResponseWriter) {
		w.WriteHeader(403)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"you may not","reason":"Forbidden","code":403}`)
	},
	"missing":  func(w http.ResponseWriter) { http.Error(w, "404 page not found", 404) },
	"redirect": func(w http.ResponseWriter) { w.Header().Set("Location", "/good"); w.WriteHeader(307) },
	"nothing":  func(w http.ResponseWriter) {},
	"garbage": func(w http.ResponseWriter) {
		fmt.Fprint(w, `{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1","response":[]}`)
	},
	"cut": func(w http.ResponseWriter) { fmt.Fprint(w, `{"kind":"ConversionReview",`) },
}

// startConverter starts the stub.
func startConverter(t testing.TB) *hookStub {
	t.Helper()
	return startHook(t, func(w http.ResponseWriter, r *http.Request, q gjson.Result) {
		way := strings.TrimPrefix(r.URL.Path, "/")
		if raw := rawAnswers[way]; raw != nil {
			raw(w)
			return
		}
		writeConversion(w, q, misbehaviours[way])
	})
}

func writeConversion(w http.ResponseWriter, q gjson.Result, way func(*convertAnswer, []any) []any) {
	var objects []any
	_ = json.Unmarshal([]byte(q.Get("request.objects").Raw), &objects)
	for _, obj := range objects {
		convertWidget(obj.(map[string]any), q.Get("request.desiredAPIVersion").String())
	}
	a := convertAnswer{APIVersion: q.Get("apiVersion").String(), Kind: "ConversionReview",
		Response: map[string]any{"uid": q.Get("request.uid").String(), "result": map[string]any{"status": "Success"}}}
	objects = way(&a, objects)
	if a.Response != nil {
		a.Response["convertedObjects"] = objects
	}
	_ = json.NewEncoder(w).Encode(&a)
}

// widgetDefinition returns a definition whose objects are stored in version storage and converted
// by the stub.
func widgetDefinition(h *hookStub, way, storage string) string {
	reviews := `["v1","v1beta1"]`
	if way == "v1beta1" {
		reviews = `["v7","v1beta1","v1"]`
	}
	version := func(name, spec, status string) string {
		return fmt.Sprintf(`{"name":%q,"served":true,"storage":%v,"subresources":{"status":{},"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas"}},
			"selectableFields":[{"jsonPath":".spec.%s"}],"additionalPrinterColumns":[{"name":"Replicas","type":"integer","jsonPath":".spec.replicas"}],
			"schema":{"openAPIV3Schema":{"type":"object","properties":{
			"spec":{"type":"object","properties":{"replicas":{"type":"integer"},%s}},
			"status":{"type":"object","properties":{"replicas":{"type":"integer"},%s}}}}}}`, name, name == storage,
			map[string]string{"v1": "color", "v2": "shade"}[name], spec, status)
	}
	return fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.%s.example.com"},
		"spec":{"group":"%s.example.com","scope":"Namespaced","names":{"plural":"widgets","kind":"Widget"},
		"conversion":{"strategy":"Webhook","webhook":{"conversionReviewVersions":%s,"clientConfig":{"url":"%s/%s","caBundle":%q}}},
		"versions":[%s,%s]}}`, way, way, reviews, h.URL, way, h.bundle(),
		version("v1", `"size":{"type":"integer","maximum":100},"color":{"type":"string","default":"red"}`, `"n":{"type":"integer"}`),
		version("v2", `"extent":{"type":"object","properties":{"value":{"type":"integer"}}},"shade":{"type":"string"},"mode":{"type":"string","default":"auto"}`,
			`"count":{"type":"integer"}`))
}

// widgetBody returns the JSON of a widget. parts are the members after metadata.
func widgetBody(group, version, name, parts string) string {
	return fmt.Sprintf(`{"apiVersion":"%s.example.com/%s","kind":"Widget","metadata":{"name":%q},%s}`, group, version, name, parts)
}

// ---- Responses of kube-apiserver

// A conversionStep is a request and the recorded response without variable values.
type conversionStep struct {
	Way, Method, Path string
	Headers           []string `json:",omitempty"`
	Code              int
	Body              json.RawMessage
}

var (
	conversionUID   = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	conversionTime  = regexp.MustCompile(`20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z`)
	conversionHost  = regexp.MustCompile(`https://127\.0\.0\.1:[0-9]+/`)
	conversionRev   = regexp.MustCompile(`"resourceVersion":"[0-9]+"`)
	conversionToken = regexp.MustCompile(`"continue":"[^"]+"`)
)

// timeless replaces the variable values in a response.
func timeless(body []byte) json.RawMessage {
	var compact bytes.Buffer
	if json.Compact(&compact, body) != nil {
		compact.Reset()
		quoted, _ := json.Marshal(string(body))
		compact.Write(quoted)
	}
	body = conversionUID.ReplaceAll(compact.Bytes(), []byte("UID"))
	body = conversionTime.ReplaceAll(body, []byte("TIME"))
	body = conversionHost.ReplaceAll(body, []byte("https://HOOK/"))
	body = conversionRev.ReplaceAll(body, []byte(`"resourceVersion":"REV"`))
	body = conversionToken.ReplaceAll(body, []byte(`"continue":"TOKEN"`))
	var value any
	if json.Unmarshal(body, &value) == nil { // sort the members and the managedFields
		sortEntries(value)
		body, _ = json.Marshal(value)
	}
	return body
}

func sortEntries(value any) {
	switch value := value.(type) {
	case []any:
		for _, element := range value {
			sortEntries(element)
		}
	case map[string]any:
		for name, member := range value {
			if entries, ok := member.([]any); ok && name == "managedFields" {
				for _, entry := range entries {
					delete(entry.(map[string]any), "time") // not set by kube-apiserver in the entry for a scale
				}
				slices.SortFunc(entries, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
			}
			sortEntries(member)
		}
	}
}

// A conversionTalk sends requests to apilet or to a real kube-apiserver, and records the responses.
type conversionTalk struct {
	s     *testServer
	hook  *hookStub
	way   string
	steps []conversionStep
}

func (c *conversionTalk) ask(method, path, body string, headers ...string) answer {
	path = strings.ReplaceAll(path, "WIDGETS1", "/apis/"+c.way+".example.com/v1/namespaces/default/widgets")
	path = strings.ReplaceAll(path, "WIDGETS2", "/apis/"+c.way+".example.com/v2/namespaces/default/widgets")
	sent := headers
	if !slices.ContainsFunc(headers, func(h string) bool { return strings.HasPrefix(h, "User-Agent") }) {
		sent = append(slices.Clone(headers), "User-Agent: tester/1")
	}
	a := c.s.send(method, path, body, sent...)
	c.steps = append(c.steps, conversionStep{c.way, method, path, headers, a.code, timeless(a.body)})
	return a
}

// define creates the custom resource, and waits until kube-apiserver serves it.
func (c *conversionTalk) define(storage string) {
	c.s.want(201, "POST", definitionsPath, widgetDefinition(c.hook, c.way, storage))
	for range 200 {
		if a := c.s.send("GET", "/apis/"+c.way+".example.com/"+storage+"/namespaces/default/widgets", ""); a.code == 200 || *kubetest.OracleURL == "" {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// wrong tests the effects of a wrong response from the webhook on reads and on writes.
func (c *conversionTalk) wrong() {
	c.define("v2")
	c.ask("POST", "WIDGETS2", strings.Replace(widgetBody(c.way, "v2", "a", `"spec":{"extent":{"value":1},"shade":"blue"}`), `"name":"a"`, `"name":"a","labels":{"l":"m"}`, 1))
	c.ask("GET", "WIDGETS1/a", "")
	c.ask("GET", "WIDGETS1", "")
	c.ask("POST", "WIDGETS1", widgetBody(c.way, "v1", "b", `"spec":{"size":2}`))
	c.ask("PATCH", "WIDGETS1/a", `{"spec":{"size":3}}`, asMergePatch)
	c.ask("GET", "WIDGETS2", "")
	c.ask("DELETE", "WIDGETS1/a", "")
	c.ask("GET", "WIDGETS2/a", "")
}

// right sends all kinds of requests for a webhook that works.
func (c *conversionTalk) right(storage string) {
	c.define(storage)
	g := c.way
	c.ask("POST", "WIDGETS1", widgetBody(g, "v1", "a", `"spec":{"size":1,"zap":2},"status":{"n":1}`))
	c.ask("GET", "WIDGETS1/a", "")
	c.ask("GET", "WIDGETS2/a", "")
	c.ask("POST", "WIDGETS2", widgetBody(g, "v2", "b", `"spec":{"extent":{"value":7},"shade":"blue","size":1}`))
	c.ask("GET", "WIDGETS1/b", "")
	c.ask("GET", "WIDGETS2/b", "")
	c.ask("POST", "WIDGETS2", widgetBody(g, "v2", "c", `"spec":{"mode":"manual"}`))
	c.ask("GET", "WIDGETS1/c", "")
	c.ask("POST", "WIDGETS2", widgetBody(g, "v2", "big", `"spec":{"extent":{"value":1000}}`))
	c.ask("GET", "WIDGETS1/big", "")
	c.ask("POST", "WIDGETS1", widgetBody(g, "v1", "big2", `"spec":{"size":1000}`))
	c.ask("POST", "WIDGETS1?dryRun=All", widgetBody(g, "v1", "dry", `"spec":{"size":4}`))
	c.ask("GET", "WIDGETS1/dry", "")
	c.ask("GET", "WIDGETS1", "")
	c.ask("GET", "WIDGETS2", "")
	c.ask("GET", "WIDGETS1?limit=2", "")
	c.ask("GET", "WIDGETS2?fieldSelector=spec.shade%3Dblue", "")
	c.ask("GET", "WIDGETS1?fieldSelector=spec.color%3Dblue", "")
	c.ask("GET", "WIDGETS1?fieldSelector=spec.shade%3Dblue", "")
	c.ask("PATCH", "WIDGETS1/a", `{"spec":{"size":2}}`, asMergePatch, "User-Agent: one/1")
	c.ask("PATCH", "WIDGETS2/a", `{"spec":{"extent":{"value":3}}}`, asMergePatch, "User-Agent: two/1")
	c.ask("PATCH", "WIDGETS2/a", `[{"op":"add","path":"/spec/shade","value":"green"}]`, asJSONPatch, "User-Agent: two/1")
	c.ask("PATCH", "WIDGETS1/a", `[{"op":"test","path":"/spec/color","value":"green"},{"op":"remove","path":"/spec/color"}]`, asJSONPatch)
	c.ask("PATCH", "WIDGETS1/a", `{"metadata":{"labels":{"x":"y"}}}`, asMergePatch)
	c.ask("GET", "WIDGETS2?labelSelector=x%3Dy", "")
	put := c.ask("GET", "WIDGETS1/b", "")
	c.ask("PUT", "WIDGETS1/b", strings.Replace(string(put.body), `"blue"`, `"black"`, 1))
	c.ask("PUT", "WIDGETS1/b", strings.Replace(string(put.body), `"blue"`, `"white"`, 1))
	c.ask("GET", "WIDGETS2/b", "")
	c.ask("PATCH", "WIDGETS1/a/status", `{"status":{"n":5},"spec":{"size":50}}`, asMergePatch)
	c.ask("PATCH", "WIDGETS2/a/status", `{"status":{"count":6}}`, asMergePatch)
	c.ask("GET", "WIDGETS1/a/status", "")
	c.ask("PATCH", "WIDGETS1/a", `{"spec":{"replicas":2}}`, asMergePatch)
	c.ask("GET", "WIDGETS1/a/scale", "")
	c.ask("GET", "WIDGETS2/a/scale", "")
	c.ask("PATCH", "WIDGETS1/a/scale", `{"spec":{"replicas":4}}`, asMergePatch)
	c.ask("GET", "WIDGETS2/a", "")
	c.ask("PATCH", "WIDGETS1/d?fieldManager=m1", widgetBody(g, "v1", "d", `"spec":{"size":1}`), asApply)
	c.ask("PATCH", "WIDGETS2/d?fieldManager=m2", widgetBody(g, "v2", "d", `"spec":{"extent":{"value":2}}`), asApply)
	c.ask("PATCH", "WIDGETS2/d?fieldManager=m2", widgetBody(g, "v2", "d", `"spec":{"shade":"blue"}`), asApply)
	c.ask("PATCH", "WIDGETS2/d?fieldManager=m2&force=true", widgetBody(g, "v2", "d", `"spec":{"extent":{"value":2}}`), asApply)
	c.ask("PATCH", "WIDGETS1/d?fieldManager=m1", widgetBody(g, "v1", "d", `"spec":{"color":"black"}`), asApply)
	c.ask("PATCH", "WIDGETS1/d?fieldManager=m1", widgetBody(g, "v1", "d", `"spec":{}`), asApply)
	c.ask("GET", "WIDGETS1/d", "")
	c.ask("GET", "WIDGETS2/d", "")
	c.ask("GET", "WIDGETS1/b", "", "Accept: application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
	c.ask("GET", "WIDGETS1", "", "Accept: application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
	c.ask("GET", "WIDGETS1?includeObject=Object", "", "Accept: application/json;as=Table;g=meta.k8s.io;v=v1")
	c.ask("GET", "WIDGETS2/b", "", "Accept: application/json;as=Table;g=meta.k8s.io;v=v1")
	c.ask("PATCH", "WIDGETS1/c", `{"metadata":{"finalizers":["example.com/wait"]}}`, asMergePatch)
	c.ask("DELETE", "WIDGETS1/c", "")
	c.ask("PATCH", "WIDGETS2/c", `{"metadata":{"finalizers":null}}`, asMergePatch)
	c.ask("DELETE", "WIDGETS1/b?dryRun=All", "")
	c.ask("DELETE", "WIDGETS1/b", "")
	c.ask("DELETE", "WIDGETS1?labelSelector=x%3Dy", "")
	c.ask("DELETE", "WIDGETS2", "")
	c.ask("GET", "WIDGETS1", "")
}

// converse runs the conversation for the given kind of webhook.
func converse(t *testing.T, s *testServer, h *hookStub, way string) []conversionStep {
	c := &conversionTalk{s: s, hook: h, way: way}
	switch way {
	case "good":
		c.right("v2")
	case "v1beta1":
		c.right("v1")
	default:
		c.wrong()
	}
	return c.steps
}

func allWays() (ways []string) {
	for way := range misbehaviours {
		ways = append(ways, way)
	}
	for way := range rawAnswers {
		ways = append(ways, way)
	}
	slices.Sort(ways)
	return ways
}

// differsOnPurpose are the kinds for which apilet responds differently. It does not follow a
// redirect. And if a webhook returns unknown fields, kube-apiserver drops the object's
// managedFields.
var differsOnPurpose = map[string]bool{"redirect": true, "zap": true}

func TestConversionIsAsInKubeAPIServer(t *testing.T) {
	if *kubetest.OracleURL != "" {
		recordConversions(t)
		return
	}
	t.Parallel()
	file, err := os.Open(conversionAnswers)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	recorded := map[string][]conversionStep{}
	lines := bufio.NewScanner(file)
	for lines.Buffer(nil, 1<<20); lines.Scan(); {
		var step conversionStep
		if err := json.Unmarshal(lines.Bytes(), &step); err != nil {
			t.Fatal(err)
		}
		recorded[step.Way] = append(recorded[step.Way], step)
	}
	s, h := startTest(t), startConverter(t)
	asked, same := 0, 0
	for _, way := range allWays() {
		got := converse(t, s, h, way)
		if len(got) != len(recorded[way]) {
			t.Fatalf("%s: %d answers, %d are recorded", way, len(got), len(recorded[way]))
		}
		for i, step := range got {
			want := recorded[way][i]
			asked++
			if differsOnPurpose[way] {
				continue
			}
			if step.Code == want.Code && bytes.Equal(step.Body, timeless(want.Body)) {
				same++
				continue
			}
			t.Errorf("%s %s: %d %s\nwant %d %s", step.Method, step.Path, step.Code, step.Body, want.Code, timeless(want.Body))
		}
	}
	t.Logf("%d of %d answers are kube-apiserver's", same, asked)
}

func recordConversions(t *testing.T) {
	s, h := interlocutor(t, "conversion", &txtar.Archive{}), startConverter(t)
	if err := os.MkdirAll(filepath.Dir(conversionAnswers), 0o755); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, way := range allWays() {
		for _, step := range converse(t, s, h, way) {
			line, err := json.Marshal(step)
			if err != nil {
				t.Fatal(err)
			}
			out.Write(append(line, '\n'))
		}
	}
	if err := os.WriteFile(conversionAnswers, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// ---- Tests of apilet alone

// asks returns the number of objects in each review since the previous call.
func (h *hookStub) asks() (sizes []int) {
	for _, a := range h.take() {
		sizes = append(sizes, int(a.review.Get("request.objects.#").Int()))
	}
	return sizes
}

const (
	goodV1 = "/apis/good.example.com/v1/namespaces/default/widgets"
	goodV2 = "/apis/good.example.com/v2/namespaces/default/widgets"
)

func TestListIsConvertedByChunks(t *testing.T) {
	t.Parallel()
	s, h := startTest(t), startConverter(t)
	s.want(201, "POST", definitionsPath, widgetDefinition(h, "good", "v2"))
	for i := range 30 {
		s.want(201, "POST", goodV2, widgetBody("good", "v2", fmt.Sprintf("w%02d", i), fmt.Sprintf(`"spec":{"extent":{"value":%d}}`, i)))
	}
	if got := h.asks(); got != nil {
		t.Errorf("the storage version was converted: %v", got)
	}
	for _, c := range []struct {
		path, accept string
		asks         []int
		names        int
	}{
		{goodV1, "", []int{30}, 30},
		{goodV1 + "?limit=10", "", []int{10}, 10},
		{goodV1 + "?labelSelector=x%3Dy", "", []int{30}, 0},
		{goodV1 + "?fieldSelector=metadata.name%3Dw07", "", []int{1}, 1},
		{goodV1, "application/json;as=Table;g=meta.k8s.io;v=v1", []int{30}, 30},
		{goodV1, "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", []int{30}, -1},
		{goodV2, "", nil, 30},
	} {
		a := s.want(200, "GET", c.path, "", "Accept: "+c.accept)
		if got := h.asks(); !slices.Equal(got, c.asks) {
			t.Errorf("%s %s: reviews of %v objects, want %v", c.path, c.accept, got, c.asks)
		}
		if c.names >= 0 && len(strings.Fields(a.names())) != c.names {
			t.Errorf("%s %s: %s", c.path, c.accept, a.names())
		}
	}
	if got := s.want(200, "GET", goodV1, "").get("items.7.spec.size").Int(); got != 7 {
		t.Errorf("size %d", got)
	}
}

func TestWatchersShareConversions(t *testing.T) {
	t.Parallel()
	s, h := startTest(t), startConverter(t)
	s.want(201, "POST", definitionsPath, widgetDefinition(h, "good", "v2"))
	rev := s.want(201, "POST", goodV2, widgetBody("good", "v2", "a", `"spec":{"extent":{"value":1}}`)).rev()
	var watchers []*watcher
	for range 20 {
		watchers = append(watchers, s.watch(fmt.Sprintf("%s?watch=1&resourceVersion=%d", goodV1, rev)))
	}
	h.take()
	s.want(200, "PATCH", goodV2+"/a", `{"spec":{"extent":{"value":2}}}`, asMergePatch)
	for _, w := range watchers {
		if f := w.next(); f.kind != "MODIFIED" || f.object.Get("spec.size").Int() != 2 || f.object.Get("apiVersion").String() != "good.example.com/v1" {
			t.Fatalf("%s %s", f.kind, f.object)
		}
	}
	if got := h.asks(); !slices.Equal(got, []int{1}) {
		t.Errorf("reviews of %v objects for one event", got)
	}
	blue := s.watch(fmt.Sprintf("%s?watch=1&resourceVersion=%d&fieldSelector=spec.color%%3Dblue", goodV1, rev))
	s.want(200, "PATCH", goodV2+"/a", `{"spec":{"shade":"blue"}}`, asMergePatch)
	s.want(200, "PATCH", goodV2+"/a", `{"spec":{"shade":"red"}}`, asMergePatch)
	blue.want("ADDED a", "DELETED a")
}

// TestWatchersShareConversionsOverWritesOfTheDefinition checks that changes of a definition's
// labels and status do not cause new conversions, because they do not affect the conversion.
func TestWatchersShareConversionsOverWritesOfTheDefinition(t *testing.T) {
	t.Parallel()
	s, h := startTest(t), startConverter(t)
	s.want(201, "POST", definitionsPath, widgetDefinition(h, "good", "v2"))
	rev := s.want(201, "POST", goodV2, widgetBody("good", "v2", "a", `"spec":{"extent":{"value":1}}`)).rev()
	var watchers []*watcher
	for i := range 20 {
		path, change := "", fmt.Sprintf(`{"metadata":{"labels":{"n":"%d"}}}`, i)
		if i%2 == 1 {
			path, change = "/status", fmt.Sprintf(`{"status":{"storedVersions":["v2"],"observedGeneration":%d}}`, i)
		}
		s.want(200, "PATCH", definitionsPath+"/widgets.good.example.com"+path, change, asMergePatch)
		watchers = append(watchers, s.watch(fmt.Sprintf("%s?watch=1&resourceVersion=%d", goodV1, rev)))
	}
	h.take()
	s.want(200, "PATCH", goodV2+"/a", `{"spec":{"extent":{"value":2}}}`, asMergePatch)
	for _, w := range watchers {
		if f := w.next(); f.kind != "MODIFIED" || f.object.Get("spec.size").Int() != 2 {
			t.Fatalf("%s %s", f.kind, f.object)
		}
	}
	if got := h.asks(); !slices.Equal(got, []int{1}) {
		t.Errorf("reviews of %v objects for one event", got)
	}
	s.want(200, "PATCH", definitionsPath+"/widgets.good.example.com", `{"metadata":{"labels":{"n":"last"}}}`, asMergePatch)
	again := s.watch(fmt.Sprintf("%s?watch=1&resourceVersion=%d", goodV1, rev))
	if f := again.next(); f.kind != "MODIFIED" || f.object.Get("spec.size").Int() != 2 {
		t.Fatalf("%s %s", f.kind, f.object)
	}
	if got := h.asks(); got != nil {
		t.Errorf("reviews of %v objects for an event that is known", got)
	}
}

// TestStorageVersionMoves checks that an object is stored in the new version only when it is
// written again.
func TestStorageVersionMoves(t *testing.T) {
	t.Parallel()
	s, h := startTest(t, onSomeFile(t)), startConverter(t)
	definition := widgetDefinition(h, "good", "v1")
	none := strings.Replace(definition, definition[strings.Index(definition, `"conversion"`):strings.Index(definition, `"versions"`)], "", 1)
	a := s.want(201, "POST", definitionsPath, none)
	s.want(201, "POST", goodV1, widgetBody("good", "v1", "old", `"spec":{"size":1}`))
	w := s.watch(goodV1 + "?watch=1&resourceVersion=" + a.get("metadata.resourceVersion").String())
	w.want("ADDED old")
	moved := strings.Replace(widgetDefinition(h, "good", "v2"), `"metadata":{`, `"metadata":{"resourceVersion":"`+
		s.want(200, "GET", definitionsPath+"/widgets.good.example.com", "").get("metadata.resourceVersion").String()+`",`, 1)
	a = s.want(200, "PUT", definitionsPath+"/widgets.good.example.com", moved)
	if got := a.get("status.storedVersions").String(); got != `["v1","v2"]` {
		t.Errorf("storedVersions %s", got)
	}
	if f := w.next(); f.kind != "" {
		t.Errorf("%s instead of the end of the watch", f.kind)
	}
	s.want(201, "POST", goodV1, widgetBody("good", "v1", "young", `"spec":{"size":2}`))
	check := func(when string) {
		t.Helper()
		for name, size := range map[string]int64{"old": 1, "young": 2} {
			one, two := s.want(200, "GET", goodV1+"/"+name, ""), s.want(200, "GET", goodV2+"/"+name, "")
			if one.get("spec.size").Int() != size || two.get("spec.extent.value").Int() != size || two.get("spec.size").Exists() {
				t.Errorf("%s: %s\n%s", when, one.body, two.body)
			}
			if bytes.Count(one.body, []byte(`"apiVersion":"good.example.com/v1","metadata"`)) > 1 {
				t.Errorf("%s: %s", when, one.body)
			}
		}
	}
	check("after the move")
	h.take()
	if s.want(200, "GET", goodV1+"/old", ""); h.asks() != nil {
		t.Error("an object of the version that it is stored in was converted")
	}
	s.want(200, "PATCH", definitionsPath+"/widgets.good.example.com/status", `{"status":{"storedVersions":["v2"]}}`, asMergePatch)
	check("after a status that is not true")
	s.restart()
	check("after a restart")
	s.want(200, "PATCH", goodV2+"/old", `{"metadata":{"labels":{"a":"b"}}}`, asMergePatch)
	h.take()
	if got := s.want(200, "GET", goodV2+"/old", ""); h.asks() != nil || got.get("spec.extent.value").Int() != 1 {
		t.Errorf("not migrated by a write: %s", got.body)
	}
}

// TestServerNeedsNoConversion checks that the server's background work continues without the
// webhook.
func TestServerNeedsNoConversion(t *testing.T) {
	t.Parallel()
	s, h := startTest(t), startConverter(t)
	s.want(201, "POST", definitionsPath, strings.Replace(widgetDefinition(h, "good", "v2"), `"name":"v2","served":true`, `"name":"v2","served":false`, 1))
	s.namespace("going")
	owner := s.want(201, "POST", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"owner"}}`).get("metadata.uid").String()
	for _, namespace := range []string{"going", "default"} {
		s.want(201, "POST", strings.Replace(goodV1, "default", namespace, 1), strings.Replace(widgetBody("good", "v1", "a", `"spec":{"size":1}`), `"name"`,
			`"finalizers":["foregroundDeletion"],"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":"`+owner+`"}],"name"`, 1))
	}
	h.CloseClientConnections()
	h.Close()
	a := s.want(500, "GET", goodV1+"/a", "")
	if message := a.get("message").String(); !strings.Contains(message, "conversion webhook for good.example.com/v2, Kind=Widget failed: Post") {
		t.Error(message)
	}
	if a := s.want(500, "GET", goodV1+"?limit=1", ""); a.get("message").String() == "" {
		t.Errorf("%s", a.body)
	}
	s.want(500, "POST", goodV1, widgetBody("good", "v1", "b", `"spec":{"size":1}`))
	s.want(500, "DELETE", goodV1, "")
	w := s.watch(goodV1 + "?watch=1")
	if f := w.next(); f.kind != "ERROR" || f.object.Get("code").Int() != 500 {
		t.Errorf("%s %s", f.kind, f.object)
	}
	s.want(200, "DELETE", "/api/v1/namespaces/going", "")
	s.want(200, "DELETE", "/api/v1/namespaces/default/configmaps/owner", "")
	apitest.WaitFor(t, "the objects to go", func() bool {
		return metricValue(s, `apiserver_resource_objects{group="good.example.com",resource="widgets"}`) <= 0
	})
}

// TestConversionIsBounded checks the limits on the size of a response and on the time.
func TestConversionIsBounded(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	h := startHook(t, func(w http.ResponseWriter, r *http.Request, q gjson.Result) {
		switch r.URL.Path {
		case "/huge":
			megabyte := bytes.Repeat([]byte(" "), 1<<20)
			for range 3 << 10 {
				if _, err := w.Write(megabyte); err != nil {
					return
				}
			}
		case "/slow":
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
	})
	s := startTest(t)
	for way, query := range map[string]string{"huge": "", "slow": "?timeout=2s"} {
		s.want(201, "POST", definitionsPath, widgetDefinition(h, way, "v2"))
		v1, v2 := "/apis/"+way+".example.com/v1/namespaces/default/widgets", "/apis/"+way+".example.com/v2/namespaces/default/widgets"
		s.want(201, "POST", v2, widgetBody(way, "v2", "a", `"spec":{}`))
		before := s.want(200, "GET", v2, "").get("items").Raw
		for _, a := range []answer{s.send("GET", v1+"/a"+query, ""), s.send("GET", v1+query, ""), s.send("POST", v1+query, widgetBody(way, "v1", "b", `"spec":{}`)),
			s.send("PATCH", v1+"/a"+query, `{"spec":{"size":1}}`, asMergePatch)} {
			code, text := 500, "the response is longer than 16777216 bytes"
			if way == "slow" {
				code, text = 504, "" // the request's own timeout
			}
			if a.code != code || !strings.Contains(a.get("message").String(), text) {
				t.Errorf("%s: %d %s", way, a.code, a.body)
			}
		}
		if after := s.want(200, "GET", v2, "").get("items").Raw; after != before {
			t.Errorf("%s: something was written: %s", way, after)
		}
	}
	close(release)
}

// TestConversionByService tests a webhook that is configured as a Service. Its certificate must
// have the Service's name.
func TestConversionByService(t *testing.T) {
	t.Parallel()
	authority, caFile := apitest.NewCA(t)
	certFile, keyFile := authority.IssuePair(t, &x509.Certificate{SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "converter"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"converter.default.svc"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan string, 16)
	converter := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked <- r.Host + r.URL.Path
		writeConversion(w, gjson.ParseBytes(body), misbehaviours["good"])
	}))
	converter.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	converter.StartTLS()
	t.Cleanup(converter.Close)
	_, port, _ := net.SplitHostPort(converter.Listener.Addr().String())
	bundle, err := os.ReadFile(caFile)
	if err != nil {
		t.Fatal(err)
	}
	s, other := startTest(t), startConverter(t)
	definition := strings.NewReplacer(`"url":"`+other.URL+`/good"`, `"service":{"namespace":"default","name":"converter","path":"/convert","port":`+port+`}`,
		other.bundle(), base64.StdEncoding.EncodeToString(bundle)).Replace(widgetDefinition(other, "good", "v2"))
	s.want(201, "POST", definitionsPath, definition)
	a := s.want(500, "POST", goodV1, widgetBody("good", "v1", "a", `"spec":{"size":3}`))
	if got := a.get("message").String(); !strings.Contains(got, `service "converter" not found`) {
		t.Error(got)
	}
	s.want(201, "POST", "/api/v1/namespaces/default/services", `{"metadata":{"name":"converter"},"spec":{"type":"ExternalName","externalName":"localhost"}}`)
	s.want(201, "POST", goodV1, widgetBody("good", "v1", "a", `"spec":{"size":3}`))
	apitest.Expect(t, s.want(200, "GET", strings.Replace(goodV1, "/v1/", "/v2/", 1)+"/a", "").get("spec.extent.value"), "3")
	if got, want := <-asked, "converter.default.svc:"+port+"/convert"; got != want {
		t.Errorf("asked at %s, want %s", got, want)
	}
}

// TestScaleKeepsOwnersOfOtherVersions applies an object in one version and updates the scale in
// another version. The managedFields must be the same as in kube-apiserver, even if the path of the
// replicas differs between the versions.
func TestScaleKeepsOwnersOfOtherVersions(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	version := func(name string, stored bool, replicas string) string {
		return fmt.Sprintf(`{"name":%q,"served":true,"storage":%v,"subresources":{"scale":{"specReplicasPath":%q,"statusReplicasPath":".status.replicas"}},
			"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}`, name, stored, replicas)
	}
	s.want(201, "POST", definitionsPath, `{"metadata":{"name":"tanks.scale.example"},"spec":{"group":"scale.example","scope":"Namespaced",
		"names":{"plural":"tanks","kind":"Tank"},"versions":[`+version("v1", true, ".spec.replicas")+","+version("v2", false, ".spec.replicas")+","+
		version("v3", false, ".spec.count")+`]}}`)
	for by, want := range map[string]string{
		"v1": `[["a","scale.example/v1",{".":{},"f:color":{},"f:count":{}}],["b","scale.example/v2",{".":{},"f:size":{}}],["c","scale.example/v1",{"f:replicas":{}}]]`,
		"v2": `[["a","scale.example/v1",{".":{},"f:color":{},"f:count":{}}],["b","scale.example/v2",{".":{},"f:size":{}}],["c","scale.example/v2",{"f:replicas":{}}]]`,
		"v3": `[["a","scale.example/v1",{".":{},"f:color":{},"f:count":{}}],["b","scale.example/v2",{".":{},"f:size":{}}],["c","scale.example/v3",{"f:count":{}}]]`,
	} {
		at := func(version string) string {
			return "/apis/scale.example/" + version + "/namespaces/default/tanks/by-" + by
		}
		apply := func(manager, version, spec string, want int) {
			t.Helper()
			s.want(want, "PATCH", at(version)+"?fieldManager="+manager, `{"apiVersion":"scale.example/`+version+`","kind":"Tank","metadata":{"name":"by-`+by+`"},"spec":`+spec+`}`, asApply)
		}
		apply("a", "v1", `{"replicas":1,"count":1,"color":"red"}`, 201)
		apply("b", "v2", `{"replicas":1,"size":2}`, 200)
		s.want(200, "PATCH", at(by)+"/scale?fieldManager=c", `{"spec":{"replicas":5}}`, asMergePatch)
		var got []string
		for _, entry := range s.want(200, "GET", at("v1"), "").get("metadata.managedFields").Array() {
			got = append(got, fmt.Sprintf("[%q,%q,%s]", entry.Get("manager"), entry.Get("apiVersion"), entry.Get(`fieldsV1.f:spec`).Raw))
		}
		if text := "[" + strings.Join(got, ",") + "]"; !sameOwners(text, want) {
			t.Errorf("scaled by %s: got\n%s\nwant\n%s", by, text, want)
		}
	}
}

// sameOwners reports whether the JSON values are equal.
func sameOwners(got, want string) bool {
	var g, w any
	return json.Unmarshal([]byte(got), &g) == nil && json.Unmarshal([]byte(want), &w) == nil && reflect.DeepEqual(g, w)
}

// BenchmarkConversion measures reads of custom resources with strategy None, with a webhook that is
// not needed because the objects are stored in the requested version, and through the webhook.
func BenchmarkConversion(b *testing.B) {
	s, h := startTest(b), startConverter(b)
	defined := widgetDefinition(h, "good", "v2")
	begin, end := strings.Index(defined, `"conversion":`), strings.Index(defined, `"versions":`)
	s.want(201, "POST", definitionsPath, strings.ReplaceAll(defined[:begin]+defined[end:], "good.example.com", "none.example.com"))
	s.want(201, "POST", definitionsPath, defined)
	for i := range 500 {
		for _, group := range []string{"none", "good"} {
			s.want(201, "POST", "/apis/"+group+".example.com/v2/namespaces/default/widgets",
				widgetBody(group, "v2", fmt.Sprintf("w%03d", i), `"spec":{"extent":{"value":7},"shade":"`+strings.Repeat("x", 500)+`"}`))
		}
	}
	for _, c := range []struct{ name, path string }{
		{"strategyNone", "/apis/none.example.com/v2/namespaces/default/widgets"},
		{"asStored", goodV2},
		{"converted", goodV1},
	} {
		for what, more := range map[string]string{"get": "/w007", "list500": ""} {
			b.Run(what+"/"+c.name, func(b *testing.B) {
				for b.Loop() {
					s.want(200, "GET", c.path+more, "")
				}
			})
		}
	}
}

// TestThePastAsksNoWebhookThatTheServerDoesNot checks that old versions of objects are converted by
// the webhook that is configured now. If there is no webhook, they can only be read in the version
// that was stored.
func TestThePastAsksNoWebhookThatTheServerDoesNot(t *testing.T) {
	t.Parallel()
	s, before, now := startTest(t), startConverter(t), startConverter(t)
	definition := definitionsPath + "/widgets.good.example.com"
	s.want(201, "POST", definitionsPath, widgetDefinition(before, "good", "v2"))
	s.want(201, "POST", goodV2, widgetBody("good", "v2", "a", `"spec":{"extent":{"value":7}}`))
	at := fmt.Sprintf("/at/%d", s.revision())
	conversion := func(h *hookStub) string {
		return `{"spec":{"conversion":` + gjson.Get(widgetDefinition(h, "good", "v2"), "spec.conversion").Raw + `}}`
	}
	shown := func(when string, by *hookStub) {
		t.Helper()
		for _, path := range []string{at + goodV1 + "/a", at + goodV1} {
			before.take()
			now.take()
			a := s.want(200, "GET", path, "")
			if size := a.get("spec.size").Int() + a.get("items.0.spec.size").Int(); size != 7 || len(by.take()) != 1 || len(before.take())+len(now.take()) > 0 {
				t.Errorf("%s: %s: %s", when, path, a.body)
			}
		}
	}
	hidden := func(when string) {
		t.Helper()
		for _, path := range []string{at + goodV1 + "/a", at + goodV1, at + goodV1 + "/a/scale"} {
			if a := s.want(501, "GET", path, ""); !strings.Contains(a.failure(), "ask for it as good.example.com/v2") {
				t.Errorf("%s: %s: %s", when, path, a.failure())
			}
		}
		if a := s.want(200, "GET", at+goodV2+"/a", ""); a.get("spec.extent.value").Int() != 7 {
			t.Errorf("%s: as it was stored: %s", when, a.body)
		}
		if asked := len(before.take()) + len(now.take()); asked > 0 {
			t.Errorf("%s: %d webhooks were asked", when, asked)
		}
	}
	shown("at first", before)
	s.want(200, "PATCH", definition, `{"metadata":{"labels":{"a":"b"}}}`, asMergePatch)
	shown("after a label", before)
	s.want(200, "PATCH", definition, conversion(now), asMergePatch)
	shown("after a move", now)
	s.want(200, "PATCH", definition, `{"spec":{"conversion":{"strategy":"None","webhook":null}}}`, asMergePatch)
	hidden("without a webhook")
	s.want(200, "PATCH", definition, conversion(now), asMergePatch)
	shown("with one again", now)
	s.want(200, "DELETE", definition, "")
	apitest.WaitFor(t, "the definition to go", func() bool { return s.send("GET", definition, "").code == 404 })
	apitest.WaitFor(t, "what follows definitions to know", func() bool { return s.send("GET", at+goodV1+"/a", "").code != 200 })
	hidden("without a definition")
	s.want(201, "POST", definitionsPath, widgetDefinition(now, "good", "v2"))
	hidden("with another definition of that name")
}
