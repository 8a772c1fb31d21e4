package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
	"apilet/internal/audit"
	"apilet/internal/request"
	"apilet/internal/scheme"
)

// auditedAs shows the audit events with an id in short: stage, verb, who [as whom], object, status, annotations.
func auditedAs(t *testing.T, path, id string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var events []string
	for line := range strings.Lines(string(data)) {
		ev := gjson.Parse(line)
		if ev.Get("auditID").String() != id {
			continue
		}
		who := ev.Get("user.username").String()
		if as := ev.Get("impersonatedUser.username"); as.Exists() {
			who += " as " + as.String() + " by " + ev.Get("authenticationMetadata.impersonationConstraint").String()
		}
		var object []string
		ev.Get("objectRef").ForEach(func(key, value gjson.Result) bool {
			object = append(object, key.String()+"="+value.String())
			return true
		})
		status := map[string]any{}
		_ = json.Unmarshal([]byte(ev.Get("responseStatus").Raw), &status)
		var told []string
		for _, key := range []string{"status", "reason", "code", "message"} {
			if status[key] != nil {
				told = append(told, fmt.Sprint(status[key]))
			}
		}
		var notes []string
		annotations := ev.Get("annotations").Map()
		for _, key := range slices.Sorted(maps.Keys(annotations)) {
			if key != "authorization.k8s.io/reason" {
				notes = append(notes, key[strings.LastIndex(key, "/")+1:]+"="+annotations[key].String())
			}
		}
		events = append(events, strings.Join([]string{ev.Get("stage").String(), ev.Get("verb").String(), who, strings.Join(object, " "),
			strings.Join(told, " "), strings.Join(notes, " ")}, "; "))
	}
	return strings.Join(events, "\n")
}

