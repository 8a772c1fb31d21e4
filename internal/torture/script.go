package torture

// This file is a workload that is a program (--script): a shell script, or `go test` of a suite that takes a cluster that is there. It reaches the server by
// a door of its own, which calls it torture, so that what it does is known as a user's. It is told where by its environment:
//
//	KUBECONFIG       for kubectl, client-go and controller-runtime
//	APILET_SERVER    the address, for curl
//	APILET_QUIET     an address that is answered when the controller is quiet: curl -s "$APILET_QUIET"
//
// The exit code is its verdict: a script that fails did not get on.

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"apilet/internal/kubeconfig"
)

// A script in a plain run is waited for so long; in others, so many times as long as a plain run took, and with the controller's patience.
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
	cmd.WaitDelay = time.Second // of children that hold the pipes
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
