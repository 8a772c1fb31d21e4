package e2e

// These tests call real webhooks on loopback, which have their own certificates. The expected
// messages and requests to webhooks were compared with those of kube-apiserver.

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	"sigs.k8s.io/yaml"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
)

// ---- A webhook under test

// A hookStub is a webhook that records all requests.
type hookStub struct {
	*httptest.Server
	closed atomic.Int64 // number of closed connections
	mu     sync.Mutex   // guards the fields below
	asked  []hookAsked
	conns  map[string]bool // remote addresses of the callers
}

type hookAsked struct {
	path, proto string
	query       string
	review      gjson.Result
}

// startHook starts a webhook. answer receives the parsed request body.
func startHook(t testing.TB, answer func(w http.ResponseWriter, r *http.Request, q gjson.Result)) *hookStub {
	t.Helper()
	h := &hookStub{conns: map[string]bool{}}
	h.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		q := gjson.ParseBytes(body)
		h.mu.Lock()
		h.asked = append(h.asked, hookAsked{r.URL.Path, r.Proto, r.URL.RawQuery, q})
		h.conns[r.RemoteAddr] = true
		h.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		answer(w, r, q)
	}))
	h.EnableHTTP2 = true
	h.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			h.closed.Add(1)
		}
	}
	h.Config.ErrorLog = stdlog.New(io.Discard, "", 0) // failing handshakes are part of the test
	h.StartTLS()
	t.Cleanup(func() { h.CloseClientConnections(); h.Close() })
	return h
}

// allowing returns a handler that allows each request. more are further members of the response.
func allowing(more string) func(http.ResponseWriter, *http.Request, gjson.Result) {
	return func(w http.ResponseWriter, _ *http.Request, q gjson.Result) { respondReview(w, q, true, more) }
}

func respondReview(w io.Writer, q gjson.Result, allowed bool, more string) {
	if more != "" {
		more = "," + more
	}
	fmt.Fprintf(w, `{"kind":"AdmissionReview","apiVersion":%q,"response":{"uid":%q,"allowed":%v%s}}`,
		q.Get("apiVersion"), q.Get("request.uid"), allowed, more)
}

// patching returns the members of a response that contains the given patch.
func patching(patch string) string {
	return `"patchType":"JSONPatch","patch":"` + base64.StdEncoding.EncodeToString([]byte(patch)) + `"`
}

func (h *hookStub) bundle() string {
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw}))
}

// take returns all requests since the last call to take.
func (h *hookStub) take() []hookAsked {
	h.mu.Lock()
	defer h.mu.Unlock()
	asked := h.asked
	h.asked = nil
	return asked
}

// told is like take, but returns only the path, operation, resource, subresource and name of each
// request.
func (h *hookStub) told() string {
	var lines []string
	for _, a := range h.take() {
		q := a.review.Get("request")
		line := strings.Join([]string{a.path, q.Get("operation").String(), q.Get("resource.resource").String(), q.Get("subResource").String(), q.Get("name").String()}, " ")
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, ", ")
}

const hookConfigs = "/apis/admissionregistration.k8s.io/v1/"

// hookConfig returns the JSON of a configuration with the given webhooks.
func hookConfig(kind, name string, hooks ...string) string {
	return fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"%sWebhookConfiguration","metadata":{"name":%q},"webhooks":[%s]}`,
		kind, name, strings.Join(hooks, ","))
}

const onConfigMaps = `"rules":[{"operations":["*"],"apiGroups":[""],"apiVersions":["*"],"resources":["configmaps","configmaps/*"]}]`

// hookAt returns the JSON of one webhook. more are further members. Unless more has rules, the
// webhook is called for ConfigMaps.
func (h *hookStub) hookAt(name, path, more string) string {
	members := map[string]json.RawMessage{}
	for _, text := range []string{fmt.Sprintf(`{"name":"%s.example.com","admissionReviewVersions":["v1"],"sideEffects":"None","timeoutSeconds":30,
		"clientConfig":{"url":"%s/%s","caBundle":%q},%s}`, name, h.URL, path, h.bundle(), onConfigMaps), "{" + more + "}"} {
		if err := json.Unmarshal([]byte(text), &members); err != nil {
			panic(err)
		}
	}
	hook, _ := json.Marshal(members)
	return string(hook)
}

// mutating configures these webhooks and no others.
func (s *testServer) mutating(hooks ...string) {
	s.t.Helper()
	s.configureHooks("Mutating", hooks...)
}

func (s *testServer) validatingBy(hooks ...string) {
	s.t.Helper()
	s.configureHooks("Validating", hooks...)
}

func (s *testServer) configureHooks(kind string, hooks ...string) {
	s.t.Helper()
	path := hookConfigs + strings.ToLower(kind) + "webhookconfigurations"
	s.send("DELETE", path+"/test", "")
	if len(hooks) > 0 {
		s.want(201, "POST", path, hookConfig(kind, "test", hooks...))
	}
}

const hookedMaps = "/api/v1/namespaces/default/configmaps"

func hookedMap(name string) string {
	return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + name + `"}}`
}

// ---- Warnings and timeouts

func TestWebhookWarningsComeInOrderAndOnce(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	h := startHook(t, func(w http.ResponseWriter, r *http.Request, q gjson.Result) {
		respondReview(w, q, r.URL.Path != "/no", `"warnings":["one","two","one"],"status":{"message":"pay","reason":"Foo","code":402,"details":{"name":"q"}}`)
	})
	s.validatingBy(h.hookAt("a", "yes", ""), h.hookAt("b", "yes", ""))
	want := []string{`299 - "one"`, `299 - "two"`}
	if a := s.want(201, "POST", hookedMaps, hookedMap("a")); !slices.Equal(a.header.Values("Warning"), want) {
		t.Errorf("allowed: warnings %q, want %q", a.header.Values("Warning"), want)
	}
	s.validatingBy(h.hookAt("a", "no", ""))
	a := s.want(402, "POST", hookedMaps, hookedMap("b"))
	if !slices.Equal(a.header.Values("Warning"), want) {
		t.Errorf("denied: warnings %q, want %q", a.header.Values("Warning"), want)
	}
	if got, want := a.failure(), `402 Foo admission webhook "a.example.com" denied the request: pay`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if a.get("details.name").String() != "q" {
		t.Errorf("the details are lost: %s", a.body)
	}
}

// In earlier versions, an invalid status code in a webhook's response closed the client's
// connection and logged a stack trace.
func TestWebhookCodesAreHTTP(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	for said, want := range map[string]int{"1000": 502, "2147483647": 502, "600": 502, "599": 599, "99": 400, "-5": 400, "200": 400, "418": 418} {
		h := startHook(t, func(w http.ResponseWriter, r *http.Request, q gjson.Result) {
			respondReview(w, q, false, `"status":{"message":"pay","code":`+said+`}`)
		})
		s.validatingBy(h.hookAt("a", "", ""))
		s.want(want, "POST", hookedMaps, hookedMap("x"))
	}
}

func TestWebhookWarningsAreWholeOrLeftOut(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	long := strings.Repeat("é", 300)
	h := startHook(t, allowing(`"warnings":["a\nb","`+long+`"]`))
	s.validatingBy(h.hookAt("a", "", ""))
	a := s.want(201, "POST", hookedMaps, hookedMap("a"))
	if got := a.header.Values("Warning"); len(got) != 1 || got[0] != `299 - "`+long+`"` {
		t.Errorf("warnings %q, want the long one alone, whole", got)
	}
}

