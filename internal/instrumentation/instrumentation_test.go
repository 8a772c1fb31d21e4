package instrumentation

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"k8s.io/apiserver/pkg/warning"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
	"apilet/internal/audit"
	"apilet/internal/metrics"
	"apilet/internal/request"
	"apilet/internal/scheme"
)

// noWarnings returns a recorder that drops all warnings.
func noWarnings(http.Header) warning.Recorder { return nothing{} }

type nothing struct{}

func (nothing) AddWarning(string, string) {}

func TestPanicIsAudited(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	log, err := audit.Open(audit.Config{Path: path}, audit.Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	instruments := &Recorder{Warnings: noWarnings, Types: scheme.NewRegistry(), Metrics: metrics.New([2]int{1, 37}), Audit: log, Log: zerolog.Nop()}
	for id, cause := range map[string]any{"bug": "boom", "broken": http.ErrAbortHandler} {
		r := httptest.NewRequest("GET", "/api/v1/pods?watch=1", nil)
		r.Header.Set("Audit-Id", id)
		func() {
			defer func() {
				if recover() != http.ErrAbortHandler {
					t.Error("the connection was not closed")
				}
			}()
			instruments.Record(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
	instruments := &Recorder{Warnings: noWarnings, Types: reg, Metrics: metrics.New([2]int{1, 37}), Log: zerolog.Nop()}
	instruments.Record(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request.From(r.Context()).User, request.From(r.Context()).Waited = request.User{Name: request.UserAnonymous}, time.Hour
	})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/api/v1/namespaces/default/pods/a", nil))
	w := httptest.NewRecorder()
	instruments.Metrics.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	const want = `apiserver_request_sli_duration_seconds_bucket{component="apiserver",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1",le="0.05"} 1`
	if !strings.Contains(w.Body.String(), want+"\n") {
		t.Errorf("/metrics lacks the line\n%s", want)
	}
}

// TestPanicOfTheBookkeepingIsAudited checks that a panic in the recorder itself is recovered,
// logged and audited.
func TestPanicOfTheBookkeepingIsAudited(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	log, err := audit.Open(audit.Config{Path: path}, audit.Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	lines := &apitest.Log{}
	instruments := &Recorder{Warnings: noWarnings, Types: scheme.NewRegistry(), Audit: log, Log: zerolog.New(lines)} // without metrics nothing can be counted
	r := httptest.NewRequest("GET", "/api/v1/pods", nil)
	r.Header.Set("Audit-Id", "early")
	func() {
		defer func() {
			if cause := recover(); fmt.Sprint(cause) != "net/http: abort Handler" {
				t.Errorf("net/http is told of %v", cause)
			}
		}()
		instruments.Record(nil).ServeHTTP(httptest.NewRecorder(), r)
	}()
	if got := kubetest.AuditedAs(t, path, "early"); !strings.HasPrefix(got, "Panic; list; ; resource=pods") {
		t.Errorf("audited as %q", got)
	}
	if got := lines.String(); strings.Count(got, "panic while serving") < 1 {
		t.Errorf("logged: %s", got)
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
