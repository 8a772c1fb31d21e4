package strategy

import (
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestNodePortsAreKeptByName(t *testing.T) {
	for range 5_000 {
		random := func() (ports []corev1.ServicePort) {
			for range rand.IntN(4) {
				ports = append(ports, corev1.ServicePort{Name: []string{"a", "b", ""}[rand.IntN(3)], NodePort: int32(rand.IntN(4))})
			}
			return ports
		}
		ports, old := random(), random()
		want := slices.Clone(ports)
		for i := range want {
			for _, before := range old {
				used := slices.ContainsFunc(want, func(p corev1.ServicePort) bool { return p.NodePort == before.NodePort })
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