// The events are those of kube-apiserver 1.36 for the same requests, level Metadata without RequestReceived.
func TestRequestsAreAuditedAsInKubernetes(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	s, _ := startTLS(t, func(c *config) { c.AuditPath = path })
	const root, bob, nobody = "Authorization: Bearer root-token", "Authorization: Bearer bob-token", "X-No: credentials"
	const maps, merge = "/api/v1/namespaces/default/configmaps", "Content-Type: application/merge-patch+json"
	s.headers = []string{root}
	s.want(201, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole",
		"metadata":{"name":"act"},"rules":[{"apiGroups":["authentication.k8s.io"],"resources":["users"],"verbs":["impersonate:user-info"]},
		{"apiGroups":[""],"resources":["configmaps"],"verbs":["impersonate-on:user-info:list"]}]}`)
	s.want(201, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding",
		"metadata":{"name":"act"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"act"},
		"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"bob"}]}`)
	apitest.WaitFor(t, "the binding to count", func() bool {
		s.headers = nil
		return strings.Contains(s.send("GET", maps, "", bob, "Impersonate-User: jane").failure(), `User "jane"`)
	})
	for i, c := range []struct {
		method, path, body string
		headers            []string
		want               string
	}{
		{"POST", maps + "?dryRun=All", configMap("a"), []string{root},
			"ResponseComplete; create; root; resource=configmaps namespace=default name=a apiVersion=v1; 201; decision=allow"},
		{"POST", maps, configMap("a"), []string{root},
			"ResponseComplete; create; root; resource=configmaps namespace=default name=a apiVersion=v1; 201; decision=allow"},
		{"POST", maps, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"a-"}}`, []string{root},
			"ResponseComplete; create; root; resource=configmaps namespace=default apiVersion=v1; 201; decision=allow"},
		{"POST", maps, configMap("a"), []string{root},
			`ResponseComplete; create; root; resource=configmaps namespace=default name=a apiVersion=v1; Failure AlreadyExists 409 configmaps "a" already exists; decision=allow`},
		{"POST", maps, "{", []string{root},
			"ResponseComplete; create; root; resource=configmaps namespace=default apiVersion=v1; Failure BadRequest 400 *; decision=allow"},
		{"PUT", maps + "/a", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","resourceVersion":"1"}}`, []string{root},
			"ResponseComplete; update; root; resource=configmaps namespace=default name=a apiVersion=v1 resourceVersion=1; Failure Conflict 409 *; decision=allow"},
		{"PATCH", maps + "/none", `{}`, []string{root, merge},
			`ResponseComplete; patch; root; resource=configmaps namespace=default name=none apiVersion=v1; Failure NotFound 404 configmaps "none" not found; decision=allow`},
		{"DELETE", maps + "/a", "", []string{root},
			"ResponseComplete; delete; root; resource=configmaps namespace=default name=a apiVersion=v1; Success 200; decision=allow"},
		{"DELETE", maps, "", []string{root},
			"ResponseComplete; deletecollection; root; resource=configmaps namespace=default apiVersion=v1; 200; decision=allow"},
		{"HEAD", maps + "/a", "", []string{root},
			"ResponseComplete; get; root; resource=configmaps namespace=default name=a apiVersion=v1; Failure MethodNotAllowed 405 *; decision=allow"},
		{"GET", "/api/v1/namespaces/default/endpoints/none", "", []string{root},
			`ResponseComplete; get; root; resource=endpoints namespace=default name=none apiVersion=v1; Failure NotFound 404 *; decision=allow deprecated=true`},
		{"GET", "/apis/batch/v1beta1/cronjobs", "", []string{root},
			"ResponseComplete; list; root; resource=cronjobs apiGroup=batch apiVersion=v1beta1; 200; decision=allow deprecated=true removed-release=1.25"},
		{"GET", maps + "?watch=1&timeoutSeconds=1", "", []string{root},
			"ResponseStarted; watch; root; resource=configmaps namespace=default apiVersion=v1; 200; decision=allow\n" +
				"ResponseComplete; watch; root; resource=configmaps namespace=default apiVersion=v1; 200; decision=allow"},
		{"GET", maps + "?watch=1", "", []string{"Authorization: Bearer nope"},
			"ResponseStarted; watch; ; resource=configmaps namespace=default apiVersion=v1; Failure Unauthorized 401 Unauthorized; "},
		{"GET", "/livez", "", []string{"Authorization: Bearer nope"}, "ResponseStarted; get; ; ; Failure Unauthorized 401 Unauthorized; "},
		{"GET", maps + "?timeout=abc", "", []string{root},
			"ResponseStarted; list; ; resource=configmaps namespace=default apiVersion=v1; Failure BadRequest 400 *; "},
		{"GET", "/metrics", "", []string{bob}, `ResponseComplete; get; bob; ; Failure Forbidden 403 forbidden: User "bob" cannot get path "/metrics"; decision=forbid`},
		{"GET", "/nosuch", "", []string{root}, "ResponseComplete; get; root; ; 404; decision=allow"},
		{"GET", "/version", "", []string{nobody}, "ResponseComplete; get; system:anonymous; ; 200; decision=allow"},
		{"GET", maps, "", []string{root, "Impersonate-User: jane", "Impersonate-Group: system:masters"},
			"ResponseComplete; list; root as jane by ; resource=configmaps namespace=default apiVersion=v1; 200; decision=allow"},
		{"GET", maps, "", []string{bob, "Impersonate-User: jane"},
			"ResponseComplete; list; bob as jane by impersonate:user-info; resource=configmaps namespace=default apiVersion=v1; Failure Forbidden 403 *; decision=forbid"},
		{"DELETE", maps, "", []string{bob, "Impersonate-User: jane"},
			`ResponseComplete; deletecollection; bob; resource=configmaps namespace=default apiVersion=v1; Failure Forbidden 403 configmaps is forbidden: User "bob" cannot impersonate-on:user-info:deletecollection *; `},
		{"GET", maps, "", []string{root, "Impersonate-Group: x"},
			"ResponseComplete; list; root; resource=configmaps namespace=default apiVersion=v1; Failure BadRequest 400 *; "},
	} {
		id := fmt.Sprint("case-", i)
		s.send(c.method, c.path, c.body, append(c.headers, "Audit-Id: "+id)...)
		var got string
		apitest.WaitFor(t, "the event of "+c.method+" "+c.path, func() bool { // a line is written when the answer is out
			got = auditedAs(t, path, id)
			return strings.Count(got, "\n") == strings.Count(c.want, "\n") && got != ""
		})
		if head, tail, _ := strings.Cut(c.want, "*"); !strings.HasPrefix(got, head) || !strings.HasSuffix(got, tail) {
			t.Errorf("%s %s is audited as\n%s\nwant\n%s", c.method, c.path, got, c.want)
		}
	}
}

