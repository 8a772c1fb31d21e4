package main

import (
	"bytes"
	"fmt"
	stdlog "log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/tidwall/gjson"
	"k8s.io/klog/v2"

	"apilet/internal/admission"
	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
	"apilet/internal/audit"
	"apilet/internal/request"
	"apilet/internal/scheme"
)

// scrapeMetrics returns /metrics as a set of lines.
func scrapeMetrics(t testing.TB, m *metrics) map[string]bool {
	t.Helper()
	w := httptest.NewRecorder()
	m.handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("GET /metrics: got %d\n%s", w.Code, w.Body)
	}
	lines := map[string]bool{}
	for line := range strings.Lines(w.Body.String()) {
		lines[strings.TrimSpace(line)] = true
	}
	return lines
}

func wantMetrics(t *testing.T, got map[string]bool, want string) {
	t.Helper()
	for line := range strings.Lines(want) {
		if line = strings.TrimSpace(line); line != "" && !got[line] {
			t.Errorf("/metrics lacks the line\n%s", line)
		}
	}
}

var podList = requestLabels{verb: "LIST", version: "v1", resource: "pods", scope: "namespace", component: "apiserver"}

func TestRequestIsCountedUnderKubernetesNames(t *testing.T) {
	t.Parallel()
	m := newMetrics(speaks())
	m.buildInfo(map[string]string{"major": "1", "minor": "36"})
	m.observe(podList, requestResult{code: 200, bytes: 1500, elapsed: 30 * time.Millisecond, waited: 20 * time.Millisecond})
	m.observe(podList, requestResult{code: 410, bytes: 200, elapsed: time.Millisecond})
	watch := podList
	watch.verb = "WATCH"
	s := m.longRunning(watch)
	s.running.Inc()
	s.sent(3000)
	m.observe(watch, requestResult{code: 200, elapsed: time.Minute})
	dry := requestLabels{verb: "APPLY", group: "apps", version: "v1", resource: "deployments", scope: "resource", component: "apiserver", dryRun: "All"}
	m.observe(dry, requestResult{code: 201, elapsed: time.Second})
	m.deprecatedUse(requestLabels{version: "v1", resource: "endpoints"}, "")
	m.terminated(podList, 429)
	m.watchListDone(watch, time.Second)
	m.aborted(podList)
	m.observe(requestLabels{verb: "GET", subresource: "/livez"}, requestResult{})
	got := scrapeMetrics(t, m)
	wantMetrics(t, got, `
kubernetes_build_info{major="1",minor="36"} 1
# HELP apiserver_request_total [STABLE] Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and HTTP response code.
# TYPE apiserver_request_total counter
apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="pods",scope="namespace",subresource="",verb="LIST",version="v1"} 1
apiserver_request_total{code="410",component="apiserver",dry_run="",group="",resource="pods",scope="namespace",subresource="",verb="LIST",version="v1"} 1
apiserver_request_total{code="201",component="apiserver",dry_run="All",group="apps",resource="deployments",scope="resource",subresource="",verb="APPLY",version="v1"} 1
apiserver_request_total{code="200",component="",dry_run="",group="",resource="",scope="",subresource="/livez",verb="GET",version=""} 1
apiserver_request_duration_seconds_bucket{component="apiserver",dry_run="",group="",resource="pods",scope="namespace",subresource="",verb="LIST",version="v1",le="0.025"} 1
apiserver_request_duration_seconds_bucket{component="apiserver",dry_run="",group="",resource="pods",scope="namespace",subresource="",verb="LIST",version="v1",le="0.05"} 2
apiserver_request_sli_duration_seconds_bucket{component="apiserver",group="",resource="pods",scope="namespace",subresource="",verb="LIST",version="v1",le="0.05"} 2
apiserver_request_sli_duration_seconds_sum{component="apiserver",group="",resource="pods",scope="namespace",subresource="",verb="LIST",version="v1"} 0.011
apiserver_response_sizes_bucket{component="apiserver",group="",resource="pods",scope="namespace",subresource="",verb="LIST",version="v1",le="10000"} 2
apiserver_longrunning_requests{component="apiserver",group="",resource="pods",scope="namespace",subresource="",verb="WATCH",version="v1"} 1
apiserver_watch_events_total{group="",resource="pods",version="v1"} 1
apiserver_watch_events_sizes_bucket{group="",resource="pods",version="v1",le="4096"} 1
apiserver_requested_deprecated_apis{group="",removed_release="",resource="endpoints",subresource="",version="v1"} 1
apiserver_request_terminations_total{code="429",component="apiserver",group="",resource="pods",scope="namespace",subresource="",verb="LIST",version="v1"} 1
apiserver_request_aborts_total{group="",resource="pods",scope="namespace",subresource="",verb="LIST",version="v1"} 1
apiserver_watch_list_duration_seconds_count{group="",resource="pods",scope="namespace",version="v1"} 1
apiserver_current_inflight_requests{request_kind="readOnly"} 0
`)
	for line := range got {
		if strings.HasPrefix(line, "apiserver_request_sli") && (strings.Contains(line, "WATCH") || strings.Contains(line, "APPLY")) {
			t.Errorf("the service level has %s; want no watches and no dry runs", line)
		}
	}
}

