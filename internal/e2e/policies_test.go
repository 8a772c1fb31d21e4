package e2e

// This file replays recorded conversations with kube-apiserver about admission policies. Each line
// of testdata/policies/kube-apiserver-1.36.jsonl contains a request and the response. The recording
// needed pauses, because kube-apiserver notices a policy some time after it is written. The replay
// does not pause.

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/apitest"
)

// A policyExchange is a request with the expected response.
type policyExchange struct {
	Note, Method, Path, Type string
	Body                     json.RawMessage
	Answer                   policyAnswer
}

// A policyAnswer is the response and the resulting object.
type policyAnswer struct {
	Code            int
	Reason, Message string
	Causes          []metav1.StatusCause
	Warnings        []string
	Annotations     map[string]string // audit annotations, without the authorizer's
	Result          json.RawMessage   // the parts of the object that resultOf returns
}

func TestPoliciesAnswerAsKubeAPIServer(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/policies/kube-apiserver-1.36.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	auditLog := filepath.Join(t.TempDir(), "audit.log")
	s, _ := startTLS(t, "--token-auth-file="+apitest.TempFile(t, "tokens.csv", "token,admin,1,system:masters\n"),
		"--audit-log-path="+auditLog, "--authorization-mode=RBAC")
	var exchanges []policyExchange
	var got []policyAnswer
	ids := map[string]int{}
	for line := range strings.Lines(string(text)) {
		var e policyExchange
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		a := s.send(e.Method, e.Path, string(e.Body), "Authorization: Bearer token", "Content-Type: "+cmp.Or(e.Type, "application/json"))
		ids[a.header.Get("Audit-Id")] = len(got)
		exchanges, got = append(exchanges, e), append(got, answerOf(a))
	}
	s.halt() // completes the audit log
	annotate(t, auditLog, ids, got)
	for i := range exchanges {
		comparePolicyAnswers(t, i+1, &exchanges[i], &got[i])
	}
}

// generatedSuffix matches random names.
var generatedSuffix = regexp.MustCompile("gen-[0-9a-z]{5}")

func answerOf(a answer) policyAnswer {
	got := policyAnswer{Code: a.code}
	for _, text := range a.header.Values("Warning") {
		text = strings.TrimSuffix(strings.TrimPrefix(text, `299 - "`), `"`)
		got.Warnings = append(got.Warnings, strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(text))
	}
	if a.code < 400 {
		got.Result = []byte(a.body)
		return got
	}
	var status metav1.Status
	// If the body is not a Status, the comparison fails later.
	_ = json.Unmarshal(generatedSuffix.ReplaceAll([]byte(a.body), []byte("gen-*****")), &status)
	got.Reason, got.Message = string(status.Reason), status.Message
	if status.Details != nil {
		got.Causes = status.Details.Causes
	}
	return got
}

// annotate adds the audit annotations to the answers.
func annotate(t *testing.T, log string, ids map[string]int, got []policyAnswer) {
	events, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(events) {
		event := gjson.ParseBytes(line)
		at, ours := ids[event.Get("auditID").String()]
		if !ours || event.Get("stage").String() != "ResponseComplete" {
			continue
		}
		for key, value := range event.Get("annotations").Map() {
			if strings.HasPrefix(key, "authorization.k8s.io/") || strings.HasPrefix(key, "pod-security") || strings.HasPrefix(key, "apiserver.latency") {
				continue
			}
			if got[at].Annotations == nil {
				got[at].Annotations = map[string]string{}
			}
			got[at].Annotations[key] = value.String()
		}
	}
}

func comparePolicyAnswers(t *testing.T, line int, e *policyExchange, got *policyAnswer) {
	t.Helper()
	want := &e.Answer
	report := func(what string, got, want any) {
		t.Errorf("line %d, %s, %s %s: %s\n\tgot  %v\n\twant %v", line, e.Note, e.Method, e.Path, what, got, want)
	}
	if got.Code != want.Code || got.Reason != want.Reason {
		report("code", []any{got.Code, got.Reason, got.Message}, []any{want.Code, want.Reason, want.Message})
		return
	}
	if got.Message != want.Message {
		report("message", got.Message, want.Message)
	}
	if !slices.Equal(got.Causes, want.Causes) {
		report("causes", got.Causes, want.Causes)
	}
	if !slices.Equal(got.Warnings, want.Warnings) {
		report("warnings", got.Warnings, want.Warnings)
	}
	if !maps.Equal(got.Annotations, want.Annotations) {
		report("audit annotations", got.Annotations, want.Annotations)
	}
	if result := resultOf(got.Result); want.Result != nil && !equalJSON(result, want.Result) {
		report("result", string(result), string(want.Result))
	}
}

// resultOf returns the fields of an object that the test compares.
func resultOf(body []byte) []byte {
	obj, picked := gjson.ParseBytes(body), map[string]any{}
	if labels, ok := obj.Get("metadata.labels").Value().(map[string]any); ok {
		delete(labels, "kubernetes.io/metadata.name")
		picked["labels"] = labels
	}
	switch kind := obj.Get("kind").String(); {
	case kind == "ConfigMap" && obj.Get("data").Exists():
		picked["data"] = obj.Get("data").Value()
	case kind == "Limit" || kind == "Scale":
		picked["spec"] = obj.Get("spec").Value()
	case kind == "Deployment":
		var containers []string
		for _, c := range obj.Get("spec.template.spec.containers").Array() {
			containers = append(containers, c.Get("name").String()+" "+c.Get("image").String())
		}
		picked["containers"] = containers
	}
	text, _ := json.Marshal(picked)
	return text
}

