package matching

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apiserver/pkg/cel/environment"

	"apilet/internal/request"
)

func TestConditionsHaveABudget(t *testing.T) {
	c, err := Compile("object.all(k, k != 'x')", (*environment.EnvSet).NewExpressionsEnv)
	if err != nil {
		t.Fatal(err)
	}
	variables := map[string]any{"object": map[string]any{"a": 1, "b": 2}}
	budget := int64(1000)
	if ok, err := c.eval(t.Context(), variables, &budget); !ok || err != nil || budget >= 1000 {
		t.Errorf("got %v, %v, and %d is left of 1000", ok, err, budget)
	}
	budget = 1
	if _, err := c.eval(t.Context(), variables, &budget); !errors.Is(err, errOutOfBudget) {
		t.Errorf("with a budget of 1: %v", err)
	}
}

// TestFalseConditionsWinOverErrors, whatever the order is, but not over a budget that is spent: what came after it is not known.
func TestFalseConditionsWinOverErrors(t *testing.T) {
	t.Parallel()
	nested := func(depth int) string {
		text := "true"
		for i := range depth {
			text = fmt.Sprintf("[1,2,3,4,5,6,7,8,9,10].all(x%d, %s)", i, text)
		}
		return text
	}
	tooDear, dear := nested(7), slices.Repeat([]string{nested(5)}, 12)
	const yes, no, fails, broken = "true", "false", "object.none == 1", "object."
	for _, c := range []struct {
		conditions []string
		holds      bool
		err        string
	}{
		{nil, true, ""}, {[]string{yes, yes}, true, ""}, {[]string{yes, no}, false, ""},
		{[]string{fails}, false, "no such key"}, {[]string{fails, yes}, false, "no such key"}, {[]string{fails, no}, false, ""}, {[]string{no, fails}, false, ""},
		{[]string{broken}, false, "compilation error"}, {[]string{broken, no}, false, ""}, {[]string{broken, fails}, false, "compilation error"},
		{[]string{tooDear}, false, "cost limit exceeded"}, {[]string{tooDear, no}, false, ""}, {[]string{no, tooDear}, false, ""},
		{append(slices.Clone(dear), no), false, errOutOfBudget.Error()}, {append([]string{no}, dear...), false, ""},
	} {
		set := &Set{}
		for i, text := range c.conditions {
			set.Conditions = append(set.Conditions, admissionv1.MatchCondition{Name: fmt.Sprint("c", i), Expression: text})
		}
		holds, err := set.Match(t.Context(), map[string]any{"object": map[string]any{"a": 1}, "oldObject": nil, "request": nil, "authorizer": nil})
		if holds != c.holds || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%.100q: %v, %v; want %v, %q", c.conditions, holds, err, c.holds, c.err)
		}
	}
}

// TestExpressionsAskTheAuthorizer about what they say, for the user of the request or for an account that they name, and are denied by default.
func TestExpressionsAskTheAuthorizer(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"authorizer.path('/healthz').check('get').allowed()":                                                                       "jane get /healthz",
		"authorizer.group('apps').resource('deployments').subresource('scale').namespace('n').name('d').check('update').allowed()": "jane update apps deployments/scale n/d",
		"authorizer.group('').resource('pods').fieldSelector('spec.nodeName=n1,status.phase!=Failed').check('list').allowed()":     "jane list  pods/ / spec.nodeName=n1,status.phase!=Failed",
		"authorizer.group('').resource('pods').fieldSelector('a b').check('list').allowed()":                                       "jane list  pods/ /",
		"authorizer.serviceAccount('n', 'robot').group('').resource('pods').check('get').allowed()":                                "system:serviceaccount:n:robot get  pods/ /",
		"authorizer.requestResource.check('custom').allowed()":                                                                     "jane custom apps deployments/status n/d",
	} {
		for _, allowed := range []bool{true, false} {
			var asked string
			may := AuthorizeFunc(func(u request.User, info request.Info) (bool, string) {
				asked = fmt.Sprintf("%s %s %s", u.Name, info.Verb, info.Path)
				if info.ResourceRequest {
					asked = fmt.Sprintf("%s %s %s %s/%s %s/%s", u.Name, info.Verb, info.Group, info.Resource, info.Subresource, info.Namespace, info.Name)
				}
				if options, _ := info.ListOptions(); options.FieldSelector != "" {
					asked += " " + options.FieldSelector
				}
				return allowed, "because"
			})
			c, err := Compile(text, (*environment.EnvSet).NewExpressionsEnv)
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			jane, budget := request.User{Name: "jane"}, int64(1_000_000)
			target := &Target{Group: "apps", Version: "v1", Resource: "deployments", Subresource: "status", Namespace: "n"}
			got, err := c.eval(t.Context(), map[string]any{"authorizer": may.Authorizer(jane), "authorizer.requestResource": may.ResourceAuthorizer(jane, target, "d")}, &budget)
			if err != nil || got != allowed || asked != want {
				t.Errorf("%s: %v, %v, asked %q; want %v, %q", text, got, err, asked, allowed, want)
			}
		}
	}
}
