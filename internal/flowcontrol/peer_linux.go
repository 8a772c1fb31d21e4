package flowcontrol

// This file asks the kernel whether a client has left, which takes no read from its connection.

import (
	"net"
	"syscall"
)

// layered is a connection that lies upon another.
type layered interface{ NetConn() net.Conn }

// PeerClosed tells whether the client has closed the connection. net/http notices only when it reads to the end of the request, and a
// request that waits for its seat has not been read. The kernel knows: the first byte of TCP_INFO is the connection's state.
func PeerClosed(conn net.Conn) bool {
	for wrapped, ok := conn.(layered); ok; wrapped, ok = conn.(layered) { // TLS, and what batches its records
		conn = wrapped.NetConn()
	}
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	const finWait, closeWait = 4, 8 // from here on one of both sides has said that it is done
	closed := false
	err = raw.Control(func(fd uintptr) {
		info, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_INFO)
		closed = err == nil && info&0xff >= finWait && info&0xff <= closeWait
	})
	return closed || err != nil
}
