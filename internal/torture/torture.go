// Package torture asks whether a controller survives what a cluster does to it: it runs the controller's own program against ephemeral servers, does to
// it, once in each run and at a chosen point, what a correct API server may do at any time, and looks whether it comes to the same state all the same.
//
//	apilet torture --objects workload.yaml -- ./manager --kubeconfig {kubeconfig}
//
// A controller is right if it comes to the wanted state from any state, whatever it has missed, whenever it has died. Nobody's tests show that: a
// server in a test is always fresh, fast and right. The idea is Sieve's (Sun et al., "Automatic Reliability Testing for Cluster Management
// Controllers", OSDI 2022), which found 46 bugs in ten popular operators: states that a controller leaves half done (intermediate), sees too late
// (stale) or never sees (unobserved). Sieve changes the controller's client library, and starts a cluster for each run. Here the controller stays as
// it is, and what it is shown is decided at the door of its server:
//
//	controller ──▶ door (a proxy for it alone) ──▶ an ephemeral apilet, which keeps all revisions
//	                 ▲                                   ▲            │
//	              a plan's tricks                 the workload        └──▶ the history: who wrote what
//
// Five steps. Learn (learn in this file): some plain runs; what all of them come to is the reference (state.go). Plan (plan.go): the points that matter, from
// the recorded history of a plain run, few, ranked, and the same for the same seed. Run (run.go): each plan from a fresh copy of the same prepared file, one
// perturbation each (act.go, at the door of door.go). Judge (judge.go): the state at quiet points (quiet.go) and at the end, whether it became quiet, the process, what may never be
// written. Tell (tell.go): a table, a page for each wrong plan, files for a CI, and a file that plays the plan again.
//
// Invariants: nothing of this is in a server: an ordinary one is started as a child, as anybody starts one, and serves at its own cost. All that the
// door answers or holds back is what a correct server may. A plan's point is met once, at the same write of every run that gets so far; a run that
// does not get there says so, and accuses nobody.
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

// Config is what is to be tortured, and how.
type Config struct {
	Program     string          // apilet's own
	Command     []string        // the controller's command line, with {kubeconfig}, {server} and {port} in it
	Objects     string          // the file of the workload; "": the script is all of it
	Script      string          // a shell's command line that is played behind it; "": none
	Setup       string          // a file of steps that are done before any controller starts; "": none
	Base        string          // a prepared file that all servers begin with; "": none
	ServerFlags []string        // more of them, for the servers
	Replicas    int             // processes of the controller
	Plain       int             // runs to learn from
	Without     []string        // kinds of plans that are left out
	Most        int             // plans at most
	FailFast    bool            // no plan is begun after one went wrong
	Budget      time.Duration   // no plan is begun after it; 0: no limit
	Seed        uint64          // of the order of plans
	Parallel    int             // runs at the same time
	Quiet       time.Duration   // for so long nothing happens once all is done
	Stale       time.Duration   // for so long the past is shown
	Patience    time.Duration   // with a controller that is not done
	Ignored     []string        // resources (PLURAL.GROUP) that do not count
	Never       []string        // CEL: writes that the controller may not make
	Shrink      int             // tries to make a wrong plan smaller; 0: none
	Omit        []string        // objects of the workload that are left out
	Wait        func(at string) // called at a plan's point; nil: nothing is waited for

	steps []step
	never []cel.Program
	base  string // that all runs begin with

	plainPatience time.Duration // with plain runs
	scriptMost    time.Duration // with the script; 0: as in plain runs
}

// prepare reads files and expressions: what is wrong with them is told before anything is started.
func (c *Config) prepare() (err error) {
	if len(c.Command) == 0 {
		return errors.New("no controller: its command line comes last, behind --")
	}
	if c.Replicas < 1 || c.Plain < 2 || c.Parallel < 1 {
		return errors.New("--replicas and --parallel are at least 1, --plain is at least 2")
	}
	if c.Objects != "" {
		if c.steps, err = readWorkload(c.Objects); err != nil {
			return fmt.Errorf("--objects: %w", err)
		}
	}
	c.steps, c.plainPatience = withoutObjects(c.steps, c.Omit), max(plainPatience, c.Patience) // what is waited for in vain there ends it all
	for _, expression := range c.Never {
		p, err := compile(expression)
		if err != nil {
			return fmt.Errorf("--never: %w", err)
		}
		c.never = append(c.never, p)
	}
	return nil
}

