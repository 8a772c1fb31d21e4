//go:build !unix

package main

import "syscall"

func confined(string, uint32) *syscall.SysProcAttr { return nil }
