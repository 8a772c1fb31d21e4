package e2e

// This file checks that the audit events for ten policies are identical to kube-apiserver's, which
// were recorded by testdata/record-audit.sh.

import (
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
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
	corev1 "k8s.io/api/core/v1"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
	"apilet/internal/response"
)

var oracleAudit = flag.String("audit-log", "", "the audit log of -oracle, which has the policy of the one test that is run")

// auditedRequest is a request of testdata/audit/requests.txt.
type auditedRequest struct {
	id, who, method, path string
	headers               []string
	body                  string
}

func auditedRequests(t *testing.T) (all []auditedRequest) {
	t.Helper()
	_, text, _ := strings.Cut(string(apitest.ReadFile(t, "testdata/audit/requests.txt")), "\n== ")
	for i, block := range strings.Split(strings.TrimSuffix(text, "\n"), "\n== ") {
		head, body, _ := strings.Cut(block, "\n")
		parts := strings.Split(head, " | ")
		var r auditedRequest
		if n, _ := fmt.Sscan(parts[0], &r.who, &r.method, &r.path); n != 3 {
			t.Fatalf("%q names no request", head)
		}
		r.id, r.headers, r.body = fmt.Sprintf("r%03d", i+1), parts[1:], body
		all = append(all, r)
	}
	return all
}