func TestWebhookThatNeverAnswersIsWaitedForAsLongAsItSays(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "audit.log")
	s := startTest(t, "--audit-log-path="+log)
	h := startHook(t, func(_ http.ResponseWriter, r *http.Request, _ gjson.Result) { <-r.Context().Done() })
	slow := `"timeoutSeconds":1,"failurePolicy":"%s"`
	s.validatingBy(h.hookAt("a", "slow", fmt.Sprintf(slow, "Ignore")))
	if a := s.want(201, "POST", hookedMaps, hookedMap("ignored")); a.header.Get("Warning") != "" {
		t.Errorf("a warning tells of the failure: %q", a.header.Values("Warning"))
	}
	s.validatingBy(h.hookAt("a", "slow", fmt.Sprintf(slow, "Fail")))
	a := s.want(500, "POST", hookedMaps, hookedMap("failed"))
	want := fmt.Sprintf(`500 InternalError Internal error occurred: failed calling webhook "a.example.com": failed to call webhook: `+
		`Post "%s/slow?timeout=1s": context deadline exceeded`, h.URL)
	if a.failure() != want {
		t.Errorf("got  %s\nwant %s", a.failure(), want)
	}
	defer s.halt()
	if got := auditNotes(t, log, "ignored"); got["failed-open.validating.webhook.admission.k8s.io/round_0_index_0"] != "a.example.com" {
		t.Errorf("annotations %v", got)
	}
	wantHookMetrics(t, s, `apiserver_admission_webhook_fail_open_count{name="a.example.com",type="validating"} 1`,
		`apiserver_admission_webhook_request_total{code="503",name="a.example.com",operation="CREATE",rejected="false",type="validating"} 1`,
		`apiserver_admission_webhook_request_total{code="503",name="a.example.com",operation="CREATE",rejected="true",type="validating"} 1`,
		`apiserver_admission_webhook_rejection_count{error_type="calling_webhook_error",name="a.example.com",operation="CREATE",rejection_code="503",type="validating"} 1`,
		`apiserver_admission_webhook_admission_duration_seconds_count{name="a.example.com",operation="CREATE",rejected="true",type="validating"} 1`)
}

func wantHookMetrics(t *testing.T, s *testServer, lines ...string) {
	t.Helper()
	all := s.scrape()
	for _, line := range lines {
		if !all[line] {
			t.Errorf("/metrics lacks %s", line)
		}
	}
}

// auditNotes returns the audit annotations of the request that created or named an object.
func auditNotes(t *testing.T, log, name string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		// The log does not have a created object's name, which is in the request's body. Tests
		// identify such requests by their query.
		if strings.Contains(gjson.Get(line, "requestURI").String(), name) || gjson.Get(line, "annotations").Raw != "" && strings.Contains(line, "failed-open") {
			notes := map[string]string{}
			for key, value := range gjson.Get(line, "annotations").Map() {
				notes[key] = value.String()
			}
			return notes
		}
	}
	t.Fatalf("no line for %s in\n%s", name, text)
	return nil
}

func TestDryRunIsRefusedForWebhooksWithSideEffects(t *testing.T) {
	t.Parallel()
	s := startTest(t, "--validate=false") // validation rejects such webhooks today
	h := startHook(t, allowing(""))
	for effects, code := range map[string]int{"Some": 400, "Unknown": 400, "None": 201, "NoneOnDryRun": 201} {
		for _, kind := range []string{"Mutating", "Validating"} {
			s.configureHooks(kind, h.hookAt("a", "", `"failurePolicy":"Ignore","sideEffects":"`+effects+`"`))
			a := s.want(code, "POST", hookedMaps+"?dryRun=All", hookedMap("a"))
			if want := `400 BadRequest admission webhook "a.example.com" does not support dry run`; code == 400 && a.failure() != want {
				t.Errorf("%s: got %s, want %s", effects, a.failure(), want)
			}
			s.configureHooks(kind)
		}
	}
	for _, asked := range h.take() {
		if q := asked.review.Get("request"); !q.Get("dryRun").Bool() || q.Get("options.dryRun.0").String() != "All" {
			t.Errorf("a dry run is not told: %s", q)
		}
	}
	s.want(404, "GET", hookedMaps+"/a", "")
}

func TestWebhookTimeoutsOutOfRangeAreRefused(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	h := startHook(t, allowing(""))
	for _, seconds := range []int{0, 31, -1} {
		body := hookConfig("Validating", "test", h.hookAt("a", "", fmt.Sprintf(`"timeoutSeconds":%d`, seconds)))
		a := s.want(422, "POST", hookConfigs+"validatingwebhookconfigurations", body)
		if !strings.Contains(a.failure(), "the timeout value must be between 1 and 30 seconds") {
			t.Errorf("%d: %s", seconds, a.failure())
		}
	}
}

// ---- Failed calls

func TestEveryWrongAnswerIsAFailedCallWithItsCause(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	const call, invalid = "failed to call webhook: ", "received invalid webhook response: "
	raw := func(text string) func(http.ResponseWriter, gjson.Result) {
		return func(w http.ResponseWriter, q gjson.Result) {
			io.WriteString(w, strings.ReplaceAll(text, "UID", q.Get("request.uid").String()))
		}
	}
	cases := map[string]struct {
		answer func(http.ResponseWriter, gjson.Result)
		want   string
	}{
		"garbage":     {raw("<html>"), call + "couldn't get version/kind; json parse error: invalid character '<' looking for beginning of value"},
		"empty":       {raw(""), call + "0-length response with status code: 200 and content type: application/json"},
		"pod":         {raw(`{"apiVersion":"v1","kind":"Pod"}`), call + `no kind "Pod" is registered for version "v1" in scheme "pkg/runtime/scheme.go:111"`},
		"kindless":    {raw(`{"response":{"uid":"UID","allowed":true}}`), invalid + "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got /, Kind="},
		"silent":      {raw(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`), invalid + "webhook response was absent"},
		"wrong-uid":   {raw(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"x","allowed":true}}`), invalid + `expected response.uid="UID", got "x"`},
		"patches":     {raw(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"UID","allowed":true,"patch":"W10="}}`), invalid + "validating webhook may not return response.patch"},
		"broken":      {func(w http.ResponseWriter, _ gjson.Result) { http.Error(w, "boom", 500) }, call + `an error on the server ("boom") has prevented the request from succeeding`},
		"lost":        {func(w http.ResponseWriter, _ gjson.Result) { http.Error(w, "", 404) }, call + "the server could not find the requested resource"},
		"redirecting": {func(w http.ResponseWriter, _ gjson.Result) { w.Header().Set("Location", "/allow"); w.WriteHeader(307) }, call + "the server responded with the status code 307 but did not return more information"},
		"status": {func(w http.ResponseWriter, _ gjson.Result) {
			w.WriteHeader(403)
			io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no way","code":403}`)
		}, call + "no way"},
		"hangs-up": {func(http.ResponseWriter, gjson.Result) { panic(http.ErrAbortHandler) }, call},
		"endless": {func(w http.ResponseWriter, _ gjson.Result) {
			blank := bytes.Repeat([]byte(" "), 1<<20)
			for range 16 + 1 {
				w.Write(blank)
			}
		}, call + "the response is longer than 16777216 bytes"},
	}
	h := startHook(t, func(w http.ResponseWriter, r *http.Request, q gjson.Result) { cases[r.URL.Path[1:]].answer(w, q) })
	for name, c := range cases {
		s.validatingBy(h.hookAt("a", name, ""))
		a := s.want(500, "POST", hookedMaps, hookedMap(name))
		asked := h.take()
		want := `500 InternalError Internal error occurred: failed calling webhook "a.example.com": ` + c.want
		want = strings.ReplaceAll(want, "UID", asked[len(asked)-1].review.Get("request.uid").String())
		if got := a.failure(); got != want && name != "hangs-up" || !strings.HasPrefix(got, want) {
			t.Errorf("%s: got\n%s, want\n%s", name, got, want)
		}
		s.validatingBy(h.hookAt("a", name, `"failurePolicy":"Ignore"`))
		s.want(201, "POST", hookedMaps, hookedMap(name))
	}
	if got := h.told(); strings.Contains(got, "/allow") {
		t.Error("a redirect was followed")
	}
}

