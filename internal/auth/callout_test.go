package auth_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
	"apilet/internal/auth/callout"
	"apilet/internal/request"
)

// A testHook answers reviews, and counts them.
type testHook struct {
	*httptest.Server
	asked atomic.Int64
	last  atomic.Pointer[string]
}

func startHook(t *testing.T, answer func(asked string) (code int, body string)) (h *testHook, kubeconfig string) {
	t.Helper()
	h = &testHook{}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		text := string(body)
		h.last.Store(&text)
		h.asked.Add(1)
		code, said := answer(text)
		w.WriteHeader(code)
		_, _ = io.WriteString(w, said)
	}))
	t.Cleanup(h.Close)
	return h, apitest.TempFile(t, "kubeconfig", fmt.Sprintf(`{"current-context":"w","contexts":[{"name":"w","context":{"cluster":"c","user":"u"}}],
		"clusters":[{"name":"c","cluster":{"server":%q}}],"users":[{"name":"u","user":{}}]}`, h.URL))
}

func TestTokensAreAskedForAndRemembered(t *testing.T) {
	t.Parallel()
	hook, file := startHook(t, func(asked string) (int, string) {
		switch gjson.Get(asked, "spec.token").String() {
		case "good":
			return 200, `{"kind":"TokenReview","status":{"authenticated":true,"user":{"username":"jane","uid":"7","groups":["dev"],"extra":{"k":["v"]}}}}`
		case "theirs":
			return 200, `{"kind":"TokenReview","status":{"authenticated":true,"audiences":["them"],"user":{"username":"jane"}}}`
		case "wrong":
			return 200, `{"kind":"TokenReview","status":{"authenticated":false,"error":"no such token"}}`
		case "html":
			return 200, `<html>`
		case "other":
			return 200, `{"kind":"Status"}`
		}
		return 403, ""
	})
	tokens, err := callout.NewTokens(callout.TokensConfig{File: file, Version: "v1", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		u, meantFor, ok, err := tokens.User(context.Background(), "good", []string{"us", "x"}, []string{"us"})
		if got := fmt.Sprint(u, meantFor, ok, err); got != "{jane 7 [dev system:authenticated] map[k:[v]]} [us] true <nil>" {
			t.Error(got)
		}
	}
	if n := hook.asked.Load(); n != 1 {
		t.Errorf("asked %d times about one token", n)
	}
	if _, _, ok, err := tokens.User(context.Background(), "good", []string{"x"}, []string{"us"}); ok || err != nil || hook.asked.Load() != 2 {
		t.Errorf("the answer for another audience was used: %v %v, asked %d times", ok, err, hook.asked.Load())
	}
	if _, _, ok, err := tokens.User(context.Background(), "theirs", []string{"us"}, []string{"us"}); ok || err != nil {
		t.Error("a token for others is taken", err)
	}
	for token, want := range map[string]string{"wrong": "no such token", "html": "not JSON", "other": `responded with a "Status"`, "x": "status 403"} {
		if _, _, ok, err := tokens.User(context.Background(), token, []string{"us"}, []string{"us"}); ok || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v %v", token, ok, err)
		}
	}
}