func TestDeprecatedGaugeStaysOne(t *testing.T) {
	t.Parallel()
	m := newMetrics(speaks())
	for range 10 {
		m.deprecatedUse(requestLabels{group: "batch", version: "v1beta1", resource: "cronjobs", subresource: "status"}, "1.25")
	}
	wantMetrics(t, scrapeMetrics(t, m), `apiserver_requested_deprecated_apis{group="batch",removed_release="1.25",resource="cronjobs",subresource="status",version="v1beta1"} 1`)
}

func TestVerbLabels(t *testing.T) {
	t.Parallel()
	const apply = "application/apply-patch+yaml"
	for _, c := range []struct{ method, verb, sub, contentType, want string }{
		{"GET", "get", "", "", "GET"}, {"HEAD", "get", "", "", "GET"}, {"GET", "list", "", "", "LIST"}, {"HEAD", "list", "", "", "LIST"},
		{"GET", "watch", "", "", "WATCH"}, {"POST", "create", "", "", "POST"}, {"PUT", "update", "status", "", "PUT"},
		{"PATCH", "patch", "", "application/merge-patch+json", "PATCH"}, {"PATCH", "patch", "", apply, "APPLY"},
		{"DELETE", "deletecollection", "", "", "DELETE"}, {"GET", "get", "log", "", "CONNECT"}, {"POST", "create", "exec", "", "CONNECT"},
		{"GET", "", "", "", "GET"}, {"BREW", "", "", "", "other"}, {"OPTIONS", "", "", "", "other"}, {"get", "", "", "", "other"},
	} {
		if got := verbLabel(c.method, c.verb, c.sub, c.contentType); got != c.want {
			t.Errorf("verbLabel(%q, %q, %q, %q) = %q, want %q", c.method, c.verb, c.sub, c.contentType, got, c.want)
		}
	}
}

func TestScopeAndDryRunLabels(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ verb, namespace, name, want string }{
		{"get", "ns", "x", "resource"}, {"create", "ns", "", "resource"}, {"list", "ns", "", "namespace"}, {"list", "", "", "cluster"}, {"", "", "", ""},
	} {
		if got := scopeLabel(c.verb, c.namespace, c.name); got != c.want {
			t.Errorf("scopeLabel(%q, %q, %q) = %q, want %q", c.verb, c.namespace, c.name, got, c.want)
		}
	}
	for want, values := range map[string][]string{"": nil, "All": {"All", "All"}, "invalid": {"All", "x"}} {
		if got := dryRunLabel(values); got != want {
			t.Errorf("dryRunLabel(%q) = %q, want %q", values, got, want)
		}
	}
}

