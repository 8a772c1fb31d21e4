package e2e

import (
	"os/exec"
	"syscall"
)

// endWithTests has the kernel end a server when the tests' process ends without having stopped it, as it does after a panic.
func endWithTests(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
