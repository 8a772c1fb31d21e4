//go:build linux && (amd64 || arm64)

package e2e

// This file records the system calls of a program that change files in a directory. It includes the
// data of each write. A program runs as a traced child that stops at every system call. The program
// does not notice this. If it omits a sync, or syncs the wrong file, the recording shows it, which
// hooks in our own code could not. A tracer can also make system calls fail, as a broken disk
// would.
//
// The clients also add a line to the recording before each request and after each response.
// Therefore, the line of a request always precedes the resulting writes, and the line of a response
// always follows the necessary syncs.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"
)

type diskOp int

const (
	diskCreate   diskOp = iota // name now refers to file
	diskWrite                  // data at off
	diskTruncate               // to off bytes
	// of file, or of the directory if file is 0; limited to the bytes from off to until if until is
	// not 0
	diskSync
	diskLink   // to is another name for name
	diskRename // name is renamed to to
	diskRemove // of name
	diskSaid   // name is a line from a client
)

// A diskEvent is one system call. Files are identified by a number, starting with 1, because their
// names can change.
type diskEvent struct {
	op       diskOp
	file     int
	off      int64
	until    int64
	data     []byte
	name, to string
}

const (
	ptraceGetSyscallInfo = 0x420e
)

// A diskRecording is the events of one or more children.
type diskRecording struct {
	dir string

	mu     sync.Mutex     // guards the fields below
	names  map[string]int // the current names in the directory
	files  map[uint64]int // by inode, without deleted files
	ends   map[int]int64  // the offset of the next sequential write
	last   int
	events []diskEvent
}

// A diskTracer adds the system calls of one child to a recording.
type diskTracer struct {
	*diskRecording
	pid  int
	mem  *os.File // the child's memory
	exit int      // the child's exit code

	// fault returns the error with which a call fails, or 0 if it succeeds. If fault is nil, no
	// call fails.
	fault func(diskEvent) syscall.Errno
	// denied contains the error for each thread whose current system call must fail.
	denied map[int]syscall.Errno
}

func newDiskRecording(dir string) *diskRecording {
	return &diskRecording{dir: dir, names: map[string]int{}, files: map[uint64]int{}, ends: map[int]int64{}}
}

func (r *diskRecording) newTracer() *diskTracer {
	return &diskTracer{diskRecording: r, denied: map[int]syscall.Errno{}}
}

// say adds a line from a client.
func (r *diskRecording) say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(diskEvent{op: diskSaid, name: fmt.Sprintf(format, args...)})
}

// place writes a file that is durable before any child starts.
func (r *diskRecording) place(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	r.files[info.Sys().(*syscall.Stat_t).Ino], r.names[path] = r.last, r.last
	for _, ev := range []diskEvent{ // create the name only after the content is durable
		{op: diskWrite, file: r.last, data: content}, {op: diskSync, file: r.last}, {op: diskCreate, file: r.last, name: path}, {op: diskSync},
	} {
		r.add(ev)
	}
}

