package e2e

// These tests query the history of a running server with `apilet log` and `apilet diff`, and read
// its findings.

import (
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
)

const webDeployment = `{"metadata":{"name":"web","labels":{"app":"web"}},"spec":{"replicas":1,"selector":{"matchLabels":{"app":"web"}},
	"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"c","image":"nginx"}]}}}}`

func TestLogTellsWhoChangedWhat(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	deployments, agent := "/apis/apps/v1/namespaces/default/deployments", "User-Agent: night-saver/v1 (linux)"
	before := gjson.GetBytes(s.want(201, "POST", deployments, webDeployment).body, "metadata.resourceVersion").String()
	merge := "Content-Type: application/merge-patch+json"
	s.want(200, "PATCH", deployments+"/web?fieldManager=saver", `{"spec":{"replicas":0}}`, agent, merge)
	s.want(200, "PATCH", deployments+"/web/status", `{"status":{"observedGeneration":2}}`, agent, merge)
	s.want(201, "POST", "/api/v1/namespaces/default/secrets", `{"metadata":{"name":"s"},"stringData":{"p":"secret"}}`)
	s.want(200, "PATCH", "/api/v1/namespaces/default/secrets/s", `{"stringData":{"p":"other"}}`, merge)
	for _, c := range []struct {
		args  string
		lines int
		want  []string
	}{
		{"log deploy web", 3, []string{"Deployment default/web", "created", "saver  .spec.replicas 1 → 0", "Deployment/status default/web  night-saver  status: +.observedGeneration 2"}},
		{"log Deployment/web --by saver", 2, []string{".spec.replicas 1 → 0"}},
		{"log deployments.apps -n default --since " + before + " --limit 1", 1, []string{".spec.replicas 1 → 0"}},
		{"log deploy -n other", 0, nil},
		{"log -l app=web --since -1h", 3, nil},
		{"log secrets,deploy -A --field-selector metadata.name=s", 2, []string{`.data.p "***" changed`}},
		{"log secrets -o json", 2, []string{`"name":"s"`}},
		{"log deploy -o diff --by saver", 0, []string{"-  replicas: 1\n+  replicas: 0\n"}},
		{"log secret s -o yaml", 0, []string{"*** (before)", "*** (after)"}},
	} {
		out := command(t, append(strings.Fields(c.args), "--server", s.url)...)
		if format := strings.Contains(c.args, "diff") || strings.Contains(c.args, "yaml"); !format && strings.Count(out, "\n") != c.lines || strings.Contains(out, "c2VjcmV0") {
			t.Errorf("%s: want %d lines:\n%s", c.args, c.lines, out)
		}
		for _, part := range c.want {
			if !strings.Contains(out, part) {
				t.Errorf("%s: %q is not in\n%s", c.args, part, out)
			}
		}
	}
	if r := runAs(t, "apilet", "log", "nosuch", "--server", s.url); r.code != 1 || !strings.Contains(r.errs, `no type "nosuch"`) {
		t.Errorf("%d %s", r.code, r.errs)
	}
}

