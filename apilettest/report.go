package apilettest

// This file prints the history of the objects when a test fails.

import (
	"context"
	"os/exec"
	"strings"
	"time"
)

const (
	reportedChanges = "40"
	reportPatience  = 10 * time.Second // limits the wait for a server that hangs, because its log is printed afterwards
)

// reportHistory prints the last changes and the findings if the test has failed.
func (s *Server) reportHistory() {
	p := s.Process()
	if !s.t.Failed() || p == nil || !p.Running() {
		return
	}
	for _, args := range [][]string{{"log", "--tail", reportedChanges}, {"log", "--findings"}} {
		ctx, cancel := context.WithTimeout(context.Background(), reportPatience)
		cmd := exec.CommandContext(ctx, s.Path, append(args, "--no-color", "--kubeconfig", s.KubeconfigFile)...)
		out, err := cmd.CombinedOutput()
		cancel()
		if err != nil {
			s.t.Logf("apilet %s: %v\n%s", strings.Join(args, " "), err, out)
			continue
		}
		s.t.Logf("apilet %s:\n%s", strings.Join(args, " "), out)
	}
}
