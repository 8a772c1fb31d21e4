//go:build unix

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"apilet/internal/apitest"
)

// This simulates logrotate without copytruncate. The file is renamed while clients send requests,
// and then the server receives SIGHUP.
func TestSighupReopensTheAuditLog(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	s := startTest(t, "--audit-log-path="+path)

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
			_ = s.process.Process.Signal(syscall.SIGHUP)
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

// A closed terminal sends SIGHUP. So does logrotate, even if there is no audit log.
func TestSighupNeverEndsTheServer(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	for range 3 {
		if err := s.process.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		s.want(200, "GET", "/version", "")
	}
	s.halt()
}
