package e2e

import (
	"strings"
	"testing"
)

// TestClusterIsFounded checks that the default objects of a cluster are created, and that the
// server does not revert changes to them.
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

// TestClusterAddressIsTaken checks that the server starts if a user's Service has the first
// address. The Service keeps it.
func TestClusterAddressIsTaken(t *testing.T) {
	t.Parallel()
	s := startTest(t, onFile(t.TempDir()+"/apilet.db"))
	s.want(200, "DELETE", "/api/v1/namespaces/default/services/kubernetes", "")
	s.want(201, "POST", "/api/v1/namespaces/default/services", `{"metadata":{"name":"mine"},"spec":{"clusterIP":"10.96.0.1","ports":[{"port":1}]}}`)
	s.restart()
	s.want(200, "GET", "/api/v1/namespaces/default/services/mine", "")
	s.want(404, "GET", "/api/v1/namespaces/default/services/kubernetes", "")
}

// TestSecondFamilyComesAndGoes adds a second IP family, removes it, and starts the server with a
// range that the cluster does not have. The expected responses were observed on kube-apiserver 1.36
// after the same restarts. The server must not modify objects that were created by users.
func TestSecondFamilyComesAndGoes(t *testing.T) {
	t.Parallel()
	s := startTest(t, onFile(t.TempDir()+"/apilet.db"), "--service-cluster-ip-range=10.96.0.0/16")
	const services, merge = "/api/v1/namespaces/default/services", "Content-Type: application/merge-patch+json"
	with := func(ranges string) {
		s.flags[len(s.flags)-1] = "--service-cluster-ip-range=" + ranges
		s.restart()
	}
	has := func(path string, parts ...string) {
		t.Helper()
		got := string(s.want(200, "GET", path, "").body)
		for _, part := range parts {
			if !strings.Contains(got, part) {
				t.Errorf("no %s in %s", part, got)
			}
		}
	}
	refused := func(name, patch, why string) {
		t.Helper()
		if got := s.want(422, "PATCH", services+"/"+name, patch, merge); !strings.Contains(string(got.body), why) {
			t.Errorf("%s: got %s, want %s", patch, got.body, why)
		}
	}
	s.want(201, "POST", services, `{"metadata":{"name":"single"},"spec":{"clusterIP":"10.96.7.1","ports":[{"port":1}]}}`)
	s.want(201, "POST", services, `{"metadata":{"name":"prefers"},"spec":{"clusterIP":"10.96.7.2","ipFamilyPolicy":"PreferDualStack","ports":[{"port":1}]}}`)

	with("10.96.0.0/16,fd00:10::/108")
	has("/apis/networking.k8s.io/v1/servicecidrs/kubernetes", `"cidrs":["10.96.0.0/16","fd00:10::/108"]`, `"type":"Ready","status":"True"`)
	s.want(200, "PATCH", services+"/prefers", `{"spec":{"ports":[{"port":2}]}}`, merge)
	has(services+"/prefers", `"ipFamilies":["IPv4"]`, `"clusterIPs":["10.96.7.2"]`)
	s.want(200, "PATCH", services+"/single", `{"spec":{"ipFamilyPolicy":"RequireDualStack"}}`, merge)
	has(services+"/single", `"ipFamilies":["IPv4","IPv6"]`, `"clusterIPs":["10.96.7.1","fd00:10::`)
	s.want(201, "POST", services, `{"metadata":{"name":"both"},"spec":{"ipFamilyPolicy":"PreferDualStack","ipFamilies":["IPv6"],"clusterIP":"fd00:10::7","ports":[{"port":1}]}}`)

	with("10.96.0.0/16")
	const message = "The default ServiceCIDR [10.96.0.0/16 fd00:10::/108] does not match the controller flag configurations [10.96.0.0/16]"
	has("/api/v1/namespaces/default/events", message, `"reason":"KubernetesDefaultServiceCIDRInconsistent"`, `"source":{"component":"kubernetes-service-cidr-controller"}`)
	has("/apis/networking.k8s.io/v1/servicecidrs/kubernetes", `"cidrs":["10.96.0.0/16","fd00:10::/108"]`, `"type":"Ready","status":"True"`)
	refused("single", `{"spec":{"ports":[{"port":2}]}}`, "[spec.ipFamilyPolicy: Invalid value: \\\"RequireDualStack\\\": this cluster is not configured for dual-stack services, "+
		"spec.ipFamilies[1]: Invalid value: \\\"IPv6\\\": not configured on this cluster]")
	s.want(200, "PATCH", services+"/both", `{"spec":{"ports":[{"port":2}]}}`, merge)
	refused("both", `{"spec":{"type":"NodePort"}}`, "spec.ipFamilies[0]: Invalid value: \\\"IPv6\\\": not configured on this cluster")
	s.want(200, "PATCH", services+"/single", `{"spec":{"ipFamilyPolicy":"SingleStack"}}`, merge)
	has(services+"/single", `"ipFamilies":["IPv4"]`, `"clusterIPs":["10.96.7.1"]`)
	s.want(200, "DELETE", services+"/both", "")
	s.want(404, "GET", "/apis/networking.k8s.io/v1/ipaddresses/fd00:10::7", "")

	with("10.97.0.0/16") // the stored range has precedence
	s.want(201, "POST", services, `{"metadata":{"name":"new"},"spec":{"ports":[{"port":1}]}}`)
	has(services+"/new", `"clusterIP":"10.96.`)
}
