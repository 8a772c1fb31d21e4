package options

import (
	"net"
	"strconv"
	"strings"
)

// URLHost returns the host and port for the URL of a server that listens at the given address.
// The host is the first of the names that is not a pattern, or else the advertised address. If the
// server listens on a loopback address, the host is that address. localOnly is true if the server
// listens on all addresses but the options contain no name, so that the URL works only on this
// machine.
func (o *Options) URLHost(listening *net.TCPAddr) (hostPort string, localOnly bool) {
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
