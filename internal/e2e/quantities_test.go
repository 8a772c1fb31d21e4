package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// TestHostileQuantitiesAreRefused sends quantities that would use a CPU for hours beyond every
// deadline, by each kind of write. The status codes must match kube-apiserver for an invalid
// quantity. This includes the 500 of an apply.
func TestHostileQuantitiesAreRefused(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	pods := s.namespace("q")[:len("/api/v1/namespaces/q/")] + "pods"
	pod := func(name, cpu string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q},"spec":{"containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":%q}}}]}}`, name, cpu)
	}
	s.want(201, "POST", pods, pod("fair", "1"))
	said := "exponent of at most two digits"
	for _, amount := range []string{"1e-2147483648", "0e-2147483648", "-1e-2147483648", "1e-16000000", "1e2147483647", strings.Repeat("9", 1<<20)} {
		bad := `{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"` + amount + `"}}}]}}`
		for _, c := range []struct {
			code                         int
			method, path, body, encoding string
		}{
			{400, "POST", pods, pod("bad", amount), "application/json"},
			{400, "POST", pods + "?dryRun=All", pod("bad", amount), "application/json"},
			{400, "POST", pods, strings.ReplaceAll(pod("bad", amount), `"`+amount+`"`, "'"+amount+"'"), "application/yaml"},
			{400, "PUT", pods + "/fair", pod("fair", amount), "application/json"},
			{0, "PATCH", pods + "/fair", bad, "application/merge-patch+json"},
			{0, "PATCH", pods + "/fair", bad, "application/strategic-merge-patch+json"},
			{0, "PATCH", pods + "/fair", `[{"op":"replace","path":"/spec/containers/0/resources/requests/cpu","value":"` + amount + `"}]`, "application/json-patch+json"},
			{500, "PATCH", pods + "/fair?fieldManager=m&force=true", pod("fair", amount), "application/apply-patch+yaml"},
			{500, "PATCH", pods + "/new?fieldManager=m", pod("new", amount), "application/apply-patch+yaml"},
			{400, "POST", "/api/v1/namespaces/q/resourcequotas", `{"metadata":{"name":"q"},"spec":{"hard":{"cpu":"` + amount + `"}}}`, "application/json"},
			{400, "POST", "/api/v1/namespaces/q/limitranges", `{"metadata":{"name":"q"},"spec":{"limits":[{"type":"Container","max":{"cpu":"` + amount + `"}}]}}`, "application/json"},
		} {
			a := s.send(c.method, c.path, c.body, "Content-Type: "+c.encoding)
			if c.code != 0 && a.code != c.code || c.code == 0 && a.code/100 != 4 || !strings.Contains(string(a.body), said) {
				t.Errorf("%.20s: %s %s %s: %d %.300s", amount, c.method, c.path, c.encoding, a.code, a.body)
			}
		}
	}
	// Text in other places is not parsed as a quantity.
	s.want(201, "POST", "/api/v1/namespaces/q/configmaps", configMap("m", "k", "1e-2147483648"))
	huge := strings.Replace(pod("huge", "1"), `"cpu":"1"`, `"cpu":"1","hugepages-1e-2147483648":"1"`, 1)
	if a := s.send("POST", pods, huge); a.code != 422 {
		t.Errorf("a page size: %d %.300s", a.code, a.body)
	}
	v1 := `{"apiVersion":"autoscaling/v1","kind":"HorizontalPodAutoscaler","metadata":{"name":"h","annotations":{"autoscaling.alpha.kubernetes.io/metrics":
		"[{\"type\":\"Resource\",\"resource\":{\"name\":\"cpu\",\"targetAverageValue\":\"1e-2147483648\"}}]"}},"spec":{"maxReplicas":1,"scaleTargetRef":{"kind":"Deployment","name":"d"}}}`
	if a := s.send("POST", "/apis/autoscaling/v1/namespaces/q/horizontalpodautoscalers", v1); a.code >= 500 {
		t.Errorf("an annotation with metrics: %d %.300s", a.code, a.body)
	}
	s.want(201, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"metadata":{"name":"jugs.example.org"},"spec":{"group":"example.org","scope":"Namespaced","names":{"plural":"jugs","kind":"Jug"},
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"size":{"type":"string","maxLength":100,
		"x-kubernetes-validations":[{"rule":"quantity(self).isGreaterThan(quantity('0'))"}]}}}}}]}}`)
	jug := func(size string) string {
		return fmt.Sprintf(`{"apiVersion":"example.org/v1","kind":"Jug","metadata":{"generateName":"j-"},"size":%q}`, size)
	}
	s.want(201, "POST", "/apis/example.org/v1/namespaces/q/jugs", jug("1e-9"))
	if a := s.want(422, "POST", "/apis/example.org/v1/namespaces/q/jugs", jug("1e-2147483648")); !strings.Contains(a.failure(), said) {
		t.Error(a.failure())
	}
}
