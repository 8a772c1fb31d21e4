package allocator

// This file determines the ranges of addresses. As in kube-apiserver, they are taken from the
// ServiceCIDRs. The ServiceCIDR kubernetes contains the ranges of the flag at the first start of
// the cluster. The administrator can add others. A ServiceCIDR that is being deleted or not ready
// is not used for new addresses, but Services keep their addresses.
//
//	10.96.0.0/24    .0        the network address, which is shown to dry runs
//	                .1-.16    the band for requested addresses, which is used last for other addresses
//	                .17-.254  random addresses
//	                .255      the broadcast address (only for IPv4; IPv6 also uses the last address)
//
// The ranges of the flag are used as long as the ServiceCIDR kubernetes does not exist, which is
// the case before the first start is complete.

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"

	"github.com/tidwall/gjson"
	corev1 "k8s.io/api/core/v1"

	"apilet/internal/scheme"
)

const (
	cidrRange   = "/networking.k8s.io/servicecidrs/"
	ownRange    = "kubernetes" // the default ServiceCIDR
	minIPv6Bits = 64           // bits of the shortest IPv6 prefix that is used
)

// A cidr is a stored ServiceCIDR.
type cidr struct {
	blocks []netip.Prefix
	ready  bool
}

// applyRange adds or removes a ServiceCIDR.
func (a *Allocator) applyRange(key string, json []byte, has bool) {
	_, name := scheme.NamespacedName(key)
	if !has {
		delete(a.ranges, name)
		return
	}
	doc := gjson.ParseBytes(json)
	ready := doc.Get(`status.conditions.#(type=="Ready").status`)
	c := cidr{ready: !doc.Get("metadata.deletionTimestamp").Exists() && (!ready.Exists() || ready.String() == "True")}
	for _, text := range doc.Get("spec.cidrs").Array() {
		if prefix, err := netip.ParsePrefix(text.String()); err == nil {
			c.blocks = append(c.blocks, prefix)
		}
	}
	a.ranges[name] = c
}

// blocks returns the ready ranges of an address family. The ServiceCIDR kubernetes is the first
// one.
func (a *Allocator) blocks(family corev1.IPFamily) (found []block) {
	add := func(prefixes []netip.Prefix) {
		for _, prefix := range prefixes {
			if six := prefix.Addr().Is6(); six == (family == corev1.IPv6Protocol) && (!six || prefix.Bits() >= minIPv6Bits) {
				found = append(found, blockOf(prefix.Masked()))
			}
		}
	}
	own, known := a.ranges[ownRange]
	switch {
	case !known:
		add(a.Ranges)
	case own.ready:
		add(own.blocks)
	}
	for _, name := range slices.Sorted(maps.Keys(a.ranges)) {
		if c := a.ranges[name]; name != ownRange && c.ready {
			add(c.blocks)
		}
	}
	return found
}

// families returns the address families of a.Ranges.
func (a *Allocator) families() (offered []corev1.IPFamily) {
	for _, block := range a.Ranges {
		family := corev1.IPv4Protocol
		if block.Addr().Is6() {
			family = corev1.IPv6Protocol
		}
		offered = append(offered, family)
	}
	return offered
}

// A block is a range with numbered addresses. Number 0 is the address after the network address.
type block struct {
	prefix     netip.Prefix
	size, band uint64 // number of addresses, and number of the first addresses that are reserved for requests
}

func blockOf(prefix netip.Prefix) block {
	bits := prefix.Addr().BitLen() - prefix.Bits()
	b := block{prefix: prefix, size: 1<<bits - 1} // a shift by 64 bits also results in 1<<64 - 1
	if prefix.Addr().Is4() {
		b.size = max(b.size, 1) - 1
	}
	if bits > 4 {
		b.band = max(uint64(1)<<min(bits-4, 8), 16)
	}
	return b
}

// at returns the address with the number.
func (b block) at(n uint64) netip.Addr {
	bytes := b.prefix.Addr().As16()
	low := bytes[8:]
	binary.BigEndian.PutUint64(low, binary.BigEndian.Uint64(low)+n+1)
	return netip.AddrFrom16(bytes).Unmap()
}

// has reports whether addr has a number.
func (b block) has(addr netip.Addr) bool {
	return b.size > 0 && b.prefix.Contains(addr) && addr != b.prefix.Addr() && (addr.Is6() || addr != b.at(b.size))
}
