package bootstrap

// This file: the endpoints of Service default/kubernetes, as Endpoints and as EndpointSlice. They say where the servers are that run.
//
// One server on its file says at each start where it listens. One that listens on loopback says so: that is where it is, although no user may write
// such an address (kube-apiserver, under the same rule, then has no endpoints at all).
//
// Servers on an etcd cluster name all that are there (Cluster.Announce, and kube-apiserver's lease reconciler), each as long as it lives. All have one
// port, as with kube-apiserver: that of who was there first. A server on loopback is nobody's but its machine's: it leaves the endpoints to others,
// if there are any, unless it is told that it is reached there (--advertise-address).

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

// Endpoints keeps those of the Service.
type Endpoints struct {
	Initializer
	Etcd       *etcd.Cluster // that other servers share; nil: there is none
	Reconciler string        // "none" has the endpoints left alone
	Advertised string        // an IP address; "": where this server listens
	Six        bool          // the Service's address is of IPv6, and so is this server's, where it has several

	at     netip.AddrPort
	leased bool // this server announces itself
}

// Start says where this server listens, unless Run will.
func (e *Endpoints) Start(ctx context.Context, listening netip.AddrPort) error {
	if e.Reconciler == "none" {
		return nil
	}
	e.at = reachable(listening, e.Six)
	if e.Advertised != "" {
		given, err := netip.ParseAddr(e.Advertised)
		if err != nil {
			return err
		}
		e.at = netip.AddrPortFrom(given.Unmap(), listening.Port())
	}
	if e.leased = e.Etcd != nil && (e.Advertised != "" || !e.at.Addr().IsLoopback()); e.leased {
		return nil
	}
	if e.Etcd != nil {
		if others, err := e.Etcd.Masters(ctx); err != nil || len(others) > 0 {
			return err
		}
	}
	return e.lead(ctx, []netip.Addr{e.at.Addr()}, true)
}

// Run keeps the endpoints what they should be, while this server serves, and takes it out of them when it is stopping.
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
	e.Etcd.Announce(ctx, e.at.Addr(), func(ctx context.Context, live []netip.Addr, entering bool) error {
		return e.lead(ctx, live, entering && len(live) == 1 && live[0] == e.at.Addr())
	})
}

// lead says where the Service leads, in both forms: to all these addresses, at one port. A port that is told already stays, unless this server's is to
// be it.
func (e *Endpoints) lead(ctx context.Context, to []netip.Addr, ours bool) error {
	old := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelSkipMirror: "true"}}}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}}}
	var subsets []corev1.EndpointSubset
	if err := e.createOrUpdate(ctx, "", "endpoints", old, func(obj scheme.Object) {
		told := obj.(*corev1.Endpoints)
		ports := []corev1.EndpointPort{{Name: "https", Port: int32(e.at.Port()), Protocol: corev1.ProtocolTCP}}
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

// subsetsOf is one subset, its addresses in the order of their text, as kube-apiserver has them; none without addresses.
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

// addEndpoints adds the addresses of the slice's family.
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

// reachable is the address that others have for one that is listened on: for all addresses, the first of this machine that leads to it
// from elsewhere.
func reachable(at netip.AddrPort, six bool) netip.AddrPort {
	at = netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port())
	if !at.Addr().IsUnspecified() {
		return at
	}
	found := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	addresses, _ := net.InterfaceAddrs() // none known: loopback always is
	for _, address := range addresses {
		prefix, err := netip.ParsePrefix(address.String())
		if addr := prefix.Addr().Unmap(); err == nil && addr.IsGlobalUnicast() && (found.IsLoopback() || addr.Is6() == six && found.Is6() != six) {
			found = addr
		}
	}
	return netip.AddrPortFrom(found, at.Port())
}