// record runs the child until it exits and records the changes to all files in dir. It skips the
// test if tracing is not permitted.
func (tr *diskTracer) record(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	err := tr.trace(cmd)
	if forbidden(err) {
		t.Skipf("tracing a child is not possible here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// forbidden reports whether err means that tracing is not possible on this machine.
func forbidden(err error) bool {
	return errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EIO) || errors.Is(err, errors.ErrUnsupported)
}

// trace runs the child until it exits.
func (tr *diskTracer) trace(cmd *exec.Cmd) error {
	done := make(chan error)
	go func() {
		// The kernel accepts the tracer's requests only from this thread. If the thread exited, the
		// kernel would also kill the servers that it has started (Pdeathsig).
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		done <- tr.traceHere(cmd)
	}()
	return <-done
}

// traceHere is like trace, on the current thread.
func (tr *diskTracer) traceHere(cmd *exec.Cmd) error {
	// With its own process group, wait4 can wait for the threads of this child only.
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	tr.pid = cmd.Process.Pid
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(tr.pid, &status, 0, nil); err != nil {
		return err
	}
	const exitKill = 0x100000
	err := syscall.PtraceSetOptions(tr.pid, syscall.PTRACE_O_TRACESYSGOOD|syscall.PTRACE_O_TRACECLONE|exitKill)
	if err == nil {
		tr.mem, err = os.Open(fmt.Sprintf("/proc/%d/mem", tr.pid))
	}
	if err != nil {
		syscall.Kill(tr.pid, syscall.SIGKILL)
		syscall.Wait4(tr.pid, &status, 0, nil)
		return err
	}
	defer tr.mem.Close()
	err = tr.run()
	cmd.Wait() // reads the rest of the output; the error is always that the child has already been reaped
	return err
}

// run resumes the threads after each system call until the child has exited.
func (tr *diskTracer) run() error {
	for tid, signal := tr.pid, 0; ; {
		if err := syscall.PtraceSyscall(tid, signal); err != nil && err != syscall.ESRCH { // the thread may have exited meanwhile
			return err
		}
		var status syscall.WaitStatus
		for again := true; again; {
			var err error
			tid, err = syscall.Wait4(-tr.pid, &status, syscall.WALL, nil)
			if err != nil && err != syscall.EINTR {
				return err
			}
			if tid == tr.pid && (status.Exited() || status.Signaled()) {
				tr.exit = status.ExitStatus() // -1 if a signal killed the child
				return nil
			}
			again = err != nil || !status.Stopped()
		}
		signal = 0
		switch s := status.StopSignal(); s {
		case syscall.SIGTRAP | 0x80:
			if err := tr.note(tid); err != nil {
				return err
			}
		case syscall.SIGTRAP, syscall.SIGSTOP: // a new thread, reported for both the parent and the new thread
		default:
			signal = int(s)
		}
	}
}

// note adds the event for the next system call of a stopped thread. The kernel reports the call's
// number and arguments in the same form on every architecture.
func (tr *diskTracer) note(tid int) error {
	var info [88]byte
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PTRACE, ptraceGetSyscallInfo, uintptr(tid), uintptr(len(info)), uintptr(unsafe.Pointer(&info[0])), 0, 0)
	if errno == syscall.ESRCH {
		return nil
	}
	if errno != 0 {
		return errno
	}
	const entry, exit = 1, 2
	if no := tr.denied[tid]; no != 0 && info[0] == exit {
		delete(tr.denied, tid)
		return setCallResult(tid, no)
	}
	if info[0] != entry {
		return nil
	}
	var args [6]uint64
	for i := range args {
		args[i] = binary.NativeEndian.Uint64(info[32+8*i:])
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	known := len(tr.events)
	if err := tr.noteCall(int(binary.NativeEndian.Uint64(info[24:])), args); err != nil || tr.fault == nil || len(tr.events) == known {
		return err
	}
	no := tr.fault(tr.events[len(tr.events)-1])
	if no == 0 {
		return nil
	}
	tr.denied[tid] = no
	return skipCall(tid)
}

func (tr *diskTracer) noteCall(number int, args [6]uint64) error {
	switch number {
	case syscall.SYS_WRITE, syscall.SYS_PWRITE64:
		return tr.noteWrite(number == syscall.SYS_WRITE, args)
	case syscall.SYS_FTRUNCATE:
		if id, _ := tr.file(args[0]); id != 0 {
			tr.add(diskEvent{op: diskTruncate, file: id, off: int64(args[1])})
		}
	case syscall.SYS_FSYNC, syscall.SYS_FDATASYNC:
		if id, path := tr.file(args[0]); id != 0 || path == tr.dir {
			tr.add(diskEvent{op: diskSync, file: id})
		}
	case syscall.SYS_MSYNC:
		return tr.noteMapSync(args[0], args[1])
	case syscall.SYS_LINKAT:
		return tr.noteName(diskLink, args[0], args[1], args[3])
	case syscall.SYS_RENAMEAT:
		return tr.noteName(diskRename, args[0], args[1], args[3])
	case syscall.SYS_UNLINKAT:
		return tr.noteName(diskRemove, args[0], args[1], 0)
	}
	return nil
}

// noteMapSync adds the sync of a part of a mapped file.
func (tr *diskTracer) noteMapSync(at, size uint64) error {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", tr.pid))
	for line := range strings.Lines(string(maps)) {
		var start, end, off uint64
		var mode, device, inode, path string
		if n, _ := fmt.Sscanf(line, "%x-%x %s %x %s %s %s", &start, &end, &mode, &off, &device, &inode, &path); n < 7 || at < start || at+size > end {
			continue
		}
		if id := tr.names[path]; id != 0 {
			tr.add(diskEvent{op: diskSync, file: id, off: int64(off + at - start), until: int64(off + at - start + size)})
		}
		return nil
	}
	return errors.Join(err, errors.New("what is synced is not in the child's map"))
}

// add appends an event. The caller must hold mu.
func (r *diskRecording) add(ev diskEvent) { r.events = append(r.events, ev) }

func (tr *diskTracer) noteWrite(plain bool, args [6]uint64) error {
	id, _ := tr.file(args[0])
	if id == 0 {
		return nil
	}
	data := make([]byte, args[2])
	if _, err := tr.mem.ReadAt(data, int64(args[1])); err != nil {
		return fmt.Errorf("reading the child's memory: %w", err)
	}
	off := int64(args[3])
	if plain { // the program writes such files from start to end
		off = tr.ends[id]
		tr.ends[id] += int64(len(data))
	}
	tr.add(diskEvent{op: diskWrite, file: id, off: off, data: data})
	return nil
}

// file returns the path and the number of the child's open file fd. The number is 0 if the file is
// a directory or outside of the recorded directory.
func (tr *diskTracer) file(fd uint64) (id int, path string) {
	link := fmt.Sprintf("/proc/%d/fd/%d", tr.pid, fd)
	path, err := os.Readlink(link)
	if err != nil || !strings.HasPrefix(path, tr.dir) {
		return 0, ""
	}
	info, err := os.Stat(link)
	if err != nil || info.IsDir() {
		return 0, path
	}
	inode := info.Sys().(*syscall.Stat_t).Ino
	if tr.files[inode] == 0 {
		tr.last++
		tr.files[inode], tr.names[path] = tr.last, tr.last
		tr.add(diskEvent{op: diskCreate, file: tr.last, name: path})
	}
	return tr.files[inode], path
}

func (tr *diskTracer) noteName(op diskOp, folder, from, to uint64) error {
	ev := diskEvent{op: op}
	var err error
	if ev.name, err = tr.path(folder, from); err == nil && to != 0 {
		ev.to, err = tr.path(folder, to)
	}
	id := tr.names[ev.name]
	if err != nil || id == 0 {
		return err
	}
	replaced := tr.names[ev.to]
	switch op {
	case diskLink:
		tr.names[ev.to] = id
	case diskRename:
		delete(tr.names, ev.name)
		tr.names[ev.to] = id
		tr.forget(replaced)
	case diskRemove:
		delete(tr.names, ev.name)
		tr.forget(id)
	}
	tr.add(ev)
	return nil
}

// forget removes the inode of a file without a name, because the inode can be reused.
func (tr *diskTracer) forget(id int) {
	for _, other := range tr.names {
		if other == id {
			return
		}
	}
	for inode, other := range tr.files {
		if other == id {
			delete(tr.files, inode)
		}
	}
}

// path reads a path from the child's memory. It is relative to a directory's descriptor.
func (tr *diskTracer) path(folder, at uint64) (string, error) {
	buf := make([]byte, 4096)
	n, err := tr.mem.ReadAt(buf, int64(at))
	if n == 0 {
		return "", fmt.Errorf("reading the child's memory: %w", err)
	}
	name, _, _ := strings.Cut(string(buf[:n]), "\x00")
	if filepath.IsAbs(name) || int32(folder) < 0 {
		return name, nil
	}
	parent, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tr.pid, folder))
	return filepath.Join(parent, name), err
}
