package linear

// This file runs servers: processes on one data file, one after the other, of which each ends with a signal in the midst of its work.

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

// A server is a data file, and the process that has it at the moment.
type server struct {
	t      *testing.T
	binary string
	dir    string
	more   []string     // flags
	log    bytes.Buffer // of all processes; each is waited for before the next
	now    atomic.Pointer[life]
}

func startServer(t *testing.T, more ...string) *server {
	t.Helper()
	s := &server{t: t, more: more, binary: os.Getenv("APILET"), dir: t.TempDir()}
	if s.binary == "" {
		s.binary = filepath.Join(s.dir, "apilet")
		build := exec.Command("go", "build", "-o", s.binary, ".")
		build.Dir = filepath.Join("..", "..")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s", err, out)
		}
	}
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
	kubeconfig := filepath.Join(s.dir, "kubeconfig")
	_ = os.Remove(kubeconfig)
	proc := exec.Command(s.binary, append([]string{"--data", filepath.Join(s.dir, "data"), "--listen", "127.0.0.1:0", "--kubeconfig", kubeconfig,
		"--compaction-interval", "20s"}, s.more...)...)
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
		if next.url = serverOf(kubeconfig); next.url != "" {
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
