package torture

// This file runs a program as the workload (--script): a shell script, or `go test` of a suite that
// uses an existing cluster. The program reaches the server through its own door, which sets the
// user agent of torture, so that its writes count as a user's. Its environment contains:
//
//	KUBECONFIG       for kubectl, client-go and controller-runtime
//	APILET_SERVER    the address, for curl
//	APILET_QUIET     a URL that responds when the controller is quiet: curl -s "$APILET_QUIET"
//
// A script that exits with an error has failed, and the workload counts as stuck.

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"apilet/internal/kubeconfig"
)

// The time limit of the script in a plain run. In other runs it is scriptFactor times the longest
// plain run, plus Config.Patience.
const (
	plainScript  = 15 * time.Minute
	scriptFactor = 3
)

// playScript runs the script to its end.
func (r *run) playScript(ctx context.Context) error {
	d, err := openDoor(r.server, 0, r.record.counts, &tricks{})
	if err != nil {
		return err
	}
	defer d.close()
	d.users(func(ctx context.Context) {
		r.record.touch()
		r.quietPoint(ctx)
	})
	path := filepath.Join(r.dir, "kubeconfig-script")
	if err := kubeconfig.Write(path, map[string]any{"server": d.url}, map[string]any{}); err != nil {
		return err
	}
	said := &tail{}
	cmd := exec.Command("sh", "-c", r.cfg.Script)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+path, "APILET_SERVER="+d.url, "APILET_QUIET="+d.url+quietPath)
	cmd.Stdout, cmd.Stderr = said, said
	cmd.WaitDelay = time.Second // for child processes that keep the pipes open
	ownGroup(cmd)
	if err := cmd.Start(); err != nil {
		return err
	}
	most := r.cfg.scriptMost
	if most == 0 {
		most = plainScript
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	defer context.AfterFunc(ctx, func() { killGroup(cmd) })()
	err = cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("the script is not done after %v", most)
	case err != nil:
		return fmt.Errorf("the script: %w: %s", err, lastLines(said.String(), 5))
	}
	r.record.touch()
	return nil
}
