package torture

import "os/exec"

// Windows has no process groups that can be signaled. Child processes outlive their parent, and a
// process cannot be stopped and continued.
const canPause = false

func ownGroup(*exec.Cmd)      {}
func diesWithUs(*exec.Cmd)    {}
func killGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() }
func pauseGroup(*exec.Cmd)    {}
func wakeGroup(*exec.Cmd)     {}