// TestLogByFields checks that changes are selected by the fields that kubectl can use, before and
// after the change.
func TestLogByFields(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	merge := "Content-Type: application/merge-patch+json"
	s.want(201, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", kubetest.FromFlow(t, `{metadata: {name: kites.example.com}, spec: {group: example.com, scope: Namespaced,
		names: {plural: kites, kind: Kite}, versions: [{name: v1, served: true, storage: true, selectableFields: [{jsonPath: .spec.tail}],
		schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {tail: {type: string, default: none}}}}}}}]}}`))
	kites, pods := "/apis/example.com/v1/namespaces/default/kites", "/api/v1/namespaces/default/pods"
	s.want(201, "POST", kites, `{"apiVersion":"example.com/v1","kind":"Kite","metadata":{"name":"red"},"spec":{"tail":"short"}}`)
	s.want(201, "POST", kites, `{"apiVersion":"example.com/v1","kind":"Kite","metadata":{"name":"blue"},"spec":{}}`)
	s.want(200, "PATCH", kites+"/red", `{"spec":{"tail":"long"}}`, merge)
	for _, name := range []string{"a", "b"} {
		s.want(201, "POST", pods, fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"nodeName":"node-%[1]s","containers":[{"name":"c","image":"i"}]}}`, name))
		s.want(200, "PATCH", pods+"/"+name+"/status", `{"status":{"phase":"Running"}}`, merge)
	}
	s.want(201, "POST", "/api/v1/namespaces/default/events", `{"metadata":{"name":"e"},"involvedObject":{"kind":"Pod","namespace":"default","name":"a"},"reason":"Killed"}`)
	for args, want := range map[string]string{
		"pods --field-selector spec.nodeName=node-a":                       "Pod default/a, Pod/status default/a",
		"pods --field-selector status.phase=Running,spec.nodeName!=node-a": "Pod/status default/b",
		"pods --field-selector status.phase=Pending,metadata.name=b":       "Pod default/b, Pod/status default/b",
		"events --field-selector involvedObject.name=a,reason=Killed":      "Event default/e",
		"events.events.k8s.io --field-selector regarding.name=a":           "Event default/e",
		"kites --field-selector spec.tail=long":                            "Kite default/red",
		"kites --field-selector spec.tail=short":                           "Kite default/red, Kite default/red",
		"kites --field-selector spec.tail=none":                            "Kite default/blue",
		"kites,pods -A --field-selector metadata.name=red --tail 1":        "Kite default/red",
		"pods --tail 1 --field-selector spec.nodeName=node-a":              "Pod/status default/a",
	} {
		var got []string
		for line := range strings.Lines(command(t, append(strings.Fields("log "+args), "--server", s.url)...)) {
			got = append(got, strings.Join(strings.Fields(line)[3:5], " "))
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
	for args, want := range map[string]string{"pods --field-selector spec.x=1": "field label not supported: spec.x", "kites,pods --field-selector spec.tail=x": "field label not supported: spec.tail",
		"deploy --field-selector spec.x=1": "not a known field selector", "--field-selector spec.nodeName=x": "without a resource only metadata.name and metadata.namespace are supported"} {
		if r := runAs(t, "apilet", append(strings.Fields("log "+args), "--server", s.url)...); r.code != 1 || !strings.Contains(r.errs, want) {
			t.Errorf("%s: %d %s", args, r.code, r.errs)
		}
	}
}

// TestDiffComparesMoments compares two moments. One of the types is not defined at the first
// moment.
func TestDiffComparesMoments(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	deployments, merge := "/apis/apps/v1/namespaces/default/deployments", "Content-Type: application/merge-patch+json"
	secrets := "/api/v1/namespaces/default/secrets"
	s.want(201, "POST", secrets, `{"metadata":{"name":"s"},"stringData":{"p":"secret"}}`)
	s.want(201, "POST", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"goes"},"data":{"a":"b"}}`)
	first := gjson.GetBytes(s.want(201, "POST", deployments, webDeployment).body, "metadata.resourceVersion").String()
	s.want(200, "PATCH", deployments+"/web", `{"spec":{"replicas":2}}`, merge)
	s.want(200, "DELETE", "/api/v1/namespaces/default/configmaps/goes", "")
	s.want(200, "PATCH", secrets+"/s", `{"stringData":{"p":"other"}}`, merge)
	s.define("gadgets")
	last := gjson.GetBytes(s.want(201, "POST", "/apis/example.com/v1/namespaces/default/gadgets", gadget(t, "new", "size: 2")).body,
		"metadata.resourceVersion").String()
	replicas, back := "-  replicas: 1\n+  replicas: 2\n", "-  replicas: 2\n+  replicas: 1\n"
	for _, c := range []struct {
		args       string
		with, miss []string
	}{
		{"", []string{replicas, "-  a: b\n", "-  p: '*** (before)'\n", "--- gadgets.example.com default/new at", "customresourcedefinitions.apiextensions.k8s.io"}, nil},
		{"deploy", []string{replicas}, []string{"goes", "gadgets"}},
		{"deploy web", []string{replicas}, nil},
		{"deploy/web -n other", nil, []string{"replicas"}},
		{"deploy,gadgets -A -l app=web", []string{replicas}, []string{"gadgets"}},
		{"-n default", []string{replicas, "gadgets.example.com default/new"}, []string{"customresourcedefinitions"}},
	} {
		out := strings.ReplaceAll(command(t, append([]string{"diff", first, last, "--server", s.url}, strings.Fields(c.args)...)...), `"*** (before)"`, "'*** (before)'")
		for _, part := range c.with {
			if !strings.Contains(out, part) {
				t.Errorf("%s: %q is not in\n%s", c.args, part, out)
			}
		}
		for _, part := range append(c.miss, "c2VjcmV0", "b3RoZXI=") {
			if strings.Contains(out, part) {
				t.Errorf("%s: %q is in\n%s", c.args, part, out)
			}
		}
	}
	if out := command(t, "diff", last, first, "deploy", "--server", s.url); !strings.Contains(out, back) {
		t.Errorf("back:\n%s", out)
	}
	if out := command(t, "diff", last, last, "--server", s.url); out != "" {
		t.Errorf("nothing is different:\n%s", out)
	}
	if r := runAs(t, "apilet", "diff", first, "99999999", "--server", s.url); r.code != 1 || !strings.Contains(r.errs, "in the future") {
		t.Errorf("%d %s", r.code, r.errs)
	}
}

// TestLogFollows checks that the command immediately prints each change, and that it ends if its
// output is closed.
func TestLogFollows(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	cmd := exec.Command(builtProgram(t), "log", "cm", "-f", "--server", s.url)
	read, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	lines := make(chan string, 100) // more than the command prints
	var done sync.WaitGroup
	done.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, err := read.Read(buf)
			if err != nil {
				close(lines)
				return
			}
			lines <- string(buf[:n])
		}
	})
	next := func(want string) {
		t.Helper()
		for {
			select {
			case text := <-lines:
				if strings.Contains(text, want) {
					return
				}
			case <-apitest.Timeout(t):
				t.Fatalf("%q never came", want)
			}
		}
	}
	for i := range 3 {
		s.want(201, "POST", "/api/v1/namespaces/default/configmaps", fmt.Sprintf(`{"metadata":{"name":"c%d"}}`, i))
		next(fmt.Sprintf("ConfigMap default/c%d", i))
	}
	_ = read.Close()
	done.Wait()
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	apitest.WaitFor(t, "the end of a command that nobody reads", func() bool {
		s.want(201, "POST", "/api/v1/namespaces/default/configmaps", `{"metadata":{"generateName":"c"}}`)
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
}

// fight simulates two controllers that set a label to different values in turn, which results in a
// finding.
func (s *testServer) fight(path string, headers ...string) {
	s.t.Helper()
	for i := range 20 {
		s.want(200, "PATCH", path, fmt.Sprintf(`{"metadata":{"labels":{"side":"%d"}}}`, i%2), append(headers, "Content-Type: application/merge-patch+json",
			"User-Agent: "+[]string{"planner/v1", "saver/v1"}[i%2])...)
	}
}

// TestFindingsAreForThoseWhoMayList checks that a user only receives findings about objects that
// the user may list.
func TestFindingsAreForThoseWhoMayList(t *testing.T) {
	t.Parallel()
	s, _ := startTLS(t)
	root, bob := "Authorization: Bearer root-token", "Authorization: Bearer bob-token"
	s.want(201, "POST", "/api/v1/namespaces/default/secrets", `{"metadata":{"name":"s"}}`, root)
	s.fight("/api/v1/namespaces/default/secrets/s", root)
	items := func(as string) int64 {
		return gjson.GetBytes(s.want(200, "GET", "/debug/findings", "", as).body, "items.#").Int()
	}
	if n := items(root); n != 1 {
		t.Errorf("a master sees %d findings", n)
	}
	s.want(403, "GET", "/debug/findings", "", bob)
	s.want(401, "GET", "/debug/findings", "", "Authorization: Bearer nobody")
	s.want(201, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", `{"metadata":{"name":"r"},"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["list"]}]}`, root)
	s.want(201, "POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
		`{"metadata":{"name":"b"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"r"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"bob"}]}`, root)
	apitest.WaitFor(t, "bob's role", func() bool { return s.send("GET", "/debug/findings", "", bob).code == 200 })
	if n := items(bob); n != 0 {
		t.Errorf("who may list pods sees %d findings about secrets", n)
	}
	s.want(200, "PATCH", "/apis/rbac.authorization.k8s.io/v1/clusterroles/r", `{"rules":[{"apiGroups":[""],"resources":["secrets"],"verbs":["list"]}]}`, root,
		"Content-Type: application/merge-patch+json")
	apitest.WaitFor(t, "bob's finding", func() bool { return items(bob) == 1 })
}
