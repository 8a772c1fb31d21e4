package scheme

import (
	"encoding/json"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"

	"apilet/internal/apitest/kubetest"
)

// TestDevices: an object with all that it can have is whole in the other version, and comes back.
func TestDevices(t *testing.T) {
	for _, res := range ofDevices() {
		if res.Conversion.in == nil {
			continue
		}
		stored := kubetest.Filled(res.Conversion.stored)
		switch o := stored.(type) { // a request has one of exactly and firstAvailable
		case *resourcev1.ResourceClaim:
			either(&o.Spec.Devices)
		case *resourcev1.ResourceClaimTemplate:
			either(&o.Spec.Spec.Devices)
		}
		served := res.Conversion.Out(stored)
		back, err := json.Marshal(res.Conversion.in(served))
		if want, _ := json.Marshal(stored); err != nil || string(back) != string(want) {
			t.Errorf("%s: %v\n got %s\nwant %s", res.Kind, err, back, want)
		}
		if there, _ := json.Marshal(served); strings.Contains(string(there), `"exactly"`) || len(there) < len(back)/2 {
			t.Errorf("%s is served as %s", res.Kind, there)
		}
	}
}

func either(claim *resourcev1.DeviceClaim) {
	exactly, first := claim.Requests[0], claim.Requests[0]
	exactly.FirstAvailable, first.Exactly = nil, nil
	claim.Requests = []resourcev1.DeviceRequest{exactly, first}
}

func TestDevicesOfV1beta1(t *testing.T) {
	claim := &resourcev1beta1.ResourceClaim{Spec: resourcev1beta1.ResourceClaimSpec{Devices: resourcev1beta1.DeviceClaim{Requests: []resourcev1beta1.DeviceRequest{
		{Name: "a", DeviceClassName: "gpu", Count: 2}, {Name: "b", FirstAvailable: []resourcev1beta1.DeviceSubRequest{{Name: "c", DeviceClassName: "gpu"}}}, {Name: "empty"}}}}}
	rows := ofDevices()
	got, _ := json.Marshal(rows[1].Conversion.in(claim).(*resourcev1.ResourceClaim).Spec.Devices.Requests)
	if want := `[{"name":"a","exactly":{"deviceClassName":"gpu","count":2}},{"name":"b","firstAvailable":[{"name":"c","deviceClassName":"gpu"}]},{"name":"empty"}]`; string(got) != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
}
