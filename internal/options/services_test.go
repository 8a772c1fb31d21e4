package options

import "testing"

func TestServicesNeedARangeOfIPv4(t *testing.T) {
	for cidr, want := range map[string]string{
		"10.96.0.0/16": "10.96.0.0/16", "10.96.3.4/24": "10.96.3.0/24", "10.0.0.0/30": "10.0.0.0/30",
		"10.0.0.0/31": "", "10.0.0.1": "", "fd00::/112": "", "10.96.0.0/33": "", "": "",
	} {
		block, err := (&Options{ServiceRange: cidr}).ServiceBlock()
		if (err == nil) != (want != "") || err == nil && block.String() != want {
			t.Errorf("%q: %v, %v; want %q", cidr, block, err, want)
		}
	}
}
