package e2e

// This file sends malicious requests. The bodies are truncated, huge or deeply nested, the paths
// try to leave their directory, or the connection stalls. The response must be the Status of
// kube-apiserver, or at least a 4xx. It must not take long, and nothing may be stored.

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"

	"apilet/internal/apitest"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

const asProtobuf = "Content-Type: application/vnd.kubernetes.protobuf"

func TestBadBodies(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	const unrecognized = "400 BadRequest the object provided is unrecognized (must be of type ConfigMap): "
	s.write(t, []writeCase{
		{"cut JSON", "POST", "", `{"metadata":{"name":"x"`, unrecognized + "couldn't get version/kind; json parse error: unexpected end of JSON input ...", ""},
		{"JSON with a tail", "POST", "", `{"metadata":{"name":"x"}} {}`, unrecognized + "...", ""},
		{"no UTF-8", "POST", "", "{\"metadata\":{\"name\":\"\xff\"}}", "422 Invalid ConfigMap \"\ufffd\" is invalid: ...", ""},
		{"a list", "POST", "", `[]`, unrecognized + "...", ""},
		{"a string", "POST", "", `"x"`, unrecognized + "...", ""},
		{"null", "POST", "", `null`, `422 Invalid ConfigMap "" is invalid: metadata.name: Required value: name or generateName is required`, ""},
		{"wrong type of a field", "POST", "", `{"metadata":{"name":"x"},"data":{"k":1}}`, `400 BadRequest ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct field ConfigMap.data of type string`, ""},
		{"bad apiVersion", "POST", "", `{"apiVersion":"a/b/c","metadata":{"name":"x"}}`, "400 BadRequest ...", ""},
		{"cut YAML", "POST", "", "metadata: {name: ", unrecognized + "...", "Content-Type: application/yaml"},
		{"binary YAML", "POST", "", "\x00\x01\x02", unrecognized + "...", "Content-Type: application/yaml"},
		{"JSON as protobuf", "POST", "", `{}`, "400 BadRequest ...", asProtobuf},
		{"empty protobuf", "POST", "", "", "400 BadRequest ...", asProtobuf},
		{"protobuf's prefix alone", "POST", "", "k8s\x00", "400 BadRequest ...", asProtobuf},
		{"noise as protobuf", "POST", "", "k8s\x00\x0a\xff\xff\xff\xff\x0f\x01", "400 BadRequest ...", asProtobuf},
		{"gzip nobody asked for", "POST", "", "\x1f\x8b\x08\x00", unrecognized + "...", "Content-Encoding: gzip"},
		{"charset is no matter", "POST", "?dryRun=All", configMap("x"), "201", "Content-Type: application/json; charset=latin1"},
		{"unknown media type", "PUT", "/a", configMap("a"), "415 UnsupportedMediaType ...", "Content-Type: application/xml"},
		{"unknown patch", "PATCH", "/a", `{}`, "415 UnsupportedMediaType ...", "Content-Type: application/xml"},
		{"strange media type", "POST", "", configMap("x"), "415 UnsupportedMediaType ...", "Content-Type: ;;;=,"},
		{"unacceptable", "POST", "", configMap("x"), "406 NotAcceptable ...", "Accept: text/html"},
		{"deletion options of noise", "DELETE", "/a", "\x00", "400 BadRequest ...", ""},
		{"deletion options as XML", "DELETE", "/a", "<a/>", "415 UnsupportedMediaType ...", "Content-Type: application/xml"},
		{"a patch that is a list", "PATCH", "/a", `[]`, "400 BadRequest ...", jsonMerge},
		{"steps that are an object", "PATCH", "/a", `{}`, "400 BadRequest ...", jsonSteps},
		{"a step without a name", "PATCH", "/a", `[{"path":"/data/k"}]`, "422 Invalid ...", jsonSteps},
	})
	apitest.Expect(t, s.list(""), "a b c d e @now")
}