func TestAWebhookThatIsNotThereFailsAtOnce(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	// Nothing listens on port 1. A recently used port could be in use again.
	const address = "127.0.0.1:1"
	h := startHook(t, allowing(""))
	other := startHook(t, allowing(""))
	other.TLS.Certificates[0].Certificate = nil // makes handshakes fail
	cases := map[string]struct{ client, want string }{
		"down":      {fmt.Sprintf(`{"url":"https://%s/"}`, address), "connection refused"},
		"untrusted": {fmt.Sprintf(`{"url":%q}`, h.URL), "certificate signed by unknown authority"},
		"no bundle": {fmt.Sprintf(`{"url":%q,"caBundle":"eA=="}`, h.URL), "could not get REST client: unable to load root certificates: unable to parse bytes as PEM block"},
		"bad TLS":   {fmt.Sprintf(`{"url":%q,"caBundle":%q}`, other.URL, h.bundle()), "tls: "},
		"service":   {`{"service":{"namespace":"default","name":"nobody"}}`, `Post "https://nobody.default.svc:443/?timeout=30s": service "nobody" not found`},
	}
	for name, c := range cases {
		s.mutating(h.hookAt("a", "", `"timeoutSeconds":30,"clientConfig":`+c.client))
		if a := s.want(500, "POST", hookedMaps, hookedMap("x")); !strings.Contains(a.failure(), c.want) {
			t.Errorf("%s: got %s, want %s in it", name, a.failure(), c.want)
		}
	}
}