func TestPlansAreCheckedAsKubernetesDoes(t *testing.T) {
	t.Parallel()
	const head = `{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthorizationConfiguration","authorizers":[`
	for config, want := range map[string]string{
		"":                                             "authorizers: Required value: at least one authorization mode must be defined",
		head + `{"type":"RBAC","name":"x"}]}`:          "expected name rbac for authorizer RBAC instead of x",
		head + `{"type":"ABAC","name":"abac"}]}`:       `authorizers[0].type: Unsupported value: "ABAC"`,
		head + `{"type":"Webhook","name":"w"}]}`:       "authorizers[0].webhook: Required value: required when type=Webhook",
		head + `{"type":"RBAC","name":"rbac","x":1}]}`: `strict decoding error: unknown field "authorizers[0].x"`,
	} {
		if _, err := callout.LoadPlan([]byte(config), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", config, err, want)
		}
	}
	before, err := callout.LoadPlan([]byte(head+`{"type":"Node","name":"node"},{"type":"RBAC","name":"rbac"}]}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := callout.LoadPlan([]byte(head+`{"type":"RBAC","name":"rbac"}]}`), before); err == nil {
		t.Error("an authorizer is taken away while the server runs")
	}
}

// planWith is a plan of one webhook.
func planWith(t *testing.T, file, policy, timeout, conditions string) *callout.Authorizer {
	t.Helper()
	plan, err := callout.LoadPlan([]byte(fmt.Sprintf(`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthorizationConfiguration","authorizers":[{"type":"Webhook","name":"w","webhook":{
		"timeout":%q,"subjectAccessReviewVersion":"v1","matchConditionSubjectAccessReviewVersion":"v1","failurePolicy":%q,"authorizedTTL":"1h","unauthorizedTTL":"1h",
		"connectionInfo":{"type":"KubeConfigFile","kubeConfigFile":%q},"matchConditions":[%s]}}]}`, timeout, policy, file, conditions)), nil)
	if err != nil {
		t.Fatal(err)
	}
	return plan.Steps[0].Hook
}

func TestWebhooksDecide(t *testing.T) {
	t.Parallel()
	hook, file := startHook(t, func(asked string) (int, string) {
		switch gjson.Get(asked, "spec.resourceAttributes.name").String() {
		case "yes":
			return 200, `{"kind":"SubjectAccessReview","status":{"allowed":true,"reason":"why not"}}`
		case "no":
			return 200, `{"kind":"SubjectAccessReview","status":{"allowed":false,"denied":true,"reason":"never"}}`
		case "both":
			return 200, `{"kind":"SubjectAccessReview","status":{"allowed":true,"denied":true}}`
		case "fails":
			return 400, ``
		}
		return 200, `{"kind":"SubjectAccessReview","status":{"allowed":false}}`
	})
	open, closed := planWith(t, file, "NoOpinion", "3s", ""), planWith(t, file, "Deny", "3s", `{"expression":"request.resourceAttributes.namespace == 'shop'"}`)
	u := request.User{Name: "jane", Groups: []string{"dev"}}
	for _, c := range []struct {
		of              *callout.Authorizer
		namespace, name string
		want            callout.Verdict
		failed          bool
	}{
		{open, "", "yes", callout.Allow, false}, {open, "", "no", callout.Deny, false}, {open, "", "other", callout.NoOpinion, false}, {open, "", "both", callout.Deny, true},
		{open, "", "fails", callout.NoOpinion, true}, {closed, "shop", "fails", callout.Deny, true}, {closed, "shop", "yes", callout.Allow, false}, {closed, "elsewhere", "yes", callout.NoOpinion, false},
	} {
		info := request.Info{ResourceRequest: true, Verb: "get", Resource: "pods", Namespace: c.namespace, Name: c.name}
		for range 2 {
			if got, reason, err := c.of.Decide(u, info); got != c.want || c.failed != (err != nil) {
				t.Errorf("%s/%s: %v %q %v, want %v", c.namespace, c.name, got, reason, err, c.want)
			}
		}
	}
	// a path has no resourceAttributes: the condition fails, and the policy decides
	if got, _, err := closed.Decide(u, request.Info{Verb: "get", Path: "/x"}); got != callout.Deny || err == nil {
		t.Error(got, err)
	}
	if n := hook.asked.Load(); n != 9 { // all but those that failed were remembered
		t.Errorf("asked %d times", n)
	}
}

func TestWebhookIsToldTheSelectors(t *testing.T) {
	t.Parallel()
	hook, file := startHook(t, func(string) (int, string) {
		return 200, `{"kind":"SubjectAccessReview","status":{"allowed":false}}`
	})
	plan, err := callout.NewPlan([]string{callout.TypeWebhook}, callout.HookFlags{File: file, Version: "v1beta1"})
	if err != nil {
		t.Fatal(err)
	}
	info := request.Parse(httptest.NewRequest("GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1&labelSelector=a+in+(b)", nil))
	if _, _, err := plan.Steps[0].Hook.Decide(request.User{Name: "jane", Groups: []string{"dev"}}, info); err != nil {
		t.Fatal(err)
	}
	want := `{"apiVersion":"authorization.k8s.io/v1beta1","kind":"SubjectAccessReview","metadata":{},"spec":{"group":["dev"],"resourceAttributes":{` +
		`"fieldSelector":{"requirements":[{"key":"spec.nodeName","operator":"In","values":["n1"]}]},"labelSelector":{"requirements":[{"key":"a","operator":"In","values":["b"]}]},` +
		`"resource":"pods","verb":"list","version":"v1"},"user":"jane"},"status":{"allowed":false}}`
	if got := *hook.last.Load(); got != want {
		t.Errorf("asked\n%s\nwant\n%s", got, want)
	}
}
