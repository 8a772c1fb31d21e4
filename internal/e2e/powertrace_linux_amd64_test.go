package e2e

import "syscall"

// skipCall skips the next system call of a stopped thread.
func skipCall(tid int) error {
	var regs syscall.PtraceRegs
	if err := syscall.PtraceGetRegs(tid, &regs); err != nil {
		return err
	}
	regs.Orig_rax = ^uint64(0)
	return syscall.PtraceSetRegs(tid, &regs)
}

// setCallResult sets the error of a skipped system call.
func setCallResult(tid int, no syscall.Errno) error {
	var regs syscall.PtraceRegs
	if err := syscall.PtraceGetRegs(tid, &regs); err != nil {
		return err
	}
	regs.Rax = -uint64(no)
	return syscall.PtraceSetRegs(tid, &regs)
}