func TestADrippingAnswerEndsAtTheTimeout(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	h := startHook(t, func(w http.ResponseWriter, r *http.Request, _ gjson.Result) {
		for r.Context().Err() == nil {
			io.WriteString(w, " ")
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
	var end string
	seconds := 1
	apitest.WaitFor(t, "an answer to begin within the timeout, and to be cut off by it", func() bool {
		seconds = min(2*seconds, 30)
		s.mutating(h.hookAt("a", "", fmt.Sprintf(`"timeoutSeconds":%d`, seconds)))
		end = s.want(500, "POST", hookedMaps, hookedMap("x")).failure()
		return strings.Contains(end, "unexpected error when reading response body")
	}, func() any { return end })
}

// The request's own deadline ends the wait for a webhook, even if the webhook has a longer timeout.
// Other requests are not affected.
func TestTheRequestsOwnDeadlineBoundsTheCall(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	h := startHook(t, func(w http.ResponseWriter, r *http.Request, q gjson.Result) {
		if strings.HasPrefix(q.Get("request.name").String(), "slow") {
			<-r.Context().Done()
		}
		respondReview(w, q, true, "")
	})
	s.mutating(h.hookAt("a", "", `"failurePolicy":"Ignore","timeoutSeconds":30`))
	s.want(504, "POST", hookedMaps+"?timeout=1s", hookedMap("slow"))
	for _, asked := range h.take() { // it may not be called at all on a slow machine
		if asked.query != "timeout=1s" {
			t.Errorf("the webhook was told %q", asked.query)
		}
	}
	s.want(404, "GET", hookedMaps+"/slow", "")
}

func TestAHungUpClientEndsTheCall(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	called, ended := make(chan struct{}, 1), make(chan struct{}, 1)
	h := startHook(t, func(_ http.ResponseWriter, r *http.Request, _ gjson.Result) {
		called <- struct{}{}
		<-r.Context().Done()
		ended <- struct{}{}
	})
	s.validatingBy(h.hookAt("a", "", `"timeoutSeconds":30,"failurePolicy":"Ignore"`))
	ctx, cancel := context.WithCancel(context.Background())
	r, _ := http.NewRequestWithContext(ctx, "POST", s.url+hookedMaps, strings.NewReader(hookedMap("a")))
	go func() {
		<-called
		cancel()
	}()
	if _, err := s.client.Do(r); err == nil {
		t.Fatal("the request was answered")
	}
	<-ended
	apitest.WaitFor(t, "the call is counted", func() bool {
		return s.scrape()[`apiserver_admission_webhook_request_total{code="503",name="a.example.com",operation="CREATE",rejected="false",type="validating"} 1`]
	})
	if all := s.scrape(); all[`apiserver_admission_webhook_fail_open_count{name="a.example.com",type="validating"} 1`] {
		t.Error("a client that hung up counts as a webhook that failed")
	}
}

// If a webhook does not respond, the request must release its seat after the timeout. Reads do not
// need webhooks and have separate seats.
func TestSlowWebhooksGiveSeatsBack(t *testing.T) {
	t.Parallel()
	s := startTest(t, "--enable-priority-and-fairness=false", "--max-mutating-requests-inflight=2", "--max-requests-inflight=2")
	h := startHook(t, func(_ http.ResponseWriter, r *http.Request, _ gjson.Result) { <-r.Context().Done() })
	called := false
	// On a slow machine the timeout may pass before the webhook is called. In that case try a
	// longer one.
	for seconds := 1; !called; seconds = min(2*seconds, 30) {
		s.validatingBy(h.hookAt("a", "", fmt.Sprintf(`"timeoutSeconds":%d,"failurePolicy":"Fail"`, seconds)))
		var running sync.WaitGroup
		var failed, refused atomic.Int32
		for i := range 6 {
			running.Go(func() {
				switch a, err := s.try("POST", hookedMaps, hookedMap(fmt.Sprint("m", i))); {
				case err == nil && a.code == 500:
					failed.Add(1)
				case err == nil && a.code == 429:
					refused.Add(1)
				}
			})
		}
		apitest.WaitFor(t, "the webhook is called", func() bool {
			called = called || len(h.take()) > 0
			return called || failed.Load()+refused.Load() == 6
		})
		s.want(200, "GET", hookedMaps, "")
		running.Wait()
		if failed.Load() < 2 || failed.Load()+refused.Load() != 6 {
			t.Errorf("%d failed, %d refused", failed.Load(), refused.Load())
		}
	}
	s.validatingBy()
	s.want(201, "POST", hookedMaps, hookedMap("later"))
}

// If a webhook writes to the server that calls it, and is called again for that write, the
// recursion ends with the timeout of the innermost call.
func TestAWebhookThatCallsItselfEnds(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	var depth atomic.Int32
	h := startHook(t, func(w http.ResponseWriter, _ *http.Request, q gjson.Result) {
		if n := depth.Add(1); n < 5 {
			s.try("POST", hookedMaps, hookedMap(fmt.Sprint("inner", n)))
		}
		respondReview(w, q, true, "")
	})
	// All nested calls share the timeout of the outermost one, so it is long enough for a busy
	// machine.
	s.validatingBy(h.hookAt("a", "", `"timeoutSeconds":30`))
	s.want(201, "POST", hookedMaps, hookedMap("outer"))
	s.want(200, "GET", hookedMaps+"/inner4", "")
}

// ---- Patches

func TestPatchesOfMutatingWebhooks(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	internal := "500 InternalError Internal error occurred: "
	cases := map[string]struct {
		patch string
		code  int
		want  string // a part of the response
	}{
		"label":      {`[{"op":"add","path":"/metadata/labels","value":{"hook":"c"}}]`, 201, `"labels":{"hook":"c"}`},
		"rename":     {`[{"op":"replace","path":"/metadata/name","value":"renamed"}]`, 201, `"name":"renamed"`},
		"uid":        {`[{"op":"add","path":"/metadata/uid","value":"mine"}]`, 201, `"uid":`},
		"unknown":    {`[{"op":"add","path":"/foo","value":"c"}]`, 201, ``},
		"nothing":    {`[]`, 201, ``},
		"data":       {`[{"op":"add","path":"/data","value":{"a":"b"}}]`, 201, `"data":{"a":"b"}`},
		"move":       {`[{"op":"add","path":"/metadata/namespace","value":"kube-system"}]`, 400, "400 BadRequest the namespace of the provided object does not match the namespace sent on the request"},
		"undecoded":  {`{"op":`, 500, internal + `failed calling webhook "a.example.com": received undecodable patch in webhook response: unexpected end of JSON input`},
		"missing":    {`[{"op":"remove","path":"/spec/x"}]`, 500, internal + `the JSON patch of admission webhook "a.example.com" does not apply to the object`},
		"odd":        {`[{"op":"frob","path":"/spec/x"}]`, 500, internal + `the JSON patch of admission webhook "a.example.com" does not apply to the object`},
		"kind":       {`[{"op":"replace","path":"/kind","value":"Pod"}]`, 500, internal},
		"type":       {`[{"op":"replace","path":"/metadata/name","value":5}]`, 500, "cannot unmarshal number into Go struct field ObjectMeta.metadata.name of type string"},
		"root":       {`[{"op":"replace","path":"","value":[]}]`, 500, internal},
		"invalid":    {`[{"op":"add","path":"/metadata/labels","value":{"a b":"c"}}]`, 422, "422 Invalid"},
		"bad-fields": {`[{"op":"add","path":"/metadata/managedFields","value":[{"manager":"x","operation":"Foo"}]}]`, 201, `"name":"bad-fields"`},
	}
	h := startHook(t, func(w http.ResponseWriter, r *http.Request, q gjson.Result) {
		respondReview(w, q, true, patching(cases[r.URL.Path[1:]].patch))
	})
	for name, c := range cases {
		s.mutating(h.hookAt("a", name, ""))
		a := s.want(c.code, "POST", hookedMaps, hookedMap(name))
		text := string(a.body)
		if a.code > 201 {
			text = a.failure()
		}
		if !strings.Contains(text, c.want) || strings.Contains(text, "mine") {
			t.Errorf("%s: got %s, want %s", name, text, c.want)
		}
	}
	const reset = `299 - ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating ` +
		"admission controller; please fix your requests: operation must be `Apply` or `Update`\""
	s.mutating(h.hookAt("a", "bad-fields", ""))
	if a := s.want(201, "POST", hookedMaps, hookedMap("again")); a.header.Get("Warning") != reset {
		t.Errorf("warnings %q", a.header.Values("Warning"))
	}
	// A well-formed patch that cannot be applied does not count as a failed call.
	for _, name := range []string{"undecoded", "missing"} {
		s.mutating(h.hookAt("a", name, `"failurePolicy":"Ignore"`))
		s.want(map[string]int{"undecoded": 201, "missing": 500}[name], "POST", hookedMaps, hookedMap("ignore-"+name))
	}
}

func TestPatchedObjectsGetDefaults(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	h := startHook(t, allowing(patching(`[{"op":"add","path":"/spec/containers/-","value":{"name":"side","image":"x:latest"}}]`)))
	s.mutating(h.hookAt("a", "", `"rules":[{"operations":["CREATE"],"apiGroups":[""],"apiVersions":["v1"],"resources":["pods"]}]`))
	a := s.want(201, "POST", "/api/v1/namespaces/default/pods", `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"y"}]}}`)
	if got := a.get("spec.containers.1.imagePullPolicy").String(); got != "Always" {
		t.Errorf("the second container's imagePullPolicy is %q: %s", got, a.body)
	}
	q := h.take()[0].review.Get("request.object")
	if !q.Get("spec.tolerations.1").Exists() || q.Get("spec.priority").Int() != 0 || q.Get("metadata.uid").Exists() || q.Get("spec.containers.0.imagePullPolicy").String() == "" {
		t.Errorf("the webhook was shown %s", q)
	}
	for _, entry := range a.get("metadata.managedFields").Array() {
		if strings.Contains(entry.Raw, "side") {
			t.Errorf("what a webhook adds belongs to %s", entry)
		}
	}
}

// ---- Reinvocation

func TestReinvocation(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	h := startHook(t, func(w http.ResponseWriter, r *http.Request, q gjson.Result) {
		name := strings.Trim(r.URL.Path, "/")
		if q.Get("request.object.data." + name).Exists() {
			respondReview(w, q, true, "")
			return
		}
		op := `{"op":"add","path":"/data/` + name + `","value":"x"}`
		respondReview(w, q, true, patching("["+op+"]"))
	})
	quiet := startHook(t, allowing(""))
	again := `"reinvocationPolicy":"IfNeeded"`
	cases := []struct {
		name  string
		hooks []string
		want  string
	}{
		{"nobody wants it", []string{h.hookAt("a", "a", ""), h.hookAt("b", "b", "")}, "a b"},
		{"the first does", []string{h.hookAt("a", "a", again), h.hookAt("b", "b", "")}, "a b a"},
		{"the last does", []string{h.hookAt("a", "a", ""), h.hookAt("b", "b", again)}, "a b"},
		{"both do", []string{h.hookAt("a", "a", again), h.hookAt("b", "b", again)}, "a b a"},
		{"all three", []string{h.hookAt("a", "a", again), h.hookAt("b", "b", again), h.hookAt("c", "c", again)}, "a b c a b"},
		{"the second changes nothing", []string{h.hookAt("a", "a", again), quiet.hookAt("b", "q", again)}, "a"},
	}
	for i, c := range cases {
		s.mutating(c.hooks...)
		s.want(201, "POST", hookedMaps, fmt.Sprintf(`{"metadata":{"name":"m%d"},"data":{"z":"z"}}`, i))
		var got []string
		for _, asked := range h.take() {
			got = append(got, asked.path[1:])
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: called %v, want %s", c.name, got, c.want)
		}
	}
	s.mutating() // configurations are called in the order of their names
	path := hookConfigs + "mutatingwebhookconfigurations"
	s.want(201, "POST", path, hookConfig("Mutating", "zz", h.hookAt("z", "one", "")))
	s.want(201, "POST", path, hookConfig("Mutating", "aa", h.hookAt("y", "two", ""), h.hookAt("x", "three", "")))
	s.want(201, "POST", hookedMaps, `{"metadata":{"name":"ordered"},"data":{"z":"z"}}`)
	if got := h.told(); got != "/two CREATE configmaps ordered, /three CREATE configmaps ordered, /one CREATE configmaps ordered" {
		t.Errorf("called %s", got)
	}
}

// ---- Requests to webhooks

// annotateWithVerb is a webhook. At /m it writes the operation into an annotation of each object
// that can have annotations. TestEveryVerbPathMeetsBothKinds uses it to check that a mutating
// webhook sees each kind of write, that its patch is applied, and that a validating webhook sees
// the result.
func annotateWithVerb(w http.ResponseWriter, r *http.Request, q gjson.Result) {
	object := q.Get("request.object")
	switch kind := q.Get("request.kind.kind").String(); {
	case r.URL.Path != "/m" || object.Type == gjson.Null || strings.HasSuffix(kind, "Review") || kind == "TokenRequest":
		respondReview(w, q, true, "")
	case !object.Get("metadata.annotations").Exists():
		respondReview(w, q, true, patching(`[{"op":"add","path":"/metadata/annotations","value":{"hook":"`+q.Get("request.operation").String()+`"}}]`))
	default:
		respondReview(w, q, true, patching(`[{"op":"add","path":"/metadata/annotations/hook","value":"`+q.Get("request.operation").String()+`"}]`))
	}
}

func TestEveryVerbPathMeetsBothKinds(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	h := startHook(t, annotateWithVerb)
	s.define("gadgets")
	all := `"rules":[{"operations":["*"],"apiGroups":["*"],"apiVersions":["*"],"resources":["*/*"]}]`
	s.mutating(h.hookAt("m", "m", all))
	s.validatingBy(h.hookAt("v", "v", all))
	const merge, apply = "Content-Type: application/merge-patch+json", "Content-Type: application/apply-patch+yaml"
	pods, deployments, accounts := "/api/v1/namespaces/default/pods", "/apis/apps/v1/namespaces/default/deployments", "/api/v1/namespaces/default/serviceaccounts"
	pod := `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"y"}]}}`
	deployment := `{"metadata":{"name":"d"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"y"}]}}}}`
	steps := []struct {
		method, path, body, header string
		told                       string // the request that both webhooks must receive
		options                    string
		annotated                  string // in the response, or in the object at path if it begins with "GET"
	}{
		{"POST", hookedMaps + "?fieldManager=fm", hookedMap("a"), "", "CREATE configmaps a", "CreateOptions fm", "CREATE"},
		{"PUT", hookedMaps + "/a", `{"metadata":{"name":"a"},"data":{"x":"y"}}`, "", "UPDATE configmaps a", "UpdateOptions ", "UPDATE"},
		{"PATCH", hookedMaps + "/a?fieldManager=pm", `{"data":{"x":"z"}}`, merge, "UPDATE configmaps a", "UpdateOptions pm", "UPDATE"},
		{"PATCH", hookedMaps + "/b?fieldManager=am", hookedMap("b"), apply, "CREATE configmaps b", "CreateOptions am", "CREATE"},
		{"PATCH", hookedMaps + "/b?fieldManager=am", hookedMap("b"), apply, "UPDATE configmaps b", "UpdateOptions am", "UPDATE"},
		{"PUT", "/apis/coordination.k8s.io/v1/namespaces/default/leases/l", `{"metadata":{"name":"l"}}`, "", "CREATE leases l", "CreateOptions ", "CREATE"},
		{"DELETE", hookedMaps + "/b", "", "", "DELETE configmaps b", "DeleteOptions ", ""},
		{"DELETE", hookedMaps + "?fieldSelector=metadata.name%3Da", "", "", "DELETE configmaps", "DeleteOptions ", ""},
		{"POST", pods, pod, "", "CREATE pods p", "CreateOptions ", "CREATE"},
		{"PATCH", pods + "/p/status", `{"status":{"message":"m"}}`, merge, "UPDATE pods status p", "UpdateOptions ", ""},
		{"POST", pods + "/p/binding", `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"p"},"target":{"kind":"Node","name":"n"}}`, "", "CREATE pods binding p", "CreateOptions ", ""},
		{"POST", pods + "/p/eviction", `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"p"}}`, "", "CREATE pods eviction p", "CreateOptions ", ""},
		{"POST", deployments, deployment, "", "CREATE deployments d", "CreateOptions ", "CREATE"},
		{"PATCH", deployments + "/d/scale", `{"spec":{"replicas":3}}`, merge, "UPDATE deployments scale d", "UpdateOptions ", ""},
		{"PUT", deployments + "/d/scale", `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"d","namespace":"default"},"spec":{"replicas":4}}`, "", "UPDATE deployments scale d", "UpdateOptions ", ""},
		{"POST", gadgets, gadget(t, "g", ""), "", "CREATE gadgets g", "CreateOptions ", "CREATE"},
		{"PATCH", gadgets + "/g", `{"metadata":{"labels":{"a":"b"}}}`, merge, "UPDATE gadgets g", "UpdateOptions ", "UPDATE"},
		{"PATCH", gadgets + "/g", gadget(t, "g", ""), apply + "\x00?fieldManager=x&force=true", "UPDATE gadgets g", "UpdateOptions x", "UPDATE"},
		{"DELETE", gadgets + "/g", "", "", "DELETE gadgets g", "DeleteOptions ", ""},
		{"POST", "/api/v1/namespaces", `{"metadata":{"name":"new"}}`, "", "CREATE namespaces new", "CreateOptions ", "CREATE"},
		{"POST", accounts, `{"metadata":{"name":"sa"}}`, "", "CREATE serviceaccounts sa", "CreateOptions ", "CREATE"},
		{"POST", accounts + "/sa/token", `{"spec":{}}`, "", "CREATE serviceaccounts token sa", "CreateOptions ", ""},
	}
	for _, step := range steps {
		header, query, _ := strings.Cut(step.header, "\x00")
		a := s.send(step.method, step.path+query, step.body, header)
		what := step.method + " " + step.path
		if a.code > 202 {
			t.Fatalf("%s: %s", what, a.failure())
		}
		asked := h.take()
		if len(asked) != 2 || asked[0].path != "/m" || asked[1].path != "/v" {
			t.Errorf("%s: %d webhooks were asked, want the mutating one and the validating one", what, len(asked))
			continue
		}
		for _, k := range asked {
			checkHookTold(t, what, k.review.Get("request"), step.told, step.options)
		}
		if got := a.get("metadata.annotations.hook").String(); got != step.annotated && step.annotated != "" {
			t.Errorf("%s: the answer has annotation %q, want %q", what, got, step.annotated)
		}
		if object := asked[1].review.Get("request.object"); step.annotated != "" && object.Get("metadata.annotations.hook").String() != step.annotated {
			t.Errorf("%s: the validating webhook was shown %s", what, object)
		}
	}
	s.want(201, "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", `{"spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}`)
	if called := h.take(); len(called) != 0 { // Kubernetes 1.36 and later exclude reviews
		t.Errorf("%d webhooks were called for a review", len(called))
	}
}

// checkHookTold checks the members that must be set in every request to a webhook.
func checkHookTold(t *testing.T, what string, q gjson.Result, told, options string) {
	t.Helper()
	got := strings.Join(strings.Fields(strings.Join([]string{q.Get("operation").String(), q.Get("resource.resource").String(), q.Get("subResource").String(), q.Get("name").String()}, " ")), " ")
	if got != told {
		t.Errorf("%s: told %s, want %s", what, got, told)
	}
	if got := q.Get("options.kind").String() + " " + q.Get("options.fieldManager").String(); got != options || q.Get("options.apiVersion").String() != "meta.k8s.io/v1" {
		t.Errorf("%s: options %s, want %s", what, q.Get("options"), options)
	}
	object, old := q.Get("object").Type != gjson.Null, q.Get("oldObject").Type != gjson.Null
	operation := q.Get("operation").String()
	if object != (operation != "DELETE") || old != (operation != "CREATE") {
		t.Errorf("%s: object %v, oldObject %v", what, object, old)
	}
	shown := q.Get("object")
	if !object {
		shown = q.Get("oldObject")
	}
	if shown.Get("kind").String() != q.Get("kind.kind").String() || shown.Get("apiVersion").String() == "" {
		t.Errorf("%s: an object of kind %s for %s", what, shown.Get("kind"), q.Get("kind"))
	}
	if q.Get("userInfo.username").String() != "system:unsecured" || q.Get("dryRun").Type != gjson.False || len(q.Get("uid").String()) != 36 {
		t.Errorf("%s: %s", what, q.Raw)
	}
	if q.Get("requestKind").Raw != q.Get("kind").Raw || q.Get("requestResource").Raw != q.Get("resource").Raw || q.Get("requestSubResource").Raw != q.Get("subResource").Raw {
		t.Errorf("%s: the request's own kind differs: %s", what, q.Raw)
	}
}

func TestAWebhookSeesWhoActs(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	h := startHook(t, allowing(""))
	s.validatingBy(h.hookAt("a", "", ""))
	s.want(201, "POST", hookedMaps, hookedMap("a"), "Impersonate-User: ann", "Impersonate-Group: dev", "Impersonate-Extra-Scopes: view")
	asked := h.take()
	if got, want := asked[0].review.Get("request.userInfo").Raw, `{"username":"ann","groups":["dev","system:authenticated"],"extra":{"scopes":["view"]}}`; got != want {
		t.Errorf("userInfo %s, want %s", got, want)
	}
}

func TestAMutatingWebhookCannotPatchADeletion(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.want(201, "POST", hookedMaps, hookedMap("a"))
	h := startHook(t, allowing(patching(`[{"op":"add","path":"/data","value":{}}]`)))
	s.mutating(h.hookAt("a", "", ""))
	a := s.want(500, "DELETE", hookedMaps+"/a", "")
	if !strings.Contains(a.failure(), `admission webhook "a.example.com" attempted to modify the object, which is not supported for this operation`) {
		t.Error(a.failure())
	}
}

func TestDenialsOnEveryVerbLeaveTheObject(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.want(201, "POST", hookedMaps, hookedMap("a"))
	before := string(s.want(200, "GET", hookedMaps+"/a", "").body)
	h := startHook(t, func(w http.ResponseWriter, _ *http.Request, q gjson.Result) { respondReview(w, q, false, "") })
	s.validatingBy(h.hookAt("a", "", ""))
	for _, r := range [][4]string{{"POST", "", hookedMap("b")}, {"PUT", "/a", `{"metadata":{"name":"a"},"data":{"a":"b"}}`},
		{"PATCH", "/a", `{"data":{"a":"b"}}`, "Content-Type: application/merge-patch+json"}, {"DELETE", "/a"}, {"DELETE", ""},
		{"PATCH", "/a?fieldManager=x", hookedMap("a"), "Content-Type: application/apply-patch+yaml"}} {
		a := s.want(400, r[0], hookedMaps+r[1], r[2], r[3])
		if want := `admission webhook "a.example.com" denied the request without explanation`; a.get("message").String() != want {
			t.Errorf("%s %s: %s", r[0], r[1], a.failure())
		}
	}
	if after := string(s.want(200, "GET", hookedMaps+"/a", "").body); after != before {
		t.Errorf("the object is now %s", after)
	}
}

// ---- Selectors and match conditions

func TestWebhookSelectors(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.want(201, "POST", "/api/v1/namespaces", `{"metadata":{"name":"red","labels":{"colour":"red"}}}`)
	h := startHook(t, allowing(""))
	all := `"rules":[{"operations":["*"],"apiGroups":["*"],"apiVersions":["*"],"resources":["*"]}],`
	red := all + `"namespaceSelector":{"matchLabels":{"colour":"red"}}`
	marked := `"objectSelector":{"matchLabels":{"mark":"x"}}`
	marking := func(name, labels string) string {
		return `{"metadata":{"name":"` + name + `","labels":{` + labels + `}}}`
	}
	inRed := "/api/v1/namespaces/red/configmaps"
	cases := []struct {
		name, hook, method, path, body string
		asked                          bool
	}{
		{"other namespace", red, "POST", hookedMaps, hookedMap("a"), false},
		{"red namespace", red, "POST", inRed, hookedMap("a"), true},
		{"cluster scope", red, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", `{"metadata":{"name":"r"}}`, true},
		{"new namespace, not red", red, "POST", "/api/v1/namespaces", marking("blue", ""), false},
		{"new namespace, red", red, "POST", "/api/v1/namespaces", marking("red2", `"colour":"red"`), true},
		{"namespace becomes blue", red, "PUT", "/api/v1/namespaces/red2", marking("red2", `"colour":"blue"`), false},
		{"blue namespace goes", red, "DELETE", "/api/v1/namespaces/blue", "", false},
		{"red namespace goes", red, "DELETE", "/api/v1/namespaces/red", "", true},
		{"by the namespace's own label", all + `"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"default"}}`, "POST", hookedMaps, hookedMap("b"), true},
		{"object unmarked", marked, "POST", hookedMaps, hookedMap("c"), false},
		{"object marked", marked, "POST", hookedMaps, marking("d", `"mark":"x"`), true},
		{"mark goes: the old object has it", marked, "PUT", hookedMaps + "/d", marking("d", ""), true},
		{"unmarked stays", marked, "PUT", hookedMaps + "/d", marking("d", `"a":"b"`), false},
		{"mark comes", marked, "PUT", hookedMaps + "/d", marking("d", `"mark":"x"`), true},
		{"marked goes", marked, "DELETE", hookedMaps + "/d", "", true},
		{"configurations are exempt", all + `"failurePolicy":"Fail"`, "POST", hookConfigs + "mutatingwebhookconfigurations", hookConfig("Mutating", "other"), false},
		{"policies are exempt", all + `"failurePolicy":"Fail"`, "DELETE", hookConfigs + "validatingadmissionpolicies", "", false},
	}
	for _, c := range cases {
		s.validatingBy(h.hookAt("a", "", c.hook))
		if a := s.send(c.method, c.path, c.body); a.code > 201 {
			t.Errorf("%s: %s", c.name, a.failure())
		}
		if asked := len(h.take()) > 0; asked != c.asked {
			t.Errorf("%s: asked %v, want %v", c.name, asked, c.asked)
		}
	}
	s.validatingBy(h.hookAt("a", "", red))
	if a := s.want(404, "POST", "/api/v1/namespaces/none/configmaps", hookedMap("a")); a.get("message").String() != `namespaces "none" not found` {
		t.Error(a.failure())
	}
}

func TestEquivalentVersionsAreConverted(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	const v1, v2 = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers", "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"
	body := `{"metadata":{"name":"h"},"spec":{"maxReplicas":3,"targetCPUUtilizationPercentage":50,"scaleTargetRef":{"kind":"Deployment","name":"d","apiVersion":"apps/v1"}}}`
	rules := `"rules":[{"operations":["CREATE"],"apiGroups":["autoscaling"],"apiVersions":["v2"],"resources":["horizontalpodautoscalers"]}]`
	h := startHook(t, allowing(patching(`[{"op":"replace","path":"/spec/metrics/0/resource/target/averageUtilization","value":70}]`)))
	s.mutating(h.hookAt("a", "", rules+`,"matchPolicy":"Exact"`))
	s.want(201, "POST", v1+"?dryRun=All", body)
	if got := h.told(); got != "" {
		t.Errorf("Exact: told %s", got)
	}
	s.mutating(h.hookAt("a", "", rules))
	a := s.want(201, "POST", v1, body)
	if got := a.get("spec.targetCPUUtilizationPercentage").Int(); got != 70 {
		t.Errorf("the patch of the other version is lost: %s", a.body)
	}
	q := h.take()[0].review.Get("request")
	if q.Get("kind.version").String() != "v2" || q.Get("resource.version").String() != "v2" || q.Get("requestKind.version").String() != "v1" ||
		q.Get("requestResource.version").String() != "v1" || q.Get("object.apiVersion").String() != "autoscaling/v2" {
		t.Errorf("told %s", q.Raw)
	}
	s.mutating()
	events := `"rules":[{"operations":["*"],"apiGroups":[""],"apiVersions":["v1"],"resources":["events"]}]`
	s.validatingBy(h.hookAt("a", "", events))
	s.send("POST", "/apis/events.k8s.io/v1/namespaces/default/events", `{"metadata":{"name":"e"},"eventTime":"2020-01-01T00:00:00.000000Z","action":"a",
		"reason":"r","type":"Normal","reportingController":"c.io/c","reportingInstance":"i","regarding":{"kind":"Pod","namespace":"default","name":"p"},"note":"hello"}`)
	if q := h.take()[0].review.Get("request"); q.Get("object.message").String() != "hello" || q.Get("requestKind.group").String() != "events.k8s.io" {
		t.Errorf("told %s", q.Raw)
	}
}

func TestEquivalentVersionsOfCustomResources(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	version := `{name: %s, served: true, storage: %v, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {a: {type: integer}, b: {type: string, default: x}}}}}}}`
	s.want(201, "POST", definitionsPath, kubetest.FromFlow(t, fmt.Sprintf(`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: foos.h.io},
		spec: {group: h.io, scope: Namespaced, names: {plural: foos, kind: Foo}, versions: [`+version+", "+version+`]}}`, "v1", true, "v2", false)))
	h := startHook(t, allowing(patching(`[{"op":"add","path":"/spec/a","value":7},{"op":"add","path":"/spec/odd","value":7}]`)))
	s.mutating(h.hookAt("a", "", `"rules":[{"operations":["*"],"apiGroups":["h.io"],"apiVersions":["v2"],"resources":["foos"]}]`))
	a := s.want(201, "POST", "/apis/h.io/v1/namespaces/default/foos", `{"apiVersion":"h.io/v1","kind":"Foo","metadata":{"name":"f"},"spec":{}}`)
	if a.get("apiVersion").String() != "h.io/v1" || a.get("spec").Raw != `{"a":7,"b":"x"}` {
		t.Errorf("answered %s", a.body)
	}
	if q := h.take()[0].review.Get("request"); q.Get("object.apiVersion").String() != "h.io/v2" || q.Get("object.spec.b").String() != "x" {
		t.Errorf("told %s", q.Raw)
	}
}

func TestWebhookMatchConditions(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	h := startHook(t, allowing(""))
	condition := func(expression string) string {
		text, _ := json.Marshal(expression)
		return `"matchConditions":[{"name":"first","expression":"true"},{"name":"second","expression":` + string(text) + `}]`
	}
	cases := []struct {
		expression, more string
		code             int
		asked            bool
	}{
		{`object.metadata.name == "celx"`, "", 201, true},
		{`object.metadata.name == "other"`, "", 201, false},
		{`oldObject == null && request.operation == "CREATE" && request.dryRun && request.resource.resource == "configmaps"`, "", 201, true},
		{`request.namespace == "default" && request.options.kind == "CreateOptions" && "system:masters" in request.userInfo.groups`, "", 201, true},
		{`authorizer.group("").resource("pods").namespace("default").check("create").allowed()`, "", 201, true},
		{`authorizer.requestResource.check("get").allowed() && namespaceObject == null`, "", 201, true},
		{`object.metadata.nope == "x"`, "", 403, false},
		{`object.metadata.nope == "x"`, `,"failurePolicy":"Ignore"`, 201, false},
	}
	for _, c := range cases {
		s.validatingBy(h.hookAt("a", "", condition(c.expression)+c.more))
		a := s.want(c.code, "POST", hookedMaps+"?dryRun=All", hookedMap("celx"))
		if asked := len(h.take()) > 0; asked != c.asked {
			t.Errorf("%s: asked %v, want %v (%s)", c.expression, asked, c.asked, a.failure())
		}
		if want := `configmaps "celx" is forbidden: `; c.code == 403 && !strings.HasPrefix(a.get("message").String(), want) {
			t.Errorf("%s: %s", c.expression, a.failure())
		}
	}
	for expression, want := range map[string]string{"foo ==": "compilation failed: ERROR: <input>:1:7: Syntax error", "1 + 1": "must evaluate to bool but got int",
		"request.foo == 1": "undefined field 'foo'", "params.x": "undeclared reference to 'params'", "": "Required value"} {
		a := s.want(422, "POST", hookConfigs+"validatingwebhookconfigurations", hookConfig("Validating", "bad", h.hookAt("a", "", condition(expression))))
		if !strings.Contains(a.failure(), "webhooks[0].matchConditions[1].expression: ") || !strings.Contains(a.failure(), want) {
			t.Errorf("%s: %s", expression, a.failure())
		}
	}
}

// If a webhook denies the deletion of a namespace, the server must report the reason in the
// namespace's status and try again. It is not called for the delete of an evicted pod.
func TestWebhookHoldsANamespaceUp(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	h := startHook(t, func(w http.ResponseWriter, _ *http.Request, q gjson.Result) {
		respondReview(w, q, q.Get("request.resource.resource").String() == "namespaces" || q.Get("request.subResource").String() == "eviction", "")
	})
	maps := s.namespace("doomed")
	s.want(201, "POST", maps, hookedMap("a"))
	s.want(201, "POST", "/api/v1/namespaces/doomed/pods", `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"y"}]}}`)
	s.validatingBy(h.hookAt("a", "", `"rules":[{"operations":["*"],"apiGroups":["*"],"apiVersions":["*"],"resources":["*/*"]}]`))
	s.want(400, "DELETE", maps+"/a", "")
	s.want(201, "POST", "/api/v1/namespaces/doomed/pods/p/eviction", `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"p"}}`)
	s.want(404, "GET", "/api/v1/namespaces/doomed/pods/p", "")
	s.want(200, "DELETE", "/api/v1/namespaces/doomed", "")
	apitest.WaitFor(t, "the namespace's condition", func() bool {
		failed := s.want(200, "GET", "/api/v1/namespaces/doomed", "").get(`status.conditions.#(type=="NamespaceDeletionContentFailure")`)
		return failed.Get("status").String() == "True" && strings.Contains(failed.Get("message").String(), "denied the request")
	})
	s.want(200, "GET", maps+"/a", "")
	s.validatingBy()
	apitest.WaitFor(t, "the namespace's end", func() bool { return s.send("GET", "/api/v1/namespaces/doomed", "").code == 404 })
}

// ---- Configurations and connections

func TestConfigurationsHoldFromTheirAnswerOn(t *testing.T) {
	t.Parallel()
	s := startTest(t, onSomeFile(t))
	h := startHook(t, func(w http.ResponseWriter, _ *http.Request, q gjson.Result) { respondReview(w, q, false, "") })
	path := hookConfigs + "validatingwebhookconfigurations"
	for i := range 10 {
		s.want(201, "POST", path, hookConfig("Validating", "test", h.hookAt("a", "", "")))
		s.want(400, "POST", hookedMaps, hookedMap(fmt.Sprint("m", i)))
		s.want(200, "DELETE", path+"/test", "")
		s.want(201, "POST", hookedMaps, hookedMap(fmt.Sprint("m", i)))
	}
	s.want(201, "POST", path, hookConfig("Validating", "test", h.hookAt("a", "", "")))
	s.want(200, "PATCH", path+"/test", `[{"op":"replace","path":"/webhooks/0/rules/0/operations","value":["DELETE"]}]`, "Content-Type: application/json-patch+json")
	s.want(201, "POST", hookedMaps, hookedMap("free"))
	s.want(400, "DELETE", hookedMaps+"/free", "")
	s.restart()
	s.want(400, "DELETE", hookedMaps+"/free", "")
}

func TestConnectionsAreUsedAgainAndGoWithTheirConfiguration(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	h := startHook(t, allowing(""))
	s.validatingBy(h.hookAt("a", "", ""))
	for i := range 20 {
		s.want(201, "POST", hookedMaps, hookedMap(fmt.Sprint("m", i)))
		if i == 10 { // other webhooks do not affect this webhook's connections
			s.want(201, "POST", hookConfigs+"mutatingwebhookconfigurations", hookConfig("Mutating", "other"))
		}
	}
	asked := h.take()
	if len(h.conns) != 1 || asked[0].proto != "HTTP/2.0" {
		t.Errorf("20 calls took %d connections, of %s; want 1 of HTTP/2.0", len(h.conns), asked[0].proto)
	}
	s.validatingBy()
	apitest.WaitFor(t, "the connection to be closed", func() bool { return h.closed.Load() == 1 })
}

// TestWebhooksAreCalledByTheCleanPath checks that paths are cleaned in URLs and in references to
// Services.
func TestWebhooksAreCalledByTheCleanPath(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	mux := http.NewServeMux() // redirects every path that is not clean
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		q, _ := r.Context().Value(t).(gjson.Result)
		respondReview(w, q, true, "")
	})
	h := startHook(t, func(w http.ResponseWriter, r *http.Request, q gjson.Result) {
		mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), t, q)))
	})
	for i, c := range []struct{ given, want string }{
		{"", "/"}, {"/", "/"}, {"//", "/"}, {"/mutate", "/mutate"}, {"//mutate-v1-pod", "/mutate-v1-pod"}, {"///a//b/", "/a/b"},
		{"/a/", "/a"}, {"/a/./b/../c", "/a/c"}, {"/a%20b", "/a b"}, {"/a%2Fb", "/a/b"}, {"/a%3Fb", "/a?b"},
	} {
		s.validatingBy(strings.Replace(h.hookAt("judge", "", ""), h.URL+"/", h.URL+c.given, 1))
		s.want(201, "POST", hookedMaps, hookedMap("m"+strconv.Itoa(i)))
		if asked := h.take(); len(asked) != 1 || asked[0].path != c.want {
			t.Errorf("%q: asked %v, want once at %q", c.given, asked, c.want)
		}
	}
}

