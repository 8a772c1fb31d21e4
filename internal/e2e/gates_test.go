package e2e

import (
	"strings"
	"testing"

	"apilet/internal/apitest"
)

// TestFeatureGates turns a gate on and off between restarts. While it is disabled, existing objects
// keep the field, but it cannot be set in other objects.
func TestFeatureGates(t *testing.T) {
	t.Parallel()
	const drivers = "/apis/storage.k8s.io/v1/csidrivers"
	const field = "spec.preventPodSchedulingIfMissing"
	file := onSomeFile(t)
	s := startTest(t, file, "--feature-gates=VolumeLimitScaling=true")
	body := func(name string) string {
		return `{"metadata":{"name":"` + name + `"},"spec":{"preventPodSchedulingIfMissing":true}}`
	}
	patch := func(name, body string) answer {
		return s.want(200, "PATCH", drivers+"/"+name, body, "Content-Type: application/merge-patch+json")
	}
	apitest.Expect(t, s.want(201, "POST", drivers, body("on")).get(field), true)
	metric := func(value string) {
		t.Helper()
		if text := string(s.want(200, "GET", "/metrics", "").body); !strings.Contains(text, `kubernetes_feature_enabled{name="VolumeLimitScaling",stage="BETA"} `+value) {
			t.Errorf("the gate has not the value %s in the metrics", value)
		}
	}
	metric("1")

	s.halt()
	s.flags = serverFlags([]string{file, "--feature-gates=WatchList=false,VolumeLimitScaling=false"})
	s.start()
	metric("0")
	s.want(422, "GET", drivers+"?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", "")
	apitest.Expect(t, s.want(201, "POST", drivers, body("off")).get(field), "")
	apitest.Expect(t, s.want(200, "GET", drivers+"/on", "").get(field), true)
	apitest.Expect(t, patch("on", `{"metadata":{"labels":{"a":"b"}}}`).get(field), true)
	apitest.Expect(t, patch("on", `{"spec":{"preventPodSchedulingIfMissing":false}}`).get(field), false)
	apitest.Expect(t, patch("off", `{"spec":{"preventPodSchedulingIfMissing":true}}`).get(field), "")

	s.halt()
	s.flags = append(s.flags, "--feature-gates=Unknown=true")
	if why, ok := s.tryStart(); ok || !strings.Contains(why, "--feature-gates: unrecognized feature gate: Unknown") {
		t.Errorf("a server with an unknown gate: started %v, %s", ok, why)
	}
}