func TestPanicIsAudited(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	log, err := audit.Open(path, audit.Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	instruments := &instrumentation{reg: scheme.NewRegistry(), metrics: newMetrics(), audit: log, log: zerolog.Nop()}
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
	if got, want := auditedAs(t, path, "bug"), started+"Panic; watch; bob; resource=pods apiVersion=v1; Failure InternalError 500 APIServer panic'd: boom; "; got != want {
		t.Errorf("a bug is audited as\n%s\nwant\n%s", got, want)
	}
	if got, want := auditedAs(t, path, "broken"), started+"ResponseComplete; watch; bob; resource=pods apiVersion=v1; 200; "; got != want {
		t.Errorf("a response that broke off is audited as\n%s\nwant\n%s", got, want)
	}
}

// A disk without room for the audit log stops nobody; the log and /metrics say so.
func TestFullAuditDiskDoesNotStopServing(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has /dev/full")
	}
	s := startTest(t, func(c *config) { c.AuditPath = "/dev/full" })
	s.want(201, "POST", "/api/v1/namespaces/default/configmaps", configMap("a"))
	apitest.WaitFor(t, "a word about it", func() bool { return metricValue(s, "apilet_audit_failing") == 1 })
	if log := s.log.String(); strings.Count(log, "the audit log cannot be written; events wait in memory") != 1 || !strings.Contains(log, "no space left") {
		t.Errorf("logged:\n%s", log)
	}
	s.halt()
}

// What metrics.go declares is fed: by watches, commits and refusals.
func TestMetricsAreFed(t *testing.T) {
	t.Parallel()
	s, _ := startTLS(t)
	const root = "Authorization: Bearer root-token"
	s.watch("/api/v1/namespaces?watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan", root)
	s.want(401, "GET", "/version", "", "Authorization: Bearer nope")
	s.want(403, "GET", "/metrics", "")
	s.headers = []string{root}
	_, _ = http.Get(strings.Replace(s.url, "https", "http", 1)) // no handshake
	for series, least := range map[string]float64{
		`apiserver_watch_events_total{group="",resource="namespaces",version="v1"}`:                                5, // four and a bookmark
		`apiserver_watch_events_sizes_count{group="",resource="namespaces",version="v1"}`:                          5,
		`apiserver_watch_list_duration_seconds_count{group="",resource="namespaces",scope="cluster",version="v1"}`: 1,
		`apilet_store_commit_duration_seconds_count`:                                                               1,
		`apilet_store_commit_duration_seconds_bucket{le="+Inf"}`:                                                   1,
		`apilet_store_committed_changes_total`:                                                                     4,
		`apiserver_tls_handshake_errors_total`:                                                                     1,
		`authentication_attempts{result="success"}`:                                                                1,
		`authentication_attempts{result="error"}`:                                                                  1,
		`authorization_attempts_total{result="allowed"}`:                                                           1,
		`authorization_attempts_total{result="no-opinion"}`:                                                        1,
		`apiserver_longrunning_requests{component="apiserver",group="",resource="namespaces",scope="cluster",subresource="",verb="WATCH",version="v1"}`: 0,
	} {
		apitest.WaitFor(t, series, func() bool { return metricValue(s, series) >= least })
	}
}

// A request that waited for its seat does not hold that against the server.
func TestWaitingIsNotServiceTime(t *testing.T) {
	t.Parallel()
	reg := scheme.NewRegistry()
	instruments := &instrumentation{reg: reg, metrics: newMetrics(), log: zerolog.Nop()}
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
	s.findings.Sweep(time.Now().Add(2 * time.Minute))
	if !strings.Contains(command(t, "log", "--findings", "--server", s.url), "over  fight") || strings.Count(log.String(), "it is over: ") != 1 {
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