func TestV1beta1Reviews(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	h := startHook(t, func(w http.ResponseWriter, _ *http.Request, q gjson.Result) {
		if q.Get("apiVersion").String() != "admission.k8s.io/v1beta1" {
			t.Errorf("asked in %s", q.Get("apiVersion"))
		}
		io.WriteString(w, `{"response":{"allowed":true,"patch":"`+base64.StdEncoding.EncodeToString([]byte(`[{"op":"add","path":"/data","value":{"a":"b"}}]`))+`"}}`)
	})
	s.mutating(h.hookAt("a", "", `"admissionReviewVersions":["v7","v1beta1","v1"]`))
	if a := s.want(201, "POST", hookedMaps, hookedMap("a")); a.get("data.a").String() != "b" {
		t.Errorf("answered %s", a.body)
	}
	s.validatingBy(h.hookAt("a", "", `"admissionReviewVersions":["v1beta1"]`))
	s.want(201, "POST", hookedMaps, hookedMap("b"))
}

func TestAuditAnnotationsOfWebhooks(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "audit.log")
	s := startTest(t, "--audit-log-path="+log)
	s.want(201, "POST", hookedMaps, hookedMap("a"))
	h := startHook(t, func(w http.ResponseWriter, r *http.Request, q gjson.Result) {
		more := `"auditAnnotations":{"note":"` + r.URL.Path + `","bad key":"x","a/b":"x"}`
		if r.URL.Path == "/changes" {
			more += "," + patching(`[{"op":"add","path":"/data","value":{"a":"b"}}]`)
		}
		respondReview(w, q, true, more)
	})
	s.mutating(h.hookAt("m", "looks", `"reinvocationPolicy":"IfNeeded"`), h.hookAt("n", "changes", ""))
	s.validatingBy(h.hookAt("v", "checks", ""))
	s.want(200, "PATCH", hookedMaps+"/a", `{"metadata":{"labels":{"a":"b"}}}`, "Content-Type: application/merge-patch+json")
	s.halt()
	got := auditNotes(t, log, "configmaps/a")
	want := map[string]string{
		"m.example.com/note": "/looks", "n.example.com/note": "/changes", "v.example.com/note": "/checks",
		"mutation.webhook.admission.k8s.io/round_0_index_0": `{"configuration":"test","webhook":"m.example.com","mutated":false}`,
		"mutation.webhook.admission.k8s.io/round_0_index_1": `{"configuration":"test","webhook":"n.example.com","mutated":true}`,
		"mutation.webhook.admission.k8s.io/round_1_index_0": `{"configuration":"test","webhook":"m.example.com","mutated":false}`,
	}
	for key, value := range got {
		if ours := strings.Contains(key, "example.com") || strings.Contains(key, "webhook.admission"); ours && want[key] != value {
			t.Errorf("annotation %s: got %q, want %q", key, value, want[key])
		}
		delete(want, key)
	}
	if len(want) > 0 {
		t.Errorf("annotations lack %v", want)
	}
}

