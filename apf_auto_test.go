package main

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"apilet/internal/options"
	"apilet/internal/request"
)

func autoFlow(c *config) { c.MaxReadonly, c.MaxMutating = options.AutoSeats, options.AutoSeats }

// A server that finds its seats shows what it knows; requests take part in it by what they did themselves, and a create that a webhook delays is
// expected to take as long again, but to be no wider.
func TestServerThatFindsItsSeats(t *testing.T) {
	t.Parallel()
	s := startTest(t, autoFlow)
	const delay = 50 * time.Millisecond
	s.validateSlowly(delay)
	const maps = "/api/v1/namespaces/default/configmaps"
	as := []string{"Impersonate-User", "alice"}
	for _, name := range []string{"a", "b", "c"} {
		s.want(201, "POST", maps, configMap(name), as...)
	}
	for range 3 {
		s.want(200, "GET", maps, "", as...)
	}
	info := request.Parse(httptest.NewRequest("POST", maps, nil))
	if est := s.fc.estimate(&request.Request{Info: info}); est.InitialSeats != 1 || est.Likely < delay {
		t.Errorf("a create that took more than %v is estimated at %+v", delay, est)
	}
	if seats := metricValue(s, "apilet_flowcontrol_auto_seats"); seats < 1 {
		t.Errorf("%v seats", seats)
	}
	if page := string(s.want(200, "GET", "/debug/api_priority_and_fairness/dump_seats", "").body); !strings.HasPrefix(page, "Seats,") {
		t.Errorf("the dump is %q", page)
	}
	all := string(s.want(200, "GET", "/metrics", "").body)
	for _, name := range []string{"seats", "goodput_seats", "in_use_seats", "efficiency", "headroom", "run_delay_seconds", "probes_total"} {
		if !strings.Contains(all, "\napilet_flowcontrol_auto_"+name+" ") {
			t.Errorf("no metric %s", name)
		}
	}
	given := newFlowControl(600, time.Minute, nothingStored)
	if code := flowCall(http.HandlerFunc(given.serveDump), "GET", "/debug/api_priority_and_fairness/dump_seats").Code; code != 404 {
		t.Errorf("the dump of a given number of seats: %d", code)
	}
}

// validateSlowly has a webhook allow all ConfigMaps after a while.
func (s *testServer) validateSlowly(delay time.Duration) {
	s.t.Helper()
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		time.Sleep(delay)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":%q,"allowed":true}}`, gjson.GetBytes(body, "request.uid"))
	}))
	s.t.Cleanup(hook.Close)
	bundle, _ := json.Marshal(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw}))
	s.want(201, "POST", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", fmt.Sprintf(`{"metadata":{"name":"slow"},"webhooks":[{
		"name":"slow.example.com","admissionReviewVersions":["v1"],"sideEffects":"None","clientConfig":{"url":"%s/","caBundle":%s},
		"rules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["configmaps"]}]}]}`, hook.URL, bundle))
}

// Requests of a verb, a resource, a scope and a width are a class.
func TestWorkClasses(t *testing.T) {
	t.Parallel()
	seen := map[uint64]string{}
	for _, target := range []string{"GET /api/v1/pods", "GET /api/v1/namespaces/a/pods", "GET /api/v1/namespaces/a/pods/x", "GET /api/v1/namespaces/a/pods/x/status",
		"GET /apis/apps/v1/deployments", "POST /api/v1/namespaces/a/pods", "PUT /api/v1/namespaces/a/pods/x", "GET /livez"} {
		method, path, _ := strings.Cut(target, " ")
		info := request.Parse(httptest.NewRequest(method, path, nil))
		for _, seats := range []int{0, 1, 2, 8} {
			class := workClass(&request.Request{Info: info}, seats)
			if old, twice := seen[class]; twice {
				t.Errorf("%s with %d seats is as %s", target, seats, old)
			}
			seen[class] = target
		}
		other := request.Parse(httptest.NewRequest(method, strings.ReplaceAll(strings.ReplaceAll(path, "/a/", "/b/"), "/x", "/y"), nil))
		if workClass(&request.Request{Info: info}, 9) != workClass(&request.Request{Info: other}, 15) {
			t.Errorf("another object than that of %s is of another class", target)
		}
	}
}
