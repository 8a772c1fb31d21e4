// Package torture tests whether a controller survives the faults of a cluster. It runs the
// unmodified controller against ephemeral servers. In each run, it injects a single fault that
// could be caused by a correct API server at any time. Then it checks whether the controller still
// reaches the same state.
//
//	apilet torture --objects workload.yaml -- ./manager --kubeconfig {kubeconfig}
//
// A correct controller reaches the desired state from any state, even if it missed events or
// crashed at any moment. Ordinary tests do not show this, because their server is always fresh,
// fast and reliable. The method is that of Sieve (Sun et al., "Automatic Reliability Testing for
// Cluster Management Controllers", OSDI 2022), which found 46 bugs in ten popular operators. These
// bugs are caused by states that are left incomplete (intermediate), are seen too late (stale), or
// are not seen at all (unobserved) by the controller. Sieve modifies the controller's client
// library and starts a cluster for each run. Here the controller is not modified. Instead, the
// faults are injected by a proxy in front of the server, which is called the door:
//
//	controller ──▶ door (a proxy for it alone) ──▶ an ephemeral apilet, which keeps all revisions
//	                 ▲                                   ▲            │
//	              a plan's tricks                 the workload        └──▶ the history: each write and its author
//
// There are five steps:
//
//   - Learn (learn in this file): execute some plain runs without faults. Their common end state is
//     the reference (state.go).
//   - Plan (plan.go): derive the points that matter from the recorded history of a plain run. The
//     plans are ranked, and the same for the same seed.
//   - Run (run.go): execute each plan from a fresh copy of the same prepared file, with one fault
//     each (act.go, injected at the door in door.go).
//   - Judge (judge.go): check the state at quiet points (quiet.go) and at the end, whether the
//     controller became quiet, its process, and the forbidden writes.
//   - Tell (tell.go): print a table, and write a page for each wrong plan, files for a CI, and a
//     file to replay the plan.
//
// Invariants: the server does not contain any code for this package. It is an ordinary server,
// started as a child process. All responses and delays caused by the door could also be caused by a
// correct server. The point of a plan is reached at most once per run, and always at the same
// write. If the point is not reached, this is reported, but the plan is not considered to be wrong.
package torture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/cel-go/cel"

	"apilet/internal/request"
)

// Config configures a test.
type Config struct {
	Program     string          // path of the apilet program
	Command     []string        // command line of the controller; may contain {kubeconfig}, {server} and {port}
	Objects     string          // file of the workload; "" if there is only a script
	Script      string          // shell command to run after Objects, if not empty
	Setup       string          // file with steps to play before the controller is started, if not empty
	Base        string          // prepared data file for all servers, if not empty
	ServerFlags []string        // additional flags for the servers
	Replicas    int             // number of processes of the controller
	Plain       int             // number of plain runs
	Without     []string        // kinds of plans to omit
	Most        int             // maximum number of plans
	FailFast    bool            // start no plan after one went wrong
	Budget      time.Duration   // time after which no new plan is started, or zero
	Seed        uint64          // random seed for the order of plans
	Parallel    int             // number of parallel runs
	Quiet       time.Duration   // the controller is done after this time without activity
	Stale       time.Duration   // duration of stale reads for restarted controllers
	Patience    time.Duration   // timeout for the controller to finish its work
	Ignored     []string        // resources (PLURAL.GROUP) that are not compared
	Never       []string        // CEL expressions that must not be true for any write
	Shrink      int             // maximum number of tries to shrink a wrong plan, or zero
	Omit        []string        // objects of the workload to leave out
	Wait        func(at string) // if not nil, called at the point of a plan

	steps []step
	never []cel.Program
	base  string // data file that all runs start from

	plainPatience time.Duration // the time limit of plain runs
	scriptMost    time.Duration // time limit of the script; 0 during plain runs
}

