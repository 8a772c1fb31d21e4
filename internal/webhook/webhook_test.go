package webhook

import (
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
)

func TestServiceURLHasTheCleanPath(t *testing.T) {
	for given, want := range map[string]string{"": "/", "/": "/", "/a": "/a", "a": "/a", "/a/b/": "/a/b", "//a": "/a"} {
		got := serviceURL(&admissionv1.ServiceReference{Namespace: "system", Name: "hook", Path: &given})
		if want := "https://hook.system.svc:443" + want; got != want {
			t.Errorf("service path %q: got %s, want %s", given, got, want)
		}
	}
}
