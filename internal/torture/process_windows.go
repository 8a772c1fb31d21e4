package torture

import "os/exec"

// Windows has no process groups that can be signaled. Child processes are not killed with their
// parent, and it is not possible to suspend a process.
const canPause = false

func ownGroup(*exec.Cmd)      {}
func diesWithUs(*exec.Cmd)    {}
func killGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() }
func pauseGroup(*exec.Cmd)    {}
func wakeGroup(*exec.Cmd)     {}