func TestLabelSetsAreBounded(t *testing.T) {
	t.Parallel()
	m := newMetrics(speaks())
	for i := range maxSeries + 50 {
		m.observe(requestLabels{verb: "GET", resource: fmt.Sprint("kind", i)}, requestResult{code: 200})
	}
	if len(m.series) != maxSeries+1 {
		t.Errorf("got %d label sets, want %d", len(m.series), maxSeries+1)
	}
	wantMetrics(t, scrapeMetrics(t, m), `apiserver_request_total{code="200",component="",dry_run="",group="",resource="other",scope="",subresource="",verb="GET",version=""} 50`)
}

func TestOrdinaryWritesAreTrackedTheShortWay(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	const deployments = "/apis/apps/v1/namespaces/default/deployments"
	s.want(201, "POST", benchPath, `{"metadata":{"name":"a","labels":{"x":"y"}},"data":{"k":"v"}}`)
	s.want(200, "PUT", benchPath+"/a?fieldManager=other", `{"metadata":{"name":"a"},"data":{"k":"w","l":"<&>"}}`)
	s.want(201, "POST", deployments, strings.NewReplacer(`"uid":"1",`, ``, `"resourceVersion":"7",`, ``).Replace(kubetest.DeploymentJSON(2)))
	s.want(200, "PATCH", deployments+"/d/status?fieldManager=controller", `{"status":{"replicas":1}}`, asMergePatch)
	s.want(200, "PATCH", deployments+"/d?fieldManager=scaler", `{"spec":{"replicas":5}}`, asMergePatch)
	s.want(200, "PATCH", deployments+"/d?fieldManager=image", `{"spec":{"template":{"spec":{"containers":[{"name":"c1","image":"next"}]}}}}`,
		"Content-Type: application/strategic-merge-patch+json")
	if short := s.wr.FieldTracking.Short.Load(); short < 6 {
		t.Errorf("%d writes went the short way", short)
	}
	if general := s.wr.FieldTracking.General.Load(); general != 0 {
		t.Errorf("%d writes were left to the general machine", general)
	}
}

func TestMetricsUnderConcurrentUse(t *testing.T) {
	t.Parallel()
	m := newMetrics(speaks())
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 200 {
				m.readOnlyInflight.Add(1, time.Now())
				m.observe(requestLabels{verb: "GET", resource: fmt.Sprint(j % 20)}, requestResult{code: 200 + i%3})
				m.readOnlyInflight.Add(-1, time.Now())
			}
			scrapeMetrics(t, m)
		})
	}
	wg.Wait()
}

func BenchmarkObserveRequest(b *testing.B) {
	m := newMetrics(speaks())
	b.ReportAllocs()
	for b.Loop() {
		m.observe(podList, requestResult{code: 200, bytes: 1500, elapsed: 30 * time.Millisecond})
	}
}

// TestServerErrorsAreLoggedTenTimesAMinute: failed handshakes do not hide other errors, and neither kind floods the log.
func TestServerErrorsAreLoggedTenTimesAMinute(t *testing.T) {
	var out bytes.Buffer
	m := newMetrics(speaks())
	log := m.countHandshakeErrors(&out)
	for range 500 {
		fmt.Fprintln(log, "http: TLS handshake error from 192.0.2.1:1234: EOF")
	}
	fmt.Fprintln(log, "http: something else", strings.Repeat("x", 1<<20))
	for range 500 {
		fmt.Fprintln(log, "http: response.WriteHeader on hijacked connection")
	}
	text := out.String()
	if shakes := strings.Count(text, "handshake"); shakes != linesPerMinute {
		t.Errorf("%d failed handshakes are logged", shakes)
	}
	if others := strings.Count(text, "http: something else") + strings.Count(text, "hijacked"); others != linesPerMinute || !strings.Contains(text, "something else") {
		t.Errorf("%d other lines are logged", others)
	}
	if hints := strings.Count(text, "not logged for a minute"); hints != 2 || len(text) > 3*maxLine {
		t.Errorf("%d hints, %d bytes", hints, len(text))
	}
	c := log.(*errorCounter)
	if n := c.ofTLS.count(time.Now().Add(2 * time.Minute)); n != 1 {
		t.Errorf("the next minute begins with %d lines", n)
	}
}

