//go:build unix

package health

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"apilet/internal/apitest"
)

func TestMain(m *testing.M) { apitest.Main(m) }

// A listener is a service manager's socket.
type listener struct {
	t    *testing.T
	conn *net.UnixConn
}

func listen(t *testing.T, name string) listener {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return listener{t, conn}
}

func (l listener) next() string {
	l.t.Helper()
	l.conn.SetReadDeadline(apitest.Deadline(l.t))
	data := make([]byte, 1024)
	n, err := l.conn.Read(data)
	if err != nil {
		l.t.Fatal(err)
	}
	return string(data[:n])
}

// env is an environment of these variables.
func env(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

// tempSocket is a path that is short enough for a socket's.
func tempSocket(t *testing.T) string {
	dir, err := os.MkdirTemp("", "notify")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// What the manager is told arrives word for word, under a path and, on Linux, under an abstract name.
func TestTellsTheManager(t *testing.T) {
	t.Parallel()
	names := []string{tempSocket(t)}
	if runtime.GOOS == "linux" {
		names = append(names, "@apilet-test-"+strconv.Itoa(os.Getpid()))
	}
	for _, name := range names {
		l, m := listen(t, name), FindServiceManager(env("NOTIFY_SOCKET", name))
		for _, c := range []struct {
			tell func() error
			want string
		}{
			{func() error { return m.NotifyReady("serving\nhere") }, "READY=1\nSTATUS=serving here"},
			{m.NotifyReloading, "RELOADING=1"},
			{m.NotifyStopping, "STOPPING=1\nSTATUS=stopping"},
		} {
			if err := c.tell(); err != nil {
				t.Fatal(name, err)
			}
			if got := l.next(); got != c.want {
				t.Errorf("%s: got %q, want %q", name, got, c.want)
			}
		}
	}
}

// Without a manager nothing is told and nothing watched; a socket that is gone is an error, not a panic.
func TestNobodyListens(t *testing.T) {
	t.Parallel()
	none := FindServiceManager(env("WATCHDOG_USEC", "1000"))
	if err := errors.Join(none.NotifyReady("x"), none.NotifyReloading(), none.NotifyStopping()); err != nil {
		t.Error(err)
	}
	none.RunWatchdog(t.Context(), func(context.Context) error { t.Error("asked"); return nil }, nil)
	gone := FindServiceManager(env("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "gone")))
	if err := gone.NotifyReady("x"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestWhichWatchdogIsOurs(t *testing.T) {
	t.Parallel()
	own := strconv.Itoa(os.Getpid())
	for _, c := range []struct {
		usec, pid string
		want      time.Duration
	}{
		{"30000000", "", 30 * time.Second},
		{"30000000", own, 30 * time.Second},
		{"30000000", own + "1", 0},
		{"", "", 0},
		{"0", "", 0},
		{"-5", "", 0},
		{"soon", "", 0},
		{"18446744073709551615", "", 0}, // WatchdogSec=infinity
		{"9223372036854775807", "", 0},
	} {
		if m := FindServiceManager(env("NOTIFY_SOCKET", "x", "WATCHDOG_USEC", c.usec, "WATCHDOG_PID", c.pid)); m.watchdog != c.want {
			t.Errorf("%+v: got %v", c, m.watchdog)
		}
	}
}

// The watchdog is fed as long as the proof of life succeeds, not while it fails, and again afterwards.
func TestWatchdogWantsProof(t *testing.T) {
	t.Parallel()
	name := tempSocket(t)
	l, m := listen(t, name), FindServiceManager(env("NOTIFY_SOCKET", name, "WATCHDOG_USEC", "20000"))
	ctx, cancel := context.WithCancel(t.Context())
	var proofs, failures atomic.Int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.RunWatchdog(ctx, func(proof context.Context) error {
			if _, ok := proof.Deadline(); !ok {
				t.Error("a proof without a deadline")
			}
			if n := proofs.Add(1); n > 3 && n <= 13 {
				return errors.New("the writer is stuck")
			}
			return nil
		}, func(error) { failures.Add(1) })
	}()
	for i := range 4 { // three, and the first after ten failures
		if got := l.next(); got != "WATCHDOG=1" {
			t.Fatalf("%d: %q", i, got)
		}
	}
	if proofs.Load() < 14 || failures.Load() != 10 {
		t.Errorf("after %d proofs and %d failures", proofs.Load(), failures.Load())
	}
	cancel()
	<-ended
}
