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
		Groups: []commandline.FlagGroup{{Title: "Workload", Define: c.defineWorkload}, {Title: "Extent", Define: c.defineAmount},
			{Title: "Reports", Define: c.defineReport}},
		Run: c.run}}
}

func repeated(to *[]string) func(string) error {
	return func(text string) error { *to = append(*to, text); return nil }
}

func (c *command) defineWorkload(f *flag.FlagSet) {
	f.StringVar(&c.Objects, "objects", "", "`file` with the workload: objects to apply in order, and steps between them (quiet, wait, patch, delete)")
	f.StringVar(&c.Script, "script", "", "shell `command` to run as a user after --objects, with $KUBECONFIG, $APILET_SERVER, and $APILET_QUIET, a URL that responds when the controller is done")
	f.StringVar(&c.Setup, "setup", "", "a `file` like --objects, applied before the controller starts: CRDs, namespaces, roles")
	f.StringVar(&c.Base, "base", "", "a data `file` that each run copies at its start; `apilet fork` creates one")
	f.StringVar(&c.Program, "apilet", "", "the `program` for the servers (default: this one)")
	f.Func("server-flag", "a `flag` for the servers (--server-flag=--validate=false); may be repeated", repeated(&c.ServerFlags))
	f.IntVar(&c.Replicas, "replicas", 1, "number of controller processes; with 2 and leader election, leaders are also paused and resumed")
	f.Func("ignore", "resource (`PLURAL.GROUP`) to ignore, such as one whose status is a heartbeat; may be repeated. Events and Leases are always ignored", repeated(&c.Ignored))
	f.Func("never", "`CEL` expression about oldObject and object, which may be null, that no write of the controller may make true; may be repeated", repeated(&c.Never))
}

func (c *command) defineAmount(f *flag.FlagSet) {
	f.IntVar(&c.Plain, "plain", 2, "baseline `runs` without faults")
	f.IntVar(&c.Most, "plans", 200, "maximum number of `plans`; the most effective ones run first")
	f.Func("without", "`kind` of plans to omit: "+strings.Join(kinds, ", ")+"; may be repeated", func(text string) error {
		if !slices.Contains(kinds, text) {
			return errors.New("no such kind")
		}
		c.Without = append(c.Without, text)
		return nil
	})
	f.DurationVar(&c.Budget, "budget", 0, "start no plan after this `time`; 0 means no limit")
	f.BoolVar(&c.FailFast, "fail-fast", false, "start no plan after the first failure")
	f.IntVar(&c.Shrink, "shrink", 0, "number of `tries` to reduce a failure of each cause, with fewer objects or at an earlier point")
	f.Uint64Var(&c.seed, "seed", 1, "random seed for the order of plans of equal rank")
	f.IntVar(&c.Parallel, "parallel", runtime.NumCPU(), "number of parallel runs; {port} in the controller's arguments is replaced by a free port")
	f.DurationVar(&c.Quiet, "quiet", 300*time.Millisecond, "`time` without writes after which the controller is done")
	f.DurationVar(&c.Stale, "stale", 400*time.Millisecond, "time for which a restarted controller receives stale reads, unless it writes earlier")
	f.DurationVar(&c.Patience, "patience", 10*time.Second, "time to wait until the controller is done and the state is correct")
}

func (c *command) defineReport(f *flag.FlagSet) {
	f.StringVar(&c.out, "out", "", "`folder` for the reports and replay files of failed plans")
	f.StringVar(&c.json, "json", "", "write the report as JSON to this `file`")
	f.StringVar(&c.junit, "junit", "", "write the report as JUnit XML to this `file`")
	f.StringVar(&c.replay, "replay", "", "replay the plan in this `file` of --out, with the same flags, and report the result")
	f.BoolVar(&c.wait, "wait", false, "with --replay: stop at the fault until Enter is pressed")
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
		return nil, errors.New("--objects or --script is required")
	}
	if c.wait && c.replay == "" {
		return nil, errors.New("--wait requires --replay")
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
		return nil, fmt.Errorf("--replay: %s contains no plan", c.replay)
	}
	if c.wait {
		c.Wait = func(at string) { waitForEnter(call.Errors, at) }
	}
	c.Omit = again.Without
	return &again.Plan, nil
}

func waitForEnter(out io.Writer, at string) {
	fmt.Fprintf(out, "stopped at the fault: %s. Press Enter to continue\n", at)
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
