package auth

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
	"apilet/internal/auth/callout"
	"apilet/internal/request"
)

// startJudge starts a webhook that says of a name what the name says, and returns its kubeconfig.
func startJudge(t *testing.T) string {
	t.Helper()
	judge := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		status := `{"allowed":false}`
		switch gjson.GetBytes(body, "spec.resourceAttributes.name").String() {
		case "allow":
			status = `{"allowed":true,"reason":"it says so"}`
		case "deny":
			status = `{"denied":true,"reason":"it says no"}`
		case "fail":
			w.WriteHeader(http.StatusTeapot)
		}
		_, _ = io.WriteString(w, `{"kind":"SubjectAccessReview","status":`+status+`}`)
	}))
	t.Cleanup(judge.Close)
	return apitest.TempFile(t, "kubeconfig", fmt.Sprintf(`{"current-context":"w","contexts":[{"name":"w","context":{"cluster":"c"}}],"clusters":[{"name":"c","cluster":{"server":%q}}]}`, judge.URL))
}

func TestAuthorizersAreAskedInTheirOrder(t *testing.T) {
	t.Parallel()
	file := startJudge(t)
	admin := request.User{Name: "root", Groups: []string{request.GroupMasters}}
	jane := request.User{Name: "jane", Groups: []string{request.GroupAuthenticated}}
	named := func(name string) request.Info {
		return request.Info{ResourceRequest: true, Verb: "get", Version: "v1", Resource: "pods", Name: name}
	}
	for _, c := range []struct {
		modes string
		user  request.User
		info  request.Info
		want  string
	}{
		{"Webhook,RBAC", jane, named("allow"), "<nil>"},
		{"Webhook,RBAC", jane, named("deny"), `pods "deny" is forbidden: User "jane" cannot get resource "pods" in API group "" at the cluster scope: it says no`},
		{"Webhook,RBAC", jane, named("other"), `pods "other" is forbidden: User "jane" cannot get resource "pods" in API group "" at the cluster scope`},
		{"Webhook,RBAC", jane, named("fail"), `Internal error occurred: webhook authorizer "default": the webhook responded with status 418`},
		{"Webhook,RBAC", admin, named("deny"), "<nil>"},
		{"Webhook,RBAC", jane, request.Info{Verb: "get", Path: "/version"}, "<nil>"}, // which every user may, by a role
		{"Webhook,AlwaysAllow", jane, named("deny"), `pods "deny" is forbidden: User "jane" cannot get resource "pods" in API group "" at the cluster scope: it says no`},
		{"AlwaysAllow,Webhook", jane, named("deny"), "<nil>"},
		{"Webhook,AlwaysAllow", jane, named("fail"), "<nil>"},
		{"AlwaysDeny", jane, named("x"), `pods "x" is forbidden: User "jane" cannot get resource "pods" in API group "" at the cluster scope: alwaysdeny: Everything is forbidden.`},
	} {
		plan, err := callout.NewPlan(strings.Split(c.modes, ","), callout.HookFlags{File: file, Version: "v1"})
		if err != nil {
			t.Fatal(err)
		}
		a, err := New(Config{Plan: plan, Log: zerolog.Nop()})
		if err != nil {
			t.Fatal(err)
		}
		rec := &request.Request{User: c.user, Info: c.info}
		if got := fmt.Sprint(a.Authorize(rec)); got != c.want {
			t.Errorf("%s, %s %q: %s, want %s", c.modes, c.user.Name, c.info.Name, got, c.want)
		}
		if allowed, _ := a.Decide(c.user, c.info); allowed != (c.want == "<nil>") {
			t.Errorf("%s, %s %q: Decide says %v", c.modes, c.user.Name, c.info.Name, allowed)
		}
	}
}

func TestFilesThatNameOthersAreChecked(t *testing.T) {
	t.Parallel()
	const anonymous = `{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthenticationConfiguration","anonymous":{"enabled":true}}`
	for want, config := range map[string]Config{
		"--authentication-config ":                             {IssuersFile: "/does/not/exist"},
		"--anonymous-auth flag cannot be set":                  {IssuersFile: apitest.TempFile(t, "a.yaml", anonymous), AnonymousFlagSet: true},
		"--authorization-config ":                              {PlanFile: "/does/not/exist"},
		"--authentication-token-webhook-config-file: stat /no": {TokenHook: callout.TokensConfig{File: "/no", Version: "v1"}},
		`unsupported authentication webhook version "v2"`:      {TokenHook: callout.TokensConfig{File: "/no", Version: "v2"}},
	} {
		if _, err := New(config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestFailuresOfWebhooksAreLoggedTenTimesAMinute: a stranger who sends tokens does not fill the log while a webhook is down.
func TestFailuresOfWebhooksAreLoggedTenTimesAMinute(t *testing.T) {
	t.Parallel()
	var f failureLimiter
	now, lines, withheld := time.Now(), 0, 0
	for range 1000 {
		if written, before := f.next(now); written {
			lines, withheld = lines+1, withheld+before
		}
	}
	if lines != 10 || withheld != 0 {
		t.Errorf("%d lines, %d failures withheld", lines, withheld)
	}
	if written, before := f.next(now.Add(61 * time.Second)); !written || before != 990 {
		t.Errorf("a minute later: %v, %d failures withheld", written, before)
	}
}

func TestTokensOfStrangersDoNotFillTheLog(t *testing.T) {
	t.Parallel()
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	t.Cleanup(hook.Close)
	file := apitest.TempFile(t, "kubeconfig", fmt.Sprintf(`{"current-context":"w","contexts":[{"name":"w","context":{"cluster":"c"}}],"clusters":[{"name":"c","cluster":{"server":%q}}]}`, hook.URL))
	var log strings.Builder
	a, err := New(Config{TokenHook: callout.TokensConfig{File: file, Version: "v1"}, Log: zerolog.New(&log)})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		r := httptest.NewRequest("GET", "/api", nil)
		r.Header.Set("Authorization", fmt.Sprint("Bearer t", i))
		if _, err := a.identify(r); err == nil {
			t.Fatal("a token that nobody has answered for is good")
		}
	}
	if lines := strings.Count(log.String(), "\n"); lines < 1 || lines > 2*failuresLogged { // a minute may end meanwhile
		t.Errorf("%d lines", lines)
	}
}
