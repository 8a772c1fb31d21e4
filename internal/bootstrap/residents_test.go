package bootstrap

import (
	"net/netip"
	"testing"
)

func TestReachableAddress(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{"127.0.0.1:80": "127.0.0.1:80", "[::ffff:10.1.2.3]:80": "10.1.2.3:80", "[fd00::1]:80": "[fd00::1]:80", "[::1%lo]:80": "[::1]:80"} {
		if got := reachable(netip.MustParseAddrPort(given), false).String(); got != want {
			t.Errorf("%s: got %s, want %s", given, got, want)
		}
	}
	for _, given := range []string{"0.0.0.0:80", "[::]:80"} {
		if got := reachable(netip.MustParseAddrPort(given), false); got.Addr().IsUnspecified() || got.Addr().IsLinkLocalUnicast() || got.Port() != 80 {
			t.Errorf("%s: got %s", given, got)
		}
	}
}
