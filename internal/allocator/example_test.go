package allocator_test

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/allocator"
	"apilet/internal/kinds/defaults"
	"apilet/internal/kinds/strategy"
	"apilet/internal/store"
)

// A Service that names an address has it from then on, until its write fails; nobody else gets it meanwhile.
func ExampleAllocator_Assign() {
	st, err := store.Open("", store.Options{Ephemeral: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer st.Close()
	alloc := allocator.New(st, netip.MustParsePrefix("10.96.0.0/16"))
	service := func(name string) *corev1.Service {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.3.4"}}
		defaults.Set(svc)
		strategy.PrepareForCreate(context.Background(), svc)
		return svc
	}
	web, err := alloc.Assign(service("web"), nil, false)
	fmt.Println(err)
	_, err = alloc.Assign(service("db"), nil, false)
	fmt.Println(err)
	web.Done(context.Background(), fmt.Errorf("the write of web failed"))
	_, err = alloc.Assign(service("db"), nil, false)
	fmt.Println(err)
	// Output:
	// <nil>
	// Service "db" is invalid: spec.clusterIPs: Invalid value: ["10.96.3.4"]: failed to allocate IP 10.96.3.4: provided IP is already allocated
	// <nil>
}