// TestOtherLogsAreLimited must not run in parallel, because the loggers are global.
func TestOtherLogsAreLimited(t *testing.T) {
	var out bytes.Buffer
	restore := limitOtherLogs(newLogger(&out, "json"))
	klog.Warning("from Kubernetes")
	for range 100 {
		stdlog.Printf("Unsolicited response received on idle HTTP channel starting with %q", strings.Repeat("\x1b[31m", 1000))
	}
	restore()
	if !strings.Contains(out.String(), "from Kubernetes") {
		t.Errorf("klog: %.300q", out.String())
	}
	if lines := strings.Count(out.String(), "Unsolicited"); lines != linesPerMinute-1 || out.Len() > 2*linesPerMinute*maxLine || strings.Contains(out.String(), "\x1b") {
		t.Errorf("%d lines, %d bytes: %.300q", lines, out.Len(), out.String())
	}
	if _, limited := stdlog.Writer().(*lineLimit); limited {
		t.Error("the log is still limited")
	}
}

func TestPanicIsAudited(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	log, err := audit.Open(audit.Config{Path: path}, audit.Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	instruments := &instrumentation{reg: scheme.NewRegistry(), metrics: newMetrics(speaks()), audit: log, log: zerolog.Nop()}
	for id, cause := range map[string]any{"bug": "boom", "broken": http.ErrAbortHandler} {
		r := httptest.NewRequest("GET", "/api/v1/pods?watch=1", nil)
		r.Header.Set("Audit-Id", id)
		func() {
			defer func() {
				if recover() != http.ErrAbortHandler {
					t.Error("the connection was not closed")
				}
			}()
			instruments.record(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				request.From(r.Context()).User = request.User{Name: "bob"}
				w.WriteHeader(200)
				panic(cause)
			})).ServeHTTP(httptest.NewRecorder(), r)
		}()
	}
	const started = "ResponseStarted; watch; bob; resource=pods apiVersion=v1; 200; \n"
	if got, want := kubetest.AuditedAs(t, path, "bug"), started+"Panic; watch; bob; resource=pods apiVersion=v1; Failure InternalError 500 APIServer panic'd: boom; "; got != want {
		t.Errorf("a bug is audited as\n%s\nwant\n%s", got, want)
	}
	if got, want := kubetest.AuditedAs(t, path, "broken"), started+"ResponseComplete; watch; bob; resource=pods apiVersion=v1; 200; "; got != want {
		t.Errorf("a response that broke off is audited as\n%s\nwant\n%s", got, want)
	}
}

// A request that waited for its seat does not hold that against the server.
func TestWaitingIsNotServiceTime(t *testing.T) {
	t.Parallel()
	reg := scheme.NewRegistry()
	instruments := &instrumentation{reg: reg, metrics: newMetrics(speaks()), log: zerolog.Nop()}
	instruments.record(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request.From(r.Context()).User, request.From(r.Context()).Waited = request.User{Name: request.UserAnonymous}, time.Hour
	})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/api/v1/namespaces/default/pods/a", nil))
	wantMetrics(t, scrapeMetrics(t, instruments.metrics),
		`apiserver_request_sli_duration_seconds_bucket{component="apiserver",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1",le="0.05"} 1`)
}

