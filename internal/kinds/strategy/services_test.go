package strategy

import (
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestNodePortsAreKeptByName compares keepNodePorts with a slow version of it. The names of ports are unique.
func TestNodePortsAreKeptByName(t *testing.T) {
	t.Parallel()
	for range 5_000 {
		random := func() (ports []corev1.ServicePort) {
			for _, name := range []string{"a", "b", ""} {
				if rand.IntN(2) == 0 {
					ports = append(ports, corev1.ServicePort{Name: name, NodePort: int32(rand.IntN(4))})
				}
			}
			return ports
		}
		ports, old := random(), random()
		want := slices.Clone(ports)
		for i := range want {
			for _, before := range old {
				used := slices.ContainsFunc(ports, func(p corev1.ServicePort) bool { return p.NodePort == before.NodePort })
				if before.Name == want[i].Name && !used && want[i].NodePort == 0 {
					want[i].NodePort = before.NodePort
				}
			}
		}
		got := slices.Clone(ports)
		if keepNodePorts(got, old); !slices.Equal(got, want) {
			t.Fatalf("%v after %v: got %v, want %v", ports, old, got, want)
		}
	}
}

// A known policy of a Service without a cluster IP is dropped. Validation refuses any other.
func TestInternalPolicyIsDroppedIfKnown(t *testing.T) {
	for policy, dropped := range map[corev1.ServiceInternalTrafficPolicy]bool{"Cluster": true, "Local": true, "1": false, "": false} {
		svc := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, InternalTrafficPolicy: &policy}}
		if updateService(svc, svc.DeepCopy()); (svc.Spec.InternalTrafficPolicy == nil) != dropped {
			t.Errorf("%q: got %v, dropped should be %t", policy, svc.Spec.InternalTrafficPolicy, dropped)
		}
	}
}