// prepare reads the files and compiles the expressions. Any errors are reported before the first
// server is started.
func (c *Config) prepare() (err error) {
	if len(c.Command) == 0 {
		return errors.New("no controller: its command line must be the last argument, after --")
	}
	if c.Replicas < 1 || c.Plain < 2 || c.Parallel < 1 {
		return errors.New("--replicas and --parallel are at least 1, --plain is at least 2")
	}
	if c.Objects != "" {
		if c.steps, err = readWorkload(c.Objects); err != nil {
			return fmt.Errorf("--objects: %w", err)
		}
	}
	// in plain runs, a time-out ends the whole test
	c.steps, c.plainPatience = withoutObjects(c.steps, c.Omit), max(plainPatience, c.Patience)
	for _, expression := range c.Never {
		p, err := compile(expression)
		if err != nil {
			return fmt.Errorf("--never: %w", err)
		}
		c.never = append(c.never, p)
	}
	return nil
}

// A Report contains the results of a test.
type Report struct {
	Command  []string  `json:"command"`
	Seed     uint64    `json:"seed"`
	Plain    float64   `json:"plainSeconds"` // duration of the longest plain run
	Writes   int       `json:"writes"`       // number of the controller's writes in a plain run
	Planned  int       `json:"planned"`
	Warnings []string  `json:"warnings,omitempty"` // about the workload
	Verdicts []Verdict `json:"verdicts"`
}

// Wrong returns the number of plans that went wrong.
func (r *Report) Wrong() (n int) {
	for _, v := range r.Verdicts {
		if v.Verdict == Wrong {
			n++
		}
	}
	return n
}

