package torture

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"apilet/internal/commandline"
)

// A command contains the values of the command-line flags.
type command struct {
	Config
	out, json, junit, replay string
	seed                     uint64
	wait                     bool
}

// A replay is the contents of a file used to replay a plan with the same flags.
type replay struct {
	Plan    Plan     `json:"plan"`
	Seed    uint64   `json:"seed"`
	Without []string `json:"without,omitempty"` // objects of the workload to leave out
}

// Commands returns the row for the table of commands.
func Commands() []commandline.Command {
	c := &command{}
	counts := make([]int, 64) // the number of words of the controller's command line
	for i := range counts {
		counts[i] = i + 1
	}
	return []commandline.Command{{Name: "torture", Args: "-- CONTROLLER [ARGS]", ArgCounts: counts,
		Description: "test a controller by injecting a fault (crash, refusal, stale read) at each of its writes",
		Groups: []commandline.FlagGroup{{Title: "What is played", Define: c.defineWorkload}, {Title: "How much", Define: c.defineAmount},
			{Title: "What is told", Define: c.defineReport}},
		Run: c.run}}
}

func repeated(to *[]string) func(string) error {
	return func(text string) error { *to = append(*to, text); return nil }
}

func (c *command) defineWorkload(f *flag.FlagSet) {
	f.StringVar(&c.Objects, "objects", "", "the `file` of the workload: objects that are applied in order, and steps between them (quiet, wait, patch, delete)")
	f.StringVar(&c.Script, "script", "", "a `command` for sh that is a user, behind --objects: it has KUBECONFIG, $APILET_SERVER, and $APILET_QUIET, which curl waits at")
	f.StringVar(&c.Setup, "setup", "", "a `file` like --objects, applied before the controller starts: CRDs, namespaces, roles")
	f.StringVar(&c.Base, "base", "", "a prepared data `file` that each run begins with: `apilet fork` makes one")
	f.StringVar(&c.Program, "apilet", "", "the `program` for the servers (default: this one)")
	f.Func("server-flag", "a `flag` for the servers (--server-flag=--validate=false); may be repeated", repeated(&c.ServerFlags))
	f.IntVar(&c.Replicas, "replicas", 1, "processes of the controller: with 2 and leader election a leader is paused and woken")
	f.Func("ignore", "a resource (`PLURAL.GROUP`) that does not count, such as one whose status is a heartbeat; may be repeated. Events and Leases never do", repeated(&c.Ignored))
	f.Func("never", "a `CEL` expression about oldObject and object, either null where there is none: no write of the controller may make it true; may be repeated", repeated(&c.Never))
}

func (c *command) defineAmount(f *flag.FlagSet) {
	f.IntVar(&c.Plain, "plain", 2, "baseline `runs` without faults")
	f.IntVar(&c.Most, "plans", 200, "maximum number of `plans`; those that find most run first")
	f.Func("without", "leave a `kind` of plans out: "+strings.Join(kinds, ", ")+"; may be repeated", func(text string) error {
		if !slices.Contains(kinds, text) {
			return errors.New("there is no such kind")
		}
		c.Without = append(c.Without, text)
		return nil
	})
	f.DurationVar(&c.Budget, "budget", 0, "begin no plan after this `time`; 0 is no limit")
	f.BoolVar(&c.FailFast, "fail-fast", false, "begin no plan after one that went wrong")
	f.IntVar(&c.Shrink, "shrink", 0, "make what went wrong smaller, in so many `tries` for each cause: with fewer objects of the workload, at an earlier point")
	f.Uint64Var(&c.seed, "seed", 1, "random seed for the order of plans of equal rank")
	f.IntVar(&c.Parallel, "parallel", runtime.NumCPU(), "parallel runs: write {port} in the controller's arguments where it needs a port of its own")
	f.DurationVar(&c.Quiet, "quiet", 300*time.Millisecond, "the controller is done when for this `time` nothing was written")
	f.DurationVar(&c.Stale, "stale", 400*time.Millisecond, "how long a restarted controller gets stale reads, unless it writes sooner")
	f.DurationVar(&c.Patience, "patience", 10*time.Second, "how long to wait for a controller that is not done, or has not come to the right state")
}

