package apilettest

// This file starts and stops the processes of a server.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// A Server runs a program and can restart it. [Start] and [Prepare] return a Server for apilet.
// [New] returns a Server for any other program. The exported fields may be changed while no process
// runs.
type Server struct {
	Path string
	Args []string
	Dir  string               // working directory; empty means the test's
	Env  []string             // nil means the test's environment
	Attr *syscall.SysProcAttr // nil means the defaults

	// KubeconfigFile is the file that the server writes when it accepts requests. It is empty if
	// the server writes none.
	KubeconfigFile string

	// Ready returns the server's URL if the server accepts requests. Otherwise it returns an error
	// with the reason. If Ready is nil, a process is ready when KubeconfigFile exists. If
	// KubeconfigFile is empty as well, a process is ready immediately.
	Ready func() (url string, err error)

	t         testing.TB
	users     []user
	manifests []manifest // of the CustomResourceDefinitions that each process gets
	log       logBuffer
	current   atomic.Pointer[Process]
}

// A Process is a running or exited process of a Server.
type Process struct {
	PID  int
	Done chan struct{} // closed when the process has exited
	End  time.Time     // when the process exited; valid after Done is closed

	cmd *exec.Cmd
	url atomic.Value // a string; empty until the process is ready
}

// logBuffer collects the output of all processes of a server.
type logBuffer struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// New returns a server of any program. It has not been started. The end of the test kills its
// process.
func New(t testing.TB, path string, args ...string) *Server {
	s := &Server{Path: path, Args: args, t: t}
	t.Cleanup(s.close)
	return s
}

// faults matches the log of a program that panicked or has a data race. kube-apiserver recovers
// from panics and logs them.
var faults = regexp.MustCompile(`panic: |panic serving|panicked|[Oo]bserved a panic|fatal error: |goroutine \d+ \[running\]|DATA RACE`)

// close kills the process and checks the log.
func (s *Server) close() {
	s.Kill()
	log := s.Log()
	if at := faults.FindStringIndex(log); at != nil {
		s.t.Errorf("%s panicked or has a race:\n%s", s.Path, log[max(0, at[0]-1000):min(len(log), at[1]+5000)])
	} else if s.t.Failed() && log != "" {
		s.t.Logf("the log of %s:\n%s", s.Path, tail(log))
	}
}

// tail returns the last 64 KiB of a log.
func tail(log string) string { return log[max(0, len(log)-64<<10):] }

// ---- Start ----

// Run starts a process with additional flags and waits until it is ready. Only then does
// [Server.Process] return it. Run kills a process that does not become ready. The previous process
// must have exited.
func (s *Server) Run(flags ...string) error {
	p, err := s.begin(flags)
	if err != nil {
		return err
	}
	if err := s.await(p); err != nil {
		_ = p.cmd.Process.Kill()
		<-p.Done
		return err
	}
	s.current.Store(p)
	return nil
}

// Restart stops the current process, if one runs, and starts the next one. It returns when the
// process is ready.
func (s *Server) Restart(flags ...string) {
	s.t.Helper()
	s.Stop()
	if err := s.Run(flags...); err != nil {
		s.t.Fatal(err)
	}
}

// Launch starts a process without waiting until it is ready. The previous process must have exited.
func (s *Server) Launch() {
	s.t.Helper()
	p, err := s.begin(nil)
	if err != nil {
		s.t.Fatal(err)
	}
	s.current.Store(p)
}

// WaitReady waits until the current process is ready.
func (s *Server) WaitReady() {
	s.t.Helper()
	if err := s.await(s.Process()); err != nil {
		s.t.Fatal(err)
	}
}

