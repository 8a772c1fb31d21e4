package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// TestProxyPathsNameAnObject tests names of the form SCHEME:NAME:PORT, from which kube-apiserver
// uses the object NAME. There are no connections, because the objects have no addresses.
func TestProxyPathsNameAnObject(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.want(201, "POST", "/api/v1/namespaces/default/services", `{"metadata":{"name":"s"},"spec":{"ports":[{"name":"web","port":80}]}}`)
	s.want(201, "POST", testPods, `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`)
	s.want(201, "POST", "/api/v1/nodes", `{"metadata":{"name":"n"}}`)
	for _, of := range [][4]string{{"/api/v1/namespaces/default/services/", "service", "s", `503 no endpoints available for service "s"`},
		{testPods + "/", "pod", "p", "400 address not allowed"}, {"/api/v1/nodes/", "node", "n", "500 no preferred addresses found; known addresses: []"}} {
		path, kind, name, refused := of[0], of[1], of[2], of[3]
		missing := fmt.Sprintf("404 %ss %q not found", kind, "x")
		want := map[string]string{
			name: refused, name + ":": refused, name + ":80": refused, name + ":web": refused, "http:" + name + ":": refused, "https:" + name + ":web": refused,
			":" + name + ":80": refused, "https%3A" + name + "%3Aweb": refused,
			"x": missing, "x:80": missing, "https:x:80": missing, "https:": fmt.Sprintf("404 %ss %q not found", kind, "https"),
		}
		if kind == "service" { // a port number requires the Service, and other ports only its EndpointSlices
			for _, segment := range []string{"x", "https:"} {
				want[segment] = fmt.Sprintf("503 no endpoints available for service %q", strings.TrimSuffix(segment, ":"))
			}
		}
		for _, bad := range []string{"ftp:" + name + ":80", "https:" + name + ":80:1", ":80", "https::80", "::"} {
			want[bad] = fmt.Sprintf("400 invalid %s request %q", kind, bad)
		}
		for segment, want := range want {
			for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE"} {
				for _, rest := range []string{"/proxy", "/proxy/", "/proxy/a/b:c"} {
					a := s.send(method, path+segment+rest, "")
					if got := fmt.Sprint(a.code, " ", a.get("message").String()); got != want {
						t.Errorf("%s %s%s: got %s, want %s", method, path+segment, rest, got, want)
					}
				}
			}
		}
	}
	// Only proxy requests can have such names.
	for _, path := range []string{testPods + "/p:80", testPods + "/p:80/log", testPods + "/p:80/exec?command=a", "/api/v1/namespaces/default/services/s:web/status"} {
		if a := s.send("GET", path, ""); a.code != 404 || !strings.Contains(a.get("message").String(), ":") {
			t.Errorf("%s: %s", path, a.failure())
		}
	}
}

// TestProxyRightsAreForTheWholeSegment checks that a role for the name s does not apply to
// https:s:web.
func TestProxyRightsAreForTheWholeSegment(t *testing.T) {
	t.Parallel()
	s, _ := startTLS(t)
	s.headers = []string{"Authorization: Bearer root-token"}
	s.want(201, "POST", "/api/v1/namespaces/default/services", `{"metadata":{"name":"s"},"spec":{"ports":[{"name":"web","port":80}]}}`)
	s.grant("bob", "default", `{apiGroups: [""], resources: [services/proxy], resourceNames: [s, "http:s:"], verbs: [get]}`)
	s.headers = []string{"Authorization: Bearer bob-token"}
	for segment, code := range map[string]int{"s": 503, "http:s:": 503, "https:s:": 403, "s:web": 403, "https:s:web": 403, "x": 403, "ftp:s:": 403} {
		if a := s.send("GET", "/api/v1/namespaces/default/services/"+segment+"/proxy/", ""); a.code != code {
			t.Errorf("%s: got %s, want %d", segment, a.failure(), code)
		}
	}
}