// If a collection is deleted, the webhook must be called for each object. These calls run
// concurrently.
func TestWebhooksSeeEachObjectOfACollection(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	for i := range 40 {
		s.want(201, "POST", hookedMaps, hookedMap(fmt.Sprint("m", i)))
	}
	h := startHook(t, allowing(`"auditAnnotations":{"k":"v"},"warnings":["going"]`))
	s.mutating(h.hookAt("a", "m", ""))
	s.validatingBy(h.hookAt("a", "v", ""))
	a := s.want(200, "DELETE", hookedMaps, "")
	if got := a.header.Values("Warning"); len(got) != 1 {
		t.Errorf("warnings %q", got)
	}
	seen := map[string]int{}
	for _, asked := range h.take() {
		seen[asked.path+asked.review.Get("request.oldObject.metadata.name").String()]++
		if asked.review.Get("request.name").String() != "" {
			t.Errorf("a collection has no name: %s", asked.review.Get("request.name"))
		}
	}
	if len(seen) != 80 {
		t.Errorf("asked about %d, want 80", len(seen))
	}
}

// ---- The example

// TestExampleWebhook checks the program in testdata/programs/webhook.
func TestExampleWebhook(t *testing.T) {
	t.Parallel()
	if !apitest.Long() {
		t.Skip("builds a program")
	}
	binary := filepath.Join(t.TempDir(), "webhook.exe")
	if out, err := exec.Command("go", "build", "-o", binary, "../../testdata/programs/webhook").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	program := exec.Command(binary)
	output, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { program.Process.Kill(); program.Wait() }()
	manifest, err := io.ReadAll(output)
	if err != nil {
		t.Fatal(err)
	}
	s := startTest(t)
	for i, document := range strings.Split(string(manifest), "---\n") {
		body, err := yaml.YAMLToJSON([]byte(document))
		if err != nil {
			t.Fatal(err)
		}
		s.want(201, "POST", hookConfigs+[]string{"mutatingwebhookconfigurations", "validatingwebhookconfigurations"}[i], string(body))
	}
	if a := s.want(201, "POST", hookedMaps, hookedMap("a")); a.get(`metadata.labels.webhook\.example\.com/seen`).String() != "true" {
		t.Errorf("the label is missing: %s", a.body)
	}
	if a := s.want(403, "POST", hookedMaps, hookedMap("forbidden")); a.get("message").String() != `admission webhook "validate.example.com" denied the request: nothing may be called forbidden` {
		t.Error(a.failure())
	}
	a := s.want(201, "POST", "/api/v1/namespaces/default/pods", `{"metadata":{"name":"web"},"spec":{"containers":[{"name":"web","image":"nginx:latest"}]}}`)
	if !strings.Contains(a.header.Get("Warning"), `runs nginx:latest`) {
		t.Errorf("warnings %q", a.header.Values("Warning"))
	}
	s.want(200, "DELETE", hookedMaps+"/a", "")
	s.want(201, "POST", "/api/v1/namespaces/kube-system/configmaps", hookedMap("forbidden"))
}

