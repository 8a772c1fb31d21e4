package e2e

import (
	"strings"
	"testing"
)

// TestRuntimeConfig checks that a version that is enabled by a flag serves the same objects as the
// stable version. The requests and responses were recorded from kube-apiserver.
func TestRuntimeConfig(t *testing.T) {
	t.Parallel()
	s := startTest(t, "--runtime-config", "api/all=true", "--controllers=false")
	for _, c := range []struct{ group, version, at, name, body, spec, warning string }{
		{"storagemigration.k8s.io", "v1beta1", "storageversionmigrations", "m", `{"metadata":{"name":"m"},"spec":{"resource":{"group":"apps","resource":"deployments"}}}`,
			`{"resource":{"group":"apps","resource":"deployments"}}`, "StorageVersionMigration is deprecated in v1.37+, unavailable in v1.40+"},
		{"resource.k8s.io", "v1beta2", "devicetaintrules", "t", `{"metadata":{"name":"t"},"spec":{"taint":{"key":"a.b/c","effect":"NoSchedule","timeAdded":"2026-01-01T00:00:00Z"}}}`,
			`{"taint":{"key":"a.b/c","effect":"NoSchedule","timeAdded":"2026-01-01T00:00:00Z"}}`, ""},
		{"admissionregistration.k8s.io", "v1alpha1", "mutatingadmissionpolicybindings", "b", `{"metadata":{"name":"b"},"spec":{"policyName":"p"}}`, `{"policyName":"p"}`,
			"MutatingAdmissionPolicyBinding is deprecated in v1.35+, unavailable in v1.38+"},
		{"admissionregistration.k8s.io", "v1beta1", "mutatingadmissionpolicybindings", "b2", `{"metadata":{"name":"b2"},"spec":{"policyName":"p"}}`, `{"policyName":"p"}`,
			"MutatingAdmissionPolicyBinding is deprecated in v1.37+, unavailable in v1.40+"},
		{"resource.k8s.io", "v1beta2", "namespaces/default/resourceclaims", "c", `{"metadata":{"name":"c"},"spec":{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"gpu"}}]}}}`,
			`{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"gpu","allocationMode":"ExactCount","count":1}}]}}`, "ResourceClaim is deprecated in v1.36+"},
	} {
		path := "/apis/" + c.group + "/" + c.version + "/" + c.at
		made := s.want(201, "POST", path, c.body)
		if got := made.get("apiVersion").String() + made.get("spec").Raw; got != c.group+"/"+c.version+c.spec {
			t.Errorf("%s\n got %s\nwant %s", path, got, c.spec)
		}
		if got := strings.Join(made.header["Warning"], " "); !strings.Contains(got, c.warning) || c.warning == "" && got != "" {
			t.Errorf("%s warns %q", path, got)
		}
		if got := s.want(200, "GET", strings.Replace(path, c.version, "v1", 1)+"/"+c.name, "").get("spec").Raw; got != c.spec {
			t.Errorf("%s as v1\n got %s\nwant %s", path, got, c.spec)
		}
		if got := s.want(200, "GET", path, "").get("items").Array(); len(got) == 0 || !strings.HasSuffix(got[len(got)-1].Get("spec").Raw, c.spec) {
			t.Errorf("%s lists %v", path, got)
		}
	}
	if got := s.want(200, "GET", "/apis/resource.k8s.io", "").get("versions.#.version").Raw; got != `["v1","v1beta2","v1alpha3"]` {
		t.Errorf("served are %s", got)
	}
	claims := s.want(200, "GET", "/openapi/v3/apis/resource.k8s.io/v1beta2", "").get(`components.schemas.io\.k8s\.api\.resource\.v1beta2\.ResourceClaim`)
	if got := claims.Get("x-kubernetes-group-version-kind").Raw + claims.Get("properties.spec.allOf.0.$ref").Raw; got !=
		`[{"group":"resource.k8s.io","version":"v1beta2","kind":"ResourceClaim"}]"#/components/schemas/io.k8s.api.resource.v1beta2.ResourceClaimSpec"` {
		t.Errorf("OpenAPI has %s", got)
	}
	s.want(200, "GET", "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.storagemigration.k8s.io", "")
}

func TestRuntimeConfigOff(t *testing.T) {
	t.Parallel()
	s := startTest(t, "--runtime-config", "batch/v1beta1=false,storagemigration.k8s.io/v1beta1")
	s.want(404, "GET", "/apis/batch/v1beta1/cronjobs", "")
	s.want(404, "GET", "/apis/certificates.k8s.io/v1beta1/clustertrustbundles", "")
	s.want(200, "GET", "/apis/storagemigration.k8s.io/v1beta1/storageversionmigrations", "")
}
