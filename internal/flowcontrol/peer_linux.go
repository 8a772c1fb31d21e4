package flowcontrol

// This file detects without reading from the connection whether a client has disconnected.

import (
	"net"
	"syscall"
)

// layered is implemented by connections that wrap another connection.
type layered interface{ NetConn() net.Conn }

// PeerClosed reports whether the client has closed the connection. net/http detects this only after
// it has read the whole request, and the body of a waiting request has not been read. PeerClosed
// therefore gets the connection's state from the kernel, which is the first byte of TCP_INFO.
func PeerClosed(conn net.Conn) bool {
	// unwrap TLS and the batching of records
	for wrapped, ok := conn.(layered); ok; wrapped, ok = conn.(layered) {
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
	// in the states from finWait to closeWait, one of the sides has closed the connection
	const finWait, closeWait = 4, 8
	closed := false
	err = raw.Control(func(fd uintptr) {
		info, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_INFO)
		closed = err == nil && info&0xff >= finWait && info&0xff <= closeWait
	})
	return closed || err != nil
}
