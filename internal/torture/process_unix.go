//go:build unix

package torture

import (
	"os/exec"
	"syscall"
)

// ownGroup has a program lead a group of processes, so that what it starts (as `go run` does) can be ended with it.
func ownGroup(cmd *exec.Cmd) {
	diesWithUs(cmd)
	cmd.SysProcAttr.Setpgid = true
}

// killGroup ends a program and what it has started, at once.
func killGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }

// canPause says that a program can be stopped and woken.
const canPause = true

func pauseGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGSTOP) }
func wakeGroup(cmd *exec.Cmd)  { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGCONT) }
