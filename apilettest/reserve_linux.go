package apilettest

import (
	"errors"
	"fmt"
	"syscall"
)

// reservePort binds a free loopback port with SO_REUSEADDR, which Go's net package also sets, and
// does not listen on it. On Linux, a program with this option can listen on the port if no other
// socket listens there. The kernel does not assign the port to other programs. Connections are
// refused while no program listens.
func reservePort() (reservation, error) {
	syscall.ForkLock.RLock()
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(socket)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return reservation{}, fmt.Errorf("a socket: %w", err)
	}
	err = errors.Join(syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1),
		syscall.Bind(socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	if err == nil {
		var at syscall.Sockaddr
		if at, err = syscall.Getsockname(socket); err == nil {
			return reservation{at.(*syscall.SockaddrInet4).Port, func() { _ = syscall.Close(socket) }}, nil
		}
	}
	return reservation{}, errors.Join(fmt.Errorf("a port: %w", err), syscall.Close(socket))
}
