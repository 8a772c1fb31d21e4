package e2e

// These tests change the objects of flow control while a server runs, like an operator.

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
)

const flowAPI = "/apis/flowcontrol.apiserver.k8s.io/v1/"

func TestDeletedDefaultsComeBack(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	for _, path := range []string{"flowschemas/probes", "flowschemas/exempt", "flowschemas/catch-all", "prioritylevelconfigurations/workload-low",
		"prioritylevelconfigurations/exempt", "prioritylevelconfigurations/catch-all"} {
		before := s.want(200, "GET", flowAPI+path, "")
		s.want(200, "DELETE", flowAPI+path, "")
		apitest.WaitFor(t, path+" to come back", func() bool {
			a := s.send("GET", flowAPI+path, "")
			return a.code == 200 && a.get("metadata.uid").String() != before.get("metadata.uid").String() &&
				a.get("spec").String() == before.get("spec").String()
		})
	}
	uid := s.want(200, "GET", flowAPI+"flowschemas/probes", "").get("metadata.uid").String()
	apitest.WaitFor(t, "the probes to be told their schema's new UID", func() bool {
		return s.want(200, "GET", "/healthz", "", "Impersonate-User: alice").header.Get("X-Kubernetes-Pf-Flowschema-Uid") == uid
	})
}

func TestChangedLevelTakesEffect(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	const series = `apiserver_flowcontrol_nominal_limit_seats{priority_level="narrow"}`
	s.want(201, "POST", flowAPI+"prioritylevelconfigurations", narrowLevel("narrow"))
	apitest.WaitFor(t, "the level", func() bool { return metricValue(s, series) == 3 }) // 600 seats · 1 of 246 shares
	s.want(200, "PATCH", flowAPI+"prioritylevelconfigurations/narrow", `{"spec":{"limited":{"nominalConcurrencyShares":245}}}`,
		"Content-Type: application/merge-patch+json")
	apitest.WaitFor(t, "its greater part", func() bool { return metricValue(s, series) == 300 })
	s.want(200, "DELETE", flowAPI+"prioritylevelconfigurations/narrow", "")
	apitest.WaitFor(t, "its end", func() bool { return metricValue(s, series) == -1 })
}

func TestSchemaTellsThatItsLevelIsMissing(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	condition := func() gjson.Result {
		return s.want(200, "GET", flowAPI+"flowschemas/lost", "").get(`status.conditions.#(type=="Dangling")`)
	}
	becomes := func(status, reason string) {
		t.Helper()
		apitest.WaitFor(t, "Dangling to be "+status, func() bool { return condition().Get("status").String() == status })
		if got := condition().Get("reason").String(); got != reason {
			t.Errorf("the condition Dangling is %s: got reason %q, want %q", status, got, reason)
		}
		a := s.want(200, "GET", flowAPI+"flowschemas/lost", "", "Accept: application/json;as=Table;v=v1;g=meta.k8s.io")
		if cells := a.get("rows.0.cells").Array(); len(cells) == 0 || cells[len(cells)-1].String() != status {
			t.Errorf("kubectl get shows %v, want %s last", cells, status)
		}
	}
	s.want(201, "POST", flowAPI+"flowschemas", `{"metadata":{"name":"lost"},"spec":{"matchingPrecedence":1000,
		"priorityLevelConfiguration":{"name":"narrow"},"rules":[{"subjects":[{"kind":"User","user":{"name":"eve"}}],
		"nonResourceRules":[{"verbs":["get"],"nonResourceURLs":["/version"]}]}]}}`)
	becomes("True", "NotFound")
	s.want(201, "POST", flowAPI+"prioritylevelconfigurations", narrowLevel("narrow"))
	becomes("False", "Found")
	s.want(200, "DELETE", flowAPI+"prioritylevelconfigurations/narrow", "")
	becomes("True", "NotFound")
	if message := condition().Get("message").String(); !strings.Contains(message, `"narrow" but there is no such object`) {
		t.Errorf("the condition does not name the level: %s", message)
	}
}

// Missing fields of levels and schemas get defaults. If the number of shares is explicitly 0, it is
// not changed.
func TestFlowObjectsAreDefaulted(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	level := func(name, limited string) string {
		return `{"metadata":{"name":"` + name + `"},"spec":{"type":"Limited","limited":{` + limited + `}}}`
	}
	schema := s.want(201, "POST", flowAPI+"flowschemas", `{"metadata":{"name":"plain"},"spec":{"priorityLevelConfiguration":{"name":"catch-all"}}}`)
	if got := schema.get("spec.matchingPrecedence").Int(); got != 1000 {
		t.Errorf("matchingPrecedence %d, want 1000", got)
	}
	s.want(201, "POST", flowAPI+"prioritylevelconfigurations", level("queues", `"limitResponse":{"type":"Queue","queuing":{}}`))
	s.want(201, "POST", flowAPI+"prioritylevelconfigurations", level("jail", `"nominalConcurrencyShares":0,"limitResponse":{"type":"Reject"}`))
	for name, want := range map[string]string{
		"queues": `{"lendablePercent":0,"limitResponse":{"queuing":{"handSize":8,"queueLengthLimit":50,"queues":64},"type":"Queue"},"nominalConcurrencyShares":30}`,
		"jail":   `{"lendablePercent":0,"limitResponse":{"type":"Reject"},"nominalConcurrencyShares":0}`,
	} {
		kubetest.SameJSON(t, s.want(200, "GET", flowAPI+"prioritylevelconfigurations/"+name, "").get("spec.limited").Raw, want)
	}
}

// narrowLevel returns the JSON of a priority level with one share.
func narrowLevel(name string) string {
	return `{"metadata":{"name":"` + name + `"},"spec":{"type":"Limited","limited":{"nominalConcurrencyShares":1,"limitResponse":{"type":"Reject"}}}}`
}

// When the server responds to a change of a user's roles, the change must already be in effect.
func TestRolesHoldFromTheAnswerOfTheirWrite(t *testing.T) {
	t.Parallel()
	s, _ := startTLS(t)
	root, bob := "Authorization: Bearer root-token", "Authorization: Bearer bob-token"
	const roles, bindings = "/apis/rbac.authorization.k8s.io/v1/clusterroles", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
	for i := range 200 {
		name := fmt.Sprintf("r%d", i)
		s.want(201, "POST", roles, `{"metadata":{"name":"`+name+`"},"rules":[{"apiGroups":[""],"resources":["secrets"],"verbs":["list"]}]}`, root)
		s.want(201, "POST", bindings, `{"metadata":{"name":"`+name+`"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"`+name+`"},
			"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"bob"}]}`, root)
		s.want(200, "GET", "/api/v1/secrets", "", bob)
		s.want(200, "PATCH", roles+"/"+name, `{"rules":[]}`, root, "Content-Type: application/merge-patch+json")
		s.want(403, "GET", "/api/v1/secrets", "", bob)
		s.want(200, "PATCH", roles+"/"+name, `{"rules":[{"apiGroups":[""],"resources":["secrets"],"verbs":["list"]}]}`, root, "Content-Type: application/merge-patch+json")
		s.want(200, "GET", "/api/v1/secrets", "", bob)
		s.want(200, "DELETE", bindings+"/"+name, "", root)
		s.want(403, "GET", "/api/v1/secrets", "", bob)
	}
}
