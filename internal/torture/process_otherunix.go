//go:build unix && !linux

package torture

import (
	"os/exec"
	"syscall"
)

// diesWithUs has no effect on this system. If torture is killed, its servers must be stopped by
// hand.
func diesWithUs(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{} }