// TestHugeInputs checks that the server does not spend too much time or memory on a single request.
func TestHugeInputs(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	const megabyte = 1 << 20
	deep := func(n int) string { return strings.Repeat(`{"a":`, n) + "1" + strings.Repeat("}", n) }
	bomb := "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
	for i := range 9 {
		bomb += fmt.Sprintf("a%d: &a%d [%s*a%d]\n", i+1, i+1, strings.Repeat(fmt.Sprintf("*a%d,", i), 8), i)
	}
	for _, c := range []struct {
		title, method, path, body string
		codes                     string
		header                    string
	}{
		{"JSON 10,000 deep", "POST", "", deep(10_000), "400 422", ""},
		{"JSON 500,000 deep", "POST", "", deep(500_000), "400", ""},
		{"lists 1,500,000 deep", "POST", "", strings.Repeat("[", 1_500_000), "400", ""},
		{"YAML 10,000 deep", "POST", "", strings.Repeat("[", 10_000), "400", "Content-Type: application/yaml"},
		{"YAML 10,000 deep, flow maps", "POST", "", deep(10_000), "400 422", "Content-Type: application/yaml"},
		{"a number of a megabyte", "POST", "", `{"metadata":{"name":"x","generation":` + strings.Repeat("9", megabyte) + `}}`, "400", ""},
		{"a number with a huge exponent", "POST", "", `{"metadata":{"name":"x","generation":1e999999999}}`, "400", ""},
		{"a key of a megabyte", "POST", "", `{"` + strings.Repeat("k", megabyte) + `":1}`, "400 422", ""},
		{"100,000 unknown fields", "POST", "?fieldValidation=Warn", `{"metadata":{}` + apitest.Numbered(100_000, `,"f%d":1`) + `}`, "422", ""},
		{"YAML aliases", "POST", "", bomb, "400", "Content-Type: application/yaml"},
		{"patch 10,000 deep", "PATCH", "/a", deep(10_000), "400 422 200", jsonMerge},
		{"patch of 20,000 steps", "PATCH", "/a", "[" + strings.Repeat(`{"op":"add","path":"/data/k","value":"v"},`, 20_000) + `{"op":"test","path":"/x","value":1}]`, "413", jsonSteps},
		{"a patch that copies itself", "PATCH", "/a", "[" + strings.Repeat(`{"op":"copy","from":"/data","path":"/data/x"},{"op":"move","from":"/data/x","path":"/data/y"},`, 40) + `{"op":"test","path":"/x","value":1}]`, "413 422", jsonSteps},
		{"an apply of YAML aliases", "PATCH", "/a?fieldManager=m", bomb, "400", "Content-Type: application/apply-patch+yaml"},
		{"a gzip bomb", "POST", "", gzipBomb(t), "400", "Content-Encoding: gzip"},
		{"a gzip bomb as protobuf", "POST", "", gzipBomb(t), "400", asProtobuf + "\nContent-Encoding: gzip"},
		{"a protobuf message longer than its body", "POST", "", "k8s\x00\x0a\x04\x0a\x02v1\x12\xff\xff\xff\x7f", "400", asProtobuf},
		{"a protobuf message of 2^63 bytes", "POST", "", "k8s\x00\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "400", asProtobuf},
		{"a protobuf message of negative length", "POST", "", "k8s\x00\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "400", asProtobuf},
		{"protobuf groups 500,000 deep", "POST", "", protoConfigMap(strings.Repeat("\x0b", 500_000)), "400", asProtobuf},
		{"a protobuf list of a million nothings", "POST", "", protoConfigMap(strings.Repeat("\x12\x00", 1_000_000)), "413", asProtobuf},
		{"100,000 selector terms", "GET", "?labelSelector=" + strings.TrimPrefix(apitest.Numbered(100_000, ",k%d"), ","), "", "431", ""},
		{"100,000 parameters", "GET", "?" + strings.Repeat("a&", 30_000), "", "200", ""},
		{"10,000 headers", "GET", "", "", "431", strings.TrimPrefix(apitest.Numbered(10_000, "\nX-%d: y"), "\n")},
		{"a body of 3 MiB and one byte", "PUT", "/a", strings.Repeat(" ", 3*megabyte+1), "413", ""},
		{"labels of a megabyte", "POST", "", `{"metadata":{"name":"x","labels":{"k":"` + strings.Repeat("v", megabyte) + `"}}}`, "422", ""},
		{"annotations of a megabyte", "POST", "", `{"metadata":{"name":"x","annotations":{"k":"` + strings.Repeat("v", megabyte) + `"}}}`, "422", ""},
		{"a name of a megabyte", "POST", "", configMap(strings.Repeat("n", megabyte)), "422", ""},
		{"10,000 selector terms", "GET", "?labelSelector=" + strings.TrimPrefix(apitest.Numbered(4_500, ",k%d!%%3Dv"), ","), "", "200", ""},
		{"a selector of 50 KiB in one set", "GET", "?labelSelector=k+in+(" + strings.TrimPrefix(apitest.Numbered(8_000, ",v%d"), ",") + ")", "", "200", ""},
		{"a token of a megabyte", "GET", "?continue=" + strings.Repeat("A", megabyte), "", "431", ""},
		{"a token of 60 KiB", "GET", "?continue=" + strings.Repeat("A", 60_000), "", "400", ""},
		{"a name of 60 KiB", "GET", "/" + strings.Repeat("n", 60_000), "", "404", ""},
		{"a header of a megabyte", "GET", "", "", "431", "X: " + strings.Repeat("x", megabyte)},
		{"a limit of 2^63-1", "GET", "?limit=9223372036854775807", "", "200", ""},
		{"a time-out of 2^63-1", "GET", "?timeoutSeconds=9223372036854775807", "", "200", ""},
	} {
		t.Run(c.title, func(t *testing.T) {
			allocated := s.allocated()
			a, err := s.try(c.method, s.p1+c.path, c.body, strings.Split(c.header, "\n")...)
			if err != nil && !strings.Contains(c.codes, "431") {
				t.Fatal(err)
			}
			if err == nil && !strings.Contains(c.codes, fmt.Sprint(a.code)) {
				t.Errorf("got %d %.300s, want %s", a.code, a.body, c.codes)
			}
			if len(a.body) > 5*megabyte { // as in kube-apiserver, the response may contain a long name four times
				t.Errorf("the answer has %d bytes", len(a.body))
			}
			if n := s.allocated() - allocated; n > 300*megabyte {
				t.Errorf("it took %.0f MiB of memory, not all of it at once", n/megabyte)
			}
		})
	}
	apitest.Expect(t, strings.HasPrefix(s.list(""), "a b c d e @"), true)
}

// TestHugeSelectors sends selectors in request bodies, where they can have very many terms.
func TestHugeSelectors(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	const n = 20_000
	terms := func(format string) string {
		return "[" + strings.TrimPrefix(apitest.Numbered(n, ","+format), ",") + "]"
	}
	expressions := terms(`{"key":"k%d","operator":"Exists"}`)
	for _, c := range []struct{ path, body, codes string }{
		{"/apis/apps/v1/namespaces/p1/deployments", `{"metadata":{"name":"d"},"spec":{"selector":{"matchExpressions":` + expressions +
			`},"template":{"metadata":{"labels":{"k1":"v"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`, "422"},
		{"/apis/policy/v1/namespaces/p1/poddisruptionbudgets", `{"metadata":{"name":"b"},"spec":{"minAvailable":1,"selector":{"matchExpressions":` + expressions + `}}}`, "201 500"},
		{"/apis/networking.k8s.io/v1/namespaces/p1/networkpolicies", `{"metadata":{"name":"n"},"spec":{"podSelector":{"matchExpressions":` + expressions + `}}}`, "201 500"},
		{"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", `{"spec":{"resourceAttributes":{"verb":"list","resource":"pods","labelSelector":{"requirements":` + expressions + `}}}}`, "201"},
	} {
		before := s.allocated()
		a := s.send("POST", c.path, c.body)
		if !strings.Contains(c.codes, fmt.Sprint(a.code)) {
			t.Errorf("%s: %d: %.300s", c.path, a.code, a.body)
		}
		// The race detector drops a quarter of the values that are put into a sync.Pool, including
		// the buffers of regular expressions.
		if spent := s.allocated() - before; !apitest.Race && spent > 100<<20 {
			t.Errorf("%s: %.0f MiB of memory were allocated", c.path, spent/(1<<20))
		}
	}
}

// gzipBomb returns 256 MiB of spaces and an empty object, compressed.
func gzipBomb(t *testing.T) string {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	spaces := bytes.Repeat([]byte(" "), 1<<20)
	for range 256 {
		z.Write(spaces)
	}
	z.Write([]byte("{}"))
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// protoConfigMap returns the protobuf envelope of a ConfigMap with the given bytes.
func protoConfigMap(raw string) string {
	envelope := []byte("k8s\x00\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12")
	return string(binary.AppendUvarint(envelope, uint64(len(raw)))) + raw
}

// TestChunkedBodyIsBounded sends more than 3 MiB without a Content-Length.
func TestChunkedBodyIsBounded(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	endless := io.MultiReader(strings.NewReader(`{"data":{"k":"`), io.LimitReader(endlessX{}, 8<<20))
	r, _ := http.NewRequest("POST", s.url+s.p1, endless)
	response, err := s.client.Do(r)
	if err != nil {
		return // the server may also close the connection early
	}
	defer response.Body.Close()
	apitest.Expect(t, response.StatusCode, 413)
}

// In addition to the limit for request bodies, there must be a limit for objects that grow with
// each request.
func TestObjectsDoNotGrowForEver(t *testing.T) {
	t.Parallel()
	s := startTest(t, onSomeFile(t))
	const templates = "/api/v1/namespaces/default/podtemplates"
	s.want(201, "POST", templates, `{"metadata":{"name":"a"},"template":{"spec":{"containers":[{"name":"c","image":"i"}]}}}`)
	s.halt()
	openTestStore(t, s.flag("data"), func(st *store.Store) error {
		rec, err := st.Get("//podtemplates/default/a")
		if err != nil {
			t.Fatal(err)
		}
		json, revAt := scheme.WithoutRevision(rec.JSON)
		// A client could do the same with many patches.
		json = bytes.Replace(json, []byte(`"image":"i"`), []byte(`"image":"`+strings.Repeat("i", 9_300_000)+`"`), 1)
		if _, err = st.Commit(t.Context(), store.Change{Op: store.OpUpdate, Key: rec.Key, Expect: rec.Rev, JSON: json, RevAt: revAt}); err != nil {
			t.Fatal(err)
		}
		return nil
	})
	s.start()
	got := s.send("PATCH", templates+"/a", `{"metadata":{"annotations":{"a":"`+strings.Repeat("v", 200_000)+`"}}}`, jsonMerge).failure()
	if !strings.HasPrefix(got, "413 RequestEntityTooLarge Request entity too large: the object would have 95") {
		t.Error(got)
	}
}

// An empty list element requires three bytes in JSON, but more than 400 bytes in memory. In the
// past, a request of 3 MB required 2.4 GB.
func TestEmptyElementsAreWeighed(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	const pods = "/api/v1/namespaces/default/pods"
	s.want(201, "POST", pods, `{"metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i"}]}}`)
	const n = 200_000
	containers := `{"metadata":{"name":"a"},"spec":{"containers":[{}` + strings.Repeat(",{}", n) + `]}}`
	before := apitest.Allocated()
	for _, headers := range [][]string{
		{"POST", pods + "?dryRun=All", containers, "Content-Type: application/json"},
		{"POST", pods, "metadata: {name: a}\nspec:\n  containers:\n" + strings.Repeat("  - {}\n", n/10) + "  - " + `{"ports":[{}` + strings.Repeat(",{}", 9*n) + "]}\n", "Content-Type: application/yaml"},
		{"PATCH", pods + "/a", containers, jsonMerge},
		{"PATCH", pods + "/a", `[{"op":"replace","path":"/spec/containers","value":[{}` + strings.Repeat(",{}", n) + `]}]`, asJSONPatch},
		{"PATCH", pods + "/a", containers, "Content-Type: application/strategic-merge-patch+json"},
		{"PATCH", pods + "/a?fieldManager=m", strings.Replace(containers, `{`, `{"apiVersion":"v1","kind":"Pod",`, 1), serverApply},
	} {
		if got := s.send(headers[0], headers[1], headers[2], headers[3]).failure(); !strings.HasPrefix(got, "413 RequestEntityTooLarge ") {
			t.Errorf("%s %s: %.200s", headers[0], headers[3], got)
		}
	}
	if made := apitest.Allocated() - before; made > 3<<30 {
		t.Errorf("%d MiB were allocated", made>>20)
	}
}

// The defaults of a type must not expand a body of some kilobytes to an object of many megabytes.
func TestDefaultsDoNotMultiply(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.want(201, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"metadata":{"name":"foos.x.io"},"spec":{"group":"x.io","scope":"Cluster",
		"names":{"plural":"foos","kind":"Foo"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object",
		"properties":{"spec":{"type":"array","items":{"type":"object","properties":{"a":{"type":"string","default":"`+strings.Repeat("d", 10_000)+`"}}}}}}}}]}}`)
	apitest.WaitFor(t, "the type is served", func() bool { return s.send("GET", "/apis/x.io/v1/foos", "").code == 200 })
	foo := func(items int) string {
		return `{"apiVersion":"x.io/v1","kind":"Foo","metadata":{"name":"a"},"spec":[{}` + strings.Repeat(",{}", items-1) + `]}`
	}
	s.want(413, "POST", "/apis/x.io/v1/foos", foo(1000))
	s.want(413, "PATCH", "/apis/x.io/v1/foos/a?fieldManager=m", foo(1000), "Content-Type: application/apply-patch+yaml")
	s.want(201, "POST", "/apis/x.io/v1/foos", foo(10))
	s.want(413, "PATCH", "/apis/x.io/v1/foos/a?fieldManager=m&force=true", foo(1000), "Content-Type: application/apply-patch+yaml")
	s.want(413, "PATCH", "/apis/x.io/v1/foos/a", `{"spec":[{}`+strings.Repeat(",{}", 999)+`]}`, "Content-Type: application/merge-patch+json")
	s.want(200, "PATCH", "/apis/x.io/v1/foos/a", `{"spec":[{},{}]}`, "Content-Type: application/merge-patch+json")
}

// If a request exceeds its timeout, the server must return a 504 after the current step and must
// not store the object.
func TestNothingIsStoredAfterTheDeadline(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.want(201, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"metadata":{"name":"foos.x.io"},"spec":{"group":"x.io","scope":"Cluster",
		"names":{"plural":"foos","kind":"Foo"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`)
	apitest.WaitFor(t, "the type is served", func() bool { return s.send("GET", "/apis/x.io/v1/foos", "").code == 200 })
	s.want(201, "POST", "/apis/x.io/v1/foos", `{"apiVersion":"x.io/v1","kind":"Foo","metadata":{"name":"a"}}`)
	foo := func(name string) string { // field ownership makes it cost hundreds of milliseconds of CPU time
		return `{"apiVersion":"x.io/v1","kind":"Foo","metadata":{"name":"` + name + `"},"spec":{` + listed(4, `"m%d":{`+listed(10_000, `"k%d":1`)+`}`) + `}}`
	}
	for _, headers := range [][]string{
		{"POST", "/apis/x.io/v1/foos?timeout=40ms", "b", "Content-Type: application/json"},
		{"POST", "/apis/x.io/v1/foos?timeout=40ms&dryRun=All", "b", "Content-Type: application/json"},
		{"PATCH", "/apis/x.io/v1/foos/b?timeout=40ms&fieldManager=m", "b", serverApply},
		{"PATCH", "/apis/x.io/v1/foos/a?timeout=40ms&fieldManager=m", "a", serverApply},
		{"PATCH", "/apis/x.io/v1/foos/a?timeout=40ms", "a", jsonMerge},
	} {
		if got := s.send(headers[0], headers[1], foo(headers[2]), headers[3]).failure(); !strings.HasPrefix(got, "504 Timeout ") {
			t.Errorf("%s %s: %.200s", headers[0], headers[1], got)
		}
	}
	s.want(404, "GET", "/apis/x.io/v1/foos/b", "")
	if a := s.want(200, "GET", "/apis/x.io/v1/foos/a", ""); a.get("spec").Exists() {
		t.Errorf("a was changed: %.300s", a.body)
	}
}