// begin starts a process. The kernel delivers the parent death signal when the thread that created
// the process exits, so that thread belongs to the process until it has exited.
func (s *Server) begin(flags []string) (*Process, error) {
	if s.KubeconfigFile != "" {
		if err := os.Remove(s.KubeconfigFile); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	cmd := exec.Command(s.Path, slices.Concat(s.Args, flags)...)
	cmd.Stdout, cmd.Stderr = &s.log, &s.log
	cmd.Dir, cmd.Env, cmd.SysProcAttr = s.Dir, s.Env, endWithParent(s.Attr)
	p := &Process{Done: make(chan struct{}), cmd: cmd}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			p.End = time.Now()
			close(p.Done)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	p.PID = cmd.Process.Pid
	return p, nil
}

// await waits until the process is ready. It fails if the process exits or the test's deadline is
// near.
func (s *Server) await(p *Process) error {
	ctx, cancel := patience(s.t)
	defer cancel()
	err := poll(ctx, p.Done, func() error {
		url, err := s.ready()
		if err == nil {
			p.url.Store(url)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%s is not ready: %w; its log:\n%s", s.Path, err, tail(s.Log()))
	}
	if len(s.manifests) > 0 {
		return s.install(ctx, p)
	}
	return nil
}

// ready returns the URL of a server that accepts requests. apilet writes the kubeconfig when it
// does.
func (s *Server) ready() (url string, err error) {
	switch {
	case s.Ready != nil:
		return s.Ready()
	case s.KubeconfigFile != "":
		config, err := readKubeconfig(s.KubeconfigFile)
		return config.server, err
	}
	return "", nil
}

// ---- Stop ----

// Kill ends the current process by SIGKILL and returns when it has exited.
func (s *Server) Kill() { s.Terminate(os.Kill) }

// Stop ends the current process by SIGTERM and returns when it has exited.
func (s *Server) Stop() { s.Terminate(syscall.SIGTERM) }

// Terminate sends a signal that ends the current process and returns when it has exited.
func (s *Server) Terminate(how os.Signal) {
	p := s.Process()
	if p == nil {
		return
	}
	if err := p.Signal(how); err != nil { // the process has exited, or the system does not support the signal
		_ = p.cmd.Process.Kill()
	}
	<-p.Done
}

// Signal sends a signal to the process.
func (p *Process) Signal(how os.Signal) error { return p.cmd.Process.Signal(how) }

// ---- State ----

// Process returns the current process, or the last one. It returns nil if no process was started.
func (s *Server) Process() *Process { return s.current.Load() }

// URL returns the URL of the current process, or an empty string if it is not ready.
func (s *Server) URL() string {
	p := s.Process()
	if p == nil {
		return ""
	}
	if url := p.URL(); url != "" {
		return url
	}
	url, err := s.ready()
	if err != nil {
		return ""
	}
	p.url.Store(url)
	return url
}

// Log returns the output of all processes of the server so far.
func (s *Server) Log() string { return s.log.String() }

// URL returns the URL of the process, or an empty string if it is not known yet.
func (p *Process) URL() string {
	url, _ := p.url.Load().(string)
	return url
}

// Running reports whether the process has not exited.
func (p *Process) Running() bool {
	select {
	case <-p.Done:
		return false
	default:
		return true
	}
}

// State returns the state in which the process exited. The caller must have seen that Done is
// closed.
func (p *Process) State() *os.ProcessState { return p.cmd.ProcessState }

// ---- Waiting ----

// grace is subtracted from the test's deadline, which leaves time to print the logs.
const grace = 10 * time.Second

// patience returns a context that is canceled when the test ends, or shortly before the test's
// deadline.
func patience(t testing.TB) (context.Context, context.CancelFunc) {
	if timed, ok := t.(interface{ Deadline() (time.Time, bool) }); ok {
		if deadline, ok := timed.Deadline(); ok {
			return context.WithDeadline(t.Context(), deadline.Add(-grace))
		}
	}
	return t.Context(), func() {}
}

// Until waits until check returns nil. It fails shortly before the test's deadline.
func Until(t testing.TB, condition string, check func() error) {
	t.Helper()
	ctx, cancel := patience(t)
	defer cancel()
	if err := poll(ctx, nil, check); err != nil {
		t.Fatalf("%s: %v", condition, err)
	}
}

var errExited = errors.New("the process has exited")

// poll calls check until it returns nil, the context ends or done is closed.
func poll(ctx context.Context, done <-chan struct{}, check func() error) error {
	for pause := time.Millisecond; ; pause = min(pause*5/4, 50*time.Millisecond) {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the test is over: %w", err)
		case <-done:
			return errExited
		case <-time.After(pause):
		}
	}
}
