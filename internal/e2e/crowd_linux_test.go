package e2e

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"apilet/internal/apitest"
)

// limitFiles sets the limit of open files of another process.
func limitFiles(t *testing.T, pid int, n uint64) {
	t.Helper()
	limit := syscall.Rlimit{Cur: n, Max: n}
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, uintptr(pid), syscall.RLIMIT_NOFILE, uintptr(unsafe.Pointer(&limit)), 0, 0, 0)
	if errno != 0 {
		t.Skip("prlimit:", errno)
	}
}

// TestNoDescriptorsLeft uses up all files that the server may open. Connected clients must still be
// served. After each failed accept the server must wait longer, without spinning. Once there are
// free descriptors, the other clients must be served.
func TestNoDescriptorsLeft(t *testing.T) {
	s := startTest(t, onSomeFile(t))
	pid := s.process.Process.Pid
	s.client = &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
	s.expectServed("nobody")
	const files = 64
	limitFiles(t, pid, files)
	crowd := make([]net.Conn, 2*files)
	for i := range crowd {
		crowd[i] = s.dial()
		defer crowd[i].Close()
		fmt.Fprint(crowd[i], "GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") // a connection may be idle for minutes after this
	}
	full := func() bool {
		open, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		return len(open) >= files
	}
	apitest.WaitFor(t, "the server to run out of files", full)
	for i := range 10 {
		s.want(201, "POST", "/api/v1/namespaces/default/configmaps", configMap(fmt.Sprint("c", i)))
	}
	apitest.WaitFor(t, "the server to wait for a second after a failed accept", func() bool {
		return strings.Contains(s.log.String(), "retrying in 1s")
	}, func() any { return s.log })
	if !full() {
		t.Error("there were files again, and nothing was tested")
	}
	for _, conn := range crowd {
		conn.Close()
	}
	stranger := &testServer{t: t, url: s.url, client: &http.Client{}}
	apitest.WaitFor(t, "a new connection to be served", func() bool {
		a, err := stranger.try("GET", "/readyz", "")
		return err == nil && a.code == 200
	})
}
