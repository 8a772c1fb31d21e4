//go:build unix

package harness

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"syscall"
	"testing"
)

// A port that is held is nobody's, but of those who share it, and refuses who calls while none of them listens.
func TestPortIsHeld(t *testing.T) {
	port, err := HoldPort()
	if err != nil {
		t.Fatal(err)
	}
	defer port.Close()
	at := fmt.Sprint("127.0.0.1:", port.Number)
	if l, err := net.Listen("tcp", at); err == nil {
		l.Close()
		t.Error("who does not share it has got it")
	}
	sharing := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) (err error) {
		option := 0x200
		if runtime.GOOS == "linux" {
			option = 0xf
		}
		if failed := conn.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, option, 1) }); failed != nil {
			return failed
		}
		return err
	}}
	for life := range 3 {
		if conn, err := net.Dial("tcp", at); err == nil {
			conn.Close()
			t.Error("it takes calls while nobody listens")
		}
		l, err := sharing.Listen(context.Background(), "tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 { // each of them comes to who listens
			answered := make(chan error, 1)
			go func() {
				conn, err := l.Accept()
				if err == nil {
					_, err = conn.Write([]byte{byte(life)})
					conn.Close()
				}
				answered <- err
			}()
			conn, err := net.Dial("tcp", at)
			if err != nil {
				t.Fatal(err)
			}
			said := make([]byte, 1)
			if _, err := conn.Read(said); err != nil || int(said[0]) != life {
				t.Fatalf("heard %v %v in life %d", said, err, life)
			}
			conn.Close()
			if err := <-answered; err != nil {
				t.Error(err)
			}
		}
		l.Close()
	}
}
