//go:build unix

package e2e

// This file tests the notifications to systemd. The server must report that it is ready, that it is
// alive, that it reopens its log, and that it is stopping.

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"apilet/internal/apitest"
)

// TestServiceManagerIsTold simulates a unit with Type=notify and WatchdogSec=0.2.
func TestServiceManagerIsTold(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "notify") // the path of t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket, audit := filepath.Join(dir, "s"), filepath.Join(dir, "audit.log")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	cmd := exec.Command(builtProgram(t), "--ephemeral", "--listen", "127.0.0.1:0", "--audit-log-path", audit,
		"--cert-dir", filepath.Join(dir, "certs")) // enables TLS
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+socket, "WATCHDOG_USEC=200000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	await := func(what string) (told string) {
		t.Helper()
		data := make([]byte, 1024)
		for !strings.HasPrefix(told, what) {
			conn.SetReadDeadline(apitest.Deadline(t))
			n, err := conn.Read(data)
			if err != nil {
				t.Fatalf("waiting for %s: %v", what, err)
			}
			told = string(data[:n])
		}
		return told
	}
	if told := await("READY=1"); !strings.Contains(told, "STATUS=serving https://127.0.0.1:") {
		t.Errorf("%q", told)
	}
	for range 3 { // the first message can be older than READY=1
		await("WATCHDOG=1")
	}
	if lines := string(apitest.ReadFile(t, audit)); !strings.Contains(lines, `"requestURI":"/livez"`) || !strings.Contains(lines, `"code":200`) {
		t.Errorf("the watchdog was fed, and nobody asked for /livez:\n%s", lines)
	}
	if err := os.Rename(audit, audit+".1"); err != nil {
		t.Fatal(err)
	}
	cmd.Process.Signal(syscall.SIGHUP)
	await("RELOADING=1")
	await("READY=1")
	if !isThere(audit) {
		t.Error("READY is told before the audit log is opened anew")
	}
	cmd.Process.Signal(syscall.SIGTERM)
	await("STOPPING=1")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
