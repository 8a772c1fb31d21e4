package e2e

// These tests check the author and time of each revision, the history for users with limited
// permissions, and the API at an earlier moment with paths below /at/.

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
	"apilet/internal/history"
)

// as returns the headers with which an administrator impersonates a user. agent is the User-Agent.
func as(user, agent string, groups ...string) []string {
	headers := []string{"Impersonate-User: " + user, "User-Agent: " + agent}
	for _, group := range groups {
		headers = append(headers, "Impersonate-Group: "+group)
	}
	return headers
}

// lines requests the history and returns the lines of the response.
func (s *testServer) lines(query string, headers ...string) []gjson.Result {
	s.t.Helper()
	var lines []gjson.Result
	for _, line := range strings.Split(strings.TrimSpace(string(s.want(200, "GET", history.Path+"?"+query, "", headers...).body)), "\n") {
		if line != "" {
			lines = append(lines, gjson.Parse(line))
		}
	}
	return lines
}

// Every write is recorded with its user, program, verb, subresource and field manager. The server's
// own writes are also recorded.
func TestHistoryNamesWhoWrote(t *testing.T) {
	t.Parallel()
	s := startTest(t, "--controllers=true")
	s.namespace("shop")
	deployments := "/apis/apps/v1/namespaces/shop/deployments"
	deployment := kubetest.FromFlow(t, `{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}`)
	s.want(201, "POST", deployments, deployment, as("alice", "kubectl/v1.36 (linux)")...)
	merge := func(user, agent string) []string {
		return append(as(user, agent), "Content-Type: application/merge-patch+json")
	}
	s.want(200, "PATCH", deployments+"/web?fieldManager=tuner", `{"spec":{"replicas":2}}`, merge("bob", "tool/1")...)
	s.want(200, "PATCH", deployments+"/web/status", `{"status":{"replicas":2}}`, merge("carol", "ctl")...)
	s.want(200, "PATCH", deployments+"/web?fieldManager=argo", `{"apiVersion":"apps/v1","kind":"Deployment","spec":{"paused":true}}`,
		append(as("dora", "argo/2"), "Content-Type: application/apply-patch+yaml")...)
	s.want(200, "PATCH", deployments+"/web/scale", `{"spec":{"replicas":5}}`, merge("emil", "hpa/1")...)
	s.want(200, "DELETE", deployments, "", as("fritz", "kubectl/v1.36")...)
	var got []string
	for _, line := range s.lines("resource=deployments.apps&namespace=shop") {
		got = append(got, strings.Join([]string{line.Get("user").String(), line.Get("agent").String(), line.Get("manager").String(), line.Get("verb").String(),
			line.Get("subresource").String(), line.Get("type").String(), line.Get("changes.#.path").Raw}, "|"))
		if _, err := time.Parse(time.RFC3339, line.Get("time").String()); err != nil {
			t.Error(err)
		}
	}
	want := []string{`alice|kubectl/v1.36 (linux)|kubectl|create||ADDED|`, `bob|tool/1|tuner|patch||MODIFIED|[".spec.replicas"]`,
		`carol|ctl|ctl|patch|status|MODIFIED|[".status.replicas"]`, `dora|argo/2|argo|apply||MODIFIED|[".spec.paused"]`,
		`emil|hpa/1|hpa|patch|scale|MODIFIED|[".spec.replicas"]`, `fritz|kubectl/v1.36|kubectl|deletecollection||DELETED|`}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// The history must also name the author of the server's own writes, such as the namespace's
	// default account and the deletes of the garbage collector.
	account := s.lines("resource=serviceaccounts&namespace=shop&name=default")
	if len(account) != 1 || account[0].Get("user").String() != "system:unsecured" && account[0].Get("user").String() != "system:apiserver" {
		t.Errorf("the first account: %v", account)
	}
	owner := s.want(201, "POST", "/api/v1/namespaces/shop/configmaps", configMap("owner", "a", "b")).get("metadata.uid").String()
	s.want(201, "POST", "/api/v1/namespaces/shop/configmaps", kubetest.FromFlow(t, `{metadata: {name: owned, ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: owner, uid: "`+owner+`"}]}}`))
	s.want(200, "DELETE", "/api/v1/namespaces/shop/configmaps/owner", "", as("gerd", "kubectl/v1.36")...)
	apitest.WaitFor(t, "the owned to go", func() bool {
		for _, line := range s.lines("resource=configmaps&name=owned") {
			if line.Get("type").String() == "DELETED" {
				return line.Get("agent").String() == "apilet/gc" && strings.HasPrefix(line.Get("user").String(), "system:")
			}
		}
		return false
	})
}

