package proxy

import (
	"bufio"
	"io"
	"net"
	"testing"
	"time"
)

// echo answers each line with itself.
func echo(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go io.Copy(conn, conn)
		}
	}()
	return listener.Addr().String()
}

func TestProxySpoilsConnections(t *testing.T) {
	p, err := Start(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	dial := func() (net.Conn, *bufio.Reader) {
		conn, err := net.Dial("tcp", p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn, bufio.NewReader(conn)
	}
	conn, lines := dial()
	say := func(text string) {
		t.Helper()
		if _, err := io.WriteString(conn, text+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	hear := func(want string) {
		t.Helper()
		if got, err := lines.ReadString('\n'); got != want+"\n" {
			t.Fatalf("heard %q %v, want %q", got, err, want)
		}
	}
	say("a")
	hear("a")
	p.Stall()
	say("held back")
	conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if got, err := lines.ReadString('\n'); err == nil {
		t.Fatalf("heard %q of a stalled proxy", got)
	}
	conn.SetReadDeadline(time.Time{})
	p.Mend()
	hear("held back")
	p.Slow(50 * time.Millisecond)
	begin := time.Now()
	say("late")
	hear("late")
	if took := time.Since(begin); took < 100*time.Millisecond { // there and back
		t.Errorf("a slow proxy took %v", took)
	}
	p.Cut()
	if _, err := lines.ReadString('\n'); err == nil {
		t.Error("a connection that was cut goes on")
	}
	conn, lines = dial()
	if _, err := lines.ReadString('\n'); err == nil {
		t.Error("a connection was made through a proxy that cuts")
	}
	p.Mend()
	conn, lines = dial()
	say("again")
	hear("again")
	p.Drop()
	if _, err := lines.ReadString('\n'); err == nil {
		t.Error("a connection that was dropped goes on")
	}
	conn, lines = dial()
	say("and again")
	hear("and again")
}

func TestProxyLeadsElsewhere(t *testing.T) {
	deaf, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	deaf.Close()
	p, err := Start(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	hear := func(conn net.Conn) error {
		if _, err := io.WriteString(conn, "a\n"); err != nil {
			return err
		}
		_, err := bufio.NewReader(conn).ReadString('\n')
		return err
	}
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	first := dial()
	if err := hear(first); err != nil {
		t.Fatal(err)
	}
	p.Lead(deaf.Addr().String())
	if err := hear(first); err != nil {
		t.Errorf("who was connected before is led elsewhere: %v", err)
	}
	if hear(dial()) == nil {
		t.Error("who comes now is led where the others are")
	}
}
