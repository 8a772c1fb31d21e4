package e2e

import (
	"os/exec"
	"syscall"
)

// endWithTests makes the kernel kill the server if the process of the tests exits without stopping
// it, for example after a panic.
func endWithTests(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