// A user receives the history of the objects that she may list by the current rules. If the user
// may not list any objects, the request is rejected.
func TestHistoryIsForThoseWhoMayList(t *testing.T) {
	t.Parallel()
	s := startTest(t, "--authorization-mode=RBAC")
	s.namespace("shop")
	s.namespace("farm")
	for _, ns := range []string{"shop", "farm"} {
		s.want(201, "POST", "/api/v1/namespaces/"+ns+"/configmaps", configMap("m", "a", "b"))
		s.want(201, "POST", "/api/v1/namespaces/"+ns+"/secrets", `{"metadata":{"name":"s"},"stringData":{"p":"geheim"}}`)
	}
	roles := "/apis/rbac.authorization.k8s.io/v1/namespaces/shop/"
	s.want(201, "POST", roles+"roles", kubetest.FromFlow(t, `{metadata: {name: r}, rules: [{apiGroups: [""], resources: [configmaps], verbs: [list]}]}`))
	s.want(201, "POST", roles+"rolebindings", kubetest.FromFlow(t, `{metadata: {name: b}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: r}, subjects: [{kind: User, name: lisa, apiGroup: rbac.authorization.k8s.io}]}`))
	var seen []string
	for _, line := range s.lines("", as("lisa", "x")...) {
		if name := line.Get("name").String(); name != "kube-root-ca.crt" {
			seen = append(seen, line.Get("resource").String()+" "+line.Get("namespace").String()+"/"+name)
		}
	}
	if fmt.Sprint(seen) != "[configmaps shop/m]" {
		t.Errorf("lisa sees %v", seen)
	}
	if a := s.want(403, "GET", history.Path, "", as("moritz", "x")...); !strings.Contains(a.failure(), `User "moritz" may not list anything`) {
		t.Error(a.failure())
	}
	if all := s.want(200, "GET", history.Path+"?limit=5000&objects=true", ""); bytes.Contains(all.body, []byte("geheim")) || bytes.Contains(all.body, []byte("Z2VoZWlt")) {
		t.Errorf("a Secret is told: %s", all.body)
	}
	// Requests for the past are authorized by the rules of the plain path. This comes first, so
	// that users without these rights do not learn whether the moment exists.
	rev := fmt.Sprint(s.revision())
	s.want(200, "GET", history.PathAt+rev+"/api/v1/namespaces/shop/configmaps", "", as("lisa", "x")...)
	for _, path := range []string{rev + "/api/v1/namespaces/farm/configmaps", rev + "/api/v1/namespaces/shop/secrets", rev + "/api/v1/namespaces/shop/configmaps/m",
		"nonsense/api/v1/namespaces/shop/secrets", rev + "/metrics", rev + "/api/v1/namespaces/shop/configmaps?watch=true"} {
		s.want(403, "GET", history.PathAt+path, "", as("lisa", "x")...)
	}
	s.want(403, "DELETE", history.PathAt+rev+"/api/v1/namespaces/shop/configmaps/m", "", as("lisa", "x")...)
	s.want(405, "DELETE", history.PathAt+rev+"/api/v1/namespaces/shop/configmaps/m", "")
}