type endlessX struct{}

func (endlessX) Read(p []byte) (int, error) {
	copy(p, bytes.Repeat([]byte("x"), len(p)))
	return len(p), nil
}

// TestPathsStayInTheirPlace checks that a path always leads to the object that its segments name,
// or to an error.
func TestPathsStayInTheirPlace(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	s.want(201, "POST", "/api/v1/namespaces/p1/secrets", `{"metadata":{"name":"s"}}`)
	for _, path := range []string{
		s.p1 + "/..", s.p1 + "/../secrets/s", s.p1 + "/%2e%2e/secrets/s", s.p1 + "/..%2fsecrets%2fs", s.p1 + "/a%2f", s.p1 + "/%2fa", s.p1 + "/a%00",
		s.p1 + "//a", s.p1 + "/./a", s.p1 + "/a/.", s.p1 + "/%20a", s.p1 + "/a%0d%0aX:1", s.p1 + "/A", s.p1 + "/%c3%28",
		"/api/v1/namespaces//configmaps/a", "/api/v1/namespaces/p1%2fconfigmaps/configmaps/a", "/api/v1/namespaces/%2f/configmaps/a",
		"/api/v1/namespaces/../configmaps/a", "//api/v1/namespaces/p1/configmaps/a", "/api//v1/namespaces/p1/configmaps/a",
		"/api/v1/namespaces/p1/configmaps%2fa", "/API/v1/namespaces/p1/configmaps/a", "/apis//v1/namespaces/p1/configmaps/a",
	} {
		code, body := s.raw("GET " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
		if code < 400 || code >= 500 {
			t.Errorf("%q: %d %.200s", path, code, body)
		}
	}
	before := s.revision()
	for _, name := range []string{"..", ".", "a%2fb", "%2f", "a%00b", strings.Repeat("n", 5000)} {
		plain, _ := url.PathUnescape(name)
		for _, path := range []string{"/api/v1/namespaces/p1/events/", "/api/v1/namespaces/p1/services/", "/apis/coordination.k8s.io/v1/namespaces/p1/leases/"} {
			body := fmt.Sprintf(`{"metadata":{"name":%q},"involvedObject":{"namespace":"p1"}}`, plain)
			code, answer := s.raw(fmt.Sprintf("PUT %s%s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", path, name, len(body), body))
			if code < 400 || code >= 500 {
				t.Errorf("PUT %s%.30s: %d %.300s", path, name, code, answer)
			}
		}
	}
	apitest.Expect(t, s.revision(), before)
}

// TestRequestsThatStop checks that clients that disconnect in the middle of a request do not affect
// the server.
func TestRequestsThatStop(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	body := configMap("half")
	for _, request := range []string{
		fmt.Sprintf("POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%s", s.p1, len(body), body[:len(body)-1]),
		fmt.Sprintf("POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 999\r\n\r\n%s", s.p1, body),
		fmt.Sprintf("POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", s.p1, len(body), body),
		fmt.Sprintf("POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n%s\r\n", s.p1, body),
		"GET " + s.p1 + " HTTP/1.1\r\nHost: 127.0.0.1\r\nX-", "GET", "\r\n\r\n", "\x16\x03\x01\x02\x00\x01\x00", strings.Repeat("\x00", 100),
	} {
		conn := s.dial()
		fmt.Fprint(conn, request)
		conn.Close()
	}
	apitest.WaitFor(t, "the requests to end", func() bool {
		return metricValue(s.testServer, `apiserver_current_inflight_requests{request_kind="mutating"}`) <= 0
	})
	s.want(404, "GET", s.p1+"/half", "")
	s.want(201, "POST", s.p1, body)
}

// TestTricklingHeadersAreCutOff sends a request header slowly until the server closes the
// connection.
func TestTricklingHeadersAreCutOff(t *testing.T) {
	if !apitest.Long() {
		t.Skip("takes ten seconds")
	}
	t.Parallel()
	s := startTest(t)
	begin := time.Now()
	conn := s.dial()
	defer conn.Close()
	go func() {
		for fmt.Fprint(conn, "GET / HTTP/1.1\r\n"); ; time.Sleep(200 * time.Millisecond) {
			if _, err := fmt.Fprint(conn, "X: y\r\n"); err != nil {
				return
			}
		}
	}()
	if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection is still open")
	}
	if took := time.Since(begin); took < 5*time.Second {
		t.Errorf("the connection was open for %v", took)
	}
}
