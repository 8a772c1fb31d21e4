//go:build !linux

package apilettest

import "net"

// reservePort returns a port that was free a moment ago. Another program can get the port before it
// is used.
func reservePort() (reservation, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return reservation{}, err
	}
	return reservation{l.Addr().(*net.TCPAddr).Port, func() {}}, l.Close()
}
