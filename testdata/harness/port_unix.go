//go:build unix

package harness

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
)

// A Port is a free loopback port that is bound but not listened on. Programs that share it (SO_REUSEPORT; etcd
// --socket-reuse-port, kube-apiserver --permit-port-sharing) can listen there, be killed and listen again. No other
// program gets it, and connections are refused while nobody listens.
type Port struct {
	Number int
	socket int
}

// HoldPort binds a free port.
func HoldPort() (*Port, error) {
	if runtime.GOOS == "linux" {
		return bind(0xf)
	}
	return bind(0x200) // BSD and its descendants
}

// bind binds a free loopback port with a socket option.
func bind(option int) (*Port, error) {
	syscall.ForkLock.RLock()
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(socket)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("a socket: %w", err)
	}
	err = errors.Join(syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, option, 1),
		syscall.Bind(socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	if err == nil {
		var at syscall.Sockaddr
		if at, err = syscall.Getsockname(socket); err == nil {
			return &Port{Number: at.(*syscall.SockaddrInet4).Port, socket: socket}, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("a port: %w", err), syscall.Close(socket))
}

// Close releases the port.
func (p *Port) Close() error { return syscall.Close(p.socket) }
