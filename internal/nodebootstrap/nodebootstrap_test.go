package nodebootstrap

import (
	"net"
	"slices"
	"testing"
)

func TestRoutedAddressesAreThisMachines(t *testing.T) {
	t.Parallel()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	var own []string
	for _, addr := range addrs {
		own = append(own, addr.(*net.IPNet).IP.String())
	}
	routed := routedAddresses()
	if len(routed) > 2 {
		t.Errorf("the addresses are %v, want at most one of each family", routed)
	}
	for _, ip := range routed {
		if !slices.Contains(own, ip) || net.ParseIP(ip).IsLoopback() {
			t.Errorf("%s is not an address at which others reach this machine: %v", ip, own)
		}
	}
}

func TestResolveNeedsAnAddressOfAnotherMachine(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		command command
		ok      bool
	}{
		"another machine":                    {command: command{node: "some-other-machine"}},
		"another machine with its addresses": {command{node: "some-other-machine", nodeIPs: []string{"192.0.2.7", "2001:db8::7"}}, true},
		"an address with a zone":             {command: command{node: "some-other-machine", nodeIPs: []string{"fe80::1%eth0"}}},
	} {
		c.command.clusterCIDR, c.command.clusterDNS, c.command.cgroupDriver = "10.244.0.0/16,fd00:244::/56", "10.96.0.10", "systemd"
		n, err := c.command.resolve("dir", "https://192.0.2.1:6443")
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
		if c.ok && !slices.Equal(n.hosts, []string{"some-other-machine", "192.0.2.7", "2001:db8::7"}) {
			t.Errorf("%s: %v", name, n.hosts)
		}
	}
}
