//go:build unix

package apitest

import (
	"syscall"
	"time"
)

func usedProcessor() (time.Duration, bool) {
	var usage syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), err == nil
}