// The whole API can be read in the past. This also applies to chunks, selectors, tables, protobuf
// and scales. Custom resources use the definition of the same moment.
func TestTimeTravel(t *testing.T) {
	t.Parallel()
	audit := filepath.Join(t.TempDir(), "audit.log")
	s := startTest(t, "--audit-log-path="+audit)
	maps := s.namespace("shop")
	for i := range 7 {
		s.want(201, "POST", maps, kubetest.FromFlow(t, fmt.Sprintf(`{metadata: {name: m%d, labels: {num: "%d"}}, data: {k: first}}`, i, i%2)))
	}
	s.want(201, "POST", "/apis/apps/v1/namespaces/shop/deployments", kubetest.FromFlow(t, `{metadata: {name: web}, spec: {replicas: 2, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}`))
	column := func(name, text string) string {
		return kubetest.SimpleDefinition(t, "Thing", "example.com", `{type: object, properties: {spec: {type: object, properties: {a: {type: string, description: `+text+`}}}}}`,
			`, additionalPrinterColumns: [{name: `+name+`, type: string, jsonPath: .spec.a}]`)
	}
	s.want(201, "POST", definitionsPath, column("Old", "of then"))
	things := "/apis/example.com/v1/namespaces/shop/things"
	s.want(201, "POST", things, kubetest.FromFlow(t, `{apiVersion: example.com/v1, kind: Thing, metadata: {name: t}, spec: {a: then}}`))
	rev := s.revision()
	time.Sleep(3 * time.Millisecond) // so the moment is between two writes
	moment := time.Now().UTC().Format(time.RFC3339Nano)
	time.Sleep(3 * time.Millisecond)
	put := s.want(200, "PUT", maps+"/m1", kubetest.FromFlow(t, `{metadata: {name: m1}, data: {k: second}}`))
	// newest is the highest revision that may be visible at the moment. The server may be writing
	// something itself at the same time, and a write is only visible once it is on disk.
	newest := put.rev() - 1
	s.want(200, "DELETE", maps+"/m2", "")
	s.want(201, "POST", maps, kubetest.FromFlow(t, `{metadata: {name: m9}}`))
	s.want(200, "PATCH", "/apis/apps/v1/namespaces/shop/deployments/web/scale", `{"spec":{"replicas":9}}`, "Content-Type: application/merge-patch+json")
	s.want(200, "PATCH", definitionsPath+"/things.example.com", `{"spec":{"versions":`+gjson.Get(column("New", "of now"), "spec.versions").Raw+`}}`, "Content-Type: application/merge-patch+json")
	between := s.revision()
	s.want(200, "DELETE", definitionsPath+"/things.example.com", "")

	for at, latest := range map[string]int64{history.PathAt + fmt.Sprint(rev): rev, history.PathAt + moment: newest} {
		if a := s.want(200, "GET", at+maps+"/m1", ""); a.get("data.k").String() != "first" || a.rev() > rev {
			t.Errorf("%s: m1: %s", at, a.body)
		}
		s.want(200, "GET", at+maps+"/m2", "")
		s.want(404, "GET", at+maps+"/m9", "")
		if a := s.want(200, "GET", at+maps+"?labelSelector=num%3D1", ""); a.names() != "m1 m3 m5" {
			t.Errorf("%s: by label: %s", at, a.names())
		}
		if a := s.want(200, "GET", at+maps+"?fieldSelector=metadata.name%3Dm2", ""); a.names() != "m2" {
			t.Errorf("%s: by field: %s", at, a.names())
		}
		var names []string
		for next := ""; ; {
			a := s.want(200, "GET", at+maps+"?limit=3&continue="+next, "")
			if names = append(names, a.names()); a.rev() < rev || a.rev() > latest {
				t.Errorf("%s: a chunk of revision %d, want %d to %d", at, a.rev(), rev, latest)
			}
			if next = a.token(); next == "" {
				break
			}
		}
		if got := strings.Join(names, " "); strings.ReplaceAll(got, "kube-root-ca.crt ", "") != "m0 m1 m2 m3 m4 m5 m6" {
			t.Errorf("%s: in chunks: %s", at, got)
		}
		if a := s.want(200, "GET", at+"/apis/apps/v1/namespaces/shop/deployments/web/scale", ""); a.get("spec.replicas").Int() != 2 {
			t.Errorf("%s: scale: %s", at, a.body)
		}
		if a := s.want(200, "GET", at+"/apis/apps/v1/namespaces/shop/deployments", "", "Accept: application/json;as=Table;v=v1;g=meta.k8s.io"); !strings.HasPrefix(a.get("rows.0.cells.1").String(), "0/2") {
			t.Errorf("%s: table: %s", at, a.body)
		}
		if a := s.want(200, "GET", at+maps+"/m1", "", "Accept: application/vnd.kubernetes.protobuf"); !bytes.Contains(a.body, []byte("first")) {
			t.Errorf("%s: protobuf: %q", at, a.body)
		}
		if a := s.want(200, "GET", at+things, "", "Accept: application/json;as=Table;v=v1;g=meta.k8s.io"); a.get("columnDefinitions.1.name").String() != "Old" || a.get("rows.0.cells.1").String() != "then" {
			t.Errorf("%s: custom table: %s", at, a.body)
		}
		if a := s.want(200, "GET", at+"/apis/example.com/v1", ""); a.get("resources.0.name").String() != "things" {
			t.Errorf("%s: discovery: %s", at, a.body)
		}
		index := s.want(200, "GET", at+"/openapi/v3", "")
		href := index.get(`paths.apis/example\.com/v1.serverRelativeURL`).String()
		if doc := s.want(200, "GET", href, ""); !strings.HasPrefix(href, history.PathAt) || !bytes.Contains(doc.body, []byte("of then")) {
			t.Errorf("%s: %s: %.300s", at, href, doc.body)
		}
		if a := s.want(200, "GET", at+"/openapi/v2", ""); !bytes.Contains(a.body, []byte("of then")) {
			t.Errorf("%s: openapi/v2 does not know the type", at)
		}
		s.want(200, "GET", at+"/version", "")
		s.want(200, "GET", at+"/api", "")
	}
	if a := s.want(200, "GET", history.PathAt+fmt.Sprint(between)+things, "", "Accept: application/json;as=Table;v=v1;g=meta.k8s.io"); a.get("columnDefinitions.1.name").String() != "New" {
		t.Errorf("the definition in between: %s", a.body)
	}
	apitest.WaitFor(t, "the type is gone now", func() bool { return s.send("GET", things, "").code == 404 })
	if a := s.want(200, "GET", history.PathAt+"-0s"+maps+"/m1", ""); a.get("data.k").String() != "second" {
		t.Errorf("now, through /at/: %s", a.body)
	}
	// Requests for a later revision must fail. Earlier revisions are allowed.
	at := history.PathAt + fmt.Sprint(rev)
	s.want(504, "GET", at+maps+fmt.Sprintf("?resourceVersion=%d", rev+1), "")
	if a := s.want(200, "GET", at+maps+fmt.Sprintf("?resourceVersion=%d&resourceVersionMatch=Exact", rev-5), ""); a.rev() != rev-5 {
		t.Errorf("before then: %d", a.rev())
	}
	s.halt()
	log, err := os.ReadFile(audit)
	if err != nil || !bytes.Contains(log, []byte(`"requestURI":"`+at+maps+`/m1","verb":"get"`)) {
		t.Errorf("the audit log does not have the whole URI: %v", err)
	}
}

