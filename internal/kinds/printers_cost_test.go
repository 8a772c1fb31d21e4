package kinds_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"apilet/internal/apitest"
	"apilet/internal/kinds/printers"
	"apilet/internal/scheme"
)

// TestTableOfEndpointsCountsWithoutMaking: addresses by ports are shown by three, and a number.
func TestTableOfEndpointsCountsWithoutMaking(t *testing.T) {
	subset := corev1.EndpointSubset{}
	for i := range 3000 {
		subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{IP: fmt.Sprintf("10.0.%d.%d", i/250, i%250)})
		subset.Ports = append(subset.Ports, corev1.EndpointPort{Port: int32(i + 1)})
	}
	endpoints := scheme.NewRegistry().Lookup("", "v1", "endpoints")
	cell := func(subset corev1.EndpointSubset) any {
		return printers.CellsOf(endpoints, &corev1.Endpoints{Subsets: []corev1.EndpointSubset{subset}}, time.Now())[1]
	}
	before := apitest.Allocated()
	apitest.Expect(t, cell(subset), any("10.0.0.0:1,10.0.0.1:1,10.0.0.2:1 + 8999997 more..."))
	if n := apitest.Allocated() - before; n > 8<<20 {
		t.Errorf("it took %d MiB", n>>20)
	}
	subset.Addresses, subset.Ports = subset.Addresses[:1], subset.Ports[:2]
	apitest.Expect(t, cell(subset), any("10.0.0.0:1,10.0.0.0:2"))
	apitest.Expect(t, cell(corev1.EndpointSubset{Addresses: subset.Addresses}), any("10.0.0.0"))
}
