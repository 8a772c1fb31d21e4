//go:build unix

package torture

import (
	"os/exec"
	"syscall"
)

// ownGroup starts the program in a new process group. This makes it possible to kill the program
// together with its child processes, such as those started by `go run`.
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
