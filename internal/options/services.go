package options

// This file validates the IP ranges of Services.

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

const (
	minHostBits = 3  // minimum number of host bits in the first range
	minIPv6Bits = 64 // minimum length of an IPv6 prefix
)

// ServiceRanges parses --service-cluster-ip-range, which contains one range, or two of different IP
// families. Services get their cluster IPs from these ranges. The first address of the first range
// belongs to the Service of the API server.
func (o *Options) ServiceRanges() ([]netip.Prefix, error) {
	var blocks []netip.Prefix
	texts := strings.Split(o.ServiceRange, ",")
	for i, text := range texts[:min(len(texts), 2)] {
		block, err := netip.ParsePrefix(text)
		switch {
		case err != nil && i == 0:
			return nil, fmt.Errorf("--service-cluster-ip-range: service-cluster-ip-range[0] is not a valid cidr: %q", text)
		case err != nil:
			return nil, fmt.Errorf("--service-cluster-ip-range: service-cluster-ip-range[%d] is not an ip net: %q", i, text)
		case i == 0 && block.Addr().BitLen()-block.Bits() < minHostBits:
			return nil, fmt.Errorf("--service-cluster-ip-range: error determining service IP ranges for primary service cidr: the service cluster IP range must be at least %d IP addresses", 1<<minHostBits)
		case block.Addr().Is6() && block.Bits() < minIPv6Bits:
			return nil, fmt.Errorf("--service-cluster-ip-range: shortest allowed prefix length for service CIDR is %d, got %d", minIPv6Bits, block.Bits())
		}
		blocks = append(blocks, block.Masked())
	}
	switch {
	case len(texts) > 2:
		return nil, errors.New("--service-cluster-ip-range must not contain more than two entries")
	case len(blocks) == 2 && blocks[0].Addr().Is4() == blocks[1].Addr().Is4():
		return nil, errors.New("--service-cluster-ip-range[0] and --service-cluster-ip-range[1] must be of different IP family")
	}
	return blocks, nil
}

// finishServices validates the ranges. The first range must have the IP family of
// --advertise-address, because the API server's Service and its endpoints have a single family.
func (o *Options) finishServices() error {
	if o.ServiceRange == "" { // the flags were not parsed
		return nil
	}
	blocks, err := o.ServiceRanges()
	if err != nil || o.Advertised == "" || o.EndpointReconciler == "none" {
		return err
	}
	at, err := netip.ParseAddr(o.Advertised)
	if err == nil && at.Unmap().Is4() != blocks[0].Addr().Is4() {
		err = fmt.Errorf("--advertise-address: service IP family %q must match public address family %q", blocks[0], at)
	}
	return err
}