// A Report is what came of it all.
type Report struct {
	Command  []string  `json:"command"`
	Seed     uint64    `json:"seed"`
	Plain    float64   `json:"plainSeconds"` // the longest of the plain runs
	Writes   int       `json:"writes"`       // of the controller, in a plain run
	Planned  int       `json:"planned"`
	Warnings []string  `json:"warnings,omitempty"` // about the workload
	Verdicts []Verdict `json:"verdicts"`
}

// Wrong counts the plans that went wrong.
func (r *Report) Wrong() (n int) {
	for _, v := range r.Verdicts {
		if v.Verdict == Wrong {
			n++
		}
	}
	return n
}

// Run tortures a controller: all plans that there are, or one. told is given each verdict as it comes. When it is ended before its time the report has
// what is known until then.
func Run(ctx context.Context, cfg Config, only *Plan, notes io.Writer, told func(Verdict, int, int)) (*Report, error) {
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
	at := progress{out: notes, of: len(plans), began: time.Now(), told: time.Now()}
	if cfg.Budget > 0 {
		at.end = began.Add(cfg.Budget)
	}
	report.Verdicts, err = runAll(ctx, &cfg, l, plans, began, func(v Verdict, done, of int) {
		told(v, done, of)
		at.note(v, time.Now())
	})
	if err == nil && cfg.Shrink > 0 {
		err = shrinkAll(ctx, &cfg, l, report, began, notes)
	}
	return report, err
}

// makeBase prepares the file that all runs begin with: the one that was given, with what the setup has done to it.
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

// What was learned from plain runs.
type learned struct {
	plain   []*outcome
	want    *reference
	longest time.Duration

	mu    sync.Mutex            // guards edits, for as long as a run takes
	edits map[string]*reference // with what comes of an edit in peace, by the write before which it is made
}

// A plain run is waited for so long at least, and its quiet is so many times as long.
const (
	plainPatience = time.Minute
	plainQuiet    = 3
)

// learn makes the plain runs. A controller that is wrong without being tortured is told of, and no more.
func learn(ctx context.Context, cfg *Config) (*learned, error) {
	l := &learned{plain: make([]*outcome, cfg.Plain), edits: map[string]*reference{}}
	errs := make([]error, cfg.Plain)
	plainly := *cfg
	plainly.Quiet *= plainQuiet // a state that is not the last would call all plans wrong
	plainly.Wait, plainly.Patience = nil, cfg.plainPatience
	each(ctx, cfg.Plain, cfg.Parallel, func(i int) { l.plain[i], errs[i] = perform(ctx, &plainly, nil, nil) })
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	var states []state
	for _, o := range l.plain {
		if err := o.plainly(cfg); err != nil {
			return nil, fmt.Errorf("a plain run, in which nothing was done to the controller: %w\n%s", err, lastLines(o.said, 20))
		}
		states, l.longest = append(states, o.state), max(l.longest, o.took)
	}
	l.want = newReference(states)
	l.want.quiet = quietReferences(l.plain)
	return l, nil
}

// plainly says why one cannot learn from an outcome.
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
		return fmt.Errorf("the workload did not get on: %w", o.stuck)
	case writes == 0:
		return errors.New("the controller wrote nothing: does it use {kubeconfig}, and has the workload anything for it?")
	case !o.quiet:
		return fmt.Errorf("the controller did not become quiet within %v: what it writes for ever can be left out with --ignore", cfg.plainPatience)
	}
	return nil
}

// writes counts those of the controller in a plain run.
func (l *learned) writes() (n int) {
	for i := range l.plain[0].requests {
		if l.plain[0].requests[i].writes {
			n++
		}
	}
	return n
}

// runAll runs plans side by side, in their order, until the budget is used up.
func runAll(ctx context.Context, cfg *Config, l *learned, plans []Plan, began time.Time, told func(Verdict, int, int)) ([]Verdict, error) {
	verdicts, errs := make([]*Verdict, len(plans)), make([]error, len(plans))
	var mu sync.Mutex // guards done, and the calls of told
	done, failed := 0, atomic.Bool{}
	each(ctx, len(plans), cfg.Parallel, func(i int) {
		if cfg.Budget > 0 && time.Since(began) > cfg.Budget || cfg.FailFast && failed.Load() {
			return
		}
		v, err := try(ctx, cfg, l, &plans[i])
		if err != nil {
			if ctx.Err() == nil { // that all is to end is told once
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
		told(v, done, len(plans))
	})
	var all []Verdict
	for _, v := range verdicts {
		if v != nil {
			all = append(all, *v)
		}
	}
	return all, errors.Join(append(errs, ctx.Err())...)
}

// each calls do with 0 to n-1, some at the same time, and returns when all calls have.
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
