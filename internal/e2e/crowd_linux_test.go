package e2e

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"apilet/internal/apitest"
)

// limitFiles sets another process's limit of open files.
func limitFiles(t *testing.T, pid int, n uint64) {
	t.Helper()
	limit := syscall.Rlimit{Cur: n, Max: n}
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, uintptr(pid), syscall.RLIMIT_NOFILE, uintptr(unsafe.Pointer(&limit)), 0, 0, 0)
	if errno != 0 {
		t.Skip("prlimit:", errno)
	}
}

// usedProcessor is what a process has used so far.
func usedProcessor(t *testing.T, pid int) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond // ticks of 1/100 s, on every Linux
}

// TestNoDescriptorsLeft takes all files that a server may open: those who are connected are served, the processor rests, and once there
// are files again, so are the others.
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
		fmt.Fprint(crowd[i], "GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") // after which a connection may rest for minutes
	}
	full := func() bool {
		open, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		return len(open) >= files
	}
	apitest.WaitFor(t, "the server to run out of files", full)
	used, begin := usedProcessor(t, pid), time.Now()
	for i := range 10 {
		s.want(201, "POST", "/api/v1/namespaces/default/configmaps", configMap(fmt.Sprint("c", i)))
		time.Sleep(100 * time.Millisecond) // time in which it could spin
	}
	if used, took := usedProcessor(t, pid)-used, time.Since(begin); used > took/2 {
		t.Errorf("without files, %v of %v were spent", used, took)
	}
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