func equalJSON(a, b []byte) bool {
	var one, other any
	if json.Unmarshal(a, &one) != nil || json.Unmarshal(b, &other) != nil {
		return false
	}
	x, _ := json.Marshal(one)
	y, _ := json.Marshal(other)
	return bytes.Equal(x, y)
}

// The status of a policy must contain the type errors of its expressions and the observed
// generation.
func TestPolicyStatusTellsOfTypes(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	const policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
	s.want(201, "POST", policies, `{"metadata":{"name":"p"},"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":["apps"],"apiVersions":["v1"],
		"operations":["CREATE"],"resources":["deployments"]}]},"validations":[{"expression":"object.spec.replica > 1"}]}}`)
	told := func(generation int64) string {
		var warning string
		apitest.WaitFor(t, "the status", func() bool {
			status := s.want(200, "GET", policies+"/p", "").get("status")
			warning = status.Get("typeChecking.expressionWarnings.0.warning").String()
			return status.Get("observedGeneration").Int() == generation
		})
		return warning
	}
	if got := told(1); !strings.Contains(got, "apps/v1, Kind=Deployment: ERROR: <input>:1:12: undefined field 'replica'") {
		t.Errorf("got %q", got)
	}
	s.want(200, "PATCH", policies+"/p", `{"spec":{"validations":[{"expression":"object.spec.replicas > 1"}]}}`, "Content-Type: application/merge-patch+json")
	if got := told(2); got != "" {
		t.Errorf("the expression is right now: %q", got)
	}
}

// TestPoliciesAreCounted checks that the metrics match kube-apiserver.
func TestPoliciesAreCounted(t *testing.T) {
	t.Parallel()
	const group = "/apis/admissionregistration.k8s.io/v1"
	const rules = `"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"resources":["configmaps"],"operations":["CREATE"]}]}`
	s := startTest(t)
	for _, p := range [...]struct{ name, failure, validations, actions string }{
		{"no", "Fail", `{"expression":"object.metadata.name != 'x'"},{"expression":"object.metadata.name != 'y'"}`, `"Deny","Audit"`},
		{"warn", "Fail", `{"expression":"object.metadata.name != 'x'"}`, `"Warn"`},
		{"fails", "Ignore", `{"expression":"object.data.nope == 'x'"}`, `"Deny"`},
	} {
		s.want(201, "POST", group+"/validatingadmissionpolicies", fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"failurePolicy":%q,%s,"validations":[%s]}}`,
			p.name, p.failure, rules, p.validations))
		s.want(201, "POST", group+"/validatingadmissionpolicybindings", fmt.Sprintf(`{"metadata":{"name":"%s-b"},"spec":{"policyName":%q,"validationActions":[%s]}}`,
			p.name, p.name, p.actions))
	}
	s.want(201, "POST", group+"/mutatingadmissionpolicies", `{"metadata":{"name":"m"},"spec":{"reinvocationPolicy":"Never","failurePolicy":"Ignore",`+rules+`,"mutations":[
		{"patchType":"JSONPatch","jsonPatch":{"expression":"[JSONPatch{op: 'add', path: '/data/m', value: 'b'}]"}},
		{"patchType":"ApplyConfiguration","applyConfiguration":{"expression":"Object{metadata: Object.metadata{labels: {'a': object.data.label}}}"}}]}}`)
	s.want(201, "POST", group+"/mutatingadmissionpolicybindings", `{"metadata":{"name":"m-b"},"spec":{"policyName":"m"}}`)
	maps := "/api/v1/namespaces/default/configmaps"
	s.want(422, "POST", maps, configMap("x", "label", "l"))
	s.want(422, "POST", maps, configMap("y", "label", "l"))
	s.want(201, "POST", maps, configMap("z", "label", "l"))
	s.want(201, "POST", maps, configMap("w", "nope", "x"))
	s.want(422, "POST", maps, configMap("v", "nope", "y"))
	counted := regexp.MustCompile(`(?m)^apiserver_(\w+)_admission_policy_check_(total|duration_seconds_count)\{(.*)\} (\d+)$`)
	var got []string
	for _, m := range counted.FindAllStringSubmatch(string(s.want(200, "GET", "/metrics", "").body), -1) {
		got = append(got, strings.Join(m[1:], " "))
	}
	slices.Sort(got)
	var want []string
	for _, line := range []string{
		`mutating %s error_type="invalid_error",policy="m",policy_binding="m-b" 2`,
		`mutating %s error_type="no_error",policy="m",policy_binding="m-b" 8`,
		`validating %s enforcement_action="allow",error_type="invalid_error",policy="fails",policy_binding="fails-b" 3`,
		`validating %s enforcement_action="audit",error_type="invalid_error",policy="no",policy_binding="no-b" 2`,
		`validating %s enforcement_action="deny",error_type="invalid_error",policy="fails",policy_binding="fails-b" 1`,
		`validating %s enforcement_action="deny",error_type="invalid_error",policy="no",policy_binding="no-b" 2`,
		`validating %s enforcement_action="warn",error_type="invalid_error",policy="warn",policy_binding="warn-b" 1`,
	} {
		want = append(want, fmt.Sprintf(line, "total"), fmt.Sprintf(line, "duration_seconds_count"))
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
