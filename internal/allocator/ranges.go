package allocator

// This file: the ranges that addresses come from. They are those of the ServiceCIDRs, as in kube-apiserver: kubernetes, which has what the flag said
// when the cluster was new, and those that an administrator has added since. One that is being deleted, or is not ready, gives no more; what
// Services have of it stays theirs.
//
//	10.96.0.0/24    .0        the network's own, which dry runs are shown
//	                .1-.16    the band for addresses that somebody chooses: others are given last
//	                .17-.254  given at random
//	                .255      the broadcast address (of IPv4; of IPv6 the last one is given, too)
//
// While there is no ServiceCIDR kubernetes, as before the first start is over, the flag's own ranges count.

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
	ownRange    = "kubernetes" // the ServiceCIDR that every cluster has
	shortestSix = 64           // bits of a prefix of IPv6: shorter ones give nothing
)

// A cidr is a ServiceCIDR of the store.
type cidr struct {
	blocks []netip.Prefix
	ready  bool
}

// noteRange remembers a ServiceCIDR, or forgets it.
func (a *Allocator) noteRange(key string, json []byte, has bool) {
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

// blocks are the ranges of a family that are ready: the first is kubernetes' own.
func (a *Allocator) blocks(family corev1.IPFamily) (found []block) {
	add := func(prefixes []netip.Prefix) {
		for _, prefix := range prefixes {
			if six := prefix.Addr().Is6(); six == (family == corev1.IPv6Protocol) && (!six || prefix.Bits() >= shortestSix) {
				found = append(found, blockOf(prefix.Masked()))
			}
		}
	}
	own, told := a.ranges[ownRange]
	switch {
	case !told:
		add(a.Blocks)
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

// families are those that the flag names, in its order.
func (a *Allocator) families() (offered []corev1.IPFamily) {
	for _, block := range a.Blocks {
		family := corev1.IPv4Protocol
		if block.Addr().Is6() {
			family = corev1.IPv6Protocol
		}
		offered = append(offered, family)
	}
	return offered
}

// A block is a range with its addresses numbered: 0 is the one after the network's own.
type block struct {
	prefix     netip.Prefix
	size, band uint64 // how many addresses there are, and how many of them, from the first on, are for those who choose
}

func blockOf(prefix netip.Prefix) block {
	bits := prefix.Addr().BitLen() - prefix.Bits()
	b := block{prefix: prefix, size: 1<<bits - 1} // 64 bits are 1<<64 - 1, too
	if prefix.Addr().Is4() {
		b.size = max(b.size, 1) - 1
	}
	if bits > 4 {
		b.band = max(uint64(1)<<min(bits-4, 8), 16)
	}
	return b
}

// at is the address of a number.
func (b block) at(n uint64) netip.Addr {
	bytes := b.prefix.Addr().As16()
	low := bytes[8:]
	binary.BigEndian.PutUint64(low, binary.BigEndian.Uint64(low)+n+1)
	return netip.AddrFrom16(bytes).Unmap()
}

// has says of an address that it is one of the numbered.
func (b block) has(addr netip.Addr) bool {
	return b.size > 0 && b.prefix.Contains(addr) && addr != b.prefix.Addr() && (addr.Is6() || addr != b.at(b.size))
}
