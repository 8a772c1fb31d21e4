//go:build !linux

package apilettest

import "syscall"

// endWithParent returns attr unchanged. On this system, servers continue to run if the test binary
// is killed.
func endWithParent(attr *syscall.SysProcAttr) *syscall.SysProcAttr { return attr }
