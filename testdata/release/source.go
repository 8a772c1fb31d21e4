package main

// This file clones the repository. The clone contains the files of the commit and all tags. An
// ordinary checkout may contain other changes, and the go command does not read the commit from a
// git worktree.

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// clone creates the clone, and sets commit and date.
func (r *release) clone(ctx context.Context) error {
	repo, err := filepath.Abs(r.repo)
	if err != nil {
		return err
	}
	r.commit, err = git(ctx, repo, "rev-parse", "--verify", "--end-of-options", r.ref+"^{commit}")
	if err != nil {
		return err
	}
	if changed, err := git(ctx, repo, "status", "--porcelain"); err == nil && changed != "" && r.ref == "HEAD" {
		fmt.Fprintln(r.log, "what is not committed is left out:\n"+changed)
	}
	if _, err := git(ctx, repo, "clone", "--quiet", "--shared", "--no-checkout", ".", r.source); err != nil {
		return err
	}
	if _, err := git(ctx, r.source, "-c", "advice.detachedHead=false", "-c", "core.autocrlf=false", "checkout", "--quiet", r.commit); err != nil {
		return err
	}
	seconds, err := git(ctx, r.source, "log", "-1", "--format=%cI")
	if err != nil {
		return err
	}
	r.date, err = time.Parse(time.RFC3339, seconds)
	r.date = r.date.UTC()
	return err
}

// git runs a git command in a directory and returns its output.
func git(ctx context.Context, folder string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "GIT_TERMINAL_PROMPT=0")
	return output(cmd)
}

// output returns a command's standard output without surrounding white space. Its standard error is
// part of the error.
func output(cmd *exec.Cmd) (string, error) {
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %.2000s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(errs.String()))
	}
	return strings.TrimSpace(string(out)), nil
}
