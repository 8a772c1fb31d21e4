//go:build unix

package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// logrotate without copytruncate: rename, then SIGHUP, while clients ask on.
func TestSighupReopensTheAuditLog(t *testing.T) {
	caught := make(chan os.Signal, 1) // so that a signal before the server listens for it does not end the tests
	signal.Notify(caught, syscall.SIGHUP)
	defer signal.Stop(caught)
	path := filepath.Join(t.TempDir(), "audit.log")
	s := startTest(t, func(c *config) { c.auditPath = path })

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
		waitFor(t, "a new audit log", func() bool {
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
	ids := auditIDs(t, append(logs, data...))
	for i := range asked.Load() {
		if id := fmt.Sprintf("ask-%d", i+1); !ids[id] {
			t.Errorf("%s is in none of the logs", id)
		}
	}
}
