//go:build unix

package apitest

import (
	"syscall"
	"testing"
)

// Descriptors raises the limit of open files to the number that the test needs, or skips the test.
func Descriptors(t testing.TB, n uint64) {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if uint64(limit.Cur) < n && uint64(limit.Max) >= n {
		limit.Cur = limit.Max
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			t.Skip(err)
		}
	}
	if uint64(limit.Cur) < n {
		t.Skipf("a process may open %d files here, and the test needs %d", limit.Max, n)
	}
}
