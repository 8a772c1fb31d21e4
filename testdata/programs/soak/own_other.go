//go:build !linux

package main

import (
	"errors"
	"syscall"
)

var errNotHere = errors.New("on Linux only")

const (
	holdSignal    = syscall.SIGKILL // processes cannot be suspended here
	releaseSignal = syscall.SIGKILL
)

func ownDisk() bool                                   { return false }
func withOwnDisk(string, []string) (bool, int, error) { return false, 0, errNotHere }
func keepPort() (int, error)                          { return 0, errNotHere }
