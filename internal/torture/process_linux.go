package torture

import (
	"os/exec"
	"syscall"
)

// diesWithUs configures the kernel to kill the process if torture is killed. This also happens if
// the thread that started it exits. The threads of the Go runtime normally do not exit.
func diesWithUs(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
