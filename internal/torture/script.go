package torture

// This file runs a program as the workload (--script): a shell script, or `go test` of a suite that
// uses an existing cluster. The program connects to the server through its own door. The door sets
// the user agent, so its writes can be identified as those of a user. Its environment contains:
//
//	KUBECONFIG       for kubectl, client-go and controller-runtime
//	APILET_SERVER    the address, for curl
//	APILET_QUIET     a URL that responds when the controller is quiet: curl -s "$APILET_QUIET"
//
// If the exit status of the script is not zero, the workload has failed.

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
		return fmt.Errorf("the script did not end within %v", most)
	case err != nil:
		return fmt.Errorf("the script: %w: %s", err, lastLines(said.String(), 5))
	}
	r.record.touch()
	return nil
}
