package e2e

import (
	"fmt"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
)

// The expected events were recorded from kube-apiserver 1.36 with level Metadata and without the
// stage RequestReceived.
func TestRequestsAreAuditedAsInKubernetes(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	s, _ := startTLS(t, "--audit-log-path="+path)
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
		apitest.WaitFor(t, "the event of "+c.method+" "+c.path, func() bool { // the event is written after the response
			got = kubetest.AuditedAs(t, path, id)
			return strings.Count(got, "\n") == strings.Count(c.want, "\n") && got != ""
		})
		if head, tail, _ := strings.Cut(c.want, "*"); !strings.HasPrefix(got, head) || !strings.HasSuffix(got, tail) {
			t.Errorf("%s %s is audited as\n%s\nwant\n%s", c.method, c.path, got, c.want)
		}
	}
}

// If the disk for the audit log is full, requests are still served. The log and /metrics report it.
func TestFullAuditDiskDoesNotStopServing(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has /dev/full")
	}
	s := startTest(t, "--audit-log-path=/dev/full")
	s.want(201, "POST", "/api/v1/namespaces/default/configmaps", configMap("a"))
	apitest.WaitFor(t, "a word about it", func() bool { return metricValue(s, "apilet_audit_failing") == 1 })
	if log := s.log.String(); strings.Count(log, "cannot write the audit log; up to 1 MiB of events is kept in memory") != 1 || !strings.Contains(log, "no space left") {
		t.Errorf("logged:\n%s", log)
	}
	s.halt()
}

// The metrics that metrics.go declares are updated by watches, commits and rejected requests.
func TestMetricsAreFed(t *testing.T) {
	t.Parallel()
	s, _ := startTLS(t)
	const root = "Authorization: Bearer root-token"
	s.watch("/api/v1/namespaces?watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan", root)
	s.want(401, "GET", "/version", "", "Authorization: Bearer nope")
	s.want(403, "GET", "/metrics", "")
	s.headers = []string{root}
	_, _ = http.Get(strings.Replace(s.url, "https", "http", 1)) // causes a failed TLS handshake
	for series, least := range map[string]float64{
		`apiserver_watch_events_total{group="",resource="namespaces",version="v1"}`:                                5, // four events and a bookmark
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

// TestPathThatIsNoTextIsAnsweredAndAudited sends paths that are not UTF-8, although metric labels
// must be.
func TestPathThatIsNoTextIsAnsweredAndAudited(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	s := startTest(t, "--audit-log-path="+path)
	for i, target := range []string{"/apis/%ff%fe/v1/x?watch=1", "/apis/apps/v1/%ff?watch=1", "/api/v1/namespaces/%ff/pods/%fe", "/%ff%fe", "/api/v1/pods/p/%ff"} {
		id := fmt.Sprint("no-text-", i)
		if a := s.send("GET", target, "", "Audit-Id: "+id); a.code < 400 || a.code >= 500 {
			t.Errorf("%s: %d %s", target, a.code, a.body)
		}
		apitest.WaitFor(t, "the event of "+target, func() bool { return strings.Contains(kubetest.AuditedAs(t, path, id), "ResponseComplete") })
	}
	if log := s.log.errors(); log != "" {
		t.Errorf("logged: %s", log)
	}
}
