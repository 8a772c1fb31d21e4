package torture

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	exitsMax  = 5 // number of restarts after the controller has exited
	exitPause = 100 * time.Millisecond
)

// A controller is the program under test. Its process is killed and restarted.
type controller struct {
	args []string
	env  []string
	out  *tail // its output

	mu      sync.Mutex // guards the fields below
	cmd     *exec.Cmd
	ended   chan struct{} // closed when cmd has ended
	stopped bool          // the controller must not run any more
	killed  bool          // the process was killed by torture
	exits   []string      // the results of exits that were not caused by torture
}

// newController replaces {kubeconfig}, {server} and {port} in the command line. Each {port} becomes
// another free port.
func newController(command []string, kubeconfig, server string) (*controller, error) {
	c := &controller{out: &tail{}, env: append(os.Environ(), "KUBECONFIG="+kubeconfig)}
	for _, arg := range command {
		arg = strings.NewReplacer("{kubeconfig}", kubeconfig, "{server}", server).Replace(arg)
		for strings.Contains(arg, "{port}") {
			port, err := freePort()
			if err != nil {
				return nil, err
			}
			arg = strings.Replace(arg, "{port}", strconv.Itoa(port), 1)
		}
		c.args = append(c.args, arg)
	}
	return c, nil
}

// freePort returns a port that is currently free.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func (c *controller) start() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.startLocked()
}

func (c *controller) startLocked() error {
	if c.stopped || c.runsLocked() {
		return nil
	}
	cmd := exec.Command(c.args[0], c.args[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Env = c.out, c.out, c.env
	cmd.WaitDelay = time.Second // for child processes that keep the pipes open
	ownGroup(cmd)
	if err := cmd.Start(); err != nil {
		return err
	}
	c.cmd, c.ended, c.killed = cmd, make(chan struct{}), false
	go c.wait(cmd, c.ended) // until the process ends
	return nil
}

// runsLocked reports whether a process is running. This is needed because a plan may start the
// controller while an automatic restart is pending. The caller must hold mu.
func (c *controller) runsLocked() bool {
	select {
	case <-c.ended:
		return false
	default:
		return c.cmd != nil
	}
}

// wait waits for the process to exit. If it was not killed, the result is recorded and the process
// is restarted, like a kubelet would do.
func (c *controller) wait(cmd *exec.Cmd, ended chan struct{}) {
	err := cmd.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	close(ended)
	if c.killed || c.stopped {
		return
	}
	how := "with status 0"
	if err != nil {
		how = err.Error()
	}
	c.exits = append(c.exits, how)
	if len(c.exits) > exitsMax {
		return
	}
	time.AfterFunc(exitPause, func() {
		if err := c.start(); err != nil {
			c.noteExit(err.Error())
		}
	})
}

func (c *controller) noteExit(how string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.exits = append(c.exits, how)
}

// givenUp reports whether the controller has exited too many times to be restarted.
func (c *controller) givenUp() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.exits) > exitsMax
}

// kill kills the process and waits for it to exit.
func (c *controller) kill() {
	c.mu.Lock()
	cmd, ended := c.cmd, c.ended
	c.killed = true
	c.mu.Unlock()
	if cmd == nil {
		return
	}
	wakeGroup(cmd)
	killGroup(cmd)
	<-ended
}

// stop ends the controller for good.
func (c *controller) stop() {
	c.mu.Lock()
	c.stopped = true
	c.mu.Unlock()
	c.kill()
}

// pause suspends the process until wake is called.
func (c *controller) pause() { c.signal(pauseGroup) }
func (c *controller) wake()  { c.signal(wakeGroup) }

func (c *controller) signal(send func(*exec.Cmd)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd != nil {
		send(c.cmd)
	}
}

// panicked matches the first line of the output of a Go program that crashes.
var panicked = regexp.MustCompile(`(?m)^(panic: |fatal error: ).*$`)

// misbehaviour returns a description of what went wrong with the process, or "" if it behaved
// correctly.
func (c *controller) misbehaviour() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if line := panicked.FindString(c.out.String()); line != "" {
		return "it panicked: " + line
	}
	if len(c.exits) > 0 {
		return fmt.Sprintf("it ended by itself, %s", strings.Join(c.exits, ", then "))
	}
	return ""
}
