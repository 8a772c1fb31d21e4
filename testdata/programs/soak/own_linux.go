package main

// This file contains code that only works on Linux: it mounts a private file system, reserves
// ports, and uses signals that are not available on Windows.

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
)

const (
	ownDiskVariable = "SOAK_OWN_DISK" // directory where this process must mount it
	reusePort       = 0xf             // SO_REUSEPORT
)

// signals that suspend and resume a process
const (
	holdSignal    = syscall.SIGSTOP
	releaseSignal = syscall.SIGCONT
)

// ownDisk reports whether this process has a file system for the shaken server.
func ownDisk() bool { return os.Getenv(ownDiskVariable) != "" }

// withOwnDisk runs this program again in a new mount namespace, with a small file system at a
// directory. This does not require root if unprivileged user namespaces are allowed. inside is true
// in the child. why is the reason if it is not possible.
func withOwnDisk(folder string, args []string) (inside bool, code int, why error) {
	if at := os.Getenv(ownDiskVariable); at != "" {
		return true, 0, syscall.Mount("tmpfs", at, "tmpfs", 0, fmt.Sprintf("size=%dm", diskMiB))
	}
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGTERM,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}}
	try := exec.Command("mount", "-t", "tmpfs", "tmpfs", folder)
	try.SysProcAttr = attr
	if out, err := try.CombinedOutput(); err != nil {
		return false, 0, fmt.Errorf("%w %s", err, strings.TrimSpace(string(out)))
	}
	runtime.LockOSThread() // the child ends when this thread ends
	self, err := os.Executable()
	if err != nil {
		return false, 0, err
	}
	again := exec.Command(self, args...)
	again.SysProcAttr = attr
	again.Env, again.Stdout, again.Stderr = append(os.Environ(), ownDiskVariable+"="+folder), os.Stdout, os.Stderr
	told := make(chan os.Signal, 1)
	signal.Notify(told, os.Interrupt, syscall.SIGTERM)
	if err := again.Start(); err != nil {
		return false, 0, err
	}
	go func() { // ends with this program
		for range told {
			_ = again.Process.Signal(syscall.SIGTERM)
		}
	}()
	if err := again.Wait(); err != nil && again.ProcessState.ExitCode() <= 0 {
		return false, 1, nil
	}
	return false, again.ProcessState.ExitCode(), nil
}

// keepPort reserves a free port while this program runs. Other programs can only use it if they
// share it (etcd --socket-reuse-port).
func keepPort() (int, error) {
	syscall.ForkLock.RLock()
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(socket)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return 0, err
	}
	if err := errors.Join(syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, reusePort, 1),
		syscall.Bind(socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})); err != nil {
		return 0, errors.Join(err, syscall.Close(socket))
	}
	at, err := syscall.Getsockname(socket)
	if err != nil {
		return 0, err
	}
	return at.(*syscall.SockaddrInet4).Port, nil
}
