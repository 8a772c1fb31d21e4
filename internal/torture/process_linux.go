package torture

import (
	"os/exec"
	"syscall"
)

// diesWithUs makes the kernel kill a process when torture is killed. The thread that starts it must
// not end before. Go's main threads do not.
func diesWithUs(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
