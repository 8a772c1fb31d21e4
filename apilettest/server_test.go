package apilettest

// The servers of these tests are this test binary itself, with the environment variable fakeServer
// set.

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	fakeServer = "APILETTEST_FAKE_SERVER" // the file into which the server writes its kubeconfig, or "exit"
	fakeGo     = "APILETTEST_FAKE_GO"     // the go command, which appends a line to this file
	child      = "APILETTEST_CHILD"       // the test runs as the child of another test
)

func TestMain(m *testing.M) {
	if log := os.Getenv(fakeGo); log != "" && filepath.Base(os.Args[0]) == "go" {
		os.Exit(pretendToBuild(log))
	}
	switch file := os.Getenv(fakeServer); file {
	case "":
		os.Exit(m.Run())
	case "exit":
		fmt.Fprintln(os.Stderr, "cannot start")
		os.Exit(3)
	default:
		if err := serve(file); err != nil {
			panic(err)
		}
	}
}

// serve greets each connection with the process ID and keeps it open.
func serve(kubeconfig string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	text := fmt.Sprintf(`{"clusters":[{"cluster":{"server":%q}}]}`, l.Addr())
	if err := os.WriteFile(kubeconfig+".new", []byte(text), 0o600); err != nil {
		return err
	}
	if err := os.Rename(kubeconfig+".new", kubeconfig); err != nil {
		return err
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		fmt.Fprintln(conn, os.Getpid())
	}
}

// fake returns a fake server that has not been started.
func fake(t testing.TB) *Server {
	s := New(t, os.Args[0])
	s.KubeconfigFile = filepath.Join(t.TempDir(), "kubeconfig")
	s.Env = append(os.Environ(), fakeServer+"="+s.KubeconfigFile)
	return s
}

// dial connects to a fake server and returns the connection and the server's process ID.
func dial(t *testing.T, url string) (conn *bufio.Reader, pid string) {
	t.Helper()
	c, err := net.Dial("tcp", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	conn = bufio.NewReader(c)
	pid, err = conn.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return conn, strings.TrimSpace(pid)
}

func TestRestart(t *testing.T) {
	t.Parallel()
	s := fake(t)
	if s.URL() != "" || s.Process() != nil {
		t.Error("a server that was not started has a URL or a process")
	}
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	first := s.Process()
	conn, pid := dial(t, s.URL())
	if pid != fmt.Sprint(first.PID) {
		t.Errorf("process %s answers, want %d", pid, first.PID)
	}
	s.Kill()
	if _, err := conn.ReadByte(); err == nil || first.Running() || first.End.IsZero() {
		t.Errorf("the process runs after Kill: %v", err)
	}
	if status := first.State().Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGKILL {
		t.Errorf("it ended with %v, want SIGKILL", first.State())
	}
	s.Restart()
	if _, pid := dial(t, s.URL()); pid != fmt.Sprint(s.Process().PID) || s.Process() == first {
		t.Errorf("process %s answers, want the second, %d", pid, s.Process().PID)
	}
	s.Stop()
	s.Launch()
	s.WaitReady()
	if !strings.Contains(string(s.Kubeconfig()), s.URL()) {
		t.Errorf("the kubeconfig is %s", s.Kubeconfig())
	}
}

func TestExitEndsTheWait(t *testing.T) {
	t.Parallel()
	s := fake(t)
	s.Env = append(os.Environ(), fakeServer+"=exit")
	err := s.Run()
	if err == nil || !strings.Contains(err.Error(), "exited") || !strings.Contains(err.Error(), "cannot start") {
		t.Errorf("got %v, want the exit and the log", err)
	}
}

// A deadlined test is near its deadline.
type deadlined struct {
	testing.TB
	at time.Time
}

func (d deadlined) Deadline() (time.Time, bool) { return d.at, true }

func TestTheTestsDeadlineEndsTheWait(t *testing.T) {
	t.Parallel()
	s := fake(deadlined{t, time.Now().Add(grace)})
	s.Ready = func() (string, error) { return "", io.ErrNoProgress }
	if err := s.Run(); err == nil || !strings.Contains(err.Error(), "the test is over") {
		t.Errorf("got %v, want that the test is over", err)
	}
}

// TestServersEndWithTheTestBinary kills a test binary that has started a server.
func TestServersEndWithTheTestBinary(t *testing.T) {
	if os.Getenv(child) != "" {
		s := fake(t)
		if err := s.Run(); err != nil {
			t.Fatal(err)
		}
		fmt.Println("server:", s.URL())
		<-s.Process().Done // the other test kills this process
		return
	}
	t.Parallel()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("only Linux has parent death signals")
	}
	parent := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestServersEndWithTheTestBinary$", "-test.v")
	parent.Env = append(os.Environ(), child+"=1")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	url := ""
	for lines := bufio.NewScanner(out); url == "" && lines.Scan(); {
		_, url, _ = strings.Cut(lines.Text(), "server: ")
	}
	conn, _ := dial(t, url)
	_ = parent.Process.Kill()
	_ = parent.Wait()
	if _, err := conn.ReadByte(); err == nil { // the connection ends with the server
		t.Error("the server sent something")
	}
}
