//go:build unix

package torture

import (
	"os/exec"
	"syscall"
)

// ownGroup makes the program the leader of a process group, so that its child processes (as of `go
// run`) can be killed with it.
func ownGroup(cmd *exec.Cmd) {
	diesWithUs(cmd)
	cmd.SysProcAttr.Setpgid = true
}

// killGroup kills a program and its child processes.
func killGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }

// canPause reports whether a program can be stopped and continued.
const canPause = true

func pauseGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGSTOP) }
func wakeGroup(cmd *exec.Cmd)  { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGCONT) }
