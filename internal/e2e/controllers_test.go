package e2e

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"apilet/internal/apitest"
)

// controllersWork creates work for the controllers that apilet replaces. The returned function
// lists the completed tasks.
func controllersWork(s *testServer) func() string {
	s.namespace("left")
	s.want(201, "POST", "/api/v1/namespaces/left/configmaps", `{"metadata":{"name":"orphan","ownerReferences":[
		{"apiVersion":"v1","kind":"ConfigMap","name":"nobody","uid":"11111111-1111-1111-1111-111111111111"}]}}`)
	s.want(201, "POST", "/api/v1/namespaces/left/serviceaccounts", `{"metadata":{"name":"robot"}}`)
	s.want(201, "POST", "/api/v1/namespaces/left/secrets",
		`{"metadata":{"name":"token","annotations":{"kubernetes.io/service-account.name":"robot"}},"type":"kubernetes.io/service-account-token"}`)
	s.namespace("going")
	s.want(200, "DELETE", "/api/v1/namespaces/going", "")
	s.want(201, "POST", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", `{"metadata":{"name":"p"},"spec":{
		"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"resources":["pods"],"operations":["CREATE"]}]},
		"validations":[{"expression":"object.spec.nope == 1"}]}}`)
	return func() string {
		var done []string
		note := func(what string, is bool) {
			if is {
				done = append(done, what)
			}
		}
		note("collected", s.send("GET", "/api/v1/namespaces/left/configmaps/orphan", "").code == 404)
		note("emptied", s.send("GET", "/api/v1/namespaces/going", "").code == 404)
		note("account", s.send("GET", "/api/v1/namespaces/left/serviceaccounts/default", "").code == 200)
		note("token", s.want(200, "GET", "/api/v1/namespaces/left/secrets/token", "").get("data.token").Exists())
		note("types", s.want(200, "GET", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/p", "").get("status.typeChecking").Exists())
		return strings.Join(done, " ")
	}
}

// With --controllers=false apilet omits the work of kube-controller-manager, but still performs
// that of kube-apiserver.
func TestControllersAreLeftToOthers(t *testing.T) {
	t.Parallel()
	const all = "collected emptied account token types"
	own := startTest(t)
	done := controllersWork(own)
	apitest.WaitFor(t, all, func() bool { return done() == all })

	s := startTest(t, "--controllers=false")
	done = controllersWork(s)
	s.want(201, "POST", "/api/v1/namespaces/left/resourcequotas", `{"metadata":{"name":"q"},"spec":{"hard":{"configmaps":"2"}}}`)
	s.want(201, "POST", "/api/v1/namespaces/left/configmaps", configMap("second"))
	s.want(403, "POST", "/api/v1/namespaces/left/configmaps", configMap("third"))
	s.waitForUsed("/api/v1/namespaces/left/resourcequotas/q", corev1.ResourceList{"configmaps": resource.MustParse("2")})
	if got := done(); got != "" {
		t.Errorf("done by apilet: %s", got)
	}
	claim := s.want(201, "POST", "/api/v1/namespaces/left/persistentvolumeclaims",
		`{"metadata":{"name":"c"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`)
	if got := claim.get("metadata.finalizers.0").String(); got != "kubernetes.io/pvc-protection" {
		t.Errorf("a claim's finalizer is %q", got)
	}
	for _, path := range []string{"/api/v1/namespaces/default/services/kubernetes", "/api/v1/namespaces/default/endpoints/kubernetes",
		"/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical", "/apis/apiregistration.k8s.io/v1/apiservices/v1.apps"} {
		s.want(200, "GET", path, "")
	}
}