// TestFightIsFound: two controllers that set a path back and forth are found, told to the log once, counted, and shown to who may see it.
func TestFightIsFound(t *testing.T) {
	t.Parallel()
	log := &apitest.Log{}
	s := startTest(t, func(c *config) { c.log = zerolog.New(log) })
	deployments := "/apis/apps/v1/namespaces/default/deployments"
	s.want(201, "POST", deployments, `{"metadata":{"name":"web"},"spec":{"replicas":1,"selector":{"matchLabels":{"app":"web"}},
		"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"c","image":"nginx"}]}}}}`)
	for i := range 20 {
		s.want(200, "PATCH", deployments+"/web", fmt.Sprintf(`{"spec":{"replicas":%d}}`, 2-i%2), "Content-Type: application/merge-patch+json",
			"User-Agent: "+[]string{"planner/v1", "saver/v1"}[i%2])
	}
	found := gjson.GetBytes(s.want(200, "GET", "/debug/findings", "").body, "items")
	if found.Get("#").Int() != 1 || found.Get("0.kind").String() != "fight" || found.Get("0.paths.0").String() != ".spec.replicas" || found.Get("0.revisions.#").Int() != 3 ||
		found.Get("0.objects.0").String() != "default/web" || found.Get("0.who.#").Int() != 2 {
		t.Errorf("found %s", found)
	}
	if !strings.Contains(string(s.want(200, "GET", "/metrics", "").body), `apilet_findings{kind="fight"} 1`) {
		t.Error("the fight is not in /metrics")
	}
	if n := strings.Count(log.String(), "back and forth"); n != 1 {
		t.Errorf("the log tells of it %d times:\n%s", n, log.String())
	}
	out := command(t, "log", "--findings", "--server", s.url)
	if !strings.Contains(out, "now   fight") || !strings.Contains(out, "set .spec.replicas of deployments.apps default/web back and forth") {
		t.Error(out)
	}
	s.want(405, "POST", "/debug/findings", "{}")
	s.api.instruments.findings.Sweep(time.Now().Add(2 * time.Minute))
	if !strings.Contains(command(t, "log", "--findings", "--server", s.url), "over  fight") || strings.Count(log.String(), "resolved: ") != 1 {
		t.Error("the end is not told")
	}
}

// command runs a command as from a shell.
func command(t *testing.T, args ...string) string {
	t.Helper()
	var out strings.Builder
	if err := runCommandTo(&out, args...); err != nil {
		t.Errorf("apilet %q: %v", args, err)
	}
	return out.String()
}

