package torture

import (
	"os/exec"
	"testing"
)

// TestAControllerRunsInOneProcess: a plan starts the controller again while the restart after the
// controller's own exit is still pending. The second start must not leave two processes behind, of
// which stop would end only the newer one.
func TestAControllerRunsInOneProcess(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip("no program named sleep")
	}
	c, err := newController([]string{program, "1000"}, "", "")
	if err != nil {
		t.Fatal(err)
	}
	var started []*exec.Cmd
	defer func() {
		c.stop()
		for _, cmd := range started {
			killGroup(cmd) // has ended unless the test fails
		}
	}()
	start := func() *exec.Cmd {
		if err := c.start(); err != nil {
			t.Fatal(err)
		}
		started = append(started, c.cmd)
		return c.cmd
	}
	first := start()
	if start() != first {
		t.Error("a second process was started beside the first one")
	}
	c.kill()
	if start() == first {
		t.Error("nothing was started after the process was killed")
	}
	if how := c.misbehaviour(); how != "" {
		t.Errorf("the process was killed by the plan, but is reported: %s", how)
	}
	c.stop()
	if last := c.cmd; start() != last {
		t.Error("a stopped controller was started again")
	}
}
