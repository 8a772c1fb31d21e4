package linear

// This file runs servers: processes on the same data, one after the other, of which each ends with a signal in the midst of its work.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const patience = 90 * time.Second // for what takes no time on an idle machine

// A life is one process.
type life struct {
	url  string
	proc *exec.Cmd
	dead chan struct{} // closed when the process has ended
	end  time.Time     // when that was; to be read after dead is closed
}

// A server is what has the same data, and the process that has it at the moment.
type server struct {
	t      *testing.T
	launch func() (*exec.Cmd, func() string) // a process that has not begun, and its URL once it serves, "" until then
	log    bytes.Buffer                      // of all processes; each is waited for before the next
	now    atomic.Pointer[life]
}

func startServer(t *testing.T, more ...string) *server {
	t.Helper()
	binary, dir := os.Getenv("APILET"), t.TempDir()
	if binary == "" {
		binary = filepath.Join(dir, "apilet")
		build := exec.Command("go", "build", "-o", binary, ".")
		build.Dir = filepath.Join("..", "..")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s", err, out)
		}
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	return startWith(t, func() (*exec.Cmd, func() string) {
		_ = os.Remove(kubeconfig)
		return exec.Command(binary, append([]string{"--data", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0", "--kubeconfig", kubeconfig,
			"--compaction-interval", "20s"}, more...)...), func() string { return serverOf(kubeconfig) }
	})
}

func startWith(t *testing.T, launch func() (*exec.Cmd, func() string)) *server {
	t.Helper()
	s := &server{t: t, launch: launch}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.kill(syscall.SIGKILL)
		if bytes.Contains(s.log.Bytes(), []byte("panic")) {
			t.Errorf("the server panicked:\n%s", s.log.Bytes())
		}
	})
	return s
}

// start begins the next life and waits until it serves.
func (s *server) start() error {
	proc, serves := s.launch()
	proc.Stderr = &s.log
	if err := proc.Start(); err != nil {
		return err
	}
	next := &life{proc: proc, dead: make(chan struct{})}
	go func() {
		_ = proc.Wait()
		next.end = time.Now()
		close(next.dead)
	}()
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		if next.url = serves(); next.url != "" {
			s.now.Store(next)
			return nil
		}
		if time.Since(begin) > patience {
			_ = proc.Process.Kill()
			<-next.dead
			return fmt.Errorf("no server after %v:\n%s", patience, s.log.Bytes())
		}
	}
}

func serverOf(kubeconfig string) string {
	text, _ := os.ReadFile(kubeconfig)
	var config struct {
		Clusters []struct{ Cluster struct{ Server string } }
	}
	if json.Unmarshal(text, &config) != nil || len(config.Clusters) == 0 {
		return ""
	}
	return config.Clusters[0].Cluster.Server
}

// kill ends the present life.
func (s *server) kill(how syscall.Signal) {
	present := s.now.Load()
	_ = present.proc.Process.Signal(how)
	<-present.dead
}
