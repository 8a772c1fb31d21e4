package registry

import (
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/auth"
	"apilet/internal/auth/serviceaccount"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// openWriter returns a Writer of a store with the namespaces.
func openWriter(t *testing.T, namespaces ...*corev1.Namespace) *Writer {
	t.Helper()
	st, err := store.Open(filepath.Join(t.TempDir(), "a.db"), store.Options{Ephemeral: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	wr := &Writer{Store: st, Types: scheme.NewRegistry(), Validating: true, Auth: &auth.Authenticator{Accounts: &serviceaccount.Tokens{}}}
	for _, namespace := range namespaces {
		if _, err := wr.Insert(t.Context(), wr.Types.Lookup("", "v1", "namespaces"), namespace, Options{}); err != nil {
			t.Fatal(err)
		}
	}
	return wr
}

// Claims may ask for admin access to devices only in namespaces with a label.
func TestAdminAccessNeedsALabel(t *testing.T) {
	t.Parallel()
	named := func(name, label string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{resourcev1.DRAAdminNamespaceLabelKey: label}}}
	}
	wr, yes := openWriter(t, named("plain", "false"), named("admin", "true")), true
	spec := resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
		{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "c", AllocationMode: resourcev1.DeviceAllocationModeAll, AdminAccess: &yes}}}}}
	for namespace, want := range map[string]string{"plain": "spec.devices.requests[0].adminAccess: Forbidden", "admin": ""} {
		meta := metav1.ObjectMeta{Name: "x", Namespace: namespace}
		for plural, obj := range map[string]scheme.Object{
			"resourceclaims":         &resourcev1.ResourceClaim{ObjectMeta: meta, Spec: spec},
			"resourceclaimtemplates": &resourcev1.ResourceClaimTemplate{ObjectMeta: meta, Spec: resourcev1.ResourceClaimTemplateSpec{Spec: spec}},
		} {
			_, err := wr.Insert(t.Context(), wr.Types.Lookup("resource.k8s.io", "v1", plural), obj, Options{})
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s in %s: got %v, want %q", plural, namespace, err, want)
			}
		}
		granted := &resourcev1.ResourceClaim{ObjectMeta: meta}
		granted.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{{AdminAccess: &yes}}}}
		if errs := wr.adminAccessErrors(t.Context(), granted, &resourcev1.ResourceClaim{}, "status"); (len(errs) == 0) != (want == "") {
			t.Errorf("a status in %s: got %v", namespace, errs)
		}
		if errs := wr.adminAccessErrors(t.Context(), granted, granted, "status"); len(errs) > 0 {
			t.Errorf("an unchanged status in %s: got %v", namespace, errs)
		}
	}
}