// Requests that are not possible in the past get a Status with the reason. They do not change
// anything.
func TestTimeTravelRefuses(t *testing.T) {
	t.Parallel()
	s := startTest(t, onSomeFile(t))
	maps := s.namespace("shop")
	s.want(201, "POST", maps, configMap("m", "k", "v"))
	rev := s.want(200, "PUT", maps+"/m", configMap("m", "k", "w")).rev()
	before := s.revision()
	at := history.PathAt + fmt.Sprint(rev)
	for _, c := range [][3]string{
		{"POST", maps, configMap("n", "k", "v")}, {"PUT", maps + "/m", configMap("m", "k", "x")}, {"PATCH", maps + "/m", `{}`}, {"DELETE", maps + "/m", ""}, {"DELETE", maps, ""},
		{"POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", `{}`}, {"POST", "/api/v1/namespaces/shop/serviceaccounts/default/token", `{}`}, {"PUT", "/version", ""},
	} {
		a := s.want(405, c[0], at+c[1], c[2])
		if a.get("reason").String() != "MethodNotAllowed" || !strings.Contains(a.failure(), "what was cannot be changed") {
			t.Errorf("%s %s: %s", c[0], c[1], a.failure())
		}
	}
	for _, path := range []string{maps + "?watch=true", "/api/v1/watch/namespaces/shop/configmaps", maps + "/m?watch=1&resourceVersion=0"} {
		if a := s.send("GET", at+path, ""); strings.Contains(path, "/m?") != (a.code == 200) || a.code != 200 && (a.code != 405 || !strings.Contains(a.failure(), "cannot be watched")) {
			t.Errorf("%s: %s", path, a.failure())
		}
	}
	if s.revision() != before {
		t.Errorf("something was written: revision %d, was %d", s.revision(), before)
	}
	s.compactNow(rev - 1)
	for moment, want := range map[string]string{
		fmt.Sprint(rev - 2): fmt.Sprintf("410 Expired revision %d is compacted: the oldest moment that can be asked is revision %d", rev-2, rev-1), "1": "410 Expired revision 1 is compacted",
		"-24h": "410 Expired -24h is compacted", "2001-01-01T00:00:00Z": "410 Expired 2001", fmt.Sprint(before + 1000): "400 BadRequest revision ", "2101-01-01T00:00:00Z": "400 BadRequest 2101",
		"": `400 BadRequest "nothing" is not a moment`, "0": "400 BadRequest", "-5": "400 BadRequest", "5m": "400 BadRequest", "%3Cb%3E": `400 BadRequest "<b>" is not a moment`, "99999999999999999999": "400 BadRequest",
		"a%2Fb": `400 BadRequest "a/b" is not a moment`, "%00": "400 BadRequest", strings.Repeat("x", 10_000): "400 BadRequest", "2026-11-23T05:00:00": "400 BadRequest", "..": "4",
	} {
		if a := s.send("GET", history.PathAt+moment+maps, ""); !strings.HasPrefix(a.failure(), want) || len(a.body) > 2000 {
			t.Errorf("%.50s: %s", moment, a.failure())
		}
	}
	// If discovery fails, kubectl only shows the warning.
	if a := s.want(410, "GET", history.PathAt+"-24h/apis", ""); !strings.Contains(a.header.Get("Warning"), "-24h is compacted") {
		t.Errorf("warning %q", a.header.Get("Warning"))
	}
	for _, path := range []string{at + "/metrics", at + "/healthz", at + "/debug/history", at + at + maps, at + history.PathAt, at, "/at", at + "/api/v1/nonsense", at + "/apis/none/v1/x"} {
		if a := s.send("GET", path, ""); a.code != 404 {
			t.Errorf("%s: %d %s", path, a.code, a.body)
		}
	}
	// An escaped path is equivalent to the plain one.
	if a := s.want(200, "GET", at+maps+"/%6D", ""); a.get("data.k").String() != "w" {
		t.Errorf("escaped: %s", a.body)
	}
}

