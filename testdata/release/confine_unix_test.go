//go:build unix

package main

import (
	"os"
	"syscall"
)

// confined returns the attributes of a process that can only access the files in a folder and runs
// as a user without privileges. It returns nil if the test has no right to start such a process.
func confined(root string, user uint32) *syscall.SysProcAttr {
	if os.Getuid() != 0 {
		return nil
	}
	return &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: user, Gid: user}}
}