// ---- Benchmarks

// BenchmarkWebhook measures one create that a mutating webhook on this host changes.
func BenchmarkWebhook(b *testing.B) {
	s := startTest(b)
	h := startHook(b, allowing(patching(`[{"op":"add","path":"/data","value":{"a":"b"}}]`)))
	s.mutating(h.hookAt("a", "", ""))
	n := 0
	for b.Loop() {
		s.want(201, "POST", hookedMaps, hookedMap(fmt.Sprint("m", n)))
		n++
	}
}

// The admission of classes runs twice, before and after mutating webhooks. A pod gets its additions
// only once.
func TestClassesSpeakTwiceAndGiveOnce(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	const runtimes = "/apis/node.k8s.io/v1/runtimeclasses"
	s.want(201, "POST", runtimes, `{"metadata":{"name":"rc"},"handler":"h","overhead":{"podFixed":{"cpu":"100m"}},
		"scheduling":{"nodeSelector":{"a":"b"},"tolerations":[{"key":"x","operator":"Exists"}]}}`)
	pod := func(name string) string {
		a := s.want(201, "POST", "/api/v1/namespaces/default/pods",
			`{"metadata":{"name":"`+name+`"},"spec":{"runtimeClassName":"rc","priorityClassName":"system-node-critical","containers":[{"name":"c","image":"i"}]}}`)
		return a.get("spec").Raw
	}
	alone := pod("alone")
	h := startHook(t, func(w http.ResponseWriter, _ *http.Request, q gjson.Result) { respondReview(w, q, true, "") })
	s.mutating(h.hookAt("m", "m", `"rules":[{"operations":["*"],"apiGroups":["*"],"apiVersions":["*"],"resources":["*"]}]`))
	kubetest.SameJSON(t, pod("seen"), alone)
	if asked := h.take(); len(asked) != 1 || asked[0].review.Get("request.object.spec.priority").Int() != 2000001000 {
		t.Errorf("%d webhooks were asked; want one, with the pod's priority", len(asked))
	}
}
