package e2e

import (
	"strings"
	"testing"
)

// TestClusterIsFounded: a new server has what readers of a cluster look for, and what they change stays.
func TestClusterIsFounded(t *testing.T) {
	t.Parallel()
	s := startTest(t, onFile(t.TempDir()+"/apilet.db"))
	const service = "/api/v1/namespaces/default/services/kubernetes"
	got := string(s.want(200, "GET", service, "").body)
	for _, part := range []string{`"clusterIP":"10.96.0.1"`, `"provider":"kubernetes"`, `"name":"https","protocol":"TCP","port":443,"targetPort":` + s.url[strings.LastIndex(s.url, ":")+1:]} {
		if !strings.Contains(got, part) {
			t.Errorf("no %s in %s", part, got)
		}
	}
	got = string(s.want(200, "GET", "/apis/networking.k8s.io/v1/servicecidrs/kubernetes", "").body)
	if !strings.Contains(got, `"cidrs":["10.96.0.0/16"]`) || !strings.Contains(got, `"type":"Ready","status":"True"`) {
		t.Error(got)
	}
	s.want(200, "DELETE", service, "")
	s.want(200, "PATCH", "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical", `{"description":"mine"}`,
		"Content-Type: application/merge-patch+json")

	s.restart()
	s.want(200, "GET", service, "")
	if got := string(s.want(200, "GET", "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical", "").body); !strings.Contains(got, `"description":"mine"`) {
		t.Error(got)
	}
}

// TestClusterAddressIsTaken: a Service of the user's that has the first address keeps it, and the server starts.
func TestClusterAddressIsTaken(t *testing.T) {
	t.Parallel()
	s := startTest(t, onFile(t.TempDir()+"/apilet.db"))
	s.want(200, "DELETE", "/api/v1/namespaces/default/services/kubernetes", "")
	s.want(201, "POST", "/api/v1/namespaces/default/services", `{"metadata":{"name":"mine"},"spec":{"clusterIP":"10.96.0.1","ports":[{"port":1}]}}`)
	s.restart()
	s.want(200, "GET", "/api/v1/namespaces/default/services/mine", "")
	s.want(404, "GET", "/api/v1/namespaces/default/services/kubernetes", "")
}