// TestPanicOfTheBookkeepingIsAudited: what is done for every request is seen by what recovers from panics, from the first step to the last.
func TestPanicOfTheBookkeepingIsAudited(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	log, err := audit.Open(audit.Config{Path: path}, audit.Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	lines := &apitest.Log{}
	instruments := &instrumentation{reg: scheme.NewRegistry(), audit: log, log: zerolog.New(lines)} // without metrics nothing can be counted
	r := httptest.NewRequest("GET", "/api/v1/pods", nil)
	r.Header.Set("Audit-Id", "early")
	func() {
		defer func() {
			if cause := recover(); fmt.Sprint(cause) != "net/http: abort Handler" {
				t.Errorf("net/http is told of %v", cause)
			}
		}()
		instruments.record(nil).ServeHTTP(httptest.NewRecorder(), r)
	}()
	if got := kubetest.AuditedAs(t, path, "early"); !strings.HasPrefix(got, "Panic; list; ; resource=pods") {
		t.Errorf("audited as %q", got)
	}
	if got := lines.String(); strings.Count(got, "panic while serving") < 1 {
		t.Errorf("logged: %s", got)
	}
}

// TestTypesAndHooksThatComeAndGoHaveABound: the metrics beside those of requests.
func TestTypesAndHooksThatComeAndGoHaveABound(t *testing.T) {
	t.Parallel()
	m := newMetrics(speaks())
	for i := range maxNames + 50 {
		labels := requestLabels{verb: "WATCH", group: "example.com", version: "v1", resource: fmt.Sprint("kind", i), scope: "cluster"}
		m.terminated(labels, 429)
		m.aborted(labels)
		m.watchListDone(labels, time.Second)
		m.deprecatedUse(labels, "")
		m.webhookCalled(admission.Call{Name: fmt.Sprint("hook", i), Kind: "admit", Operation: "CREATE", Code: 500, Cause: "x", FailedOpen: true})
	}
	counts := map[string]int{}
	for line := range scrapeMetrics(t, m) {
		name, _, _ := strings.Cut(line, "{")
		counts[name]++
	}
	for _, name := range []string{"apiserver_request_terminations_total", "apiserver_request_aborts_total", "apiserver_watch_list_duration_seconds_count",
		"apiserver_requested_deprecated_apis", "apiserver_admission_webhook_request_total", "apiserver_admission_webhook_rejection_count",
		"apiserver_admission_webhook_fail_open_count", "apiserver_admission_webhook_admission_duration_seconds_count"} {
		if counts[name] != maxNames+1 {
			t.Errorf("%s has %d series, want %d", name, counts[name], maxNames+1)
		}
	}
}

// ---- Strangers

// Requests that come to nothing, each with names that no other had: the server is to be none the larger for it.

// fruitless are requests without an effect; each %s is a word that comes once. What a client chooses is in there: every part of the
// path, the method, and the headers that something is made of.
var fruitless = []struct{ method, path, header string }{
	{"GET", "/apis/%s/v1/x?watch=1", ""}, {"GET", "/apis/apps/%s/deployments?watch=1", ""}, {"GET", "/api/v1/%s?watch=1", ""},
	{"GET", "/apis/%s", ""}, {"GET", "/apis/%s/%s", ""}, {"GET", "/api/%s", ""}, {"GET", "/%s", ""}, {"GET", "/openapi/v3/apis/%s/v1", ""},
	{"GET", "/api/v1/namespaces/%s/pods/%s", ""}, {"GET", "/api/v1/namespaces/default/pods/p/%s", ""}, {"GET", "/api/v1/watch/%s", ""},
	{"GET", "/api/v1/namespaces/%s/configmaps/x", ""}, {"DELETE", "/api/v1/nodes/%s", ""}, {"%s", "/api/v1/namespaces/default/pods", ""},
	{"PATCH", "/api/v1/namespaces/default/configmaps/%s", "Content-Type: application/%s"}, {"GET", "/apis/%%ff%s/v1/x?watch=1", ""},
	{"POST", "/api/v1/namespaces/default/configmaps?fieldManager=%s", "Content-Type: %s"}, {"GET", "/api/v1/pods?dryRun=%s&labelSelector=(%s", ""},
	{"GET", "/api/v1/nodes/%s", "User-Agent: %s"}, {"GET", "/api/v1/nodes/%s", "Accept: application/%s"}, {"GET", "/livez/%s", "Audit-Id: %s"},
	{"GET", "/api/v1/namespaces/default/endpoints/%s", "User-Agent: %s"}, {"GET", "/debug/%s", ""}, {"PUT", "/api/v1/namespaces/default/endpoints/x/%s", ""},
	{"GET", "/api/v1/nodes/x", "Impersonate-User: %s"}, {"GET", "/api/v1/nodes/x", "Impersonate-Group: %s"},
}

// sendFruitless sends each of them once, as a bad token, as nobody, as somebody without rights and as an administrator.
func (s *testServer) sendFruitless(word string) {
	s.t.Helper()
	for _, form := range fruitless {
		fill := func(text string) string { return strings.ReplaceAll(strings.ReplaceAll(text, "%s", word), "%%", "%") }
		for _, token := range []string{"Bearer nope-" + word, "", "Bearer bob-token", "Bearer root-token"} {
			r := httptest.NewRequest(fill(form.method), fill(form.path), strings.NewReader("{"))
			if key, value, ok := strings.Cut(fill(form.header), ": "); ok {
				r.Header.Set(key, value)
			}
			if token != "" {
				r.Header.Set("Authorization", token)
			}
			w := httptest.NewRecorder()
			s.http.Handler.ServeHTTP(w, r)
			if w.Code < 400 && w.Code != 200 {
				s.t.Fatalf("%s %s: %d %s", r.Method, r.URL, w.Code, w.Body)
			}
		}
	}
}

func (s *testServer) metricLines() (lines []string) {
	s.t.Helper()
	return strings.Split(string(s.want(200, "GET", "/metrics", "", masterToken).body), "\n")
}

// newSeries are those that were not there before.
func newSeries(before, after []string) (grown []string) {
	known := map[string]bool{}
	for _, line := range before {
		known[line[:strings.LastIndexByte(line, ' ')+1]] = true
	}
	for _, line := range after {
		if series := line[:strings.LastIndexByte(line, ' ')+1]; !known[series] {
			grown = append(grown, series)
		}
	}
	return grown
}

// TestFruitlessRequestsLeaveNothing: neither series nor memory grow with the names in requests that are refused or find nothing.
func TestFruitlessRequestsLeaveNothing(t *testing.T) {
	s, _ := startTLS(t)
	const rounds = 40
	word := func(i int) string { return fmt.Sprintf("zz%d%s", i, strings.Repeat("y", 4000)) }
	s.metricLines()     // which has series, too
	for i := range 20 { // what is remembered of a bounded number, such as agents, is so already
		s.sendFruitless(word(i))
	}
	lines, before := s.metricLines(), heldMemory()
	for i := range rounds {
		s.sendFruitless(word(100 + i))
	}
	expectMemory(t, before, 3<<20) // all the words are 66 MB
	after := s.metricLines()
	if grown := newSeries(lines, after); len(grown) > 0 {
		t.Errorf("%d series are new:\n%s", len(grown), strings.Join(grown, "\n"))
	}
	for _, line := range after {
		if strings.Contains(line, "zz") || strings.Contains(line, "yy") || strings.Contains(line, `code="401"`) && !strings.Contains(line, `resource=""`) {
			t.Errorf("in /metrics: %.300s", line)
		}
	}
}

// TestStrangersMakeNoSeries: however many resources a request names that is not let in, it counts as one of its method.
func TestStrangersMakeNoSeries(t *testing.T) {
	s, _ := startTLS(t)
	for _, token := range []string{"X-No: token", "Authorization: Bearer nope"} {
		for _, res := range s.reg.All()[:20] {
			for _, query := range []string{"", "?watch=1", "?dryRun=All"} {
				prefix := "/apis/" + res.Group
				if res.Group == "" {
					prefix = "/api"
				}
				s.send("GET", prefix+"/"+res.Version+"/"+res.Plural+query, "", token)
			}
		}
	}
	var refused []string
	for _, line := range s.metricLines() {
		if strings.Contains(line, `code="40`) && strings.HasPrefix(line, "apiserver_request_total") {
			refused = append(refused, line)
		}
		if strings.HasPrefix(line, "apiserver_longrunning_requests{") {
			t.Errorf("a watch that is not let in counts: %s", line)
		}
	}
	if len(refused) != 2 { // one of each code
		t.Errorf("refused requests are counted in %d series:\n%s", len(refused), strings.Join(refused, "\n"))
	}
}

// TestInterimResponsesAreNotTheOutcome: audit events and metrics have the final code, and a connection that switched protocols has 101.
func TestInterimResponsesAreNotTheOutcome(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		codes []int
		want  int
	}{{[]int{103, 200}, 200}, {[]int{100, 102, 103, 404}, 404}, {[]int{103}, 0}, {[]int{101}, 101}, {[]int{103, 101}, 101}, {[]int{200, 500}, 200}} {
		begun := 0
		w := &responseWriter{ResponseWriter: httptest.NewRecorder(), begun: func() { begun++ }}
		for _, code := range c.codes {
			w.WriteHeader(code)
		}
		if w.code != c.want || begun != min(c.want, 1) {
			t.Errorf("%v: code %d, begun %d times; want %d", c.codes, w.code, begun, c.want)
		}
	}
}
