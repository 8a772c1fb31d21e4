//go:build !linux

package apilettest

import "net"

// reservePort returns a port that was free a moment ago. This system cannot hold it for another program.
func reservePort() (reservation, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return reservation{}, err
	}
	return reservation{l.Addr().(*net.TCPAddr).Port, func() {}}, l.Close()
}
