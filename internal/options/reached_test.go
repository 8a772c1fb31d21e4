package options

import (
	"net"
	"testing"
)

// What a kubeconfig has for its server: what others reach, where they do.
func TestWhereOthersReachAServer(t *testing.T) {
	t.Parallel()
	lb, pattern := "api.example.com", "*.example.com"
	for _, c := range []struct {
		listening, advertised string
		names                 []string
		want                  string
		localOnly             bool
	}{
		{"127.0.0.1", "", nil, "127.0.0.1:6443", false},
		{"127.0.0.1", "10.0.0.7", []string{lb}, "127.0.0.1:6443", false},
		{"::1", "", []string{lb}, "[::1]:6443", false},
		{"0.0.0.0", "", nil, "127.0.0.1:6443", true},
		{"::", "", []string{pattern}, "127.0.0.1:6443", true},
		{"0.0.0.0", "10.0.0.7", nil, "10.0.0.7:6443", false},
		{"0.0.0.0", "fd00::7", []string{pattern}, "[fd00::7]:6443", false},
		{"0.0.0.0", "10.0.0.7", []string{pattern, lb, "other"}, "api.example.com:6443", false},
		{"10.0.0.7", "", nil, "10.0.0.7:6443", false},
		{"10.0.0.7", "", []string{lb}, "api.example.com:6443", false},
		{"10.0.0.7", "192.0.2.7", nil, "192.0.2.7:6443", false},
	} {
		o := &Options{Advertised: c.advertised, Names: c.names}
		got, localOnly := o.URLHost(&net.TCPAddr{IP: net.ParseIP(c.listening), Port: 6443})
		if got != c.want || localOnly != c.localOnly {
			t.Errorf("%+v: %s, %v", c, got, localOnly)
		}
	}
}