// Requests for a moment return the same objects while other clients write or read other moments.
func TestTravelBesideWrites(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	maps := s.namespace("shop")
	s.define("gadgets")
	for i := range 5 {
		s.want(201, "POST", maps, configMap(fmt.Sprint("m", i), "k", "v"))
	}
	rev := s.revision()
	at := history.PathAt + fmt.Sprint(rev)
	want := s.want(200, "GET", at+maps, "").names()
	var crowd sync.WaitGroup
	for w := range 4 {
		crowd.Go(func() {
			for i := range 10 {
				if a, err := s.try("POST", maps, configMap(fmt.Sprintf("x%d-%d", w, i), "k", "v")); err != nil || a.code != 201 {
					t.Errorf("write: %v %v", a.code, err)
				}
				if w == 0 {
					s.try("POST", definitionsPath, kubetest.SimpleDefinition(t, fmt.Sprint("Kind", i), "example.org", "{type: object}", ""))
				}
				if a, err := s.try("GET", at+maps, ""); err != nil || a.names() != want {
					t.Errorf("at %d: %s, %v", rev, a.names(), err)
				}
				if a, err := s.try("GET", at+gadgets, ""); err != nil || a.code != 200 {
					t.Errorf("gadgets of then: %d, %v", a.code, err)
				}
				if a, err := s.try("GET", at+"/apis/example.org/v1", ""); err != nil || a.code != 404 {
					t.Errorf("a group of later: %d, %v", a.code, err)
				}
			}
		})
	}
	crowd.Wait()
}

