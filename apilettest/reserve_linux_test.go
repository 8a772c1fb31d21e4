package apilettest

import (
	"fmt"
	"net"
	"testing"
)

// TestReservedPort listens three times on a reserved port. Although the port is closed in between,
// no other process can use it.
func TestReservedPort(t *testing.T) {
	port, err := reservePort()
	if err != nil {
		t.Fatal(err)
	}
	defer port.close()
	at := fmt.Sprint("127.0.0.1:", port.number)
	for range 3 {
		if conn, err := net.Dial("tcp", at); err == nil {
			conn.Close()
			t.Error("a connection is accepted while nobody listens")
		}
		for range 100 {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if l.Addr().String() == at {
				t.Error("another program got the port")
			}
		}
		l, err := net.Listen("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		l.Close()
	}
}
