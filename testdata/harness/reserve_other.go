//go:build !linux

package harness

import "net"

// A reservation is a loopback port that was free.
type reservation struct {
	number int
	close  func()
}

// reservePort returns a port that was free a moment ago. This system cannot hold it for another program.
func reservePort() (reservation, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return reservation{}, err
	}
	return reservation{number: l.Addr().(*net.TCPAddr).Port, close: func() {}}, l.Close()
}
