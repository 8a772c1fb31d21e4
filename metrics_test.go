package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"apilet/internal/apitest/kubetest"
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
	m := newMetrics()
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
	m := newMetrics()
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
	m := newMetrics()
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
	if short := s.wr.Tracked.Short.Load(); short < 6 {
		t.Errorf("%d writes went the short way", short)
	}
	if general := s.wr.Tracked.General.Load(); general != 0 {
		t.Errorf("%d writes were left to the general machine", general)
	}
}

func TestMetricsUnderConcurrentUse(t *testing.T) {
	t.Parallel()
	m := newMetrics()
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
	m := newMetrics()
	b.ReportAllocs()
	for b.Loop() {
		m.observe(podList, requestResult{code: 200, bytes: 1500, elapsed: 30 * time.Millisecond})
	}
}

// TestFailedHandshakesAreToldTenTimesAMinute, and all else that Go's server says is told always.
func TestFailedHandshakesAreToldTenTimesAMinute(t *testing.T) {
	var out bytes.Buffer
	m := newMetrics()
	log := m.countHandshakeErrors(&out)
	for range 500 {
		fmt.Fprintln(log, "http: TLS handshake error from 192.0.2.1:1234: EOF")
	}
	fmt.Fprintln(log, "http: something else")
	if lines := strings.Count(out.String(), "\n"); lines != handshakesTold+1 || !strings.Contains(out.String(), "something else") {
		t.Errorf("%d lines:\n%s", lines, out.String())
	}
	if c := log.(*errorCounter); !c.tells(time.Now().Add(2 * time.Minute)) {
		t.Error("the next minute's are not told")
	}
}
