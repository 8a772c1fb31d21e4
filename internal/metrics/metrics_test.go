package metrics

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"apilet/internal/admission"
)

// scrapeMetrics returns /metrics as a set of lines.
func scrapeMetrics(t testing.TB, m *Metrics) map[string]bool {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
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

var podList = Labels{Verb: "LIST", Version: "v1", Resource: "pods", Scope: "namespace", Component: "apiserver"}

func TestRequestIsCountedUnderKubernetesNames(t *testing.T) {
	t.Parallel()
	m := New([2]int{1, 37})
	m.Observe(podList, Result{Code: 200, Bytes: 1500, Elapsed: 30 * time.Millisecond, Queued: 20 * time.Millisecond})
	m.Observe(podList, Result{Code: 410, Bytes: 200, Elapsed: time.Millisecond})
	watch := podList
	watch.Verb = "WATCH"
	s := m.LongRunning(watch)
	s.Running.Inc()
	s.Sent(3000)
	m.Observe(watch, Result{Code: 200, Elapsed: time.Minute})
	dry := Labels{Verb: "APPLY", Group: "apps", Version: "v1", Resource: "deployments", Scope: "resource", Component: "apiserver", DryRun: "All"}
	m.Observe(dry, Result{Code: 201, Elapsed: time.Second})
	m.DeprecatedUse(Labels{Version: "v1", Resource: "endpoints"}, "")
	m.Terminated(podList, 429)
	m.WatchListDone(watch, time.Second)
	m.Aborted(podList)
	m.Observe(Labels{Verb: "GET", Subresource: "/livez"}, Result{Code: 200})
	got := scrapeMetrics(t, m)
	wantMetrics(t, got, `
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
	m := New([2]int{1, 37})
	for range 10 {
		m.DeprecatedUse(Labels{Group: "batch", Version: "v1beta1", Resource: "cronjobs", Subresource: "status"}, "1.25")
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
		if got := VerbLabel(c.method, c.verb, c.sub, c.contentType); got != c.want {
			t.Errorf("VerbLabel(%q, %q, %q, %q) = %q, want %q", c.method, c.verb, c.sub, c.contentType, got, c.want)
		}
	}
}

func TestScopeAndDryRunLabels(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ verb, namespace, name, want string }{
		{"get", "ns", "x", "resource"}, {"create", "ns", "", "resource"}, {"list", "ns", "", "namespace"}, {"list", "", "", "cluster"}, {"", "", "", ""},
	} {
		if got := ScopeLabel(c.verb, c.namespace, c.name); got != c.want {
			t.Errorf("ScopeLabel(%q, %q, %q) = %q, want %q", c.verb, c.namespace, c.name, got, c.want)
		}
	}
	for want, values := range map[string][]string{"": nil, "All": {"All", "All"}, "invalid": {"All", "x"}} {
		if got := DryRunLabel(values); got != want {
			t.Errorf("DryRunLabel(%q) = %q, want %q", values, got, want)
		}
	}
}

func TestLabelSetsAreBounded(t *testing.T) {
	t.Parallel()
	m := New([2]int{1, 37})
	for i := range maxSeries + 50 {
		m.Observe(Labels{Verb: "GET", Resource: fmt.Sprint("kind", i)}, Result{Code: 200})
	}
	if len(m.series) != maxSeries+1 {
		t.Errorf("got %d label sets, want %d", len(m.series), maxSeries+1)
	}
	wantMetrics(t, scrapeMetrics(t, m), `apiserver_request_total{code="200",component="",dry_run="",group="",resource="other",scope="",subresource="",verb="GET",version=""} 50`)
}

func TestMetricsUnderConcurrentUse(t *testing.T) {
	t.Parallel()
	m := New([2]int{1, 37})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 200 {
				m.ReadOnlyInflight.Add(1, time.Now())
				m.Observe(Labels{Verb: "GET", Resource: fmt.Sprint(j % 20)}, Result{Code: 200 + i%3})
				m.ReadOnlyInflight.Add(-1, time.Now())
			}
			scrapeMetrics(t, m)
		})
	}
	wg.Wait()
}

func BenchmarkObserveRequest(b *testing.B) {
	m := New([2]int{1, 37})
	b.ReportAllocs()
	for b.Loop() {
		m.Observe(podList, Result{Code: 200, Bytes: 1500, Elapsed: 30 * time.Millisecond})
	}
}

// TestTypesAndHooksThatComeAndGoHaveABound: the metrics beside those of requests.
func TestTypesAndHooksThatComeAndGoHaveABound(t *testing.T) {
	t.Parallel()
	m := New([2]int{1, 37})
	for i := range maxNames + 50 {
		labels := Labels{Verb: "WATCH", Group: "example.com", Version: "v1", Resource: fmt.Sprint("kind", i), Scope: "cluster"}
		m.Terminated(labels, 429)
		m.Aborted(labels)
		m.WatchListDone(labels, time.Second)
		m.DeprecatedUse(labels, "")
		m.WebhookCalled(admission.Call{Name: fmt.Sprint("hook", i), Kind: "admit", Operation: "CREATE", Code: 500, Cause: "x", FailedOpen: true})
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
