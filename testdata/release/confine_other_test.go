//go:build !unix

package main

import (
	"os/exec"
)

func confine(*exec.Cmd, string, uint32) bool { return false }
