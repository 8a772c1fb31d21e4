package e2e

import (
	"bufio"
	"net/http"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
	"apilet/internal/dashboard"
	"apilet/internal/request"
)

// The files of the page are public, but access to its data must be granted explicitly. A role with
// wildcards is not sufficient.
func TestDashboardIsForWhoeverMayGetIt(t *testing.T) {
	t.Parallel()
	s, _ := startTLS(t)
	root, bob := "Authorization: Bearer root-token", "Authorization: Bearer bob-token"
	if a := s.want(200, "GET", "/debug/ui/", ""); !strings.Contains(string(a.body), "<title>apilet</title>") || a.header.Get("Content-Security-Policy") == "" {
		t.Errorf("the page: %v %s", a.header, a.body)
	}
	s.want(403, "GET", dashboard.DataPath, "")
	s.want(403, "GET", dashboard.DataPath, "", bob)
	s.want(200, "GET", dashboard.DataPath, "", root)
	grant := func(name, rules string) {
		s.want(201, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", `{"metadata":{"name":"`+name+`"},"rules":[`+rules+`]}`, root)
		s.want(201, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", `{"metadata":{"name":"`+name+`"},
			"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"`+name+`"},
			"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"bob"}]}`, root)
	}
	grant("before", `{"nonResourceURLs":["/debug/*","*"],"verbs":["get"]}`)
	apitest.WaitFor(t, "bob's wildcards", func() bool { return s.send("GET", "/debug/deprecations", "", bob).code == 200 })
	s.want(403, "GET", dashboard.DataPath, "", bob)
	grant("own", `{"nonResourceURLs":["/debug/ui/*"],"verbs":["get"]}`)
	apitest.WaitFor(t, "bob's right", func() bool { return s.send("GET", dashboard.DataPath, "", bob).code == 200 })
}

// A browser at the server's URL is redirected to the page that the log names, also without
// credentials. Other clients get the list of paths.
func TestBrowsersFindTheDashboard(t *testing.T) {
	t.Parallel()
	plain := startTest(t)
	secured, _ := startTLS(t)
	for _, s := range []*testServer{plain, secured} {
		if log := s.log.String(); !strings.Contains(log, `"page":"`+s.url+request.PathUI+`"`) {
			t.Errorf("the log does not have the page's address: %s", log)
		}
		if a := s.want(200, "GET", "/", "", "Accept: text/html,*/*;q=0.8"); !strings.Contains(string(a.body), "<title>apilet</title>") {
			t.Errorf("a browser gets %s", a.body)
		}
	}
	for _, accept := range []string{"*/*", "application/json, */*"} {
		if a := plain.want(200, "GET", "/", "", "Accept: "+accept); !strings.Contains(a.get("paths").Raw, `"/apis/apps"`) {
			t.Errorf("%s gets %s", accept, a.body)
		}
	}
	secured.want(403, "GET", "/", "", "Accept: application/json")
}

func TestDashboardShowsWhatGoesOn(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	r, _ := http.NewRequest("GET", s.url+"/api/v1/namespaces/default/configmaps?watch=1&labelSelector=a%3Db", nil)
	r.Header.Set("User-Agent", "watcher/1 (<b>)")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	s.want(200, "GET", "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas", "")
	made := s.want(201, "POST", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"c","labels":{"a":"b"}}}`)
	if _, err := bufio.NewReader(answer.Body).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	rev := gjson.GetBytes(made.body, "metadata.resourceVersion").Int()
	watch := `watches.items.#(agent=="watcher/1 (<b>)")`
	var body []byte
	apitest.WaitFor(t, "the watch in the document", func() bool {
		body = s.want(200, "GET", dashboard.DataPath+"?page=a", "").body
		return gjson.GetBytes(body, watch+".at").Int() >= rev && gjson.GetBytes(body, watch+".lag").Int() == 0
	})
	for path, want := range map[string]string{watch + ".resource": "configmaps", watch + ".namespace": "default", watch + ".labelSelector": "a=b", watch + ".user": "system:unsecured"} {
		if got := gjson.GetBytes(body, path).String(); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
	for _, path := range []string{"store.revision", "store.fileBytes", "store.objects", "store.commits", "store.resources.0.objects", "flowControl.seats", `flowControl.levels.#(name=="exempt").dispatched`} {
		if gjson.GetBytes(body, path).Float() <= 0 {
			t.Errorf("%s is %s", path, gjson.GetBytes(body, path).Raw)
		}
	}
	_ = answer.Body.Close()
	apitest.WaitFor(t, "the end of the watch", func() bool {
		return !gjson.GetBytes(s.want(200, "GET", dashboard.DataPath+"?page=a", "").body, watch).Exists()
	})
}