// A client that follows the history is not limited by the request timeout.
func TestHistoryIsFollowed(t *testing.T) {
	t.Parallel()
	s := startTest(t, "--request-timeout=3s")
	w := s.watch(history.Path + "?follow=true&resource=configmaps&namespace=default&name=m&after=0")
	time.Sleep(3200 * time.Millisecond) // longer than the request timeout
	apitest.WaitFor(t, "a write within the time of a request", func() bool {
		code := s.send("POST", "/api/v1/namespaces/default/configmaps", configMap("m", "k", "v")).code
		return code == 201 || code == 409
	})
	if f := w.next(); f.kind != "ADDED" {
		t.Errorf("got %v", f)
	}
}

// grant creates a role with the given rules and binds it to a user. If namespace is "", it creates
// a ClusterRole.
func (s *testServer) grant(user, namespace, rules string) {
	s.t.Helper()
	group, kind := "/apis/rbac.authorization.k8s.io/v1/", "Cluster"
	path := group + "cluster"
	if namespace != "" {
		path, kind = group+"namespaces/"+namespace+"/", ""
	}
	name := fmt.Sprintf("%s-%d", user, s.revision())
	s.want(201, "POST", path+"roles", kubetest.FromFlow(s.t, fmt.Sprintf(`{metadata: {name: %s}, rules: [%s]}`, name, rules)))
	s.want(201, "POST", path+"rolebindings", kubetest.FromFlow(s.t, fmt.Sprintf(
		`{metadata: {name: %s}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: %sRole, name: %s}, subjects: [{kind: User, name: %s, apiGroup: rbac.authorization.k8s.io}]}`, name, kind, name, user)))
}

