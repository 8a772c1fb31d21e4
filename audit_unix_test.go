//go:build unix

package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
)

// logrotate without copytruncate: rename, then SIGHUP, while clients ask on.
func TestSighupReopensTheAuditLog(t *testing.T) {
	caught := make(chan os.Signal, 1) // so that a signal before the server listens for it does not end the tests
	signal.Notify(caught, syscall.SIGHUP)
	defer signal.Stop(caught)
	path := filepath.Join(t.TempDir(), "audit.log")
	s := startTest(t, func(c *config) { c.AuditPath = path })

	var asked atomic.Int64
	var done atomic.Bool
	var clients sync.WaitGroup
	for range 3 {
		clients.Go(func() {
			for !done.Load() {
				if _, err := s.try("GET", "/version", "", fmt.Sprintf("Audit-Id: ask-%d", asked.Add(1))); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	var logs []byte
	for i := range 3 {
		moved := fmt.Sprintf("%s.%d", path, i)
		if err := os.Rename(path, moved); err != nil {
			t.Fatal(err)
		}
		apitest.WaitFor(t, "a new audit log", func() bool {
			_ = syscall.Kill(os.Getpid(), syscall.SIGHUP)
			info, err := os.Stat(path)
			return err == nil && info.Size() > 0
		})
		data, err := os.ReadFile(moved)
		if err != nil {
			t.Fatal(err)
		}
		logs = append(logs, data...)
	}
	done.Store(true)
	clients.Wait()
	s.halt()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	ids := apitest.AuditIDs(t, append(logs, data...))
	for i := range asked.Load() {
		if id := fmt.Sprintf("ask-%d", i+1); !ids[id] {
			t.Errorf("%s is in none of the logs", id)
		}
	}
}

// TestHangupChild is the server of the test below, in a process of its own.
func TestHangupChild(t *testing.T) {
	file := os.Getenv("APILET_HANGUP_FILE")
	if file == "" {
		t.Skip("runs in a process of its own")
	}
	if code := program().Run([]string{"--ephemeral", "--listen", "127.0.0.1:0", "--kubeconfig", file}, io.Discard, os.Stderr); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// A terminal that is closed, or a logrotate where no audit log is.
func TestSighupNeverEndsTheServer(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "config")
	cmd := exec.Command(os.Args[0], "-test.run=^TestHangupChild$")
	cmd.Env = append(os.Environ(), "APILET_HANGUP_FILE="+file)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	apitest.WaitFor(t, "the kubeconfig", func() bool { return isThere(file) })
	for range 3 {
		if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	s := &testServer{t: t, server: &server{url: gjson.GetBytes(apitest.ReadFile(t, file), "clusters.0.cluster.server").String()}, client: http.DefaultClient}
	for range 5 {
		s.want(200, "GET", "/version", "")
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
}
