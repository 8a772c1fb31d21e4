package options

import (
	"net"
	"strconv"
	"strings"
)

// ReachedAt returns the host and port of the URL of a server that listens at an address: the first name that is not a pattern, or else
// the advertised address. A server that listens on a loopback address has no other one. localOnly reports that the server listens on
// all addresses, but the options name none, so that the URL is of use on this machine only.
func (o *Options) ReachedAt(listening *net.TCPAddr) (hostPort string, localOnly bool) {
	port := strconv.Itoa(listening.Port)
	if listening.IP.IsLoopback() {
		return listening.String(), false
	}
	for _, name := range o.Names {
		if !strings.HasPrefix(name, "*") {
			return net.JoinHostPort(name, port), false
		}
	}
	switch {
	case o.Advertised != "":
		return net.JoinHostPort(o.Advertised, port), false
	case listening.IP.IsUnspecified():
		return net.JoinHostPort("127.0.0.1", port), true
	}
	return listening.String(), false
}
