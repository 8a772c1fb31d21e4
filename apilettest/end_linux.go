package apilettest

import "syscall"

// endWithParent returns attr with the request that the kernel kills the process when the test
// binary dies.
func endWithParent(attr *syscall.SysProcAttr) *syscall.SysProcAttr {
	own := syscall.SysProcAttr{}
	if attr != nil {
		own = *attr
	}
	own.Pdeathsig = syscall.SIGKILL
	return &own
}