// send sends the request to apilet or to kube-apiserver and returns the status code.
func (r auditedRequest) send(t *testing.T, client *http.Client, url string, tokens map[string]string) int {
	t.Helper()
	method, body := r.method, []byte(r.body)
	if slices.Contains(r.headers, "Content-Type: application/vnd.kubernetes.protobuf") {
		var cm corev1.ConfigMap
		if err := json.Unmarshal(body, &cm); err != nil {
			t.Fatal(err)
		}
		body, _ = response.EncodeProtobuf(&cm)
	}
	if method == "AWAIT" {
		method = "GET"
	}
	req, err := http.NewRequest(method, url+r.path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if len(body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("User-Agent", "audited")
	kubetest.SetHeaders(req, r.headers)
	if r.method != "AWAIT" {
		req.Header.Set("Audit-Id", r.id)
	}
	if token := tokens[r.who]; token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(r, err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// ask sends all requests. When the event of the last request appears in the log, all other events
// have been written.
func ask(t *testing.T, url string, tokens map[string]string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for _, r := range auditedRequests(t) {
		if r.method != "AWAIT" {
			r.send(t, client, url, tokens)
			continue
		}
		apitest.WaitFor(t, "the answer of "+r.path, func() bool { return r.send(t, client, url, tokens) == http.StatusOK })
	}
}

var (
	anyTime     = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	anyRevision = regexp.MustCompile(`"(resourceVersion|observedGeneration)":\s*"?\d+"?`)
	anyToken    = regexp.MustCompile(`eyJ[A-Za-z0-9_.-]+`)
	anySuffix   = regexp.MustCompile(`gen-[a-z0-9]{5}`)
	anyAge      = regexp.MustCompile(`"\d+m?s"`)
	anyContinue = regexp.MustCompile(`"continue":"[^"]+"`)
	anyAddress  = regexp.MustCompile(`"serverAddress":"[^"]+"`)
)

// auditEvents returns all events in a log. The key is the ID of the request. Values that vary
// between runs are replaced.
func auditEvents(t *testing.T, log []byte) map[string][]any {
	t.Helper()
	events := map[string][]any{}
	for line := range strings.Lines(string(log)) {
		for _, change := range []struct {
			any *regexp.Regexp
			by  string
		}{{anyTime, "TIME"}, {kubetest.AnyUID, kubetest.FixedUID}, {anyRevision, `"$1":"N"`}, {anyToken, "TOKEN"}, {anySuffix, "gen-SUFFX"}, {anyAge, `"AGE"`},
			{anyContinue, `"continue":"TOKEN"`}, {anyAddress, `"serverAddress":"ADDRESS"`}} {
			line = change.any.ReplaceAllString(line, change.by)
		}
		var event map[string]any
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		id, _ := event["auditID"].(string)
		if len(id) != 4 || id[0] != 'r' {
			continue
		}
		if event["requestReceivedTimestamp"] != "TIME" || event["stageTimestamp"] != "TIME" {
			t.Errorf("%s: the times are none: %s", id, line)
		}
		for _, varies := range []string{"requestReceivedTimestamp", "stageTimestamp", "auditID", "kind", "apiVersion"} {
			delete(event, varies)
		}
		if notes, ok := event["annotations"].(map[string]any); ok {
			for key := range notes {
				if strings.HasPrefix(key, "apiserver.latency") {
					delete(notes, key)
				}
			}
		}
		events[id] = append(events[id], event)
	}
	return events
}

func TestAuditEventsUnderPoliciesAreKubernetes(t *testing.T) {
	t.Parallel()
	policies, _ := filepath.Glob("testdata/audit/policies/*.yaml")
	if len(policies) != 10 {
		t.Fatal(policies)
	}
	for _, policy := range policies {
		name := strings.TrimSuffix(filepath.Base(policy), ".yaml")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			recorded := "testdata/audit/events/" + name + ".json.gz"
			if *update {
				recordAudit(t, recorded)
				return
			}
			log := filepath.Join(t.TempDir(), "audit.log")
			tokens := apitest.TempFile(t, "tokens.csv", "admin-token,admin,1,\"system:masters\"\nalice-token,alice,2,\"dev\"\nbob-token,bob,3\n")
			s := startTest(t, "--audit-policy-file="+policy, "--audit-log-path="+log, "--token-auth-file="+tokens, "--controllers=false")
			ask(t, s.url, map[string]string{"admin": "admin-token", "alice": "alice-token", "bob": "bob-token", "wrong": "wrong"})
			s.halt()
			want := map[string][]any{}
			if err := json.Unmarshal(unzipped(t, recorded), &want); err != nil {
				t.Fatal(err)
			}
			compareAudit(t, auditEvents(t, apitest.ReadFile(t, log)), want)
		})
	}
}

func unzipped(t *testing.T, path string) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(apitest.ReadFile(t, path)))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// recordAudit sends the requests to kube-apiserver and records the events of its audit log.
func recordAudit(t *testing.T, path string) {
	t.Helper()
	if *oracleAudit == "" {
		t.Skip("-update without -audit-log")
	}
	ask(t, *kubetest.OracleURL, map[string]string{"admin": *kubetest.OracleToken, "alice": "alice-token", "bob": "bob-token", "wrong": "wrong"})
	time.Sleep(time.Second) // the log is written asynchronously
	text, err := json.Marshal(auditEvents(t, apitest.ReadFile(t, *oracleAudit)))
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	z, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	_, _ = z.Write(text)
	_ = z.Close()
	if err := os.WriteFile(path, packed.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// answersDiffer contains the requests for which the two servers return different responses,
// regardless of the audit policy. The values describe the difference. The parts of an event that
// depend on the response are not compared.
var answersDiffer = map[string]string{
	"GET /apis":                                 "versions in beta that are served here",
	"GET /metrics/slis":                         "a page that is not here",
	"GET /version":                              "which of two roles that allow it is named",
	"fieldManager=me":                           "a 400 here, a 500 there",
	"resourceVersion=abc":                       "a 400 here, a 500 there",
	"configmaps/one Accept: te":                 "a 406 that kube-apiserver does not tell its log",
	"{\"spec\":{\"hostNetwork\"":                "the difference between two pods in Go's words",
	"DELETE /api/v1/namespaces/default/pods/p1": "the same pod",
	"/serviceaccounts/acc/token":                "managedFields of what is never stored",
	"reviews":                                   "managedFields of what is never stored, and names of the server",
}

// hasAnotherAnswer reports whether the request is one of answersDiffer.
func (r auditedRequest) hasAnotherAnswer() bool {
	text := fmt.Sprintf("%s %s %s %s", r.method, r.path, strings.Join(r.headers, " "), r.body)
	for part := range answersDiffer {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}

// hidesSecret reports whether an event omits the reason for which a Secret was rejected.
// kube-apiserver discloses it even at level Metadata.
func hidesSecret(event any) bool {
	return strings.Contains(short(event.(map[string]any)["responseStatus"]), "may quote a secret")
}

// withoutAnswer returns an event without the parts that depend on the response.
func withoutAnswer(event any) any {
	fields := maps.Clone(event.(map[string]any))
	delete(fields, "responseObject")
	delete(fields, "responseStatus")
	delete(fields, "annotations")
	return fields
}

func compareAudit(t *testing.T, got, want map[string][]any) {
	t.Helper()
	for _, r := range auditedRequests(t) {
		// For a patch that is not JSON, kube-apiserver fails to write its event.
		if r.body == "{" && len(want[r.id]) < len(got[r.id]) {
			continue
		}
		if strings.Contains(r.path, "token=") { // apilet writes REDACTED instead of the token
			continue
		}
		if len(got[r.id]) != len(want[r.id]) {
			t.Errorf("%s %s %s %s: %d events, kube-apiserver has %d:\n%s\n%s", r.id, r.who, r.method, r.path, len(got[r.id]), len(want[r.id]), short(got[r.id]), short(want[r.id]))
			continue
		}
		for i := range got[r.id] {
			if r.hasAnotherAnswer() || hidesSecret(got[r.id][i]) {
				got[r.id][i], want[r.id][i] = withoutAnswer(got[r.id][i]), withoutAnswer(want[r.id][i])
			}
			sortByManager(got[r.id][i])
			sortByManager(want[r.id][i])
			for _, difference := range differences("", got[r.id][i], want[r.id][i]) {
				t.Errorf("%s %s %s %s event %d: %s", r.id, r.who, r.method, r.path, i+1, difference)
			}
		}
	}
}

// sortByManager sorts each list of managedFields in a document by manager. The server first sorts
// the entries by time in seconds. Therefore, the order may change if a second passes between two
// requests.
func sortByManager(doc any) {
	switch doc := doc.(type) {
	case []any:
		for _, item := range doc {
			sortByManager(item)
		}
	case map[string]any:
		for name, value := range doc {
			if entries, ok := value.([]any); ok && name == "managedFields" {
				slices.SortStableFunc(entries, func(a, b any) int { return strings.Compare(managerOf(a), managerOf(b)) })
			}
			sortByManager(value)
		}
	}
}

// managerOf identifies an entry of managedFields.
func managerOf(entry any) string {
	fields, _ := entry.(map[string]any)
	return fmt.Sprint(fields["operation"], fields["manager"], fields["apiVersion"], fields["subresource"])
}

func short(v any) string {
	text, _ := json.Marshal(v)
	return string(text[:min(len(text), 300)])
}

// differences compares two documents and returns a line for each difference.
func differences(at string, got, want any) (all []string) {
	if reflect.DeepEqual(got, want) {
		return nil
	}
	g, isMap := got.(map[string]any)
	w, both := want.(map[string]any)
	if isMap && both {
		for key := range g {
			if _, there := w[key]; !there {
				all = append(all, fmt.Sprintf("%s.%s: %s, kube-apiserver has none", at, key, short(g[key])))
			}
		}
		for key := range w {
			if _, there := g[key]; !there {
				all = append(all, fmt.Sprintf("%s.%s: none, kube-apiserver has %s", at, key, short(w[key])))
			} else {
				all = append(all, differences(at+"."+key, g[key], w[key])...)
			}
		}
		slices.Sort(all)
		return all
	}
	gl, isList := got.([]any)
	wl, bothLists := want.([]any)
	if isList && bothLists && len(gl) == len(wl) {
		for i := range gl {
			all = append(all, differences(fmt.Sprintf("%s[%d]", at, i), gl[i], wl[i])...)
		}
		return all
	}
	return []string{fmt.Sprintf("%s: %s, kube-apiserver has %s", at, short(got), short(want))}
}

// Audit events must be sent to the webhook. If this fails, the metric must be incremented.
func TestAuditEventsReachAWebhook(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1000)
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		for _, event := range gjson.GetBytes(body, "items").Array() {
			got <- event.Get("requestURI").String()
		}
	}))
	t.Cleanup(hook.Close)
	file := apitest.TempFile(t, "webhook.kubeconfig", fmt.Sprintf(`{"current-context":"w","contexts":[{"name":"w","context":{"cluster":"c"}}],
		"clusters":[{"name":"c","cluster":{"server":%q}}]}`, hook.URL))
	s := startTest(t, "--audit-webhook-config-file="+file, "--audit-webhook-batch-max-wait=10ms", "--audit-webhook-initial-backoff=1ms",
		"--audit-webhook-batch-throttle-enable=false")
	s.want(200, "GET", "/version", "")
	for uri := range got {
		if uri == "/version" {
			break
		}
	}
	hook.Close()
	apitest.WaitFor(t, "events that are counted as lost", func() bool {
		return metricValue(s, `apiserver_audit_error_total{plugin="webhook"}`) > 0
	})
}

