//go:build !linux

package apilettest

import "syscall"

// endWithParent returns attr. This system cannot tie a process to its parent, so a killed test binary leaves its servers behind.
func endWithParent(attr *syscall.SysProcAttr) *syscall.SysProcAttr { return attr }