func (c *command) defineReport(f *flag.FlagSet) {
	f.StringVar(&c.out, "out", "", "`folder` for reports and replay files of failed plans")
	f.StringVar(&c.json, "json", "", "write the report as JSON to this `file`")
	f.StringVar(&c.junit, "junit", "", "write the report as JUnit's XML to this `file`")
	f.StringVar(&c.replay, "replay", "", "replay the plan in this `file` of --out, with the same flags, and report the result")
	f.BoolVar(&c.wait, "wait", false, "with --replay: hold the server at the point until Enter is pressed")
}

func (c *command) run(call commandline.Call) error {
	only, err := c.complete(call)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process
	report, err := Run(ctx, c.Config, only, call.Errors, func(v Verdict, done, of int) {
		fmt.Fprintf(call.Out, "%s\n", v.row())
		if only != nil && v.story != nil {
			fmt.Fprintf(call.Out, "\n%s\n", v.story.markdown())
		}
	})
	if report == nil || err != nil && len(report.Verdicts) == 0 {
		return err
	}
	fmt.Fprintln(call.Out, report.summary())
	if err := errors.Join(err, c.save(report, call.Out)); err != nil {
		return err
	}
	if n := report.Wrong(); n > 0 {
		return fmt.Errorf("%d of %d plans went wrong", n, len(report.Verdicts))
	}
	return nil
}

// complete converts the flags and arguments to a configuration, and reads the plan to replay.
func (c *command) complete(call commandline.Call) (only *Plan, err error) {
	if c.Objects == "" && c.Script == "" {
		return nil, errors.New("--objects names the workload, --script is one; both are missing")
	}
	if c.wait && c.replay == "" {
		return nil, errors.New("--wait goes with --replay")
	}
	if c.Program == "" {
		if c.Program, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	c.Command, c.Seed = call.Args, c.seed
	if c.replay == "" {
		return nil, nil
	}
	text, err := os.ReadFile(c.replay)
	if err != nil {
		return nil, fmt.Errorf("--replay: %w", err)
	}
	var again replay
	if err := json.Unmarshal(text, &again); err != nil || !slices.Contains(kinds, again.Plan.Kind) {
		return nil, fmt.Errorf("--replay: %s has no plan", c.replay)
	}
	if c.wait {
		c.Wait = func(at string) { waitForEnter(call.Errors, at) }
	}
	c.Omit = again.Without
	return &again.Plan, nil
}

func waitForEnter(out io.Writer, at string) {
	fmt.Fprintf(out, "at the point: %s. The server waits for Enter\n", at)
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // any input continues
}

// save writes the requested files.
func (c *command) save(r *Report, out io.Writer) error {
	var errs []error
	write := func(path string, fill func(io.Writer) error) {
		file, err := os.Create(path)
		if err == nil {
			err = errors.Join(fill(file), file.Close())
		}
		errs = append(errs, err)
	}
	if c.json != "" {
		write(c.json, r.writeJSON)
	}
	if c.junit != "" {
		write(c.junit, r.writeJUnit)
	}
	if c.out == "" || !slices.ContainsFunc(r.Verdicts, func(v Verdict) bool { return v.story != nil }) {
		return errors.Join(errs...)
	}
	errs = append(errs, os.MkdirAll(c.out, 0o755))
	for i := range r.Verdicts {
		v := &r.Verdicts[i]
		if v.story == nil {
			continue
		}
		name := filepath.Join(c.out, fmt.Sprintf("%03d-%s", i+1, v.Plan.Kind))
		again := replay{Plan: v.Plan, Seed: r.Seed}
		if v.Shrunk != nil {
			again.Plan, again.Without = v.Shrunk.Plan, v.Shrunk.Without
		}
		write(name+".md", func(w io.Writer) error { _, err := io.WriteString(w, v.story.markdown()); return err })
		write(name+".html", func(w io.Writer) error { _, err := io.WriteString(w, v.story.html()); return err })
		write(name+".json", func(w io.Writer) error { return json.NewEncoder(w).Encode(again) })
		fmt.Fprintf(out, "%s.md and .html tell of it, --replay %s.json plays it again\n", name, name)
	}
	return errors.Join(errs...)
}