// Run tests a controller with all plans, or with only if it is not nil. It calls told with each
// verdict. If it is interrupted, the report contains the results up to then.
func Run(ctx context.Context, cfg Config, only *Plan, notes io.Writer, onVerdict func(Verdict, int, int)) (*Report, error) {
	if err := cfg.prepare(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "apilet-torture-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	began := time.Now()
	if err := cfg.makeBase(ctx, dir); err != nil {
		return nil, err
	}
	l, err := learn(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	cfg.scriptMost = scriptFactor*l.longest + cfg.Patience
	report := &Report{Command: cfg.Command, Seed: cfg.Seed, Plain: l.longest.Seconds(), Writes: l.writes(), Warnings: l.plain[0].warnings()}
	plans := []Plan(nil)
	if only != nil {
		plans = []Plan{*only}
	} else {
		plans = makePlans(l.plain[0], cfg.Replicas, cfg.Without, cfg.Seed)
	}
	report.Planned = len(plans)
	plans = plans[:min(len(plans), cfg.Most)]
	fmt.Fprintf(notes, "plain runs: %d, the longest %.1f s, %d writes of the controller; %d plans, of which %d are run, %d at a time\n",
		len(l.plain), report.Plain, report.Writes, report.Planned, len(plans), cfg.Parallel)
	for _, warning := range report.Warnings {
		fmt.Fprintf(notes, "warning: %s\n", warning)
	}
	if loose := slices.Sorted(maps.Keys(l.want.loose)); len(loose) > 0 {
		fmt.Fprintf(notes, "plain runs do not agree about %s: nothing is judged by it\n", strings.Join(loose[:min(5, len(loose))], ", "))
	}
	at := progress{out: notes, of: len(plans), began: time.Now(), lastReport: time.Now()}
	if cfg.Budget > 0 {
		at.end = began.Add(cfg.Budget)
	}
	report.Verdicts, err = runAll(ctx, &cfg, l, plans, began, func(v Verdict, done, of int) {
		onVerdict(v, done, of)
		at.note(v, time.Now())
	})
	if err == nil && cfg.Shrink > 0 {
		err = shrinkAll(ctx, &cfg, l, report, began, notes)
	}
	return report, err
}

// makeBase prepares the data file that all runs start from: c.Base, modified by the setup.
func (c *Config) makeBase(ctx context.Context, dir string) error {
	if c.base = c.Base; c.Setup == "" {
		return nil
	}
	steps, err := readWorkload(c.Setup)
	if err != nil {
		return fmt.Errorf("--setup: %w", err)
	}
	s, err := startServer(ctx, c.Program, c.Base, c.ServerFlags)
	if err != nil {
		return err
	}
	defer s.stop()
	for i := range steps {
		if err := steps[i].play(ctx, s, c.Patience, func() bool { return false }); err != nil {
			return fmt.Errorf("--setup: %w", err)
		}
	}
	a, err := s.send(ctx, "GET", request.PathBackup, "", nil)
	if err == nil {
		err = a.failure()
	}
	if err != nil {
		return fmt.Errorf("--setup: %w", err)
	}
	c.base = filepath.Join(dir, "prepared.db")
	return os.WriteFile(c.base, a.body, 0o600)
}

// A learned holds the results of the plain runs.
type learned struct {
	plain   []*outcome
	want    *reference
	longest time.Duration

	mu sync.Mutex // protects edits, and can be held for an entire run
	// references including the result of an edit, by the write that follows the edit
	edits map[string]*reference
}

// The minimum timeout for plain runs and the factor by which Config.Quiet is multiplied.
const (
	plainPatience = time.Minute
	plainQuiet    = 3
)

// learn executes the plain runs. It fails if the controller is wrong without any fault.
func learn(ctx context.Context, cfg *Config) (*learned, error) {
	l := &learned{plain: make([]*outcome, cfg.Plain), edits: map[string]*reference{}}
	errs := make([]error, cfg.Plain)
	plainly := *cfg
	plainly.Quiet *= plainQuiet // if a state were not final, all plans would be called wrong
	plainly.Wait, plainly.Patience = nil, cfg.plainPatience
	each(ctx, cfg.Plain, cfg.Parallel, func(i int) { l.plain[i], errs[i] = perform(ctx, &plainly, nil, nil) })
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	var states []state
	for _, o := range l.plain {
		if err := o.plainly(cfg); err != nil {
			return nil, fmt.Errorf("a run without faults: %w\n%s", err, lastLines(o.said, 20))
		}
		states, l.longest = append(states, o.state), max(l.longest, o.took)
	}
	l.want = newReference(states)
	l.want.quiet = quietReferences(l.plain)
	return l, nil
}

// plainly returns an error if the outcome is not suitable as a plain run.
func (o *outcome) plainly(cfg *Config) error {
	writes := 0
	for i := range o.requests {
		if o.requests[i].writes {
			writes++
		}
	}
	switch {
	case o.process != "":
		return errors.New(o.process)
	case o.stuck != nil:
		return fmt.Errorf("the workload did not proceed: %w", o.stuck)
	case writes == 0:
		return errors.New("the controller wrote nothing: check that it uses {kubeconfig} and that the workload contains objects for it")
	case !o.quiet:
		return fmt.Errorf("the controller did not stop writing within %v: ignore repeated writes with --ignore", cfg.plainPatience)
	}
	return nil
}

// writes returns the number of the controller's writes in a plain run.
func (l *learned) writes() (n int) {
	for i := range l.plain[0].requests {
		if l.plain[0].requests[i].writes {
			n++
		}
	}
	return n
}

// runAll executes the plans in parallel until the time budget is exhausted.
func runAll(ctx context.Context, cfg *Config, l *learned, plans []Plan, began time.Time, onVerdict func(Verdict, int, int)) ([]Verdict, error) {
	verdicts, errs := make([]*Verdict, len(plans)), make([]error, len(plans))
	var mu sync.Mutex // guards done and the calls of onVerdict
	done, failed := 0, atomic.Bool{}
	each(ctx, len(plans), cfg.Parallel, func(i int) {
		if cfg.Budget > 0 && time.Since(began) > cfg.Budget || cfg.FailFast && failed.Load() {
			return
		}
		v, err := try(ctx, cfg, l, &plans[i])
		if err != nil {
			if ctx.Err() == nil { // an interrupt is reported only once
				errs[i] = fmt.Errorf("%s: %w", plans[i], err)
			}
			return
		}
		verdicts[i] = &v
		if v.Verdict == Wrong {
			failed.Store(true)
		}
		mu.Lock()
		defer mu.Unlock()
		done++
		onVerdict(v, done, len(plans))
	})
	var all []Verdict
	for _, v := range verdicts {
		if v != nil {
			all = append(all, *v)
		}
	}
	return all, errors.Join(append(errs, ctx.Err())...)
}

// each calls do for each number from 0 to n-1 in parallel. It returns when all calls have returned.
func each(ctx context.Context, n, parallel int, do func(int)) {
	var all sync.WaitGroup
	places := make(chan struct{}, parallel)
	for i := range n {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		all.Go(func() {
			defer func() { <-places }()
			do(i)
		})
	}
	all.Wait()
}
