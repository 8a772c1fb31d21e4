//go:build unix

package proxy

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
)

// A Port is a free port on the loopback that nobody gets but who is told to share it (SO_REUSEPORT; etcd --socket-reuse-port): so a program
// that listens there can be killed, and started again, as if the port were its own. Held back without listening, it refuses connections
// while the program is away.
type Port struct {
	Number int
	socket int
}

// HoldPort takes one that is free.
func HoldPort() (*Port, error) {
	reusePort := 0x200 // of BSD, and of what comes from there
	if runtime.GOOS == "linux" {
		reusePort = 0xf
	}
	syscall.ForkLock.RLock()
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(socket)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("a socket: %w", err)
	}
	err = errors.Join(syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, reusePort, 1),
		syscall.Bind(socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	if err == nil {
		var at syscall.Sockaddr
		if at, err = syscall.Getsockname(socket); err == nil {
			return &Port{Number: at.(*syscall.SockaddrInet4).Port, socket: socket}, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("a port: %w", err), syscall.Close(socket))
}

// Close gives it back.
func (p *Port) Close() error { return syscall.Close(p.socket) }