// TestStrictAuditRefuses checks that mode blocking-strict rejects a request whose event cannot be
// written. The error must match kube-apiserver. The other two modes serve the request.
func TestStrictAuditRefuses(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("here is no disk that is always full")
	}
	policy := apitest.TempFile(t, "policy.yaml", "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- {level: Metadata, namespaces: [audited]}\n- level: None\n")
	const asked = "/api/v1/namespaces/audited/configmaps?a=<b>&c=d"
	for _, mode := range []string{"blocking", "batch", "blocking-strict"} {
		s := startTest(t, "--audit-policy-file="+policy, "--audit-log-path=/dev/full", "--audit-log-mode="+mode)
		if mode != "blocking-strict" {
			s.want(200, "GET", asked, "")
			continue
		}
		a := s.send("GET", asked, "")
		const want = `Internal Server Error: "/api/v1/namespaces/audited/configmaps?a=&lt;b&gt;&amp;c=d": failed to store audit event` + "\n"
		if a.code != 500 || string(a.body) != want || a.header.Get("Content-Type") != "text/plain; charset=utf-8" || a.header.Get("Audit-Id") == "" {
			t.Errorf("answered %v %q", a.header, a.body)
		}
		s.want(200, "GET", "/api/v1/namespaces/default/configmaps", "")
		if n := metricValue(s, "apiserver_audit_requests_rejected_total"); n != 1 {
			t.Errorf("%v requests are counted as refused", n)
		}
	}
}
