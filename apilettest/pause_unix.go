//go:build unix

package apilettest

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
)

// Pause stops the process by SIGSTOP and returns when all of its threads stand still.
func (s *Server) Pause() {
	s.t.Helper()
	p := s.Process()
	_ = p.Signal(syscall.SIGSTOP)
	if runtime.GOOS != "linux" {
		return
	}
	Until(s.t, "the process stands still", func() error { // threads on other processors stop a moment later
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID))
		if _, state, _ := strings.Cut(string(stat), ") "); err == nil && !strings.HasPrefix(state, "T") {
			return fmt.Errorf("it is in state %.1s", state)
		}
		return nil
	})
}

// Resume continues a paused process.
func (s *Server) Resume() { _ = s.Process().Signal(syscall.SIGCONT) }
