package torture

import "os/exec"

// Windows has no groups of processes that a signal reaches: what a program starts outlives it, and none can be stopped and woken.
const canPause = false

func ownGroup(*exec.Cmd)      {}
func diesWithUs(*exec.Cmd)    {}
func killGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() }
func pauseGroup(*exec.Cmd)    {}
func wakeGroup(*exec.Cmd)     {}
