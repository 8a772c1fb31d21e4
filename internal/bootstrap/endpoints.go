package bootstrap

// This file maintains the endpoints of Service default/kubernetes, which are the addresses of the
// running servers, as Endpoints and EndpointSlice.
//
// If the store is not shared, the server writes its own address at each start. If it listens on
// loopback, it writes a loopback address, although users may not write such an address.
// kube-apiserver would have no endpoints in this case.
//
// Servers that share an etcd write the addresses of all running servers (Cluster.Announce, like
// kube-apiserver's lease reconciler). All addresses have the same port, the port of the first
// server, as in kube-apiserver. A server on loopback cannot be reached from other machines. If
// there are other servers, it does not write the endpoints unless --advertise-address is set.

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/etcd"
	"apilet/internal/scheme"
)

// Endpoints maintains the endpoints of the Service.
type Endpoints struct {
	Initializer
	Etcd       *etcd.Cluster // shared with other servers, or nil
	Reconciler string        // "none" disables the endpoints
	Advertised string        // an IP address; if empty, the address on which this server listens
	IPv6       bool          // the Service has an IPv6 address, and this server should have one if it has several addresses

	address netip.AddrPort
	leased  bool // this server announces itself in etcd
}

// Start writes the address of this server, unless Run will write it.
func (e *Endpoints) Start(ctx context.Context, listening netip.AddrPort) error {
	if e.Reconciler == "none" {
		return nil
	}
	e.address = reachable(listening, e.IPv6)
	if e.Advertised != "" {
		given, err := netip.ParseAddr(e.Advertised)
		if err != nil {
			return err
		}
		e.address = netip.AddrPortFrom(given.Unmap(), listening.Port())
	}
	if e.leased = e.Etcd != nil && (e.Advertised != "" || !e.address.Addr().IsLoopback()); e.leased {
		return nil
	}
	if e.Etcd != nil {
		if others, err := e.Etcd.Servers(ctx); err != nil || len(others) > 0 {
			return err
		}
	}
	return e.writeEndpoints(ctx, []netip.Addr{e.address.Addr()}, true)
}

// Run updates the endpoints until ctx ends or stopping is closed. It removes this server's address
// when stopping.
func (e *Endpoints) Run(ctx context.Context, stopping <-chan struct{}) {
	if !e.leased {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-stopping:
			cancel()
		case <-ctx.Done():
		}
	}()
	e.Etcd.Announce(ctx, e.address.Addr(), func(ctx context.Context, live []netip.Addr, entering bool) error {
		return e.writeEndpoints(ctx, live, entering && len(live) == 1 && live[0] == e.address.Addr())
	})
}

// writeEndpoints writes the Endpoints and the EndpointSlice with the given addresses. If ours is
// false, an existing port is preserved.
func (e *Endpoints) writeEndpoints(ctx context.Context, to []netip.Addr, ours bool) error {
	old := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelSkipMirror: "true"}}}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}}}
	var subsets []corev1.EndpointSubset
	if err := e.createOrUpdate(ctx, "", "endpoints", old, func(obj scheme.Object) {
		told := obj.(*corev1.Endpoints)
		ports := []corev1.EndpointPort{{Name: "https", Port: int32(e.address.Port()), Protocol: corev1.ProtocolTCP}}
		if len(told.Subsets) == 1 && len(told.Subsets[0].Ports) > 0 && !ours {
			ports = told.Subsets[0].Ports
		}
		told.Subsets = subsetsOf(to, ports)
		subsets = told.Subsets
	}); err != nil {
		return err
	}
	return e.createOrUpdate(ctx, discoveryv1.GroupName, "endpointslices", slice, func(obj scheme.Object) {
		slice := obj.(*discoveryv1.EndpointSlice)
		slice.AddressType, slice.Ports, slice.Endpoints = discoveryv1.AddressTypeIPv4, nil, nil
		if len(to) > 0 && !slices.ContainsFunc(to, netip.Addr.Is4) {
			slice.AddressType = discoveryv1.AddressTypeIPv6
		}
		for i := range subsets {
			addEndpoints(slice, &subsets[i])
		}
	})
}

// subsetsOf returns one subset with the addresses sorted as text, as in kube-apiserver, or nil if
// there are no addresses.
func subsetsOf(to []netip.Addr, ports []corev1.EndpointPort) []corev1.EndpointSubset {
	if len(to) == 0 {
		return nil
	}
	subset := corev1.EndpointSubset{Ports: ports}
	for _, addr := range to {
		subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{IP: addr.String()})
	}
	slices.SortFunc(subset.Addresses, func(a, b corev1.EndpointAddress) int { return strings.Compare(a.IP, b.IP) })
	return []corev1.EndpointSubset{subset}
}

// addEndpoints adds the addresses that belong to the slice's address family.
func addEndpoints(slice *discoveryv1.EndpointSlice, subset *corev1.EndpointSubset) {
	for i := range subset.Ports {
		port := subset.Ports[i]
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &port.Name, Port: &port.Port, Protocol: &port.Protocol})
	}
	for _, address := range subset.Addresses {
		if ready := true; strings.Contains(address.IP, ":") == (slice.AddressType == discoveryv1.AddressTypeIPv6) {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address.IP}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
		}
	}
}

// reachable returns the address at which other machines reach this server. If the server listens on
// all addresses, it is the machine's first global unicast address, preferably of the given family.
func reachable(at netip.AddrPort, six bool) netip.AddrPort {
	at = netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port())
	if !at.Addr().IsUnspecified() {
		return at
	}
	found := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	addresses, _ := net.InterfaceAddrs() // on error only loopback is used
	for _, address := range addresses {
		prefix, err := netip.ParsePrefix(address.String())
		if addr := prefix.Addr().Unmap(); err == nil && addr.IsGlobalUnicast() && (found.IsLoopback() || addr.Is6() == six && found.Is6() != six) {
			found = addr
		}
	}
	return netip.AddrPortFrom(found, at.Port())
}