// If a namespace or an object is deleted and created again, users of the new one must not see the
// previous one. This applies to paths below /at/, lists at an old revision, continue tokens,
// watches, the history and findings.
func TestNamesAreNotInheritedWithTheirPast(t *testing.T) {
	t.Parallel()
	s := startTest(t, "--authorization-mode=RBAC", "--controllers=true")
	const secrets, maps = "/api/v1/namespaces/team/secrets", "/api/v1/namespaces/team/configmaps"
	object := func(name, word string) string {
		return fmt.Sprintf(`{"metadata":{"name":%q},"stringData":{"p":%q}}`, name, word)
	}
	s.namespace("team")
	s.want(201, "POST", secrets, object("db", "former"))
	s.want(201, "POST", secrets, object("late", "former"))
	s.want(201, "POST", maps, configMap("m", "k", "former"))
	s.fight(maps + "/m")
	then := s.revision()
	s.want(200, "DELETE", "/api/v1/namespaces/team", "")
	apitest.WaitFor(t, "the namespace to go", func() bool { return s.send("GET", "/api/v1/namespaces/team", "").code == 404 })
	gone := s.revision()
	s.namespace("team")
	s.want(201, "POST", secrets, object("db", "mine"))
	s.want(201, "POST", maps, configMap("m", "k", "mine"))
	again := s.revision()
	s.grant("eve", "team", `{apiGroups: [""], resources: [secrets, configmaps], verbs: ["*"]}`)
	s.grant("keeper", "", `{apiGroups: [""], resources: [secrets, configmaps], verbs: [get, list, watch]}`)
	at := func(rev int64, path string) string { return fmt.Sprint(history.PathAt, rev, path) }

	for _, rev := range []int64{then, gone} {
		s.want(404, "GET", at(rev, secrets+"/db"), "", as("eve", "x")...)
		a := s.want(200, "GET", at(rev, secrets), "", as("eve", "x")...)
		if a.get("items.#").Int() != 0 || a.rev() != rev || !strings.Contains(a.header.Get("Warning"), "begins after revision") {
			t.Errorf("eve sees of revision %d: %s, warning %q", rev, a.body, a.header.Get("Warning"))
		}
		exact := fmt.Sprintf("?resourceVersion=%d&resourceVersionMatch=Exact", rev)
		if a := s.want(200, "GET", secrets+exact, "", as("eve", "x")...); a.get("items.#").Int() != 0 {
			t.Errorf("eve sees by an exact list of revision %d: %s", rev, a.body)
		}
		if a := s.want(200, "GET", at(again, secrets)+exact, "", as("eve", "x")...); a.get("items.#").Int() != 0 {
			t.Errorf("eve sees by an exact list in the past of revision %d: %s", rev, a.body)
		}
		a = s.want(410, "GET", fmt.Sprintf("%s?watch=1&resourceVersion=%d", secrets, rev-1), "", as("eve", "x")...)
		if a.get("reason").String() != "Expired" {
			t.Errorf("a watch from before: %s", a.failure())
		}
	}
	a := s.want(200, "GET", at(then, secrets)+"?limit=1", "")
	if a = s.want(200, "GET", secrets+"?limit=1&continue="+a.token(), "", as("eve", "x")...); a.get("items.#").Int() != 0 {
		t.Errorf("eve goes on where another's list ended: %s", a.body)
	}
	if a := s.want(200, "GET", at(again, secrets+"/db"), "", as("eve", "x")...); a.get("data.p").String() != "bWluZQ==" {
		t.Errorf("eve's own past: %s", a.body)
	}
	if a := s.want(200, "GET", at(again, secrets), "", as("eve", "x")...); a.get("items.#").Int() != 1 {
		t.Errorf("eve's own past: %s", a.body)
	}
	for _, line := range s.lines("objects=true", as("eve", "x")...) {
		if strings.Contains(line.Raw, "former") || line.Get("revision").Int() <= gone {
			t.Errorf("eve is told %s", line.Raw)
		}
	}
	if n := gjson.GetBytes(s.want(200, "GET", "/debug/findings", "", as("eve", "x")...).body, "items.#").Int(); n != 0 {
		t.Errorf("eve is told of %d findings", n)
	}
	s.watch(fmt.Sprintf("%s?watch=1&resourceVersion=%d", secrets, again-2), as("eve", "x")...).want("ADDED db")

	// A user with rights in all namespaces can see their complete past.
	if a := s.want(200, "GET", at(then, secrets+"/db"), "", as("keeper", "x")...); a.get("data.p").String() != "Zm9ybWVy" {
		t.Errorf("the keeper sees %s", a.body)
	}
	if a := s.want(200, "GET", at(then, secrets), "", as("keeper", "x")...); a.get("items.#").Int() != 2 {
		t.Errorf("the keeper sees %s", a.body)
	}
	if n := gjson.GetBytes(s.want(200, "GET", "/debug/findings", "", as("keeper", "x")...).body, "items.#").Int(); n != 1 {
		t.Errorf("the keeper is told of %d findings", n)
	}

	// If a user may only read one name, the user can see the past of the current or the last object
	// with that name.
	s.grant("nina", "team", `{apiGroups: [""], resources: [secrets, secrets/status], resourceNames: [db, late], verbs: [get, list, watch]}`)
	before := s.revision()
	s.want(200, "GET", at(before, secrets+"/db"), "", as("nina", "x")...)
	s.want(200, "DELETE", secrets+"/db", "")
	deleted := s.revision()
	s.want(404, "GET", at(before, secrets+"/db"), "", as("nina", "x")...)
	s.want(201, "POST", secrets, object("db", "next"))
	for _, rev := range []int64{before, deleted} {
		s.want(404, "GET", at(rev, secrets+"/db"), "", as("nina", "x")...)
	}
	one := secrets + "?fieldSelector=metadata.name%3Ddb"
	if a := s.want(200, "GET", at(before, one), "", as("nina", "x")...); a.get("items.#").Int() != 0 {
		t.Errorf("nina lists %s", a.body)
	}
	s.want(410, "GET", fmt.Sprintf("%s&watch=1&resourceVersion=%d", one, before), "", as("nina", "x")...)
	s.watch(fmt.Sprintf("%s&watch=1&resourceVersion=%d", one, deleted), as("nina", "x")...).want("ADDED db")
	s.want(200, "GET", at(s.revision(), secrets+"/db"), "", as("nina", "x")...)
	// If the name is new, it can be watched from any revision.
	s.grant("nina", "team", `{apiGroups: [""], resources: [secrets], resourceNames: [first], verbs: [watch]}`)
	s.want(201, "POST", secrets, object("first", "x"))
	s.watch(fmt.Sprintf("%s?fieldSelector=metadata.name%%3Dfirst&watch=1&resourceVersion=%d", secrets, deleted), as("nina", "x")...).want("ADDED first")
}

