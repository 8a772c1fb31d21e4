package options

// This file: what one flag says to several rooms.

import (
	"fmt"
	"net/netip"
)

// ServiceBlock is --service-cluster-ip-range: Services get their addresses out of it, and its first is the API server's own Service's.
func (o *Options) ServiceBlock() (netip.Prefix, error) {
	block, err := netip.ParsePrefix(o.ServiceRange)
	if err != nil || !block.Addr().Is4() || block.Bits() > 30 {
		return block, fmt.Errorf("--service-cluster-ip-range: %q is no IPv4 range of four addresses or more", o.ServiceRange)
	}
	return block.Masked(), nil
}
