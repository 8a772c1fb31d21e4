package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// An evictionTest is a server with a PodDisruptionBudget that does not allow any disruption.
type evictionTest struct {
	*testServer
}

const (
	testPods   = "/api/v1/namespaces/default/pods"
	testBudget = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
	evicting   = `True EvictionByEvictionAPI Eviction API: evicting`
)

func startEvictions(t *testing.T) *evictionTest {
	s := &evictionTest{startTest(t)}
	s.want(201, "POST", testBudget, `{"metadata":{"name":"b"},"spec":{"minAvailable":1,"selector":{"matchLabels":{"a":"b"}}}}`)
	s.allow(0)
	return s
}

func (s *evictionTest) allow(n int) {
	s.t.Helper()
	s.want(200, "PATCH", testBudget+"/b/status", fmt.Sprintf(`{"status":{"disruptionsAllowed":%d,"observedGeneration":1,"desiredHealthy":3}}`, n), mergePatch)
}

// pod creates a pod with a finalizer, so that the test can read it after its eviction.
func (s *evictionTest) pod(name, status string) answer {
	s.t.Helper()
	s.want(201, "POST", testPods, `{"metadata":{"name":"`+name+`","labels":{"a":"b"},"finalizers":["example.com/x"]},"spec":{"nodeName":"n","containers":[{"name":"c","image":"i"}]}}`)
	return s.want(200, "PATCH", testPods+"/"+name+"/status", `{"status":`+status+`}`, mergePatch)
}

func (s *evictionTest) evict(name, options string) answer {
	s.t.Helper()
	return s.send("POST", testPods+"/"+name+"/eviction", `{"metadata":{"name":"`+name+`"},"deleteOptions":{`+options+`}}`)
}

// reason returns the pod's condition DisruptionTarget as a line.
func (s *evictionTest) reason(name string) string {
	s.t.Helper()
	c := s.want(200, "GET", testPods+"/"+name, "").get(`status.conditions.#(type="DisruptionTarget")`)
	return strings.TrimSpace(c.Get("status").String() + " " + c.Get("reason").String() + " " + c.Get("message").String())
}

// TestEvictionTellsWhyAPodGoes checks that the server sets a condition on a pod only if it is
// evicted. The condition must be set before the deletion and must not have a field manager.
func TestEvictionTellsWhyAPodGoes(t *testing.T) {
	t.Parallel()
	s := startEvictions(t)
	before := s.pod("p", `{"phase":"Pending"}`)
	for options, code := range map[string]int{`"dryRun":["All"]`: 201, `"preconditions":{"uid":"x"}`: 409, `"preconditions":{"resourceVersion":"1"}`: 409} {
		if a := s.evict("p", options); a.code != code || s.reason("p") != "" {
			t.Errorf("%s: %s, and the pod says %q", options, a.failure(), s.reason("p"))
		}
	}
	if a := s.evict("p", fmt.Sprintf(`"preconditions":{"resourceVersion":"%d"}`, before.rev())); a.code != 201 {
		t.Error(a.failure())
	}
	after := s.want(200, "GET", testPods+"/p", "")
	if s.reason("p") != evicting || !after.get("metadata.deletionTimestamp").Exists() || after.rev() != before.rev()+2 {
		t.Errorf("after an eviction: %s", after.body)
	}
	if owners := after.get("metadata.managedFields").Raw; strings.Contains(owners, "DisruptionTarget") {
		t.Errorf("the condition is owned: %s", owners)
	}
	s.pod("again", `{"phase":"Pending","conditions":[{"type":"DisruptionTarget","status":"True","reason":"Other","message":"m","lastTransitionTime":"2020-01-01T00:00:00Z"}]}`)
	s.evict("again", "")
	since := s.want(200, "GET", testPods+"/again", "").get(`status.conditions.#(type="DisruptionTarget").lastTransitionTime`).String()
	if s.reason("again") != evicting || since != "2020-01-01T00:00:00Z" {
		t.Errorf("%s since %s", s.reason("again"), since)
	}
}

// TestWhichPodsAskTheirBudget checks that the budget only applies to pods that are running or may
// be running.
func TestWhichPodsAskTheirBudget(t *testing.T) {
	t.Parallel()
	s := startEvictions(t)
	const ready = `"conditions":[{"type":"Ready","status":"True"}]`
	for phase, code := range map[string]int{"Pending": 201, "Succeeded": 201, "Failed": 201, "Running": 429, "Unknown": 429} {
		name := strings.ToLower(phase)
		s.pod(name, `{"phase":"`+phase+`",`+ready+`}`)
		if a := s.evict(name, ""); a.code != code || (s.reason(name) == evicting) != (code == 201) {
			t.Errorf("%s: %s, and the pod says %q", phase, a.failure(), s.reason(name))
		}
	}
	s.want(200, "DELETE", testPods+"/unknown", "")
	if a := s.evict("unknown", ""); a.code != 201 {
		t.Errorf("a pod that is being deleted: %s", a.failure())
	}
	s.allow(1)
	if a := s.evict("running", ""); a.code != 201 || s.want(200, "GET", testBudget+"/b", "").get("status.disruptionsAllowed").Int() != 0 {
		t.Errorf("with a disruption allowed: %s", a.failure())
	}
	s.pod("sick", `{"phase":"Running"}`)
	if a := s.evict("sick", ""); a.code != 429 {
		t.Errorf("a pod that is not ready, of a budget that is not met: %s", a.failure())
	}
	s.want(200, "PATCH", testBudget+"/b", `{"spec":{"unhealthyPodEvictionPolicy":"AlwaysAllow"}}`, mergePatch)
	if a := s.evict("sick", ""); a.code != 201 || s.reason("sick") != evicting {
		t.Errorf("with AlwaysAllow: %s", a.failure())
	}
}

// TestBudgetWithTooManyUnconfirmedEvictions tests an eviction if the disruption controller is too
// slow. The response must match kube-apiserver.
func TestBudgetWithTooManyUnconfirmedEvictions(t *testing.T) {
	t.Parallel()
	s := startEvictions(t)
	s.pod("p", `{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}`)
	unconfirmed := map[string]any{}
	for i := range 2001 {
		unconfirmed[fmt.Sprint("gone-", i)] = "2026-01-01T00:00:00Z"
	}
	status := func() {
		body, _ := json.Marshal(map[string]any{"status": map[string]any{"disruptionsAllowed": 1, "disruptedPods": unconfirmed}})
		s.want(200, "PATCH", testBudget+"/b/status", string(body), mergePatch)
	}
	status()
	const want = `poddisruptionbudget.policy "b" is forbidden: DisruptedPods map too big - too many evictions not confirmed by PDB controller`
	if a := s.evict("p", ""); a.code != 403 || a.get("message").String() != want {
		t.Errorf("with 2,001 unconfirmed evictions: %s", a.failure())
	}
	unconfirmed["gone-0"] = nil
	status()
	if a := s.evict("p", ""); a.code != 201 {
		t.Errorf("with 2,000 unconfirmed evictions: %s", a.failure())
	}
}
