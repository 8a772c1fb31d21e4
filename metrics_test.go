package main

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
)

func TestOrdinaryWritesAreTrackedTheShortWay(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	const deployments = "/apis/apps/v1/namespaces/default/deployments"
	s.want(201, "POST", benchPath, `{"metadata":{"name":"a","labels":{"x":"y"}},"data":{"k":"v"}}`)
	s.want(200, "PUT", benchPath+"/a?fieldManager=other", `{"metadata":{"name":"a"},"data":{"k":"w","l":"<&>"}}`)
	s.want(201, "POST", deployments, strings.NewReplacer(`"uid":"1",`, ``, `"resourceVersion":"7",`, ``).Replace(kubetest.DeploymentJSON(2)))
	s.want(200, "PATCH", deployments+"/d/status?fieldManager=controller", `{"status":{"replicas":1}}`, asMergePatch)
	s.want(200, "PATCH", deployments+"/d?fieldManager=scaler", `{"spec":{"replicas":5}}`, asMergePatch)
	s.want(200, "PATCH", deployments+"/d?fieldManager=image", `{"spec":{"template":{"spec":{"containers":[{"name":"c1","image":"next"}]}}}}`,
		"Content-Type: application/strategic-merge-patch+json")
	if short := s.wr.FieldTracking.Short.Load(); short < 6 {
		t.Errorf("%d writes went the short way", short)
	}
	if general := s.wr.FieldTracking.General.Load(); general != 0 {
		t.Errorf("%d writes were left to the general machine", general)
	}
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
	s.api.instruments.Findings.Sweep(time.Now().Add(2 * time.Minute))
	if !strings.Contains(command(t, "log", "--findings", "--server", s.url), "over  fight") || strings.Count(log.String(), "resolved: ") != 1 {
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

// ---- Strangers

// Requests that come to nothing, each with names that no other had: the server is to be none the larger for it.

// fruitless are requests without an effect; each %s is a word that comes once. What a client chooses is in there: every part of the
// path, the method, and the headers that something is made of.
var fruitless = []struct{ method, path, header string }{
	{"GET", "/apis/%s/v1/x?watch=1", ""}, {"GET", "/apis/apps/%s/deployments?watch=1", ""}, {"GET", "/api/v1/%s?watch=1", ""},
	{"GET", "/apis/%s", ""}, {"GET", "/apis/%s/%s", ""}, {"GET", "/api/%s", ""}, {"GET", "/%s", ""}, {"GET", "/openapi/v3/apis/%s/v1", ""},
	{"GET", "/api/v1/namespaces/%s/pods/%s", ""}, {"GET", "/api/v1/namespaces/default/pods/p/%s", ""}, {"GET", "/api/v1/watch/%s", ""},
	{"GET", "/api/v1/namespaces/%s/configmaps/x", ""}, {"DELETE", "/api/v1/nodes/%s", ""}, {"%s", "/api/v1/namespaces/default/pods", ""},
	{"PATCH", "/api/v1/namespaces/default/configmaps/%s", "Content-Type: application/%s"}, {"GET", "/apis/%%ff%s/v1/x?watch=1", ""},
	{"POST", "/api/v1/namespaces/default/configmaps?fieldManager=%s", "Content-Type: %s"}, {"GET", "/api/v1/pods?dryRun=%s&labelSelector=(%s", ""},
	{"GET", "/api/v1/nodes/%s", "User-Agent: %s"}, {"GET", "/api/v1/nodes/%s", "Accept: application/%s"}, {"GET", "/livez/%s", "Audit-Id: %s"},
	{"GET", "/api/v1/namespaces/default/endpoints/%s", "User-Agent: %s"}, {"GET", "/debug/%s", ""}, {"PUT", "/api/v1/namespaces/default/endpoints/x/%s", ""},
	{"GET", "/api/v1/nodes/x", "Impersonate-User: %s"}, {"GET", "/api/v1/nodes/x", "Impersonate-Group: %s"},
}

// sendFruitless sends each of them once, as a bad token, as nobody, as somebody without rights and as an administrator.
func (s *testServer) sendFruitless(word string) {
	s.t.Helper()
	for _, form := range fruitless {
		fill := func(text string) string { return strings.ReplaceAll(strings.ReplaceAll(text, "%s", word), "%%", "%") }
		for _, token := range []string{"Bearer nope-" + word, "", "Bearer bob-token", "Bearer root-token"} {
			r := httptest.NewRequest(fill(form.method), fill(form.path), strings.NewReader("{"))
			if key, value, ok := strings.Cut(fill(form.header), ": "); ok {
				r.Header.Set(key, value)
			}
			if token != "" {
				r.Header.Set("Authorization", token)
			}
			w := httptest.NewRecorder()
			s.http.Handler.ServeHTTP(w, r)
			if w.Code < 400 && w.Code != 200 {
				s.t.Fatalf("%s %s: %d %s", r.Method, r.URL, w.Code, w.Body)
			}
		}
	}
}

func (s *testServer) metricLines() (lines []string) {
	s.t.Helper()
	return strings.Split(string(s.want(200, "GET", "/metrics", "", masterToken).body), "\n")
}

// newSeries are those that were not there before.
func newSeries(before, after []string) (grown []string) {
	known := map[string]bool{}
	for _, line := range before {
		known[line[:strings.LastIndexByte(line, ' ')+1]] = true
	}
	for _, line := range after {
		if series := line[:strings.LastIndexByte(line, ' ')+1]; !known[series] {
			grown = append(grown, series)
		}
	}
	return grown
}

// TestFruitlessRequestsLeaveNothing: neither series nor memory grow with the names in requests that are refused or find nothing.
func TestFruitlessRequestsLeaveNothing(t *testing.T) {
	s, _ := startTLS(t)
	const rounds = 40
	word := func(i int) string { return fmt.Sprintf("zz%d%s", i, strings.Repeat("y", 4000)) }
	s.metricLines()     // which has series, too
	for i := range 20 { // what is remembered of a bounded number, such as agents, is so already
		s.sendFruitless(word(i))
	}
	lines, before := s.metricLines(), heldMemory()
	for i := range rounds {
		s.sendFruitless(word(100 + i))
	}
	expectMemory(t, before, 3<<20) // all the words are 66 MB
	after := s.metricLines()
	if grown := newSeries(lines, after); len(grown) > 0 {
		t.Errorf("%d series are new:\n%s", len(grown), strings.Join(grown, "\n"))
	}
	for _, line := range after {
		if strings.Contains(line, "zz") || strings.Contains(line, "yy") || strings.Contains(line, `code="401"`) && !strings.Contains(line, `resource=""`) {
			t.Errorf("in /metrics: %.300s", line)
		}
	}
}

// TestStrangersMakeNoSeries: however many resources a request names that is not let in, it counts as one of its method.
func TestStrangersMakeNoSeries(t *testing.T) {
	s, _ := startTLS(t)
	for _, token := range []string{"X-No: token", "Authorization: Bearer nope"} {
		for _, res := range s.reg.All()[:20] {
			for _, query := range []string{"", "?watch=1", "?dryRun=All"} {
				prefix := "/apis/" + res.Group
				if res.Group == "" {
					prefix = "/api"
				}
				s.send("GET", prefix+"/"+res.Version+"/"+res.Plural+query, "", token)
			}
		}
	}
	var refused []string
	for _, line := range s.metricLines() {
		if strings.Contains(line, `code="40`) && strings.HasPrefix(line, "apiserver_request_total") {
			refused = append(refused, line)
		}
		if strings.HasPrefix(line, "apiserver_longrunning_requests{") {
			t.Errorf("a watch that is not let in counts: %s", line)
		}
	}
	if len(refused) != 2 { // one of each code
		t.Errorf("refused requests are counted in %d series:\n%s", len(refused), strings.Join(refused, "\n"))
	}
}
