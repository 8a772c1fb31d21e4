//go:build unix && !linux

package torture

import (
	"os/exec"
	"syscall"
)

// diesWithUs cannot be had here: who kills torture ends its servers.
func diesWithUs(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{} }
