package options

import (
	"fmt"
	"strings"
	"testing"
)

func TestRangesOfServices(t *testing.T) {
	t.Parallel()
	for cidrs, want := range map[string]string{
		"10.96.0.0/16": "[10.96.0.0/16]", "10.96.3.4/24": "[10.96.3.0/24]", "10.0.0.0/29": "[10.0.0.0/29]", "fd00:10::/108": "[fd00:10::/108]", "fd00::/64": "[fd00::/64]",
		"10.96.0.0/16,fd00:10::1/108": "[10.96.0.0/16 fd00:10::/108]", "fd00:10::/108,10.96.0.0/16": "[fd00:10::/108 10.96.0.0/16]",
		"10.0.0.0/30": "must be at least 8 IP addresses", "fd00::/126": "must be at least 8 IP addresses", "10.0.0.1": `[0] is not a valid cidr: "10.0.0.1"`, "": `[0] is not a valid cidr: ""`, "10.96.0.0/33": `[0] is not a valid cidr: "10.96.0.0/33"`,
		"10.96.0.0/16,": `[1] is not an ip net: ""`, "10.96.0.0/16, fd00::/108": `[1] is not an ip net: " fd00::/108"`, "10.96.0.0/16,10.97.0.0/16": "of different IP family",
		"10.96.0.0/16,fd00:10::/108,fd00:11::/108": "more than two entries", "10.96.0.0/16,fd00::/48": "shortest allowed prefix length for service CIDR is 64, got 48",
	} {
		blocks, err := (&Options{ServiceRange: cidrs}).ServiceRanges()
		got := fmt.Sprint(blocks)
		if err != nil {
			got = err.Error()
		}
		if !strings.HasSuffix(got, want) {
			t.Errorf("%q: %v; want %q", cidrs, got, want)
		}
	}
}

func TestOwnServiceIsReached(t *testing.T) {
	t.Parallel()
	four, six := "10.96.0.0/16,fd00:10::/108", "fd00:10::/108,10.96.0.0/16"
	for _, c := range []struct {
		ranges, advertised, reconciler string
		fine                           bool
	}{
		{four, "", "lease", true}, {six, "", "lease", true}, {six, "fd00::1", "lease", true}, {four, "fd00::1", "lease", false}, {four, "fd00::1", "none", true},
		{four, "10.1.2.3", "lease", true}, {six, "10.1.2.3", "lease", false}, {four, "::ffff:10.1.2.3", "lease", true},
	} {
		err := (&Options{ServiceRange: c.ranges, Advertised: c.advertised, EndpointReconciler: c.reconciler}).finishServices()
		if (err == nil) != c.fine || err != nil && !strings.Contains(err.Error(), "must match public address family") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