// Anonymous users can only read the present. Neither their roles nor paths that are open to
// everybody give access to the past. Requests that are not possible in the past are rejected before
// the server reads anything.
func TestThePastIsNotForStrangers(t *testing.T) {
	t.Parallel()
	s, _ := startTLS(t)
	root := "Authorization: Bearer root-token"
	s.want(201, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", `{"metadata":{"name":"r"},"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["list","get"]}]}`, root)
	s.want(201, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
		`{"metadata":{"name":"b"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"r"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"system:anonymous"}]}`, root)
	rev := fmt.Sprint(s.revision(root))
	for _, path := range []string{"/version", "/readyz", "/api/v1/configmaps"} {
		s.want(200, "GET", path, "")
		for _, moment := range []string{rev, "999999", "nonsense", "-99h"} {
			a := s.want(403, "GET", history.PathAt+moment+path, "")
			if !strings.Contains(a.failure(), "what was is not for strangers") {
				t.Errorf("%s: %s", path, a.failure())
			}
		}
	}
	s.want(403, "GET", history.Path, "")
	s.want(403, "GET", "/debug/findings", "")
	bob := "Authorization: Bearer bob-token"
	s.want(200, "GET", history.PathAt+rev+"/version", "", bob)
	if a := s.send("GET", history.PathAt+"nonsense/readyz", "", bob); a.code != 404 {
		t.Errorf("what has no answer: %d %s", a.code, a.body)
	}
	if a := s.want(400, "GET", history.PathAt+"999999/version", "", bob); strings.Contains(a.failure(), rev) {
		t.Errorf("whoever may ask nothing learns the newest revision: %s", a.failure())
	}
}
