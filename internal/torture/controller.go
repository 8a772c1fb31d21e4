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
	exitsMax  = 5 // times that a controller is started again which has ended by itself
	exitPause = 100 * time.Millisecond
)

// A controller is the program under test, as a process that is killed and started again.
type controller struct {
	args []string
	env  []string
	out  *tail // what it says

	mu      sync.Mutex // guards what follows
	cmd     *exec.Cmd
	ended   chan struct{} // closed when cmd is over
	stopped bool          // it is not to run any more
	killed  bool          // the process is ended by us
	exits   []string      // how it has ended by itself
}

// newController fills in what a command line wants to know: {kubeconfig}, {server}, and {port}, each time another that is free.
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

// freePort is one that nobody listened on a moment ago.
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
	cmd.WaitDelay = time.Second // of children that hold the pipes
	ownGroup(cmd)
	if err := cmd.Start(); err != nil {
		return err
	}
	c.cmd, c.ended, c.killed = cmd, make(chan struct{}), false
	go c.wait(cmd, c.ended) // until the process ends
	return nil
}

// runsLocked reports whether a process runs. A plan may start the controller while the restart after an exit of its own is pending.
func (c *controller) runsLocked() bool {
	select {
	case <-c.ended:
		return false
	default:
		return c.cmd != nil
	}
}

// wait notes how a process has ended that was not killed, and starts another, as a kubelet does.
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

// givenUp tells whether it is not started any more, since it has ended by itself too often.
func (c *controller) givenUp() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.exits) > exitsMax
}

// kill ends the process at once, and returns when it is over.
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

// stop ends it for good.
func (c *controller) stop() {
	c.mu.Lock()
	c.stopped = true
	c.mu.Unlock()
	c.kill()
}

// pause stops the process where it stands, until wake.
func (c *controller) pause() { c.signal(pauseGroup) }
func (c *controller) wake()  { c.signal(wakeGroup) }

func (c *controller) signal(send func(*exec.Cmd)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd != nil {
		send(c.cmd)
	}
}

// panicked finds the line with which a Go program tells that it ends by its own fault.
var panicked = regexp.MustCompile(`(?m)^(panic: |fatal error: ).*$`)

// misbehaviour is what the process did that no controller should, "" for nothing.
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
