package main

// This file sends requests that come to nothing, each with names that no other had: the server is to be none the larger for it.

import (
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"apilet/internal/admission"
	"apilet/internal/apitest"
	"apilet/internal/audit"
	"apilet/internal/scheme"
)

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

// TestPathThatIsNoTextIsAnsweredAndAudited: metric labels have to be UTF-8, and paths need not be.
func TestPathThatIsNoTextIsAnsweredAndAudited(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	s := startTest(t, func(c *config) { c.AuditPath = path })
	for i, target := range []string{"/apis/%ff%fe/v1/x?watch=1", "/apis/apps/v1/%ff?watch=1", "/api/v1/namespaces/%ff/pods/%fe", "/%ff%fe", "/api/v1/pods/p/%ff"} {
		id := fmt.Sprint("no-text-", i)
		if a := s.send("GET", target, "", "Audit-Id: "+id); a.code < 400 || a.code >= 500 {
			t.Errorf("%s: %d %s", target, a.code, a.body)
		}
		apitest.WaitFor(t, "the event of "+target, func() bool { return strings.Contains(auditedAs(t, path, id), "ResponseComplete") })
	}
	if log := s.log.String(); log != "" {
		t.Errorf("logged: %s", log)
	}
}

// TestPanicOfTheBookkeepingIsAudited: what is done for every request is seen by what recovers from panics, from the first step to the last.
func TestPanicOfTheBookkeepingIsAudited(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	log, err := audit.Open(path, audit.Hooks{})
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
	if got := auditedAs(t, path, "early"); !strings.HasPrefix(got, "Panic; list; ; resource=pods") {
		t.Errorf("audited as %q", got)
	}
	if got := lines.String(); strings.Count(got, "panic while serving") < 1 {
		t.Errorf("logged: %s", got)
	}
}

// TestTypesAndHooksThatComeAndGoHaveABound: the metrics beside those of requests.
func TestTypesAndHooksThatComeAndGoHaveABound(t *testing.T) {
	t.Parallel()
	m := newMetrics()
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
