package torture

// This file implements the execution of a run. It starts a server and the controller, plays the
// workload, and injects at most one fault. A run ends when the controller is quiet and the state is
// right, or when the time limit is reached.

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"apilet/internal/history"
	"apilet/internal/kubeconfig"
)

// A replica is one process of the controller and the door that it uses.
type replica struct {
	*door
	*controller
}

// A run is a run in progress.
type run struct {
	cfg      *Config
	plan     *Plan      // nil in a plain run
	want     *reference // nil if unknown
	server   *server
	record   *record
	replicas []*replica
	dir      string // for temporary files
	out      *outcome
	gap      gap         // hides the workload from the controller
	points   sync.Mutex  // held in quietPoint, because a script may request it concurrently
	isRight  func() bool // reports whether the state equals the end state of the plain runs

	// The number of pending actions of the plan. The run is not considered to be quiet until this
	// is zero, and the timeout is suspended.
	pending   atomic.Int32
	lagging   atomic.Int32                // number of delayed events, during which the run is not quiet
	reached   atomic.Bool                 // the plan's point was reached
	pointAt   atomic.Int64                // when the point was reached, as Unix time in nanoseconds
	afterward func(context.Context) error // the actions of the plan after the workload, or nil
}

// perform executes a run. It returns an error if the test environment fails. Errors of the
// controller are part of the outcome.
func perform(ctx context.Context, cfg *Config, plan *Plan, want *reference) (_ *outcome, err error) {
	dir, err := os.MkdirTemp("", "apilet-torture-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &run{cfg: cfg, plan: plan, want: want, dir: dir, out: &outcome{ignored: cfg.Ignored, want: want}}
	r.isRight = r.matches(want)
	if r.server, err = startServer(ctx, cfg.Program, cfg.base, cfg.ServerFlags); err != nil {
		return nil, err
	}
	defer r.server.stop()
	rev, err := r.server.revision(ctx)
	if err != nil {
		return nil, err
	}
	r.record = newRecord(rev, cfg.Ignored)
	go r.record.follow(ctx, r.server) // until the run ends
	r.out.began = time.Now()
	defer r.stopControllers()
	if err := r.startControllers(); err != nil {
		return nil, err
	}
	r.work(ctx)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.stopControllers()
	return r.outcome(), nil
}

func (r *run) startControllers() error {
	tricks := r.tricks()
	for i := range r.cfg.Replicas {
		d, err := openDoor(r.server, i, r.record.counts, tricks)
		if err != nil {
			return err
		}
		path := filepath.Join(r.dir, "kubeconfig"+strconv.Itoa(i))
		err = kubeconfig.Write(path, map[string]any{"server": d.url}, map[string]any{})
		if err != nil {
			d.close()
			return err
		}
		c, err := newController(r.cfg.Command, path, d.url)
		if err != nil {
			d.close()
			return err
		}
		r.replicas = append(r.replicas, &replica{d, c})
	}
	for _, rep := range r.replicas {
		if err := rep.start(); err != nil {
			return fmt.Errorf("starting the controller: %w", err)
		}
	}
	return nil
}

func (r *run) stopControllers() {
	for _, rep := range r.replicas {
		rep.controller.stop()
		rep.door.close()
	}
}

// work plays the workload and then performs any actions that the plan specifies after it.
func (r *run) work(ctx context.Context) {
	r.settle(ctx, nil)
	for i := range r.cfg.steps {
		s := &r.cfg.steps[i]
		if s.Quiet {
			r.quietPoint(ctx)
			continue
		}
		if r.out.stuck = s.play(ctx, r.server, r.cfg.Patience, r.givenUp); r.out.stuck != nil {
			return
		}
		r.record.touch() // the history reports the step later, so the run must not count as quiet yet
	}
	if r.cfg.Script != "" {
		if r.out.stuck = r.playScript(ctx); r.out.stuck != nil {
			return
		}
	}
	r.out.quiet = r.settle(ctx, r.isRight)
	if r.afterward != nil {
		if r.out.stuck = r.afterward(ctx); r.out.stuck != nil {
			return
		}
		r.record.touch()
		right := r.isRight
		switch r.plan.Kind {
		case ending:
			right = func() bool { return len(endedWithout(r.record.all(), r.plan.Object)) == 0 }
		case edited: // any result of the edit is right
			right = nil
		}
		r.out.quiet = r.settle(ctx, right)
	}
}

// settle waits until the controller is quiet and right returns true. If right is nil, it only waits
// until the controller is quiet. It reports whether the controller became quiet.
func (r *run) settle(ctx context.Context, right func() bool) bool {
	quiet := false
	for begin := time.Now(); ctx.Err() == nil; {
		if quiet = r.isQuiet(); quiet && (right == nil || right()) {
			return true
		}
		if time.Since(begin) > r.cfg.Patience || r.givenUp() {
			return quiet
		}
		if r.pending.Load() > 0 || r.gap.isOpen() { // do not include the time needed by the plan itself
			begin = time.Now()
		}
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
		}
	}
	return false
}

// givenUp reports whether all replicas have ended for good.
func (r *run) givenUp() bool {
	return !slices.ContainsFunc(r.replicas, func(rep *replica) bool { return !rep.givenUp() })
}

// matches returns a function that reports whether the state equals the reference. It compares again
// only after new lines. If want is nil, every state is equal.
func (r *run) matches(want *reference) func() bool {
	looked, right := -1, true
	return func() bool {
		if want == nil {
			return true
		}
		if lines := r.record.all(); len(lines) != looked {
			looked, right = len(lines), len(want.compare(normalise(lines, r.cfg.Ignored))) == 0
		}
		return right
	}
}

// isQuiet reports whether there was no activity for a while and there are no pending actions.
func (r *run) isQuiet() bool {
	if r.pending.Load() > 0 || r.lagging.Load() > 0 {
		return false
	}
	last, idle := r.record.lastChange(), true
	for _, rep := range r.replicas {
		wrote, busy := rep.quietSince()
		if wrote.After(last) {
			last = wrote
		}
		idle = idle && busy
	}
	return !idle && time.Since(last) >= r.cfg.Quiet
}

func (r *run) outcome() *outcome {
	o := r.out
	o.lines = r.record.all()
	o.state = normalise(o.lines, r.cfg.Ignored)
	o.reached, o.took = r.reached.Load(), time.Since(o.began)
	if at := r.pointAt.Load(); at != 0 {
		o.pointAt = time.Unix(0, at)
	}
	for _, rep := range r.replicas {
		all := rep.requests()
		for i := range all {
			if all[i].writes && time.Since(all[i].at) < time.Second+r.cfg.Quiet {
				o.retries++
			}
		}
		o.requests = append(o.requests, all...)
		if how := rep.misbehaviour(); how != "" {
			o.process = how
		}
		o.said += rep.out.String()
	}
	return o
}

// endedWithout returns the remaining objects of a namespace that should be deleted.
func endedWithout(lines []history.Line, key string) []Difference {
	live := map[string]bool{}
	var all []Difference
	var order []string
	for i := range lines {
		k := keyOfLine(&lines[i])
		if keyOf("", "namespaces", "", lines[i].Namespace) != key && k != key {
			continue
		}
		if _, known := live[k]; !known {
			order = append(order, k)
		}
		live[k] = lines[i].Type != "DELETED"
	}
	for _, k := range order {
		if live[k] {
			all = append(all, Difference{Object: k, Have: "(there)"})
		}
	}
	return all
}
